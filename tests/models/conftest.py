import pytest
from builders import copied
from small_data import fill

from tunedb.storage.store import Store


@pytest.fixture(scope="session")
def stored_template(sqlite_template, tmp_path_factory):
    """A filled database, to be copied."""
    path = tmp_path_factory.mktemp("stored") / "stored.db"
    copied(sqlite_template, path)
    with Store(path) as store:
        fill(store)
    return path


@pytest.fixture
def stored(stored_template, tmp_path):
    """A store with 204 records, and with rows of feature set ``small_data.SMALL_STEPS``.

    For target 0:

    * three workloads of family matmul and three of conv2d, 24 programs each, of which three failed
      (compile_error, timeout, runtime_error), in the order of time, origins random, mutated and
      measured in turn; three times each, the median is ``seconds_of(number, size)``, `size` is 1
      for the first workload to 6 for the last;
    * a workload with four programs that all failed to compile;
    * of the first workload besides: 0 measured again, twice as slow; 1 failed later; 7, which had
      failed, worked later; 30 failed for reasons of infrastructure; 31 was not measured; 32 has the
      time 1e10, which is none; 33 is a foreign source's; 34 was retracted. 5 has no rows.

    Target 1 has 24 programs of the first workload of each family, `size` 2.
    """
    with Store(copied(stored_template, tmp_path / "stored.db")) as store:
        yield store


@pytest.fixture
def empty(sqlite_file):
    """An empty store on SQLite, for tests that do not depend on the database."""
    with Store(sqlite_file) as store:
        yield store
