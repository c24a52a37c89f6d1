"""``tunedb tune``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...system import text
from ..interrupt import interrupted
from ..layers import layer_option, resolve_layers
from ..module import bind_words, lowering_of, lowering_options
from ..network import COLUMNS as NETWORK
from ..network import network_rows, note_network
from ..options import Settings, common_options, pass_settings
from ..output import Column, output_options, print_rows, print_table
from ..report.page import LivePage

if TYPE_CHECKING:
    from ...exchange.outbox import Delivery
    from ...plugins.metaschedule.tune.progress import Progress, TaskProgress
    from ...plugins.metaschedule.tune.results import TaskResult, TuningResult
    from ...storage.network_runs import NetworkRun

F = TypeVar("F", bound=Callable[..., Any])

COLUMNS = (
    Column("task", "task"),
    Column("workload_id"),
    Column("record", "record", right=True),
    Column("best", "best", text.seconds, right=True),
    Column("first", "first batch", text.seconds, right=True, least=80),
    Column("calls"),
    Column("trials", "trials", text.number, right=True),
    Column("served", "known", text.number, right=True),
    Column("failed", "failed", text.number, right=True),
    Column("origin", "origin", least=80),
    Column("operators"),
    Column("donor"),
    Column("forecast", "95 % at", text.number, right=True, least=100),
    Column("problem"),
)


#: Columns of a network that those of tasks have, too.
_SHARED = frozenset({"operator", "digest", "calls"})

_RUN = (
    click.option(
        "--target",
        metavar="TARGET",
        help="Target: a TVM tag, a kind, or JSON. Default: this machine's processor.",
    ),
    click.option("--function", metavar="NAME", help="Use only this PrimFunc of the module."),
    click.option(
        "--op",
        "op_names",
        metavar="WORD",
        multiple=True,
        help="Only operators of a Relax program with this word in their name; may be repeated.",
    ),
    click.option(
        "--trials",
        "max_trials_global",
        type=click.IntRange(min=1),
        help="Total number of trials. Default: 64 for each task.",
    ),
    click.option(
        "--per-task",
        "max_trials_per_task",
        type=click.IntRange(min=1),
        help="Largest number of trials of one task.",
    ),
    click.option(
        "--minutes",
        type=click.FloatRange(min=0, min_open=True),
        help="Time of the search, alone or with --trials: the smaller budget ends the run.",
    ),
    click.option(
        "--batch",
        "num_trials_per_iter",
        type=click.IntRange(min=1),
        default=16,
        show_default=True,
        help="Largest number of trials between two updates of the cost model.",
    ),
    click.option("--seed", type=click.IntRange(min=0), help="Seed of the search."),
    click.option(
        "--repeat", type=click.IntRange(min=1), help="Measurements of each program. Default: 3."
    ),
    click.option(
        "--min-repeat-ms",
        type=click.IntRange(min=0),
        help="Least milliseconds of each measurement. Default: 30.",
    ),
    click.option(
        "--no-warm", is_flag=True, help="Do not start from programs of similar workloads."
    ),
    click.option(
        "--no-latency",
        is_flag=True,
        help="Do not measure a network as a whole before and after the run.",
    ),
    click.option("--remeasure", is_flag=True, help="Measure known programs again."),
    click.option(
        "--no-racing", is_flag=True, help="Do not cut measurements of slow programs short."
    ),
    click.option(
        "--no-finals",
        is_flag=True,
        help="Do not measure the best programs again before one is named.",
    ),
    click.option(
        "--server",
        metavar="URL",
        help="Team database: pull before the run, push new records during it.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        help="Largest number of parallel threads and builders.",
    ),
    click.option(
        "--report",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write a page about the run while it goes on, for a browser.",
    ),
    click.option(
        "--work-dir",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help="Directory for TVM's logs.",
    ),
)

_REMOTE = (
    click.option(
        "--runner",
        type=click.Choice(["local", "rpc"]),
        help="Runner of programs. Default: local, or rpc with --tracker.",
    ),
    click.option(
        "--tracker",
        metavar="HOST:PORT",
        help="TVM's RPC tracker. Default: TVM_TRACKER_HOST and TVM_TRACKER_PORT.",
    ),
    click.option(
        "--key",
        metavar="KEY",
        help="Key of the devices at the tracker. Default: TVM_TRACKER_KEY.",
    ),
)


def _run_options(function: F) -> F:
    """Add the options of a run, under the names of ``tune``'s parameters."""
    return _with(_RUN, function)


def _remote_options(function: F) -> F:
    """Add ``--runner``, ``--tracker`` and ``--key``, for :func:`_runner`."""
    return _with(_REMOTE, function)


def _with(options: tuple[Callable[[F], F], ...], function: F) -> F:
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@click.argument("module")
@_run_options
@_remote_options
@lowering_options
@layer_option
@output_options
@common_options
@pass_settings
def command(settings: Settings, module: str, **choices: Any) -> None:
    """Tune a module, starting from the records of the database.

    MODULE is a TVMScript file, which is run as your own code (FILE.py, or FILE.py:NAME), a name in
    a Python module (package.module:NAME), an ONNX model (.onnx), or an exported PyTorch program
    (.pt2). All measurements are stored. The search begins with the best programs of this workload
    and of similar ones; programs that this machine measured are not measured again ("known"). To
    continue an interrupted run, run the same command again.

    A network with symbolic sizes is tuned for the numbers that --bind gives, for each combination
    where a name has several.

    Each batch goes to the operator whose expected gain for the network is largest. An operator that
    TVM cannot tune is reported, the others are tuned, and the exit code is 1. At the end the
    network is measured with equal inputs before and after, operator by operator; "of the limit" is
    the least time on this machine (its peak and bandwidth are measured once) as a share of the
    time. The exit code is also 1 where outputs differ by more than rounding.

    Example:
      tunedb tune matmul.py
      tunedb tune my.models:attention --trials 256 --batch 32
      tunedb tune network.onnx --minutes 10 --report live.html
      tunedb tune model.onnx --per-task 64 --op conv2d
      tunedb tune bert.onnx --bind batch=1 --bind length=128 --bind length=256
      tunedb tune conv.py --target '{"kind": "cuda", "arch": "sm_80"}' --json
      tunedb tune conv.py --layer postgresql://tuning.example/tunedb
      tunedb tune conv.py --target nvidia/jetson-orin-nano --tracker 192.168.0.2:9190 --key orin
    """
    runner = _runner(choices)
    minutes, bind = choices["minutes"], choices["bind"]
    report: Path | None = choices.pop("report")
    page = None if report is None else LivePage(settings, report, _state)
    try:
        with _interruptible(settings) as history, _display(settings, minutes) as show:

            def on_progress(progress: Progress) -> None:
                history.append(progress)
                show(progress)
                if page is not None:
                    page.update(progress)

            result = _tune(settings, module, runner, choices, on_progress)
    finally:
        if page is not None:
            page.close()
    _report(settings, module + bind_words(bind), result)
    is_accurate = all(network.is_accurate for network in result.networks)
    if not is_accurate or any(task.problem is not None for task in result.tasks):
        raise click.exceptions.Exit(1)


def _runner(choices: dict[str, Any]) -> Any:
    """Pop the options of :func:`_remote_options`; return the ``runner`` of ``tune``."""
    runner, tracker, key = (choices.pop(name) for name in ("runner", "tracker", "key"))
    if runner == "local" and (tracker or key):
        raise click.UsageError("--tracker and --key are for --runner rpc")
    if runner != "rpc" and not tracker and not key:
        return "local"
    from ...plugins.metaschedule.tune.remote import rpc_config

    return rpc_config(tracker, key)


def _target(words: str | None) -> Any:
    """Return the ``target`` of ``tune``: JSON as a mapping, other words as they are."""
    if words is None or not words.lstrip().startswith("{"):
        return words
    import json

    try:
        return json.loads(words)
    except ValueError as error:
        raise click.UsageError(f"--target: {error}") from None


def _tune(
    settings: Settings,
    module: str,
    runner: Any,
    choices: dict[str, Any],
    on_progress: Callable[[Progress], None],
) -> TuningResult:
    """Load the module and tune it."""
    from ...plugins.metaschedule.module_source import load_module
    from ...plugins.metaschedule.threads import note_on_threads
    from ...plugins.metaschedule.tune.options import EVALUATOR
    from ...plugins.metaschedule.tune.tune import tune
    from ...storage.config import make_folder

    if line := note_on_threads():
        settings.note(line)
    location = settings.locate()
    make_folder(location)
    fields = {name: choices.pop(name) for name in ("repeat", "min_repeat_ms")}
    evaluator = EVALUATOR._replace(**{k: v for k, v in fields.items() if v is not None})
    return tune(
        load_module(module, function=choices.pop("function")),
        _target(choices.pop("target")),
        runner=runner,
        database=location.url,
        num_tuning_cores=choices.pop("jobs") or "physical",
        evaluator=evaluator,
        warm=not choices.pop("no_warm"),
        racing=not choices.pop("no_racing"),
        finals=not choices.pop("no_finals"),
        network=_name_of(module),
        measure_network=not choices.pop("no_latency"),
        **lowering_of(*(choices.pop(name) for name in ("layout", "no_prepack", "bind"))),
        layers=resolve_layers(settings, choices.pop("layers")),
        on_progress=on_progress,
        **choices,
    )


def _name_of(module: str) -> str:
    """Return the name of a network: of its file, or of its name in a Python module."""
    path, _, name = module.rpartition(":")
    return name if path else Path(module).stem


@contextmanager
def _interruptible(settings: Settings) -> Iterator[list[Progress]]:
    """Yield a list for the progress; on Ctrl-C print the number of finished trials."""
    history: list[Progress] = []
    try:
        yield history
    except KeyboardInterrupt:
        done = f" after {history[-1].trials} of {history[-1].max_trials} trials" if history else ""
        raise interrupted(
            f"Interrupted{done}; measurements are stored; run the same command again to continue",
        ) from None


def _report(settings: Settings, module: str, result: TuningResult) -> None:
    """Print the result of each task, the times of the network, and notes on the run."""
    rows = [_row(task) for task in result.tasks]
    result.database.close()
    networks = result.networks

    def show() -> None:
        print_table(COLUMNS, rows)
        for network in networks:
            print_table(NETWORK, network_rows(network))

    columns = (*COLUMNS, *(column for column in NETWORK if column.key not in _SHARED))
    unknown = dict.fromkeys(column.key for column in columns)
    merged = [unknown | row for row in _merged(rows, networks)]
    print_rows(settings, columns, merged, show=show)
    costs = result.costs
    threads = "" if result.threads is None else f" on {text.threads(result.threads)}"
    settings.note(
        f"{text.count(result.trials, 'trial')}{threads} in {text.span(result.seconds)}: "
        + ", ".join(
            f"{name} {text.span(getattr(costs, name))}"
            for name in ("starting", "searching", "building", "running", "learning")
        )
    )
    untried = sum(
        task.record is None and task.problem is None and not task.progress.trials
        for task in result.tasks
    )
    if untried:
        settings.note(
            f"{text.count(untried, 'operator')} without a trial; "
            "give more --trials or --minutes, or run the same command again"
        )
    for network in networks:
        note_network(settings, network)
        settings.note(f"Show this again: tunedb top --network {quote(network.name)}")
    if not networks and result.latency is not None:
        settings.note(f"Sum of the operators' times: {text.seconds(result.latency)}")
    for note in result.notes:
        settings.note(note)
    for task in result.tasks:
        if task.problem is not None:
            settings.warn(f"TVM cannot tune {task.name}, apply uses its default: {task.problem}")
    if result.resumed:
        settings.note(f"{text.count(result.resumed, 'trial')} of these in an earlier run")
    if result.served:
        settings.note(
            f"{text.count(result.served, 'known program')} not measured again; see --remeasure"
        )
    if result.delivery is not None:
        _note_delivery(settings, result.delivery)
    best = next((task.record for task in result.tasks if task.record is not None), None)
    if best is not None:
        settings.note(f"Show the best record: tunedb show {best.id}")
        settings.note(f"Compile the module: tunedb apply {module} -o lib.so")


def _merged(rows: list[dict[str, Any]], networks: Sequence[NetworkRun]) -> list[dict[str, Any]]:
    """Return the rows of tasks with their times in the first network, then its and others' rows."""
    rows = [row | {"kind": "operator"} for row in rows]
    known = {row["task"]: row for row in rows}
    others = []
    for network in networks:
        for row in network_rows(network):
            name = row["operator"]
            times = {key: value for key, value in row.items() if key not in _SHARED}
            if name in known and "seconds" not in known[name]:
                known[name].update(times)
            else:
                others.append({"task": name, "calls": row["calls"], **times})
    return rows + others


def _note_delivery(settings: Settings, delivery: Delivery) -> None:
    """Print the number of pushed records, and the command that pushes the rest."""
    if delivery.delivered:
        settings.note(f"{text.count(delivery.delivered, 'record')} pushed to {delivery.server}")
    if not delivery.is_complete:
        settings.warn(
            f"up to {text.count(delivery.waiting, 'record')} not pushed yet"
            f" ({delivery.error or 'the push continues'}); push later with: "
            f"tunedb push {delivery.server}"
        )


def _row(task: TaskResult) -> dict[str, Any]:
    progress = task.progress
    return {
        "task": progress.name,
        "workload_id": task.workload_id,
        "record": None if task.record is None else task.record.id,
        "best": task.seconds,
        "first": progress.first_seconds,
        "calls": task.calls,
        "trials": progress.trials,
        "served": progress.served,
        "failed": progress.failed,
        "origin": None if task.origin is None else task.origin.value,
        "operators": list(task.operators),
        "donor": None if task.donor is None else task.donor.hex(),
        "forecast": None if progress.forecast is None else progress.forecast.trials,
        "problem": task.problem,
    }


# ---------------------------------------------------------------------- progress


@contextmanager
def _display(settings: Settings, minutes: float | None) -> Iterator[Callable[[Progress], None]]:
    """Yield a callback that shows progress: a bar on a terminal, else with -v a line per batch."""
    import sys

    if settings.quiet or not sys.stderr.isatty():
        yield lambda progress: _note(settings, progress)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        *(TextColumn("{task.description}"), BarColumn(None)),
        *(() if minutes else (MofNCompleteColumn(),)),
        *(TextColumn("{task.fields[best]}"), TimeElapsedColumn(), TimeRemainingColumn()),
    )
    # Transient: the report takes the bar's place.
    with Bars(*columns, console=Console(stderr=True, highlight=False), transient=True) as bars:
        task = bars.add_task("starting", total=None, best="")

        def show(progress: Progress) -> None:
            bars.update(
                task,
                description=escape(text.cut(text.clean(progress.task.name), 30)),
                total=60 * minutes if minutes else progress.max_trials,
                completed=min(progress.seconds, 60 * minutes) if minutes else progress.trials,
                best=_state(progress),
            )

        yield show


def _note(settings: Settings, progress: Progress) -> None:
    if settings.verbosity > 0:
        done = f"{progress.trials} of {progress.max_trials} trials"
        settings.note(f"{progress.task.name}: {done}, {_state(progress)}")


def _state(progress: Progress) -> str:
    """Return the estimate of a network, and the operators that have a program; else of the task."""
    if progress.latency is None:
        return _forecast(progress.task)
    faster = ""
    if progress.untuned is not None:
        faster = f" ({progress.untuned / progress.latency:.1f}x)"
    tuned = sum(task.trials > 0 for task in progress.tasks)
    return (
        f"about {text.seconds(progress.latency)}{faster}, "
        f"{tuned} of {text.count(len(progress.tasks), 'operator')} tuned"
    )


def _forecast(task: TaskProgress) -> str:
    """Return a task's best time, and the trials at which it should reach 95 % of the best."""
    best = (
        "no working program yet"
        if task.best_seconds is None
        else f"best {text.seconds(task.best_seconds)}"
    )
    if task.forecast is None:
        return best
    bound = "more than " if task.forecast.is_bound else ""
    return f"{best}, 95 % of the expected best at {bound}{task.forecast.trials} trials"
