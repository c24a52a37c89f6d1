"""Work directories written by hand, for the tests of log formats."""

import pytest

from tunedb.storage.store import Store


@pytest.fixture
def memory():
    with Store(":memory:") as store:
        yield store
