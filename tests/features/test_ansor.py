"""The feature sets ansor.per_store: three programs whose 164 values are derived by hand.

The tables hold values before the logarithm; comments say where they come from. P is the product
of the loops around a store.
"""

from __future__ import annotations

from math import log2

import numpy as np
import pytest
from nests import Build, with_array

from tunedb.errors import UsageError
from tunedb.features._nest import BufferKind, Call, ForKind, Op, Tag
from tunedb.features.ansor import (
    NAMES,
    PER_STORE_ANSOR,
    PER_STORE_TVM,
    PerStoreSet,
    per_store_ansor,
    per_store_names,
    per_store_tvm,
    workload_embedding,
)
from tunedb.features.base import Needs, NestFeatures

NONE, INNER_SPATIAL, OUTER_SPATIAL, INNER_REDUCE, MIXED = 0, 1, 3, 4, 7
READ, WRITE, READ_WRITE = (1, 0, 0), (0, 1, 0), (0, 0, 1)
LOOP, SERIAL, NO_REUSE = (1, 0, 0), (0, 1, 0), (0, 0, 1)
NO_KIND = (0, 0, 0, NONE)
ON_CPU = (0, 1, 1, 1, 1, 1, 1, 1)


def _log(values):
    return [log2(value + 1) for value in values]


def _kind(number, product, length, position):
    return [*_log((number, product, length)), *(float(position == i) for i in range(8))]


def _access(kind, sizes, reuse, distance, divided, stride):
    return [*kind, *_log(sizes), *reuse, *_log((*distance, *divided, stride))]


def _row(*, arithmetic, vec, unroll, parallel, threads, accesses, curve, scope):
    """Return a row of 164 values; `arithmetic` by name, everything else in the order of columns."""
    flat = [value for access in accesses for value in _access(*access)]
    return [
        *_log([arithmetic.get(name, 0) for name in NAMES[:16]]),
        *_kind(*vec),
        *_kind(*unroll),
        *_kind(*parallel),
        threads[0],
        *_log(threads[1:]),
        *flat,
        *([0.0] * (90 - len(flat))),
        *_log(curve),
        *_log(scope),
    ]


def _check(nest, flavour, expected, gpu=False):
    found = (per_store_tvm if flavour == "tvm" else per_store_ansor)(nest, gpu=gpu)
    assert found.shape == (len(expected), 164)
    for row, wanted in zip(found, expected, strict=True):
        columns = zip(NAMES, row, wanted, strict=True)
        assert not [one for one in columns if abs(one[1] - one[2]) > 1e-12]


# ---- an element-wise sum, vectorized


def elementwise():
    """C[i, j0 * 4 + j1] = A[i, j0 * 4 + j1] + B[i, j0 * 4 + j1], 16 x (8 x 4)."""
    build = Build(function=True)
    a, b, c = (build.array(name, 16, 32) for name in "ABC")
    i = build.loop("i", 16, kind=ForKind.PARALLEL)
    j0, j1 = build.loop("j0", 8), build.loop("j1", 4, kind=ForKind.VECTORIZED)
    c[i, j0 * 4 + j1] = a[i, j0 * 4 + j1] + b[i, j0 * 4 + j1]
    return build.done()


def _elementwise_row(flavour):
    # P = 16 * 8 * 4 = 512. One float sum; the indices of both loads are a product and a sum.
    # The positions: j1 is the innermost of three spatial loops, i the outermost.
    tvm = flavour == "tvm"
    # 512 elements of 4 bytes are accessed, all of them different. j1 steps by 1 element, so a
    # sixteenth of 512 accesses opens a line. Rows of 32 elements are whole: 128 bytes, more than
    # a line of 64, and 2048 / 64 = 32. Every loop is in the indices: nothing is used again, and
    # what is divided by the reuse count is doubled.
    sizes, divided = (2048, 2048, 32, 32), (4096, 4096, 64, 64)
    accesses = [(kind, sizes, NO_REUSE, (0, 0, 0), divided, 1) for kind in (READ, READ, WRITE)]
    return _row(
        arithmetic={"float_addsub": 512, "int_addsub": 1024, "int_mul": 1024}
        if tvm
        else {"float_addsub": 512, "int_mad": 1024},
        vec=(1, 4, 4, MIXED if tvm else INNER_SPATIAL),
        unroll=NO_KIND,
        parallel=(1, 16, 16, MIXED if tvm else OUTER_SPATIAL),
        threads=ON_CPU,
        accesses=accesses,  # as many lines and bytes each: A, B, C by name
        # 4 sums over 3 * 4 * 4 bytes, 32 over 3 * 32 * 4, 512 over 3 * 512 * 4
        curve=[1 / 12] * 10,
        # TVM takes parameters for allocated: 2048 bytes, 512 elements, outside of all loops
        scope=(2048, 512, 1, 512, 512, 3, 0) if tvm else (0, 0, 0, 0, 512, 3, 0),
    )


# ---- a matrix product with its initial store


def matmul():
    """C[i, j] = 0, then C[i, j] = C[i, j] + A[i, k] * B[k, j], 8 x 8 x 4."""
    build = Build(function=True)
    a, b, c = build.array("A", 8, 4), build.array("B", 4, 8), build.array("C", 8, 8)
    i = build.loop("i", 8, kind=ForKind.PARALLEL, auto_unroll=16)
    c[i, build.loop("j_init", 8)] = 0.0
    build.close()
    k, j = build.loop("k", 4, kind=ForKind.UNROLLED), build.loop("j", 8)
    c[i, j] += a[i, k] * b[k, j]
    return build.done()


def _matmul_row(flavour):
    # P = 8 * 4 * 8 = 256; a constant is stored by the initial store, which adds nothing.
    tvm = flavour == "tvm"
    # Elements under j, k, i: of C 8, 8, 64; of A 1, 4, 32; of B 8, 32, 32.
    # So bytes under them: 4 * 17 = 68, 4 * 44 = 176, 4 * 128 = 512.
    # B: stride 1 on j, 256 / 16 lines; rows are whole, 32 bytes. Only i is not in its indices:
    # used again 8 times, after 4 * 8 iterations and the 176 bytes under k.
    b = (READ, (1024, 128, 16, 4), LOOP, (32, 176, 8), (128, 16, 2, 0.5), 1)
    # C: the same, but k is not in its indices: 4 times, after 8 iterations and 68 bytes.
    c = (READ_WRITE, (1024, 256, 16, 8), LOOP, (8, 68, 4), (256, 64, 4, 2), 1)
    # A: nothing moves on j. On k the stride is 1, over 256 / 8 accesses, a sixteenth of which
    # opens a line; as j is the innermost loop, the stride is 0. Rows of 16 bytes: 128 / 16.
    # Used again 8 times on j, after one iteration and one element of each of three buffers.
    a = (READ, (1024, 128, 2, 8), LOOP, (1, 12, 8), (128, 16, 0.25, 1), 0)
    # Two operations in each iteration, a product and a sum: 16 under j, 64 under k, 512 under i.
    points = [(16, 16 / 68), (64, 64 / 176), (512, 1.0)]
    curve = [points[0][1] + (points[1][1] - points[0][1]) * (51.2 - 16) / (64 - 16)]
    curve += [
        points[1][1] + (1 - points[1][1]) * (512 * part / 10 - 64) / (512 - 64)
        for part in range(2, 11)
    ]
    return _row(
        arithmetic={"float_addsub": 256, "float_mul": 256} if tvm else {"float_mad": 256},
        vec=NO_KIND,
        unroll=(1, 4, 4, MIXED if tvm else INNER_REDUCE),  # k, the only loop that C does not have
        parallel=(1, 8, 8, MIXED if tvm else OUTER_SPATIAL),  # i, outside of j
        threads=ON_CPU,
        accesses=[b, c, a],  # 16 lines, 16 lines, 2 lines
        curve=curve,
        scope=(256, 64, 1, 256, 256, 3, 16) if tvm else (0, 0, 0, 0, 256, 3, 16),
    )


# ---- shared memory on a GPU


def shared_memory():
    """S = A, a block's 16 elements with virtual threads, then B = exp(S)."""
    build = Build(function=True)
    a, b = build.array("A", 64), build.array("B", 64)
    block = build.thread(Tag.BLOCK_X, 4)
    build.open("block", "S")
    s = build.array("S", 16, kind=BufferKind.BUFFER_ALLOCATED, scope="shared")
    v, t = build.thread(Tag.VTHREAD, 2), build.thread(Tag.THREAD_X, 8)
    s[v * 8 + t] = a[block * 16 + v * 8 + t]
    build.close(2)
    v, t = build.thread(Tag.VTHREAD, 2), build.thread(Tag.THREAD_X, 8)
    b[block * 16 + v * 8 + t] = build.call(Call.CALL_OTHER, [s[v * 8 + t]])
    return build.done()


def _shared_memory_rows(flavour):
    # P = 4 * 2 * 8 = 64 for both stores.
    tvm = flavour == "tvm"
    threads = (1, 4, 1, 1, 8, 1, 1, 2)
    kinds = {"vec": NO_KIND, "unroll": NO_KIND, "parallel": NO_KIND}
    # A and B: 64 elements, all different, stride 1 on t, whole: 4 lines of 64 bytes.
    once = ((256, 256, 4, 4), NO_REUSE, (0, 0, 0), (512, 512, 8, 8), 1)
    # S: 16 elements are accessed 64 times. bx is not in its index: used again 4 times, after the
    # 16 iterations and the 4 * (16 + 16) bytes under v.
    again = ((256, 64, 4, 1), LOOP, (16, 128, 4), (64, 16, 1, 0.25), 1)
    # bx * 16 + v * 8 + t is two products and two sums: one multiply-add, whose second operand is
    # a product that stays, and the sum with t.
    store_of_s = {"int_addsub": 128, "int_mul": 128}
    if not tvm:
        store_of_s = {"int_mad": 64, "int_addsub": 64, "int_mul": 64}
    store_of_b = {"float_mathfunc": 64, "int_addsub": 64, "int_mul": 64}
    if not tvm:
        store_of_b = {"float_mathfunc": 64, "int_mad": 64}
    # One call in each iteration: 8 over 4 * (8 + 8) bytes, 16 over 4 * (16 + 16), 64 over
    # 4 * (64 + 16). The samples are at 6.4, 12.8, 19.2, ... operations.
    curve = [0.125, 0.125]
    curve += [0.125 + (0.2 - 0.125) * (64 * part / 10 - 16) / (64 - 16) for part in range(3, 11)]
    return [
        _row(
            arithmetic=store_of_s,
            **kinds,
            threads=threads,
            accesses=[(READ, *once), (WRITE, *again)],
            curve=[0] * 10,  # no float operation
            # 64 bytes, 16 elements under bx's 4 iterations, and 64 / 4
            scope=(64, 64, 4, 16, 64, 3, 0),
        ),
        _row(
            arithmetic=store_of_b,
            **kinds,
            threads=threads,
            accesses=[(WRITE, *once), (READ, *again)],
            curve=curve,
            scope=(256, 64, 1, 64, 64, 3, 0) if tvm else (0, 0, 0, 0, 64, 3, 0),
        ),
    ]


@pytest.mark.parametrize("flavour", ["tvm", "ansor"])
def test_rows_have_the_values_derived_by_hand(flavour):
    _check(elementwise(), flavour, [_elementwise_row(flavour)])
    _check(matmul(), flavour, [_matmul_row(flavour)])
    _check(shared_memory(), flavour, _shared_memory_rows(flavour), gpu=True)


def test_tvm_flavour_ignores_threads_if_target_is_no_gpu():
    row = dict(zip(NAMES, per_store_tvm(shared_memory(), gpu=False)[0], strict=True))
    assert (row["is_gpu"], row["threadIdx_x_len"]) == (0, 1.0)  # log2(1 + 1)


def _first(**loop):
    """Return a builder, a parameter of 8 elements, and the variable of a loop."""
    build = Build()
    return build, build.array("A", 8), build.loop("i", **({"extent": 8} | loop))


class TestWhereAnsorDiffers:
    """Columns of the same small programs in both flavours."""

    @staticmethod
    def _rows(build, gpu=False):
        found = []
        for extract in (per_store_tvm, per_store_ansor):
            rows = extract(build.done(), gpu=gpu)
            found.append([dict(zip(NAMES, row, strict=True)) for row in rows])
        return found

    def test_ansor_sums_stores_of_a_buffer_and_counts_them_as_reuse(self):
        build, a, i = _first()
        c = build.array("C", 8)
        for _ in range(2):
            c[i] = a[i] * a[i]
        c[i] = 0.0
        (tvm,), (ansor,) = self._rows(build)
        assert (tvm["float_mul"], ansor["float_mul"]) == (log2(8 + 1), log2(16 + 1))
        # To TVM the second store is the last one, and A comes before C; to Ansor the third one,
        # which accesses C alone, two stores of which came before.
        assert tvm["B1.reuse_ct"] == log2(1 + 1)
        assert ansor["B0.reuse_type.kSerialMultipleReadWrite"] == 1
        assert ansor["B0.reuse_ct"] == log2(2 + 1)
        assert ansor["B0.reuse_dis_iter"] == log2(8 / 8 + 1)
        # 3 * 8 elements of C and 2 * 8 of A, over 8 iterations
        assert ansor["B0.reuse_dis_bytes"] == pytest.approx(log2(4 * 40 / 8 + 1))

    def test_only_ansor_has_a_row_for_a_lone_initial_store(self):
        build, a, i = _first()
        a[i] = 0.0
        tvm, (ansor,) = self._rows(build)
        assert (tvm, ansor["outer_prod"]) == ([], log2(8 + 1))
        assert per_store_tvm(build.nest, gpu=False).shape == (0, 164)

    def test_ansor_appends_rows_of_allocated_buffers_without_store(self):
        build = Build()
        build.open("block", "root")
        spare = build.array("spare", 4, 4, kind=BufferKind.BUFFER_ALLOCATED)
        used = build.array("used", 8, kind=BufferKind.BUFFER_ALLOCATED)
        i = build.loop("i", 8)
        used[i] = spare[i, i] + 1.0
        (_,), (first, second) = self._rows(build)
        assert first["outer_prod"] > 0
        assert {name: value for name, value in second.items() if value} == {
            "alloc_size": log2(64 + 1),
            "alloc_prod": log2(16 + 1),
            "alloc_outer_prod": log2(1 + 1),
        }

    @pytest.mark.parametrize(
        ("code", "bits", "is_float"), [(4, 16, True), (10, 8, True), (0, 32, False), (2, 16, True)]
    )
    def test_ansor_counts_more_types_as_float_than_tvm(self, code, bits, is_float):
        build, a = with_array(8, code=code, bits=bits)
        i = build.loop("i", 8)
        a[i] = a[i] * a[i]
        (tvm,), (ansor,) = self._rows(build)
        assert (tvm["float_mul"] > 0, ansor["float_mul"] > 0) == (code == 2, is_float)

    def test_ansor_counts_comparisons_by_operand_type_and_lanes(self):
        build, a, i = _first()
        b = build.array("B", 8, code=6, bits=8)
        b[i] = build.op(Op.OP_LT, a[i], a[i], code=6, bits=8, lanes=4)
        (tvm,), (ansor,) = self._rows(build)
        assert (tvm["float_cmp"], tvm["int_cmp"]) == (0, log2(8 + 1))
        assert (ansor["float_cmp"], ansor["int_cmp"]) == (log2(32 + 1), 0)

    def test_unique_bytes_of_store_without_loops_differ(self):
        build, a = with_array()
        a[()] = a[()] + a[()]
        (tvm,), (ansor,) = self._rows(build)
        assert (tvm["B0.unique_bytes"], ansor["B0.unique_bytes"]) == (log2(1 + 1), log2(4 + 1))
        for row in (tvm, ansor):
            assert row["B0.lines"] == row["B0.unique_lines"] == log2(1 + 1)
            assert row["B0.stride"] == row["arith_intensity_curve_9"] == 0

    def test_ansor_multiplies_vthreads_and_takes_the_innermost_thread(self):
        build, a = with_array(8)
        threads = ((Tag.VTHREAD, 2), (Tag.VTHREAD, 3), (Tag.THREAD_X, 4), (Tag.THREAD_X, 8))
        *_, i = (build.thread(tag, extent) for tag, extent in threads)
        a[i] = a[i] + a[i]
        (tvm,), (ansor,) = self._rows(build, gpu=True)
        assert (tvm["vthread_len"], tvm["threadIdx_x_len"]) == (log2(2 + 1), log2(4 + 1))
        assert (ansor["vthread_len"], ansor["threadIdx_x_len"]) == (log2(6 + 1), log2(8 + 1))

    def test_tvm_takes_remainder_of_fused_loop_for_0(self):
        build, a = with_array(4, 8)
        fused = build.loop("f", 32, kind=ForKind.PARALLEL)
        at = fused // 8, fused % 8
        a[at] = a[at] + a[at]
        (tvm,), (ansor,) = self._rows(build)
        assert tvm["B0.unique_bytes"] == log2(4 * 4 + 1)  # to TVM f % 8 is 0
        assert ansor["B0.unique_bytes"] == log2(4 * 32 + 1)
        assert ansor["parallel_type.kPosInnerSpatial"] == 1

    def test_ansor_keeps_sign_of_negative_products(self):
        build, a, i = _first(extent=-3)
        a[i] = a[i] + a[i]
        (tvm,), (ansor,) = self._rows(build)
        assert (tvm["outer_prod"], ansor["outer_prod"]) == (log2(3 + 1), -log2(3 + 1))

    @pytest.mark.parametrize(
        ("spatial", "reduce", "where"),
        [(3, 0, "kPosMiddleSpatial"), (1, 3, "kPosMiddleReduce"), (1, 2, "kPosOuterReduce")],
    )
    def test_ansor_names_position_of_loop_and_tvm_says_mixed(self, spatial, reduce, where):
        """One loop is unrolled; the first `spatial` ones are in the index."""
        build, a = with_array(*[8] * spatial)
        kinds = [ForKind.SERIAL] * (spatial + reduce)
        kinds[2 if where == "kPosMiddleReduce" else 1] = ForKind.UNROLLED
        at = [build.loop(f"i{level}", 8, kind=kind) for level, kind in enumerate(kinds)][:spatial]
        a[at] = a[at] + a[at]
        (tvm,), (ansor,) = self._rows(build)
        assert tvm["unroll_type.kPosMixed"] == 1
        assert ansor[f"unroll_type.{where}"] == 1

    def test_ansor_position_of_loop_used_by_quotient_is_mixed(self):
        build, a, i = _first(kind=ForKind.VECTORIZED)
        a[i // 2] = a[i // 2] + a[i // 2]
        _, (ansor,) = self._rows(build)
        assert ansor["vec_type.kPosMixed"] == 1


class TestSets:
    def test_names_are_164_in_the_documented_order(self):
        assert len(NAMES) == len(set(NAMES)) == 164
        assert NAMES[:2] == ("float_mad", "float_addsub")
        assert NAMES[16:20] == ("vec_num", "vec_prod", "vec_len", "vec_type.kPosNone")
        assert (NAMES[49], *NAMES[56:58]) == ("is_gpu", "vthread_len", "B0.acc_type.kRead")
        assert NAMES[146:148] == ("B4.stride", "arith_intensity_curve_0")
        assert NAMES[157:] == (
            *("alloc_size", "alloc_prod", "alloc_outer_prod", "alloc_inner_prod"),
            *("outer_prod", "num_loops", "auto_unroll_max_step"),
        )

    def test_per_store_names_follow_options(self):
        assert per_store_names(workload=True)[164] == "workload.softmax"
        assert len(per_store_names(workload=True)) == 172
        assert len(per_store_names(2, 3)) == 57 + 2 * 18 + 3 + 7

    def test_sets_are_nest_features_with_164_columns(self):
        for flavour, one in (("tvm", PER_STORE_TVM), ("ansor", PER_STORE_ANSOR)):
            assert isinstance(one, NestFeatures)
            assert (one.name, one.version) == (f"ansor.per_store/{flavour}", 1)
            assert (one.needs, one.columns) == (Needs.LOWERED, NAMES)
            assert one.nest_rows(matmul(), gpu=False).shape == (1, 164)

    def test_options_appear_in_name_and_columns_of_the_set(self):
        one = PerStoreSet("tvm", buffers_per_store=2, cache_line=128)
        assert one.name == "ansor.per_store/tvm;buffers_per_store=2,cache_line=128"
        rows = one.nest_rows(matmul(), gpu=False)
        assert rows.shape[1] == len(one.columns) == 57 + 36 + 10 + 7
        whole = per_store_tvm(matmul(), gpu=False, cache_line=128)
        np.testing.assert_array_equal(rows[0, :93], whole[0, :93])

    def test_options_out_of_range_are_rejected(self):
        for options in ({"buffers_per_store": -1}, {"curve_samples": 5000}, {"cache_line": 0}):
            with pytest.raises(UsageError, match="0 to 1000, a cache line at least 1"):
                per_store_tvm(matmul(), gpu=False, **options)
        with pytest.raises(UsageError, match="no flavour"):
            PerStoreSet("other").nest_rows(matmul(), gpu=False)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["T_softmax_maxelem", "Matmul", "T_batch_matmul_NT", "T_add_relu", "pool_max"], range(5)),
        (["conv2d_winograd", "DepthwiseConv2d", "conv2d_nhwc"], range(5, 8)),
        ([], []),
    ],
)
def test_workload_embedding_recognises_operators_by_name(names, found):
    assert workload_embedding(names).tolist() == [int(n in found) for n in range(8)]
