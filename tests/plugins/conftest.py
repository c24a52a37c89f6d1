"""Small workloads and records for the tests of the MetaSchedule plugin."""

from __future__ import annotations

from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest


def _matmul(n=16, block="C", post=None):
    from tvm import IRModule, te

    a = te.placeholder((n, n), name="A")
    b = te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=block)
    out = c if post is None else te.compute((n, n), lambda i, j: post(c[i, j]), name="D")
    return IRModule({"main": te.create_prim_func([a, b, out])})


def _record(mod, workload, run_secs, *, tile=(4, 4), target=None, block="C", postproc=True):
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms

    sch = Schedule(mod)
    loops = sch.get_loops(sch.get_sblock(block))
    factors = sch.sample_perfect_tile(loops[1], 2, 16, decision=list(tile))
    outer, inner = sch.split(loops[1], factors)
    sch.reorder(loops[0], outer, loops[2], inner)
    if postproc:
        sch.enter_postproc()
        sch.parallel(loops[0])
    args = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
    return ms.database.TuningRecord(sch.trace, workload, run_secs, target, args)


def _commit(database, mod, run_secs, **options):
    """Commit a record of a module; return its workload."""
    workload = database.commit_workload(mod)
    database.commit_tuning_record(_record(mod, workload, run_secs, **options))
    return workload


@pytest.fixture(scope="session")
def tools():
    """Functions ``matmul``, ``record``, ``commit`` and ``seconds``; targets."""
    import tvm

    return SimpleNamespace(
        matmul=_matmul,
        record=_record,
        commit=_commit,
        seconds=lambda records: [
            None if r.run_secs is None else [float(v) for v in r.run_secs] for r in records
        ],
        llvm=tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"}),
        llvm_other=tvm.target.Target({"kind": "llvm", "num-cores": 8, "mcpu": "x86-64-v2"}),
        llvm_newer=tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v4"}),
        cuda=tvm.target.Target({"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024}),
    )


@pytest.fixture(autouse=True)
def tvm_logs():
    """TVM leaves the files of its logs open; each test closes them."""
    from tunedb.plugins.metaschedule.tune.tvm_logs import logs_in_files

    with logs_in_files():
        yield


@pytest.fixture(scope="session", autouse=True)
def intrinsics():
    """TVM's tensor intrinsics, loaded as a tuning run loads them; TVM's import takes 20 s here."""
    from tunedb.plugins.metaschedule.intrinsics import load_intrinsics

    load_intrinsics()


@pytest.fixture
def path(tmp_path):
    """The path of a database that a test makes."""
    return tmp_path / "tune.db"


@pytest.fixture
def opened():
    """A function that opens a Database, which is closed when the test ends."""
    from tunedb.plugins.metaschedule import Database

    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(closing(Database(*args, **options)))


@pytest.fixture
def live(tmp_path, tools):
    """A module, and a measurement of a program of it, as the plugin stores them."""
    from tunedb.plugins.metaschedule import Database

    mod = tools.matmul()
    database = Database(tmp_path / "live.db", target=tools.llvm)
    database.commit_tuning_record(
        tools.record(mod, database.commit_workload(mod), [0.5], target=tools.llvm)
    )
    (record,) = database.store.records.iterate()
    database.close()
    return mod, record.measurement


@pytest.fixture
def no_parser(monkeypatch):
    """Fail where TVM reads a script or a graph."""
    import tvm

    from tunedb.plugins.metaschedule import modules

    calls = []

    def refuse(source, *_):
        calls.append(source)
        raise ValueError("TVM must not read this")

    for where, name in (
        *((modules, "from_script"), (modules, "to_module")),
        *((tvm.script, "from_source"), (tvm.ir, "load_json")),
    ):
        monkeypatch.setattr(where, name, refuse)
    yield
    assert calls == []
