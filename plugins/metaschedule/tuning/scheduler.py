"""Task scheduler for TVM that gives batches to the tasks with the largest expected gain."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.search_strategy.search_strategy import _PySearchStrategy
from tvm.s_tir.meta_schedule.space_generator.space_generator import _PySpaceGenerator
from tvm.s_tir.meta_schedule.task_scheduler.task_scheduler import _PyTaskScheduler

from ....errors import PluginError, TuneDBError, UsageError
from ....programs.workload_info import signature_of
from ....records import Signature
from ....run_times import NO_TIME, mean_of
from ....search.forecast import Curve, similar_curves
from ....search.scheduling import TaskState, TuningGoal, batch_size, next_task
from ....storage.workloads import Neighbour
from ....system.roofline import Roofline
from .. import modules
from ..compat import register_errors
from ..database.database import Database, handle_of
from ..database.handle import Handle
from ..measure.measure_callback import run_secs_of
from ..measure.racing import Race
from ..targets import first_line
from .tvm_logs import task_logger

__all__ = ["TaskScheduler", "sizes_of", "task_curves"]

register_errors()

#: Empty batches after which a task is done; MetaSchedule's search ends with its fifth.
_EMPTY_BATCHES = 5


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of a run besides its trials.

    Parameters
    ----------
    seconds : float or None
        Wall time from the start of TVM's loop; a batch that has begun is finished.
    goal : TuningGoal
        Goal of the run.
    epsilon : float
        Probability of a random choice of the next task.
    seed : int or None
        Seed of the random choices.
    """

    seconds: float | None = None
    goal: TuningGoal = field(default_factory=TuningGoal)
    epsilon: float = 0.05
    seed: int | None = None


class TaskScheduler(_PyTaskScheduler):
    """A task scheduler that reads the database.

    MetaSchedule's schedulers tune each task once before they compare tasks. This one starts from
    an estimate for each task (the best stored program, else the untuned function, else operations
    and bytes), and gives each batch to the task whose expected gain, times its weight, is largest
    per second of tuning (:func:`tunedb.search.scheduling.next_task`). Small budgets get small
    batches. A task whose search raises an error is dropped, and the others continue.

    Parameters
    ----------
    database : Database
        Database of the run.
    minutes : float, optional
        Time limit of the run; by default only the trials limit it.
    goal : TuningGoal, optional
        Weights of networks, latencies that suffice, least gain of a batch, trials without a gain.
    epsilon : float
        Probability of a random choice of the next task.
    seed : int, optional
        Seed of the random choices.
    calls : sequence of sequence of float, optional
        Calls of each task in one run of each network of the goal; by default TVM's weights, as
        calls of one network.
    earlier : sequence of int, optional
        Trials of each task before an interruption of the run, which count for its limit.
    curves : sequence of sequence of Curve, optional
        Searches for workloads that are similar to each task; by default those of the database.
    untuned : sequence of float or None, optional
        Seconds of each task's untuned function; by default, and where None, an estimate.
    roofline : Roofline, optional
        Limits of the machine, for estimates.
    try_space : callable, optional
        Called with the number of a task before its design space is generated; returns the reason
        to drop the task, or None (:func:`~..workers.space_probe.try_spaces`).
    race : Race, optional
        Race of the run's runner, which learns the task of each batch.

    Attributes
    ----------
    problems : dict of int to str
        Number of each dropped task → the reason in one line.

    Raises
    ------
    UsageError
        A parameter is out of its range.
    PluginError
        The database is not tunedb's.

    Examples
    --------
    >>> ms.relax_integration.tune_relax(
    ...     mod, {}, target, work_dir, 256, database=database, cost_model=CostModel(database),
    ...     task_scheduler=TaskScheduler(database, minutes=10))  # doctest: +SKIP
    """

    # TVM's objects have no dictionary of their own.
    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self,
        database: Database,
        *,
        minutes: float | None = None,
        goal: TuningGoal | None = None,
        epsilon: float = 0.05,
        seed: int | None = None,
        calls: Sequence[Sequence[float]] | None = None,
        earlier: Sequence[int] | None = None,
        curves: Sequence[Sequence[Curve]] | None = None,
        untuned: Sequence[float | None] | None = None,
        roofline: Roofline | None = None,
        try_space: Callable[[int], str | None] = lambda _number: None,
        race: Race | None = None,
    ) -> None:
        handle = handle_of(database)
        if handle is None:
            raise PluginError(
                f"TaskScheduler needs a tunedb database, not {type(database).__name__}"
            )
        if minutes is not None and not minutes > 0:
            raise UsageError(f"minutes must be positive, not {minutes}")
        if not 0 <= epsilon <= 1:
            raise UsageError(f"epsilon must be from 0 to 1, not {epsilon}")
        seconds = None if minutes is None else 60 * minutes
        limits = RunLimits(seconds, goal or TuningGoal(), epsilon, seed)
        if calls is None and len(limits.goal.networks) != 1:
            raise UsageError("a goal of several networks needs the calls of each task by each")
        self.problems: dict[int, str] = {}
        problems = self.problems

        # TVM keeps this function: a reference to `self` would be a cycle through C++.
        def tune(contexts: Any, weights: Any, trials: int, per_task: int, *rest: Any) -> None:
            similar = curves or [task_curves(handle, each.mod, each.target) for each in contexts]
            times = untuned or [None] * len(similar)
            counts = calls or [(float(weight),) for weight in weights]
            done = earlier or [0] * len(similar)
            budget = _Budget(int(trials))
            tasks: list[_TunedTask] = []
            for context, count, searches, seconds, before in zip(
                contexts, counts, similar, times, done, strict=True
            ):
                state = _task_state(handle, context, count, searches)
                state.untuned = seconds
                state.roofline = roofline or state.roofline
                number = len(tasks)
                begin = None if race is None else partial(race.begin, number)
                left = int(per_task) - before
                tasks.append(
                    _TunedTask(state, context, budget, left, partial(try_space, number), begin)
                )
            _tune(tasks, weights, limits, problems, int(trials), int(per_task), *rest)

        super().__init__(lambda: -1, None, tune)


@dataclass(slots=True, eq=False)
class _Budget:
    """Remaining trials of a run, shared by its tasks."""

    left: int


@dataclass(slots=True, eq=False)
class _TunedTask:
    """A task while it is tuned.

    Its design space is generated before its first batch, because most tasks of a run with few
    trials get no batch.
    """

    state: TaskState
    context: Any
    budget: _Budget
    #: Most trials.
    limit: int
    try_space: Callable[[], str | None]
    #: Called before each batch, which TVM builds and runs at once.
    begin_batch: Callable[[], None] | None = None
    problem: str | None = None
    began: float = 0.0
    is_running: bool = False
    #: Arguments of ``pre_tuning``, until it is called.
    prepared: tuple[Any, ...] | None = None

    def guard(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the task; an error ends the task, not the run."""
        try:
            return function(*arguments)
        except TuneDBError:
            raise
        except Exception as error:  # TVM raises any class for a module that it does not support
            self.drop(first_line(error))
            return None

    def drop(self, problem: str) -> None:
        """End the task, not the run."""
        self.problem = problem
        self.state.is_finished = True

    def generate(self) -> list[Any] | None:
        """Return the next batch of candidates, never an empty one, or None at the task's end."""
        self.began = time.perf_counter()
        candidates = None
        if self.prepared is not None:
            self._begin(*self.prepared)
            self.prepared = None
        if self.budget.left and not self.state.is_finished:
            for _ in range(_EMPTY_BATCHES):
                candidates = self.guard(self.context.search_strategy.generate_measure_candidates)
                if candidates is None or candidates:
                    break
        if not candidates:
            self.state.is_finished = True
            return None
        self.is_running = True
        if self.begin_batch is not None:
            self.begin_batch()
        batch = list(candidates)[: self.budget.left]
        self.budget.left -= len(batch)
        return batch

    def check_space(self) -> bool:
        """Try the design space in a worker, and drop the task if the worker does not survive."""
        problem = self.try_space()
        if problem is not None:
            self.drop(problem)
        return problem is None

    def _begin(self, trials: int, batch: int, _spaces: Any, database: Any, model: Any) -> None:
        """Generate the design space and begin the search."""
        if not self.check_space():
            return
        context = self.context
        spaces = self.guard(context.space_generator.generate_design_space, context.mod)
        if spaces is not None:
            pre_tuning = context.search_strategy.pre_tuning
            self.guard(pre_tuning, trials, batch, list(spaces), database, model)

    def notify(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Add the results of a batch."""
        self.is_running = False
        runs = [run_secs_of(result) for result in results if result.error_msg is None]
        # The mean of a run that was cut short is no time: it has TVM's sentinel.
        times = [mean_of(run) for run in runs if NO_TIME not in run]
        self.state.add(times, len(candidates), time.perf_counter() - self.began)
        self.guard(self.context.search_strategy.notify_runner_results, candidates, results)

    def guarded_context(self, logger: logging.Logger | None) -> Any:
        """Return a context for TVM's loop whose functions drop the task on an error."""
        context, space = self.context, self.context.space_generator

        def prepare(*arguments: Any) -> None:
            self.prepared = arguments

        def end() -> None:
            if self.prepared is None and self.problem is None:
                self.guard(context.search_strategy.post_tuning)

        return ms.TuneContext(
            context.mod,
            target=context.target,
            space_generator=_PySpaceGenerator(
                space.sch_rules or [],
                space.postprocs or [],
                space.mutator_probs or {},
                lambda _context: None,
                lambda _mod: [],
                None,
            ),
            search_strategy=_PySearchStrategy(
                lambda _context: None,
                prepare,
                end,
                self.generate,
                self.notify,
                None,
            ),
            task_name=context.task_name,
            rand_state=context.rand_state,
            num_threads=context.num_threads,
            logger=logger,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Loop:
    """TVM's loop over the tasks of one run."""

    tasks: list[_TunedTask]
    limits: RunLimits
    batch: int
    began: float

    def next(self, scheduler: Any, rng: random.Random) -> int:
        """Return the number of the task for the next batch; -1 ends the run."""
        for number, task in enumerate(self.tasks):
            if task.is_running:
                scheduler.touch_task(number)
            if task.state.trials >= task.limit:
                task.state.is_finished = True
        seconds = self.limits.seconds
        if seconds is not None and time.monotonic() - self.began >= seconds:
            return -1
        states = [task.state for task in self.tasks]
        chosen = next_task(states, self.batch, self.limits.goal, rng, epsilon=self.limits.epsilon)
        if chosen is None:
            return -1
        if self.tasks[chosen].is_running:
            scheduler.join_running_task(chosen)
        return chosen


def _tune(
    tasks: list[_TunedTask],
    weights: Any,
    limits: RunLimits,
    problems: dict[int, str],
    trials: int,
    trials_per_task: int,
    batch: int,
    *rest: Any,
) -> None:
    """Run TVM's loop over tasks; an error of one task ends only that task."""
    loop = _Loop(
        tasks,
        limits,
        batch_size(
            trials,
            sum(any(task.state.calls) for task in tasks) or len(tasks),
            int(batch),
            limits.seconds,
        ),
        time.monotonic(),
    )
    rng = random.Random(limits.seed)  # noqa: S311  not for security
    inner: list[Any] = []
    inner.append(_PyTaskScheduler(lambda: loop.next(inner[0], rng), None, None))
    try:
        contexts = [
            task.guarded_context(task_logger(number, len(tasks), str(task.context.task_name)))
            for number, task in enumerate(tasks)
        ]
        inner[0].tune(contexts, weights, trials, trials_per_task, loop.batch, *rest)
        for task in tasks:
            if task.prepared is not None:  # it got no batch
                task.check_space()
    finally:
        # The scheduler and its function form a cycle through C++, beyond the garbage collector.
        inner.clear()
        problems.update({n: t.problem for n, t in enumerate(tasks) if t.problem is not None})


def task_curves(handle: Handle, mod: Any, target: Any) -> list[Curve]:
    """Return the learning curves of searches for workloads that are similar to a module."""
    signature = signature_of(modules.to_workload(mod))
    return similar_curves(handle.store, signature, handle.targets.stored(target))


def sizes_of(mod: Any) -> tuple[float, float]:
    """Return the number of operations of a function, and the bytes of its arguments."""
    return _sizes(signature_of(modules.to_workload(mod)))


def _task_state(
    handle: Handle, context: Any, calls: Sequence[float], curves: Sequence[Curve]
) -> TaskState:
    """Return the state of a task before the run, from the records of the database."""
    signature = signature_of(modules.to_workload(context.mod))
    flop, size = _sizes(signature)
    stored = handle.stored_task(context.mod, context.target)
    targets = tuple(stored.target_ids)
    own = [Neighbour(id_, targets, 0.0, "exact") for id_ in stored.equal_ids]
    return TaskState(
        calls,
        flop,
        size,
        family=str(signature.family),
        curves=curves,
        best=None if stored.best is None else stored.best.mean,
        known_trials=sum(len(times) for times in handle.store.answers.courses(own)),
    )


def _sizes(signature: Signature) -> tuple[float, float]:
    size = sum(modules.bytes_of(shape, dtype) for dtype, shape in signature.arguments or ())
    return float(signature.flops or 0), float(size)
