"""Training: its data, early stopping, and equal bytes each time."""

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
    return np.mean(
        [
            pairwise_accuracy(scores[examples.group == g], examples.throughput[examples.group == g])
            for g in np.unique(examples.group)
        ]
    )


@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        *(("throughput", "pack-sum"), ("throughput", "aggregated")),
        *(("squared:0.5", "pack-sum"), ("log", "pack-sum"), ("rank", "aggregated")),
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


def test_models_of_shuffled_labels_do_not_rank_unseen_workloads():
    """So the test above can fail."""
    seen = learnable(8, 60, seed=1)
    order = np.random.default_rng(0).permutation(len(seen))
    shuffled = replace(seen, throughput=np.where(seen.failed, 0, seen.throughput[order] + 0.01))
    fitted = train(shuffled, rounds=40)
    assert accuracy(fitted.model, learnable(4, 40, failing=0, seed=2)) < 0.65


def test_training_starts_from_a_fitted_base_score():
    """After one round with a tiny eta the scores are right on average."""
    model = train(loss="squared", rounds=1, eta=1e-6).model
    scores = model.score_examples(EXAMPLES)
    assert scores.mean() == pytest.approx(EXAMPLES.throughput.mean(), rel=1e-4)
    assert np.ptp(scores / EXAMPLES.sizes) < 1e-4


# ---- reproducibility ----------------------------------------------------------------------------


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
    plain = train(colsample_bytree=0.5).model
    other = train(colsample_bytree=0.5, seed=1).model
    assert plain.score_examples(EXAMPLES).tolist() != other.score_examples(EXAMPLES).tolist()
    less = train(EXAMPLES.take(np.arange(len(EXAMPLES) - 1)), colsample_bytree=0.5).model
    assert plain.score_examples(EXAMPLES).tolist() != less.score_examples(EXAMPLES).tolist()


def test_training_within_a_callback_does_not_change_the_model():
    """XGBoost draws columns with a generator of the thread, not of the booster."""
    choices = {"colsample_bytree": 0.5, "subsample": 0.5}
    expected = train(**choices).model.to_bytes()

    def interrupt(_, __):
        train(learnable(2, 10), rounds=2, **choices)

    assert train(**choices, on_round=interrupt).model.to_bytes() == expected


# ---- stopping -----------------------------------------------------------------------------------


def test_training_stops_when_held_out_workloads_no_longer_improve():
    examples = noisy()
    fitted = train(examples, rounds=200, patience=5, max_depth=6)
    assert len(fitted.history) == fitted.best_round + 5 < 200
    assert fitted.best_round == best_round(fitted.history, 5)
    assert fitted.rounds == fitted.best_round == fitted.model.rounds
    # The booster is trained on all workloads for the rounds that were best.
    direct = train(examples, rounds=fitted.best_round, max_depth=6)
    mine, other = (one.model.score_examples(examples).tolist() for one in (fitted, direct))
    assert mine == other


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
    examples = learnable(12, 10)
    held_out = train(examples, patience=2, rounds=2).held_out
    assert len(held_out) == 2
    # More data of the same workloads hold the same out; another seed holds others out.
    assert train(learnable(12, 20), patience=2, rounds=2).held_out == held_out
    assert any(train(examples, patience=2, rounds=2, seed=s).held_out != held_out for s in (1, 2))
    # The numbers of workloads do not matter.
    digests = [w.digest for w in examples.workloads]
    turned = examples_of(
        examples.rows, examples.sizes, examples.group, examples.throughput, digests=digests[::-1]
    )
    mirrored = train(turned, patience=2, rounds=2).held_out
    assert sorted(11 - w for w in mirrored) == sorted(held_out)


def test_workloads_with_equally_fast_programs_are_not_held_out():
    """Of twelve workloads ten have programs of different speed: two of those are held out."""
    rows = np.random.default_rng(0).random((36, 3))
    group = np.repeat(np.arange(12), 3)
    throughput = np.ones(36)
    throughput[6:][::3] = 0.5
    fitted = train(examples_of(rows, np.ones(36, int), group, throughput), patience=3, rounds=4)
    assert len(fitted.held_out) == 2
    assert min(fitted.held_out) >= 2
    throughput[-3] = 1
    fitted = train(examples_of(rows, np.ones(36, int), group, throughput), patience=3, rounds=4)
    assert (fitted.held_out, fitted.history, fitted.rounds) == ((), (), 4)


@pytest.mark.parametrize(("workloads", "patience"), [(1, 1), (2, 1), (9, 1), (10, 0)])
def test_training_runs_all_rounds_with_few_workloads_or_no_patience(workloads, patience):
    """The best round of one or two workloads is noise."""
    fitted = train(learnable(workloads, 20), patience=patience, rounds=7)
    assert (fitted.held_out, fitted.history) == ((), ())
    assert fitted.rounds == fitted.best_round == fitted.model.rounds == 7
    assert len(train(learnable(10, 20), patience=1, rounds=7).held_out) == 2


# ---- members ------------------------------------------------------------------------------------


def test_members_differ_and_the_score_is_their_mean():
    model = train(members=3).model
    assert len(model.boosters) == 3
    raw = {bytes(booster.save_raw("ubj")) for booster in model.boosters}
    assert len(raw) == 3
    means = [replace(model, boosters=(one,)).score_examples(EXAMPLES) for one in model.boosters]
    assert model.score_examples(EXAMPLES) == pytest.approx(np.mean(means, axis=0), abs=1e-12)


def test_members_of_one_workload_differ_only_by_sampled_columns():
    examples = learnable(1, 60)
    same = train(examples, members=2).model
    scores = [replace(same, boosters=(one,)).score_examples(examples) for one in same.boosters]
    assert scores[0].tolist() == scores[1].tolist()
    other = train(examples, members=2, colsample_bytree=0.4).model
    scores = [replace(other, boosters=(one,)).score_examples(examples) for one in other.boosters]
    assert scores[0].tolist() != scores[1].tolist()


# ---- progress -----------------------------------------------------------------------------------


def test_on_round_gets_number_and_figure_of_each_round():
    told = []
    fitted = train(
        noisy(), rounds=8, patience=2, members=2, on_round=lambda *args: told.append(args)
    )
    searched = len(fitted.history)
    assert [number for number, _ in told] == list(range(1, searched + 2 * fitted.rounds + 1))
    figures = [figure for _, figure in told]
    assert figures == [*fitted.history, *[None] * (2 * fitted.rounds)]
    assert len(told) <= most_rounds(quick(rounds=8, patience=2, members=2)) == 24
    assert most_rounds(quick(rounds=8, patience=0, members=2)) == 16


@pytest.mark.parametrize("patience", [0, 5])
def test_interrupted_training_does_not_change_the_next_one(patience):
    def stop(number, _):
        if number == 3:
            raise KeyboardInterrupt

    expected = train(ENOUGH, patience=patience).model.to_bytes()
    with pytest.raises(KeyboardInterrupt):
        train(ENOUGH, patience=patience, on_round=stop)
    assert train(ENOUGH, patience=patience).model.to_bytes() == expected


# ---- training data ------------------------------------------------------------------------------


def test_groups_with_only_failures_are_left_out():
    examples = learnable(3, 20)
    throughput = np.where(examples.group == 1, 0, examples.throughput)
    dead = examples_of(examples.rows, examples.sizes, examples.group, throughput)
    kept = select(dead, quick())
    assert np.unique(kept.group).tolist() == [0, 2]
    fitted = train(dead)
    assert fitted.left_out == {"only failures": 20, "training set": 0}


def test_fit_trains_only_on_the_training_set():
    chosen = select(EXAMPLES, quick(training_set="first:10"))
    assert len(chosen) == 60
    assert chosen.trials.max() == 9
    fitted = train(training_set="first:10")
    assert fitted.programs == 60
    assert fitted.left_out["training set"] == len(EXAMPLES) - 60


# ---- bad input ----------------------------------------------------------------------------------


def assert_rejected(examples, message, **choices):
    with raises_line(UsageError, match=message):
        train(examples, **choices)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([], "nothing to learn from: none of 0 programs ran; "),
        ([1], "nothing to learn from: 1 program, none faster than"),
        ([0], "nothing to learn from: none of 1 program ran"),
        (np.flatnonzero(EXAMPLES.failed), "none of 30 programs ran; measure or"),
        ([1, 41, 81], "3 programs, none faster than another of the same workload"),
    ],
)
def test_fit_rejects_examples_with_nothing_to_rank(chosen, message):
    assert_rejected(EXAMPLES.take(chosen), message)


def test_fit_rejects_examples_without_rows():
    bare = replace(EXAMPLES, rows=EXAMPLES.rows[:0])
    assert_rejected(
        bare, "240 programs have no rows of features small; run: tunedb extract --set small"
    )
    empty = examples_of(np.zeros((0, 2)), [0, 0], [0, 0], [1.0, 0.5])
    assert_rejected(empty, "2 programs have no rows of features small")


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_dataset_rejects_features_that_are_not_finite(value):
    rows = EXAMPLES.rows.copy()
    rows[EXAMPLES.starts[7] :, 2] = value
    message = (
        rf"c2 of program 107 is {value} in small version 3; correct the set, raise its version"
    )
    with pytest.raises(FormatError, match=message):
        replace(EXAMPLES, rows=rows)


def test_fit_accepts_large_finite_features():
    """Their sum exceeds single precision."""
    rows = EXAMPLES.rows.copy()
    rows[:, 2] = 3e38
    train(replace(EXAMPLES, rows=rows))


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
    assert_rejected(EXAMPLES, message, **choices)


# ---- speed --------------------------------------------------------------------------------------


def test_training_builds_one_matrix_for_all_members_and_rounds(monkeypatch):
    """No round makes another one."""
    calls = []
    matrix = import_xgboost().QuantileDMatrix
    monkeypatch.setattr(
        import_xgboost(), "QuantileDMatrix", lambda *a, **k: calls.append(1) or matrix(*a, **k)
    )
    steps = []
    step = Boosting.step
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


def test_workloads_with_one_complete_measurement_are_not_held_out():
    ran = ENOUGH.take(~ENOUGH.failed)
    fitted = train(replace(ran, cut_short=ran.throughput < 1.0), rounds=4, patience=2)
    assert (fitted.held_out, fitted.history, fitted.rounds) == ((), (), 4)
