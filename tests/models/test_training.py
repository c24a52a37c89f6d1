from dataclasses import replace

import numpy as np
import pytest
from learnable import examples_of, learnable, noisy, quick
from raising import raises_line

from tunedb.errors import FormatError, UsageError
from tunedb.models import training
from tunedb.models._xgboost import import_xgboost
from tunedb.models.boosting import Boosting
from tunedb.models.metrics import pairwise_accuracy
from tunedb.models.training import best_round, fit, most_rounds, select

EXAMPLES = learnable()

#: As many workloads as boosting needs to be stopped.
ENOUGH = learnable(training.LEAST_WORKLOADS, 20)


def train(examples=EXAMPLES, *, threads=1, **choices):
    options = {k: choices.pop(k) for k in ("on_round", "make_matrix", "device") if k in choices}
    return fit(examples, quick(**choices), threads=threads, **options)


def accuracy(model, examples):
    """Return the mean pairwise accuracy over groups."""
    scores = model.score_examples(examples)
    groups = [examples.group == number for number in np.unique(examples.group)]
    return np.mean([pairwise_accuracy(scores[g], examples.throughput[g]) for g in groups])


@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        *((loss, "pack-sum") for loss in ("throughput", "squared:0.5", "log")),
        ("rank", "aggregated"),
    ],
)
def test_models_learn_to_rank_unseen_workloads(loss, rows):
    """Throughput depends on the sum over rows."""
    seen = learnable(8, 60, rows=(2, 2), seed=1)
    fitted = train(seen, loss=loss, rows=rows, rounds=40)
    unseen = learnable(4, 40, rows=(2, 2), failing=0, seed=2)
    assert accuracy(fitted.model, unseen) > 0.85
    assert fitted.model.rows == rows
    assert fitted.programs == len(seen)
    assert fitted.left_out == {"only failures": 0, "training set": 0}


@pytest.mark.parametrize(
    "choices",
    [
        {"subsample": 0.6, "colsample_bytree": 0.4, "members": 2},
        {"loss": "rank:4", "patience": 3, "rows": "aggregated"},
    ],
    ids=str,
)
def test_fit_makes_equal_bytes_with_any_number_of_threads(choices):
    examples = learnable(10, 90, columns=20)
    one, two, again, four = (
        train(examples, threads=threads, **choices).model.to_bytes() for threads in (1, 2, 2, 4)
    )
    assert one == two == again == four


def test_seed_and_data_change_the_model():
    less = EXAMPLES.take(np.arange(len(EXAMPLES) - 1))
    choices = ((EXAMPLES, 0), (EXAMPLES, 1), (less, 0))
    models = [train(one, colsample_bytree=0.5, seed=seed).model for one, seed in choices]
    assert len({tuple(model.score_examples(EXAMPLES)) for model in models}) == 3


def test_training_within_a_callback_does_not_change_the_model():
    """XGBoost draws columns with a generator of the thread, not of the booster."""
    choices = {"colsample_bytree": 0.5, "subsample": 0.5}
    expected = train(**choices).model.to_bytes()

    def interrupt(_, __):
        train(learnable(2, 10), rounds=2, **choices)

    assert train(**choices, on_round=interrupt).model.to_bytes() == expected


def test_best_round_maximises_the_moving_average_of_history():
    # Means of two: .5, .7, .7, .55, .65, .75.
    history = [0.5, 0.9, 0.5, 0.6, 0.7, 0.8]
    assert [best_round(history[:n], 2) for n in range(1, 7)] == [1, 2, 2, 2, 2, 6]
    assert best_round(history, 1) == 2
    # Means of all until then: .5, .7, .633, .625, .64, .667.
    assert best_round(history, 9) == 2
    assert best_round([0.1] * 9, 3) == 1


def test_history_is_mean_pairwise_accuracy_of_held_out_workloads(monkeypatch):
    """The groups are small, so all of their pairs are compared."""
    examples = learnable(10, 30)
    seen = []
    scores = Boosting.scores
    monkeypatch.setattr(Boosting, "scores", lambda self: seen.append(scores(self)) or seen[-1])
    fitted = train(examples, rounds=3, patience=3)
    # Scores are computed before each step, and after each round for its figure.
    after = seen[1 : 2 * len(fitted.history) : 2]
    inside = [examples.workload == one for one in fitted.held_out]
    for found, expected in zip(after, fitted.history, strict=True):
        figures = [pairwise_accuracy(examples.throughput[g], found[g]) for g in inside]
        assert np.mean(figures) == pytest.approx(expected, abs=1e-12)


def test_held_out_workloads_depend_only_on_digests_and_seed():
    def held_out(examples, **choices):
        return train(examples, patience=2, rounds=2, **choices).held_out

    examples = learnable(12, 10)
    expected = held_out(examples)
    assert len(expected) == 2
    # More data of the same workloads hold the same out; another seed holds others out.
    assert held_out(learnable(12, 20)) == expected
    assert any(held_out(examples, seed=seed) != expected for seed in (1, 2))
    # Of the fewest workloads that are enough, as many are held out.
    assert len(held_out(learnable(10, 20))) == 2
    # The numbers of workloads do not matter.
    digests = [w.digest for w in examples.workloads][::-1]
    parts = examples.rows, examples.sizes, examples.group, examples.throughput
    mirrored = held_out(examples_of(*parts, digests=digests))
    assert sorted(11 - w for w in mirrored) == sorted(expected)


def test_workloads_with_equally_fast_programs_are_not_held_out():
    """Of twelve workloads ten have programs of different speed: two of those are held out."""
    rows = np.random.default_rng(0).random((36, 3))
    group = np.repeat(np.arange(12), 3)
    throughput = np.ones(36)
    throughput[6:][::3] = 0.5
    examples = examples_of(rows, np.ones(36, int), group, throughput)
    fitted = train(examples, patience=3, rounds=4)
    assert len(fitted.held_out) == 2
    assert min(fitted.held_out) >= 2
    throughput[-3] = 1
    fitted = train(replace(examples, throughput=throughput), patience=3, rounds=4)
    assert (fitted.held_out, fitted.history, fitted.rounds) == ((), (), 4)


RAN = ENOUGH.take(~ENOUGH.failed)


@pytest.mark.parametrize(
    ("examples", "patience"),
    [
        *((learnable(workloads, 20), 1) for workloads in (1, 2, 9)),
        (learnable(10, 20), 0),
        # Workloads with one complete measurement.
        (replace(RAN, cut_short=RAN.throughput < 1.0), 2),
    ],
)
def test_training_runs_all_rounds_with_few_workloads_or_no_patience(examples, patience):
    """The best round of one or two workloads is noise."""
    fitted = train(examples, patience=patience, rounds=7)
    assert (fitted.held_out, fitted.history) == ((), ())
    assert fitted.rounds == fitted.best_round == fitted.model.rounds == 7


def test_members_differ_and_the_score_is_their_mean():
    model = train(members=3).model
    assert len({bytes(booster.save_raw("ubj")) for booster in model.boosters}) == 3
    means = [replace(model, boosters=(one,)).score_examples(EXAMPLES) for one in model.boosters]
    assert len(means) == 3
    assert model.score_examples(EXAMPLES) == pytest.approx(np.mean(means, axis=0), abs=1e-12)


@pytest.mark.parametrize(("share", "are_equal"), [(1.0, True), (0.4, False)])
def test_members_of_one_workload_differ_only_by_sampled_columns(share, are_equal):
    examples = learnable(1, 60)
    model = train(examples, members=2, colsample_bytree=share).model
    one, other = (replace(model, boosters=(b,)).score_examples(examples) for b in model.boosters)
    assert (one.tolist() == other.tolist()) is are_equal


def test_on_round_gets_number_and_figure_of_each_round():
    told = []
    choices = {"rounds": 8, "patience": 2, "members": 2}
    fitted = train(noisy(), on_round=lambda *args: told.append(args), **choices)
    figures = [*fitted.history, *[None] * (2 * fitted.rounds)]
    assert told == list(enumerate(figures, start=1))
    assert len(told) <= most_rounds(quick(**choices)) == 24
    assert most_rounds(quick(**choices | {"patience": 0})) == 16


@pytest.mark.parametrize("patience", [0, 5])
def test_interrupted_training_does_not_change_the_next_one(patience):
    def stop(number, _):
        if number == 3:
            raise KeyboardInterrupt

    expected = train(ENOUGH, patience=patience).model.to_bytes()
    with pytest.raises(KeyboardInterrupt):
        train(ENOUGH, patience=patience, on_round=stop)
    assert train(ENOUGH, patience=patience).model.to_bytes() == expected


def test_fit_trains_only_on_the_training_set():
    chosen = select(EXAMPLES, quick(training_set="first:10"))
    fitted = train(training_set="first:10")
    assert (len(chosen), chosen.trials.max(), fitted.programs) == (60, 9, 60)
    assert fitted.left_out["training set"] == len(EXAMPLES) - 60


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_dataset_rejects_features_that_are_not_finite(value):
    rows = EXAMPLES.rows.copy()
    rows[EXAMPLES.starts[7] :, 2] = value
    message = rf"c2 of program 107 is {value} in small version 3; correct the set, raise its versio"
    with pytest.raises(FormatError, match=message):
        replace(EXAMPLES, rows=rows)


def test_fit_accepts_large_finite_features():
    """Their sum exceeds single precision."""
    rows = EXAMPLES.rows.copy()
    rows[:, 2] = 3e38
    train(replace(EXAMPLES, rows=rows))


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (EXAMPLES.take([]), "nothing to learn from: none of 0 programs ran; "),
        (EXAMPLES.take([1]), "nothing to learn from: 1 program, none faster than"),
        (EXAMPLES.take([0]), "nothing to learn from: none of 1 program ran"),
        (EXAMPLES.take(EXAMPLES.failed), "none of 30 programs ran; measure or"),
        (EXAMPLES.take([1, 41, 81]), "3 programs, none faster than another of the same workload"),
        (
            replace(EXAMPLES, rows=EXAMPLES.rows[:0]),
            "240 programs have no rows of features small; run: tunedb extract --set small",
        ),
        (
            examples_of(np.zeros((0, 2)), [0, 0], [0, 0], [1.0, 0.5]),
            "2 programs have no rows of features small",
        ),
    ],
)
def test_fit_rejects_examples_without_rows_or_anything_to_rank(examples, message):
    with raises_line(UsageError, match=message):
        train(examples)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"rounds": 0}, "a recipe with rounds 0; the least is 1"),
        ({"gamma": -1.0}, "XGBoost rejects the recipe: "),
        ({"loss": "rank:x"}, "loss rank:x is invalid"),
        ({"training_set": "first:x"}, "first"),
    ],
)
def test_fit_rejects_invalid_recipes(choices, message):
    with raises_line(UsageError, match=message):
        train(**choices)


def test_training_builds_one_matrix_for_all_members_and_rounds(monkeypatch):
    """No round makes another one."""
    calls, steps, xgboost = [], [], import_xgboost()
    matrix, step = xgboost.QuantileDMatrix, Boosting.step
    counting = lambda *a, **k: calls.append(1) or matrix(*a, **k)  # noqa: E731
    monkeypatch.setattr(xgboost, "QuantileDMatrix", counting)
    monkeypatch.setattr(Boosting, "step", lambda self: steps.append(len(calls)) or step(self))
    train(ENOUGH, patience=3, members=2)
    assert len(calls) == 1
    assert set(steps) == {1}


def test_programs_cut_short_weigh_less_and_do_not_judge_early_stopping(monkeypatch):
    counts, judged = [], []

    class Gradients(training.ObjectiveGradients):
        def __init__(self, *rest, **options):
            counts.append(options["counts"])
            super().__init__(*rest, **options)

    class Stopping(training.EarlyStopping):
        def __init__(self, pairs, unseen, patience):
            judged.append(unseen)
            super().__init__(pairs, unseen, patience)

    monkeypatch.setattr(training, "ObjectiveGradients", Gradients)
    monkeypatch.setattr(training, "EarlyStopping", Stopping)
    cut_short = (np.arange(len(ENOUGH)) % 3 == 0) & ~ENOUGH.failed
    train(replace(ENOUGH, cut_short=cut_short), rounds=4, patience=2)
    search, final = counts
    assert final.tolist() == np.where(cut_short, training.CUT_SHORT_WEIGHT, 1.0).tolist()
    held_out = search == 0
    assert held_out.any()
    assert (judged[0] == (held_out & ~cut_short)).all()
