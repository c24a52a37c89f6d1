"""Figures of a ranking, against plain definitions averaged over every order of ties."""

from fractions import Fraction
from itertools import combinations, pairwise, permutations
from math import comb

import numpy as np
import pytest
from effort import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tunedb.errors import UsageError
from tunedb.models import metrics
from tunedb.models.metrics import FIGURES, TRIALS, chance, measure, peak_curve


def pools(most, speeds, scores):
    """Return a strategy of (throughputs, scores) of from two to `most` programs."""

    def of(n):
        sized = {"min_size": n, "max_size": n}
        return st.tuples(st.lists(speeds, **sized), st.lists(scores, **sized))

    return st.integers(2, most).flatmap(of)


few = pools(6, st.sampled_from([0.0, 0.25, 0.5, 0.92, 0.96, 1.0]), st.integers(0, 3).map(float))
many = pools(80, st.integers(0, 12).map(float), st.integers(-9, 9).map(float))


def expected(scores, of_order):
    """Return the mean of something over every order of programs in which scores descend."""
    found = [
        of_order(list(order))
        for order in permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in pairwise(order))
    ]
    assert found
    return np.mean(found)


def first_reaching(y, order, share):
    return next(i for i, one in enumerate(order, 1) if y[one] / max(y) >= share)


def best_of(y, order, k):
    return max(y[i] for i in order[:k]) / max(y)


def found_of(y, order, k):
    kth = sorted(y)[-k]
    return sum(y[i] >= kth for i in order[:k]) / k


def pairs_in_order(y, scores):
    """Return the definition of pairwise accuracy, pair by pair."""
    right = [
        Fraction(1, 2) if a == b else Fraction(int((a < b) == (y[i] < y[j])))
        for (i, a), (j, b) in combinations(enumerate(scores), 2)
        if y[i] != y[j]
    ]
    return float(sum(right) / len(right))


@given(few)
@settings(max_examples=examples(60))
def test_each_figure_is_its_mean_over_all_orders_of_equal_scores(pool):
    y, scores = pool
    assume(min(y) < max(y))
    found = measure(np.array(y), np.array(scores))
    n = len(y)
    k = metrics.recall_size(np.array(y))
    plain = {
        "pairwise": pairs_in_order(y, scores),
        "top1": expected(scores, lambda order: best_of(y, order, 1)),
        "top5": expected(scores, lambda order: best_of(y, order, 5)),
        "recall30": expected(scores, lambda order: found_of(y, order, k)),
        "trials90": expected(scores, lambda order: first_reaching(y, order, 0.90)),
        "trials95": expected(scores, lambda order: first_reaching(y, order, 0.95)),
    }
    for name, value in plain.items():
        assert getattr(found, name) == pytest.approx(value), name
    curve = [expected(scores, lambda order, k=k: best_of(y, order, k)) for k in range(1, n + 1)]
    peaks = np.cumsum(curve + [1.0] * 2) / np.arange(1, n + 3)
    assert peak_curve(np.array(y), np.array(scores), n + 2) == pytest.approx(peaks)


@given(many)
def test_pairwise_accuracy_ranks_and_spearman_equal_references(pool):
    from scipy import stats

    y, scores = map(np.array, pool)
    assume(len(set(pool[0])) > 1)
    assert metrics.pairwise_accuracy(y, scores) == pytest.approx(pairs_in_order(*pool))
    assert np.array_equal(metrics.mean_ranks(y), stats.rankdata(y) - 1)
    if len(set(pool[1])) > 1:
        rho = stats.spearmanr(y, scores).statistic
        assert metrics.spearman(y, scores) == pytest.approx(rho)
    else:
        assert metrics.spearman(y, scores) == 0.0


@pytest.mark.parametrize("n", [7, 64, 500])
def test_chance_equals_the_closed_form_of_a_random_order(n):
    rng = np.random.default_rng(n)
    y = np.round(rng.random(n), 2) + 0.01
    y[:3] = 0
    found = chance(y)
    share = np.sort(y)[::-1] / y.max()
    good = (share >= 0.9).sum(), (share >= 0.95).sum()
    k = metrics.recall_size(y)
    # The i-th best is the best of 5 with probability C(n - 1 - i, 4) / C(n, 5).
    top5 = sum(share[i] * comb(n - 1 - i, 4) for i in range(n)) / comb(n, 5)
    assert found.pairwise == pytest.approx(0.5)
    assert found.top1 == pytest.approx(share.mean())
    assert found.top5 == pytest.approx(top5)
    assert found.trials90 == pytest.approx((n + 1) / (good[0] + 1))
    assert found.trials95 == pytest.approx((n + 1) / (good[1] + 1))
    assert found.recall30 == pytest.approx((y >= np.sort(y)[-k]).mean())
    assert found.spearman == 0.0


def test_constant_scores_have_the_figures_of_chance():
    """A stable sort would rank this pool well: its best programs come first."""
    y = np.linspace(1, 0.01, 200)
    assert metrics.row(measure(y, np.full(200, 7.0))) == pytest.approx(metrics.row(chance(y)))
    assert chance(y).top1 < 0.6
    assert chance(y).trials90 > 9


def test_perfect_order_has_1_in_all_figures_and_skill_1():
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(40.0), 3))
    perfect, random = metrics.row(measure(y, y)), metrics.row(chance(y))
    assert perfect == pytest.approx(np.ones(len(FIGURES)))
    assert metrics.skill(perfect, random) == pytest.approx(np.ones(len(FIGURES)))
    assert metrics.skill(random, random) == pytest.approx(np.zeros(len(FIGURES)))
    assert np.isnan(metrics.skill(np.array(1.0), np.array(1.0)))
    # Fewer trials are better, more of all else.
    worse = metrics.skill(metrics.row(measure(y, -y)), random)
    assert (worse < 0).all()
    assert set(FIGURES) > TRIALS


def test_recall_size_shrinks_for_small_pools_and_excludes_failures():
    sizes = {n: metrics.recall_size(np.ones(n)) for n in (4000, 120, 64, 2)}
    assert sizes == {4000: 30, 120: 30, 64: 16, 2: 1}
    y = np.zeros(64)
    y[:3] = 0.5, 0.7, 1.0
    assert metrics.recall_size(y) == 3
    assert measure(y, y).recall30 == 1.0


def test_pairwise_accuracy_handles_60000_programs():
    """A quadratic algorithm would take gigabytes."""
    rng = np.random.default_rng(0)
    y = rng.random(60_000)
    assert metrics.pairwise_accuracy(y, y) == 1.0
    assert metrics.pairwise_accuracy(y, -y) == 0.0
    assert metrics.pairwise_accuracy(y, rng.random(60_000)) == pytest.approx(0.5, abs=0.01)


def test_pools_of_equally_fast_programs_are_not_rankable():
    assert np.isnan(metrics.pairwise_accuracy(np.ones(3), np.arange(3.0)))
    for y in ([0.5, 0.5], [0.0, 0.0, 0.0], [1.0]):
        assert not metrics.is_rankable(np.array(y))
        with pytest.raises(UsageError, match="nothing to rank"):
            chance(np.array(y))
    assert metrics.is_rankable(np.array([0.0, 0.5]))


@pytest.mark.parametrize(
    ("scores", "why"),
    [
        ([1.0, np.nan, 2.0], "NaN or infinite"),
        ([1.0, np.inf, 2.0], "NaN or infinite"),
        ([1.0, 2.0], "2 scores for 3 programs"),
    ],
)
def test_measure_rejects_non_finite_and_missing_scores(scores, why):
    with pytest.raises(UsageError, match=why):
        measure(np.array([0.1, 0.5, 1.0]), np.array(scores))


def test_noise_floor_is_perfect_without_noise_and_falls_with_it():
    y = np.array([0.0, *np.linspace(0.9, 1.0, 63)])
    exact = metrics.noise_floor(y, np.zeros(5))
    assert metrics.row(exact) == pytest.approx(np.ones(len(FIGURES)))
    deviations = np.log([0.97, 1.03])
    found = metrics.noise_floor(y, deviations)
    assert found == metrics.noise_floor(y, deviations)
    assert 0.5 < found.pairwise < 0.95
    # Two in three are within 3 %: what looks best is nearly the best.
    assert 0.94 < found.top1 < 1.0 <= found.trials90
    louder = metrics.noise_floor(y, np.log([0.7, 1.3]))
    assert louder.pairwise < found.pairwise
