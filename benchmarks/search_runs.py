"""Runs of the tuners that `search.py` compares, with the curve of each."""

from __future__ import annotations

import logging
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import tvm_ffi
from common import local_builder
from measured import this_machine
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.measure_callback.measure_callback import _PyMeasureCallback

BATCH = 16
EVALUATOR = {"number": 1, "repeat": 3, "min_repeat_ms": 20}
#: Trials of the second run of tunedb on a workload.
AGAIN = 16


@dataclass
class Curve:
    """What became of each trial of a run, in order.

    Parameters
    ----------
    seconds : list of float or None
        Median of the repeats; None for one that failed.
    at : list of float
        Seconds of wall time since the run began; the trials of a batch share its time alike.
    modules : list
        The scheduled module of each.
    took : float
        Seconds of the whole run.
    """

    seconds: list[float | None] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)
    took: float = 0.0

    def add(self, modules: Sequence[Any], results: Sequence[Any], now: float) -> None:
        """Add a batch."""
        before = self.at[-1] if self.at else 0.0
        step = (now - before) / max(len(results), 1)
        for number, (mod, result) in enumerate(zip(modules, results, strict=True)):
            times = [float(one) for one in result.run_secs or ()]
            failed = result.error_msg is not None or not times
            self.seconds.append(None if failed else statistics.median(times))
            self.at.append(before + (number + 1) * step)
            self.modules.append(mod)

    def best(self, trials: int | None) -> float | None:
        """Return the least time of the first trials, or of all; None where nothing ran."""
        return min((one for one in self.seconds[:trials] if one is not None), default=None)

    def winner(self, trials: int | None) -> Any:
        """Return the module of that time."""
        return self.modules[self.seconds.index(self.best(trials))]

    def trials_until(self, good: float) -> float:
        """Return how many trials it took to a time, infinity if it was not reached."""
        told = (n for n, one in enumerate(self.seconds, 1) if one is not None and one <= good)
        return float(next(told, inf))

    def seconds_until(self, good: float) -> float:
        """Return how long it took to a time, infinity if it was not reached."""
        trials = self.trials_until(good)
        return inf if trials == inf else self.at[int(trials) - 1]

    @property
    def per_trial(self) -> float:
        """Seconds of a trial, without what happens after the last batch."""
        return self.at[-1] / len(self.at)


@dataclass(frozen=True)
class Again:
    """The second run on a workload: programs with two measurements, and the first batch."""

    measured_twice: int
    best_in_first_batch: bool


@dataclass(frozen=True)
class Finished:
    """One run of a tuner.

    Parameters
    ----------
    curve : Curve
        Its trials.
    report : dict
        Of tunedb: what its search says of the task (``EvolutionarySearch.report``).
    again : Again or None
        Of tunedb: what a second run did.
    """

    curve: Curve
    report: dict[str, Any] = field(default_factory=dict)
    again: Again | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, without modules."""
        curve = {key: getattr(self.curve, key) for key in ("seconds", "at", "took")}
        again = None if self.again is None else asdict(self.again)
        return {"curve": curve, "report": self.report, "again": again}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Finished:
        """Return what :meth:`to_dict` gave."""
        again = None if told["again"] is None else Again(**told["again"])
        return cls(Curve(**told["curve"]), told["report"], again)


class Watch(_PyMeasureCallback):
    """Adds each batch to a curve."""

    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, curve: Curve) -> None:
        began = time.perf_counter()

        def apply(scheduler: Any, task: int, candidates: Any, builds: Any, runs: Any) -> None:
            del scheduler, task, builds
            modules = [one.sch.mod for one in candidates]
            curve.add(modules, list(runs), time.perf_counter() - began)

        super().__init__(apply)


def evaluator() -> Any:
    """Return how every tuner measures."""
    return ms.runner.EvaluatorConfig(**EVALUATOR)


def metaschedule(
    mod: Any,
    folder: Path,
    trials: int,
    seed: int,
    *,
    warm_builder: bool,
    database: Any = None,
    target: Any = None,
) -> Finished:
    """Run plain MetaSchedule: its strategy, cost model and JSON database."""
    from tunedb.plugins.metaschedule import MeasureCallback, WarmBuilder

    quiet()
    curve = Curve()
    began = time.perf_counter()
    builder = WarmBuilder() if warm_builder else local_builder()
    keep = ms.measure_callback.AddToDatabase() if database is None else MeasureCallback(database)
    try:
        ms.tune_tir(
            mod, target or this_machine(), str(folder), trials, num_trials_per_iter=BATCH,
            seed=seed, builder=builder, runner=ms.runner.LocalRunner(evaluator_config=evaluator()),
            database="json" if database is None else database, cost_model="xgb",
            measure_callbacks=[
                Watch(curve), keep, ms.measure_callback.RemoveBuildArtifact(),
                ms.measure_callback.UpdateCostModel(),
            ],
        )  # fmt: skip
    finally:
        if warm_builder:
            builder.close()
    curve.took = time.perf_counter() - began
    return Finished(curve)


def tunedb(
    mod: Any,
    path: Path,
    trials: int,
    seed: int,
    *,
    warm: bool = True,
    crossover: bool = True,
    again: bool = False,
    target: Any = None,
    prior: str | Path = "none",
) -> Finished:
    """Run ``tune`` on a database, and again if a second run is wanted."""
    from tunedb.plugins.metaschedule import Database, EvolutionarySearch

    curve = Curve()
    target = target or this_machine()
    with closing(Database(path, target=target, prior=prior)) as database:
        search = EvolutionarySearch(database, warm=warm, crossover=crossover)
        began = time.perf_counter()
        _tune(mod, database, trials, seed, curve, target=target, strategy=search)
        curve.took = time.perf_counter() - began
        (report,) = search.report().values()
        return Finished(curve, report, _again(mod, database, seed) if again else None)


def _tune(
    mod: Any,
    database: Any,
    trials: int,
    seed: int,
    curve: Curve,
    *,
    target: Any = None,
    **options: Any,
) -> Any:
    from tunedb.plugins.metaschedule import MeasureCallback, tune

    return tune(
        mod, target or this_machine(), max_trials_global=trials, num_trials_per_iter=BATCH,
        seed=seed, database=database, evaluator=evaluator(), **options,
        measure_callbacks=[
            Watch(curve), MeasureCallback(database), ms.measure_callback.RemoveBuildArtifact(),
            ms.measure_callback.UpdateCostModel(),
        ],
    )  # fmt: skip


def _again(mod: Any, database: Any, seed: int) -> Again:
    """Tune a workload once more, and look at what was measured."""
    best = database.query_ir_module(mod, this_machine(), "main")
    curve = Curve()
    (task,) = _tune(mod, database, AGAIN, seed + 100, curve).tasks
    records = database.store.records.iterate(task.workload_id)
    programs = Counter(one.measurement.program.digest for one in records)
    first = zip(curve.modules[:BATCH], curve.seconds[:BATCH], strict=True)
    return Again(
        sum(count > 1 for count in programs.values()),
        any(told is not None and tvm_ffi.structural_equal(one, best) for one, told in first),
    )


def quiet() -> None:
    """Keep TVM's log off the terminal."""
    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.ERROR)
