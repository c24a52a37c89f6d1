"""``tunedb convert``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..choose import complete_workload, find_targets, target_option
from ..interrupt import interrupted
from ..module import lowering_of, lowering_options
from ..options import Settings, common_options, pass_settings, updating
from ..output import Column, output_options, print_rows
from ..progress import counter, progress_bar

if TYPE_CHECKING:
    from ...plugins.metaschedule.convert.convert import ConvertReport

#: Largest number of reasons on stderr; JSON has all.
_MAX_REASONS = 10

_NUMBERS = ("read", "replayed", "known", "undefined", "refused")


def _names(definitions: Mapping[str, int]) -> str:
    return text.clean(", ".join(definitions))


COLUMNS = (
    Column("workload_id", "workload", right=True),
    Column("workload", "name", flexible=True),
    Column("read", "records", text.number, right=True),
    Column("replayed", "replayed", text.number, right=True),
    Column("known", "known", text.number, right=True),
    Column("undefined", "no definition", text.number, right=True),
    Column("refused", "refused", text.number, right=True),
    Column("reasons"),
    Column("definitions", "replayed on", _names, flexible=True, least=110),
)


@click.command()
@click.option(
    *("--workload", "workloads"),
    metavar="WORKLOAD",
    multiple=True,
    shell_complete=complete_workload,
    help="Only this workload: its id, name or digest; may be repeated.",
)
@target_option()
@click.option(
    "--define",
    metavar="NAME=MODULE:FUNCTION",
    multiple=True,
    help="Definition of the workloads of that name (package.module:function); may be repeated. "
    "THIS RUNS ITS CODE.",
)
@click.option(
    "--module",
    "module",
    metavar="MODULE",
    help="Your own functions, for logs with hashes: a network as .onnx or .pt2, a TVMScript file "
    "(which is run), or package.module:name.",
)
@lowering_options
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes that replay programs. Default: one for each processor.",
)
@click.option(
    "--best",
    metavar="NUMBER",
    type=click.IntRange(min=1),
    help="Only so many of the fastest records of each workload for each target.",
)
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    workloads: tuple[str, ...],
    target: str | None,
    define: tuple[str, ...],
    module: str | None,
    layout: str,
    no_prepack: bool,
    bind: dict[str, Any],
    algorithms: str,
    workers: int | None,
    best: int | None,
) -> None:
    """Convert auto_scheduler's records to schedules of today's TVM.

    The steps of each record that was measured without error are replayed on a definition of its
    workload: a function that gets the arguments in the log and returns te tensors. Definitions of
    the operators in public logs are built in; --define adds your own. Converted programs keep
    target, times and source of their records: they answer for that target alone, and are donors and
    training data for others. An interrupted run continues where it stopped.

    A log that was tuned from a network has hashes in place of names. With --module, such workloads
    are compared with the functions of your network, lowered as tunedb tune does: the one whose
    arguments have the shapes in the log, and on whose stages the steps replay, is taken for it.

    Example:
      tunedb convert
      tunedb convert --best 64
      tunedb convert --module resnet50.onnx
      tunedb convert --workload conv2d_layer --define conv2d_layer=my.operators:conv2d_layer
      tunedb convert --json | jq '.[] | select(.undefined > 0) | .workload'
    """
    from ...plugins.metaschedule.convert.convert import ConvertReport, convert

    lowering = lowering_of(layout, no_prepack, bind, algorithms)
    if module is None and lowering != lowering_of("auto", False, {}, "exact"):
        raise click.UsageError(
            "--layout, --no-prepack, --bind and --algorithms need --module MODULE"
        )
    functions = None if module is None else _functions(module, lowering)
    report = ConvertReport()
    started = time.monotonic()
    with updating(settings) as store:
        chosen = sorted({id_ for words in workloads for id_ in store.lookup.workload(words)})
        try:
            with progress_bar(settings, None) as progress:
                convert(
                    store,
                    workload_ids=chosen or None,
                    target_ids=find_targets(store, target),
                    define=define,
                    functions=functions,
                    workers=workers,
                    best=best,
                    on_begin=progress.resize,
                    on_record=counter(progress),
                    report=report,
                )
        except KeyboardInterrupt:
            _report(settings, report, started)
            raise interrupted(
                "Interrupted; converted records stay, and the next run continues"
            ) from None
    _report(settings, report, started)


def _functions(words: str, arguments: dict[str, Any]) -> Callable[[str], Mapping[str, Any]]:
    """Return what lowers a module for a kind of target, for :func:`convert`."""
    from ...plugins.metaschedule.deploy.apply import tasks_of
    from ...plugins.metaschedule.deploy.network import Lowering
    from ...plugins.metaschedule.module_source import load_module

    mod, lowering = load_module(words), Lowering(**arguments)
    return lambda kind: tasks_of(mod, {"kind": kind}, lowering)


def _report(settings: Settings, report: ConvertReport, started: float) -> None:
    """Print a row for each workload, and the reasons of refusals on stderr."""
    rows: list[dict[str, Any]] = [
        {
            "workload_id": each.workload_id,
            "workload": each.name,
            **{name: getattr(each, name) for name in _NUMBERS},
            "reasons": each.reasons,
            "definitions": each.definitions,
        }
        for each in report.workloads
    ]
    total = {"workload": "total", **{name: report.total(name) for name in _NUMBERS}}
    print_rows(settings, COLUMNS, rows, total=total if len(rows) > 1 else None)
    replayed, seconds = report.total("replayed"), time.monotonic() - started
    rate = f" ({replayed / seconds:,.0f}/s)" if replayed and seconds >= 1 else ""
    settings.note(f"{text.count(replayed, 'record')} converted in {text.span(seconds)}{rate}")
    reasons: dict[str, int] = {}
    for each in report.workloads:
        for reason, number in each.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + number
    ranked = sorted(reasons.items(), key=lambda item: -item[1])
    for reason, number in ranked[:_MAX_REASONS]:
        settings.note(f"{text.count(number, 'record')} refused: {reason}")
    if len(ranked) > _MAX_REASONS:
        settings.note(f"{text.count(len(ranked) - _MAX_REASONS, 'more reason')} (--json)")
    if report.total("undefined"):
        settings.note(
            "Records without a definition stay as they are; name one with --define, or the network "
            "that was tuned with --module"
        )
    for problem in report.problems:
        settings.warn(problem)
    if report.untrusted:
        settings.note(f"{text.count(report.untrusted, 'record')} of foreign sources left out")
