"""Modules with infinities and NaN, of which attention masks and logarithms are made."""

import base64
import struct

import networks
import numpy as np
import orjson
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import meta_schedule as ms

from tunedb.formats.metaschedule import parse_workload, workload_line
from tunedb.plugins.metaschedule import Database, compat
from tunedb.plugins.metaschedule.deploy.apply import compile, tasks_of
from tunedb.plugins.metaschedule.modules import structure_of_module, to_module, to_workload

TARGET = tvm.target.Target(networks.LLVM)


def masked(name="main"):
    """Return a module of a mask, with all numbers that JSON lacks."""
    x = te.placeholder((8,), name="x")
    least, most, none = (tirx.const(float(text), "float32") for text in ("-inf", "inf", "nan"))
    y = te.compute((8,), lambda i: tirx.Select(x[i] > 0, x[i], tirx.Select(x[i] < -1, least, most)))
    z = te.compute((8,), lambda i: tirx.Select(x[i] > 5, none, y[i]), name="z")
    return tvm.IRModule({name: te.create_prim_func([x, z]).with_attr("global_symbol", name)})


def test_module_with_infinities_is_stored_and_read():
    mod = masked()
    workload = to_workload(mod)
    assert b'"-Infinity"' in workload.body and b'"NaN"' in workload.body
    # NaN differs from itself.
    assert to_workload(to_module(workload)) == workload
    assert structure_of_module(mod).blocks is not None


@pytest.mark.skipif(
    not compat.release().builds_modules,
    reason="needs TVM 0.27, of whose nodes tunedb rebuilds modules",
)
def test_module_with_infinities_is_rebuilt_from_its_graph():
    from tunedb.plugins.metaschedule.graph_module import module_of

    assert module_of(orjson.loads(to_workload(masked()).body)).script() == masked().script()


def test_log_of_metaschedule_with_infinities_is_read_and_written():
    text = str(tvm.ir.save_json(masked())).encode()
    encoded = base64.b64encode(struct.pack("<Q", len(text)) + text).decode()
    workload = parse_workload(["0", encoded])
    assert workload.body == to_workload(masked()).body
    line = workload_line(workload)
    assert parse_workload(orjson.loads(line)) == workload
    raw = base64.b64decode(orjson.loads(line)[1])[8:].decode()
    assert '"value":-Infinity' in raw
    assert to_workload(tvm.ir.load_json(raw)).body == workload.body


def test_programs_of_a_function_with_infinities_are_found(tmp_path):
    mod = masked()
    with Database(tmp_path / "db", target=TARGET, prior="none") as database:
        (key,) = tasks_of(mod, TARGET).values()
        workload = database.commit_workload(key)
        sch = tvm.s_tir.Schedule(key)
        sch.vectorize(sch.get_loops(sch.get_sblock("z"))[0])
        sch.enter_postproc()
        record = ms.database.TuningRecord(sch.trace, workload, [1e-6], TARGET, None)
        database.commit_tuning_record(record)
        (use,) = compile(mod, database).uses
        assert use.kind == "measured"
    values = np.array([1, 6, -2, 0, 2, -1, -5, 3], "float32")
    with Database(tmp_path / "db", target=TARGET, prior="none") as database:
        library = compile(mod, database).executable
        found = tvm.runtime.tensor(np.zeros(8, "float32"))
        library["main"](tvm.runtime.tensor(values), found)
    inf = np.inf
    expected = np.array([1, np.nan, -inf, inf, 2, inf, -inf, 3], "float32")
    np.testing.assert_array_equal(found.numpy(), expected)
