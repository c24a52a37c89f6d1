"""``ansor.per_store/tvm`` has the values of TVM's PerStoreFeature, in the same order."""

from __future__ import annotations

import numpy as np
import pytest
import te_programs
import tvm
from te_programs import KINDS, WORKLOADS, candidate
from tvm import tirx
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T

from tunedb.features.ansor import PerStoreSet
from tunedb.plugins.metaschedule.features.rows import rows_of

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def check(context, candidates, what, **options):
    """Assert that features equal those of TVM's extractor; return the number of rows."""
    names = {"arith_intensity_curve_num_samples": "curve_samples", "cache_line_bytes": "cache_line"}
    features = PerStoreSet("tvm", **{names.get(k, k): v for k, v in options.items()})
    wanted = te_programs.per_store(context, candidates, **options)
    found = rows_of([one.sch.mod for one in candidates], context.target, features)
    for number, (ours, tvms) in enumerate(zip(found, wanted, strict=True)):
        where = f"{what}, candidate {number}"
        if isinstance(ours, Exception):
            raise AssertionError(where) from ours
        assert ours.dtype == np.float64
        assert ours.shape == tvms.shape, where
        wrong = np.argwhere(~np.isclose(ours, tvms, **CLOSE))
        values = [
            (int(row), features.columns[column], ours[row, column], tvms[row, column])
            for row, column in wrong[:5]
        ]
        assert not values, where
    return sum(map(len, wanted))


def check_module(mod, kind="llvm", **options):
    context = ms.TuneContext(mod, target=tvm.target.Target(KINDS[kind][0]), num_threads=1)
    return check(context, [candidate(mod)], "by hand", **options)


def check_workloads(names, kind, count, seed):
    """Compare random candidates of workloads; return the number of candidates."""
    programs = 0
    for name in names:
        context, candidates = te_programs.sample(name, kind, count, seed)
        assert check(context, candidates, f"{name} for {kind}, seed {seed}") > 0
        programs += len(candidates)
    return programs


@pytest.mark.parametrize(("kind", "first"), [("llvm", 0), ("tensorcore", 1)])
def test_features_of_random_candidates_equal_tvms(kind, first):
    """Every fourth workload is for one kind of device, every other fourth for another."""
    names = list(WORKLOADS)[first::4]
    assert check_workloads(names, kind, 1, seed=11) >= 15


@pytest.mark.stress
@pytest.mark.parametrize("kind", KINDS)
def test_features_of_random_candidates_equal_tvms_in_full(kind):
    assert check_workloads(WORKLOADS, kind, 12, seed=23) >= 700


def test_random_candidates_include_tensor_intrinsics():
    for name, kind, word in (
        ("matmul-f16", "tensorcore", "wmma"),
        ("vnni-dense", "vnni", "vpdpbusd"),
    ):
        _, candidates = te_programs.sample(name, kind, 4)
        assert any(word in str(one.sch.mod) for one in candidates), name


@pytest.mark.parametrize(
    "options",
    [
        {"buffers_per_store": 1, "arith_intensity_curve_num_samples": 3, "cache_line_bytes": 128},
        {"buffers_per_store": 9, "arith_intensity_curve_num_samples": 20, "cache_line_bytes": 32},
    ],
    ids=str,
)
def test_features_equal_tvms_with_other_options(options):
    for kind in ("llvm", "cuda"):
        context, candidates = te_programs.sample("CBR-1", kind, 3, seed=5)
        check(context, candidates, kind, **options)


def module(*functions):
    names = ["main", *(f"f{i}" for i in range(1, len(functions)))]
    return tvm.IRModule(dict(zip(names, functions, strict=True)))


@T.prim_func(s_tir=True)
def constants(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8,), "int32")):
    for i, j in T.grid(8, 8):
        with T.sblock("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = T.float32(0)
    for i in range(8):
        B[i] = 7


@T.prim_func(s_tir=True)
def nothing(A: T.Buffer((8,), "float32")):
    T.evaluate(0)


@T.prim_func(s_tir=True)
def outside_of_loops(A: T.Buffer((8,), "float32"), B: T.Buffer((), "float32")):
    A[3] = A[2] + B[()]
    B[()] = A[1] * A[0] + A[3]


@T.prim_func(s_tir=True)
def symbolic(a: T.handle, b: T.handle, k: T.int32):
    n = T.int32()
    m = T.int32()
    A = T.match_buffer(a, (n, m))
    B = T.match_buffer(b, (n, m))
    C = T.sblock_alloc_buffer((n, 16))
    for i, j in T.grid(n, 16):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(j < k)
            C[vi, vj] = A[vi, vj + k] + T.float32(1)
    for i in T.parallel(n):
        for j in T.vectorized(16):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj * 2] = C[vi, T.min(vj, m - 1)] * C[vi, vj // 2]


@T.prim_func(s_tir=True)
def nested(A: T.Buffer((16, 16), "float32"), B: T.Buffer((16, 16), "float32")):
    for i in range(16):
        with T.sblock("outer"):
            vi = T.axis.spatial(16, i)
            C = T.sblock_alloc_buffer((16,))
            for j in range(16):
                with T.sblock("inner"):
                    vj = T.axis.spatial(16, j)
                    C[vj] = T.exp(A[vi, vj]) + T.Cast("float32", vi)
            for j in range(16):
                with T.sblock("reduce"):
                    vj = T.axis.reduce(16, j)
                    with T.init():
                        B[vi, 0] = T.float32(0)
                    B[vi, 0] = B[vi, 0] + C[15 - vj]


@T.prim_func(s_tir=True)
def branches(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in T.serial(64, annotations={"pragma_auto_unroll_max_step": 32}):
        if i % 3 == 0:
            A[i] = B[63 - i] / T.float32(3)
        else:
            A[i] = T.if_then_else(i > 5, B[i - 5], T.float32(1)) - T.sqrt(B[i])
    for i in T.unroll(8):
        for j in T.unroll(8):
            A[i * 8 + j] = T.max(A[i * 8 + j], B[T.truncmod(j * 8 + i, 64)])


@T.prim_func(s_tir=True)
def many_buffers(
    A: T.Buffer((64,), "float32"),
    B: T.Buffer((64,), "float16"),
    C: T.Buffer((64,), "bfloat16"),
    D: T.Buffer((64,), "int8"),
    E: T.Buffer((64,), "uint8"),
    F: T.Buffer((64, 64), "int32"),
    G: T.Buffer((64,), "float64"),
    H: T.Buffer((64,), "bool"),
):
    for i in T.parallel(64):
        A[i] = (
            T.Cast("float32", B[i])
            + T.Cast("float32", C[63 - i]) * T.Cast("float32", D[i // 2] + T.Cast("int8", E[i % 7]))
            - T.Cast("float32", F[i, 63 - i] // 3)
            + T.Cast("float32", G[0])
        )
        F[i, 0] = T.Select(H[i], F[0, i] % 5, T.shift_left(F[i, i], 2))
        C[i] = C[i] * C[i] + T.bfloat16(1)
        H[i] = (H[i] and not H[63 - i]) or D[i] < T.int8(3)


@T.prim_func(s_tir=True)
def bits(A: T.Buffer((64,), "float32"), B: T.Buffer((64, 64), "float32"), n: T.int32):
    for i, j in T.grid(8, 20):
        A[j] = B[T.bitwise_and(n, 2), T.shift_right(j - 1, 3)] + B[T.shift_left(i, 2) & 5, i | j]
        A[i ^ j] = B[T.bitwise_not(i), T.shift_left(i - 1, 1)] - A[T.shift_right(n, 30) + 8]


@T.prim_func(s_tir=True)
def threads(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for bx in T.thread_binding(2, "blockIdx.x"):
        for by in T.thread_binding(1, "blockIdx.y"):
            for v in T.thread_binding(2, "vthread.x"):
                for t in T.thread_binding(16, "threadIdx.x"):
                    for u in T.thread_binding(1, "threadIdx.z"):
                        with T.sblock("one"):
                            vi = T.axis.spatial(64, bx * 32 + v * 16 + t + u + by)
                            A[vi] = A[vi] + B[0]
    for bx in T.thread_binding(4, "blockIdx.x"):
        for t in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("two"):
                vi = T.axis.spatial(64, bx * 16 + t)
                B[vi] = A[vi] * T.float32(2)


BY_HAND = {
    "constants": (constants, 0),
    "nothing": (nothing, 0),
    "outside of loops": (outside_of_loops, 2),
    "symbolic": (symbolic, 2),
    "nested": (nested, 2),
    "branches": (branches, 1),
    "many buffers": (many_buffers, 4),
    "bits": (bits, 1),
    "threads": (threads, 2),
}


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
@pytest.mark.parametrize("name", BY_HAND)
def test_features_of_handwritten_functions_equal_tvms(name, kind):
    function, rows = BY_HAND[name]
    assert check_module(module(function), kind) == rows


@pytest.mark.parametrize(("number", "rows"), [(3, 4), (7, 13)])
def test_features_of_several_functions_equal_tvms(number, rows):
    """TVM has one kind of map for up to four functions, and another for more."""
    functions = (nested, constants, symbolic, branches, threads, many_buffers, outside_of_loops)
    assert check_module(module(*functions[:number])) == rows


@pytest.mark.parametrize("extent", [-5, -1, 0, 1, 2**31 + 7])
@pytest.mark.parametrize("low", [-3, 0, 2])
def test_features_equal_tvms_for_empty_negative_and_huge_extents(extent, low):
    """Some loops never run, and some start at a negative number."""
    i, j = tirx.Var("i", "int64"), tirx.Var("j", "int64")
    a = tirx.decl_buffer((64, 64), "float32", name="A")
    b = tirx.decl_buffer((64, 64), "float32", name="B")
    value = b[i * 2 + j, j] + b[0, i]
    inner = tirx.For(j, 0, 16, tirx.ForKind.SERIAL, tirx.BufferStore(a, value, [i, j]))
    limits = (tirx.IntImm("int64", low), tirx.IntImm("int64", extent))
    loop = tirx.For(i, *limits, tirx.ForKind.PARALLEL, inner)
    function = tirx.PrimFunc([a, b], loop).with_attr("global_symbol", "main")
    check_module(tvm.IRModule({"main": function.with_attr("s_tir", True)}))
