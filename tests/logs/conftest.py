"""Work directories written by hand, for the tests of log formats."""

import sys
from pathlib import Path

import pytest
from public_logs import DATA

sys.path.insert(0, str(Path(__file__).parent))

from tunedb.storage.store import Store


@pytest.fixture
def memory():
    with Store(":memory:") as store:
        yield store


@pytest.fixture(scope="session")
def measured_cpu():
    """Real records of a processor, where they lie beside the repository."""
    folder = DATA / "measured_cpu"
    if not folder.is_dir():
        pytest.skip("the measured records are not here")
    return folder
