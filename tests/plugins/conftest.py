"""Small workloads and records for the tests of the MetaSchedule plugin."""

from __future__ import annotations

from contextlib import ExitStack, closing

import matmuls
import pytest
import tvm

from tunedb.plugins.metaschedule import Database, modules
from tunedb.plugins.metaschedule.intrinsics import load_intrinsics
from tunedb.plugins.metaschedule.tuning.tvm_logs import logs_in_files


@pytest.fixture(scope="session")
def tools():
    return matmuls


@pytest.fixture(autouse=True)
def tvm_logs():
    """TVM leaves the files of its logs open; each test closes them."""
    with logs_in_files():
        yield


@pytest.fixture(scope="session", autouse=True)
def intrinsics():
    """TVM's tensor intrinsics, loaded as a tuning run loads them; TVM's import takes 20 s here."""
    load_intrinsics()


@pytest.fixture
def path(tmp_path):
    """The path of a database that a test makes."""
    return tmp_path / "tune.db"


@pytest.fixture
def opened():
    """A function that opens a Database, which is closed when the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(closing(Database(*args, **options)))


@pytest.fixture
def live(tmp_path, tools):
    """A module, and a measurement of a program of it, as the plugin stores them."""
    mod = tools.matmul()
    with closing(Database(tmp_path / "live.db", target=tools.llvm)) as database:
        tools.commit(database, mod, [0.5])
        (record,) = database.store.records.iterate()
    return mod, record.measurement


@pytest.fixture
def no_parser(monkeypatch):
    """Fail where TVM reads a script or a graph."""
    calls = []

    def refuse(source, *_):
        calls.append(source)
        raise ValueError("TVM must not read this")

    monkeypatch.setattr(modules, "from_script", refuse)
    monkeypatch.setattr(modules, "to_module", refuse)
    monkeypatch.setattr(tvm.script, "from_source", refuse)
    monkeypatch.setattr(tvm.ir, "load_json", refuse)
    yield
    assert calls == []
