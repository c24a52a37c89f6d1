"""Lowering equals the passes of TVM's PerStoreFeature, and does not change its input."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import te_programs
import tvm
import tvm_ffi
from raising import raises_line
from te_programs import KINDS, WORKLOADS, candidate
from tvm.ir.instrument import pass_instrument
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T

from tunedb.errors import PluginError
from tunedb.plugins.metaschedule import compat
from tunedb.plugins.metaschedule.features import _simplify, lowering
from tunedb.plugins.metaschedule.features.lowering import lower

CPU = ["GMM-0", "C2D-1", "CBR-1", "SFM-0", "T2D-0", "NRM-0", "matmul", "winograd", "attention"]
#: Devices and workloads of which a short run takes random candidates; a long one takes all.
SAMPLED = [
    *(("llvm", name) for name in (*CPU, "matmul-f16", "vnni-dense")),
    *(("cuda", name) for name in ("GMM-0", "C2D-1", "T2D-0", "NRM-0", "winograd", "attention")),
    *(("tensorcore", "matmul-f16"), ("tensorcore", "NRM-0")),
    *(("vnni", "vnni-dense"), ("vnni", "CBR-1")),
]

#: The pass that simplifies scheduled programs.
SIMPLIFY = str(compat.stmt_simplify().info.name)
#: What TVM's PerStoreFeature runs, in this order.
PASSES = [
    "s_tir.RemoveWeightLayoutRewriteBlock",
    "tirx.SimplifyForFeatureExtraction",
    "s_tir.LowerCrossThreadReduction",
    "s_tir.LowerInitBlock",
    "s_tir.PlanAndUpdateBufferAllocationLocation",
    "s_tir.ConvertBlocksToOpaque",
    "s_tir.CompactBufferAllocation",
    SIMPLIFY,
    "s_tir.LowerAutoCopy",
    "s_tir.UnifyThreadBinding",
    "s_tir.LowerMatchBuffer",
    SIMPLIFY,
]


@pass_instrument
class _Modules:
    """Keeps the module after each pass."""

    def __init__(self):
        self.found = []

    def run_after_pass(self, mod, info):
        self.found.append((str(info.name), mod))


def passes_of_tvm(mod, kind="llvm"):
    """Return the names of the passes that TVM runs, each with the module after it."""
    context = ms.TuneContext(mod, target=tvm.target.Target(KINDS[kind][0]), num_threads=1)
    seen = _Modules()
    with tvm.transform.PassContext(instruments=[seen]):
        ms.feature_extractor.PerStoreFeature().extract_from(context, [candidate(mod)])
    return seen.found


def equal(left, right):
    return tvm_ffi.structural_equal(left, right, map_free_vars=True)


def without_regions(mod):
    """Return a module whose blocks have no regions that they read and write."""

    kind, _ = compat.sblock_types()

    def block(node, mutator):
        done = mutator.default_mutate(node)
        rest = (done.name_hint, done.body, done.init, done.alloc_buffers, done.match_buffers)
        return kind(done.iter_vars, [], [], *rest, done.annotations)

    return tvm.IRModule(
        {
            name: function.with_body(tvm_ffi.structural_mutate(function.body, [(kind, block)]))
            for name, function in mod.functions.items()
        },
        attrs=mod.attrs,
    )


def assert_lowers_like_tvm(mod, kind="llvm"):
    """Assert that lowering equals TVM's passes; return the module after each of them."""
    before = tvm_ffi.structural_hash(mod)
    found = lower(mod)
    assert tvm_ffi.structural_hash(mod) == before
    passes = passes_of_tvm(mod, kind)
    assert [name for name, _ in passes] == [*PASSES, "sequential"]
    wanted = passes[-1][1]
    if lowering.is_compiled() and "auto_copy" not in str(mod):
        wanted = without_regions(wanted)
    mismatch = tvm_ffi.get_first_structural_mismatch(found, wanted, map_free_vars=True)
    assert mismatch is None, f"{mismatch}\n{found}\n{wanted}"
    return dict(passes)


@pytest.mark.parametrize(("kind", "name"), SAMPLED)
def test_lower_equals_tvms_passes_on_random_candidates(kind, name):
    _, candidates = te_programs.sample(name, kind, 4, seed=7)
    assert candidates
    for one in candidates:
        assert_lowers_like_tvm(one.sch.mod, kind)


def test_lower_equals_tvms_passes_on_softmax_for_cuda():
    """They have rfactor and Selects; a pipeline without Simplify got two of them wrong."""
    _, candidates = te_programs.sample("SFM-0", "cuda", 32)
    for one in candidates:
        assert_lowers_like_tvm(one.sch.mod, "cuda")


@pytest.mark.stress
@pytest.mark.parametrize("kind", KINDS)
def test_lower_equals_tvms_passes_on_all_workloads(kind):
    for name in WORKLOADS:
        for one in te_programs.sample(name, kind, 12, seed=3)[1]:
            assert_lowers_like_tvm(one.sch.mod, kind)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(2))
def test_second_simplification_does_not_change_settled_programs(seed):
    """tunedb simplifies them once."""
    settled, _ = _count_changed(WORKLOADS, 24, seed=100 + seed)
    assert settled >= 1500


@pytest.mark.stress
def test_second_simplification_changes_programs_that_are_not_settled():
    _, changed = _count_changed(["vnni-dense"], 12, seed=2)
    assert changed >= 1


def _count_changed(names, count, seed):
    """Return how many programs are settled, and how many of the others change once more."""
    first, rest = lowering._passes()
    settled = changed = 0
    for kind in KINDS:
        for name in names:
            for one in te_programs.sample(name, kind, count, seed)[1]:
                _simplify.begin()
                mod = first(one.sch.mod)
                last = rest[_simplify.found()]
                mod = mod if last is None else last(mod)
                again = lowering._again(mod)
                if _simplify.found() & lowering._CHANGED:
                    continue
                if _simplify.is_settled(lowering.ir.read(mod)):
                    assert equal(mod, again), (kind, name)
                    settled += 1
                else:
                    changed += not equal(mod, again)
    return settled, changed


def test_lower_works_in_several_threads():
    mods = [one.sch.mod for one in te_programs.sample("CBR-1", "llvm", 8)[1]]
    alone = [lower(mod) for mod in mods]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lower, mods * 4))
    assert all(equal(a, b) for a, b in zip(together, alone * 4, strict=True))


def module(*functions):
    names = ["main", *(f"f{i}" for i in range(1, len(functions)))]
    return tvm.IRModule(dict(zip(names, functions, strict=True)))


@T.prim_func(s_tir=True)
def loops(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
    for a, i in T.grid(1, 8):
        for b in range(1):
            for j in range(8):
                for c in T.serial(1, annotations={"pragma_auto_unroll_max_step": 16}):
                    B[i + a, j + b + c] = A[i, j * 1 + a] + T.float32(1)
    for d in T.vectorized(1):
        for e in T.unroll(1):
            for f in T.parallel(1):
                for g in range(1):
                    B[d, e + f + g] = A[g, g]
    for h in range(1, 2):
        B[h, 0] = A[h, 0]
    for k in range(0):
        for m in range(1):
            B[k, m] = A[m, m]


@T.prim_func(s_tir=True)
def wide_loops(A: T.Buffer((T.int64(8), T.int64(8)), "float32")):
    for a in range(T.int64(1)):
        for i in range(T.int64(8)):
            A[i, a] = A[a, i]


@T.prim_func(s_tir=True)
def choices(
    A: T.Buffer((8,), "float32"),
    B: T.Buffer((8,), "int32"),
    C: T.Buffer((8,), "float16"),
    D: T.Buffer((8,), "bool"),
    E: T.Buffer((8,), "bfloat16"),
):
    for u, i in T.grid(1, 8):
        A[i] = A[i] + T.Select(i < 4, T.float32(2), T.float32(3))
        A[i] = T.Select(i < 4, A[i + u], T.float32(3)) + T.float32(1)
        A[i] = T.Select(A[u] > T.float32(0), T.float32(2), T.Select(u < 1, A[i], T.float32(1)))
        A[i] = T.exp(T.Select(i + u < 4, T.float32(7), T.Select(i < 2, T.float32(5), A[i])))
        B[i] = B[i] * T.Select(i < 4, 2, 3) + T.Select(u < 1, B[u], i)
        C[i] = T.Select(i < 4, T.float16(2), T.float16(3)) * C[i]
        D[i] = T.Select(i < u, T.bool(False), D[i]) or T.Select(i < 4, T.bool(False), i < 5)
        E[i] = T.Select(i < 4, T.bfloat16(2), T.bfloat16(3)) + E[i]


@T.prim_func(s_tir=True)
def vectors(A: T.Buffer((8,), "float32")):
    for u, i in T.grid(1, 2):
        A[T.ramp(i * 4 + u, 1, 4)] = A[T.ramp(i * 4, 1, 4)] + T.Select(
            T.broadcast(i < 1, 4), T.broadcast(T.float32(1), 4), T.broadcast(T.float32(2), 4)
        )


@T.prim_func(s_tir=True)
def windows(A: T.Buffer((16, 16), "float32")):
    for i, j in T.grid(4, 4):
        with T.sblock("update"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi * 4 : vi * 4 + 4, vj * 4 : vj * 4 + 4])
            T.writes(A[vi * 4 : vi * 4 + 4, vj * 4 : vj * 4 + 4])
            W = T.match_buffer(A[vi * 4 : vi * 4 + 4, vj * 4 : vj * 4 + 4], (4, 4), offset_factor=1)
            for x, y, z in T.grid(4, 4, 1):
                W[x, y + z] = W[x, y] * T.float32(2)


@T.prim_func(s_tir=True)
def threads(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for b in T.thread_binding(2, "blockIdx.x"):
        for t in T.thread_binding(16, "threadIdx.x"):
            for v in T.thread_binding(2, "vthread.x"):
                with T.sblock("one"):
                    vi = T.axis.spatial(64, b * 32 + v * 16 + t)
                    A[vi] = A[vi] + T.float32(1)
        for s in T.thread_binding(16, "threadIdx.x", annotations={"pragma_unroll_explicit": 1}):
            for u in range(1):
                with T.sblock("two"):
                    vi = T.axis.spatial(64, b * 32 + s + u)
                    B[vi] = A[vi] * T.float32(2)


@T.prim_func(s_tir=True)
def bound_by_attribute(A: T.Buffer((64,), "float32")):
    t = T.launch_thread("threadIdx.x", 32)
    for u, i in T.grid(1, 2):
        A[i * 32 + t + u] = A[i * 32 + t] + T.float32(1)


@T.prim_func(s_tir=True)
def copies(A: T.Buffer((1024, 1024), "float32"), B: T.Buffer((1024, 1024), "float32")):
    with T.sblock("root"):
        T.sblock_attr({"warp_execution": True})
        for bx in T.thread_binding(8, "blockIdx.x"):
            for by in T.thread_binding(8, "blockIdx.y"):
                for _ty in T.thread_binding(8, "threadIdx.y"):
                    with T.sblock():
                        S = T.sblock_alloc_buffer((1024, 1024), "float32", scope="shared.dyn")
                        with T.sblock("A_shared"):
                            T.sblock_attr({"auto_copy": True, "vector_bytes": 16})
                            for x, y in T.grid(128, 128):
                                S[bx * 128 + x, by * 128 + y] = A[bx * 128 + x, by * 128 + y]
                        with T.sblock("B_global"):
                            T.sblock_attr({"auto_copy": True, "vector_bytes": 16})
                            for x, y in T.grid(128, 128):
                                B[bx * 128 + x, by * 128 + y] = S[bx * 128 + x, by * 128 + y]


@T.prim_func(s_tir=True)
def symbolic(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n, 16))
    B = T.match_buffer(b, (n, 16))
    C = T.sblock_alloc_buffer((n, 16))
    for i, _u, j in T.grid(n, 1, 16):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] + T.float32(1)
    for i, j in T.grid(n, 16):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(i < n - 1)
            B[vi, vj] = C[vi + 1, vj] * T.float32(2)


@T.prim_func(s_tir=True)
def nothing(A: T.Buffer((8,), "float32")):
    for _i in range(1):
        T.evaluate(0)


BY_HAND = {
    "loops": (loops, "llvm"),
    "wide loops": (wide_loops, "llvm"),
    "choices": (choices, "llvm"),
    "vectors": (vectors, "llvm"),
    "windows": (windows, "llvm"),
    "threads": (threads, "cuda"),
    "bound by attribute": (bound_by_attribute, "cuda"),
    "copies": (copies, "cuda"),
    "symbolic": (symbolic, "llvm"),
    "nothing": (nothing, "llvm"),
    "several": (loops, choices, windows, symbolic, "llvm"),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_lower_equals_tvms_passes_on_handwritten_functions(name):
    *functions, kind = BY_HAND[name]
    assert_lowers_like_tvm(module(*functions), kind)


def test_handwritten_functions_need_each_optional_pass():
    """Each pass that may be skipped changes one of the functions, and so does simplifying."""

    def changes(function, kind, before, name):
        passes = dict(passes_of_tvm(module(function), kind))
        return not tvm_ffi.structural_equal(passes[before], passes[name])

    simplify = ("s_tir.RemoveWeightLayoutRewriteBlock", "tirx.SimplifyForFeatureExtraction")
    unify = ("s_tir.LowerAutoCopy", "s_tir.UnifyThreadBinding")
    assert changes(loops, "llvm", *simplify) and changes(choices, "llvm", *simplify)
    assert changes(threads, "cuda", *unify) and changes(bound_by_attribute, "cuda", *unify)
    assert changes(windows, "llvm", "s_tir.UnifyThreadBinding", "s_tir.LowerMatchBuffer")
    passes = dict(passes_of_tvm(module(copies), "cuda"))
    assert "auto_copy" in str(passes["s_tir.CompactBufferAllocation"])
    assert "vectorized" in str(passes["s_tir.LowerAutoCopy"])


def test_lowering_reports_bindings_match_buffers_and_auto_copies():
    for function, found in (
        (loops, 0),
        (threads, _simplify.BOUND),
        (bound_by_attribute, _simplify.BOUND),
        (windows, _simplify.MATCHED),
        (copies, _simplify.BOUND | _simplify.COPIED),
    ):
        lower(module(function))
        assert _simplify.found() == found, function


def test_lower_rejects_invalid_program_in_one_line():
    @T.prim_func(s_tir=True)
    def uneven(A: T.Buffer((64,), "float32")):
        for b in T.thread_binding(2, "blockIdx.x"):
            for t in T.thread_binding(16, "threadIdx.x"):
                A[b * 16 + t] = A[b * 16 + t] + T.float32(1)
            for s in T.thread_binding(32, "threadIdx.x"):
                A[b * 16 + s] = A[b * 16 + s] + T.float32(1)

    with raises_line(PluginError, match=r"cannot lower the program.*same extent"):
        lower(module(uneven))
    assert_lowers_like_tvm(module(threads), "cuda")  # and the next one goes on as before
