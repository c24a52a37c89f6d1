import itertools
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedb.errors import NotFoundError
from tunedb.models import aggregation
from tunedb.models.aggregation import AGGREGATED, PACK_SUM, row_model, segmented

ROWS = np.array([[1, -3], [3, 0.5], [0, 2]], np.float32)


def starts_of(sizes):
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def test_pack_sum_returns_rows_unchanged():
    starts = starts_of([2, 1])
    rows, at = PACK_SUM.rows(ROWS, starts)
    assert rows is ROWS
    assert at is starts
    assert PACK_SUM.columns(("a", "b")) == ("a", "b")


def test_aggregated_returns_sums_maxima_log_sums_and_row_counts():
    rows, at = AGGREGATED.rows(ROWS, starts_of([2, 0, 1]))
    assert rows.dtype == np.float32
    assert at.tolist() == [0, 1, 2, 3]
    # 2^1 - 1 + 2^3 - 1 = 8; -(2^3 - 1) + (2^0.5 - 1) = -6.5858.
    first = [4, -2.5, 3, 0.5, math.log2(9), -math.log2(1 + 7 - (math.sqrt(2) - 1)), 2]
    np.testing.assert_allclose(rows[0], first, rtol=1e-6)
    assert rows[1].tolist() == [0] * 7
    np.testing.assert_allclose(rows[2], [0, 2, 0, 2, 0, 2, 1], rtol=1e-6)
    names = ("a.sum", "b.sum", "a.max", "b.max", "a.log_sum", "b.log_sum", "rows")
    assert AGGREGATED.columns(("a", "b")) == names


def test_aggregated_rows_are_finite():
    """XGBoost rejects infinities; a logarithmic sum counts numbers above 100 as 100."""
    rows = np.array([[3e38, -3e38], [101, -1e6], [3e38, -3e38], [3e38, -3e38]], np.float32)
    made = AGGREGATED.rows(rows, starts_of([2, 2]))[0]
    assert made[0, 4:6].tolist() == [101, -101]
    greatest = np.finfo(np.float32).max
    assert made[1, :4].tolist() == [greatest, -greatest, *rows[0].tolist()]
    assert np.isfinite(made[0, 2:]).all() and np.isfinite(made[1]).all()


sizes_ = st.lists(st.integers(0, 4), max_size=8)


@given(sizes_, st.integers(0, 2**32 - 1), st.integers(1, 6))
@settings(max_examples=examples(60))
def test_aggregated_equals_reference_for_any_block_size(sizes, seed, block):
    rng = np.random.default_rng(seed)
    starts = starts_of(sizes)
    rows = rng.normal(0, 4, (starts[-1], 3)).astype(np.float32)
    whole = AGGREGATED.rows(rows, starts)[0]
    before = aggregation._BLOCK
    aggregation._BLOCK = block
    try:
        assert AGGREGATED.rows(rows, starts)[0].tobytes() == whole.tobytes()
    finally:
        aggregation._BLOCK = before
    for number, (begin, end) in enumerate(itertools.pairwise(starts)):
        own = rows[begin:end].astype(float)
        if not len(own):
            assert not whole[number].any()
            continue
        sums = (np.sign(own) * (np.exp2(np.abs(own)) - 1)).sum(0)
        logs = np.sign(sums) * np.log2(1 + np.abs(sums))
        expected = [*own.sum(0), *own.max(0), *logs, len(own)]
        # Where the sum of powers all but vanishes, what is left is their rounding.
        slack = 1e-6 * np.exp2(np.abs(own)).sum()
        np.testing.assert_allclose(whole[number], expected, rtol=1e-5, atol=max(1e-5, slack))


@given(sizes_, st.integers(0, 2**32 - 1))
@settings(max_examples=examples(60))
def test_segmented_equals_reference(sizes, seed):
    starts = starts_of(sizes)
    # Numbers behind the last segment belong to no segment.
    values = np.random.default_rng(seed).integers(-9, 9, int(starts[-1]) + 2).astype(float)
    parts = [values[begin:end] for begin, end in itertools.pairwise(starts)]
    assert segmented(np.add, values, starts).tolist() == [part.sum() for part in parts]
    largest = [part.max() if len(part) else 0 for part in parts]
    assert segmented(np.maximum, values, starts).tolist() == largest


def test_row_model_returns_pack_sum_if_each_program_has_one_row():
    assert row_model("aggregated", np.array([1, 1, 1])) is PACK_SUM
    assert row_model("aggregated", np.array([1, 2, 1])) is AGGREGATED
    assert row_model("pack-sum", np.array([1, 2, 1])) is PACK_SUM
    assert row_model("aggregated", np.array([], np.int64)) is AGGREGATED
    with pytest.raises(NotFoundError, match="no row model 'x'; there are: aggregated, pack-sum"):
        row_model("x", np.array([1]))
