"""Modules from the graphs of earlier TVMs."""

import copy
import json
from contextlib import closing
from pathlib import Path

import orjson
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from matmuls import matmul as matmul_of_today
from old_graphs import matched, matmul, symbolic
from public_logs import DATA, needs_logs

import tunedb
from tunedb.errors import FormatError
from tunedb.formats.base import LogFile
from tunedb.formats.importer import import_log
from tunedb.plugins.metaschedule import Database, modules
from tunedb.plugins.metaschedule.graph_module import MAX_NESTING, module_of
from tunedb.plugins.metaschedule.workers.replay import Replayer
from tunedb.storage import approval

GOLDENS = Path(__file__).parents[1] / "programs" / "workload_info" / "goldens"

SYMBOLIC = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(a: T.handle, b: T.handle):
        T.func_attr({"op_pattern": 2, "tirx.noalias": True})
        n = T.int32()
        A = T.match_buffer(a, (n,))
        B = T.match_buffer(b, (n,), "int32")
        for i in T.parallel(n):
            with T.sblock("B"):
                v = T.axis.spatial(n, i)
                T.reads(A[v])
                T.writes(B[v])
                x: T.let[T.float32] = A[v]
                B[v] = T.bitwise_and(
                    T.shift_right(
                        T.Cast("int32", T.if_then_else(v < 3, T.sqrt(x), T.float32(1.5))), 2
                    ),
                    15,
                )
"""

MATCHED = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8, 8), "float32")):
        T.func_attr({"tirx.noalias": True})
        for i in range(8):
            with T.sblock("V"):
                v = T.axis.spatial(8, i)
                T.reads()
                T.writes(A[v, 0:8])
                T.sblock_attr({"axis": 1, "shape": [8], "schedule_rule": "None"})
                s, o = T.int32(), T.int32()
                V = T.match_buffer(A[v, 0:8], (1, 8), strides=[s, 1], elem_offset=o)
                T.evaluate(T.call_extern("int32", "fill", V.data, s))
"""


def assert_equal_modules(left, right):
    tvm.ir.assert_structural_equal(left, right)
    hashes = [modules.structural_hash(mod, "structural") for mod in (left, right)]
    assert hashes[0] == hashes[1]


def noalias(mod):
    return tvm.IRModule({"main": mod["main"].with_attr("tirx.noalias", True)})


@pytest.mark.parametrize("alignment", ["64", "128"])
def test_module_of_old_matmul_equals_todays_for_each_default_alignment(alignment):
    mod = module_of(matmul(alignment=alignment))
    assert_equal_modules(mod, noalias(matmul_of_today()))
    assert mod.script() == noalias(matmul_of_today()).script()


@pytest.mark.parametrize(("graph", "script"), [(symbolic, SYMBOLIC), (matched, MATCHED)])
def test_module_of_handmade_graph_equals_its_tvmscript(graph, script):
    assert_equal_modules(module_of(graph()), modules.from_script(script))


@pytest.mark.parametrize("version", ["0.25.0.post1", "0.26.0", "0.27.0"])
def test_module_of_reads_graphs_of_tvm_0_25_to_0_27(version):
    expected = tvm.ir.load_json((GOLDENS / "matmul-0.27.0.json").read_text())
    graph = json.loads((GOLDENS / f"matmul-{version}.json").read_bytes())
    assert_equal_modules(module_of(graph), expected)


def kind(nodes, key):
    return next(node for node in nodes if node["type_key"] == key)


def number(nodes, key):
    return nodes.index(kind(nodes, key))


def doubled(times):
    """Return a change that adds the stored value to itself, several times."""

    def change(nodes):
        inner = kind(nodes, "tir.BufferStore")["attrs"]
        for _ in range(times):
            attrs = {"a": inner["value"], "b": inner["value"]}
            nodes.append({"type_key": "tir.Add", "attrs": attrs})
            inner["value"] = str(len(nodes) - 1)

    return change


def set_in(key, **attrs):
    return lambda nodes: kind(nodes, key)["attrs"].update(attrs)


HOSTILE = {
    "it contains itself": lambda n: set_in("tir.Mul", a=str(number(n, "tir.Mul")))(n),
    f"nesting deeper than {MAX_NESTING}": doubled(100_000),
    "more than 200000 nodes": doubled(60),
    "without measure": lambda n: n[int(kind(n, "tir.Block")["attrs"]["reads"])].update(
        data=[1] * 1_000_000
    ),
    "no node": set_in("tir.For", body="999999"),
    "no number": set_in("tir.For", kind="x" * 30),
    "no body": set_in("tir.For", body="0"),
    "no string": lambda n: set_in("tir.Block", name_hint=str(number(n, "IntImm")))(n),
    "tir.Evil has no form": lambda n: kind(n, "tir.For").update(type_key="tir.Evil"),
    "a call of call_llvm_intrin": lambda n: kind(n, "tir.Mul").update(
        type_key="tir.Call",
        attrs={
            "op": str(
                n.append({"type_key": "Op", "repr_str": "tir.call_llvm_intrin"}) or len(n) - 1
            ),
            "args": kind(n, "tir.BufferStore")["attrs"]["indices"],
            "dtype": "float32",
        },
    ),
    "auto-broadcast": set_in("tir.Buffer", buffer_type="2"),
    "axis_separators": lambda n: set_in(
        "tir.Buffer", axis_separators=kind(n, "tir.Buffer")["attrs"]["shape"]
    )(n),
    "(tir.For)": lambda n: set_in("tir.For", loop_var=str(number(n, "IntImm")))(n),
}


@pytest.mark.parametrize("reason", HOSTILE)
def test_module_of_rejects_hostile_graph_in_one_line(reason):
    graph = matmul()
    HOSTILE[reason](graph["nodes"])
    with pytest.raises(FormatError) as caught:
        module_of(graph)
    line = str(caught.value)
    assert reason in line and len(line.splitlines()) == 1 and len(line) < 500, line


@pytest.mark.parametrize("value", [None, [], {}, {"nodes": []}, {"nodes": [3], "root": 0}])
def test_module_of_rejects_values_that_are_not_graphs(value):
    with pytest.raises(FormatError, match="graph"):
        module_of(value)


VALUES = st.one_of(
    st.integers(-1, 200).map(str),
    st.sampled_from([None, "", "float32", "nan", [], {}, 3, "9" * 50, True]),
)


@given(st.sampled_from([matmul(8), symbolic(), matched()]), st.data())
def test_module_of_returns_module_or_raises_format_error_for_mutated_graph(graph, data):
    graph = copy.deepcopy(graph)
    nodes = graph["nodes"]
    keys = sorted({node["type_key"] for node in nodes})
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(nodes) - 1))
        node = nodes[place] if isinstance(nodes[place], dict) else {}
        attrs = node.get("attrs") if isinstance(node.get("attrs"), dict) else {}
        names = sorted({"type_key", "data", "attrs", "repr_str", *attrs})
        name, value = data.draw(st.sampled_from(names)), data.draw(VALUES)
        if name == "type_key":
            nodes[place] = {**node, name: data.draw(st.sampled_from(keys))}
        elif name in ("data", "attrs", "repr_str"):
            nodes[place] = {**node, name: value}
        else:
            nodes[place] = {**node, "attrs": {**attrs, name: value}}
    try:
        mod = module_of(graph)
    except FormatError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert isinstance(mod, tvm.IRModule)


@needs_logs
def test_database_serves_imported_public_log_of_tvm_0_13(tmp_path):
    log = DATA / "metaschedule" / "mlc-llm_dolly_909f2675" / "database_tuning_record.json"
    path = tmp_path / "dolly.db"
    with tunedb.open(path) as store:
        assert import_log(store, LogFile(log, log.name), source="dolly").total.new == 36
        approval.approve(path, store.key)
        replayer = Replayer(store)
        programs = store.programs.get(range(1, 37))
        assert len([replayer.module(program) for program in programs]) == 36
        bodies = [orjson.loads(program.workload.body) for program in programs]
    with closing(Database(path)) as database:
        assert all(database.has_workload(module_of(body)) for body in bodies)
        assert len(list(database.get_all_tuning_records())) == 36
