"""AutoTVM's loop features on programs in the flat form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference_itervar as reference
from hypothesis import given
from hypothesis import strategies as st
from nests import Build, with_array

from tunedb.errors import LimitError, UsageError
from tunedb.features._nest import BufferKind, ForKind, NestBuilder, Op, Tag
from tunedb.features.base import Needs, NestFeatures
from tunedb.features.itervar import (
    ANNOTATIONS,
    ITERVAR,
    flatten_itervar_feature,
    get_buffer_curve_sample_flatten,
    get_flatten_name,
    get_itervar_feature,
    get_itervar_feature_flatten,
)


def gemm(n=128):
    """The program of AutoTVM's document: C[x, y] = 0, then C[x, y] += A[x, k] * B[k, y]."""
    build = Build()
    a, b, c = (build.array(name, n * n) for name in "ABC")
    x, y = build.loop("x", n), build.loop("y", n)
    c[x * n + y] = 0.0
    k = build.loop("k", n)
    c[x * n + y] += a[x * n + k] * b[y + k * n]
    return build.done()


def thread_gemv():
    """One output for each thread: the vector for GPUs that is worked out by hand."""
    build = Build()
    a, w, c = build.array("A", 64 * 128), build.array("W", 64), build.array("C", 128)
    local = build.array("C.local", 1, kind=BufferKind.BUFFER_ALLOCATED, scope="local")
    bx = build.loop("blockIdx.x", 4, kind=ForKind.THREAD_BINDING, tag=Tag.BLOCK_X)
    tx = build.loop("threadIdx.x", 32, kind=ForKind.THREAD_BINDING, tag=Tag.THREAD_X)
    local[0] = 0.0
    k = build.loop("k", 64)
    local[0] += a[k * 128 + (bx * 32 + tx)] * w[k]
    build.close()
    c[bx * 32 + tx] = local[0]
    return build.done()


def one_hot(name):
    return tuple(int(name == other) for other in ANNOTATIONS)


SERIAL = one_hot("SERIAL")


def touches(rows):
    """Return {axis: {access: values}}."""
    return {row[0][1]: {pair[0]: pair[1:] for pair in row[3:]} for row in rows}


def test_rows_of_gemm_equal_table_of_autotvm_document():
    """The table of AutoTVM's document, its labels [y] and [x] put right."""
    assert get_itervar_feature(gemm()) == [
        (
            ("_itervar_", "x"),
            ("_attr_", 128, 1, 128, 2097152, *SERIAL),
            ("_arith_", 0, 0, 0),
            ("A_0", 128, -1, 16384, 128, 0, 0),
            ("B_0", 0, -1, 16384, 128, 0, 0),
            ("C_0", 128, -1, 16384, 1, 0, 0),
            ("C_1", 128, -1, 16384, 128, 0, 0),
            ("C_2", 128, -1, 16384, 128, 0, 0),
        ),
        (
            ("_itervar_", "y"),
            ("_attr_", 128, 2, 16384, 16384, *SERIAL),
            ("_arith_", 0, 0, 0),
            ("A_0", 0, -1, 128, 128, 0, 0),
            ("B_0", 1, -1, 16384, 1, 0, 0),
            ("C_0", 1, -1, 128, 1, 0, 0),
            ("C_1", 1, -1, 128, 128, 0, 0),
            ("C_2", 1, -1, 128, 128, 0, 0),
        ),
        (
            ("_itervar_", "k"),
            ("_attr_", 128, 3, 2097152, 128, *SERIAL),
            ("_arith_", 1, 1, 0),
            ("A_0", 1, -1, 128, 1, 0, 0),
            ("B_0", 128, -1, 128, 1, 0, 0),
            ("C_1", 0, -1, 1, 128, 0, 0),
            ("C_2", 0, -1, 1, 128, 0, 0),
        ),
    ]


def test_rows_of_gpu_gemv_equal_those_worked_out_by_hand():
    rows = get_itervar_feature(thread_gemv())
    assert [row[1] for row in rows] == [
        ("_attr_", 4, 1, 4, 8192, *one_hot("BLOCK_X")),
        ("_attr_", 32, 2, 128, 2048, *one_hot("THREAD_X")),
        ("_attr_", 64, 3, 8192, 64, *SERIAL),
    ]
    assert [row[2] for row in rows] == [("_arith_", n, n, 0) for n in (0, 0, 1)]
    assert touches(rows) == {
        "blockIdx.x": {
            "A_0": (32, -1, 8192, 1, 4, 1),
            "C.local_0": (0, -1, 1, 128, 1, 4),
            "C.local_1": (0, -1, 1, 8192, 1, 4),
            "C.local_2": (0, -1, 1, 8192, 1, 4),
            "C.local_3": (0, -1, 1, 128, 1, 4),
            "C_0": (32, -1, 128, 1, 4, 1),
            "W_0": (0, -1, 64, 128, 1, 4),
        },
        "threadIdx.x": {
            "A_0": (1, -1, 2048, 1, 32, 1),
            "C.local_0": (0, -1, 1, 32, 0, 0),
            "C.local_1": (0, -1, 1, 2048, 1, 32),
            "C.local_2": (0, -1, 1, 2048, 1, 32),
            "C.local_3": (0, -1, 1, 32, 0, 0),
            "C_0": (1, -1, 32, 1, 0, 0),
            "W_0": (0, -1, 64, 32, 1, 32),
        },
        "k": {
            "A_0": (128, -1, 64, 1, 0, 0),
            "C.local_1": (0, -1, 1, 64, 0, 0),
            "C.local_2": (0, -1, 1, 64, 0, 0),
            "W_0": (1, -1, 64, 1, 0, 0),
        },
    }


def test_flat_features_are_signed_logarithms_by_default():
    build, a = with_array(7)
    i = build.loop("i", 7, kind=ForKind.PARALLEL)
    a[i] = build.op(Op.OP_DIV, a[i], 0.5)
    nest = build.done()
    # log2(7 + 1) = 3; log2(1 + 1) = 1; mod -1 becomes -log2(2) = -1.
    wanted = [3, 1, 3, 3, *one_hot("PARALLEL"), 0, 0, 1, *(1, -1, 3, 1, 0, 0) * 2]
    assert get_itervar_feature_flatten(nest) == pytest.approx(wanted)
    assert flatten_itervar_feature(get_itervar_feature(nest, True)) == pytest.approx(wanted)
    plain = [7, 1, 7, 7, *one_hot("PARALLEL"), 0, 0, 1, *(1, -1, 7, 1, 0, 0) * 2]
    assert get_itervar_feature_flatten(nest, False).tolist() == plain


def test_flat_names_match_flat_values():
    rows = get_itervar_feature(gemm())
    names, values = get_flatten_name(rows), flatten_itervar_feature(rows)
    assert len(names) == len(values) == 138
    by_name = dict(zip(names, values, strict=True))
    assert names[0] == "f0.x._attr_.length"
    assert names[14:18] == [
        *("f14.x._attr_.ann_10", "f15.x._arith_.add", "f16.x._arith_.mul", "f17.x._arith_.div")
    ]
    expected = {"f1.x._attr_.nest_level": 1, "f3.x._attr_.bottomup": 2097152}
    expected |= {"f18.x.A_0.stride": 128, "f19.x.A_0.mod": -1, "f137.k.C_2.T_reuse": 0}
    assert expected.items() <= by_name.items()


def test_curve_samples_of_gemm_equal_autotvm_document():
    """The A_0 lists are count 0, 7, 7, 14, reuse 0, 0, 7, 7 and topdown 0, 7, 14, 21."""
    values = get_buffer_curve_sample_flatten(gemm(), sample_n=4)
    assert values.shape == (96,)
    assert values[:8].tolist() == [0, 0, 0, 1, 0, 2, 0, 3]
    # reuse → count at 0: the last point with reuse 0 has count 7.
    assert values[8:16] == pytest.approx([7, 0, 7, 1, 7, 2, 7, 3])
    values = get_buffer_curve_sample_flatten(gemm(), sample_n=16)[:128].reshape(4, 16, 2)
    count_reuse, reuse_count, count_topdown, topdown_count = values
    assert count_reuse[[6, 7, 13, 14, 15]] == pytest.approx(
        np.array([[0, 6], [7, 0], [7, 6], [7, 0], [7, 1]])
    )
    assert reuse_count[[6, 7, 15]] == pytest.approx(np.array([[7, 6], [14, 0], [14, 8]]))
    assert count_topdown[[6, 7, 14]] == pytest.approx(np.array([[0, 6], [14, 0], [21, 0]]))
    assert topdown_count[[0, 7, 14]] == pytest.approx(np.array([[0, 0], [7, 0], [7, 0]]))


def test_curves_take_one_access_for_each_buffer_of_the_deepest_axes():
    # A, W, and C.local, which has the same buffer as C; C itself is not touched by k.
    assert get_buffer_curve_sample_flatten(thread_gemv()).shape == (3 * 8 * 30,)


@pytest.mark.parametrize(
    ("loop", "slot"),
    [
        ({}, "SERIAL"),
        ({"kind": ForKind.PARALLEL}, "PARALLEL"),
        ({"kind": ForKind.VECTORIZED}, "VECTORIZED"),
        ({"kind": ForKind.UNROLLED}, "UNROLLED"),
        *(({"kind": ForKind.THREAD_BINDING, "tag": tag}, tag.name) for tag in list(Tag)[1:8]),
    ],
)
def test_annotation_is_one_hot_by_kind_of_loop(loop, slot):
    build = Build()
    build.loop("i", 4, **loop)
    assert get_itervar_feature(build.done())[0][1][5:] == one_hot(slot)


def test_symbolic_extent_counts_as_minus_one():
    build, a = with_array(64)
    build.loop("outer", 8)
    i = build.loop("i", (build.free_var("n"),))
    a[i] = 1.0
    outer, inner = get_itervar_feature(build.done())
    assert inner[1][1:5] == (-1, 2, -8, -1)
    assert (inner[3], outer[3]) == (("A_0", 1, -1, -1, 1, 0, 0), ("A_0", 0, -1, -1, 8, 0, 0))
    assert outer[1][4] == -1  # bottomup is never below -1
    # Points below 1 count as 1, so that no value is infinite.
    assert np.isfinite(get_buffer_curve_sample_flatten(build.nest, 4)).all()


def test_extent_0_keeps_later_products_at_0():
    build, a = with_array(64)
    for extent in (0, 4):
        i = build.loop("i", extent)
        a[i] = 1.0
        build.close()
    first, second = get_itervar_feature(build.nest)
    assert first[1][1:5] == (0, 1, 0, 0)
    assert second[1][1:5] == (4, 1, 0, 4)  # the product of open axes is divided by no 0


def test_reuse_of_0_causes_no_division_by_0():
    build, a = with_array(64)
    build.thread(Tag.BLOCK_X, 4)
    build.thread(Tag.THREAD_X, 0)
    a[0] = 1.0
    assert get_itervar_feature(build.done())[0][3] == ("A_0", 0, -1, 1, 0, 1, 0)


def test_products_wrap_at_64_bits():
    build, a = with_array(64)
    outer, *_ = (build.loop(f"i{n}", 2**31, bits=64) for n in range(3))
    a[outer] = 1.0
    rows = get_itervar_feature(build.done())
    assert [row[1][3] for row in rows] == [2**31, 2**62, 0]  # 2^93
    assert (rows[0][1][4], rows[0][3]) == (0, ("A_0", 1, -1, 2**31, 2**62, 0, 0))


def test_the_same_virtual_thread_is_one_axis():
    build, a = with_array(64)
    vthread = {"kind": ForKind.THREAD_BINDING, "tag": Tag.VTHREAD}
    first = build.open("loop", "vthread", 2, **vthread)
    v = build.var(first)
    a[v] = 1.0
    for _ in range(2):
        build.loop("vthread", 2, again=first, **vthread)
    a[v] = 1.0
    a[build.loop("i", 8)] = 1.0
    build.close(4)
    build.loop("vthread", 2, again=first, **vthread)
    a[v] = 1.0  # under no axis any more
    rows = get_itervar_feature(build.done())
    assert [row[0][1] for row in rows] == ["vthread", "i"]
    assert [row[1][1:4] for row in rows] == [(2, 1, 2), (8, 2, 16)]
    assert touches(rows)["vthread"] == {
        "A_0": (1, -1, 2, 1, 0, 0),
        "A_1": (1, -1, 2, 1, 0, 0),
        "A_2": (0, -1, 8, 2, 0, 0),
    }


@pytest.mark.parametrize(
    ("is_inside", "expected"),
    [
        (False, [(4, 1, 4, 4), ("A_0", 1, -1, 4, 1, 0, 0), ("A_1", 1, -1, 8, 1, 0, 0)]),
        # As AutoTVM's map has it: both places on the stack lead to the inner axis from then on,
        # the outer one is frozen and never closed. 8 for each of two places, and again when the
        # outer place closes.
        (True, [(4, 1, 4, -1), ("A_0", 1, -1, 1, 1, 0, 0), ("A_1", 1, -1, 512, 1, 0, 0)]),
    ],
)
def test_a_thread_bound_again_is_another_axis(is_inside, expected):
    build, a = with_array(64)
    thread = {"kind": ForKind.THREAD_BINDING, "tag": Tag.THREAD_X}
    tx = build.open("loop", "threadIdx.x", 4, **thread)
    a[build.var(tx)] = 1.0
    if not is_inside:
        build.close()
    a[build.loop("threadIdx.x", 8, again=tx, **thread)] = 1.0
    first, second = get_itervar_feature(build.done())
    assert [first[1][1:5], *first[3:], *second[3:]] == expected
    assert second[1][1] == 8
    assert is_inside or second[1][1:5] == (8, 1, 8, 8)


def test_unknown_thread_is_rejected():
    build = Build()
    build.loop("i", 4, kind=ForKind.THREAD_BINDING, tag=Tag.TAG_OTHER)
    with pytest.raises(UsageError, match="loop 'i' is bound to a thread that AutoTVM does not"):
        get_itervar_feature(build.done())


@pytest.mark.parametrize(
    ("index", "strides"),
    [
        (lambda b, i, j: i * 16 + j, [16, 1]),
        (lambda b, i, j: b.constant(16) * i + j, [1, 1]),  # constant on the left
        (lambda b, i, j: (i + j) * 16, [1, 1]),  # of a sum
        (lambda b, i, j: i * 16 + i * 4, [16, 0]),
        # The second stride of a variable goes to the next new one.
        (lambda b, i, j: i * 16 + i * 4 + j, [16, 4]),
        (lambda b, i, j: i * 4 % 8, [4, 0]),
        (lambda b, i, j: i * -2 + j, [-2, 1]),
        (lambda b, i, j: b.free_var("n") * 9 + j, [0, 1]),
        (lambda b, i, j: b.constant(3), [0, 0]),
    ],
)
def test_strides_are_found_as_in_autotvm(index, strides):
    build, a = with_array(4096)
    a[index(build, build.loop("i", 4), build.loop("j", 4))] = 1.0
    assert [row[3][1] for row in get_itervar_feature(build.done())] == strides


def test_accesses_are_numbered_in_order_of_autotvm():
    """Store, then value (a before b, condition first), then index; a load before its index."""
    build = Build()
    a, where = build.array("A", 64), build.array("where", 64, code=0)
    i, j = build.loop("i", 4), build.loop("j", 8)
    a[where[j]] = build.op(Op.OP_SELECT, a[i] < 0.0, a[j], a[where[i]], code=2, bits=32)
    seen = touches(get_itervar_feature(build.done()))
    # A_0 the store through where[j], A_1 the condition, A_2, A_3 through where[i].
    moves_on_i = {"A_0": 0, "A_1": 1, "A_2": 0, "A_3": 1, "where_0": 1, "where_1": 0}
    assert {name: values[0] for name, values in seen["i"].items()} == moves_on_i
    assert {name: 1 - values[0] for name, values in seen["j"].items()} == moves_on_i


def test_accesses_are_sorted_as_text_and_counted_by_name():
    build = Build()
    arrays = [build.array(name, 4) for name in ("C", "C.local", "C", "C_1", "ä", "")]
    i = build.loop("i", 4)
    for array in [arrays[0]] * 6 + arrays + [arrays[2]] * 4:
        array[i] = 1.0
    names = [pair[0] for pair in get_itervar_feature(build.done())[0][3:]]
    wanted = ["C.local_0", "C_1_0", "ä_0", "_0", *(f"C_{n}" for n in range(12))]
    assert names == sorted(wanted)
    assert names.index("C_10") < names.index("C_2")


def test_float_operations_and_accesses_are_counted_at_each_visit():
    """Those of conditions and calls, too."""
    build, a = with_array(64)
    i = build.loop("i", 4)
    x = a[i]
    half = build.op(Op.OP_MUL, x, x, bits=16)
    brain = build.op(Op.OP_SUB, half, half, code=4, bits=16)  # visits `half` twice
    whole = build.constant(1) + 2
    a[i] = build.op(Op.OP_MOD, build.op(Op.OP_MAX, brain, x, code=2), whole)
    build.open("condition", x < 0.0)
    build.evaluate(build.call(0, [x + x], effects=True))
    row = get_itervar_feature(build.done())[0]
    assert row[2] == ("_arith_", 1 + 1, 2, 1)
    assert [pair[0] for pair in row[3:]] == [f"A_{n}" for n in range(1 + 5 + 3)]


@pytest.mark.parametrize("loops", [0, 1])
def test_loops_without_store_have_no_accesses(loops):
    build = Build()
    for _ in range(loops):
        build.loop("i", 4)
        build.close()
    rows = get_itervar_feature(build.nest)
    empty = (("_attr_", 4, 1, 4, -1, *SERIAL), ("_arith_", 0, 0, 0))
    assert [row[1:] for row in rows] == [empty] * loops
    assert get_flatten_name(rows)[-1:] == ["f17.i._arith_.div"] * loops
    assert get_buffer_curve_sample_flatten(build.nest).shape == (0,)
    assert ITERVAR.nest_rows(build.nest, gpu=False).shape == (1, 18 * loops)


def test_buffers_with_several_indices_are_rejected():
    build = Build()
    build.array("data", 4, 4)[0, 1] = 1.0
    with pytest.raises(UsageError, match="'data' is accessed with several indices; flatten"):
        get_itervar_feature(build.nest)
    with pytest.raises(UsageError):
        ITERVAR.nest_rows(build.nest, gpu=False)


def test_scalar_buffer_has_stride_0():
    build, a = with_array()
    build.loop("i", 4)
    a[()] = a[()]
    touched = get_itervar_feature(build.done())[0][3:]
    assert [pair[:3] for pair in touched] == [("A_0", 0, -1), ("A_1", 0, -1)]


def test_expression_with_too_many_accesses_is_rejected():
    build, a = with_array(4)
    i = build.loop("i", 4)
    value = a[i]
    for _ in range(80):
        value += value  # 2^80 additions
    a[i] = value
    with pytest.raises(LimitError, match="too many accesses"):
        get_itervar_feature(build.done())


def test_deep_expressions_do_not_overflow_the_stack():
    build = NestBuilder()
    a = build.buffer("A", [4], kind=1)
    i = build.loop_var(build.open_loop("i", 4))
    one = left = right = build.float_(1.0)
    for _ in range(200_000):
        left = build.node(Op.OP_ADD, [left, one], code=2)
        right = build.node(Op.OP_ADD, [one, right], code=2)
    build.store(a, [i], build.node(Op.OP_ADD, [left, right], code=2))
    build.close_loop()
    assert get_itervar_feature(build.nest)[0][2] == ("_arith_", 400_001, 0, 0)


def test_too_many_accesses_in_too_many_loops_are_rejected():
    build, a = with_array(4)
    for n in range(2_500):
        build.loop(f"i{n}", 1)
    for _ in range(1_000):
        a[0] = 1.0
    with pytest.raises(LimitError):
        get_itervar_feature(build.done())


def test_itervar_set_returns_one_row_of_logarithms():
    assert isinstance(ITERVAR, NestFeatures)
    assert (ITERVAR.name, ITERVAR.version, ITERVAR.columns) == ("autotvm.itervar", 1, ())
    assert ITERVAR.needs == Needs.FLAT
    rows = ITERVAR.nest_rows(gemm(), gpu=False)
    assert (rows.shape, rows.dtype) == ((1, 138), np.float64)
    assert rows[0] == pytest.approx(flatten_itervar_feature(get_itervar_feature(gemm(), True)))
    assert rows[0, 0] == pytest.approx(math.log2(129))


EXTENTS = st.sampled_from([0, 1, 2, 3, 4, 7, 64, 2**31, -5])
TAGS = (Tag.BLOCK_X, Tag.BLOCK_Z, Tag.THREAD_X, Tag.THREAD_Y, Tag.VTHREAD)
LOOPS = st.sampled_from(
    [{}]
    + [{"kind": kind} for kind in (ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.UNROLLED)]
    + [{"kind": ForKind.THREAD_BINDING, "tag": tag} for tag in TAGS]
)
ARITHMETIC = st.sampled_from(
    [Op.OP_ADD, Op.OP_SUB, Op.OP_MUL, Op.OP_DIV, Op.OP_MOD, Op.OP_MAX, Op.OP_FLOORDIV]
)
INTEGERS = st.sampled_from([Op.OP_ADD, Op.OP_SUB, Op.OP_MUL, Op.OP_FLOORDIV, Op.OP_FLOORMOD])


@st.composite
def nests(draw):
    """A program: loops, some of them over one variable, and stores of expressions in them."""
    build = NestBuilder()
    names = ["A", "B", "A.local", "A"]
    buffers = [build.buffer(name, [64], code=code) for name in names for code in (2, 0)]
    constants = [build.int_(value) for value in (0, 1, -3, 16)]
    free = build.free_var("n")
    opened = []

    def variable():
        return build.loop_var(draw(st.sampled_from(opened))) if opened else free

    def index(depth):
        kind = draw(st.integers(0, 6 if depth else 2))
        if kind <= 1:
            return variable()
        if kind == 2:
            return draw(st.sampled_from(constants))
        if kind == 3:
            return build.node(Op.OP_MUL, [variable(), draw(st.sampled_from(constants))])
        if kind == 6:
            return load(depth)
        return build.node(draw(INTEGERS), [index(depth - 1), index(depth - 1)])

    def load(depth):
        return build.load(draw(st.sampled_from(buffers)), [index(depth - 1)])

    def value(depth):
        kind = draw(st.integers(0, 6 if depth else 1))
        if kind == 0:
            return build.float_(1.0)
        if kind <= 2:
            return load(2)
        if kind == 3:
            one = value(depth - 1)
            return build.node(Op.OP_CAST, [one], code=draw(st.sampled_from([0, 2, 4])))
        if kind == 4:
            parts = [value(depth - 1) for _ in range(3)]
            return build.node(Op.OP_SELECT, parts, code=2)
        if kind == 5:
            return build.call(draw(st.integers(0, 3)), [value(depth - 1), value(depth - 1)])
        one = value(depth - 1)
        other = one if draw(st.booleans()) else value(depth - 1)
        code = draw(st.sampled_from([0, 2, 2, 4]))
        return build.node(draw(ARITHMETIC), [one, other], code=code)

    def loop(depth):
        options = draw(LOOPS)
        extent = draw(EXTENTS) if draw(st.integers(0, 5)) else (index(1),)
        again = draw(st.sampled_from(opened)) if opened and not draw(st.integers(0, 3)) else -1
        number = build.open_loop(f"i{len(opened)}", extent, again=again, **options)
        opened.append(number)
        body(depth)
        build.close_loop()

    def body(depth):
        for _ in range(draw(st.integers(0, 3))):
            kind = draw(st.integers(0, 4))
            if kind <= 2 and depth:
                loop(depth - 1)
            elif kind == 3:
                build.open_condition(value(1))
                build.store(draw(st.sampled_from(buffers)), [index(2)], value(2))
                build.close_condition()
            else:
                build.store(draw(st.sampled_from(buffers)), [index(2)], value(3))

    body(5)
    return build.nest


@given(nests())
def test_features_equal_the_reference(nest):
    program = nest.dump()
    rows = get_itervar_feature(nest)
    assert rows == reference.features(program)
    for take_log in (False, True):
        wanted = flatten_itervar_feature(reference.features(program, take_log))
        found = get_itervar_feature_flatten(nest, take_log)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=0)
    assert len(get_flatten_name(rows)) == len(flatten_itervar_feature(rows))
    assert np.isfinite(get_buffer_curve_sample_flatten(nest, 3)).all()
