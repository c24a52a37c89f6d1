"""Components of a tuning run, created from the arguments of ``tune``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RPCConfig

from ....errors import PluginError, UsageError
from ....search.forecast import Curve
from ....search.scheduling import TuningGoal
from ....storage.config import locate, locate_layers, make_folder
from ....system.roofline import Roofline
from ..cost_model.cost_model import CostModel
from ..database.database import Database
from ..measure.measure_callback import MeasureCallback
from ..measure.measured import Known
from ..measure.racing import Race, RacingRunner
from ..modules import plain
from ..search.strategy import EvolutionarySearch
from ..targets import MAX_THREADS, as_target, first_line, is_cpu, lacks_limits, with_limits
from ..threads import runtime_threads
from ..workers.space_probe import try_spaces
from ..workers.warm_builder import WarmBuilder
from .options import TuneOptions
from .remote import rpc_runner
from .scheduler import TaskScheduler
from .tasks import Task

__all__ = ["host_target"]


def host_target() -> Any:
    """Return this machine's processor as a target; ``num-cores`` is the number of threads."""
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    return tvm.target.Target({"kind": "llvm", "num-cores": runtime_threads().count, "mcpu": cpu})


def target_of(target: Any, *, is_remote: bool) -> Any:
    """Return the target of a run; None and ``llvm`` alone stand for this machine's processor.

    A processor of this machine without ``num-cores`` gets the number of the runtime's threads. A
    GPU without limits, such as ``{"kind": "cuda", "arch": "sm_90"}``, gets those that this
    machine's device reports.

    Parameters
    ----------
    target : tvm.target.Target, dict, str or None
        Target of the user.
    is_remote : bool
        Whether the programs run on a remote device.

    Raises
    ------
    TargetError
        TVM does not know the target.
    UsageError
        A remote device has no target, or a remote processor no number of cores. A GPU has no
        limits, and is remote or not in this machine.
    """
    if target is None or target == "llvm":
        if is_remote:
            raise UsageError(
                "describe the remote device: target={'kind': 'llvm', 'num-cores': 4, 'mcpu': …}"
            )
        return host_target()
    target = as_target(target)
    if is_cpu(target) and not target.attrs.get("num-cores"):
        if not is_remote:
            config = plain(target.export())
            return tvm.target.Target({**config, "num-cores": runtime_threads().count})
        raise UsageError(
            f"target {target}: give its number of cores, e.g. "
            "{'kind': 'llvm', 'num-cores': 4, 'mcpu': …}"
        )
    if not lacks_limits(target):
        return target
    reason = "the device is remote"
    if not is_remote:
        try:
            return with_limits(target)
        except Exception as error:  # TVM raises several classes where there is no device
            reason = first_line(error)
    raise UsageError(
        f"target {target.kind.name}: its {MAX_THREADS} is unknown ({reason}); give a tag such as "
        f"nvidia/nvidia-a100 (tvm.target.list_tags()), or {MAX_THREADS} and "
        "max_shared_memory_per_block"
    )


def database_of(
    database: Any,
    target: Any,
    module_equality: str,
    stack: ExitStack,
    layers: Sequence[str | Path] | None = None,
    prior: str | Path = "auto",
) -> Database:
    """Return the database of a run, opened if necessary.

    Parameters
    ----------
    database : Database, str, Path or None
        Database, or its path or URL; None for the default location.
    target : tvm.target.Target
        Target that an opened database is bound to.
    module_equality : str
        Module equality of an opened database.
    stack : ExitStack
        Closes an opened database.
    layers : sequence of str or Path, optional
        Layers of an opened database; by default those of the default location.
    prior : {"auto", "none"} or path
        Prior of an opened database.

    Raises
    ------
    UsageError
        `database` is of another kind, or is open and gets layers.
    TuneDBError
        As :class:`Database`.
    """
    if isinstance(database, Database):
        if layers:
            raise UsageError("the database is open; give its layers to it: Database(…, layers=…)")
        return database
    if database is not None and not isinstance(database, str | Path):
        raise UsageError(
            f"database must be a tunedb Database, or a path or URL, not {type(database).__name__}"
        )
    if database in ("json", "memory", "union", "ordered_union"):
        raise UsageError(
            f"database {database!r} is TVM's; tune() keeps its records in tunedb: give a path"
        )
    location = locate(None if database is None else str(database))
    make_folder(location)
    if layers is None:
        layers = locate_layers() if database is None else ()
    opened = Database(
        location.url, target=target, module_equality=module_equality, layers=layers, prior=prior
    )
    stack.callback(opened.close)
    return opened


def runner_of(
    runner: Any,
    evaluator: EvaluatorConfig,
    race: Race | None = None,
    cold: Sequence[Sequence[int]] = (),
) -> Any:
    """Return the runner of a run; with a race it is local, and `cold` is as for it.

    Raises
    ------
    UsageError, PluginError
        As :func:`.remote.rpc_runner`, or TVM does not know the word.
    """
    if race is not None:
        return RacingRunner(evaluator, race, cold)
    if isinstance(runner, RPCConfig):
        return rpc_runner(runner, evaluator)
    if runner == "rpc":
        return rpc_runner(RPCConfig(), evaluator)
    if runner == "local":
        return ms.runner.LocalRunner(evaluator_config=evaluator)
    return _component("runner", runner, ms.Runner)


def remote_of(runner: Any) -> RPCConfig | None:
    """Return the tracker and key of a remote runner, or None."""
    if isinstance(runner, RPCConfig):
        return runner
    if runner == "rpc":
        return RPCConfig()
    config = getattr(runner, "rpc_config", None)
    return config if isinstance(config, RPCConfig) else None


def evaluator_of(runner: Any, evaluator: EvaluatorConfig) -> EvaluatorConfig | None:
    """Return the evaluator's settings of a runner; None where a user's runner has none."""
    if isinstance(runner, str | RPCConfig):
        return evaluator
    config = getattr(runner, "evaluator_config", None)
    return config if isinstance(config, EvaluatorConfig) else None


def kind_of_device(target: Any) -> str:
    """Return the kind of a remote device that runs programs for a target, as RPC names it."""
    return "cpu" if is_cpu(target) else str(target.kind.name)


def builder_of(builder: Any, workers: int | None, stack: ExitStack) -> Any:
    """Return the builder of a run; the stack closes a ``warm`` one."""
    if builder == "warm":
        return stack.enter_context(WarmBuilder(max_workers=workers))
    if builder == "local":
        return ms.builder.LocalBuilder(max_workers=workers)
    return _component("builder", builder, ms.Builder)


def prefetches(builder: Any) -> bool:
    """Return whether the builds of a builder prefetch weights (:mod:`..prefetch`)."""
    return builder == "warm" or (isinstance(builder, WarmBuilder) and builder.prefetches)


def cost_model_of(cost_model: Any, database: Database) -> Any:
    """Return the cost model of a run."""
    if cost_model == "tunedb":
        return CostModel(database)
    return _component("cost_model", cost_model, ms.CostModel)


def strategy_of(strategy: Any, database: Database, known: Known, *, warm: bool) -> Any:
    """Return the search strategy of a run."""
    if strategy == "tunedb":
        return EvolutionarySearch(database, known=known, warm=warm)
    return _component("strategy", strategy, ms.SearchStrategy)


def scheduler_of(
    options: TuneOptions,
    database: Database,
    goal: TuningGoal,
    calls: Sequence[Sequence[float]] | None,
    earlier: Sequence[int] | None,
    curves: Sequence[Sequence[Curve]],
    untuned: Sequence[float | None] | None,
    roofline: Roofline | None,
    try_space: Callable[[int], str | None],
    race: Race | None,
) -> Any:
    """Return the task scheduler of a run.

    Raises
    ------
    UsageError
        TVM does not know the word, or one of its schedulers gets a time budget, a latency target or
        a condition to stop.
    """
    if options.task_scheduler == "tunedb":
        return TaskScheduler(
            database,
            minutes=options.minutes,
            goal=goal,
            seed=options.seed,
            calls=calls,
            earlier=earlier,
            curves=curves,
            untuned=untuned,
            roofline=roofline,
            try_space=try_space,
            race=race,
        )
    if options.minutes is not None:
        raise UsageError("TVM's task schedulers count trials; minutes need the scheduler 'tunedb'")
    for name in ("latency_target", "least_gain", "early_stopping"):
        if getattr(options, name):
            raise UsageError(f"{name} needs the scheduler 'tunedb'")
    return _component("task_scheduler", options.task_scheduler, ms.TaskScheduler)


def space_trial(
    options: TuneOptions, builder: Any, tasks: Sequence[Task], target: Any
) -> Callable[[int], str | None]:
    """Return a function that tries a task's design space in the workers of a warm builder.

    It takes the number of a task and returns the problem of its space, or None
    (:func:`~..workers.space_probe.try_spaces`). With other builders it returns None.
    """
    if not isinstance(builder, WarmBuilder):
        return lambda _number: None
    # TVM supports special spaces for PrimFuncs only, not for operators of a Relax program.
    special = {} if tasks[0].extracted else options.special_space or {}
    spaces = [special.get(task.name, options.space) for task in tasks]
    return try_spaces(
        builder,
        [(task.mod, target, space) for task, space in zip(tasks, spaces, strict=True)],
        seed=options.seed or 1,
    )


def callbacks_of(callbacks: Any, database: Database) -> list[Any]:
    """Return the measure callbacks of a run."""
    if callbacks == "default":
        return [
            MeasureCallback(database),
            ms.measure_callback.RemoveBuildArtifact(),
            ms.measure_callback.UpdateCostModel(),
        ]
    if isinstance(callbacks, ms.MeasureCallback):
        return [callbacks]
    return list(callbacks)


def _component(name: str, value: Any, kind: Any) -> Any:
    """Return the user's object, or TVM's component of that name."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a word or an object of TVM's, not {type(value).__name__}")
    try:
        return kind.create(value)
    except ImportError as error:
        raise PluginError(f"{name} {value!r} does not load: {error}") from None
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"TVM has no {name} {value!r}") from None
