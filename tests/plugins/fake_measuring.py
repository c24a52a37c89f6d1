"""A builder and a runner that measure nothing; the times of a program follow from its module."""

from __future__ import annotations

import tempfile
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import tvm_ffi
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder.builder import BuilderResult, _PyBuilder
from tvm.s_tir.meta_schedule.runner.runner import RunnerFuture, RunnerResult, _PyRunner

from tunedb.system.temporary import TemporaryFolder


def seeded_model():
    """Return a random model; TVM's ``"random"`` has no seed."""
    return ms.cost_model.RandomModel(seed=1)


def let_batches_take_equal_time(monkeypatch):
    """Make the order of the tasks depend on the seed, not on the load of the machine."""
    clock = SimpleNamespace(perf_counter=count().__next__, monotonic=time.monotonic)
    monkeypatch.setattr("tunedb.plugins.metaschedule.tuning.scheduler.time", clock)


def hash_of(mod):
    return int(tvm_ffi.structural_hash(mod)) % 2**63


def seconds_of(hash_):
    return (1e-4 * (1 + hash_ % 1009), 1e-4 * (1 + hash_ % 1013))


class FakeBuilder(_PyBuilder):
    """Writes the hash of a module in place of its artifact; `errors` says which ones fail."""

    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, errors=lambda _: None):
        self.built, self.batches = built, batches = [], []
        # The builder removes the artifacts that RemoveBuildArtifact leaves.
        folder = TemporaryFolder("test")

        def build(inputs):
            batches.append(len(inputs))
            return [one(item.mod) for item in inputs]

        def one(mod):
            hash_ = hash_of(mod)
            built.append(hash_)
            if (error := errors(hash_)) is not None:
                return BuilderResult(None, error)
            path = Path(tempfile.mkdtemp(dir=folder.path), "artifact")
            path.write_text(str(hash_))
            return BuilderResult(str(path), None)

        super().__init__(build)
        self.build = build
        self.close = folder.close


class FakeRunner(_PyRunner):
    """Answers with the times that follow from the artifact; `errors` says which ones fail."""

    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, errors=lambda _: None, on_run=lambda _: None, scale=1.0, seconds=seconds_of):
        self.ran, self.batches = ran, batches = [], []

        def run(inputs):
            batches.append(len(inputs))
            return [one(Path(str(item.artifact_path))) for item in inputs]

        def one(path):
            hash_ = int(path.read_text())
            ran.append(hash_)
            on_run(hash_)
            error = errors(hash_)
            result = RunnerResult(None if error else [scale * x for x in seconds(hash_)], error)
            return RunnerFuture(lambda: True, lambda: result)

        super().__init__(run)
        self.run = run


def tune(mod, target, database, work_dir, *, builder, runner, trials=16, seed=1, **more):
    """Tune with TVM's own evolution, few candidates and random scores."""
    from tunedb.plugins.metaschedule import MeasureCallback

    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=16, genetic_num_iters=1, init_min_unmeasured=8
    )
    callbacks = [MeasureCallback(database), ms.measure_callback.RemoveBuildArtifact()]
    options = {
        **{"builder": builder, "runner": runner, "database": database, "seed": seed},
        **{"num_trials_per_iter": 8, "num_tuning_cores": 1},
        **{"cost_model": seeded_model(), "measure_callbacks": callbacks, "strategy": strategy},
    }
    return ms.tune_tir(mod, target, str(work_dir), trials, **(options | more))
