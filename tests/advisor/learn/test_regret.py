import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_kernels import kernel, launch

from tunedb.advisor import labels
from tunedb.advisor.labels import DECREASE, INCREASE, NO_CHANGE, NONE
from tunedb.advisor.learn import baselines
from tunedb.advisor.learn.regret import StepOutcomes

#: Times 4, 1, 2 at 64, 128 and 256 threads.
SLICE = [launch("k", 0, *pair) for pair in ((64, 4.0), (128, 1.0), (256, 2.0))]


def codes(*values):
    return np.array(values, np.int8)


@pytest.mark.parametrize(
    ("advice", "times"),
    [
        ((NO_CHANGE,) * 3, (4, 1, 2)),
        ((INCREASE,) * 3, (1, 2, 2)),
        ((DECREASE,) * 3, (4, 4, 1)),
        ((NONE,) * 3, (4, 1, 2)),
        ((INCREASE, NO_CHANGE, DECREASE), (1, 1, 1)),
    ],
)
def test_times_and_regret_follow_one_step_of_advice(advice, times):
    outcomes = StepOutcomes.from_observations(SLICE)
    assert outcomes.times(codes(*advice)).tolist() == list(times)
    regret = outcomes.regret(codes(*advice))
    assert regret.value == pytest.approx(np.prod(times) ** (1 / 3))
    assert regret.low == regret.high == regret.value  # one slice has no spread
    against = outcomes.against_nothing(codes(*advice))
    assert against.value == pytest.approx((np.prod(times) / 8) ** (1 / 3))


def test_step_leads_to_the_block_of_nearest_shape():
    blocks = ((32, 2, 1), (128, 1, 1), (32, 4, 1), (64, 2, 1))
    rows = [
        launch("k", 0, math.prod(block), 1.0 + i, block=block) for i, block in enumerate(blocks)
    ]
    # 32x4 and 64x2 are equally far from 32x2: the wider one.
    assert StepOutcomes.from_observations(rows).after[0].tolist() == [0, 0, 3]


def test_steps_stay_within_their_slice():
    rows = [launch("k", 0, 64, 1.0), launch("k", 1, 128, 9.0)]
    outcomes = StepOutcomes.from_observations(rows)
    assert outcomes.after.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert outcomes.best.tolist() == [1.0, 9.0]


def test_regret_counts_only_selected_rows():
    outcomes, rows = StepOutcomes.from_observations(SLICE), np.array([True, False, False])
    assert outcomes.regret(codes(1, 0, 0), rows).value == pytest.approx(4)
    assert outcomes.regret(codes(1, 0, 0), np.zeros(3, bool)) is None


def test_interval_of_regret_counts_slices_not_rows():
    # Rows of a slice are no independent evidence: 100 of one slice count as one.
    rows = [launch("k", 0, 64 + i, 2.0) for i in range(99)] + [launch("k", 0, 512, 1.0)]
    rows += [launch("k", 1, 64, 1.0), launch("k", 1, 128, 1.0)]
    found = StepOutcomes.from_observations(rows).regret(np.full(len(rows), NO_CHANGE, np.int8))
    assert found.low == pytest.approx(1.0) and found.high > found.value


@given(st.lists(st.tuples(st.sampled_from(range(3)), st.sampled_from([-1, 0, 1, 2]))))
def test_accuracies_and_confusion_equal_those_of_scikit_learn(rows):
    metrics = pytest.importorskip("sklearn.metrics")
    truth, advice = codes(*(a for a, _ in rows)), codes(*(b for _, b in rows))
    advised = advice != NONE
    if not advised.any():
        assert np.isnan(labels.accuracy(truth, advice))
        assert np.isnan(labels.balanced_accuracy(truth, advice))
        return

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of advice that no row has as label
        expected = metrics.balanced_accuracy_score(truth[advised], advice[advised])
    assert labels.balanced_accuracy(truth, advice) == pytest.approx(expected)
    assert labels.accuracy(truth, advice) == metrics.accuracy_score(truth[advised], advice[advised])
    matrix = metrics.confusion_matrix(truth[advised], advice[advised], labels=range(3))
    assert np.array_equal(labels.confusion(truth, advice), matrix)


def test_to_labels_restores_labels_from_codes():
    found = [*labels.slice_best(SLICE), None]
    codes = labels.to_codes(found)
    assert codes.tolist() == [INCREASE, NO_CHANGE, DECREASE, NONE]
    assert labels.to_labels(codes) == found


def test_rule_advises_128_to_256_threads():
    rows = [launch("k", 0, threads, 1.0) for threads in (127, 128, 256, 257)]
    assert baselines.rule(rows).tolist() == [INCREASE, NO_CHANGE, NO_CHANGE, DECREASE]


def test_occupancy_advises_the_nearest_block_of_full_occupancy():
    # 7.5 holds 1,024 threads and 16 blocks: 32 threads fill a half, 64 to 1,024 all of it.
    rows = kernel("k", 128, tiles=1)
    assert baselines.occupancy(rows).tolist() == [INCREASE, *[NO_CHANGE] * 5]
    # 128 registers leave 512 threads: a block of 1,024 does not run, all others reach a half.
    heavy = kernel("k", 128, tiles=1, sizes=(64, 512, 1024))
    heavy = [launch("k", 0, one.threads, one.seconds, registers=128) for one in heavy]
    assert baselines.occupancy(heavy).tolist() == [NO_CHANGE, NO_CHANGE, DECREASE]


def test_majority_returns_the_most_frequent_label():
    assert baselines.majority(codes(0, 0, 2, NONE, NONE, NONE)) == DECREASE
    assert baselines.majority(codes(NONE)) == NO_CHANGE
