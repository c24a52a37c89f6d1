"""The codec with each kind of instruction of TVM 0.27, on schedules that TVM accepts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import matmuls
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord
from tvm.s_tir.schedule import _ffi_api as _api
from tvm.script import tirx as T
from tvm.tirx import FloatImm, IndexMap, IntImm

from tunedb.plugins.metaschedule import compat, trace_codec
from tunedb.plugins.metaschedule.compat import dtype_of
from tunedb.programs.metaschedule import trace as traces
from tunedb.programs.metaschedule.instructions import CURRENT
from tunedb.programs.metaschedule.upgrade import upgrade


def copy_of(tensor: Any, name: str) -> Any:
    return te.compute(tensor.shape, lambda i, j: tensor[i, j], name=name)


def product(name: str, a: Any, b: Any) -> Any:
    k = te.reduce_axis((0, a.shape[1]), name="k")
    shape = (a.shape[0], b.shape[1])
    return te.compute(shape, lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=name)


def _chain() -> Any:
    a = te.placeholder((16, 16), name="A")
    b = te.compute(a.shape, lambda i, j: a[i, j] * 2.0, name="B")
    return te.create_prim_func([a, te.compute(a.shape, lambda i, j: b[i, j] + 1.0, name="C")])


def _matmul_bias() -> Any:
    a, b = (te.placeholder((16, 16), "int32", name=name) for name in "AB")
    c = te.placeholder((16, 16), "int32", name="C")
    result = product("multiply", a, b)
    out = te.compute(c.shape, lambda i, j: result[i, j] + c[i, j], name="add")
    return te.create_prim_func([a, b, c, out])


def _padded_matmul() -> Any:
    a, b = te.placeholder((13, 14), name="a"), te.placeholder((14, 15), name="b")
    shared = product("C_shared", copy_of(a, "A"), copy_of(b, "B"))
    return te.create_prim_func([a, b, copy_of(shared, "C")])


chain, matmul = _chain(), matmuls.matmul(16)["main"]
matmul_bias, padded_matmul = _matmul_bias(), _padded_matmul()


@T.prim_func(s_tir=True)
def padding(x: T.Buffer(128, "int32"), y: T.Buffer(140, "int32")) -> None:
    for i in range(140):
        with T.sblock("block"):
            vi = T.axis.remap("S", [i])
            y[vi] = T.if_then_else(vi >= 6 and vi < 134, x[vi - 6], 0, dtype="int32")


@T.prim_func(s_tir=True)
def resize(A: T.Buffer((1, 3, 40, 40), "float32"), B: T.Buffer((1, 3, 80, 80), "float32")) -> None:
    for i0, i1, i2, i3 in T.grid(1, 3, 80, 80):
        with T.sblock("A"):
            n, c, vi, vj = T.axis.remap("SSSS", [i0, i1, i2, i3])
            B[n, c, vi, vj] = A[n, c, vi // 4 + vj // 4, vj // 2]


@T.prim_func(s_tir=True)
def in_place(A: T.Buffer((16, 16), "float32")) -> None:
    for i, j in T.grid(16, 16):
        with T.sblock("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = A[vi, vj] + 1.0


@T.prim_func(s_tir=True)
def pools(A: T.Buffer((4, 12), "int32"), C: T.Buffer((4, 8), "int32")) -> None:
    B = T.sblock_alloc_buffer((4, 10), "int32")
    for c in T.serial(4):
        for i in T.serial(0, 10):
            for k in T.serial(3):
                with T.sblock("B"):
                    cc, vi, vk = T.axis.remap("SSR", [c, i, k])
                    with T.init():
                        B[cc, vi] = 0
                    B[cc, vi] = B[cc, vi] + A[cc, vi + vk]
        for i in T.serial(0, 8):
            for k in T.serial(3):
                with T.sblock("C"):
                    cc, vi, vk = T.axis.remap("SSR", [c, i, k])
                    with T.init():
                        C[cc, vi] = 0
                    C[cc, vi] = C[cc, vi] + B[cc, vi + vk]


@T.prim_func(s_tir=True)
def bound_matmul(
    A: T.Buffer((64, 64), "float32"),
    B: T.Buffer((64, 64), "float32"),
    C: T.Buffer((64, 64), "float32"),
) -> None:
    for by in T.thread_binding(0, 4, thread="blockIdx.y"):
        for ty in T.thread_binding(0, 16, thread="threadIdx.y"):
            for k0 in T.serial(0, 8):
                for k1, j in T.grid(8, 64):
                    with T.sblock("C"):
                        vi = T.axis.S(64, by * 16 + ty)
                        vj = T.axis.S(64, j)
                        vk = T.axis.R(64, k0 * 8 + k1)
                        T.reads([C[vi, vj], A[vi, vk], B[vk, vj]])
                        T.writes([C[vi, vj]])
                        with T.init():
                            C[vi, vj] = 0.0
                        C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func(s_tir=True)
def dot_desc(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (16,), offset_factor=1)
    B = T.match_buffer(b, (16, 16), offset_factor=1)
    C = T.match_buffer(c, (16,), offset_factor=1)
    with T.sblock("root"):
        T.reads(C[0:16], A[0:16], B[0:16, 0:16])
        T.writes(C[0:16])
        for j, k in T.grid(16, 16):
            with T.sblock("update"):
                vj, vk = T.axis.remap("SR", [j, k])
                C[vj] = C[vj] + A[vk] * B[vk, vj]


@T.prim_func(s_tir=True)
def dot_impl(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (16,), offset_factor=1)
    B = T.match_buffer(b, (16, 16), offset_factor=1)
    C = T.match_buffer(c, (16,), offset_factor=1)
    with T.sblock("root"):
        T.reads(C[0:16], A[0:16], B[0:16, 0:16])
        T.writes(C[0:16])
        T.evaluate(
            T.call_extern("int32", "dot", C.access_ptr("w"), A.access_ptr("r"), B.access_ptr("r"))
        )


_INTRIN = "tunedb_test_dot"

CASES: list[tuple[Any, Callable[[Any], None]]] = []


def case(function: Any) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register a schedule of `function`."""

    def register(schedule: Callable[[Any], None]) -> Callable[[Any], None]:
        CASES.append((function, schedule))
        return schedule

    return register


@case(chain)
def loops(sch: Any) -> None:
    block = sch.get_sblock("C", "main")
    i, j = sch.get_loops(block)
    outer, inner = sch.split(i, [None, 4])
    a, b, c = sch.split(j, [2, 2, None], preserve_unit_iters=False)
    sch.reorder(outer, a, inner, b)
    fused = sch.fuse(outer, a)
    sch.parallel(fused)
    sch.unroll(b)
    sch.vectorize(c)
    sch.add_unit_loop(block)
    sch.add_unit_loop(inner)
    sch.bind(inner, "threadIdx.x")


@case(chain)
def partition(sch: Any) -> None:
    i, _ = sch.get_loops(sch.get_sblock("C"))
    sch.loop_partition(i, [2, 5, None])


@case(chain)
def merged(sch: Any) -> None:
    first = sch.get_loops(sch.get_sblock("B"))[1]
    second = sch.get_loops(sch.get_sblock("C"))[1]
    sch.merge(first, second)


@case(matmul)
def sampling(sch: Any) -> None:
    block = sch.get_sblock("C")
    i, j, k = sch.get_loops(block)
    tiles = sch.sample_perfect_tile(i, n=3, max_innermost_factor=8)
    sch.split(i, tiles)
    sch.split(j, sch.sample_partitioned_tile(j, n=3, partition_pos=1, innerpart_factor=2))
    sch.split(k, sch.sample_perfect_tile(k, n=2))
    sch.annotate(block, "unroll", sch.sample_categorical([0, 16, 64], [0.5, 0.25, 0.25]))
    sch.sample_categorical([1], [1.0])  # whose probability stands in the file as 1
    sch.enter_postproc()
    sch.unannotate(block, "unroll")


@case(chain)
def relatives_and_location(sch: Any) -> None:
    first, last, root = (sch.get_sblock(name) for name in ("B", "C", "root"))
    sch.get_child_blocks(root)
    sch.get_child_blocks(sch.get_loops(last)[0])
    sch.get_producers(last)
    sch.get_consumers(first)
    sch.get_output_blocks(root)
    sch.compute_at(first, sch.sample_compute_location(first))


@case(chain)
def annotations(sch: Any) -> None:
    block = sch.get_sblock("C")
    loop = sch.get_loops(block)[0]
    values = {
        "int": 4,
        "negative": -(2**40),
        "float": 0.1,
        "small": 1e-7,
        "integral": 3.0,
        "bare": True,
        "text": "global",
        "quoted": 'a "quoted" \\ text\n',
        "empty": "",
        "braces": "{}",
        "list": [1, 2.5, "x", [3, None]],
        "nothing": [],
    }
    for key, value in values.items():
        # The Python side of `annotate` refuses some of what C++ takes.
        _api.ScheduleAnnotate(sch, loop if key == "int" else block, key, value)
    sch.unannotate(loop, "int")


@case(chain)
def caches(sch: Any) -> None:
    b, c = sch.get_sblock("B"), sch.get_sblock("C")
    sch.cache_read(c, 0, "shared")
    sch.cache_write(c, 0, "local")
    copy = sch.cache_read(b, 0, "global", consumer_blocks=[b])
    sch.set_scope(copy, 0, "shared")
    sch.unsafe_set_dtype(copy, 0, "float16")
    sch.storage_align(copy, 0, axis=-2, factor=32, offset=8)


@case(chain)
def inlining(sch: Any) -> None:
    sch.cache_write(sch.get_sblock("C"), 0, "local")
    sch.reverse_compute_inline(sch.get_sblock("C"))
    sch.compute_inline(sch.get_sblock("B"))


@case(chain)
def moving(sch: Any) -> None:
    b, c = sch.get_sblock("B"), sch.get_sblock("C")
    sch.reverse_compute_at(c, sch.get_loops(b)[0], preserve_unit_loops=True)
    sch.unsafe_hide_buffer_access(c, "read", [0])


@case(chain)
def layouts(sch: Any) -> None:
    b, c = sch.get_sblock("B"), sch.get_sblock("C")
    sch.transform_layout(b, ("write", 0), lambda i, j: (i // 4, j, i % 4))
    sch.transform_block_layout(c, lambda i, j: (i // 4, j, i % 4))
    sch.annotate_buffer_access(c, 0, "read", lambda i, j, k: ((i, i + 1), (j, j + 1), (k, k + 1)))


@case(padded_matmul)
def padded_layout(sch: Any) -> None:
    sch.transform_layout(
        sch.get_sblock("A"),
        ("write", 0),
        lambda i, j: (i // 4, j, i % 4),
        pad_value=lambda i, j, k: T.float32(0.1),
    )


@case(matmul)
def reindexing(sch: Any) -> None:
    block = sch.get_sblock("C")
    sch.reindex(block, ("read", 0))
    sch.reindex_cache_read(block, 1, "shared", lambda i, j, k: (k, j))
    sch.reindex_cache_write(block, 0, "local", lambda i, j, k: (j, i))
    sch.reorder_block_iter_var(block, [2, 0, 1])


@case(matmul)
def reduction(sch: Any) -> None:
    block = sch.get_sblock("C")
    _, _, k = sch.get_loops(block)
    outer, _ = sch.split(k, [4, None])
    sch.rfactor(outer, 0)
    again = sch.get_sblock("C")
    sch.decompose_reduction(again, sch.get_loops(again)[0])


@case(matmul_bias)
def epilogue(sch: Any) -> None:
    sch.fuse_reduction_epilogue("multiply", "add")


@case(matmul)
def blockized(sch: Any) -> None:
    _, j, _ = sch.get_loops(sch.get_sblock("C"))
    sch.blockize(j)


@case(chain)
def blockized_together(sch: Any) -> None:
    b, c = sch.get_sblock("B"), sch.get_sblock("C")
    sch.reverse_compute_at(c, sch.get_loops(b)[0])
    sch.blockize([b, c], preserve_unit_iters=False)


@case(matmul)
def tensorized(sch: Any) -> None:
    block = sch.get_sblock("C")
    i, *_ = sch.get_loops(block)
    sch.decompose_reduction(block, i)
    update = sch.get_sblock("C_update")
    sch.tensorize(sch.get_loops(update)[1], _INTRIN)


@case(padded_matmul)
def einsum(sch: Any) -> None:
    sch.pad_einsum(sch.get_sblock("C_shared"), [16, 16, 16])


@case(padding)
def padding_apart(sch: Any) -> None:
    block = sch.get_sblock("block")
    sch.decompose_padding(block, sch.get_loops(block)[0])


@case(resize)
def index(sch: Any) -> None:
    sch.cache_index(sch.get_sblock("A"), "global", 0)


@case(in_place)
def inplace(sch: Any) -> None:
    sch.cache_inplace(sch.get_sblock("A"), 0, "local")


@case(pools)
def rolling(sch: Any) -> None:
    _, i, _ = sch.get_loops(sch.get_sblock("C"))
    outer, _ = sch.split(i, [2, 4])
    sch.compute_at(sch.get_sblock("B"), outer)
    sch.rolling_buffer(sch.get_sblock("B"), 0)


@case(bound_matmul)
def movement(sch: Any) -> None:
    block = sch.get_sblock("C")
    _, thread, k0, *_ = sch.get_loops(block)
    sch.read_at(k0, block, 1, "shared")
    sch.write_at(thread, block, 0, "shared")


@T.prim_func(s_tir=True)
def wide(A: T.Buffer((T.int64(2**34),), "int8"), B: T.Buffer((T.int64(2**34),), "int8")) -> None:
    for i in range(T.int64(2**34)):
        with T.sblock("B"):
            vi = T.axis.remap("S", [i])
            B[vi] = A[vi]


@case(wide)
def split_by_wide_numbers(sch: Any) -> None:
    (loop,) = sch.get_loops(sch.get_sblock("B"))
    sch.split(loop, [None, 2**33])


@pytest.fixture(scope="module", autouse=True)
def _intrinsic() -> None:
    """Register a tiny intrinsic: those of TVM take seconds to import."""
    s_tir.TensorIntrin.register(_INTRIN, dot_desc, dot_impl, override=True)


def signature(value: Any) -> Any:
    """Return what C++ sees of a value: its type, data type and, for constants, the value."""
    if isinstance(value, tvm_ffi.Array):
        return [signature(item) for item in value]
    if isinstance(value, tvm_ffi.Map):
        return {str(key): signature(item) for key, item in value.items()}
    if isinstance(value, IntImm | FloatImm):
        return (type(value).__name__, dtype_of(value), value.value)
    if isinstance(value, IndexMap):
        return ("IndexMap", tvm.ir.save_json(value))
    if isinstance(value, str):
        return ("str", str(value))
    if value is None or type(value) in (bool, int, float):
        return (type(value).__name__, value)
    has_type = hasattr(value, "ty") or hasattr(value, "dtype")
    return (type(value).__name__, dtype_of(value) if has_type else "")


def signatures(trace: Any) -> list[Any]:
    """Return the signature of each instruction and its decision."""
    chosen = dict(trace.decisions.items())
    return [
        (
            str(inst.kind.name),
            signature(inst.inputs),
            signature(inst.attrs),
            signature(inst.outputs),
            signature(chosen[inst]) if inst in chosen else None,
        )
        for inst in trace.insts
    ]


def as_json(trace: Any) -> Any:
    return trace_codec.plain(_api.TraceAsJSON(trace, False))


def schedule_of(function: Any, steps: Callable[[Any], None]) -> Any:
    sch = s_tir.Schedule(function, seed=7)
    steps(sch)
    return sch


def applied(trace: Any, function: Any) -> Any:
    sch = s_tir.Schedule(function)
    trace.apply_to_schedule(sch, remove_postproc=False)
    return sch.mod


_IDS = [steps.__name__ for _, steps in CASES]


@pytest.fixture(scope="module", params=CASES, ids=_IDS)
def example(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A module's function and a schedule of it."""
    function, steps = request.param
    return function, schedule_of(function, steps)


def test_all_kinds_of_instructions_are_exercised() -> None:
    made = [schedule_of(function, steps).trace for function, steps in CASES]
    kinds = {str(inst.kind.name) for trace in made for inst in trace.insts}
    assert kinds == set(CURRENT)


def in_stored_form(trace: Any) -> Any:
    """Return a trace as the installed TVM writes it in the form that is stored."""
    return trace if compat.number() == (0, 27) else upgrade(trace)


def test_encoding_equals_reference_and_file_of_tvm(example: tuple[Any, Any], tmp_path: Any) -> None:
    function, sch = example
    tree = _api.TraceAsJSON(sch.trace, False)
    reference = traces.split_trace(*trace_codec.plain(tree))
    encoder = trace_codec._encoder()
    assert encoder is not None
    assert encoder.encode(tree) == (reference.sketch, reference.tail, reference.decisions)
    stored = trace_codec.encode(sch.trace)
    assert stored == in_stored_form(reference)
    database = JSONDatabase(work_dir=str(tmp_path))
    workload = database.commit_workload(tvm.IRModule({"main": function}))
    database.commit_tuning_record(TuningRecord(sch.trace, workload, [1.0], None, None))
    line = (tmp_path / "database_tuning_record.json").read_text()
    value = traces.check_trace(json.loads(line, strict=False)[1][0])
    assert stored == in_stored_form(traces.split_trace(*value))
    instructions, decisions = traces.join_trace(stored)
    assert traces.check_trace([instructions, decisions]) == (instructions, decisions)


def test_built_trace_equals_replayed_one(example: tuple[Any, Any]) -> None:
    """It also makes the same module."""
    function, sch = example
    stored = trace_codec.encode(sch.trace)
    replayed = trace_codec.replay(stored, function)
    builder = trace_codec.TraceBuilder()
    first, second = builder.build(stored), builder.build(stored)
    assert signatures(first) == signatures(replayed)
    assert as_json(first) == as_json(replayed)
    assert trace_codec.encode(first) == stored
    if all(inst.kind.name != "DecomposePadding" for inst in first.insts):  # TVM raises TypeError
        assert list(first.as_python()) == list(replayed.as_python())
    expected = applied(replayed, function)
    tvm.ir.assert_structural_equal(applied(first, function), expected)
    # The second shares its instructions with the first, which has been applied by now.
    found = applied(second, function)
    tvm.ir.assert_structural_equal(found, expected)
    if b"integral" not in stored.sketch:  # 3.0 becomes 3, True 1: as in TVM's own file
        tvm.ir.assert_structural_equal(found, sch.mod)


def test_boolean_expression_keeps_its_type() -> None:
    """TVM's file has ``true`` for it, which TVM reads as a bare True and would write as 1."""
    sch = s_tir.Schedule(chain)
    sch.annotate(sch.get_sblock("C"), "flag", IntImm("bool", 1))
    stored = trace_codec.encode(sch.trace)
    assert b'["b0",true]' in stored.sketch
    built = trace_codec.TraceBuilder().build(stored)
    assert signature(built.insts[1].inputs[1]) == ("IntImm", "bool", 1)
    assert trace_codec.encode(built) == stored
    tvm.ir.assert_structural_equal(applied(built, chain), sch.mod)


def test_annotation_with_a_map_is_encoded_and_built_but_cannot_be_applied() -> None:
    """TVM writes and reads such a trace, but cannot apply it, be it replayed or built."""
    sch = s_tir.Schedule(chain)
    block = sch.get_sblock("C")
    sch.annotate(block, "map", {"b": 1, "a": [1, 2.5, "x"]})
    _api.ScheduleAnnotate(sch, block, "empty", {})
    stored = trace_codec.encode(sch.trace)
    assert b'["Annotate",["b0",{"a":[1,2.5,"x"],"b":1}],["map"],[]]' in stored.sketch
    assert stored == traces.split_trace(*as_json(sch.trace))
    instructions, decisions = traces.join_trace(stored)
    assert [instructions, decisions] == as_json(sch.trace)
    assert traces.check_trace([instructions, decisions]) == (instructions, decisions)
    built, replayed = trace_codec.TraceBuilder().build(stored), trace_codec.replay(stored, chain)
    assert signatures(built) == signatures(replayed)
    for trace in (built, replayed, sch.trace):
        with pytest.raises(TypeError, match=r"ffi\.Map"):
            applied(trace, chain)


def test_encode_rejects_trace_with_expression_among_inputs() -> None:
    """TVM's own database cannot write such a trace either."""
    sch = s_tir.Schedule(chain)
    loop, _ = sch.get_loops(sch.get_sblock("C"))
    sch.split(loop, [None, sch.sample_categorical([1, 2], [0.5, 0.5]) * 2])
    with pytest.raises(trace_codec.UnknownInstructionError, match="TVM cannot write the trace"):
        trace_codec.encode(sch.trace)


def test_index_map_over_a_sampled_value_is_replayed_but_not_built() -> None:
    sch = s_tir.Schedule(chain)
    block = sch.get_sblock("B")
    factor = sch.sample_categorical([2, 4], [0.5, 0.5], decision=1)
    sch.transform_layout(block, ("write", 0), lambda i, j: (i // factor, j, i % factor))
    stored = trace_codec.encode(sch.trace)
    with pytest.raises(trace_codec.UnknownInstructionError, match="random variable v1"):
        trace_codec.TraceBuilder().build(stored)
    replayed = trace_codec.replay(stored, chain)
    tvm.ir.assert_structural_equal(applied(replayed, chain), sch.mod)


#: The oldest form of an instruction of today, where its attributes are the defaults of the release
#: that added them.
OLDEST: dict[str, Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]] | None]] = {
    "Blockize": lambda inputs, attrs: (inputs, []) if attrs == [True] else None,
    "CacheRead": lambda inputs, attrs: (inputs[:1], attrs) if inputs[1] == [] else None,
    "CacheWrite": lambda inputs, attrs: (inputs[:1], attrs) if inputs[1] == [] else None,
    "ComputeAt": lambda inputs, attrs: (inputs, attrs[:1]) if attrs[1] == -1 else None,
    "Fuse": lambda inputs, attrs: (inputs, []) if attrs == [1] else None,
    "ReverseComputeAt": lambda inputs, attrs: (inputs, attrs[:1]) if attrs[1] == -1 else None,
    "Split": lambda inputs, attrs: (inputs, []) if attrs == [1, 0] else None,
    "Tensorize": lambda inputs, attrs: (inputs, attrs[:1]) if attrs[1] is True else None,
    "TransformLayout": lambda inputs, attrs: (
        (inputs[:1], [*attrs[:2], inputs[1], attrs[2]]) if attrs[3] is False else None
    ),
}


def test_upgrade_turns_oldest_form_of_instructions_into_todays(example: tuple[Any, Any]) -> None:
    _, sch = example
    stored = trace_codec.encode(sch.trace)
    instructions, decisions = traces.join_trace(stored)
    old = []
    for kind, inputs, attrs, outputs in instructions:
        form = OLDEST.get(kind, lambda *_: None)(inputs, attrs)
        name = "GetBlock" if kind == "GetSBlock" else kind
        old.append([name, *(form or (inputs, attrs)), outputs])
    older = traces.split_trace(*traces.check_trace([old, decisions]))
    assert upgrade(older) == stored
