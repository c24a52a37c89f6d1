"""Bounds of index expressions: by hand, and against the plain Python reference."""

from __future__ import annotations

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nests import Build, nests, stores
from reference_bounds import INF, Reference, Refused, coefficient

from tunedb.errors import FormatError, LimitError
from tunedb.features._bounds import bounds, coefficient_of
from tunedb.features._nest import Op


def _loops(*extents, low=0):
    build = Build()
    return build, [build.loop(f"i{k}", n, min=low) for k, n in enumerate(extents)]


def _range(node, *args, **options):
    return bounds(node.build.nest, node, *args, **options)[:2]


class TestByHand:
    def test_remainder_of_fused_loop_is_its_minimum_unless_exact(self):
        _, (fused,) = _loops(32, low=3)
        assert _range(fused // 8, [0]) == (0, 4)
        # TVM's modular analysis knows only the minimum of the loop, 3.
        assert _range(fused % 8, [0]) == (3, 3)
        assert _range(fused % 8, [0], exact=True) == (0, 7)

    def test_exact_remainder_keeps_the_step_of_its_index(self):
        build, (i, j) = _loops(64, 4)
        assert bounds(build.nest, (i * 4 + 1) % 16, [0, 1], exact=True) == (1, 13, 4, 1)
        assert bounds(build.nest, j, [1], exact=True) == (0, 3, 1, 0)

    def test_follows_025_bounds_remainder_as_tvm_0_25(self):
        """In TVM 0.25 only a known divisor of the dividend bounds the remainder."""
        build, (i,) = _loops(200)
        rest = i % 14 % 4
        assert _range(rest) == (0, 0)
        build.nest.follows_025 = True
        assert _range(rest) == (0, 2)

    def test_type_bounds_unknown_values(self):
        build = Build()
        assert _range(build.free_var("n")) == (-(2**31), 2**31 - 1)
        assert _range(build.free_var("m", bits=64)) == (-INF, INF)
        assert _range(build.free_var("u", code=1, bits=8)) == (0, 255)
        assert _range(build.free_var("b", code=6, bits=8)) == (0, 1)
        assert _range(build.constant(2.0)) == (-INF, INF)

    def test_sums_and_products_saturate_at_infinity(self):
        build = Build()
        large, n = build.constant(2**62, bits=64), build.free_var("n", bits=64)
        assert _range(large + large) == (INF, INF)
        assert _range(large * build.constant(-4, bits=64)) == (-INF, -INF)
        assert _range(n - n) == (-INF, INF)

    def test_zero_divisor_is_rejected_if_constant_and_skipped_in_ranges(self):
        build, (i,) = _loops(4)
        with pytest.raises(FormatError, match="divides by zero"):
            _range(i // 0)
        # Over its range the divisor is taken for at least 1.
        assert _range(build.constant(6) // i, [0], exact=True) == (2, 6)

    def test_condition_of_select_may_divide_by_zero(self):
        build, (i,) = _loops(4)
        chosen = build.op(Op.OP_SELECT, i // 0 < i, i, i, code=0, bits=32)
        assert _range(chosen, [0]) == (0, 3)

    def test_large_shifts_give_0_and_masks_of_all_bits_keep_bounds(self):
        build, (i,) = _loops(4)
        zero, one = build.constant(0, bits=64), build.constant(1, bits=64)
        for count in (build.constant(63, bits=64), build.constant(127, bits=64), zero - one):
            assert _range(build.op(Op.OP_SHR, i, count, bits=64), [0]) == (0, 0)
        for mask in (63, -1):
            assert _range(build.op(Op.OP_BITAND, i, mask), [0]) == (0, 3)

    def test_bounds_of_ramp_and_broadcast_cover_all_lanes(self):
        build, (i,) = _loops(4)
        assert _range(build.op(Op.OP_RAMP, i, 3, 8, lanes=8), [0]) == (0, 24)
        assert _range(build.op(Op.OP_BROADCAST, i, lanes=8), [0]) == (0, 3)

    def test_bounds_rejects_unknown_nodes_and_loops(self):
        build, (i,) = _loops(4)
        with pytest.raises(IndexError, match="no node 99"):
            bounds(build.nest, 99)
        with pytest.raises(IndexError, match="no loop 7"):
            bounds(build.nest, i, [7])


def test_coefficient_of_rejects_too_large_tree_of_shared_nodes():
    build, (node,) = _loops(4)
    for _ in range(40):
        node += node
    assert _range(node, [0]) == (0, 3 * 2**40)
    with pytest.raises(LimitError, match="too large"):
        coefficient_of(build.nest, node, 0)


def test_deep_expressions_do_not_overflow_the_stack():
    build, (node,) = _loops(4)
    one = build.int_(1)
    for _ in range(200_000):
        node = build.node(Op.OP_ADD, [node, one])
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
