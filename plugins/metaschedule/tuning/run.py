"""One tuning run: preparation, TVM's loop, and the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Self

from tvm.s_tir import meta_schedule as ms

from ....errors import PluginError
from ....exchange.outbox import Delivery, Outbox
from ....models._xgboost import import_in_thread
from ....search.scheduling import costs_of, total_seconds
from ....system.host import machine_class, threads_of
from ....system.roofline import Roofline
from ....system.temporary import TemporaryFolder
from ..cost_model.cost_model import CostModel
from ..database.database import Database
from ..database.handle import Handle
from ..deploy.algorithms import REACH
from ..intrinsics import load_cpu_intrinsics, load_intrinsics, without_intrinsics
from ..measure.cold_weights import cold_weights, exceed_caches, weight_bytes
from ..measure.measured import Known
from ..measure.racing import Race
from ..measure.reuse import ReusingBuilder, ReusingRunner
from ..space import space_of
from ..targets import first_line, is_cpu
from ..threads import RuntimeThreads, use_threads
from . import defaults
from .finals import Finals
from .network import MeasuredNetwork, tuned_networks, untuned_networks, untuned_seconds
from .options import TuneOptions
from .progress import Monitor, NetworkProgress, ProgressCallback, TaskMonitor, TaskProgress
from .remote import describe
from .results import NetworkResult, TaskResult, TuningResult
from .resume import (
    end_run,
    run_key,
    session_of_run,
    store_network,
    trials_by_workload,
)
from .scheduler import TaskScheduler, task_curves
from .server_sync import notify_outbox, start_outbox
from .tasks import Network, Task, modules_of, tasks_of
from .tvm_logs import logs_in_files

__all__ = ["Run"]

#: Share of a run's time for the finals of its tasks; one that has begun is finished.
_FINALS_SHARE = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A prepared tuning run.

    Parameters
    ----------
    mods : mapping of str to tvm.IRModule
        Relax programs, or one module of PrimFuncs, with their parameters as constants.
    target : tvm.target.Target
        Target of the run.
    options : TuneOptions
        Arguments of the call.
    database : Database
        Database of the run, which records under the run's session.
    database_stack : ExitStack
        Closes a database that was opened for the run.
    tasks : list of Task
        Functions to tune.
    notes : list of str
        Notes for the user, in one line each.
    max_trials : int
        Maximum number of trials, including those of an earlier, unfinished run.
    trials_done : int
        Number of trials of that earlier run.
    earlier : list of int
        Those of each task.
    known : Known
        Programs that are not measured again.
    monitor : Monitor
        Monitor of the run.
    outbox : Outbox or None
        Pushes new records to a server.
    measured : list of MeasuredNetwork
        Networks that are measured as a whole.
    race : Race or None
        Race of its candidates.
    cold : list of tuple of int
        Numbers of the parameters of each task that are cold when it is measured (:func:`_cold`).
    builder : Builder
        Its builder, whose workers start while it is prepared.
    try_space : callable
        As for :class:`.TaskScheduler`.
    finish_preparation : callable
        Waits for what runs beside the preparation: nothing is measured before it returns.
    problems : dict of int to str
        Number of each task that TVM cannot tune → the reason.
    """

    mods: Mapping[str, Any]
    target: Any
    options: TuneOptions
    database: Database
    database_stack: ExitStack
    tasks: list[Task]
    notes: list[str]
    max_trials: int
    trials_done: int
    earlier: list[int]
    known: Known
    monitor: Monitor
    outbox: Outbox | None
    measured: list[MeasuredNetwork]
    race: Race | None
    cold: list[tuple[int, ...]]
    builder: Any
    try_space: Callable[[int], str | None]
    finish_preparation: Callable[[], None]
    problems: dict[int, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, options: TuneOptions, stack: ExitStack) -> Self:
        """Prepare a run; the stack releases its resources.

        Raises
        ------
        TuneDBError
            As :func:`.tuning.tune`.
        """
        began = time.perf_counter()
        options.goal(())  # its values are in range
        threads = use_threads()
        mods, target = modules_of(options), options.target
        remote = defaults.remote_of(options.runner)
        if target is None and isinstance(options.database, Database):
            target = options.database.tvm_target
        target = defaults.target_of(target, is_remote=remote is not None)
        database_stack = stack.enter_context(ExitStack())
        database = defaults.database_of(
            options.database,
            target,
            options.module_equality,
            database_stack,
            options.layers,
            options.prior,
        )
        handle = database._handle
        outbox, on_progress = None, options.on_progress
        if options.server is not None:
            outbox = start_outbox(database.store, options.server, stack)
            on_progress = notify_outbox(outbox, on_progress)
        if handle.prior is not None:
            handle.prior.begin_unpacking()
        cores = options.num_tuning_cores
        workers = cores if isinstance(cores, int) else None
        builder = defaults.builder_of(options.builder, workers, stack)
        tasks, networks = tasks_of(mods, target, options, handle.workloads.equality)
        try_space = defaults.space_trial(options, builder, tasks, target)
        imports = import_in_thread() if options.cost_model == "tunedb" else None

        def finish_preparation() -> None:
            for number in range(len(tasks)):
                try_space(number)
            if imports is not None:
                imports.join()
            if handle.prior is not None:
                handle.prior.finish_unpacking()

        notes = list(dict.fromkeys(note for each in networks for note in each.lowered.notes))
        # The parts of an operator's other algorithms get no trials of their own by default.
        max_trials = options.trials(sum(any(task.calls) for task in tasks) or len(tasks))
        race = options.race()
        cold = [] if race is None else _cold(tasks, networks, target)
        evaluator = _evaluator(options, cold)
        key = _key(tasks, networks, target, options, max_trials, threads, evaluator)
        counts, earlier = trials_by_workload(handle, key), [0] * len(tasks)
        _use_session(handle, key, target, options, max_trials, threads, evaluator, stack)
        if counts:
            stored = [handle.stored_task(task.mod, target).equal_ids for task in tasks]
            earlier = [sum(counts[id_] for id_ in ids) for ids in stored]
        measured: list[MeasuredNetwork] = []
        if networks and options.measures_network():
            measured = untuned_networks(
                networks, target, _roofline(handle), notes, finish_preparation, stack
            )
        if ms.Profiler.current() is None:
            stack.enter_context(ms.Profiler())
        monitors = [_task_monitor(handle, task, target, measured) for task in tasks]
        before = _before(networks, measured, monitors)
        return cls(
            mods=mods,
            target=target,
            options=options,
            database=database,
            database_stack=database_stack,
            tasks=tasks,
            notes=notes,
            max_trials=max_trials,
            trials_done=counts.total(),
            earlier=earlier,
            known=Known(handle, remeasure=options.remeasure),
            monitor=Monitor(monitors, before, counts.total(), max_trials, on_progress, began),
            outbox=outbox,
            measured=measured,
            race=race,
            cold=cold,
            builder=builder,
            try_space=try_space,
            finish_preparation=finish_preparation,
        )

    def tune(self, stack: ExitStack) -> None:
        """Run TVM's loop with the remaining trials.

        Raises
        ------
        TuneDBError
            As :func:`.tuning.tune`.
        """
        self._load_intrinsics(stack)
        stack.enter_context(logs_in_files())
        for task in self.tasks:
            self.known.prepare(task.mod, self.target)
        model = defaults.cost_model_of(self.options.cost_model, self.database)
        networks = self.monitor.networks
        scheduler = defaults.scheduler_of(
            self.options,
            self.database,
            self.options.goal([each.goal for each in networks]),
            [task.calls for task in self.tasks] if networks else None,
            # Without a limit of each task the trials of the whole run are the limit.
            None if self.options.max_trials_per_task is None else self.earlier,
            [task.curves for task in self.monitor.tasks],
            [task.untuned for task in self.monitor.tasks],
            self.measured[0].roofline if self.measured else None,
            self.try_space,
            self.race,
        )
        runner = defaults.runner_of(
            self.options.runner, self.options.evaluator, self.race, self.cold
        )
        arguments = self._arguments(model, scheduler, runner, stack)
        self.finish_preparation()
        self.monitor.start()
        try:
            self._call(arguments)
        except RuntimeError as error:
            # TVM's C++ turns errors of unregistered classes into RuntimeError.
            if self.monitor.failure is not None:
                raise self.monitor.failure from None
            raise PluginError(f"TVM ended the tuning run: {first_line(error)}") from error
        finally:
            if isinstance(model, CostModel):
                model.flush()
        if isinstance(scheduler, TaskScheduler):
            self.problems.update(scheduler.problems)
        if len(self.problems) == len(self.tasks):
            raise PluginError(f"TVM ended the tuning run: {self.problems[0]}")
        handle = self.database._handle
        end_run(handle)
        # Modules with equal anchor blocks may differ, and so do their times.
        if self.options.has_finals() and handle.workloads.equality != "anchor-block":
            self._hold_finals(runner)

    def _hold_finals(self, runner: Any) -> None:
        """Measure the best programs of each task again, in turn, for a share of the run's time.

        The tasks that take most of a network's time come first.
        """
        finals = Finals(self.database._handle, self.target, self.builder, runner)
        monitors = self.monitor.tasks
        weights = self._weights()
        tuned = [
            n
            for n, monitor in enumerate(monitors)
            if self.earlier[n] + monitor.trials > monitor.served and weights[n]
        ]
        tuned.sort(key=lambda n: -weights[n] * (monitors[n].seconds or 0.0))
        began = time.perf_counter()
        budget = _FINALS_SHARE * (began - self.monitor.began)
        for done, number in enumerate(tuned):
            if time.perf_counter() - began > budget:
                self.notes.append(
                    f"{done} of {len(tuned)} tasks had a final in its share of the time; the best "
                    "program of the others is that of the fastest measurement"
                )
                break
            task, spread = self.tasks[number], None
            if self.race is not None:
                spread = self.race.spread(number)
                self.race.begin(number, is_whole=True)
            try:
                finals.decide(task.mod, spread, began + budget)
            except Exception as error:  # a builder of the user raises any class
                reason = first_line(error)
                self.notes.append(f"{task.name}: no final decides its best program: {reason}")

    def _weights(self) -> list[float]:
        """Return the weight of each task in the algorithms that the networks may use.

        They use the fastest ones or those that come close (:class:`~..deploy.algorithms.Choices`).
        """
        networks = self.monitor.networks
        if not networks:
            return [task.weight for task in self.tasks]
        weights = [0.0] * len(self.tasks)
        seconds = {n: task.seconds for n, task in enumerate(self.monitor.tasks) if task.seconds}
        for each, counts in zip(networks, self.monitor.calls(), strict=True):
            for algorithms in each.goal.choices:
                costs = costs_of(algorithms, seconds)
                for algorithm, cost in zip(algorithms, costs, strict=True):
                    if cost <= REACH * min(costs) < inf:
                        for n, count in algorithm.items():
                            counts[n] = max(counts[n], count)
            for n, count in enumerate(counts):
                weights[n] += each.goal.weight * count
        return weights

    def _load_intrinsics(self, stack: ExitStack) -> None:
        """Import the tensor intrinsics that TVM's first context needs."""
        options = self.options
        if is_cpu(self.target) and not options.special_space and isinstance(options.space, str):
            stack.enter_context(without_intrinsics())
            load_cpu_intrinsics()
        else:
            load_intrinsics()

    def _arguments(
        self, model: Any, scheduler: Any, runner: Any, stack: ExitStack
    ) -> dict[str, Any]:
        """Return the arguments that TVM's tuning functions share."""
        options, left = self.options, self.max_trials - self.trials_done
        builder = ReusingBuilder(self.builder, self.known)
        runner = ReusingRunner(runner, self.known)
        # An error that passes through TVM keeps the builder alive.
        stack.callback(builder.close)
        folder = options.work_dir
        if folder is None:
            folder = stack.enter_context(TemporaryFolder("tuning")).path
        callbacks = defaults.callbacks_of(options.measure_callbacks, self.database)
        return {
            "work_dir": str(folder),
            "max_trials_global": left,
            "max_trials_per_task": options.max_trials_per_task,
            "num_trials_per_iter": min(options.num_trials_per_iter, left),
            "builder": builder,
            "runner": runner,
            "database": self.database,
            "cost_model": model,
            "measure_callbacks": [*callbacks, ProgressCallback(self.monitor)],
            "task_scheduler": scheduler,
            "module_equality": self.database._handle.workloads.equality,
        }

    def _call(self, arguments: dict[str, Any]) -> None:
        options = self.options
        strategy = defaults.strategy_of(
            options.strategy, self.database, self.known, warm=options.warm
        )
        search = {
            "space": space_of(options.space, self.target),
            "strategy": strategy,
            "seed": options.seed,
        }
        if not self.monitor.networks:
            (mod,) = self.mods.values()
            ms.tune_tir(
                mod,
                self.target,
                num_tuning_cores=options.search_threads(),
                special_space={
                    name: space_of(space, self.target)
                    for name, space in (options.special_space or {}).items()
                },
                **search,
                **arguments,
            )
            return
        contexts, _calls = ms.relax_integration.extracted_tasks_to_tune_contexts(
            [task.extracted for task in self.tasks],
            arguments["work_dir"],
            num_threads=options.search_threads(),
            **search,
        )
        weights = [task.weight for task in self.tasks]
        ms.tune_tasks(tasks=contexts, task_weights=weights, **arguments)

    def result(self) -> TuningResult:
        """Measure the tuned networks and return the result of the run."""
        runs = {}
        for run in tuned_networks(
            self.measured, self.database, self._threads(), self.tasks, self.notes
        ):
            store_network(self.database._handle, run)
            runs[run.name] = run
        progress = self.monitor.progress(0)
        calls = [sum(counts) for counts in zip(*self.monitor.calls(), strict=True)]
        if progress.networks and all(network.is_reached for network in progress.networks):
            self.notes.append("the estimated latency of each network is within its target")
        return TuningResult(
            database=self.database,
            target=self.target,
            tasks=tuple(
                self._task_result(number, task, int(calls[number]) if calls else None)
                for number, task in enumerate(progress.tasks)
            ),
            trials=progress.trials,
            resumed=self.trials_done,
            seconds=progress.seconds,
            costs=progress.costs,
            threads=self._threads(),
            networks=tuple(
                NetworkResult(network, runs.get(network.name)) for network in progress.networks
            ),
            notes=tuple(self.notes),
            delivery=None if self.outbox is None else _close(self.outbox),
        )

    def _threads(self) -> int | None:
        """Return the threads of TVM's runtime on a CPU; None on other devices."""
        handle = self.database._handle
        is_cpu = handle.targets.stored(self.target).is_cpu
        return threads_of(handle.session()) if is_cpu else None

    def _task_result(self, number: int, progress: TaskProgress, calls: int | None) -> TaskResult:
        task = self.tasks[number]
        stored = self.database._handle.stored_task(task.mod, self.target)
        return TaskResult(
            progress, stored.workload_id, stored.best, calls, self.problems.get(number)
        )


def _close(outbox: Outbox) -> Delivery:
    """Push the times of finals and networks, and stop."""
    outbox.notify()
    return outbox.close()


def _task_monitor(
    handle: Handle, task: Task, target: Any, networks: Sequence[MeasuredNetwork]
) -> TaskMonitor:
    """Return the monitor of a task, with its times before the run."""
    best = handle.stored_task(task.mod, target).best
    return TaskMonitor(
        name=task.name,
        curves=task_curves(handle, task.mod, target),
        calls=task.calls,
        untuned=untuned_seconds(networks, task.mod),
        stored=None if best is None else best.mean,
    )


def _before(
    networks: Sequence[Network],
    measured: Sequence[MeasuredNetwork],
    tasks: Sequence[TaskMonitor],
) -> list[NetworkProgress]:
    """Return the networks before the run, with the time that no task takes where it is known."""
    untuned = {each.network.name: each.untuned.latency for each in measured}
    before = []
    for number, network in enumerate(networks):
        latency, goal = untuned.get(network.name), network.goal
        in_tasks = total_seconds((task.calls[number], task.untuned) for task in tasks)
        if latency is not None and in_tasks is not None:
            goal = replace(goal, rest=max(latency - in_tasks, 0.0))
        before.append(
            NetworkProgress(network.given, network.sizes, network.name, goal, untuned=latency)
        )
    return before


def _roofline(handle: Handle) -> Roofline | None:
    """Return the limits of this machine that its last run stored, or None."""
    own = machine_class(handle.session())
    limits = [
        network.roofline
        for session, network in handle.store.runs.networks()
        if machine_class(session) == own
    ]
    return limits[-1] if limits else None


def _cold(tasks: Sequence[Task], networks: Sequence[Network], target: Any) -> list[tuple[int, ...]]:
    """Return the parameters of each task that are cold: weights of networks beyond the caches.

    Only the runner of a race removes them from the caches, and only those of a processor.
    """
    used: set[int] = set()
    for number, network in enumerate(networks):
        if exceed_caches(_weight_bytes(network), target):
            used |= {n for n, task in enumerate(tasks) if task.calls[number]}
            used |= {n for several in network.goal.choices for option in several for n in option}
    return [cold_weights(task.mod) if n in used else () for n, task in enumerate(tasks)]


def _weight_bytes(network: Network) -> int:
    """Return the bytes of a network's weights, with the largest algorithm of each operator."""

    def total(operators: Sequence[Any]) -> int:
        return sum(int(each.weight) * weight_bytes(each.dispatched[0]) for each in operators)

    exact = total(network.operators)
    more = (max(total(each) for _, each in several) - exact for several in network.algorithms)
    return exact + sum(max(each, 0) for each in more)


def _evaluator(options: TuneOptions, cold: Sequence[Sequence[int]]) -> dict[str, Any] | None:
    """Return the settings of the evaluator, as values of JSON; None where they are unknown."""
    config = defaults.evaluator_of(options.runner, options.evaluator)
    if config is None:
        return None
    settings = dict(config._asdict())
    if any(cold):
        # A program that prefetches weights is hardly slower with cold ones.
        settings |= {"cold_weights": True, "prefetch": defaults.prefetches(options.builder)}
    return settings


def _key(
    tasks: Sequence[Task],
    networks: Sequence[Network],
    target: Any,
    options: TuneOptions,
    max_trials: int,
    threads: RuntimeThreads,
    evaluator: Mapping[str, Any] | None,
) -> str:
    """Return the key of a run."""
    remote = defaults.remote_of(options.runner)
    goals = [[each.name, each.goal.weight, each.goal.latency] for each in networks]
    return run_key(
        [(task.mod, target) for task in tasks],
        max_trials=max_trials,
        seed=options.seed,
        settings={
            "evaluator": evaluator,
            "remote": None if remote is None else remote.tracker_key,
            "remeasure": options.remeasure,
            "threads": None if remote is not None else threads.as_json(),
            **({} if options.minutes is None else {"minutes": options.minutes}),
            **({"goals": goals} if any(goal != [1.0, None] for _, *goal in goals) else {}),
        },
    )


def _use_session(
    handle: Handle,
    key: str,
    target: Any,
    options: TuneOptions,
    max_trials: int,
    threads: RuntimeThreads,
    evaluator: Mapping[str, Any] | None,
    stack: ExitStack,
) -> None:
    """Give the handle a session of the run, until the stack closes."""
    before = handle.session()
    remote = defaults.remote_of(options.runner)
    session = before
    if remote is not None:
        session = describe(remote, defaults.kind_of_device(target), before)
    handle.use_session(
        session_of_run(
            session,
            key,
            max_trials=max_trials,
            evaluator=evaluator,
            threads=threads if remote is None else None,
        )
    )
    stack.callback(handle.use_session, before)
