from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from learnable import examples_of
from raising import raises_line

from tunedb.errors import FormatError, UsageError
from tunedb.models import failure_training
from tunedb.models.dataset import FAILURES, ExampleWorkload
from tunedb.models.failure_training import LEAST_FAILURES, LEAST_OF_KIND, fit_failures, scaled
from tunedb.models.failures import RECIPE, FailureModel, Scaling, TrialCosts, expected_cost, penalty
from tunedb.records import FailureKind

COLUMNS = ("tile", "vector", "noise")
COMPILE, TIMEOUT, CRASH = (
    FAILURES.index(kind)
    for kind in (FailureKind.COMPILE_ERROR, FailureKind.TIMEOUT, FailureKind.CRASH)
)

#: Small and quick; the seeds, weights and folds are those of the default.
QUICK = replace(RECIPE, training_set="all", rounds=60, eta=0.2, colsample_bytree=1.0)


def workload(number, shape=None):
    shape = shape or (4 ** (number + 1), 64)
    return ExampleWorkload(number, b"w%03d" % number, f"w{number}", "matmul", (shape,), 1e6)


def make_examples(rows, failures, of, *, costs=None, sizes=None, workloads=None):
    """Return examples: rows of features, outcomes, and which workload each program is of."""
    failures = np.asarray(failures, np.int8)
    sizes = np.ones(len(of), int) if sizes is None else sizes
    made = examples_of(rows, sizes, of, np.where(failures > 0, 0.0, 1.0), columns=COLUMNS)
    return replace(
        made,
        feature_set="small.steps",
        version=1,
        failures=failures,
        costs=made.costs if costs is None else np.asarray(costs, np.float64),
        workloads=tuple(workloads or map(workload, range(len(made.groups)))),
    )


def chance_of(rows):
    """Return the true probability that a program fails; wide tiles mostly do."""
    return 1 / (1 + np.exp(-(3 * rows[:, 0] - 2.5)))


def drawn(seed, workloads=8, each=60):
    """Return programs that time out by chance, more often with wide tiles."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(workloads * each, 3))
    failures = np.where(rng.random(len(rows)) < chance_of(rows), TIMEOUT, 0)
    return make_examples(rows, failures, np.repeat(np.arange(workloads), each))


def learnt(*given, **choices):
    return fit_failures(make_examples(*given), replace(QUICK, **choices), threads=1)


@pytest.fixture(scope="module")
def fitted():
    return fit_failures(drawn(0, workloads=12, each=100), QUICK, threads=1)


def test_predicted_probabilities_match_failure_rates_of_new_workloads(fitted):
    """In five bins, the mean prediction differs from the true mean by at most 0.1."""
    new = drawn(1, each=500)
    truth = chance_of(new.rows)
    told = fitted.model.probabilities(new.rows, new.starts)
    assert ((told > 0) & (told < 1)).all()
    for part in np.array_split(np.argsort(told), 5):
        assert told[part].mean() == pytest.approx(truth[part].mean(), abs=0.1)
    # Without the scaling they do not: failures are weighted up, and trees overconfident.
    bare = replace(fitted.model, scaling=Scaling(1.0, 0.0)).probabilities(new.rows, new.starts)
    assert np.abs(told - truth).mean() < 0.6 * np.abs(bare - truth).mean()
    assert fitted.model.scaling.slope < 1


def test_evaluation_measures_auroc_and_brier_score_on_held_out_workloads(fitted):
    judged = fitted.evaluation
    assert 0.8 < judged.auroc < 0.95
    assert judged.auroc == pytest.approx(np.mean(list(judged.aurocs.values())))
    assert len(judged.aurocs) == 12
    assert judged.brier < 0.75 * judged.brier_of_rate
    assert 0.02 < judged.avoided < 0.6
    assert fitted.chosen.failed.mean() == pytest.approx(0.25, rel=0.3)
    assert fitted.model.rate == fitted.chosen.failed.mean()
    assert fitted.left_out == 0


def test_auroc_is_share_of_pairs_in_right_order_and_brier_mean_squared_error():
    """Five programs failed and five ran."""
    examples = make_examples(np.zeros((10, 3)), [1] * 5 + [0] * 5, [0] * 10)
    margins = np.array([5.0, 4.0, 1.0, 1.5, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0])
    folds = [np.arange(10)[::2], np.arange(10)[1::2]]
    found = failure_training.evaluate_margins(examples, margins, folds)
    told = np.empty(10)
    for fold in folds:
        others = np.setdiff1d(np.arange(10), fold)
        told[fold] = scaled(margins[others], examples.failed[others])(margins[fold])
    pairs = [(told[i] > told[j]) + (told[i] == told[j]) / 2 for i in range(5) for j in range(5, 10)]
    assert found.auroc == pytest.approx(np.mean(pairs))
    assert found.brier == pytest.approx(np.mean((told - examples.failed) ** 2))


def test_classifier_predicts_the_mean_rate_for_random_failures():
    """No held-out failure can be predicted."""
    rng = np.random.default_rng(0)
    failed = np.where(rng.random(1200) < 0.2, TIMEOUT, 0)
    rows = rng.normal(size=(1200, 3))
    found = learnt(rows, failed, np.repeat(np.arange(12), 100))
    assert found.evaluation.auroc == pytest.approx(0.5, abs=0.06)
    assert found.evaluation.brier == pytest.approx(found.evaluation.brier_of_rate, rel=0.02)
    told = found.model.probabilities(rows.astype(np.float32), np.arange(1201))
    assert told == pytest.approx(np.full(1200, found.model.rate), abs=0.1)


def test_rare_failures_are_predicted():
    """About 3 % fail, in one corner of the features; the imbalance does not lower the AUROC."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2400, 3))
    failed = (rows[:, 0] > 1.4) & (rows[:, 1] > 0.4)
    assert 0.01 < failed.mean() < 0.05
    found = learnt(rows, np.where(failed, CRASH, 0), np.repeat(np.arange(8), 300))
    assert found.evaluation.auroc > 0.98
    assert found.evaluation.avoided > 0.9


def test_classifier_learns_from_groups_with_only_failures():
    """All programs of one workload, with wide tiles, failed; those of the others ran."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 3))
    of = np.repeat(np.arange(4), 100)
    rows[:, 0] = np.where(of == 0, 3.0, 0.0)
    model = learnt(rows, np.where(of == 0, COMPILE, 0), of).model
    told = model.probabilities(np.float32([[3, 0, 0], [0, 0, 0]]), np.array([0, 1, 2]))
    assert told[0] > 0.6 > 0.3 > told[1]


def by_corner(count=1200, rare=0):
    """Return examples: wide tiles time out with narrow vectors, and do not compile with others."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(count, 3))
    kind = np.where(rows[:, 1] < 0, TIMEOUT, COMPILE)
    failures = np.where(rows[:, 0] > 0.8, kind, 0)
    failures[np.flatnonzero(failures)[:rare]] = CRASH
    return make_examples(rows, failures, np.arange(count) % 6)


@pytest.fixture(scope="module")
def cornered():
    return fit_failures(by_corner(), QUICK, threads=1).model


def test_by_kind_distinguishes_kinds_of_failures(cornered):
    assert cornered.kinds == (FailureKind.COMPILE_ERROR, FailureKind.TIMEOUT)
    rows = np.float32([[2, -1, 0], [2, 1, 0], [-2, 1, 0]])
    told = cornered.by_kind(rows, np.arange(4))
    assert told.sum(axis=1) == pytest.approx([1, 1, 1])
    assert 1 - told[:, 0] == pytest.approx(cornered.probabilities(rows, np.arange(4)))
    assert told.argmax(axis=1).tolist() == [TIMEOUT, COMPILE, 0]


def test_by_kind_returns_observed_share_of_rare_kinds_also_after_round_trip_through_bytes():
    rare = LEAST_OF_KIND - 1
    examples = by_corner(rare=rare)
    model = fit_failures(examples, replace(QUICK, members=2), threads=1).model
    assert CRASH not in [FAILURES.index(kind) for kind in model.kinds]
    told = model.by_kind(examples.rows, examples.starts)
    share = rare / examples.failed.sum()
    assert told[:, CRASH] == pytest.approx(share * (1 - told[:, 0]))
    assert told.sum(axis=1) == pytest.approx(np.ones(len(told)))
    assert len(model.model.boosters) == 3
    data = model.to_bytes()
    again = FailureModel.from_bytes(data)
    for field in ("scaling", "rate", "kinds", "shares", "costs", "recipe"):
        assert getattr(again, field) == getattr(model, field)
    assert (again.by_kind(examples.rows, examples.starts) == told).all()
    assert again.to_bytes() == data


def test_model_of_one_kind_of_failure_has_one_booster(fitted):
    assert fitted.model.kinds == ()
    assert len(fitted.model.model.boosters) == 1
    rows = np.float32([[2, 0, 0]])
    told = fitted.model.by_kind(rows, np.array([0, 1]))[0]
    assert told[TIMEOUT] == pytest.approx(fitted.model.probabilities(rows, np.array([0, 1]))[0])
    assert np.flatnonzero(told).tolist() == [0, TIMEOUT]


def test_classifier_aggregates_rows_of_a_program_and_rejects_other_recipes():
    """A program fails if its largest row is large."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 4, 600)
    rows = rng.normal(size=(sizes.sum(), 3))
    starts = np.concatenate(([0], np.cumsum(sizes)))
    failed = np.maximum.reduceat(rows[:, 0], starts[:-1]) > 1
    of = np.arange(600) % 6
    examples = make_examples(rows, np.where(failed, TIMEOUT, 0), of, sizes=sizes)
    found = fit_failures(examples, QUICK, threads=1)
    assert found.evaluation.auroc > 0.95
    assert found.model.model.tree_columns[0] == "tile.sum"
    for choice, message in (
        ({"rows": "pack-sum"}, "use rows 'aggregated'"),
        ({"subsample": 7.0}, "XGBoost rejects the recipe"),
    ):
        with raises_line(UsageError, match=message):
            fit_failures(examples, replace(QUICK, **choice), threads=1)


def test_probability_of_several_rows_is_that_of_the_worst_row(fitted, cornered):
    """The model was trained on programs with one row each."""
    rows = np.float32([[-2, 0, 0], [2, 0, 0], [-2, 0, 0]])
    told = fitted.model.probabilities(rows, np.array([0, 3]))
    assert told == pytest.approx(fitted.model.probabilities(rows[1:2], np.array([0, 1])))
    kinds = cornered.by_kind(rows, np.array([0, 3]))
    assert kinds.sum() == pytest.approx(1)


def test_program_without_rows_gets_the_failure_rate_as_probability(fitted):
    model = fitted.model
    rows, starts = np.float32([[2, 0, 0], [-2, 0, 0]]), np.array([0, 0, 1, 1, 2, 2])
    told = model.probabilities(rows, starts)
    assert told[[1, 3]] == pytest.approx(model.probabilities(rows, np.arange(3)))
    assert told[[0, 2, 4]].tolist() == [model.rate] * 3
    kinds = model.by_kind(np.empty((0, 3), np.float32), np.array([0, 0]))[0]
    assert kinds[0] == pytest.approx(1 - model.rate)
    assert model.probabilities(np.empty((0, 3), np.float32), np.array([0])).shape == (0,)


def test_model_rejects_rows_of_another_feature_set(fitted):
    with pytest.raises(UsageError, match="which has 3 columns"):
        fitted.model.probabilities(np.zeros((1, 2), np.float32), np.array([0, 1]))
    with pytest.raises(UsageError, match=r"small\.steps"):
        fitted.model.check(replace(drawn(0, each=1), version=2))


@pytest.mark.parametrize(
    ("failures", "message"),
    [
        ([1, 1], "all of 2 programs failed"),
        ([0], "none of 1 program failed"),
        ([0, 0, 0, 1], r"3 programs of the training set \(of 4\)"),
    ],
)
def test_fit_rejects_examples_with_only_one_outcome(failures, message):
    examples = make_examples(np.zeros((len(failures), 3)), failures, [0] * len(failures))
    with raises_line(UsageError, match=message):
        fit_failures(examples, replace(QUICK, training_set="first:3"), threads=1)


def test_fit_on_one_workload_returns_calibrated_model_without_evaluation():
    examples = drawn(0, workloads=1, each=400)
    found = fit_failures(examples, QUICK, threads=1)
    assert found.evaluation is None
    # The scaling corrects the weights: the mean prediction is about the rate.
    new = drawn(1, workloads=1, each=2000)
    told = found.model.probabilities(new.rows, new.starts)
    bare = replace(found.model, scaling=Scaling(1.0, 0.0)).probabilities(new.rows, new.starts)
    assert told.mean() == pytest.approx(found.model.rate, rel=0.15)
    assert bare.mean() > 1.5 * found.model.rate
    told = found.model.probabilities(np.float32([[3, 0, 0], [-3, 0, 0]]), np.arange(3))
    assert told[0] > told[1]


@pytest.mark.parametrize(("few", "groups"), [(0, {0}), (LEAST_FAILURES - 1, {0, 1})])
def test_groups_with_few_failures_have_no_auroc(few, groups):
    rng = np.random.default_rng(0)
    rows, of = rng.normal(size=(300, 3)), np.arange(300) % 3
    failures = np.where((rows[:, 0] > 0.5) & np.isin(of, [*groups]), TIMEOUT, 0)
    failures[np.flatnonzero((of == 2) & (rows[:, 0] > 0.5))[:few]] = TIMEOUT
    judged = learnt(rows, failures, of).evaluation
    # Failures of one workload cannot be judged on others.
    assert judged is None if len(groups) == 1 else set(judged.aurocs) == groups


def test_folds_keep_similar_workloads_together_and_distribute_failures():
    shapes = [(64, 64), (65, 64), (256, 64), (1024, 64), (4096, 64), (64, 4096), (63, 65)]
    like = [workload(i, shape) for i, shape in enumerate(shapes)]
    of = np.repeat(np.arange(7), 10)
    # Workloads 2 and 3 have most of the failures.
    failures = np.where((of == 2) | (of == 3) | (np.arange(70) % 10 == 0), TIMEOUT, 0)
    examples = make_examples(np.zeros((70, 3)), failures, of, workloads=like)
    folds = failure_training._folds(examples)
    assert sorted(np.concatenate(folds).tolist()) == list(range(70))
    part = {int(w): i for i, fold in enumerate(folds) for w in of[fold]}
    assert part[0] == part[1] == part[6]
    assert part[2] != part[3]
    assert len(folds) == 5


def test_fold_is_predicted_by_a_classifier_that_did_not_train_on_it(monkeypatch):
    seen = []
    original = failure_training._FailureTraining.boosters

    def watched(self, chosen):
        seen.append(set(chosen.tolist()))
        return original(self, chosen)

    monkeypatch.setattr(failure_training._FailureTraining, "boosters", watched)
    steps = []
    examples = drawn(0, workloads=5, each=40)
    fit_failures(examples, QUICK, threads=1, on_step=lambda done, of: steps.append((done, of)))
    folds = failure_training._folds(examples)
    assert [set(range(200)) - one for one in seen[:-1]] == [set(fold.tolist()) for fold in folds]
    assert seen[-1] == set(range(200))
    assert steps == [(i, 6) for i in range(1, 7)]


@given(slope=st.floats(0.2, 5.0), shift=st.floats(-3.0, 3.0), scale=st.floats(1e-3, 1e3))
def test_scaled_minimises_the_logistic_loss(slope, shift, scale):
    """No slope or intercept near the fitted one has a smaller loss."""
    rng = np.random.default_rng(0)
    margins = rng.normal(size=400)
    failed = rng.random(400) < Scaling(slope, shift)(margins)
    assume(5 <= failed.sum() <= 395)
    found = scaled(scale * margins, failed)

    def loss(scaling):
        n, m = failed.sum(), (~failed).sum()
        target = np.where(failed, (n + 1) / (n + 2), 1 / (m + 2))
        told = scaling(scale * margins)
        return -(target * np.log(told) + (1 - target) * np.log1p(-told)).sum()

    best = loss(found)
    for factor in (0.98, 1.02):
        assert loss(replace(found, slope=factor * found.slope)) >= best - 1e-9
    for step in (-0.05, 0.05):
        assert loss(replace(found, intercept=found.intercept + step)) >= best - 1e-9


def test_scaling_of_misleading_margins_has_slope_0():
    margins, failed = np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, True, False, False])
    found = scaled(margins, failed)
    assert found.slope == 0
    assert found(margins) == pytest.approx([0.5] * 4)
    assert scaled(np.ones(4), failed) == found


def costs_of(failures, costs):
    examples = make_examples(np.zeros((len(costs), 3)), failures, [0] * len(costs), costs=costs)
    return TrialCosts.from_examples(examples)


def test_trial_costs_are_medians_by_outcome():
    failures = [0, 0, 0, TIMEOUT, TIMEOUT, COMPILE, COMPILE, 0]
    found = costs_of(failures, [1, 3, 2, 20, 30, 5, np.nan, -1.0])
    assert found.ok == found.failed[0] == 2
    assert (found.failed[TIMEOUT], found.failed[COMPILE]) == (25, 5)
    # The others have the median of all failures: 20, 30 and 5.
    assert found.failed[CRASH] == 20


@pytest.mark.parametrize(
    ("costs", "expected"),
    [([np.nan] * 3, (1.0, 4.0)), ([2, 2, np.nan], (2.0, 8.0)), ([np.nan, np.nan, 8], (2.0, 8.0))],
)
def test_trial_costs_derive_missing_costs_from_known_ones_or_defaults(costs, expected):
    found = costs_of([0, 0, TIMEOUT], costs)
    assert (found.ok, found.failed[TIMEOUT]) == expected


def test_expected_cost_and_penalty_weigh_costs_by_probabilities():
    costs = TrialCosts(2.0, (2.0, *(20.0,) * (len(FAILURES) - 1)))
    told = np.zeros((3, len(FAILURES)))
    told[0, 0] = 1
    told[1, TIMEOUT] = 1
    told[2, [0, TIMEOUT, COMPILE]] = 0.5, 0.25, 0.25
    assert expected_cost(told, costs).tolist() == [2.0, 20.0, 11.0]
    # Failures take as long as 0, 10 and 5 successful trials.
    assert penalty(told, costs, weight=0.1) == pytest.approx([0.0, 1.0, 0.5])
    assert penalty(told, costs, weight=0.0).tolist() == [0.0] * 3


def test_equal_data_make_equal_bytes_with_any_number_of_threads(cornered):
    again, other = (
        fit_failures(by_corner(), replace(QUICK, seed=seed), threads=threads).model.to_bytes()
        for threads, seed in ((2, 0), (1, 1))
    )
    assert again == cornered.to_bytes() != other


def test_from_bytes_rejects_damaged_models_and_models_that_predict_no_failures(fitted):
    data = fitted.model.to_bytes()
    with pytest.raises(FormatError, match="damaged"):
        FailureModel.from_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    booster = fitted.model.model.boosters[0]
    text = booster.attr("tunedb")
    for wrong in ("{}", "[]", text.replace('"rate"', '"tare"'), text.replace("timeout", "tired")):
        booster.set_attr(tunedb=wrong)
        with pytest.raises(FormatError, match="damaged"):
            FailureModel.from_bytes(fitted.model.model.to_bytes())
    booster.set_attr(tunedb=None)
    with pytest.raises(FormatError, match="predicts no failures"):
        FailureModel.from_bytes(fitted.model.model.to_bytes())
    booster.set_attr(tunedb=text)
