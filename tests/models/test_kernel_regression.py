"""Regression of few programs: equal to its formula, and better than a guess."""

import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedb.models.kernel_regression import KernelRegression, weight_beside_trees
from tunedb.models.metrics import pairwise_accuracy


def reference(rows, throughput, asked):
    """Return the posterior means by the formula, with loops."""
    rows, asked = rows.astype(float), asked.astype(float)
    columns = [
        column
        for column in range(rows.shape[1])
        if np.std(rows[:, column]) > 1e-6 * (1 + abs(np.mean(rows[:, column])))
    ]

    def standard(row):
        return [
            (row[column] - np.mean(rows[:, column])) / np.std(rows[:, column]) for column in columns
        ]

    def kernel(one, other):
        squares = [(a - b) ** 2 for a, b in zip(one, other, strict=True)]
        return math.exp(-sum(squares) / max(1, len(columns)) / (2 * 2.0**2))

    points = [standard(row) for row in rows]
    quality = [value**0.3 for value in throughput]
    level = sum(quality) / len(quality)
    covariance = [
        [kernel(a, b) + 0.1 * (i == j) for j, b in enumerate(points)] for i, a in enumerate(points)
    ]
    weights = np.linalg.solve(covariance, [value - level for value in quality])
    found = []
    for row in asked:
        point = [min(max(value, -5.0), 5.0) for value in standard(row)]
        parts = [w * kernel(point, other) for w, other in zip(weights, points, strict=True)]
        found.append(level + sum(parts))
    return found


@settings(max_examples=examples(30))
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(0, 5))
def test_scores_equal_the_formula(seed, count, columns):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 4, (count, columns)).astype(np.float32)
    asked = rng.integers(-30, 30, (5, columns)).astype(np.float32)
    throughput = rng.random(count)
    scores = KernelRegression.fit(rows, throughput).scores(asked)
    assert scores == pytest.approx(reference(rows, throughput, asked), abs=1e-6)


def test_regression_orders_unseen_programs():
    rng = np.random.default_rng(0)
    rows = rng.random((80, 4)).astype(np.float32)
    throughput = np.exp(-4 * np.abs(rows[:, 0] - 0.5) - rows[:, 1])
    model = KernelRegression.fit(rows[:40], throughput[:40] / throughput[:40].max())
    assert pairwise_accuracy(throughput[40:], model.scores(rows[40:])) > 0.75


def test_regression_ignores_constant_columns():
    rng = np.random.default_rng(1)
    rows = rng.random((20, 3)).astype(np.float32)
    rows[:, 1] = 1e6
    model = KernelRegression.fit(rows, rng.random(20))
    other = rows.copy()
    other[:, 1] = -7.0
    assert (model.scores(rows) == model.scores(other)).all()


def test_equal_programs_have_the_mean_as_score():
    rows = np.ones((5, 3), np.float32)
    model = KernelRegression.fit(rows, np.array([0.0, 0.25, 0.5, 0.75, 1.0]))
    mean = np.mean(np.array([0.0, 0.25, 0.5, 0.75, 1.0]) ** 0.3)
    assert model.scores(rows) == pytest.approx([mean] * 5)


def test_scores_of_distant_programs_are_finite():
    rng = np.random.default_rng(2)
    rows = rng.random((20, 3)).astype(np.float32)
    model = KernelRegression.fit(rows, rng.random(20))
    assert np.isfinite(model.scores(np.full((2, 3), 1e30, np.float32))).all()


@pytest.mark.parametrize(
    ("own", "others", "weight"),
    [(15, 0, 0.0), (16, 0, 0.5), (16, 128, 0.5), (16, 384, 0.25), (256, 0, 0.5), (257, 0, 0.0)],
)
def test_weight_beside_trees_depends_on_number_and_share_of_own_programs(own, others, weight):
    assert weight_beside_trees(own, others) == weight
