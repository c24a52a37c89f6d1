"""Bounds of index expressions: by hand, and against the plain Python reference."""

from __future__ import annotations

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nests import nests, stores
from reference_bounds import INF, Reference, Refused, coefficient

from tunedb.errors import FormatError, LimitError
from tunedb.features._bounds import bounds, coefficient_of
from tunedb.features._nest import NestBuilder, Op


def _loops(*extents, low=0):
    build = NestBuilder()
    return build, [build.loop_var(build.open_loop(f"i{k}", n, low)) for k, n in enumerate(extents)]


def _tile(build, outer, factor, inner):
    return build.node(Op.OP_ADD, [build.node(Op.OP_MUL, [outer, build.int_(factor)]), inner])


class TestByHand:
    def test_ranged_loops_widen_the_bounds_of_a_tile(self):
        build, (i, j) = _loops(4, 8)
        index = _tile(build, i, 8, j)
        assert bounds(build.nest, index)[:2] == (0, 0)
        assert bounds(build.nest, index, [1])[:2] == (0, 7)
        assert bounds(build.nest, index, [0, 1])[:2] == (0, 31)

    def test_remainder_of_fused_loop_is_its_minimum_unless_exact(self):
        build, (fused,) = _loops(32, low=3)
        eight = build.int_(8)
        above = build.node(Op.OP_FLOORDIV, [fused, eight])
        below = build.node(Op.OP_FLOORMOD, [fused, eight])
        assert bounds(build.nest, above, [0])[:2] == (0, 4)
        # TVM's modular analysis knows only the minimum of the loop, 3.
        assert bounds(build.nest, below, [0])[:2] == (3, 3)
        assert bounds(build.nest, below, [0], exact=True)[:2] == (0, 7)

    def test_exact_remainder_keeps_the_step_of_its_index(self):
        build, (i, j) = _loops(64, 4)
        index = _tile(build, i, 4, build.int_(1))
        rest = build.node(Op.OP_FLOORMOD, [index, build.int_(16)])
        assert bounds(build.nest, rest, [0, 1], exact=True) == (1, 13, 4, 1)
        assert bounds(build.nest, j, [1], exact=True) == (0, 3, 1, 0)

    def test_follows_025_bounds_remainder_as_tvm_0_25(self):
        """In TVM 0.25 only a known divisor of the dividend bounds the remainder."""
        build, (i,) = _loops(200)
        rest = build.node(Op.OP_FLOORMOD, [i, build.int_(14)])
        rest = build.node(Op.OP_FLOORMOD, [rest, build.int_(4)])
        assert bounds(build.nest, rest)[:2] == (0, 0)
        build.nest.follows_025 = True
        assert bounds(build.nest, rest)[:2] == (0, 2)

    def test_type_bounds_unknown_values(self):
        build = NestBuilder()
        assert bounds(build.nest, build.free_var("n"))[:2] == (-(2**31), 2**31 - 1)
        assert bounds(build.nest, build.free_var("m", bits=64))[:2] == (-INF, INF)
        assert bounds(build.nest, build.free_var("u", code=1, bits=8))[:2] == (0, 255)
        assert bounds(build.nest, build.free_var("b", code=6, bits=8))[:2] == (0, 1)
        assert bounds(build.nest, build.float_(2.0))[:2] == (-INF, INF)

    def test_sums_and_products_saturate_at_infinity(self):
        build, _ = _loops()
        large = build.int_(2**62, bits=64)
        n = build.free_var("n", bits=64)
        twice = build.node(Op.OP_ADD, [large, large], bits=64)
        assert bounds(build.nest, twice)[:2] == (INF, INF)
        product = build.node(Op.OP_MUL, [large, build.int_(-4, bits=64)], bits=64)
        assert bounds(build.nest, product)[:2] == (-INF, -INF)
        assert bounds(build.nest, build.node(Op.OP_SUB, [n, n], bits=64))[:2] == (-INF, INF)

    def test_zero_divisor_is_rejected_if_constant_and_skipped_in_ranges(self):
        build, (i,) = _loops(4)
        with pytest.raises(FormatError, match="divides by zero"):
            bounds(build.nest, build.node(Op.OP_FLOORDIV, [i, build.int_(0)]))
        # Over its range the divisor is taken for at least 1.
        index = build.node(Op.OP_FLOORDIV, [build.int_(6), i])
        assert bounds(build.nest, index, [0], exact=True)[:2] == (2, 6)

    def test_condition_of_select_may_divide_by_zero(self):
        build, (i,) = _loops(4)
        broken = build.node(Op.OP_FLOORDIV, [i, build.int_(0)])
        test = build.node(Op.OP_LT, [broken, i], code=6, bits=8)
        assert bounds(build.nest, build.node(Op.OP_SELECT, [test, i, i]), [0])[:2] == (0, 3)

    def test_large_shifts_give_0_and_masks_of_all_bits_keep_bounds(self):
        build, (i,) = _loops(4)
        minus_one = build.node(Op.OP_SUB, [build.int_(0, bits=64), build.int_(1, bits=64)], bits=64)
        for count in (build.int_(63, bits=64), build.int_(127, bits=64), minus_one):
            shift = build.node(Op.OP_SHR, [i, count], bits=64)
            assert bounds(build.nest, shift, [0])[:2] == (0, 0)
        for mask in (build.int_(63), build.int_(-1)):
            assert bounds(build.nest, build.node(Op.OP_BITAND, [i, mask]), [0])[:2] == (0, 3)

    def test_bounds_of_ramp_and_broadcast_cover_all_lanes(self):
        build, (i,) = _loops(4)
        ramp = build.node(Op.OP_RAMP, [i, build.int_(3), build.int_(8)], lanes=8)
        assert bounds(build.nest, ramp, [0])[:2] == (0, 24)
        assert bounds(build.nest, build.node(Op.OP_BROADCAST, [i], lanes=8), [0])[:2] == (0, 3)

    def test_bounds_rejects_unknown_nodes_and_loops(self):
        build, (i,) = _loops(4)
        with pytest.raises(IndexError, match="no node 99"):
            bounds(build.nest, 99)
        with pytest.raises(IndexError, match="no loop 7"):
            bounds(build.nest, i, [7])


class TestCoefficients:
    def test_coefficient_of_returns_factor_of_loop_variable(self):
        build, (i, j) = _loops(4, 8)
        assert coefficient_of(build.nest, i, 0) == 1
        assert coefficient_of(build.nest, i, 1) == 0
        index = _tile(build, i, 4, j)
        assert [coefficient_of(build.nest, index, loop) for loop in (0, 1)] == [4, 1]

    def test_coefficient_of_depends_on_order_of_operands_as_in_tvm(self):
        build, (i, j) = _loops(4, 8)
        index = build.node(Op.OP_ADD, [j, build.node(Op.OP_MUL, [i, build.int_(4)])])
        assert coefficient_of(build.nest, index, 1) == 4
        both = build.node(Op.OP_ADD, [i, j])
        again = build.node(Op.OP_FLOORDIV, [both, i])
        assert coefficient_of(build.nest, again, 0) == 2
        assert coefficient_of(build.nest, build.node(Op.OP_MUL, [both, build.int_(8)]), 0) == 1

    def test_coefficient_of_rejects_too_large_tree_of_shared_nodes(self):
        build, (i,) = _loops(4)
        node = i
        for _ in range(40):
            node = build.node(Op.OP_ADD, [node, node])
        assert bounds(build.nest, node, [0])[:2] == (0, 3 * 2**40)
        with pytest.raises(LimitError, match="too large"):
            coefficient_of(build.nest, node, 0)


def test_deep_expressions_do_not_overflow_the_stack():
    build, (i,) = _loops(4)
    node = i
    for _ in range(200_000):
        node = build.node(Op.OP_ADD, [node, build.int_(1)])
    assert bounds(build.nest, node, [0])[:2] == (200_000, 200_003)
    assert coefficient_of(build.nest, node, 0) == 1


@settings(max_examples=examples(120), suppress_health_check=list(HealthCheck))
@given(nests(), st.booleans(), st.integers(0, 6))
def test_bounds_and_coefficients_equal_the_reference(nest, exact, outermost):
    dump, found = stores(nest)
    for store in found:
        for node in store["indices"]:
            ranged = [loop for loop in range(nest.n_loops) if loop >= outermost]
            assert _ours(nest, node, ranged, exact) == _reference(dump, node, ranged, exact)
            for loop in range(nest.n_loops):
                var = dump["loops"][loop]["var"]
                assert coefficient_of(nest, node, loop) == coefficient(dump, node, var)


def _ours(nest, node, ranged, exact):
    try:
        return bounds(nest, node, ranged, exact=exact)
    except FormatError:
        return None


def _reference(dump, node, ranged, exact):
    state = Reference(dump, exact)
    try:
        for loop in range(len(dump["loops"])):
            state.bind_min(loop)
        if not exact:
            state.minima = dict(state.bounds)
        for loop in sorted(ranged, reverse=True):
            state.bind_range(loop)
        return (*state.bound(node), *state.modular(node))
    except Refused:
        return None
