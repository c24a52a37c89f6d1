"""Small workloads and records for the tests of the MetaSchedule plugin."""

from __future__ import annotations

from contextlib import ExitStack, closing
from fnmatch import fnmatch

import matmuls
import pytest
import tvm

from tunedb.plugins.metaschedule import Database, compat, modules
from tunedb.plugins.metaschedule.intrinsics import load_intrinsics
from tunedb.plugins.metaschedule.tuning.tvm_logs import logs_in_files

#: Tests that earlier releases of TVM cannot pass: release before which, a pattern of their names in
#: this folder, and the reason. docs/design.md, "Releases of TVM", says the same to users.
NEWER = [
    ((0, 27), "test_graph_module.py::*", "graphs become modules with 0.27 alone"),
    ((0, 27), "test_foreign_workloads.py::*", "graphs become modules with 0.27 alone"),
    ((0, 27), "test_old_records.py::*", "graphs become modules with 0.27 alone"),
    (
        (0, 27),
        "test_trace_codec.py::test_built_traces_of_real*",
        "modules of the records are of 0.27",
    ),
    ((0, 27), "test_ir.py::test_unknown_types*", "the unknown type is of 0.27"),
    ((0, 26), "test_ir.py::*", "its script is of 0.26 and 0.27"),
    ((0, 27), "test_trace_kinds.py::*merged]", "TVM cannot merge these loops"),
    ((0, 27), "test_allowed.py::*merged]", "TVM cannot merge these loops"),
    ((0, 27), "test_trace_kinds.py::test_all_kinds*", "TVM cannot merge these loops"),
    ((0, 27), "test_allowed.py::test_allowlist_rejects_mutated*", "TVM cannot merge these loops"),
    ((0, 26), "test_flat.py::test_flatten_keeps_unit_loops*", "tvm-ffi cannot walk a module"),
    ((0, 26), "test_layouts.py::*[[]Clip[]]", "a Clip selects NaN by an operator without layout"),
    ((0, 26), "test_layouts.py::*one bound]", "a Clip selects NaN by an operator without layout"),
    ((0, 26), "test_layouts.py::*with NaN]", "a Clip selects NaN by an operator without layout"),
    ((0, 26), "test_layouts.py::*[[]Dropout]", "the importer of ONNX knows no dropout"),
    ((0, 26), "test_layouts.py::test_operators_that_tvm_rejects*", "TVM does not lower dropouts"),
    ((0, 26), "test_lowering.py::test_second_simplification*", "TVM lowers in Python alone"),
    ((0, 26), "test_lowering.py::test_lowering_reports*", "TVM lowers in Python alone"),
]
#: Of whole files even the import may fail.
collect_ignore = [
    pattern.removesuffix("::*")
    for release, pattern, _ in NEWER
    if pattern.endswith(".py::*") and compat.number() < release
]


def pytest_collection_modifyitems(items):
    """Skip what an earlier release cannot pass."""
    for item in items:
        name = f"{item.path.name}::{item.name}"
        for release, pattern, reason in NEWER:
            if item.path.parent.name == "plugins" and fnmatch(name, pattern):
                if compat.number() < release:
                    item.add_marker(pytest.mark.skip(reason=reason))
                break


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
