"""Failure predictions on hardware that a classifier did not learn from."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learnable import examples_of

from tunedb.models.dataset import FAILURES, ExampleWorkload, Group
from tunedb.models.failure_training import fit_failures
from tunedb.models.failures import RECIPE, Scaling
from tunedb.models.target_scaling import (
    CalibrationBin,
    Posterior,
    TargetScaling,
    calibration_bins,
    calibration_error,
)
from tunedb.records import FailureKind

TIMEOUT = FAILURES.index(FailureKind.TIMEOUT)
RATE = 0.1
PIVOT = np.log(RATE / (1 - RATE))
#: Deviations of (slope, shift), as the module has them.
PRIORS = [(0.25, 0.5), (0.5, 2.0)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def target_scaling(margins, failed, *, is_trained=False):
    margins, failed = np.array(margins, float), np.array(failed, bool)
    return TargetScaling.fitted(Scaling(1.0, 0.0), RATE, margins, failed, is_trained=is_trained)


def log_posterior(weights, distance, failed, deviations):
    """Return the logarithm of prior times likelihood, as Bishop's (4.142) has it."""
    odds = PIVOT + weights[0] * distance + weights[1]
    likelihood = -np.logaddexp(0, np.where(failed, -odds, odds)).sum()
    slope, shift = (np.array(weights) - (1, 0)) / deviations
    return likelihood - (slope**2 + shift**2) / 2


@pytest.mark.parametrize(("is_trained", "alike"), [(True, 0.9), (False, 0.5)])
def test_scaling_without_trials_is_that_of_the_training_with_a_wide_interval(is_trained, alike):
    margins = np.linspace(-6, 6, 25)
    found = target_scaling([], [], is_trained=is_trained)
    assert [(each.slope, each.shift) for each in found.parts] == [(1.0, 0.0)] * 2
    assert [each.weight for each in found.parts] == pytest.approx([alike, 1 - alike])
    low, high = found.interval(margins)
    trained = sigmoid(margins)
    assert ((low < trained) & (trained < high)).all()
    # Expected probabilities lie nearer to one half than the most probable one.
    assert (np.abs(found(margins) - 0.5) <= np.abs(trained - 0.5)).all()
    # At the pivot only the shift is uncertain.
    sure, _ = found.interval(np.array([PIVOT]), 0.6826894921)
    deviation = np.sqrt(alike * 0.5**2 + (1 - alike) * 2**2)
    assert sure[0] == pytest.approx(sigmoid(PIVOT - deviation))


@given(st.lists(st.tuples(st.floats(-20, 20), st.booleans()), max_size=30), st.sampled_from(PRIORS))
def test_posterior_has_the_maximum_and_the_curvature_of_prior_times_likelihood(trials, deviations):
    distance = np.array([distance for distance, _ in trials])
    failed = np.array([failed for _, failed in trials], bool)
    found = Posterior.found(PIVOT, distance, failed, deviations)

    def value(*weights):
        return log_posterior(weights, distance, failed, deviations)

    best = np.array((found.slope, found.shift))
    steps = 0.05 * np.array([(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1)])
    if best[0] == 0:
        # A slope below 0 is not allowed; with slope 0 the shift alone is chosen.
        steps, distance = steps[2:4], 0 * distance
    assert value(*best) >= max(value(*one) for one in best + steps) - 1e-9
    if best[0] > 0:
        slope, shift, h = *best, 1e-3
        slopes, both, shifts = found.covariance
        (a, b), (_, c) = -np.linalg.inv([[slopes, both], [both, shifts]])
        middle = value(slope, shift)
        by_differences = (
            value(slope + h, shift) + value(slope - h, shift) - 2 * middle,
            value(slope, shift + h) + value(slope, shift - h) - 2 * middle,
            (value(slope + h, shift + h) - value(slope + h, shift - h)) / 4
            - (value(slope - h, shift + h) - value(slope - h, shift - h)) / 4,
        )
        np.testing.assert_allclose(np.array(by_differences) / h**2, (a, c, b), rtol=5e-3, atol=1e-3)


def test_misleading_margins_get_slope_0():
    margins = np.linspace(-4, 4, 200)
    found = target_scaling(margins, margins < 0)
    assert [each.slope for each in found.parts] == [0, 0]
    assert np.ptp(found(margins)) == 0


def test_evidence_of_the_trials_weighs_the_priors():
    rng = np.random.default_rng(0)
    margins = rng.normal(PIVOT, 1.5, 60)
    for shift, is_alike in ((0, True), (2.5, False)):
        failed = rng.random(60) < sigmoid(margins + shift)
        for is_trained in (True, False):
            alike, other = target_scaling(margins, failed, is_trained=is_trained).parts
            assert alike.weight + other.weight == pytest.approx(1)
            assert (alike.weight > 0.7) is is_alike


@pytest.mark.parametrize("deviations", PRIORS)
def test_evidence_is_the_integral_of_likelihood_and_prior(deviations):
    rng = np.random.default_rng(3)
    distance = rng.normal(0, 1.5, 40)
    failed = rng.random(40) < sigmoid(PIVOT + 0.5 + distance)
    found = Posterior.found(PIVOT, distance, failed, deviations)
    slopes, shifts = (np.linspace(-6, 6, 121) * deviation for deviation in deviations)
    slopes += 1
    values = [log_posterior((a, b), distance, failed, deviations) for a in slopes for b in shifts]
    cell = (slopes[1] - slopes[0]) * (shifts[1] - shifts[0])
    integral = np.log(np.exp(values).sum() * cell / (2 * np.pi * np.prod(deviations)))
    assert found.weight == pytest.approx(integral, abs=0.1)


def test_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    held = []
    for number in range(400):
        slope, shift = rng.normal((1, 0), PRIORS[number % 2])
        margins = rng.normal(PIVOT, 2, 32)
        chance = sigmoid(PIVOT + shift + slope * (margins - PIVOT))
        found = target_scaling(margins, rng.random(32) < chance)
        low, high = found.interval(margins[:1], 0.8)
        held.append(low[0] <= chance[0] <= high[0])
    assert 0.74 < np.mean(held) < 0.86


def test_trials_on_a_target_reduce_the_calibration_error():
    rng = np.random.default_rng(1)
    margins = rng.normal(PIVOT, 1.5, 4_000)
    failed = rng.random(4_000) < sigmoid(margins + 2)
    scalings = [target_scaling(margins[:n], failed[:n]) for n in (0, 32, 200)]
    bins = [calibration_bins(scaling(margins[200:]), failed[200:]) for scaling in scalings]
    errors = list(map(calibration_error, bins))
    assert errors[0] > 0.2 > 2 * errors[1] > 2 * errors[2]


def test_calibration_error_is_the_mean_difference_of_bins():
    failed = np.array([False, True, False, True])
    bins = calibration_bins(np.array([0.1, 0.3, 0.2, 0.9]), failed, most=2)
    assert [(each.programs, each.failed) for each in bins] == [(2, 0.0), (2, 1.0)]
    assert [each.predicted for each in bins] == pytest.approx([0.15, 0.6])
    assert calibration_error(bins) == pytest.approx((0.15 + 0.4) / 2)
    assert calibration_error((CalibrationBin(3, 0.5, 0.25), CalibrationBin(1, 0, 1))) == 0.4375


def two_machines(shift, each=120, workloads=6):
    """Return programs of the same workloads on two machines; the second fails more often."""
    rng = np.random.default_rng(2)
    count = 2 * workloads * each
    rows = rng.normal(size=(count, 3))
    group = np.repeat(np.arange(2 * workloads), each)
    chance = sigmoid(2 * rows[:, 0] - 2.5 + np.where(group < workloads, 0, shift))
    failed = rng.random(count) < chance
    made = examples_of(rows, np.ones(count, int), group, np.where(failed, 0.0, 1.0))
    places = [(machine, i) for machine in range(2) for i in range(workloads)]
    known = [
        ExampleWorkload(i, b"w%03d" % i, f"w{i}", "matmul", ((4 ** (i + 1), 64),), 1e6)
        for i in range(workloads)
    ]
    groups = tuple(Group(i, 1 + machine, b"t" * 16, str(machine)) for machine, i in places)
    return replace(made, groups=groups, workloads=tuple(known))


CHOICES = {"training_set": "all", "rounds": 40, "eta": 0.2, "colsample_bytree": 1.0}
QUICK = replace(RECIPE, features="small", **CHOICES)


@pytest.fixture(scope="module")
def fitted():
    return fit_failures(two_machines(2.0), QUICK, threads=1)


def test_evaluation_tells_what_predictions_promise_on_held_out_hardware(fitted):
    first, second = sorted(fitted.evaluation.elsewhere, key=lambda each: each.machine)
    assert [each.machine for each in (first, second)] == ["0", "1"]
    assert (first.target, first.programs, first.trials) == (b"t" * 16, 720, 32)
    # Each was predicted by a classifier of the other one.
    assert first.predicted > first.rate + 0.1
    assert second.predicted < second.rate - 0.1
    for each in (first, second):
        assert each.error_after < 0.6 * each.error
        assert each.error == pytest.approx(abs(each.predicted - each.rate), abs=0.05)
    assert sum(each.programs for each in fitted.evaluation.reliability) == 2 * 720
    assert fitted.evaluation.error == calibration_error(fitted.evaluation.reliability)


def test_one_machine_has_no_held_out_hardware():
    examples = two_machines(0.0)
    one = fit_failures(examples.take(examples.group < 6), QUICK, threads=1)
    assert one.evaluation.elsewhere == ()
    assert one.evaluation.error < 0.1


def test_cautious_probabilities_approach_the_truth_from_below(fitted):
    model, examples = fitted.model, two_machines(2.0)
    rows = examples.rows, examples.starts
    plain, margins = model.probabilities(*rows), model.margins(*rows)
    np.testing.assert_array_equal(model.probabilities(*rows, cautious=True), plain)
    before = model.on_target(margins[:0], examples.failed[:0], is_trained=False)
    seen = examples.group >= 6
    after = model.on_target(margins[seen], examples.failed[seen], is_trained=False)
    cautious = [each.probabilities(*rows, cautious=True)[seen] for each in (before, after)]
    assert (cautious[0] < plain[seen]).all()
    assert cautious[0].mean() < 0.1
    rate = examples.failed[seen].mean()
    assert rate - 0.1 < cautious[1].mean() < after.probabilities(*rows)[seen].mean()
    assert after.probabilities(*rows)[seen].mean() == pytest.approx(rate, abs=0.03)
    kinds = after.by_kind(*rows, cautious=True)
    np.testing.assert_allclose(kinds.sum(axis=1), 1)
    np.testing.assert_allclose(kinds[:, TIMEOUT], after.probabilities(*rows, cautious=True))


def test_program_without_rows_calibrates_nothing_and_calibration_is_not_stored(fitted):
    model = fitted.model
    margins = model.margins(np.zeros((1, 3), np.float32), np.array([0, 0, 1]))
    assert np.isnan(margins).tolist() == [True, False]
    target = model.on_target(margins, np.array([True, True]), is_trained=True)
    assert target.target.trials == 1
    assert type(model).from_bytes(target.to_bytes()).target is None
    rows = np.zeros((0, 3), np.float32), np.array([0, 0])
    assert target.probabilities(*rows, cautious=True).tolist() == [model.rate]
