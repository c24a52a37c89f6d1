import pytest

from tunedb.storage.store import Store


@pytest.fixture
def memory():
    """A store of a database in memory."""
    with Store(":memory:") as store:
        yield store
