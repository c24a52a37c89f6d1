"""The cost model outside of tuning runs: predictions, training, the ledger, saving and loading."""

from __future__ import annotations

import copy
import itertools
import logging
from contextlib import closing
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tvm
from builders import OWN, make_measurement
from logged import logged
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tunedb import identity, limits
from tunedb.errors import (
    FormatError,
    LimitError,
    NotFoundError,
    PluginError,
    StorageError,
    UsageError,
)
from tunedb.features.base import feature_set
from tunedb.models import dataset, failures, training
from tunedb.models import store as stored
from tunedb.models.aggregation import stacked
from tunedb.models.failure_store import train_failures
from tunedb.models.metrics import pairwise_accuracy
from tunedb.models.recipe import Recipe
from tunedb.plugins.metaschedule import CostModel, Database
from tunedb.plugins.metaschedule.cost_model import learner, ledger, scoring
from tunedb.plugins.metaschedule.cost_model.ledger import Ledger, Scorer
from tunedb.plugins.metaschedule.cost_model.scoring import positive
from tunedb.plugins.metaschedule.features import candidate_features
from tunedb.plugins.metaschedule.features import rows as features_module
from tunedb.plugins.metaschedule.features.candidate_features import CandidateRows
from tunedb.plugins.metaschedule.measure.measure_callback import record
from tunedb.results import NewModel
from tunedb.storage.store import Store

#: Trees that train in less than a second; the tests check when a model learns, and from what.
QUICK = Recipe(rounds=25, eta=0.3, max_depth=4, colsample_bytree=1.0, loss="squared")
SCHEDULED = feature_set("tunedb.scheduled")


@pytest.fixture(scope="module")
def make(tools):
    """A function that makes candidates of a matmul; those of equal numbers are equal."""
    powers = [(2**a, 2**b, 2**c) for a, b, c in itertools.product(range(7), repeat=3)]
    tiles = [powers[i] for i in np.random.default_rng(0).permutation(len(powers))]
    module, made = cache(tools.matmul), {}

    def candidate(number, n):
        mod = module(n)
        sch = Schedule(mod)
        pairs = []
        for loop, inner in zip(sch.get_loops(sch.get_sblock("C")), tiles[number], strict=True):
            tile = sch.sample_perfect_tile(loop, 2, 64, decision=[n // inner, inner])
            pairs.append(sch.split(loop, tile))
        sch.reorder(*(pair[0] for pair in pairs), *(pair[1] for pair in pairs))
        sch.vectorize(pairs[1][1])
        sch.enter_postproc()
        return SimpleNamespace(sch=sch, args_info=ms.arg_info.ArgInfo.from_prim_func(mod["main"]))

    def candidates(numbers, n=64, *, fresh=False):
        """Return the same schedules each time, or other schedules of the same programs."""
        if fresh:
            return [candidate(number, n) for number in numbers]
        for number in numbers:
            if (number, n) not in made:
                made[number, n] = candidate(number, n)
        return [made[number, n] for number in numbers]

    def seconds(number, n=64):
        """Return a time: square tiles of the two outer loops and wide vectors are fast."""
        i, j, _ = (int(np.log2(x)) for x in tiles[number])
        return 1e-4 * (n / 64) * (1 + abs(i - 3) + abs(j - 4) / 2)

    def context(n=64, target=tools.llvm):
        return SimpleNamespace(mod=module(n), target=target, num_threads=1)

    def accuracy(scores, numbers, n=64):
        return pairwise_accuracy(np.array([1 / seconds(number, n) for number in numbers]), scores)

    def batch(numbers, n=64):
        """Return the context, the candidates, and the results of a batch."""
        times = [[seconds(number, n)] * 3 for number in numbers]
        results = [SimpleNamespace(run_secs=one, error_msg=None) for one in times]
        return context(n), candidates(numbers, n), results

    return SimpleNamespace(
        tiles=tiles, context=context, candidates=candidates, accuracy=accuracy, batch=batch
    )


@pytest.fixture
def database(tools, path, opened):
    return opened(path, target=tools.llvm)


#: Of a program that was built.
BUILT = SimpleNamespace(error_msg=None, artifact_path="built.tar")


def store_batch(database, context, candidates, results):
    """Record a batch as MeasureCallback does."""
    record(database._handle, context, candidates, [BUILT] * len(candidates), results)


def predict(model, make, numbers, n=64):
    """Return the scores that a model gives candidates."""
    return model._online.predict(make.context(n), make.candidates(numbers, n))


def measure(model, database, make, numbers, n=64, *, predicts=True, order="before"):
    """Run one round of a search (predict, measure, record, update); return the predictions."""
    batch = make.batch(numbers, n)
    scores = predict(model, make, numbers, n) if predicts else None
    if order == "before":
        store_batch(database, *batch)
    model._online.update(*batch)
    if order == "after":
        store_batch(database, *batch)
    return scores


@pytest.fixture
def model(database, make):
    """A cost model that has learnt from 40 programs that the database has."""
    return trained(database, make, range(40))


def trained(database, make, numbers):
    """Return a cost model that has learnt from those programs, which the database has."""
    model = CostModel(database, recipe=QUICK)
    measure(model, database, make, numbers)
    return model


def learner_of(model):
    """Return the learner of the target that was used last."""
    return next(reversed(model._online._learners.values()))


def scorer(model):
    scoring = learner_of(model).scoring
    return None if scoring is None else scoring.scorer


def failure(message):
    return SimpleNamespace(run_secs=None, error_msg=message)


def scores_of(trials):
    return [trial.score for trial in trials]


def no_features(mods, *_):
    return [PluginError("no")] * len(mods)


@pytest.fixture
def computed(monkeypatch):
    """The number of programs whose rows each call computes."""
    counts, compute = [], features_module.rows_of
    monkeypatch.setattr(
        features_module,
        "rows_of",
        lambda mods, *rest: counts.append(len(mods)) or compute(mods, *rest),
    )
    return counts


def test_defect_9_random_scores_leave_numpys_generator_alone(database, make):
    """TVM's model draws from NumPy's global generator, so equal seeds give no equal runs."""
    before = np.random.get_state()[1].copy()
    first, again = (predict(CostModel(database), make, range(8)) for _ in range(2))
    np.testing.assert_array_equal(before, np.random.get_state()[1])
    assert (first.dtype, len(set(first))) == (np.float64, 8)
    assert first.min() >= 0
    np.testing.assert_array_equal(first, again)
    other = CostModel(database, recipe=Recipe(seed=1))
    assert (predict(other, make, range(8)) != first).all()


def test_too_few_programs_train_no_model(database, make):
    model = trained(database, make, range(training._LEAST - 1))
    assert scorer(model) is None
    measure(model, database, make, range(64, 66))
    assert scorer(model).trained_on == training._LEAST + 1


def test_failures_alone_train_no_model(database, make):
    model = CostModel(database, recipe=QUICK)
    failed = [failure("LocalRunner: Timeout, killed after 1.0 seconds")] * 20
    model._online.update(make.context(), make.candidates(range(20)), failed)
    assert scorer(model) is None
    measure(model, database, make, range(20, 40))
    assert scorer(model).trained_on == 40
    assert scorer(model).row.card["learnt"]["failed"] == {"timeout": 20}


def test_new_model_trains_on_stored_records(database, make, path, tools, opened):
    trained(database, make, range(96))
    database.close()
    database = opened(path, target=tools.llvm)
    models = [CostModel(database, recipe=QUICK) for _ in range(2)]
    unseen = range(96, 160)
    scores = [predict(model, make, unseen) for model in models]
    assert make.accuracy(scores[0], unseen) > 0.8
    np.testing.assert_array_equal(*scores)
    # The rows of the training set were stored; only those of the candidates are computed.
    assert models[0]._online.rows.computed == 64


def test_model_normalises_each_workload_separately(database, make):
    """The programs of a matmul that takes longer do not all count as slow."""
    model = CostModel(database, recipe=QUICK)
    for n in (64, 128):
        measure(model, database, make, range(40), n)
    assert scorer(model).row.card["learnt"]["workloads"] == 2
    for n in (64, 128):
        assert predict(model, make, range(40), n).max() > 0.7


def test_model_is_trained_for_each_target_separately(path, make, tools, opened):
    model = trained(opened(path), make, range(32))
    mine = scorer(model)
    model._online.predict(make.context(target=tools.llvm_other), make.candidates(range(4)))
    assert scorer(model) is None
    predict(model, make, range(4))
    assert scorer(model) is mine


def test_model_retrains_after_a_fifth_more_programs(database, make):
    """Programs that are measured again do not count."""
    model = trained(database, make, range(60))
    first = scorer(model)
    for numbers in (*[range(10)] * 3, range(60, 71)):
        measure(model, database, make, numbers)
        assert scorer(model) is first
    measure(model, database, make, [71])
    assert scorer(model).trained_on == 72


def test_model_retrains_when_trials_of_a_workload_double(database, make, monkeypatch):
    monkeypatch.setattr(learner, "_GROWTH", 100.0)
    monkeypatch.setattr(scoring, "_NO_CARD", 0.0)
    model = CostModel(database, recipe=QUICK)
    learnt = []
    for at in range(0, 224, 32):
        measure(model, database, make, range(at, at + 32))
        learnt.append(scorer(model).trained_on)
    assert learnt == [32, 32, 96, 96, 96, 192, 192]


@pytest.mark.parametrize(
    ("rows", "members", "rounds", "eta"),
    [
        *((20, 1, 60, 0.1), (90, 1, 90, 0.1), (200, 1, 200, 0.1), (200, 2, 150, 0.4 / 3)),
        *((50_000, 1, 40, 0.3), (10**6, 5, 30, 0.3)),
    ],
)
def test_tuning_recipe_bounds_rounds_by_number_of_rows(rows, members, rounds, eta):
    recipe = Recipe(rounds=300, members=members, training_set="first:64")
    recipe = training.tuning_recipe(recipe, rows)
    assert (recipe.rounds, recipe.patience, recipe.training_set) == (rounds, 0, "all")
    assert recipe.eta == pytest.approx(eta)
    few = training.tuning_recipe(Recipe(rounds=7, eta=0.05), rows)
    assert (few.rounds, few.eta) == (7, 0.05)
    assert training.tuning_recipe(Recipe(eta=0.5), rows).eta == 0.5


def test_model_retrains_after_drift(database, make, monkeypatch):
    monkeypatch.setattr(learner, "_GROWTH", 100.0)
    model = trained(database, make, range(40))
    right = scorer(model)
    measure(model, database, make, range(40, 80))
    assert scorer(model) is right
    learner_of(model).use(upside_down(right))
    measure(model, database, make, range(80, 80 + scoring._LEAST - 1))
    assert scorer(model).model.inner is right.model  # too few to tell
    measure(model, database, make, [150])
    assert scorer(model).trained_on == 80 + scoring._LEAST


def upside_down(good):
    """Return a scorer that reverses the ranking of another one."""

    class Contrary:
        inner, columns, recipe = good.model, good.model.columns, good.model.recipe

        def use_threads(self, threads):
            pass

        def scores(self, rows, starts):
            return 1 - good.model.scores(rows, starts)

    return learner.Scorer(Contrary(), good.row, trained_on=40, least=good.least)


def test_limit_of_drift_comes_from_the_model_card(model):
    random = np.random.default_rng(0)
    rows, seconds = [np.zeros((1, 164), np.float32)] * 40, random.random(40)
    scores = np.where(random.random(40) < 0.6, 1 / seconds, random.random(40))
    for p5, drifts in ((0.2, False), (0.9, True)):
        in_use = scoring.Scoring(learner.Scorer(scorer(model).model, scorer(model).row, 40, p5))
        in_use.compare(b"w", rows, scores, seconds)
        assert 0.55 < in_use.accuracy(b"w") < 0.9
        assert in_use.has_drifted(b"w") is drifts


def test_cost_model_starts_with_the_best_stored_model(database, make, monkeypatch):
    trained(database, make, range(64))
    kept = stored.train(database.store, QUICK, evaluate=False)
    model = CostModel(database)
    candidates = make.candidates(range(64, 80))
    scores = predict(model, make, range(64, 80))
    assert scorer(model).id == kept.stored.id
    scored = model._online.rows.scored(model._online._task(make.context()), candidates)
    np.testing.assert_array_equal(scores, kept.model.score_programs([one.rows for one in scored]))
    # The cost model retrains it with its own recipe.
    assert learner_of(model).recipe == QUICK
    # It retrains on later trials together with the earlier ones.
    measure(model, database, make, range(64, 80))
    assert scorer(model).trained_on == 80
    assert scorer(model).id is None
    # A new one does so at once: the database has outgrown the stored model.
    measure(model, database, make, range(80, 120))
    model = CostModel(database)
    predict(model, make, [120])
    assert scorer(model).trained_on == 120
    # One that cannot be read is left out.
    error = UsageError("a newer XGBoost wrote the model")
    monkeypatch.setattr(stored, "load_model", mock.Mock(side_effect=error))
    model = CostModel(database)
    with logged() as warnings:
        predict(model, make, [120])
    (message,) = warnings
    assert "a newer XGBoost" in message
    assert scorer(model).trained_on == 120


@pytest.mark.parametrize(
    ("training_set", "given", "learnt"),
    [("first:16", False, 132), ("all", False, 164), ("first:16", True, 32)],
)
def test_model_trains_on_last_trials(training_set, given, learnt, database, make, monkeypatch):
    """It keeps a model that knows all of them, and one that the user loads."""
    monkeypatch.setattr(learner, "_OWN", 100)
    first = CostModel(database, recipe=QUICK)
    for n, count in ((64, 140), (128, 24)):
        measure(first, database, make, range(count), n)
    recipe = replace(QUICK, training_set=training_set)
    kept = stored.train(database.store, recipe, evaluate=False).stored
    model = CostModel(database)
    if given:
        loaded = learner.scorer_of(stored.load_model(database.store, kept), scorer(first).row)
        loaded.trained_on = 32
        model._online._loaded = loaded
    for _ in range(2):
        predict(model, make, [200])
    # The first 16 trials of both workloads, and the last 100 of the tuned one: none twice.
    assert scorer(model).trained_on == learnt
    assert (scorer(model).id == kept.id) is (training_set == "all")
    # The other workload has no new trials.
    used = scorer(model)
    predict(model, make, [200], 128)
    assert scorer(model) is used


def test_model_computes_rows_of_each_program_once(database, make, computed):
    database._handle.features._names = ()  # nobody but the cost model stores rows
    model = CostModel(database, recipe=QUICK)
    context, candidates, results = make.batch(range(24))
    for _ in range(2):
        model._online.predict(context, candidates)
    store_batch(database, context, candidates, results)
    model._online.update(context, candidates, results)
    sets = database.store.features.sets()
    assert [(one.name, one.programs) for one in sets] == [("tunedb.scheduled", 24)]
    # The rows of another schedule of the same program are stored.
    model._online.update(context, make.candidates(range(24), fresh=True), results)
    assert computed == [24]


@pytest.mark.parametrize(
    ("order", "predicts"), [("before", True), ("before", False), ("after", False)]
)
def test_callback_stores_rows_that_the_model_computed(order, predicts, database, make, computed):
    model = CostModel(database, recipe=QUICK)
    measure(model, database, make, range(24), predicts=predicts, order=order)
    assert computed == [24]
    kept = database.store.features.rows(SCHEDULED, range(1, 25))
    modules = [candidate.sch.mod for candidate in make.candidates(range(24))]
    rows = np.concatenate(features_module.rows_of(modules, make.context().target, SCHEDULED))
    np.testing.assert_array_equal(np.concatenate(kept), rows.astype(np.float32))
    # Without the model the callback computes them.
    computed.clear()
    del model
    store_batch(database, *make.batch(range(24, 30)))
    assert computed == [6]


def test_cache_of_candidate_rows_is_bounded_and_keeps_the_best(make, monkeypatch):
    monkeypatch.setattr(candidate_features, "_BEST", 4)
    monkeypatch.setattr(candidate_features, "_MOST", 6)
    rows = CandidateRows(SCHEDULED)
    task = candidate_features.CandidateTask(make.context(), None, None, 1)
    candidates = make.candidates(range(8))
    asked = rows.scored(task, candidates)

    def remembered():
        return [n for n, one in enumerate(candidates) if rows.recall(one) is not None]

    assert remembered() == []
    rows.remember(asked, np.arange(8.0))
    assert remembered() == [4, 5, 6, 7]
    rows.remember(asked, -np.arange(8.0))
    assert remembered() == [0, 1, 2, 3, 6, 7]
    # Measured programs stay until there is no room, and go first.
    rows.release([asked[0], asked[5]])
    assert remembered() == [0, 1, 2, 3, 5, 6, 7]
    rows.remember(asked[4:5], np.zeros(1))
    assert remembered() == [1, 2, 3, 4, 6, 7]
    assert rows.scored(task, candidates[1:2])[0] is asked[1]


def test_candidates_without_features_come_last(database, make, monkeypatch, model):
    compute = features_module.rows_of

    def broken(mods, *rest):
        rows = compute(mods, *rest)
        rows[1:3] = PluginError("it cannot be read"), np.full((1, 164), np.nan)
        return rows

    monkeypatch.setattr(features_module, "rows_of", broken)
    with logged() as warnings:
        scores = predict(model, make, range(50, 56))
        predict(model, make, range(56, 60))
    (one,) = warnings
    assert "2 of 6 candidates come last: it cannot be read" in one
    assert np.isfinite(scores).all()
    assert set(np.argsort(scores)[:2]) == {1, 2}
    assert scores[[1, 2]].max() < min(0, *scores[[0, 3, 4, 5]])
    # They do not end an update either.
    model._online.update(*make.batch(range(50, 56)))
    assert learner_of(model).scoring.unseen() in (0, 4)


def test_new_model_accepts_batches_without_candidates_or_features(database, make, monkeypatch):
    monkeypatch.setattr(features_module, "rows_of", no_features)
    model = CostModel(database, recipe=QUICK)
    for size in (0, 3):
        np.testing.assert_array_equal(predict(model, make, range(size)), [-1] * size)
        model._online.update(*make.batch(range(size)))


def test_model_ranks_by_features_of_steps(path, make, tools, opened):
    database = opened(path, target=tools.llvm, features=("steps",))
    model = CostModel(database, features="steps", recipe=QUICK)
    measure(model, database, make, range(64))
    unseen = range(64, 128)
    assert make.accuracy(predict(model, make, unseen), unseen) > 0.7
    # Its rows of candidates equal those of stored programs.
    task, candidates = model._online._task(make.context()), make.candidates([3])
    (mine,) = model._online.rows.scored(task, candidates)
    ids = database.store.programs.ids([model._online._program(task, candidates[0]).digest])
    (theirs,) = database.store.features.rows(feature_set("steps"), ids)
    np.testing.assert_array_equal(mine.rows, theirs)


def test_live_trials_equal_the_trials_of_the_database(database, make):
    database._handle.features._names = ()
    model = CostModel(database, recipe=QUICK)
    context, candidates, results = make.batch(range(30))
    results[3] = failure("LocalRunner: An exception occurred\nx")
    results[4] = failure("RPCRunner: An exception occurred\nConnection refused")
    times = {1: [0.0, 3e-4, 5e-4], 2: [0.0], 5: [1e10], 6: [2e-4, 9.0, 3e-4]}
    for number, seconds in times.items():
        results[number].run_secs = seconds
    store_batch(database, context, candidates, results)
    model._online.update(context, candidates, results)
    trials = learner_of(model)._trials
    mine = trials.dataset(SCHEDULED, "median")
    theirs = dataset.load(database.store, SCHEDULED)
    for name in ("program_ids", "seconds", "throughput", "failures", "rows", "starts", "trials"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
    assert len(mine) == 28
    results[0].run_secs = [float("nan")]
    model._online.update(context, candidates[:1], results[:1])
    assert len(trials) == 28


@pytest.mark.parametrize("order", ["before", "after"])
def test_ledger_stores_scores_predicted_before_measurement(order, database, make):
    """TVM's UpdateCostModel omits programs that failed to build, the measure callback does not."""
    model = CostModel(database, recipe=QUICK)
    measure(model, database, make, range(40), order=order)
    used, numbers = scorer(model), range(40, 48)
    predict(model, make, [50])
    context, candidates, results = make.batch(numbers)
    predicted = model._online.predict(context, candidates)
    builds = [BUILT] * 8
    message = "LocalBuilder: a compile error"
    for failed in (1, 4, 5):
        builds[failed] = SimpleNamespace(error_msg=message, artifact_path=None)
        results[failed] = failure(message)

    def update():
        built = [0, 2, 3, 6, 7]
        model._online.update(context, [candidates[i] for i in built], [results[i] for i in built])

    if order == "after":
        update()
    record(database._handle, context, candidates, builds, results)
    if order == "before":
        update()
    model.flush()
    trials = sorted(database.store.training.trials(), key=lambda trial: trial.record_id)
    assert scores_of(trials) == predicted.tolist()
    assert sum(trial.mean is None for trial in trials) == 3
    (row,) = database.store.models.all()
    assert {trial.model_id for trial in trials} == {row.id} == {used.id}
    assert row.size is None
    assert row.card["training"]["tuning"]
    assert (row.digest, row.training_digest) == (used.row.digest, used.row.training_digest)
    assert Recipe.from_dict(row.card["recipe"]).loss == "squared"
    # Measured again, these programs get no new predictions.
    again = make.candidates(numbers, fresh=True)
    model._online.predict(context, again)
    record(database._handle, context, again, builds, results)
    assert (len(model._online.ledger), len(database.store.training.trials())) == (0, 8)


def test_ledger_attributes_predictions_to_the_model_that_made_them(database, make, model):
    """The model may learn from another task's batch between prediction and measurement."""
    first = scorer(model)
    batch = make.batch(range(40, 48))
    predicted = predict(model, make, range(40, 48))
    measure(model, database, make, range(40), 128)
    assert scorer(model) is not first
    store_batch(database, *batch)
    model._online.update(*batch)
    mine = [one for one in database.store.training.trials() if one.model_id == first.id]
    assert scores_of(one for one in mine if one.workload_id == 1) == predicted.tolist()


def test_unpredicted_trials_are_scored_before_training(database, make, model):
    first = scorer(model)
    measure(model, database, make, range(40, 52), predicts=False)
    assert scorer(model) is not first
    trials = database.store.training.trials()
    assert {trial.model_id for trial in trials} == {first.id}
    rows = database.store.features.rows(SCHEDULED, range(41, 53))
    assert scores_of(trials) == first.model.score_programs(rows).tolist()


def test_ledger_skips_programs_that_were_measured_before(path, make, tools):
    """A second run measures the best of the first again, and its model has learnt from them."""
    for numbers in (range(40), range(40), range(30, 44)):
        with closing(Database(path, target=tools.llvm)) as database:
            model = trained(database, make, numbers)
            model.flush()
            trials = [one.program_id for one in database.store.training.trials()]
            assert trials == ([] if numbers[0] == 0 else [41, 42, 43, 44])
    # They do not count as trials that the model has not seen either.
    assert learner_of(model).scoring.unseen() == 4


@pytest.mark.parametrize("order", ["before", "after"])
def test_ledger_skips_infrastructure_failures(order, database, make, model):
    """A broken connection says nothing about a program; its next measurement counts."""
    context, candidates, _ = make.batch(range(40, 44))
    lost = [failure("RPCRunner: TVMError: Connection reset by peer")] * 4
    model._online.predict(context, candidates)
    if order == "before":
        store_batch(database, context, candidates, lost)
    model._online.update(context, candidates, lost)
    assert database.store.training.trials() == []
    measure(model, database, make, range(40, 44), order=order)
    model.flush()
    assert len(database.store.training.trials()) == 4


def test_an_unwritable_ledger_does_not_stop_the_run(database, make, monkeypatch, model):
    full = StorageError(f"{database.store.location}: the disk is full")
    monkeypatch.setattr(database.store.models, "add_predictions", mock.Mock(side_effect=full))
    with logged() as warnings, logged(logging.DEBUG) as all_messages:
        measure(model, database, make, range(40, 44))
        measure(model, database, make, range(44, 46))
    words = "predictions are not stored yet: the disk"
    assert [words in message for message in warnings] == [True]
    assert sum(words in message for message in all_messages) > 1
    monkeypatch.undo()
    model.flush()
    assert len(database.store.training.trials()) == 6


def test_closing_a_database_writes_the_predictions_for_stored_programs(database, make, model, path):
    context, candidates, results = make.batch(range(40, 46))
    model._online.predict(context, candidates)
    model._online.update(context, candidates, results)
    store_batch(database, context, candidates[:4], results[:4])
    assert database.store.training.trials() == []
    with logged(logging.DEBUG) as messages:
        database.close()
        model.flush()
    assert [message for message in messages if "predictions" in message] == []
    with Store(path) as store:
        assert len(store.training.trials()) == 4


def test_ledger_adds_model_again_that_was_pruned_while_in_use(store):
    made = [make_measurement(n) for n in range(2)]
    store.batches.add(made, OWN)
    scorer = Scorer(None, NewModel(bytes(16), "ranker", b"{}", bytes(16), {}, None), 0)
    ledger = Ledger(store)
    ledger.add(scorer, made[0].program.digest, 1.0)
    ledger.write()
    assert store.pruning.remove_model(scorer.id).predictions == 1
    ledger.add(scorer, made[1].program.digest, 2.0)
    ledger.write()
    ledger.write()
    assert len(ledger) == 0
    assert [trial.score for trial in store.training.trials()] == [2.0]


def test_ledger_bounds_predictions_for_programs_that_are_not_stored(database, make, monkeypatch):
    monkeypatch.setattr(ledger, "_MOST_WAITING", 5)
    model = trained(database, make, range(40))
    model._online.update(*make.batch(range(40, 48)))
    assert (len(model._online.ledger), database.store.training.trials()) == (5, [])


def test_ledger_writes_last_batch_when_the_model_is_freed(database, make):
    model = trained(database, make, range(40))
    measure(model, database, make, range(40, 44), order="after")
    assert database.store.training.trials() == []
    del model
    assert len(database.store.training.trials()) == 4


def test_model_trains_on_read_only_database(database, make, path, tools, opened, model):
    before = database.store.counts()
    database.close()
    reader = opened(path, target=tools.llvm, read_only=True)
    model = CostModel(reader, recipe=QUICK)
    assert make.accuracy(predict(model, make, range(40, 50)), range(40, 50)) > 0.6
    model._online.update(*make.batch(range(40, 50)))
    assert scorer(model).trained_on == 50
    assert (reader.store.counts(), reader.store.models.all()) == (before, [])


def test_positive_maps_scores_of_ranking_losses_to_positive_numbers():
    scores = np.array([-800.0, -1.0, 0.0, 2.0])
    assert positive(scores, "squared:0.5") is scores
    np.testing.assert_allclose(positive(scores, "rank:16")[1:], np.exp(scores[1:]))
    for loss in ("rank", "relative:0.5", "another package's"):
        assert (positive(scores, loss) > 0).all()
        # An added constant does not change the proportions.
        one, other = positive(scores[1:], loss), positive(scores[1:] + 3, loss)
        np.testing.assert_allclose(one / one[0], other / other[0])
    # Near the best program, scores of relative become the throughput up to a factor.
    throughput = np.array([0.9, 1.0])
    found = positive(throughput**0.3 - 0.8, "relative")
    assert found[0] / found[1] == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("loss", ["log", "rank"])
def test_models_of_all_losses_rank_unseen_programs(loss, database, make):
    """TVM takes negative scores for 0; a model with only such scores could not guide a search."""
    model = CostModel(database, recipe=Recipe(rounds=25, eta=0.3, loss=loss))
    measure(model, database, make, range(60))
    scores = predict(model, make, range(60, 100))
    assert make.accuracy(np.maximum(scores, 0), range(60, 100)) > 0.7


def half_failing(make, numbers):
    """Return a batch of which programs with wide tiles are timeouts, and which these are."""
    context, candidates, results = make.batch(numbers)
    fails = np.array([make.tiles[number][1] >= 16 for number in numbers])
    for number in np.flatnonzero(fails):
        results[number] = failure("LocalRunner: Timeout, killed after 10.0 seconds")
    return (context, candidates, results), fails


def learn_failures(database, make):
    """Train a model of failures."""
    batch, _ = half_failing(make, range(160))
    store_batch(database, *batch)
    CostModel(database, recipe=QUICK)._online.update(*batch)
    recipe = replace(failures.RECIPE, features="tunedb.scheduled", training_set="all", rounds=40)
    train_failures(database.store, recipe)


def test_model_of_failures_lowers_scores_of_failing_programs(database, make):
    learn_failures(database, make)
    (context, asked, _), will_fail = half_failing(make, range(160, 220))
    avoiding, plain = (CostModel(database, recipe=QUICK, avoid_failures=on) for on in (True, False))
    ranked = plain._online.predict(context, asked)
    # Scores below 0 are lowered, too.
    lost = (ranked - avoiding._online.predict(context, asked)) / np.abs(ranked)
    assert ranked.min() < 0 < lost.min() < lost.max() <= 1
    assert lost[will_fail].mean() > 0.2 > 0.05 > lost[~will_fail].mean()
    # The ledger has the scores of the ranker.
    remembered = [avoiding._online.rows.recall(one).score for one in asked]
    np.testing.assert_array_equal(remembered, ranked)


def test_trials_of_another_target_confirm_a_model_of_failures(database, make, tools):
    learn_failures(database, make)
    context = make.context(target=tools.llvm_other)
    model = CostModel(database, recipe=QUICK)
    model._online.predict(context, make.candidates(range(4)))
    ours = learner_of(model)
    (_, asked, _), will_fail = half_failing(make, range(160, 220))
    rows = features_module.rows_of([one.sch.mod for one in asked], context.target, SCHEDULED)

    def doubtless():
        stack = stacked(rows, len(SCHEDULED.columns))
        found = ours.failures.probabilities(*stack, cautious=True)
        return found[will_fail].mean(), found[~will_fail].mean()

    before, _ = doubtless()
    (_, candidates, results), _ = half_failing(make, range(60))
    model._online.update(context, candidates, results)
    after, others = doubtless()
    assert before < 0.5 < after
    assert others < 0.1
    # TVM does not show a model those that fail to build; a broken connection says nothing.
    candidates = make.candidates(range(60, 68))
    model._online.predict(context, candidates)
    for error, trials in (("RPCRunner: TVMError: Connection reset by peer", 60), ("a bug", 68)):
        builds = [SimpleNamespace(error_msg=error, artifact_path=None)] * 8
        record(database._handle, context, candidates, builds, [failure(None)] * 8)
        assert ours.failures.target.trials == trials
    # It says nothing of targets of other kinds.
    gpu = tvm.target.Target("nvidia/nvidia-a100")
    other = learner.Learner(database.store, ours._options, database._handle.targets.stored(gpu), [])
    other.begin()
    assert other.failures is None


def test_residual_corrects_scores_of_the_measured_workload_only(database, make, monkeypatch):
    """A model that scores all programs of a workload equally is corrected by measurements."""
    monkeypatch.setattr(learner, "_GROWTH", 100.0)
    monkeypatch.setattr(learner, "_ROUND", 1000)
    monkeypatch.setattr(scoring, "_NO_CARD", 0.0)
    model = trained(database, make, range(40))
    blind = upside_down(scorer(model))
    blind.model.scores = lambda rows, starts: np.zeros(len(starts) - 1)
    learner_of(model).use(blind)
    unseen = range(140, 200)
    for at in range(40, 136, 32):
        measure(model, database, make, range(at, at + 32))
    assert make.accuracy(predict(model, make, unseen), unseen) > 0.7
    # The ledger has the scores of the model itself; other workloads are not corrected.
    assert set(scores_of(database.store.training.trials())) == {0.0}
    np.testing.assert_array_equal(predict(model, make, range(8), 128), np.zeros(8))
    # A batch without features is not corrected.
    with monkeypatch.context() as patch:
        patch.setattr(features_module, "rows_of", no_features)
        np.testing.assert_array_equal(predict(model, make, range(200, 203)), [-1, -1, -1])
    plain = CostModel(database, recipe=QUICK, residuals=False)
    predict(plain, make, [0])
    learner_of(plain).use(blind)
    measure(plain, database, make, range(40, 80))
    assert set(predict(plain, make, unseen)) == {0.0}


def test_saved_model_predicts_the_same_elsewhere(database, make, tmp_path, model, opened):
    predicted, saved = predict(model, make, range(40, 60)), scorer(model).row.digest
    file = tmp_path / "model.tunedb"
    file.write_text("what was there before")
    model.save(str(file))
    assert [p.name for p in tmp_path.iterdir() if "model" in p.name] == ["model.tunedb"]
    other = opened(tmp_path / "other.db")
    loaded = CostModel(other)
    loaded.load(str(file))
    np.testing.assert_array_equal(predict(loaded, make, range(40, 60)), predicted)
    # Its predictions are traced to the model that was saved.
    measure(loaded, other, make, range(40, 44))
    (row,) = other.store.models.all()
    assert (row.digest, len(other.store.training.trials(row.id))) == (saved, 4)
    # Loading replaces the model in use.
    measure(model, database, make, range(40, 100))
    assert scorer(model).row.digest != saved
    model.load(str(file))
    assert scorer(model).row.digest == saved


def test_defect_5_a_model_that_was_saved_before_training_loads(database, make, tmp_path):
    """TVM's model raises UnboundLocalError."""
    CostModel(database).save(str(tmp_path / "m"))
    model = CostModel(database, recipe=QUICK)
    model.load(str(tmp_path / "m"))
    assert predict(model, make, range(4)).shape == (4,)
    measure(model, database, make, range(40))
    assert scorer(model).trained_on == 40


def test_load_and_save_raise_errors_of_tunedb_through_tvm(database, tmp_path):
    model = CostModel(database)
    with pytest.raises(NotFoundError, match="no such file; save a cost model there first"):
        model.load(str(tmp_path / "nothing"))
    with pytest.raises(StorageError, match=r"cannot be written \(No such file"):
        model.save(str(tmp_path / "nowhere" / "m"))
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        model.load(str(tmp_path))


def test_load_rejects_damaged_newer_large_and_other_files(model, tmp_path, database, monkeypatch):
    saved = tmp_path / "m"

    def assert_rejected(error, words, data, **options):
        saved.write_bytes(data)
        with pytest.raises(error, match=words):
            CostModel(database, **options).load(str(saved))

    model.save(str(saved))
    data = saved.read_bytes()
    features = r"m: the model was trained on features tunedb.scheduled"
    assert_rejected(UsageError, features, data, features="steps")
    for place in (18, 40, len(data) - 1):
        flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        assert_rejected(FormatError, r"m: the file is damaged; save", flipped)
    # TVM's own is a tar of pickles, which is never opened.
    for other in (b"", data[:5], b"PK\3\4 something else"):
        assert_rejected(FormatError, "not a tunedb cost model", other)
    for short in (data[:18], data[:40], data[:-1]):
        assert_rejected(FormatError, "damaged", short)
    for header in (b"7", b'{"digest":"00"}', b'{"digest":1,"kind":2}', b"not json"):
        payload = len(header).to_bytes(4, "little") + header
        whole = data[:18] + identity.digest("cost model", payload) + payload
        assert_rejected(FormatError, r"another header|JSON", whole)
    newer = data[:17] + b"\x02" + data[18:]
    assert_rejected(UsageError, "a newer tunedb saved this", newer)
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 1000)
    assert_rejected(LimitError, "over 1000 bytes", newer)


def test_cost_model_takes_a_database_of_tunedb_or_its_path(path, make):
    model = CostModel(path, recipe=QUICK)
    assert path.exists()
    model._online.update(*make.batch(range(20)))
    assert scorer(model).trained_on == 20
    for database, name in ((ms.database.MemoryDatabase(), "_?MemoryDatabase"), (None, "NoneType")):
        with pytest.raises(PluginError, match=rf"needs a tunedb database, not {name}"):
            CostModel(database)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"features": "nonsense"}, NotFoundError, "no feature set 'nonsense'"),
        ({"features": "autotvm.itervar"}, UsageError, "a varying number of columns"),
        ({"recipe": Recipe(loss="nonsense")}, NotFoundError, "no loss 'nonsense'; there are: log"),
        ({"device": "gpu_hist"}, UsageError, "device must be one of cpu, cuda, not 'gpu_hist'"),
        ({"threads": 0}, UsageError, "threads must be 1 or more, not 0"),
    ],
)
def test_cost_model_rejects_invalid_options(options, error, words, database):
    with pytest.raises(error, match=words):
        CostModel(database, **options)


def test_predict_rejects_context_without_target(database, make):
    with pytest.raises(PluginError, match="the tuning context has no target"):
        CostModel(database)._online.predict(make.context(target=None), [])


def test_cost_model_cannot_be_copied(database):
    model = CostModel(database)
    for attempt in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="create another one"):
            attempt(model)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_defects_4_and_6_hist_is_pinned_and_device_reaches_xgboost(
    device, database, make, monkeypatch
):
    """TVM drops tree_method, and offers gpu_hist, which XGBoost 3 refuses, instead of a device."""
    seen = []
    settings = training.parameters

    def watched(*args, **named):
        found = settings(*args, **named)
        seen.append(dict(found))
        return found | {"device": "cpu"}

    monkeypatch.setattr(training, "parameters", watched)
    model = CostModel(database, recipe=QUICK, device=device)
    measure(model, database, make, range(40))
    assert {one["tree_method"] for one in seen} == {"hist"}
    assert {one["device"] for one in seen} == {device}
