"""``tunedb tune``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...system import text
from ..interrupt import interrupted
from ..layers import layer_option, prior_of, prior_options, resolve_layers
from ..module import bind_words, lowering_of, lowering_options, lowering_words
from ..network import COLUMNS as NETWORK
from ..network import network_rows, note_network, print_networks
from ..options import Settings, common_options, pass_settings
from ..output import Column, output_options, print_rows, print_table
from ..report.page import LivePage
from .progress import states, tuning_progress

if TYPE_CHECKING:
    from ...exchange.outbox import Delivery
    from ...plugins.metaschedule.tuning.progress import Progress
    from ...plugins.metaschedule.tuning.results import NetworkResult, TaskResult, TuningResult

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


#: Columns of a network; its operators stand under "task", as the tasks.
_NETWORK = tuple(column for column in NETWORK if column.key not in ("operator", "digest", "calls"))

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def _weights(
    _context: click.Context, _option: click.Parameter, words: tuple[str, ...]
) -> dict[str, float]:
    """Return the weights of ``--weight``."""
    weights = {}
    for word in words:
        name, _, number = word.rpartition("=")
        try:
            weights[name] = float(number)
        except ValueError:
            name = ""
        if not name:
            raise click.BadParameter(f"{word!r} is not NAME=NUMBER, e.g. bert=2")
    return weights


def _latencies(
    _context: click.Context, _option: click.Parameter, words: tuple[str, ...]
) -> dict[str, float] | float | None:
    """Return the seconds of ``--latency-target``: of each name, or of all networks."""
    targets = {}
    for word in words:
        name, _, time = word.rpartition("=")
        number = time.rstrip("nuµms")
        try:
            targets[name] = float(number) * _UNITS[time.removeprefix(number)]
        except ValueError:
            raise click.BadParameter(f"{word!r} is not [NAME=]TIME, e.g. bert=5ms") from None
        except KeyError:
            units = ", ".join(_UNITS)
            raise click.BadParameter(f"{word!r} needs a unit ({units}), e.g. bert=5ms") from None
    if "" not in targets:
        return targets or None
    if len(words) > 1:
        raise click.BadParameter("a time without a name is that of all networks: give no other")
    return targets[""]


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
        "--weight",
        "weights",
        metavar="NAME=NUMBER",
        multiple=True,
        callback=_weights,
        help="Weight of a network's latency among several. Default: 1.",
    ),
    click.option(
        "--latency-target",
        metavar="[NAME=]TIME",
        multiple=True,
        callback=_latencies,
        help="Latency that suffices for a network, or for all: 5ms, bert=5ms.",
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
    click.option(
        "--early-stopping",
        type=click.IntRange(min=1),
        metavar="TRIALS",
        help="End a task after so many trials without a gain of 1 %.",
    ),
    click.option(
        "--least-gain",
        type=click.FloatRange(min=0, max=1, max_open=True),
        default=0.0,
        metavar="SHARE",
        help="End the run where no batch is expected to gain this share of the latency: 0.001.",
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
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@_run_options
@_remote_options
@lowering_options
@layer_option
@prior_options
@output_options
@common_options
@pass_settings
def command(settings: Settings, modules: tuple[str, ...], **choices: Any) -> None:
    """Tune a module, or several networks, from the records of the database.

    MODULE is a TVMScript file, which is run as your own code (FILE.py, or FILE.py:NAME), a name in
    a Python module (package.module:NAME), an ONNX model (.onnx), or an exported PyTorch program
    (.pt2). All measurements are stored. The search begins with the best programs of this workload
    and of similar ones; programs that this machine measured are not measured again ("known"). To
    continue an interrupted run, run the same command again.

    A network with symbolic sizes is tuned for the numbers that --bind gives, for each combination
    where a name has several.

    Several networks are tuned in one run, which minimises the sum of their latencies by --weight;
    equal operators are one task. A network is called by its file's name, or its path where two have
    the same name; "NAME length=128" is one of its sizes. A network whose estimated latency is
    within its --latency-target gets no more trials, and the run ends when all are.

    Each batch goes to the operator whose expected gain is largest. An operator that TVM cannot tune
    is reported, the others are tuned, and the exit code is 1. At the end a network is measured with
    equal inputs before and after, operator by operator; "of the limit" is the least time on this
    machine (its peak and bandwidth are measured once) as a share of the time. The exit code is also
    1 where outputs differ by more than rounding.

    Example:
      tunedb tune matmul.py
      tunedb tune my.models:attention --trials 256 --batch 32
      tunedb tune network.onnx --minutes 10 --report live.html
      tunedb tune model.onnx --per-task 64 --op conv2d
      tunedb tune bert.onnx --bind batch=1 --bind length=128 --bind length=256
      tunedb tune bert.onnx resnet.onnx --weight bert=2 --latency-target resnet=5ms --minutes 60
      tunedb tune conv.py --target '{"kind": "cuda", "arch": "sm_80"}' --json
      tunedb tune conv.py --layer postgresql://tuning.example/tunedb
      tunedb tune conv.py --target nvidia/jetson-orin-nano --tracker 192.168.0.2:9190 --key orin
    """
    runner = _runner(choices)
    minutes, names = choices["minutes"], _names(modules)
    lowering = lowering_words(
        choices["layout"], no_prepack=choices["no_prepack"], algorithms=choices["algorithms"]
    )
    report: Path | None = choices.pop("report")
    page = None if report is None else LivePage(settings, report, states)
    try:
        with _interruptible(settings) as history, _display(settings, minutes) as show:

            def on_progress(progress: Progress) -> None:
                history.append(progress)
                show(progress)
                if page is not None:
                    page.update(progress)

            result = _tune(settings, names, runner, choices, on_progress)
    finally:
        if page is not None:
            page.close()
    _report(settings, names, lowering, result)
    is_accurate = all(each.run is None or each.run.is_accurate for each in result.networks)
    if not is_accurate or any(task.problem is not None for task in result.tasks):
        raise click.exceptions.Exit(1)


def _runner(choices: dict[str, Any]) -> Any:
    """Pop the options of :func:`_remote_options`; return the ``runner`` of ``tune``."""
    runner, tracker, key = (choices.pop(name) for name in ("runner", "tracker", "key"))
    if runner == "local" and (tracker or key):
        raise click.UsageError("--tracker and --key are for --runner rpc")
    if runner != "rpc" and not tracker and not key:
        return "local"
    from ...plugins.metaschedule.tuning.remote import rpc_config

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
    modules: Mapping[str, str],
    runner: Any,
    choices: dict[str, Any],
    on_progress: Callable[[Progress], None],
) -> TuningResult:
    """Load the modules, which have names, and tune them."""
    from ...plugins.metaschedule.module_source import load_module
    from ...plugins.metaschedule.threads import note_on_threads
    from ...plugins.metaschedule.tuning.options import EVALUATOR
    from ...plugins.metaschedule.tuning.tune import tune
    from ...storage.config import make_folder

    if line := note_on_threads():
        settings.note(line)
    location = settings.locate()
    make_folder(location)
    fields = {name: choices.pop(name) for name in ("repeat", "min_repeat_ms")}
    evaluator = EVALUATOR._replace(**{k: v for k, v in fields.items() if v is not None})
    function = choices.pop("function")
    return tune(
        {name: load_module(module, function=function) for name, module in modules.items()},
        _target(choices.pop("target")),
        runner=runner,
        database=location.url,
        num_tuning_cores=choices.pop("jobs") or "physical",
        evaluator=evaluator,
        warm=not choices.pop("no_warm"),
        racing=not choices.pop("no_racing"),
        finals=not choices.pop("no_finals"),
        measure_network=not choices.pop("no_latency"),
        **lowering_of(
            *(choices.pop(name) for name in ("layout", "no_prepack", "bind", "algorithms"))
        ),
        layers=resolve_layers(settings, choices.pop("layers")),
        prior=prior_of(choices.pop("prior"), choices.pop("no_prior")),
        on_progress=on_progress,
        **choices,
    )


def _names(modules: tuple[str, ...]) -> dict[str, str]:
    """Return modules by name: of the file, or in a Python module; by all words if names are equal.

    Raises
    ------
    UsageError
        A module is given twice.
    """
    if repeated := [module for module in modules if modules.count(module) > 1]:
        raise click.UsageError(f"{repeated[0]} is given twice")
    parts = {module: module.rpartition(":") for module in modules}
    names = {m: name if path else Path(m).stem for m, (path, _, name) in parts.items()}
    shared = list(names.values())
    return {m if shared.count(name) > 1 else name: m for m, name in names.items()}


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


def _report(
    settings: Settings, modules: Mapping[str, str], lowering: str, result: TuningResult
) -> None:
    """Print the result of each task, the times of networks, and notes on the run."""
    rows = [_row(task) for task in result.tasks]
    result.database.close()
    runs = [network.run for network in result.networks if network.run is not None]

    def show() -> None:
        # Parts of algorithms that got no trial have nothing to show.
        print_table(COLUMNS, [row for row in rows if row["trials"] or row["calls"] != 0])
        print_networks(runs)

    columns = (*COLUMNS, *_NETWORK)
    unknown = dict.fromkeys(column.key for column in columns)
    operators = [row | {"task": row["operator"]} for run in runs for row in network_rows(run)]
    print_rows(settings, columns, [unknown | row for row in (*rows, *operators)], show=show)
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
        # A part of an algorithm that cannot become the fastest gets no trial.
        task.record is None
        and task.problem is None
        and not task.progress.trials
        and task.calls != 0
        for task in result.tasks
    )
    if untried:
        settings.note(
            f"{text.count(untried, 'operator')} without a trial; "
            "give more --trials or --minutes, or run the same command again"
        )
    _note_networks(settings, result.networks)
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
        # One size of a network is enough for an example.
        sizes = {each.progress.given: each.progress.sizes for each in reversed(result.networks)}
        for number, (name, module) in enumerate(modules.items(), 1):
            words = module + bind_words(sizes.get(name, {})) + lowering
            library = "lib" if len(modules) == 1 else f"lib{number}"
            settings.note(f"Compile the module: tunedb apply {words} -o {library}.so")


def _note_networks(settings: Settings, networks: Sequence[NetworkResult]) -> None:
    """Print the latency of each network, and whether it misses its target."""
    for network in networks:
        progress = network.progress
        if network.run is not None:
            note_network(settings, network.run)
        elif progress.latency is not None:
            settings.note(f"{network.name}: sum of the operators {text.seconds(progress.latency)}")
        if progress.goal.latency is not None and not progress.is_reached:
            settings.note(
                f"{network.name}: the estimated latency is not within its target of "
                f"{text.seconds(progress.goal.latency)}; give more --trials or --minutes, "
                "or run the same command again"
            )
    for name in dict.fromkeys(each.progress.given for each in networks if each.run):
        settings.note(f"Show this again: tunedb top --network {quote(name)}")


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
        "kind": "task",
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


@contextmanager
def _display(settings: Settings, minutes: float | None) -> Iterator[Callable[[Progress], None]]:
    """Yield a callback that shows progress: bars on a terminal, else with -v a line per batch."""
    import sys

    if settings.quiet or not sys.stderr.isatty():
        yield lambda progress: _note(settings, progress)
        return
    with tuning_progress(minutes=minutes, stderr=True) as show:
        yield show


def _note(settings: Settings, progress: Progress) -> None:
    if settings.verbosity > 0:
        done = f"{progress.trials} of {progress.max_trials} trials"
        found = [
            f"{name} {state}" if progress.networks else state for name, state, _ in states(progress)
        ]
        settings.note(f"{progress.task.name}: {done}, {'; '.join(found)}")
