"""How a tuning run comes on, told after each batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.measure_callback.measure_callback import _PyMeasureCallback

from ....records import Status
from ....run_times import mean_of, status_of
from ....search.forecast import Curve, Forecast, forecast
from ..compat import register_errors
from ..measure.measure_callback import run_secs_of
from ..measure.measured import is_served

__all__ = ["Costs", "Course", "Monitor", "Progress", "ProgressCallback", "TaskProgress"]

register_errors()

#: Scopes of TVM's profiler → what they are.
_SCOPES = {
    "SendToBuilder": "building",
    "SendToRunner": "running",
    "JoinRunnerFutures": "running",
    "MeasureCallback/UpdateCostModel": "learning",
}


@dataclass(frozen=True, slots=True)
class Costs:
    """Where the time of a run went, in seconds.

    Parameters
    ----------
    starting : float
        Before TVM began: imports, and reading what is known.
    building, running, learning : float
        In the builder, in the runner, and in the cost model's updates.
    searching : float
        All the rest: candidates and their scores, and writing to the database.
    """

    starting: float = 0.0
    building: float = 0.0
    running: float = 0.0
    learning: float = 0.0
    searching: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """What became of one task so far.

    Parameters
    ----------
    name : str
        The task's.
    trials : int
        Candidates of this run.
    served : int
        Those of them that were known: nobody built or ran them again.
    failed : int
        Those of them that failed.
    first_seconds, best_seconds : float or None
        Mean run time of the best program of the first batch, and of all; None where none ran.
    forecast : Forecast or None
        Trials until 95 % of the expected best; None where too few similar workloads were tuned.
    """

    name: str
    trials: int = 0
    served: int = 0
    failed: int = 0
    first_seconds: float | None = None
    best_seconds: float | None = None
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How a run comes on, after a batch.

    Parameters
    ----------
    task : TaskProgress
        The task whose batch it was.
    tasks : tuple of TaskProgress
        All tasks, in the order of the run.
    trials, of : int
        Trials of the run that are done, those of an earlier, unfinished run too, and how many
        there will be at most.
    seconds : float
        Since the run began.
    costs : Costs
        Where they went.
    latency, untuned : float or None
        Seconds of all operators of a Relax program: the best known ones, and before the tuning.
        None where the time of one is unknown.
    """

    task: TaskProgress
    tasks: tuple[TaskProgress, ...]
    trials: int
    of: int
    seconds: float
    costs: Costs
    latency: float | None = None
    untuned: float | None = None


@dataclass(slots=True)
class Course:
    """The course of one task while it is tuned.

    Parameters
    ----------
    name : str
        Name of the task.
    curves : sequence of Curve
        Searches for similar workloads.
    calls : int or None
        Calls in one run of a Relax program.
    untuned, known : float or None
        Seconds of the untuned function, and of the best record before the run.
    """

    name: str
    curves: Sequence[Curve]
    calls: int | None = None
    untuned: float | None = None
    known: float | None = None
    trials: int = 0
    served: int = 0
    failed: int = 0
    first: float | None = None
    best: float | None = None

    def add(self, builds: Sequence[Any], runs: Sequence[Any]) -> None:
        """Take in one batch."""
        times = []
        for build, run in zip(builds, runs, strict=True):
            run_secs = run_secs_of(run)
            failed = build.error_msg is not None or run.error_msg is not None
            failed = failed or status_of(run_secs) is not Status.OK
            self.trials += 1
            self.served += is_served(build)
            self.failed += failed
            if not failed:
                times.append(mean_of(run_secs))
        if times:
            self.best = min(times) if self.best is None else min(self.best, *times)
            self.first = self.best if self.first is None else self.first

    @property
    def seconds(self) -> float | None:
        """Seconds of the best program, or of the untuned function."""
        times = [time for time in (self.best, self.known) if time is not None]
        return min(times) if times else self.untuned

    def as_progress(self) -> TaskProgress:
        """Return it as others see it."""
        return TaskProgress(
            name=self.name,
            trials=self.trials,
            served=self.served,
            failed=self.failed,
            first_seconds=self.first,
            best_seconds=self.best,
            forecast=forecast(self.curves, trials=self.trials, best_seconds=self.best),
        )


class Monitor:
    """Watches a tuning run.

    Parameters
    ----------
    courses : sequence of Course
        Courses of the tasks, in the order of the scheduler.
    done, of : int
        Trials that an earlier, unfinished run has done, and those of all.
    on_progress : callable or None
        Called with a :class:`Progress` after each batch.
    began : float
        When the run began, by ``time.perf_counter``.

    Attributes
    ----------
    failure : Exception or None
        What `on_progress` raised; through TVM's C++ it would come as a RuntimeError.
    """

    def __init__(
        self,
        courses: Sequence[Course],
        done: int,
        of: int,
        on_progress: Callable[[Progress], object] | None,
        began: float,
    ) -> None:
        self.failure: Exception | None = None
        self._courses = courses
        self._done = done
        self._of = of
        self._tell = on_progress
        self._began = began
        self._starting = 0.0
        self._profiler = ms.Profiler.current()
        self._before = self._scopes()

    def start(self) -> None:
        """Note that TVM begins now."""
        self._starting = time.perf_counter() - self._began

    def add(self, task_id: int, builds: Sequence[Any], runs: Sequence[Any]) -> None:
        """Take in one batch, and tell of it."""
        course = self._courses[task_id]
        course.add(builds, runs)
        if self._tell is None:
            return
        try:
            self._tell(self.now(course.as_progress()))
        except Exception as error:
            self.failure = error
            raise

    def now(self, task: TaskProgress) -> Progress:
        """Return how the run comes on, after a batch of a task."""
        seconds = time.perf_counter() - self._began
        return Progress(
            task=task,
            tasks=self.tasks(),
            trials=self._done + sum(course.trials for course in self._courses),
            of=self._of,
            seconds=seconds,
            costs=self._costs(seconds),
            latency=_total(self._courses, [course.seconds for course in self._courses]),
            untuned=_total(self._courses, [course.untuned for course in self._courses]),
        )

    def tasks(self) -> tuple[TaskProgress, ...]:
        """Return what became of each task."""
        return tuple(course.as_progress() for course in self._courses)

    def _scopes(self) -> dict[str, float]:
        said = {} if self._profiler is None else self._profiler.get()
        return {str(name): float(seconds) for name, seconds in said.items()}

    def _costs(self, seconds: float) -> Costs:
        spent = dict.fromkeys(_SCOPES.values(), 0.0)
        for scope, value in self._scopes().items():
            if scope in _SCOPES:
                spent[_SCOPES[scope]] += value - self._before.get(scope, 0.0)
        starting = self._starting or seconds
        searching = max(seconds - starting - sum(spent.values()), 0.0)
        return Costs(**spent, starting=starting, searching=searching)


def _total(courses: Sequence[Course], seconds: Sequence[float | None]) -> float | None:
    """Return the seconds of all calls; None where one is unknown."""
    total = 0.0
    for course, one in zip(courses, seconds, strict=True):
        if course.calls is None or one is None:
            return None
        total += course.calls * one
    return total


class ProgressCallback(_PyMeasureCallback):
    """Tells a :class:`Monitor` of each batch."""

    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, monitor: Monitor) -> None:
        def apply(_scheduler: Any, task_id: int, _candidates: Any, builds: Any, runs: Any) -> None:
            monitor.add(int(task_id), list(builds), list(runs))

        super().__init__(apply)
