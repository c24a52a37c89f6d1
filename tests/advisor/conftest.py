import pytest
from observing import PROFILED
from public_logs import GPU

from tunedb.advisor.loading import load
from tunedb.formats.base import LogFile
from tunedb.formats.importer import import_log
from tunedb.storage.store import Store


@pytest.fixture(scope="session")
def profiled_runs(tmp_path_factory):
    """Observations of the 9,305 runs of three kernels that KTT profiled on an RTX 2080 Ti."""
    with Store(tmp_path_factory.mktemp("ktt") / "ktt.db") as store:
        for name in PROFILED:
            import_log(store, LogFile(GPU / "ktt" / f"{name}.json.gz", name), source=name)
        return load(store, profiled=True)
