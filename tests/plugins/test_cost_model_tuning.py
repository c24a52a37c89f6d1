"""Tuning runs of TVM MetaSchedule with tunedb's cost model."""

from __future__ import annotations

import itertools
from contextlib import closing
from unittest import mock

import fake_measuring
import numpy as np
import pytest
import tvm
from effort import long
from fake_measuring import FakeBuilder, FakeRunner
from tvm.s_tir import meta_schedule as ms

import tunedb
from tunedb.models.metrics import pairwise_accuracy
from tunedb.models.recipe import Recipe
from tunedb.plugins.metaschedule import CostModel, Database, MeasureCallback, WarmBuilder
from tunedb.plugins.metaschedule.cost_model import online
from tunedb.plugins.metaschedule.cost_model.scoring import positive
from tunedb.plugins.metaschedule.features import rows as features_module

ROUNDS, TRIALS = 3, 16
QUICK = Recipe(rounds=20, eta=0.3, max_depth=4)


def every(number, error):
    """Return a function that returns an error for every `number`-th candidate, else None."""
    asked = itertools.count(1)
    return lambda _: None if next(asked) % number else error


def tune(model, database, tmp_path, tools, trials=TRIALS, rounds=ROUNDS, **options):
    """Tune; every seventh candidate fails to build, and every eleventh fails in its run."""
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=32, genetic_num_iters=2, init_min_unmeasured=16
    )
    defaults = {
        "builder": FakeBuilder(every(7, "LocalBuilder: An exception occurred\nno")),
        "runner": FakeRunner(every(11, "LocalRunner: Timeout, killed after 10.0 seconds")),
        **{"measure_callbacks": "default", "strategy": strategy, "trials": rounds * trials},
        **{"cost_model": model, "num_trials_per_iter": trials, "target": tools.llvm},
    }
    mod = tools.matmul(64)
    return fake_measuring.tune(mod, database=database, work_dir=tmp_path, **(defaults | options))


@pytest.fixture
def watched(monkeypatch):
    """The predictions of each call: scorer, traces and scores."""
    calls = []
    predict = online.OnlineModel.predict

    def watch(self, context, candidates):
        found = predict(self, context, candidates)
        traces = [candidate.sch.trace for candidate in candidates]
        scoring = next(reversed(self._learners.values())).scoring
        calls.append((None if scoring is None else scoring.scorer, traces, found.copy()))
        return found

    monkeypatch.setattr(online.OnlineModel, "predict", watch)
    return calls


@pytest.fixture
def extracted(monkeypatch):
    """The modules of all schedules whose rows were computed."""
    modules = []
    compute = features_module.rows_of
    monkeypatch.setattr(
        features_module, "rows_of", lambda mods, *rest: modules.extend(mods) or compute(mods, *rest)
    )
    return modules


CALLBACKS = {
    "default": lambda database: "default",
    "ours": lambda database: [
        MeasureCallback(database),
        ms.measure_callback.RemoveBuildArtifact(),
        ms.measure_callback.UpdateCostModel(),
    ],
    "last": lambda database: [
        ms.measure_callback.UpdateCostModel(),
        ms.measure_callback.AddToDatabase(),
    ],
}


@pytest.mark.parametrize("callbacks", ["default", "ours", long("last")])
def test_ledger_equals_predictions_of_the_run(callbacks, tools, tmp_path, watched, opened):
    database = opened(tmp_path / "tune.db", target=tools.llvm)
    model = CostModel(database, recipe=QUICK, residuals=False)
    tune(model, database, tmp_path, tools, measure_callbacks=CALLBACKS[callbacks](database))
    model.flush()
    predicted = {}
    for scorer, traces, scores in watched:
        for trace, score in zip(traces, scores, strict=True):
            if scorer is not None:
                predicted[online.trace_codec.encode(trace)] = (scorer, score)
    trials = database.store.training.trials()
    programs = {one.id: one for one in database.store.programs.get([t.program_id for t in trials])}
    # The built ones of the first 16 are too few to train on; at least one round had a model.
    assert len(trials) >= 0.8 * TRIALS
    for trial in trials:
        scorer, score = predicted[programs[trial.program_id].trace]
        # The search gets positive scores; the ledger has the scores of the model itself.
        assert trial.model_id == scorer.id
        assert positive(np.array([trial.score]), QUICK.loss)[0] == pytest.approx(score, rel=1e-12)
    assert {row.id for row in database.store.models.all()} >= {t.model_id for t in trials}
    if callbacks == "ours":
        # It has each predicted trial, also those that failed to build. There was no model yet when
        # the trials of the first two rounds were measured.
        known = {trial.program_id for trial in trials}
        rest = range(1 + 2 * TRIALS, 1 + database.store.records.count())
        programs = database.store.programs.get(rest)
        assert [one for one in programs if one.trace in predicted and one.id not in known] == []
        assert any(trial.mean is None for trial in trials)


def test_second_run_predicts_from_its_first_round_on(tools, tmp_path, watched, extracted, opened):
    path = tmp_path / "tune.db"
    with closing(Database(path, target=tools.llvm, features=())) as database:
        tune(CostModel(database, recipe=QUICK), database, tmp_path, tools)
        # A run computes the features of each schedule once.
        assert len(extracted) > 2 * TRIALS
        assert len({mod.__chandle__() for mod in extracted}) == len(extracted)
        # The rows of all programs that a model can learn from are stored.
        (stored,) = database.store.features.sets()
        failed_to_build = ROUNDS * TRIALS // 7
        assert stored.programs >= ROUNDS * TRIALS - failed_to_build - 2
    assert watched[0][0] is None
    watched.clear()
    with closing(Database(path, target=tools.llvm)) as database:
        tune(CostModel(database, recipe=QUICK), database, tmp_path, tools, rounds=1, seed=2)
    first, _, scores = watched[0]
    assert first.trained_on >= 2 * TRIALS
    assert len(np.unique(scores)) > 4
    # The first batch of the second run was predicted, and is in the ledger.
    database = opened(path, target=tools.llvm, read_only=True)
    assert first.id in {trial.model_id for trial in database.store.training.trials()}


@pytest.mark.stress
def test_runs_with_equal_seeds_predict_equal_scores(tools, tmp_path, watched):
    found = []
    for name in ("a.db", "b.db"):
        with closing(Database(tmp_path / name, target=tools.llvm)) as database:
            tune(CostModel(database, recipe=QUICK), database, tmp_path, tools)
        found.append([scores for _, _, scores in watched])
        watched.clear()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_errors_keep_their_type_through_tvm(tools, tmp_path, monkeypatch, opened):
    database = opened(tmp_path / "tune.db", target=tools.llvm)
    model = CostModel(database, recipe=QUICK)
    fail = mock.Mock(side_effect=tunedb.PluginError("XGBoost is gone"))
    monkeypatch.setattr("tunedb.plugins.metaschedule.cost_model.learner.fit", fail)
    with pytest.raises(tunedb.PluginError, match="XGBoost is gone"):
        tune(model, database, tmp_path, tools)
    # All measurements before the error are stored.
    assert TRIALS <= len(database) < ROUNDS * TRIALS


@pytest.mark.stress
def test_saved_model_of_real_run_ranks_its_programs(tools, tmp_path, opened):
    """Candidates are built and measured on this machine."""
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": cpu})
    config = ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=2)
    database = opened(tmp_path / "tune.db", target=target)
    model = CostModel(database, recipe=QUICK)
    with WarmBuilder(max_workers=2) as builder:
        tune(
            *(model, database, tmp_path, tools),
            target=target,
            trials=10,
            builder=builder,
            runner=ms.runner.LocalRunner(evaluator_config=config),
            measure_callbacks=CALLBACKS["ours"](database),
        )
    assert (len(database), len(database.store.training.trials())) == (ROUNDS * 10, 10)
    model.save(str(tmp_path / "model"))
    loaded = CostModel(tmp_path / "other.db")
    loaded.load(str(tmp_path / "model"))
    scorer = loaded._online._loaded
    records = [one for one in database.store.records.iterate() if one.mean is not None]
    ids = database.store.programs.ids([one.measurement.program.digest for one in records])
    rows = database.store.features.rows(loaded._online.rows.feature_set, ids)
    scores = scorer.model.score_programs(rows)
    assert pairwise_accuracy(np.array([1 / one.mean for one in records]), scores) > 0.6
