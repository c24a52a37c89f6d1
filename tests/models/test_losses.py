import itertools
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from learnable import examples_of

from tunedb.errors import UsageError
from tunedb.models.losses import (
    FAILED_WEIGHT,
    LEAST_CURVATURE,
    LEAST_THROUGHPUT,
    LOG,
    RANK,
    RELATIVE,
    SQUARED,
    THROUGHPUT,
)

LOSSES = [THROUGHPUT, SQUARED, LOG, RANK, RELATIVE]
SQUARES = [THROUGHPUT, SQUARED, LOG]
NAMES = [loss.name for loss in LOSSES]


def objective(loss, throughput, group=None, argument="", seed=0):
    throughput = np.asarray(throughput, float)
    group = np.zeros(len(throughput), int) if group is None else group
    rows = np.zeros((len(throughput), 1))
    examples = examples_of(rows, np.ones(len(throughput), int), group, throughput)
    return loss.objective(examples, argument, seed)


def values(seed, count=12):
    """Return throughputs in three groups, some failed, and scores."""
    rng = np.random.default_rng(seed)
    throughput = np.where(rng.random(count) < 0.2, 0, rng.random(count))
    return throughput, rng.integers(0, 3, count), rng.normal(0, 1, count)


def numerical(loss, scores, order):
    """Return the derivative of a loss by each score: the first or the second, by differences."""
    step = 1e-3
    units = np.eye(len(scores)) * step
    above = np.array([loss.value(scores + unit) for unit in units])
    below = np.array([loss.value(scores - unit) for unit in units])
    if order == 1:
        return (above - below) / (2 * step)
    return (above - 2 * loss.value(scores) + below) / step**2


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(25))
def test_derivatives_match_differences_of_the_value(loss, seed):
    """The Hessian is never below that of the value: a smaller one makes steps too long."""
    throughput, group, scores = values(seed)
    made = objective(loss, throughput, group, seed=seed)
    gradient, hessian = made.derivatives(scores)
    np.testing.assert_allclose(gradient, numerical(made, scores, 1), rtol=1e-4, atol=1e-6)
    diagonal = numerical(made, scores, 2)
    if loss in SQUARES:
        np.testing.assert_allclose(hessian, diagonal, rtol=1e-3, atol=1e-6)
    assert (hessian >= diagonal - 1e-6).all()


@pytest.mark.parametrize("loss", SQUARES, ids=NAMES[:3])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(25))
def test_base_has_mean_error_0_for_any_numbers_of_rows(loss, seed):
    """Where each program has one row, no other base has a smaller loss."""
    throughput, group, _ = values(seed)
    made = objective(loss, throughput, group)
    sizes = np.arange(len(throughput)) % 4
    for count in (sizes, np.ones_like(sizes)):
        assert made.weights @ (made.base(count) * count - made.labels) == pytest.approx(
            0, abs=1e-12
        )
    assert made.base(np.zeros_like(sizes)) == 0


def test_throughput_loss_weighs_squared_errors_by_throughput_and_failures_little():
    """Loss y (s - y)² of programs that ran; halved, as XGBoost's."""
    made = objective(THROUGHPUT, [1, 0.5, 0.25])
    assert made.value(np.array([0, 1.5, 0.25])) == (1 * 1 + 0.5 * 1 + 0) / 2
    assert made.weights.tolist() == made.labels.tolist() == [1, 0.5, 0.25]
    for argument, weights in (
        ("", [1, 0.05, FAILED_WEIGHT]),
        ("0.2", [1, 0.2, 0.2]),
        ("0", [1, 0.05, 0]),
    ):
        made = objective(THROUGHPUT, [1, 0.05, 0], argument=argument)
        assert made.weights.tolist() == weights
    gradient, hessian = objective(THROUGHPUT, [1, 0.05, 0]).derivatives(np.array([1, 0.05, 0.5]))
    assert gradient.tolist() == [0, 0, 0.5 * FAILED_WEIGHT]
    assert hessian[2] == FAILED_WEIGHT


@pytest.mark.parametrize(
    ("loss", "argument", "throughput", "labels"),
    [
        (SQUARED, "", [1, 0.25, 0], [1, 0.25, 0]),
        (SQUARED, "0.5", [1, 0.25, 0], [1, 0.5, 0]),
        (LOG, "0.0625", [1, 0.25, 0.01, 0], [4, 2, 0, 0]),
        (LOG, "", [1, 0], [math.log2(1 / LEAST_THROUGHPUT), 0]),
    ],
)
def test_labels_are_powers_or_logarithms_of_throughput(loss, argument, throughput, labels):
    made = objective(loss, throughput, argument=argument)
    assert made.labels.tolist() == labels
    assert made.weights.tolist() == [1] * len(labels)


def test_relative_loss_compares_pairs_of_programs_of_a_group():
    """The value equals the formula over pairs; a constant added to a group does not change it."""
    throughput, group, scores = values(5)
    made = objective(RELATIVE, throughput, group)
    assert made.labels.tolist() == (throughput**0.3).tolist()
    errors, total = scores - made.labels, 0
    for one in range(3):
        inside = np.flatnonzero(group == one)
        assert made.weights[inside].mean() == pytest.approx(1)
        weight = made.weights[inside].sum()
        for i, j in itertools.combinations(inside, 2):
            product = made.weights[i] * made.weights[j] / weight
            total += product * (errors[i] - errors[j]) ** 2 / 2
    assert made.value(scores) == pytest.approx(total)
    assert made.value(scores + group * 5) == pytest.approx(total)
    # A failed program weighs a sixth of the best one.
    by_hand = objective(RELATIVE, [1, 0])
    assert by_hand.weights[0] / by_hand.weights[1] == pytest.approx(6)


def test_rank_loss_equals_the_formula_for_two_groups():
    """Two groups; pairs weigh the root of the difference, programs 1 on average."""
    made = objective(RANK, [1, 0.75, 0.75, 0.5, 1], [0, 0, 0, 1, 1])
    scores = np.array([0.0, 1, 1, 2, 0])
    # Group 0: two equal pairs, 3 programs: 3 / 4 each. Group 1: one pair of weight 1.
    expected = 2 * 0.75 * math.log1p(math.e) + math.log1p(math.exp(2))
    assert made.value(scores) == pytest.approx(expected)
    assert made.base(np.ones(5, np.int64)) == 0


@pytest.mark.parametrize("argument", ["", "4"])
def test_rank_loss_weighs_groups_by_number_of_programs(argument):
    throughput, group, _ = values(1, 40)
    made = objective(RANK, throughput, group, argument)
    pairs = made.pairs
    totals = np.zeros(3)
    np.add.at(totals, pairs.group, made.pair_weights.sum(0))
    assert 2 * totals == pytest.approx(np.bincount(group))
    assert ((made.pair_weights > 0) == (pairs.signs != 0)).all()


def test_hessian_of_rank_loss_has_a_lower_bound():
    """Without the bound a pair in the wrong order would make an infinite step."""
    made = objective(RANK, [1, 0])
    for apart in (0, 3, 30, 3_000):
        gradient, hessian = made.derivatives(np.array([-apart / 2, apart / 2]))
        assert (np.abs(gradient) <= 1).all()
        assert hessian.min() >= LEAST_CURVATURE
    assert gradient.tolist() == [-1, 1]


def test_rank_loss_ignores_pairs_of_equal_programs():
    made = objective(RANK, [0.5, 0.5, 0, 0, 1], [0, 0, 1, 1, 2])
    gradient, hessian = made.derivatives(np.arange(5.0))
    assert not gradient.any()
    assert not hessian.any()
    assert made.value(np.arange(5.0)) == 0


@pytest.mark.parametrize(
    ("loss", "argument", "message"),
    [
        (THROUGHPUT, "much", "loss throughput:much is invalid; write throughput, or through"),
        (THROUGHPUT, "1.5", "with a number from 0 to 1"),
        (THROUGHPUT, "nan", "throughput:nan is invalid"),
        (SQUARED, "0", "with a number from 0.01 to 1"),
        (LOG, "0.9", "with a number from 1e-06 to 0.5"),
        (RANK, "0", "with a number from 1 to 10,000"),
        (RANK, "x", "loss rank:x is invalid; write rank, or rank:16"),
        (RELATIVE, "-1", "loss relative:-1 is invalid"),
    ],
)
def test_losses_reject_invalid_arguments(loss, argument, message):
    with pytest.raises(UsageError, match=message):
        objective(loss, [1, 0.5], argument=argument)
