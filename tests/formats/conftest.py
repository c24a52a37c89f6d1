"""Work directories written by hand, for the tests of log formats."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tunedb.storage.store import Store


@pytest.fixture
def memory():
    with Store(":memory:") as store:
        yield store
