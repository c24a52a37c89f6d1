"""Ways to write an extent as a product of factors."""

import math
import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb.search import tilings as module
from tunedb.search.tilings import divisors, nearest_tiling, tilings

extents = st.one_of(
    st.integers(1, 200), st.integers(0, 12).map(lambda n: 2**n), st.integers(1, 5000)
)
factors = st.lists(st.integers(1, 64), min_size=1, max_size=5).map(tuple)


def brute_force_tilings(extent, levels, limit):
    """Return all tilings of an extent whose last factor is within a limit."""
    every = product(divisors(extent), repeat=levels)
    return {one for one in every if math.prod(one) == extent and one[-1] <= limit}


@given(st.integers(1, 3000))
def test_divisors_returns_all_divisors_in_order(number):
    assert divisors(number) == tuple(n for n in range(1, number + 1) if number % n == 0)


@given(st.integers(1, 96), st.integers(1, 4), st.sampled_from([None, 0, 1, 2, 16, 64]))
def test_all_tilings_are_listed_once(extent, levels, most):
    found = tilings(extent, levels, most, random.Random(0))
    assert set(found) == brute_force_tilings(extent, levels, most or extent)
    assert len(found) == len(set(found))


def test_tilings_returns_a_random_sample_of_very_many():
    extent = 2**12 * 3**4 * 5
    found = tilings(extent, 5, 16, random.Random(0))
    assert 1000 < len(found) == len(set(found)) <= module.MOST_LISTED
    assert all(math.prod(one) == extent and one[-1] <= 16 for one in found)
    # Any level gets some of each prime.
    assert all(len({one[level] for one in found}) > 4 for level in range(5))


@given(factors, extents, st.sampled_from([None, 1, 16, 64]))
def test_nearest_tiling_has_the_given_extent_and_bound(wanted, extent, most):
    found = nearest_tiling(wanted, extent, most)
    if found is None:
        assert len(wanted) == 1 and extent > most
        return
    assert (len(found), math.prod(found)) == (len(wanted), extent)
    assert most is None or found[-1] <= most


@given(factors)
def test_nearest_tiling_keeps_tiling_that_fits(wanted):
    assert nearest_tiling(wanted, math.prod(wanted), None) == wanted


@given(factors.filter(lambda one: len(one) < 4), st.integers(1, 96), st.sampled_from([None, 8]))
def test_nearest_tiling_has_the_least_distance(wanted, extent, most):
    def cost(one):
        pairs = enumerate(zip(one, wanted, strict=True))
        return sum(4**level * math.log2(left / right) ** 2 for level, (left, right) in pairs)

    every = brute_force_tilings(extent, len(wanted), most or extent)
    found = nearest_tiling(wanted, extent, most)
    assert (found is None) == (not every)
    if every:
        assert cost(found) == pytest.approx(min(map(cost, every)))


@pytest.mark.parametrize(
    ("wanted", "extent", "expected"),
    [
        # The outermost level takes what the workload has grown, and gives first.
        ((8, 1, 4, 16), 1024, (16, 1, 4, 16)),
        ((8, 1, 4, 16), 768, (12, 1, 4, 16)),
        ((8, 1, 4, 16), 64, (1, 1, 4, 16)),
        # Then the next one; vectors give last.
        ((8, 4, 2, 16), 32, (1, 1, 2, 16)),
        # Other primes: 20 is nearer to 16 than 10, as a ratio.
        ((7, 4, 2, 16), 1000, (5, 5, 2, 20)),
        ((4, 16), 7, (1, 7)),
        ((32, 4), 1, (1, 1)),
    ],
)
def test_nearest_tiling_changes_outer_levels_first(wanted, extent, expected):
    assert nearest_tiling(wanted, extent, 64) == expected
