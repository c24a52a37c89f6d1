"""One tuning run: what is tuned, how far it is, and TVM's part of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

from tvm.s_tir import meta_schedule as ms

from ....errors import PluginError, TuneDBError
from ....exchange.outbox import Outbox
from ....results import Record
from ....search.forecast import Curve
from ....storage.network_runs import NetworkRun
from ....system.host import session_class, threads_of
from ....system.roofline import Roofline
from ....system.temporary import TemporaryFolder
from ..cost_model.cost_model import CostModel
from ..database.database import Database
from ..database.handle import Handle
from ..intrinsics import load_cpu_intrinsics, load_intrinsics, without_intrinsics
from ..measure.measured import Known
from ..module_source import is_relax
from ..targets import first_line, is_cpu
from ..threads import RuntimeThreads, use_threads
from . import defaults
from .network import Network, untuned_networks, untuned_seconds
from .options import TuneOptions
from .progress import Course, Monitor, ProgressCallback, TaskProgress
from .remote import describe
from .results import TaskResult, TuningResult
from .resume import end_run, run_key, session_of_run, store_network, trials_done
from .scheduler import TaskScheduler, task_curves
from .server_sync import notify_outbox, start_outbox
from .tvm_logs import logs_in_files

__all__ = ["Run"]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A tuning run that has begun.

    Parameters
    ----------
    mod, target
        The module, and the target that it is tuned for.
    options : TuneOptions
        The arguments of the call.
    database : Database
        Where records come from and go to; its session is that of this run.
    tasks : list of Task
        The functions that are tuned.
    curves : list of list of Curve
        Searches for workloads that are similar to each.
    untuned : list of float or None
        Seconds of the untuned function of each; None where unknown.
    notes : list of str
        What users should know of them.
    trials, done : int
        Trials of the whole run, and those that an earlier, unfinished run has done.
    known : Known
        Programs that are not measured again.
    monitor : Monitor
        Watches it.
    outbox : Outbox or None
        Delivers to a server what is measured.
    keeps : ExitStack
        Closes a database that was opened for the run.
    networks : list of Network
        A Relax program that is measured as a whole, for each combination of its sizes.
    problems : dict of int to str
        Tasks that TVM cannot tune, by number, with the reason.
    """

    mod: Any
    target: Any
    options: TuneOptions
    database: Database
    tasks: list[defaults.Task]
    curves: list[list[Curve]]
    untuned: list[float | None]
    notes: list[str]
    trials: int
    done: int
    known: Known
    monitor: Monitor
    outbox: Outbox | None
    keeps: ExitStack
    networks: list[Network]
    problems: dict[int, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, options: TuneOptions, stack: ExitStack) -> Self:
        """Begin a run; what it needs ends with the stack.

        Raises
        ------
        TuneDBError
            As :func:`.tuning.tune`.
        """
        began = time.perf_counter()
        threads = use_threads()
        mod, target = defaults.module_of(options), options.target
        remote = defaults.remote_of(options.runner)
        if target is None and isinstance(options.database, Database):
            target = options.database.tvm_target
        target = defaults.target_of(target, is_remote=remote is not None)
        keeps = stack.enter_context(ExitStack())
        database = defaults.database_of(
            options.database, target, options.module_equality, keeps, options.layers
        )
        handle = database._handle
        outbox, tell = None, options.on_progress
        if options.server is not None:
            outbox = start_outbox(database.store, options.server, stack)
            tell = notify_outbox(outbox, tell)
        tasks, lowered = defaults.tasks_of(mod, target, options, handle.workloads.equality)
        notes = list(dict.fromkeys(note for program in lowered for note in program.notes))
        trials = options.trials(len(tasks))
        done = _join_run(handle, tasks, target, options, trials, threads, stack)
        networks: list[Network] = []
        if lowered and options.measures_network():
            try:
                networks = untuned_networks(mod, lowered, target, _roofline(handle), stack)
            except TuneDBError as error:
                notes.append(f"the network's latency is not measured: {error}")
        if ms.Profiler.current() is None:
            stack.enter_context(ms.Profiler())
        curves = [task_curves(handle, task.mod, target) for task in tasks]
        untuned = [untuned_seconds(networks, task.mod) for task in tasks]
        courses = [
            Course(task.name, known, task.calls, seconds, _best_seconds(handle, task, target))
            for task, known, seconds in zip(tasks, curves, untuned, strict=True)
        ]
        monitor = Monitor(courses, done, trials, tell, began)
        known = Known(handle, remeasure=options.remeasure)
        return cls(
            mod,
            target,
            options,
            database,
            tasks,
            curves,
            untuned,
            notes,
            trials,
            done,
            known,
            monitor,
            outbox,
            keeps,
            networks,
        )

    def tune(self, stack: ExitStack) -> None:
        """Let TVM tune with the trials that are left.

        Raises
        ------
        TuneDBError
            As :func:`.tuning.tune`.
        """
        if self.done >= self.trials:
            return
        builder = self._builder(stack)
        try_space = defaults.space_trial(self.options, builder, self.tasks, self.target)
        self._load_intrinsics(stack)
        stack.enter_context(logs_in_files())
        for task in self.tasks:
            self.known.prepare(task.mod, self.target)
        model = defaults.cost_model_of(self.options.cost_model, self.database)
        scheduler = defaults.scheduler_of(
            self.options,
            self.database,
            self.curves,
            self.untuned,
            self.networks[0].roofline if self.networks else None,
            try_space,
        )
        arguments = self._arguments(model, scheduler, builder, stack)
        self.monitor.start()
        try:
            self._call(arguments)
        except RuntimeError as error:
            # Errors of classes that are not registered lose them on their way through C++.
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
        end_run(self.database._handle)

    def _load_intrinsics(self, stack: ExitStack) -> None:
        """Import the tensor intrinsics that TVM would import for its first context."""
        options = self.options
        if is_cpu(self.target) and not options.special_space and isinstance(options.space, str):
            stack.enter_context(without_intrinsics())
            load_cpu_intrinsics()
        else:
            load_intrinsics()

    def _builder(self, stack: ExitStack) -> Any:
        cores = self.options.num_tuning_cores
        workers = cores if isinstance(cores, int) else None
        return defaults.builder_of(self.options.builder, workers, stack)

    def _arguments(
        self, model: Any, scheduler: Any, builder: Any, stack: ExitStack
    ) -> dict[str, Any]:
        """Return what all of TVM's functions for tuning take."""
        options, left = self.options, self.trials - self.done
        builder, runner = defaults.reusing(
            builder,
            defaults.runner_of(options.runner, options.evaluator),
            self.known,
        )
        # An error that goes through TVM keeps what its frames refer to.
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
        search = {"space": options.space, "strategy": strategy, "seed": options.seed}
        if not is_relax(self.mod):
            ms.tune_tir(
                self.mod,
                self.target,
                num_tuning_cores=options.search_threads(),
                special_space=dict(options.special_space or {}),
                **search,
                **arguments,
            )
            return
        contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
            [task.extracted for task in self.tasks],
            arguments["work_dir"],
            num_threads=options.search_threads(),
            **search,
        )
        ms.tune_tasks(tasks=contexts, task_weights=weights, **arguments)

    def result(self) -> TuningResult:
        """Return what the run came to."""
        networks = self._measured_networks()
        told = self.monitor.now(self.monitor.tasks()[0])
        return TuningResult(
            database=self.database,
            target=self.target,
            tasks=tuple(
                self._result(task, progress, self.problems.get(number))
                for number, (task, progress) in enumerate(zip(self.tasks, told.tasks, strict=True))
            ),
            trials=told.trials,
            resumed=self.done,
            seconds=told.seconds,
            costs=told.costs,
            threads=self._threads(),
            networks=networks,
            notes=tuple(self.notes),
            delivery=None if self.outbox is None else self.outbox.close(),
        )

    def _measured_networks(self) -> tuple[NetworkRun, ...]:
        """Measure the networks with the best programs, and store what they came to."""
        found = []
        for network in self.networks:
            name = network.named(self.options.network or "network")
            try:
                run = network.finish(self.database, name, self._threads(), self.tasks)
            except TuneDBError as error:
                self.notes.append(f"the tuned network is not measured: {error}")
                continue
            store_network(self.database._handle, run)
            found.append(run)
        return tuple(found)

    def _threads(self) -> int | None:
        handle = self.database._handle
        is_cpu = handle.targets.stored(self.target).is_cpu
        return threads_of(handle.session()) if is_cpu else None

    def _result(
        self, task: defaults.Task, progress: TaskProgress, problem: str | None
    ) -> TaskResult:
        id_, record = _best(self.database._handle, task, self.target)
        return TaskResult(progress, id_, record, task.calls, problem)


def _best(handle: Handle, task: defaults.Task, target: Any) -> tuple[int | None, Record | None]:
    """Return the id of a task's workload, and its best record."""
    id_, equal, here = handle.task_ids(task.mod, target)
    return id_, handle.store.records.best(equal, here) if equal and here else None


def _best_seconds(handle: Handle, task: defaults.Task, target: Any) -> float | None:
    _, record = _best(handle, task, target)
    return None if record is None else record.mean


def _roofline(handle: Handle) -> Roofline | None:
    """Return the limits of this machine that an earlier run has measured."""
    here = session_class(handle.session())
    found = [
        network.roofline
        for session, network in handle.store.runs.networks()
        if session_class(session) == here
    ]
    return found[-1] if found else None


def _join_run(
    handle: Handle,
    tasks: Sequence[defaults.Task],
    target: Any,
    options: TuneOptions,
    trials: int,
    threads: RuntimeThreads,
    stack: ExitStack,
) -> int:
    """Give the handle a session of this run; return how many trials an unfinished one has done."""
    before = handle.session()
    remote = defaults.remote_of(options.runner)
    session = before
    if remote is not None:
        session = describe(remote, defaults.device_of(target), before)
    evaluator = defaults.evaluator_of(options.runner, options.evaluator)
    told = None if evaluator is None else evaluator._asdict()
    key = run_key(
        [(task.mod, target) for task in tasks],
        max_trials=trials,
        seed=options.seed,
        settings={
            "evaluator": told,
            "remote": None if remote is None else remote.tracker_key,
            "remeasure": options.remeasure,
            "threads": None if remote is not None else threads.as_json(),
            **({} if options.minutes is None else {"minutes": options.minutes}),
        },
    )
    done = trials_done(handle, key)
    handle.use_session(
        session_of_run(
            session,
            key,
            max_trials=trials,
            evaluator=told,
            threads=threads if remote is None else None,
        )
    )
    stack.callback(handle.use_session, before)
    return done
