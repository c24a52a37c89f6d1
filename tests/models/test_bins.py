"""Values that stand for their bins: XGBoost puts them where it puts what they stand for."""

from itertools import pairwise

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedb.models._xgboost import import_xgboost
from tunedb.models.distributed import Bins

xgboost = import_xgboost()

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
LARGEST = float(np.finfo(np.float32).max)

#: How a column's values are drawn: few, many, equal, at the ends of what there is.
VALUES = st.one_of(
    st.just(FINITE),
    st.just(st.floats(-1, 1, width=32)),
    st.just(st.sampled_from([-LARGEST, -1.0, -0.0, 0.0, 1e-45, 1.0, LARGEST])),
    st.lists(FINITE, min_size=1, max_size=3).map(st.sampled_from),
    st.just(st.integers(-300, 300).map(float)),
)


@st.composite
def columns(draw, rows):
    """Return an array of a few columns, and how many of its rows bins are made of."""
    count = draw(st.integers(2, rows))
    kinds = draw(st.lists(VALUES, min_size=1, max_size=4))
    made = [draw(st.lists(kind, min_size=count, max_size=count)) for kind in kinds]
    return np.array(made, np.float32).T.copy(), draw(st.integers(1, count))


def on_one_machine(rows, some, most):
    ref = xgboost.QuantileDMatrix(some, max_bin=most, nthread=1)
    return xgboost.QuantileDMatrix(rows, max_bin=most, nthread=1, ref=ref)


def bounds(matrix):
    """Return the bounds between the bins of each column."""
    begins, values = matrix.get_quantile_cut()
    return [values[first + 1 : end - 1].tolist() for first, end in pairwise(begins)]


def grown(matrix, most, seed):
    """Return the bytes of two trees that split wherever they may."""
    rng = np.random.default_rng(seed)
    gradients = rng.integers(-8, 8, (2, matrix.num_row())).astype(np.float32)
    options = {"max_bin": most, "max_depth": 8, "reg_lambda": 0, "min_child_weight": 0}
    booster = xgboost.Booster(options | {"base_score": 0.0, "nthread": 1}, [matrix])
    for number, gradient in enumerate(gradients):
        booster.boost(matrix, number, grad=gradient, hess=np.ones_like(gradient))
    return booster.save_raw("json")


def check(rows, count, most):
    expected = on_one_machine(rows, rows[:count], most)
    bins = Bins.of(rows[:count], most, threads=1)
    rounded = rows.copy()
    bins.round_down(rounded)
    # What XGBoost finds alone, as it would on any number of machines.
    found = xgboost.QuantileDMatrix(rounded, max_bin=most, nthread=1)
    assert bounds(found) == bounds(expected)
    assert grown(found, most, 0) == grown(expected, most, 0)
    assert all(len(np.unique(column)) <= most for column in rounded.T)
    again = rounded.copy()
    bins.round_down(again)
    assert np.array_equal(again, rounded)


@settings(max_examples=examples(60))
@given(columns(40), st.sampled_from([2, 4, 16, 256]))
def test_bins_are_those_of_one_machine(drawn, most):
    rows, count = drawn
    check(rows, count, most)


@pytest.mark.parametrize("most", [8, 256])
def test_bins_of_many_rows(most):
    """More values than bins, and more rows than sketches keep."""
    rng = np.random.default_rng(0)
    count = 20_000
    rows = np.stack(
        [
            rng.standard_normal(count),
            np.exp(10 * rng.standard_normal(count)),
            -(rng.random(count) ** 9) * LARGEST,
            np.full(count, -LARGEST),
            np.where(rng.random(count) < 0.999, 0, rng.random(count)),
            rng.integers(0, most, count),
            rng.integers(0, most + 1, count),
        ],
        axis=1,
    )
    check(rows.astype(np.float32), 3_000, most)


def test_by_hand():
    """Values 0, 1, 2 are bins below 1, below 2, and above."""
    bins = Bins.of(np.array([[0], [2], [1], [1]], np.float32), 256, threads=1)
    assert [one.tolist() for one in bins.least] == [[0, 1, 2]]
    rows = np.array([[-5], [0], [0.5], [1], [1.5], [2], [9]], np.float32)
    bins.round_down(rows)
    assert rows[:, 0].tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_a_column_of_one_value():
    bins = Bins.of(np.full((3, 1), 7, np.float32), 256, threads=1)
    rows = np.array([[-1], [7], [8]], np.float32)
    bins.round_down(rows)
    assert rows[:, 0].tolist() == [7, 7, 7]
