"""``tunedb tune``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from .. import text
from ..layers import layer_option, resolve_layers
from ..module import lowering_of, lowering_options
from ..options import Settings, common_options, pass_settings
from ..output import Column, output_options, print_rows
from .options import remote_options, run_options, runner_of, target_of

if TYPE_CHECKING:
    from ...exchange.outbox import Delivery
    from ...plugins.metaschedule.tune.progress import Progress, TaskProgress
    from ...plugins.metaschedule.tune.results import TaskResult, TuningResult

_INTERRUPTED = 130

COLUMNS = (
    Column("task", "task"),
    Column("workload_id"),
    Column("record", "record", right=True),
    Column("best", "best", text.seconds, right=True),
    Column("first", "first batch", text.seconds, right=True, least=80),
    Column("trials", "trials", text.number, right=True),
    Column("served", "known", text.number, right=True),
    Column("failed", "failed", text.number, right=True),
    Column("origin", "origin", least=80),
    Column("operators"),
    Column("donor"),
    Column("forecast", "95 % at", text.number, right=True, least=100),
)


@click.command()
@click.argument("module")
@run_options
@remote_options
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

    Example:
      tunedb tune matmul.py
      tunedb tune my.models:attention --trials 256 --batch 32
      tunedb tune model.onnx --per-task 64 --op conv2d
      tunedb tune conv.py --target '{"kind": "cuda", "arch": "sm_80"}' --json
      tunedb tune conv.py --layer postgresql://tuning.example/tunedb
      tunedb tune conv.py --target nvidia/jetson-orin-nano --tracker 192.168.0.2:9190 --key orin
    """
    runner = runner_of(choices)
    with _interruptible(settings) as seen, _display(settings) as show:

        def on_progress(progress: Progress) -> None:
            seen.append(progress)
            show(progress)

        result = _tune(settings, module, runner, choices, on_progress)
    _tell(settings, module, result)


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
    named = {name: choices.pop(name) for name in ("repeat", "min_repeat_ms")}
    evaluator = EVALUATOR._replace(**{k: v for k, v in named.items() if v is not None})
    return tune(
        load_module(module, function=choices.pop("function")),
        target_of(choices.pop("target")),
        runner=runner,
        database=location.url,
        num_tuning_cores=choices.pop("jobs") or "physical",
        evaluator=evaluator,
        warm=not choices.pop("no_warm"),
        **lowering_of(choices.pop("layout"), choices.pop("no_prepack")),
        layers=resolve_layers(settings, choices.pop("layers")),
        on_progress=on_progress,
        **choices,
    )


@contextmanager
def _interruptible(settings: Settings) -> Iterator[list[Progress]]:
    """Yield a list of what was seen; say on Ctrl-C what is stored."""
    seen: list[Progress] = []
    try:
        yield seen
    except KeyboardInterrupt:
        done = f" after {seen[-1].trials} of {seen[-1].of} trials" if seen else ""
        click.echo(
            f"Interrupted{done}; measurements are stored; run the same command again to continue",
            err=True,
        )
        raise click.exceptions.Exit(_INTERRUPTED) from None


def _tell(settings: Settings, module: str, result: TuningResult) -> None:
    """Print what the run came to."""
    try:
        print_rows(settings, COLUMNS, [_row(task) for task in result.tasks])
    finally:
        result.database.close()
    costs = result.costs
    threads = "" if result.threads is None else f" on {text.threads(result.threads)}"
    settings.note(
        f"{text.count(result.trials, 'trial')}{threads} in {text.span(result.seconds)}: "
        + ", ".join(
            f"{name} {text.span(getattr(costs, name))}"
            for name in ("starting", "searching", "building", "running", "learning")
        )
    )
    for note in result.notes:
        settings.note(note)
    if result.resumed:
        settings.note(f"{text.count(result.resumed, 'trial')} of them in an earlier run")
    if result.served:
        settings.note(
            f"{text.count(result.served, 'known program')} not measured again (--remeasure does)"
        )
    if result.delivery is not None:
        _tell_delivery(settings, result.delivery)
    best = next((task.record for task in result.tasks if task.record is not None), None)
    if best is not None:
        settings.note(f"Its origin: tunedb show {best.id}")
        settings.note(f"Compile it: tunedb apply {module} -o lib.so")


def _tell_delivery(settings: Settings, delivery: Delivery) -> None:
    """Say what the server has got, and how it gets the rest."""
    if delivery.delivered:
        settings.note(f"{text.count(delivery.delivered, 'record')} delivered: {delivery.server}")
    if not delivery.is_complete:
        settings.warn(
            f"up to {text.count(delivery.waiting, 'record')} not delivered yet"
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
        "trials": progress.trials,
        "served": progress.served,
        "failed": progress.failed,
        "origin": None if task.origin is None else task.origin.value,
        "operators": list(task.operators),
        "donor": None if task.donor is None else task.donor.hex(),
        "forecast": None if progress.forecast is None else progress.forecast.trials,
    }


# ---------------------------------------------------------------------- while it runs


@contextmanager
def _display(settings: Settings) -> Iterator[Callable[[Progress], None]]:
    """Yield what shows a run: a bar on a terminal, with -v a line for each batch elsewhere."""
    import sys

    if settings.quiet or not sys.stderr.isatty():
        yield lambda progress: _note(settings, progress)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        *(TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn()),
        *(TextColumn("{task.fields[best]}"), TimeElapsedColumn()),
    )
    # Transient: the report takes the bar's place.
    with Bars(*columns, console=Console(stderr=True, highlight=False), transient=True) as bars:
        task = bars.add_task("starting", total=None, best="")

        def show(progress: Progress) -> None:
            bars.update(
                task,
                description=escape(text.cut(text.clean(progress.task.name), 30)),
                total=progress.of,
                completed=progress.trials,
                best=_course(progress.task),
            )

        yield show


def _note(settings: Settings, progress: Progress) -> None:
    if settings.verbosity > 0:
        settings.note(
            f"{progress.task.name}: {progress.trials} of {progress.of} trials, "
            f"{_course(progress.task)}"
        )


def _course(task: TaskProgress) -> str:
    """Return how a task comes on: its best time, and when it is expected to have arrived."""
    best = (
        "none works yet" if task.best_seconds is None else f"best {text.seconds(task.best_seconds)}"
    )
    if task.forecast is None:
        return best
    bound = "more than " if task.forecast.is_bound else ""
    return f"{best}, 95 % of the expected best at {bound}{task.forecast.trials} trials"
