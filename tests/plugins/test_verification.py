"""Programs are compared with the unscheduled functions before they go into a library."""

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.script import ir as I
from tvm.script import tirx as T

from tunedb.plugins.metaschedule import Database, trace_codec
from tunedb.plugins.metaschedule.deploy.apply import compile, tasks_of
from tunedb.plugins.metaschedule.deploy.verification import doubts

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})


def reversed_rows():
    """Return a function that reads its argument backwards."""
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[7 - i] * 2.0, name="b")
    return tvm.IRModule({"main": te.create_prim_func([a, b])})


def packed(mod):
    """Return a program that packs the argument, which TVM reads in wrong places then.

    If it is right one day, TVM is mended, and weights that are read backwards may be packed.
    """
    sch = Schedule(mod)
    block = sch.get_sblock("b")
    cache = sch.cache_read(block, 0, "global")
    sch.transform_layout(block, ("read", 0), lambda i: (i // 2, i % 2))
    sch.annotate(cache, "meta_schedule.layout_rewrite_preproc", 1)
    sch.enter_postproc()
    return sch.trace


def vectorized(mod):
    sch = Schedule(mod)
    sch.vectorize(sch.get_loops(sch.get_sblock("b"))[0])
    sch.enter_postproc()
    return sch.trace


@I.ir_module
class Unlinked:
    """A function that calls one that nobody has."""

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        T.func_attr({"tirx.noalias": True})
        for i in range(8):
            with T.sblock("b"):
                vi = T.axis.spatial(8, i)
                b[vi] = T.call_extern("float32", "no_such_function_anywhere", a[vi])


def test_doubts_are_about_wrong_broken_and_unknown_programs():
    mod = reversed_rows()
    traces = {b"right": vectorized(mod), b"wrong": packed(mod)}
    programs = {key: (mod, trace_codec.encode(trace)) for key, trace in traces.items()}
    # The function has a block of another name.
    a = te.placeholder((8,), name="a")
    other = te.create_prim_func([a, te.compute((8,), lambda i: a[i], name="c")])
    sch = Schedule(other)
    sch.vectorize(sch.get_loops(sch.get_sblock("c"))[0])
    programs[b"broken"] = (mod, trace_codec.encode(sch.trace))
    sch = Schedule(Unlinked)
    sch.enter_postproc()
    programs[b"unknown"] = (Unlinked, trace_codec.encode(sch.trace))
    steps = []
    found = doubts(programs, TARGET, lambda *step: steps.append(step))
    assert found.keys() == {b"wrong", b"broken", b"unknown"}
    assert found[b"broken"].is_wrong
    assert "c" in found[b"broken"].reason
    assert found[b"wrong"].is_wrong
    assert found[b"wrong"].reason.startswith("it deviates by ")
    assert not found[b"unknown"].is_wrong
    assert found[b"unknown"].reason.startswith("the unscheduled function: ")
    assert steps == [(number, 4, "verifying") for number in range(5)]


@pytest.fixture
def database(tmp_path):
    """A database whose only program of the function computes wrong results."""
    with Database(tmp_path / "store.db", target=TARGET) as found:
        (task,) = tasks_of(reversed_rows(), TARGET).values()
        workload = found.commit_workload(task)
        info = ms.arg_info.ArgInfo.from_entry_func(task)
        record = ms.database.TuningRecord(packed(task), workload, [1e-6], TARGET, info)
        found.commit_tuning_record(record)
        yield found


def result(compiled):
    a = np.arange(8, dtype="float32")
    b = tvm.runtime.tensor(np.zeros_like(a))
    compiled.executable["main"](tvm.runtime.tensor(a), b)
    return b.numpy()


def test_a_wrong_program_is_left_out_of_the_library_and_named(database):
    expected = 2 * np.arange(8, dtype="float32")[::-1]
    unverified = compile(reversed_rows(), database)
    assert unverified.uses[0].kind == "measured"
    assert not np.array_equal(result(unverified), expected)
    verified = compile(reversed_rows(), database, verify=True)
    (use,) = verified.uses
    assert (use.kind, use.record_id) == ("default", None)
    assert use.doubt.startswith("it deviates by ")
    assert verified.notes == (
        f"main: {use.doubt}; its program is left out, and it is compiled as TVM's default",
    )
    np.testing.assert_array_equal(result(verified), expected)
