"""Scheduled modules in the flat form that AutoTVM saw, and AutoTVM's features of them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from test_itervar import gemm, thread_gemv
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.script import ir as I
from tvm.script import tirx as T

from tunedb.features.itervar import ANNOTATIONS, get_itervar_feature
from tunedb.plugins.metaschedule.features import flat


def one_hot(name):
    return tuple(int(name == other) for other in ANNOTATIONS)


def matmul(n=128, m=None):
    m = m or n
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, m), name="B")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, m), lambda x, y: te.sum(a[x, k] * b[k, y], axis=k), name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def touches(rows):
    return [{pair[0]: pair[1:] for pair in row[3:]} for row in rows]


def loops(mod):
    """Return (name, extent, kind, annotations) of each loop in source order."""
    found = []

    def note(loop):
        annotations = {key: int(value) for key, value in loop.annotations.items()}
        found.append((loop.loop_var.name, loop.extent.value, loop.kind, annotations))

    tvm_ffi.structural_walk(mod, (tirx.For, note), order="pre")
    return found


def test_features_of_matmul_equal_table_of_autotvms_document():
    """The labels [y] and [x] of the document are corrected."""
    assert flat.get_itervar_feature(matmul()) == get_itervar_feature(gemm())


def test_feature_functions_accept_modules_and_schedules():
    mod = matmul()
    schedule = Schedule(mod)
    vector = flat.get_itervar_feature_flatten(schedule)
    assert vector.shape == (138,)
    np.testing.assert_array_equal(vector, flat.get_itervar_feature_flatten(mod))
    assert vector[0] == pytest.approx(np.log2(129))
    assert flat.get_itervar_feature_flatten(mod, False)[0] == 128
    curves = flat.get_buffer_curve_sample_flatten(mod, sample_n=4)
    assert (curves.shape, curves[:8].tolist()) == ((96,), [0, 0, 0, 1, 0, 2, 0, 3])


def gpu_gemv():
    """Return a schedule with one output for each thread; neighbours read neighbours in A[k, m]."""
    a, w = te.placeholder((64, 128), name="A"), te.placeholder((64,), name="W")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((128,), lambda m: te.sum(a[k, m] * w[k], axis=k), name="C")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([a, w, c])}))
    block = schedule.get_sblock("C")
    local = schedule.cache_write(block, 0, "local")
    outer, inner = schedule.split(schedule.get_loops(block)[0], [4, 32])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    schedule.reverse_compute_at(local, inner)
    return schedule


def test_features_of_gpu_program_equal_those_computed_by_hand():
    """The buffer that AutoTVM called C.local is C_local today."""
    rows, found = get_itervar_feature(thread_gemv()), flat.get_itervar_feature(gpu_gemv())
    assert touches(found) == [
        {name.replace("C.local", "C_local"): values for name, values in touched.items()}
        for touched in touches(rows)
    ]
    assert [row[1] for row in found] == [row[1] for row in rows]


def test_flatten_does_not_change_the_module():
    for schedule in (Schedule(matmul()), gpu_gemv()):
        before = schedule.mod.script()
        first = flat.flatten(schedule.mod)
        assert schedule.mod.script() == before
        assert tvm_ffi.structural_equal(first, flat.flatten(schedule.mod))


def test_flatten_keeps_unit_loops_kinds_and_annotations_of_loops():
    schedule = Schedule(matmul())
    x, y, k = schedule.get_loops(schedule.get_sblock("C"))
    unit, x = schedule.split(x, [1, None])
    schedule.bind(unit, "vthread.x")
    y, vector = schedule.split(y, [None, 1])
    k, inner = schedule.split(k, [None, 4])
    schedule.vectorize(vector)
    schedule.parallel(x)
    schedule.unroll(inner)
    kinds = tirx.ForKind
    assert loops(flat.flatten(schedule.mod)) == [
        *(("x_0", 1, kinds.THREAD_BINDING, {}), ("x_1", 128, kinds.PARALLEL, {})),
        *(("y_0", 128, kinds.SERIAL, {}), ("y_1", 1, kinds.VECTORIZED, {})),
        *(("k_0", 32, kinds.SERIAL, {}), ("k_1", 4, kinds.UNROLLED, {})),
    ]
    rows = flat.get_itervar_feature(schedule)
    slots = [ANNOTATIONS[row[1][5:].index(1)] for row in rows]
    assert slots == ["VTHREAD", "PARALLEL", "SERIAL", "VECTORIZED", "SERIAL", "UNROLLED"]
    # A unit loop's variable is 0 in every index, so it moves through nothing.
    assert rows[3][3] == ("A_0", 0, -1, 128, 1, 0, 0)
    schedule = Schedule(matmul())
    unit = schedule.split(schedule.get_loops(schedule.get_sblock("C"))[0], [1, None])[0]
    schedule.annotate(unit, "mine", 5)
    assert loops(flat.flatten(schedule.mod))[0] == ("x_0", 1, kinds.SERIAL, {"mine": 5})


def test_flatten_puts_init_before_the_first_reduction_loop():
    """Spatial loops inside of the reduction are repeated around the init, as te did."""
    schedule = Schedule(matmul(64))
    x, y, k = schedule.get_loops(schedule.get_sblock("C"))
    k0, k1 = schedule.split(k, [None, 8])
    schedule.reorder(x, k0, y, k1)
    rows = flat.get_itervar_feature(schedule)
    assert [(row[0][1], row[1][1:4]) for row in rows] == [
        ("x", (64, 1, 64)),
        ("y_init", (64, 2, 4096)),
        ("k_0", (8, 2, 512)),
        ("y", (64, 3, 32768)),
        ("k_1", (8, 4, 262144)),
    ]
    assert touches(rows)[0]["C_0"] == (64, -1, 4096, 1, 0, 0)


def test_flatten_compacts_buffers_to_what_their_scope_needs():
    schedule = Schedule(matmul(64))
    block = schedule.get_sblock("C")
    outer = schedule.split(schedule.get_loops(block)[0], [None, 8])[0]
    cached = schedule.cache_read(block, 0, "global")
    schedule.compute_at(cached, outer)
    rows = touches(flat.get_itervar_feature(schedule))
    # 8 of 64 rows are held: the variable outside of the copy moves through A, not A_global.
    assert rows[0]["A_0"][0] == 8 * 64
    assert rows[0]["A_global_0"][0] == rows[0]["A_global_1"][0] == 0


def test_features_describe_reduction_over_threads():
    a = te.placeholder((16, 64), name="A")
    k = te.reduce_axis((0, 64), name="k")
    b = te.compute((16,), lambda i: te.sum(a[i, k], axis=k), name="B")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([a, b])}))
    i, k = schedule.get_loops(schedule.get_sblock("B"))
    schedule.bind(i, "blockIdx.x")
    schedule.bind(k, "threadIdx.x")
    rows = flat.get_itervar_feature(schedule)
    assert [row[1][1:3] for row in rows][:2] == [(16, 1), (64, 2)]
    assert (rows[0][1][5:], rows[1][1][5:]) == (one_hot("BLOCK_X"), one_hot("THREAD_X"))
    assert touches(rows)[0]["A_0"] == (64, -1, 1024, 1, 16, 1)


def test_features_count_axes_and_buffers_over_all_functions():
    one, two = matmul(8)["main"], matmul(16)["main"]
    rows = flat.get_itervar_feature(
        tvm.IRModule({"one": one.with_attr("global_symbol", "one"), "two": two})
    )
    assert [row[1][1] for row in rows] == [8, 8, 8, 16, 16, 16]
    # Buffers are counted by name over the whole module, axes go on.
    assert [pair[0] for pair in rows[-1][3:]] == ["A_1", "B_1", "C_4", "C_5"]


@I.ir_module
class _Irregular:
    """A reduction with a binding that is not affine, which TVM does not decompose."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((16,), "float32"), B: T.Buffer((1,), "float32")):
        for i in range(4):
            for k in range(4):
                with T.sblock("B"):
                    j = T.axis.spatial(1, 0)
                    r = T.axis.reduce(16, i * k)
                    with T.init():
                        B[j] = T.float32(0)
                    B[j] = B[j] + A[r]


def test_irregular_reductions_keep_their_init():
    rows = flat.get_itervar_feature(_Irregular)
    assert [row[0][1] for row in rows] == ["i", "k"]
    assert sorted(touches(rows)[0]) == ["A_0", "B_0", "B_1", "B_2"]


@I.ir_module
class _Lowered:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((16,), "float32")):
        for i in range(16):
            A[i] = A[i] + T.float32(1)


def test_features_accept_functions_without_blocks():
    assert touches(flat.get_itervar_feature(_Lowered)) == [
        {"A_0": (1, -1, 16, 1, 0, 0), "A_1": (1, -1, 16, 1, 0, 0)}
    ]


def test_features_exist_where_flatten_buffer_alone_divides_by_zero():
    """In TVM 0.27, on a fused loop's value minus the same value in another form."""
    a = te.placeholder((1, 256, 64), name="A")
    pad = te.compute(
        (1, 258, 64),
        lambda n, i, c: te.if_then_else(te.all(i >= 1, i < 257), a[n, i - 1, c], 0.0),
        name="pad",
    )
    w = te.placeholder((3, 64, 128), name="W")
    r, c = te.reduce_axis((0, 3), name="r"), te.reduce_axis((0, 64), name="c")
    out = te.compute(
        (1, 128, 128),
        lambda n, i, o: te.sum(pad[n, i * 2 + r, c] * w[r, c, o], axis=[r, c]),
        name="out",
    )
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([a, w, out])}))
    block = schedule.get_sblock("out")
    n, i, o, r, c = schedule.get_loops(block)
    i0, i1 = schedule.split(i, [4, 32])
    o0, o1 = schedule.split(o, [4, 32])
    schedule.reorder(n, i0, o0, r, c, i1, o1)
    schedule.compute_at(schedule.get_sblock("pad"), r)
    schedule.parallel(schedule.fuse(n, i0, o0))
    rows = flat.get_itervar_feature(schedule)
    assert rows[0][1][1:3] == (16, 1)
    assert "pad_0" in touches(rows)[0]
