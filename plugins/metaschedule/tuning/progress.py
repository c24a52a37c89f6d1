"""Progress of a tuning run, reported after each batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.measure_callback.measure_callback import _PyMeasureCallback

from ....records import Status
from ....run_times import is_cut_short, mean_of, status_of
from ....search.forecast import Curve, Forecast, forecast
from ....search.scheduling import NetworkGoal
from ..compat import register_errors
from ..measure.measure_callback import run_secs_of
from ..measure.measured import is_served

__all__ = [
    "Costs",
    "Monitor",
    "NetworkProgress",
    "Progress",
    "ProgressCallback",
    "TaskMonitor",
    "TaskProgress",
]

register_errors()

#: Scopes of TVM's profiler → fields of :class:`Costs`.
_SCOPES = {
    "SendToBuilder": "building",
    "SendToRunner": "running",
    "JoinRunnerFutures": "running",
    "MeasureCallback/UpdateCostModel": "learning",
}


@dataclass(frozen=True, slots=True)
class Costs:
    """Wall time of a run by activity, in seconds.

    Parameters
    ----------
    starting : float
        Imports, lowering and reads of the database, before TVM's loop starts.
    building, running, learning : float
        Time in the builder, in the runner, and in updates of the cost model.
    searching : float
        Rest of the time: generation and scores of candidates, and writes to the database.
    """

    starting: float = 0.0
    building: float = 0.0
    running: float = 0.0
    learning: float = 0.0
    searching: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """Progress of one task in this run.

    Parameters
    ----------
    name : str
        Name of the task.
    trials : int
        Number of candidates.
    served : int
        Number of known candidates, whose stored results replaced a build and a run.
    failed : int
        Number of candidates that failed.
    cut_short : int
        Number of candidates that the run stopped after their first repeats.
    first_seconds, best_seconds : float or None
        Mean run time of the best program of the first batch with one, and of all; None before a
        program has run.
    forecast : Forecast or None
        Trials until 95 % of the expected best; None where too few similar workloads were tuned.
    """

    name: str
    trials: int = 0
    served: int = 0
    failed: int = 0
    cut_short: int = 0
    first_seconds: float | None = None
    best_seconds: float | None = None
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True)
class NetworkProgress:
    """Progress of one network, for one combination of its sizes.

    Parameters
    ----------
    given : str
        Name that the user gives.
    sizes : mapping of str to int
        Number of each symbolic size.
    name : str
        Name with the sizes.
    goal : NetworkGoal
        Weight, and latency that suffices.
    latency : float or None
        Estimated seconds of one run: the best known programs of its tasks, and what else the
        untuned network takes if it was measured; None where the time of a task is unknown.
    untuned : float or None
        Measured seconds of the untuned network; None where it was not measured.
    tasks, tuned : int
        Number of its tasks, and of those with a trial in this run.
    """

    given: str
    sizes: Mapping[str, int]
    name: str
    goal: NetworkGoal
    latency: float | None = None
    untuned: float | None = None
    tasks: int = 0
    tuned: int = 0

    @property
    def is_reached(self) -> bool:
        """True if the estimated latency is within the target."""
        return self.goal.is_reached(self.latency)

    def updated(self, number: int, tasks: Sequence[TaskMonitor]) -> NetworkProgress:
        """Return the progress of the network of a number after the trials of all tasks."""
        calls = [task.calls[number] for task in tasks]
        own = {n for n, count in enumerate(calls) if count}
        own.update(n for each in self.goal.choices for algorithm in each for n in algorithm)
        return replace(
            self,
            latency=self.goal.estimate(calls, [task.seconds for task in tasks]),
            tasks=len(own),
            tuned=sum(tasks[n].trials > 0 for n in own),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run after a batch.

    Parameters
    ----------
    task : TaskProgress
        Task of the batch.
    tasks : tuple of TaskProgress
        All tasks, in the order of the run.
    trials : int
        Number of finished trials, including those of an earlier, unfinished run.
    max_trials : int
        Maximum number of trials.
    seconds : float
        Wall time since the start of the run.
    costs : Costs
        The same time by activity.
    networks : tuple of NetworkProgress
        All networks with their sizes; empty for PrimFuncs.
    """

    task: TaskProgress
    tasks: tuple[TaskProgress, ...]
    trials: int
    max_trials: int
    seconds: float
    costs: Costs
    networks: tuple[NetworkProgress, ...] = ()


@dataclass(slots=True)
class TaskMonitor:
    """Counts the trials of one task and keeps its best time.

    Parameters
    ----------
    name : str
        Name of the task.
    curves : sequence of Curve
        Searches for similar workloads.
    calls : tuple of int
        Number of calls in one run of each network.
    untuned : float or None
        Seconds of the untuned function.
    stored : float or None
        Mean seconds of the best record before the run.
    """

    name: str
    curves: Sequence[Curve]
    calls: tuple[int, ...] = ()
    untuned: float | None = None
    stored: float | None = None
    trials: int = 0
    served: int = 0
    failed: int = 0
    cut_short: int = 0
    first: float | None = None
    best: float | None = None

    def add(self, builds: Sequence[Any], runs: Sequence[Any]) -> None:
        """Add a batch."""
        times = []
        for build, run in zip(builds, runs, strict=True):
            run_secs = run_secs_of(run)
            failed = build.error_msg is not None or run.error_msg is not None
            failed = failed or status_of(run_secs) is not Status.OK
            self.trials += 1
            self.served += is_served(build)
            self.failed += failed
            self.cut_short += is_cut_short(run_secs)
            if not failed and not is_cut_short(run_secs):
                times.append(mean_of(run_secs))
        if times:
            self.best = min(times) if self.best is None else min(self.best, *times)
            self.first = self.best if self.first is None else self.first

    @property
    def seconds(self) -> float | None:
        """Seconds of the best program, or of the untuned function."""
        times = [time for time in (self.best, self.stored) if time is not None]
        return min(times) if times else self.untuned

    def progress(self) -> TaskProgress:
        """Return the progress of the task, with a forecast."""
        return TaskProgress(
            name=self.name,
            trials=self.trials,
            served=self.served,
            failed=self.failed,
            cut_short=self.cut_short,
            first_seconds=self.first,
            best_seconds=self.best,
            forecast=forecast(self.curves, trials=self.trials, best_seconds=self.best),
        )


class Monitor:
    """Watches a tuning run and reports its progress.

    Parameters
    ----------
    tasks : sequence of TaskMonitor
        Tasks in the order of the scheduler.
    networks : sequence of NetworkProgress
        Networks before the run, in the order of the calls of each task.
    trials_done : int
        Number of trials that an earlier, unfinished run has done.
    max_trials : int
        Maximum number of trials, including these.
    on_progress : callable or None
        Called with a :class:`Progress` after each batch.
    began : float
        Start of the run by ``time.perf_counter``.

    Attributes
    ----------
    began : float
        The parameter.
    failure : Exception or None
        Error of `on_progress`; through TVM's C++ it arrives as a RuntimeError.
    """

    def __init__(
        self,
        tasks: Sequence[TaskMonitor],
        networks: Sequence[NetworkProgress],
        trials_done: int,
        max_trials: int,
        on_progress: Callable[[Progress], object] | None,
        began: float,
    ) -> None:
        self.tasks = tasks
        self.networks = networks
        self.failure: Exception | None = None
        self._trials_done = trials_done
        self._max_trials = max_trials
        self._on_progress = on_progress
        self.began = began
        self._starting = 0.0
        self._profiler = ms.Profiler.current()
        self._before = self._scopes()

    def start(self) -> None:
        """Note the start of TVM's loop."""
        self._starting = time.perf_counter() - self.began

    def add(self, task_id: int, builds: Sequence[Any], runs: Sequence[Any]) -> None:
        """Add a batch of a task and report the progress."""
        self.tasks[task_id].add(builds, runs)
        if self._on_progress is None:
            return
        try:
            self._on_progress(self.progress(task_id))
        except Exception as error:
            self.failure = error
            raise

    def progress(self, task_id: int) -> Progress:
        """Return the progress of the run after a batch of a task."""
        seconds = time.perf_counter() - self.began
        tasks = tuple(task.progress() for task in self.tasks)
        return Progress(
            task=tasks[task_id],
            tasks=tasks,
            trials=self._trials_done + sum(task.trials for task in tasks),
            max_trials=self._max_trials,
            seconds=seconds,
            costs=self._costs(seconds),
            networks=tuple(
                network.updated(number, self.tasks) for number, network in enumerate(self.networks)
            ),
        )

    def calls(self) -> list[list[float]]:
        """Return the calls of each task in each network, with the fastest algorithms so far."""
        seconds = [task.seconds for task in self.tasks]
        return [
            network.goal.fastest_calls([task.calls[number] for task in self.tasks], seconds)
            for number, network in enumerate(self.networks)
        ]

    def _scopes(self) -> dict[str, float]:
        """Return the seconds of each scope of TVM's profiler."""
        scopes = {} if self._profiler is None else self._profiler.get()
        return {str(name): float(seconds) for name, seconds in scopes.items()}

    def _costs(self, seconds: float) -> Costs:
        spent = dict.fromkeys(_SCOPES.values(), 0.0)
        for scope, value in self._scopes().items():
            if scope in _SCOPES:
                spent[_SCOPES[scope]] += value - self._before.get(scope, 0.0)
        starting = self._starting or seconds
        searching = max(seconds - starting - sum(spent.values()), 0.0)
        return Costs(**spent, starting=starting, searching=searching)


class ProgressCallback(_PyMeasureCallback):
    """A measure callback that adds each batch to a :class:`Monitor`."""

    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, monitor: Monitor) -> None:
        def apply(_scheduler: Any, task_id: int, _candidates: Any, builds: Any, runs: Any) -> None:
            monitor.add(int(task_id), list(builds), list(runs))

        super().__init__(apply)
