"""TVM's IR in the flat form (plugins/metaschedule/features/ir.py, tunedb/features/_reader.pyx)."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import pytest
import te_programs
import tvm
from logged import logged
from reference_reader import FromNest, FromTVM
from tvm import tirx
from tvm.script import ir as I
from tvm.script import tirx as T

from tunedb.errors import LimitError, PluginError
from tunedb.features._nest import Nest, Op
from tunedb.features.scheduled import SCHEDULED
from tunedb.plugins.metaschedule import compat
from tunedb.plugins.metaschedule.features import ir
from tunedb.plugins.metaschedule.features import rows as features

KEYS, RENAMED = compat.types()["Load"]


def modules(kind, name, count):
    """Return random schedules of a workload."""
    return [one.sch.mod for one in te_programs.sample(name, kind, count)[1]]


def assert_nest_equals_reference(mod):
    wanted, found = FromTVM(mod).lines, FromNest(ir.read(mod)).lines
    assert "\n".join(found) == "\n".join(wanted)


PROGRAMS = [
    *(("llvm", name) for name in ("matmul", "CBR-0", "SFM-0", "winograd")),
    *(("cuda", name) for name in ("matmul", "SFM-0")),
    *(("tensorcore", "matmul-f16"), ("vnni", "vnni-dense")),
]


@pytest.mark.parametrize(("kind", "name"), PROGRAMS)
def test_nest_of_scheduled_program_equals_reference(kind, name):
    for mod in modules(kind, name, 3):
        assert_nest_equals_reference(mod)


@I.ir_module
class Rare:
    @T.prim_func(s_tir=True)
    def first(A: T.Buffer((8, "n"), "int8"), B: T.Buffer((64,), "float16"), n: T.int32):
        for i in T.parallel(2, 7):
            B[i] = T.Select(n < i and not (n == 3 or i >= 4), B[i], T.float16(-1.5))
        for j in range(n):
            if A[0, j] > T.int8(3):
                B[T.ramp(j * 4, 1, 4)] = T.broadcast(T.float16(2), 4)
            else:
                B[T.shift_left(j, 1)] = T.Cast("float16", A[j % 8, T.min(j, 2)] | T.int8(1))
        T.evaluate(T.call_extern("int32", "f", n))

    @T.prim_func(s_tir=True)
    def second(B: T.Buffer((4, 4, 4), "float32")):
        with T.sblock("root"):
            for i, j, k in T.grid(4, 4, 4):
                with T.sblock("b"):
                    vi, vj, vk = T.axis.remap("SRS", [i, j, k])
                    T.where(i * 4 + j < 15)
                    with T.init():
                        B[vi, 0, vk] = T.float32(0)
                    B[vi, 0, vk] = B[vi, 0, vk] + T.exp(B[vi, vj, vk])


def test_nest_of_rare_nodes_and_several_functions_equals_reference():
    assert_nest_equals_reference(Rare)


def test_nest_keeps_the_order_of_many_functions():
    """Maps of more than four entries have another layout."""
    functions = {}
    for i in range(9):
        buffer = tirx.decl_buffer((i + 1,), "float32", name=f"B{i}")
        value = buffer[0] * tirx.const(2.0, "float32")
        functions[f"f{i}"] = tirx.PrimFunc([buffer], tirx.BufferStore(buffer, value, [0]))
    mod = tvm.IRModule(functions)
    nest = ir.read(mod)
    order = [name.name_hint for name, _ in mod.functions.items()]
    assert [function["name"] for function in nest.dump()["functions"]] == order
    assert [b["name"] for b in nest.dump()["buffers"]] == [n.replace("f", "B") for n in order]
    assert_nest_equals_reference(mod)


def test_read_reuses_the_given_nest():
    first, second = (modules("llvm", name, 1)[0] for name in ("matmul", "NRM-0"))
    nest = Nest()
    ir.read(second, nest)
    assert ir.read(first, nest) is nest
    assert nest.dump() == ir.read(first).dump()


def test_read_accepts_deep_expressions_up_to_a_limit():
    buffer = tirx.decl_buffer((4,), "float32", name="B")

    def chain(length):
        value = buffer[0]
        for _ in range(length):
            value = tirx.Add(value, buffer[1])
        return tirx.PrimFunc([buffer], tirx.BufferStore(buffer, value, [0]))

    nest = ir.read(chain(1500))
    assert sum(node["op"] == Op.OP_ADD for node in nest.dump()["nodes"]) == 1500
    with pytest.raises(LimitError, match="deeper than"):
        ir.read(chain(3000))


def test_unknown_types_are_walked_counted_and_reported_once(monkeypatch):
    """A tuple is an expression that no extractor understands."""
    buffer = tirx.decl_buffer((4,), "float32", name="B")
    inner = tirx.BufferStore(buffer, buffer[0] + buffer[1], [2])
    odd = tirx.Evaluate(tvm.ir.Tuple([buffer[3], buffer[2]]))
    unknown = tirx.PrimFunc([buffer], tirx.SeqStmt([inner, odd]))
    nest = ir.read(unknown)
    assert ir.unknown_types(nest) == {"ir.Tuple": 1}
    assert sum(node["op"] == Op.OP_LOAD for node in nest.dump()["nodes"]) == 4
    monkeypatch.setattr(features, "_reported", set())
    with logged() as warnings:
        for _ in range(2):
            mod = tvm.IRModule({"main": unknown})
            (rows,) = features.rows_of([mod], tvm.target.Target({"kind": "llvm"}), SCHEDULED)
            assert rows.shape == (1, 164)
    assert warnings == ["programs have nodes of type ir.Tuple; only their parts are read"]


@pytest.mark.parametrize("thing", [None, 3, "module", object(), tirx.const(1, "int32")])
def test_read_rejects_other_types(thing):
    with pytest.raises(TypeError, match="an IRModule or PrimFunc"):
        ir.read(thing)


@pytest.fixture
def fresh_reader():
    """Let the test and the code after it create new readers."""
    compat.number.cache_clear()
    ir.reader.cache_clear()
    yield
    compat.number.cache_clear()
    ir.reader.cache_clear()


def test_read_accepts_newer_tvm_with_the_newest_layout(monkeypatch, fresh_reader):
    newest = compat.RELEASES[compat.NEWEST]
    monkeypatch.setitem(compat.RELEASES, compat.NEWEST, replace(newest, types=compat.types()))
    compat.number.cache_clear()
    monkeypatch.setattr(tvm, "__version__", "0.99.dev0")
    ir.read(Rare)


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("For", (("tirx.While",), {})),
        ("Load", (KEYS, {**RENAMED, "indices": RENAMED.get("source", "source")})),
    ],
    ids=["a field that is gone", "a field that means something else"],
)
def test_reader_rejects_layout_that_does_not_fit_tvm(monkeypatch, fresh_reader, role, names):
    changed = {**compat.types(), role: names}
    monkeypatch.setattr(compat, "types", cache(lambda: changed))
    with pytest.raises(PluginError, match="does not fit apache-tvm"):
        ir.reader()


def test_read_works_in_several_threads():
    programs = modules("llvm", "C2D-0", 4)
    wanted = [len(ir.read(mod).dump()["nodes"]) for mod in programs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda mod: ir.read(mod).n_nodes, programs * 200))
    assert found == wanted * 200


def test_read_does_not_change_reference_counts():
    (mod,) = modules("llvm", "matmul", 1)
    body = mod["main"].body
    before = sys.getrefcount(body)
    for _ in range(100):
        ir.read(mod)
    assert sys.getrefcount(body) == before
    assert_nest_equals_reference(mod)
