import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedb.models.kernel_regression import KernelRegression, share_of_trees
from tunedb.models.metrics import pairwise_accuracy


def reference(rows, throughput, trees, share, asked, trees_of_asked):
    """Return the posterior means by the formula, with loops."""
    rows, asked = rows.astype(float), asked.astype(float)
    levels = [(column, np.mean(rows[:, column])) for column in range(rows.shape[1])]
    spreads = [(i, mean, np.std(rows[:, i])) for i, mean in levels]
    used = [(i, mean, std) for i, mean, std in spreads if std > 1e-6 * (1 + abs(mean))]

    def standard(row):
        return [(row[i] - mean) / std for i, mean, std in used]

    def kernel(one, other):
        squares = [(a - b) ** 2 for a, b in zip(one, other, strict=True)]
        return math.exp(-sum(squares) / max(1, len(used)) / (2 * 0.5**2))

    points = [standard(row) for row in rows]
    differences = [y**0.3 - share * score for y, score in zip(throughput, trees, strict=True)]
    level = sum(differences) / len(differences)
    covariance = [
        [kernel(a, b) + 0.3 * (i == j) for j, b in enumerate(points)] for i, a in enumerate(points)
    ]
    weights = np.linalg.solve(covariance, [value - level for value in differences])
    found = []
    for row, score in zip(asked, trees_of_asked, strict=True):
        point = [min(max(value, -5.0), 5.0) for value in standard(row)]
        parts = [w * kernel(point, other) for w, other in zip(weights, points, strict=True)]
        found.append(share * score + level + sum(parts))
    return found


@settings(max_examples=examples(30))
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(0, 5))
def test_scores_equal_the_formula(seed, count, columns):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 4, (count, columns)).astype(np.float32)
    asked = rng.integers(-30, 30, (5, columns)).astype(np.float32)
    throughput, trees, trees_of_asked = rng.random(count), rng.random(count), rng.random(5)
    share = rng.random()
    scores = KernelRegression.fit(rows, throughput, trees, share).scores(asked, trees_of_asked)
    formula = reference(rows, throughput, trees, share, asked, trees_of_asked)
    assert scores == pytest.approx(formula, abs=1e-6)


def test_regression_orders_unseen_programs():
    rng = np.random.default_rng(0)
    rows = rng.random((80, 4)).astype(np.float32)
    throughput = np.exp(-4 * np.abs(rows[:, 0] - 0.5) - rows[:, 1])
    best, none = throughput[:40].max(), np.zeros(40)
    model = KernelRegression.fit(rows[:40], throughput[:40] / best, none, 1.0)
    assert pairwise_accuracy(throughput[40:], model.scores(rows[40:], none)) > 0.75
    # A mean function that knows one of two columns makes it better than either.
    expected = -0.3 * rows[:, 1]
    model = KernelRegression.fit(rows[:40], throughput[:40] / best, expected[:40], 1.0)
    both = pairwise_accuracy(throughput[40:], model.scores(rows[40:], expected[40:]))
    assert both > pairwise_accuracy(throughput[40:], expected[40:]) + 0.1
    assert both > 0.8


def test_regression_ignores_constant_columns_and_limits_distances():
    rng = np.random.default_rng(1)
    rows = rng.random((20, 3)).astype(np.float32)
    rows[:, 1] = 1e6
    none = np.zeros(20)
    model = KernelRegression.fit(rows, rng.random(20), none, 1.0)
    other = rows.copy()
    other[:, 1] = -7.0
    assert (model.scores(rows, none) == model.scores(other, none)).all()
    assert np.isfinite(model.scores(np.full((2, 3), 1e30, np.float32), none[:2])).all()


@pytest.mark.parametrize(
    ("own", "others", "share"),
    [(16, 0, 0.5), (16, 128, 0.5), (16, 384, 0.75), (1, 4000, 500 / 501)],
)
def test_share_of_trees_depends_on_number_of_own_programs(own, others, share):
    assert share_of_trees(own, others) == pytest.approx(share)
