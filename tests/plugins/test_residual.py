"""Residuals: corrections of scores, which are made only if they help."""

from __future__ import annotations

import numpy as np
import pytest
from effort import long

from tunedb.models.metrics import pairwise_accuracy
from tunedb.plugins.metaschedule.cost_model import scoring

COLUMNS = 40


def workload(seed, n, *, factor=1.0, hidden=0.0, noise=0.0):
    """Return features, scores and throughput of n trials.

    The throughput is what a model knows, `factor` times, and what it does not know of columns 3 and
    7, `hidden` times; `noise` is in nobody's features.
    """
    random = np.random.default_rng(seed)
    features = random.normal(size=(n, COLUMNS)).astype(np.float32)
    features[:, 11] = 4.0  # says nothing
    features[:, 12] = features[:, 13]
    known = random.random(n)
    true = factor * known + hidden * (features[:, 3] - features[:, 7]) / 4
    true += noise * random.normal(size=n)
    true -= true.min()
    return features, known, true / true.max()


@pytest.mark.parametrize("seed", range(2))
def test_residual_corrects_unknown_effects_of_a_workload(seed):
    features, scores, throughput = workload(seed, 160, hidden=1.0)
    found, gain = scoring.fit_residual(features[:80], scores[:80], throughput[:80])
    assert found is not None
    before = pairwise_accuracy(throughput[80:], scores[80:])
    after = pairwise_accuracy(throughput[80:], found.corrected(features[80:], scores[80:]))
    assert after > before + 0.05
    # The promised gain was measured on trials that the fit had not seen.
    assert gain == pytest.approx(after - before, abs=0.1)


@pytest.mark.parametrize(("n", "noise"), [(32, 0.1), long(64, 0.0), long(64, 0.5)])
def test_fit_residual_rarely_corrects_a_perfect_model(n, noise):
    """Two standard errors let through one in forty."""
    found = [scoring.fit_residual(*workload(seed, n, noise=noise)) for seed in range(20)]
    assert sum(correction is not None for correction, _ in found) <= 2
    assert np.mean([gain for _, gain in found]) < 0.01


def test_fit_residual_ignores_the_scale_of_scores():
    features, scores, throughput = workload(0, 64)
    assert scoring.fit_residual(features, 100 * scores + 7, throughput)[0] is None


def test_fit_residual_returns_none_for_few_trials_and_equal_throughputs():
    features, scores, throughput = workload(0, scoring.LEAST, hidden=1.0)
    few = slice(scoring.LEAST - 1)
    assert scoring.fit_residual(features[few], scores[few], throughput[few]) == (None, 0.0)
    features, scores, _ = workload(0, 64)
    assert scoring.fit_residual(features, scores, np.zeros(64)) == (None, 0.0)


def test_residual_corrects_a_constant_model():
    features, _, throughput = workload(0, 160, factor=0.0, hidden=1.0)
    found, _ = scoring.fit_residual(features[:80], np.full(80, 0.3), throughput[:80])
    scores = found.corrected(features[80:], np.full(80, 0.3))
    assert pairwise_accuracy(throughput[80:], scores) > 0.9


def test_fit_residual_uses_only_the_last_trials():
    features, scores, throughput = workload(0, scoring.MOST + 50, hidden=1.0)
    shuffled = throughput.copy()
    shuffled[:50] = throughput[:50][::-1]
    one, _ = scoring.fit_residual(features, scores, throughput)
    other, _ = scoring.fit_residual(features, scores, shuffled)
    np.testing.assert_array_equal(one.weights, other.weights)


def test_corrections_do_not_extrapolate():
    features, scores, throughput = workload(0, 80, hidden=1.0)
    found, _ = scoring.fit_residual(features, scores, throughput)
    far = found.corrected(1000 * features, scores) - scores
    wanted = throughput - scores
    assert far.min() >= wanted.min() - 1e-12
    assert far.max() <= wanted.max() + 1e-12


def test_equal_trials_give_equal_corrections():
    first, again = (scoring.fit_residual(*workload(3, 100, hidden=1.0))[0] for _ in range(2))
    np.testing.assert_array_equal(first.weights, again.weights)
    assert (first.constant, first.slope) == (again.constant, again.slope)


def test_penalty_has_the_least_leave_one_out_error():
    """The reference refits without each trial in turn, for each penalty."""
    features, scores, throughput = workload(1, 40, hidden=0.7, noise=0.1)
    weights = np.maximum(throughput, scoring._FLOOR) ** 2
    weights /= weights.mean()
    root = np.sqrt(weights)[:, None]
    mean = np.average(features, axis=0, weights=weights)
    scale = np.sqrt(np.average((features - mean) ** 2, axis=0, weights=weights))
    scale[11], mean[11] = 1, features[0, 11]  # the one that does not vary
    x = root * (features - mean) / scale
    free = root * np.column_stack([np.ones(40), scores])
    y = root[:, 0] * throughput
    left = x - free @ np.linalg.lstsq(free, x, rcond=None)[0]
    unit = np.linalg.eigvalsh(left @ left.T).clip(0).mean()

    def solve(kept, penalty):
        both = np.hstack([free, x])[kept]
        price = np.diag([0.0] * 2 + [penalty * unit] * COLUMNS)
        return np.linalg.solve(both.T @ both + price, both.T @ y[kept])

    def error(penalty):
        found = 0.0
        for out in range(40):
            solved = solve(np.arange(40) != out, penalty)
            found += (y[out] - np.concatenate([free[out], x[out]]) @ solved) ** 2
        return found

    best = min(scoring._PENALTIES, key=error)
    assert scoring._PENALTIES[0] < best < scoring._PENALTIES[-1]
    wanted = solve(np.arange(40) >= 0, best)
    found = scoring._regress(features, scores, throughput)
    np.testing.assert_allclose(found.weights, wanted[2:], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose([found.constant, found.slope], wanted[:2], rtol=1e-6)
