"""The prior of tilings."""

import math
import random
from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb.search.chance import draw
from tunedb.search.prior import TilePrior, tiles_of
from tunedb.search.tilings import tilings

RNG = random.Random(0)


@pytest.fixture
def learnt(traces):
    """A prior of two good programs: rows in tiles of 16, columns in vectors of 16."""
    drafts = [
        traces.matmul((4, 1, 16, 1), (2, 2, 1, 16), (16, 4)),
        traces.matmul((8, 1, 16, 1), (1, 4, 1, 16), (32, 4)),
    ]
    return TilePrior.from_drafts(drafts, [1.0, 0.5])


def test_tiles_of_returns_place_and_factors_of_each_tile(traces):
    draft = traces.matmul((4, 4, 2, 2), (1, 8, 1, 8), (16, 4))
    assert [*tiles_of(draft)] == [(0, (4, 4, 2, 2)), (1, (1, 8, 1, 8)), (0, (16, 4))]
    bare = draft.without_decision(min(draft.decisions))
    assert [*tiles_of(bare)] == [(1, (1, 8, 1, 8)), (0, (16, 4))]


@given(st.integers(1, 512), st.integers(1, 6), st.sampled_from([None, 0, 1, 5]))
def test_weights_are_positive_and_their_mean_is_one(traces, extent, levels, place):
    prior = TilePrior.from_drafts([traces.matmul()], [2.0])
    candidates = tilings(extent, levels, None, RNG)
    weights = prior.weigh(levels, candidates, place)
    assert len(weights) == len(candidates) and min(weights) >= 0.1
    assert sum(weights) / len(weights) == pytest.approx(1)
    for _ in range(2):  # computed, then remembered
        assert prior.cumulated(tuple(candidates), place) == [*accumulate(weights)]


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20), st.integers(0, 2**32))
def test_draw_equals_random_choices(weights, seed):
    sums, items = [*accumulate(weights)], range(len(weights))
    first, second = random.Random(seed), random.Random(seed)
    for _ in range(5):
        assert draw(first, items, sums) == second.choices(items, cum_weights=sums)[0]


def test_tilings_of_good_programs_are_likely(learnt):
    candidates = tilings(256, 4, 64, RNG)
    for place, good in ((0, (16, 1, 16, 1)), (1, (4, 4, 1, 16))):
        weights = learnt.weigh(4, candidates, place)
        ranked = sorted(zip(weights, candidates, strict=True), reverse=True)
        assert good in [one for _, one in ranked[:5]]
    at_rows = learnt.weigh(4, [(16, 1, 16, 1), (4, 4, 1, 16)], 0)
    assert at_rows[0] > 3 * at_rows[1]
    anywhere = learnt.weigh(4, [(16, 1, 16, 1), (4, 4, 1, 16)])
    assert anywhere[0] < 3 * anywhere[1]


def test_the_outermost_factor_counts_less(learnt):
    outer, inner = learnt.weigh(4, [(32, 1, 16, 1), (4, 1, 16, 8)], 0)
    assert outer > inner


def test_prior_prefers_nearest_tiling_far_from_all_programs(traces):
    prior = TilePrior.from_drafts([traces.matmul(k=(1, 2**10))], [1.0])
    near, far = prior.weigh(2, [(1, 8), (8, 1)])
    assert near > far


def test_programs_count_by_weight(traces):
    drafts = [traces.matmul(k=(64, 1)), traces.matmul(k=(1, 64))]
    first, second = TilePrior.from_drafts(drafts, [3.0, 1.0]).weigh(2, [(64, 1), (1, 64)])
    assert first > second
    useless = TilePrior.from_drafts(drafts, [1.0, 0.0]).weigh(2, [(64, 1), (1, 64)])
    assert useless[0] > 10 * useless[1]
    for weight in (-1.0, math.nan, math.inf):
        useless = TilePrior.from_drafts(drafts, [weight] * 2)
        assert useless.weigh(2, [(64, 1), (1, 64)]) == [1, 1]


def test_prior_weighs_tilings_of_unknown_levels_equally(learnt):
    assert learnt.weigh(3, [(64, 1, 1), (1, 1, 64)]) == [1, 1]
    assert learnt.weigh(4, []) == []


@given(st.integers(1, 4096), st.integers(1, 5), st.sampled_from([None, 1, 16, 64]), st.integers())
def test_drawn_tilings_are_legal(traces, extent, levels, most, seed):
    prior = TilePrior.from_drafts([traces.matmul()], [1.0])
    drawn = prior.draw(extent, levels, most, random.Random(seed))
    assert len(drawn) == levels and math.prod(drawn) == extent
    assert levels == 1 or most is None or drawn[-1] <= most
    assert drawn == prior.draw(extent, levels, most, random.Random(seed))


def test_drawn_tilings_follow_the_weights(learnt):
    rng = random.Random(3)
    drawn = Counter(tuple(learnt.draw(256, 4, 64, rng, 1)) for _ in range(2000))
    candidates = tilings(256, 4, 64, rng)
    weights = dict(zip(candidates, learnt.weigh(4, candidates, 1), strict=True))
    expected = {one: 2000 * weight / len(candidates) for one, weight in weights.items()}
    statistic = sum((drawn[one] - count) ** 2 / count for one, count in expected.items())
    # A chi-squared variable with that mean; its standard deviation is the root of twice that.
    freedom = len(candidates) - 1
    assert statistic < freedom + 6 * math.sqrt(2 * freedom)
