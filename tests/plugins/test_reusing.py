"""No program is built and run twice, also with TVM's own search strategies."""

from __future__ import annotations

from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from effort import long
from fake_measuring import FakeBuilder, FakeRunner, hash_of, seconds_of, tune
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder.local_builder import default_export
from tvm.s_tir.meta_schedule.measure_callback.measure_callback import _PyMeasureCallback

from tunedb.errors import PluginError
from tunedb.plugins.metaschedule import Database, MeasureCallback
from tunedb.plugins.metaschedule.database.database import handle_of
from tunedb.plugins.metaschedule.database.handle import Candidate
from tunedb.plugins.metaschedule.measure.measured import Known, is_served
from tunedb.plugins.metaschedule.measure.reuse import ReusingBuilder, ReusingRunner
from tunedb.plugins.metaschedule.workers.build_worker import default_build
from tunedb.records import Failure, FailureKind, Phase

TILES = [(16, 1), (8, 2), (4, 4), (2, 8), (1, 16)]

#: Times or failure of each program; the last program is not known.
OUTCOMES = [
    (0.001, 0.002),
    Failure(FailureKind.COMPILE_ERROR, Phase.BUILD, "LocalBuilder: An exception occurred\nno"),
    (0.1 + 0.2, 1e-300),
    Failure(FailureKind.TIMEOUT, Phase.RUN, "LocalRunner: Timeout, killed after 30 seconds", 30.0),
]


class Batch:
    """Programs of one workload, the first ones known, as TVM hands them to builder and runner."""

    def __init__(self, path, tools, *, remeasure=False):
        self.database = Database(path, target=tools.llvm)
        handle, mod = handle_of(self.database), tools.matmul(16)
        workload = handle.commit_workload(mod)
        records = [tools.record(mod, workload, [1.0], tile=tile) for tile in TILES]
        failures = [one if isinstance(one, Failure) else None for one in OUTCOMES]
        handle.record_batch(
            Candidate(
                workload, r.trace, tools.llvm, r.args_info, (1e10,) if fault else times, fault
            )
            for r, times, fault in zip(records, OUTCOMES, failures, strict=False)
        )
        self.inputs = []
        for record in records:
            schedule = Schedule(mod)
            record.trace.apply_to_schedule(schedule, remove_postproc=False)
            self.inputs.append(ms.builder.BuilderInput(schedule.mod, tools.llvm))
        self.args = records[0].args_info
        self.known = Known(handle, remeasure=remeasure)
        self.number_known = self.known.prepare(mod, tools.llvm)
        self.inner = FakeBuilder(), FakeRunner()
        self.builder = ReusingBuilder(self.inner[0], self.known)
        self.runner = ReusingRunner(self.inner[1], self.known)

    def measure(self, order):
        """Build and run programs by their numbers; return the results of both."""
        builds = ms.builder.Builder.build(self.builder, [self.inputs[n] for n in order])
        made = [build for build in builds if build.error_msg is None]
        inputs = [ms.runner.RunnerInput(one.artifact_path, "cpu", self.args) for one in made]
        futures = ms.runner.Runner.run(self.runner, inputs)
        assert all(future.done() for future in futures)
        return list(builds), [future.result() for future in futures]


@pytest.fixture
def batch(sqlite_file, tools):
    batch = Batch(sqlite_file, tools)
    yield batch
    batch.database.close()


def test_known_programs_are_served_in_their_places(batch):
    assert batch.number_known == 4
    builds, runs = batch.measure([4, 0, 3, 1, 2])
    assert [is_served(build) for build in builds] == [False, True, True, True, True]
    (builder, runner), new = batch.inner, hash_of(batch.inputs[4].mod)
    assert (builder.built, builder.batches) == ([new], [1])
    assert (runner.ran, runner.batches) == ([new], [1])
    assert (batch.runner.served, batch.runner.measured) == (4, 1)
    times = [None if one.run_secs is None else tuple(map(float, one.run_secs)) for one in runs]
    assert times == [seconds_of(new), OUTCOMES[0], None, OUTCOMES[2]]
    assert builds[3].error_msg.startswith("tunedb: known to fail (compile_error)\nLocalBuilder")
    assert runs[2].error_msg.startswith("tunedb: known to fail (timeout)\nLocalRunner: Timeout")


def test_each_served_program_has_an_artifact_folder_of_its_own(batch):
    builds, _ = batch.measure([0, 2, 2])
    assert [one.batches for one in batch.inner] == [[], []]
    folders = [Path(build.artifact_path).parent for build in builds]
    assert len(set(folders)) == 3
    ms.utils.remove_build_dir(builds[1].artifact_path)
    assert [folder.exists() for folder in folders] == [True, False, True]
    root = folders[0].parent
    del batch.builder
    assert not root.exists()


class Mute:
    """A builder and runner that return no results."""

    def build(self, _inputs):
        return []

    run = build


def test_wrong_number_of_results_is_rejected(batch):
    with pytest.raises(PluginError, match="the builder gave 0 results for 1 candidates"):
        ReusingBuilder(Mute(), batch.known).build(batch.inputs)
    unknown = ms.runner.RunnerInput("/nowhere/artifact", "cpu", batch.args)
    with pytest.raises(PluginError, match="the runner gave 0 results for 1 candidates"):
        ReusingRunner(Mute(), batch.known).run([unknown])


def fail_some(hash_):
    """Return an error for a third of the programs."""
    return "LocalBuilder: An exception occurred\nLLVM ERROR: x" if hash_ % 3 == 0 else None


def run_some(hash_):
    return "LocalRunner: An exception occurred\nSubprocess terminated" if hash_ % 5 == 0 else None


@contextmanager
def knowing(path, mod, target):
    """Open a database as a tuning run does, which knows what earlier runs measured."""
    with Database(path, target=target) as database:
        known = Known(handle_of(database))
        known.prepare(mod, target)
        yield database, known


def test_repeated_runs_measure_no_program_twice(sqlite_file, tools, tmp_path):
    """TVM's own strategy proposes some programs again, and they are served."""
    mod = tools.matmul(2)
    seen: set[int] = set()
    for seed in (1, 2, 3):
        with knowing(sqlite_file, mod, tools.llvm) as (database, known):
            builder, runner = FakeBuilder(fail_some), ReusingRunner(FakeRunner(run_some), known)
            parts = {"builder": ReusingBuilder(builder, known), "runner": runner}
            tune(mod, tools.llvm, database, tmp_path, seed=seed, **parts)
            counts = database.store.counts()
        assert len(set(builder.built)) == len(builder.built)
        assert not set(builder.built) & seen
        seen |= set(builder.built)
        assert counts.measurements == counts.programs == len(seen)
        assert runner.served + len(builder.built) == 16
    assert len(seen) < 48


def test_remeasure_builds_and_runs_all_programs(sqlite_file, tools):
    batch = Batch(sqlite_file, tools, remeasure=True)
    assert batch.number_known == 0
    builds, _ = batch.measure([4, 0, 3, 1, 2])
    assert not any(is_served(build) for build in builds)
    builder, runner = batch.inner
    assert (builder.batches, runner.batches) == ([5], [5])
    assert (batch.runner.served, batch.runner.measured) == (0, 5)
    batch.database.close()


class Watch(_PyMeasureCallback):
    """Stores what a callback gets."""

    __slots__ = ("__dict__", "__weakref__")

    def __init__(self):
        self.seen = seen = []

        def apply(_scheduler, _task_id, candidates, builds, runs):
            for candidate, build, run in zip(candidates, builds, runs, strict=True):
                times = None if run.run_secs is None else tuple(map(float, run.run_secs))
                seen.append((hash_of(candidate.sch.mod), is_served(build), times, run.error_msg))

        super().__init__(apply)


def test_callbacks_see_served_results_as_ordinary_ones(sqlite_file, tools, tmp_path):
    """The strategy proposes equal programs again, so all of the second run are served."""
    mod, watch = tools.matmul(64), Watch()
    for served in (False, True):
        watch.seen.clear()
        with knowing(sqlite_file, mod, tools.llvm) as (database, known):
            options = {
                **{"trials": 12, "num_trials_per_iter": 4, "strategy": "replay-trace", "seed": 3},
                "builder": ReusingBuilder(FakeBuilder(fail_some), known),
                "runner": ReusingRunner(FakeRunner(run_some), known),
                "measure_callbacks": [MeasureCallback(database), watch],
            }
            tune(mod, tools.llvm, database, tmp_path, **options)
            assert len(database) == 12
        assert [one[1] for one in watch.seen] == [served] * 12
        for hash_, _, times, error in watch.seen:
            failed = fail_some(hash_) or run_some(hash_)
            assert times == (None if failed else seconds_of(hash_))
            assert (error is not None) == bool(failed)


@pytest.mark.parametrize(("behaviour", "kind"), [long("hang", "timeout"), ("die", "crash")])
def test_programs_that_hang_or_die_are_not_tried_again(
    sqlite_file, tools, tmp_path, behaviour, kind
):
    """TVM's own runner loses its worker with such a program."""

    def evaluate(_module, _device, _config, _arguments):
        import os
        import time

        if behaviour == "die":
            os._exit(3)
        time.sleep(60)

    def build(inputs):
        modules = [default_build(one.mod, one.target, None) for one in inputs]
        return [ms.builder.BuilderResult(default_export(one), None) for one in modules]

    mod = tools.matmul(64)
    runner = ms.runner.LocalRunner(timeout_sec=1.0, f_run_evaluator=evaluate)
    for served in (0, 1):
        with (
            knowing(sqlite_file, mod, tools.llvm) as (database, known),
            closing(FakeBuilder()) as builder,
        ):
            if not served:
                builder.build = build
            outer = ReusingRunner(runner, known)
            parts = {"builder": ReusingBuilder(builder, known), "runner": outer}
            options = {"trials": 1, "strategy": "replay-trace", **parts}
            tune(mod, tools.llvm, database, tmp_path, **options)
            assert (outer.served, outer.measured) == (served, 1 - served)
            assert database.store.records.failures() == {kind: 1}
            assert len(database) == 1
