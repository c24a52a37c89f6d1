"""Tuning runs of TVM MetaSchedule with tunedb as their database."""

from __future__ import annotations

import itertools
import tempfile

import numpy as np
import pytest
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult

import tunedb
from tunedb.plugins.metaschedule import Database, MeasureCallback, WarmBuilder
from tunedb.system.temporary import TemporaryFolder

TRIALS = 16

#: What the stand-ins answer, in turn: (build error, run error, run_secs).
OUTCOMES = [
    (None, None, [0.003, 0.002]),
    ("LocalBuilder: Timeout, killed after 30.0 seconds", None, None),
    ("LocalBuilder: An exception occurred\nLLVM ERROR: broken", None, None),
    (None, "LocalRunner: Timeout, killed after 10.0 seconds", None),
    (None, "LocalRunner: An exception occurred\nSubprocess terminated", None),
    (None, "LocalRunner: An exception occurred\nNot equal to tolerance rtol=1e-05", None),
    (None, "RPCRunner: An exception occurred\nConnection refused", None),
    (None, None, [0.001, 0.001, 0.004]),
]


@derived_object
class _Builder(PyBuilder):
    def __init__(self):
        super().__init__()
        self.turn = itertools.count()
        self.folder = TemporaryFolder("test")

    def build(self, build_inputs):
        errors = [OUTCOMES[next(self.turn) % len(OUTCOMES)][0] for _ in build_inputs]
        return [
            BuilderResult(
                None if error else tempfile.mkdtemp(dir=self.folder.path) + "/x.tar", error
            )
            for error in errors
        ]


@derived_object
class _Future(PyRunnerFuture):
    def __init__(self, result):
        super().__init__()
        self.value = result

    def done(self):
        return True

    def result(self):
        return self.value


@derived_object
class _Runner(PyRunner):
    def __init__(self):
        super().__init__()
        # Runners see only what was built.
        self.turn = itertools.cycle([o for o in OUTCOMES if o[0] is None])

    def run(self, runner_inputs):
        outcomes = [next(self.turn) for _ in runner_inputs]
        return [_Future(RunnerResult(times, error)) for _, error, times in outcomes]


def _tune(mod, target, database, callbacks, tmp_path, *, builder=None, runner=None, seed=1):
    return ms.tune_tir(
        mod,
        target,
        str(tmp_path),
        TRIALS,
        num_trials_per_iter=8,
        builder=builder or _Builder(),
        runner=runner or _Runner(),
        database=database,
        cost_model="random",
        measure_callbacks=callbacks,
        strategy=ms.search_strategy.EvolutionarySearch(
            population_size=16, genetic_num_iters=1, init_min_unmeasured=8
        ),
        num_tuning_cores=1,
        seed=seed,
    )


@pytest.mark.parametrize("order", ["alone", "before", "after", "tvm"])
def test_each_candidate_is_recorded_once(order, tools, tmp_path, opened):
    database = opened(tmp_path / "tune.db", target=tools.llvm)
    ours = MeasureCallback(database)
    theirs = ms.measure_callback.AddToDatabase()
    callbacks = {
        "alone": [ours],
        "before": [ours, theirs],
        "after": [theirs, ours],
        "tvm": [theirs],
    }[order]
    returned = _tune(tools.matmul(64), tools.llvm, database, callbacks, tmp_path)
    assert returned is database
    assert len(database) == TRIALS
    counts = database.store.counts()
    assert (counts.measurements, counts.failed, counts.sessions) == (TRIALS, 12, 1)
    records = list(database.store.records.iterate())
    assert [r.measurement.occurrence for r in records] == list(range(TRIALS))
    ok = sorted(r.measurement.run_secs for r in records if r.measurement.status == 0)
    assert ok == sorted(2 * [(0.003, 0.002), (0.001, 0.001, 0.004)])
    kinds = database.store.records.failures()
    if order == "tvm":
        assert kinds == {}
    else:
        assert kinds == {
            "timeout": 4,
            "compile_error": 2,
            "crash": 2,
            "wrong_result": 2,
            "infrastructure": 2,
        }
        failures = [r.measurement.failure for r in records if r.measurement.failure]
        assert {f.seconds for f in failures if f.kind == "timeout"} == {30.0, 10.0}
        assert {f.phase.value for f in failures} == {"build", "run"}
    fingerprint = records[0].measurement.session.fingerprint
    for key in (b"cpu", b"cores", b"os", b"tvm", b"tvm_ffi", b"llvm", b"tunedb"):
        assert b'"%s"' % key in fingerprint
    assert all(r.measurement.measured_at > 0 for r in records)


def test_default_callbacks_and_a_second_run_that_starts_from_the_first(tools, tmp_path):
    """The list of default callbacks works, and evolution takes its start from what is stored."""
    database = Database(tmp_path / "tune.db", target=tools.llvm)
    mod = tools.matmul(64)
    _tune(mod, tools.llvm, database, "default", tmp_path)
    database.close()

    database = Database(tmp_path / "tune.db", target=tools.llvm)
    asked = []
    original = database.store.answers.best_ids
    database.store.answers.best_ids = lambda *a: asked.append(original(*a)) or asked[-1]
    _tune(mod, tools.llvm, database, "default", tmp_path, seed=2)
    assert asked and len(asked[0]) == 3  # int(population 16 * ratio 0.2), all from the first run
    assert len(database) == 2 * TRIALS
    assert database.store.counts().sessions == 2
    database.close()


def test_callback_without_a_tunedb_database_says_so(tools, tmp_path):
    with pytest.raises(tunedb.PluginError, match=r"MeasureCallback\(database\)"):
        _tune(
            tools.matmul(64),
            tools.llvm,
            ms.database.MemoryDatabase(),
            [MeasureCallback()],
            tmp_path,
        )


def test_callback_finds_the_database_of_the_run(tools, tmp_path, opened):
    database = opened(tmp_path / "tune.db", target=tools.llvm)
    _tune(tools.matmul(64), tools.llvm, database, [MeasureCallback()], tmp_path)
    assert len(database) == TRIALS


@pytest.mark.stress
def test_real_run_end_to_end(tools, tmp_path, opened):
    """Build, measure, ask, compile: the best program computes what NumPy computes."""
    target = tvm.target.Target(
        {"kind": "llvm", "num-cores": 2, "mcpu": tvm.target.codegen.llvm_get_system_cpu()}
    )
    database = opened(tmp_path / "tune.db")
    mod = tools.matmul(64)
    config = ms.runner.EvaluatorConfig(number=1, repeat=2, min_repeat_ms=1)
    with WarmBuilder(max_workers=2) as builder:
        _tune(
            mod,
            target,
            database,
            [MeasureCallback(database), ms.measure_callback.RemoveBuildArtifact()],
            tmp_path,
            builder=builder,
            runner=ms.runner.LocalRunner(evaluator_config=config),
        )
    best = database.store.records.best([1])
    assert best is not None
    assert len(best.measurement.run_secs) == 2
    schedule = database.query_schedule(mod, target, "main")
    compiled = tvm.compile(schedule.mod, target=target)
    rng = np.random.default_rng(0)
    a, b = (rng.random((64, 64), dtype="float32") for _ in range(2))
    arrays = [tvm.runtime.tensor(x) for x in (a, b, np.zeros((64, 64), "float32"))]
    compiled["main"](*arrays)
    np.testing.assert_allclose(arrays[2].numpy(), a @ b, rtol=1e-4)
