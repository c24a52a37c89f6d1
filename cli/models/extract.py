"""``tunedb extract``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..choose import complete_workload, find_targets, target_option
from ..interrupt import interrupted
from ..options import Settings, common_options, pass_settings, writing
from ..output import Column, output_options, print_rows
from ..progress import counter, progress_bar

if TYPE_CHECKING:
    from ...extraction.extract import ExtractReport, Rebuilder
    from ...features.base import FeatureSet
    from ...storage.store import Store

#: Largest number of reasons on stderr; quarantine has all.
_MAX_REASONS = 10

#: Default sets: one of steps and, with TVM, one of modules.
_STEPS, _SCHEDULED = "steps", "tunedb.scheduled"

COLUMNS = (
    Column("set", "set"),
    Column("version", "version", right=True, least=90),
    Column("programs", "programs", text.number, right=True),
    Column("known", "known", text.number, right=True),
    Column("done", "done", text.number, right=True),
    Column("failed", "failed", text.number, right=True),
    Column("passed", "failed before", text.number, right=True, least=90),
    Column("unable", "no module", text.number, right=True),
    Column("seconds", "time", text.span, right=True),
    Column("rate", "programs/s", text.operations, right=True),
    Column("reasons"),
)


@click.command()
@click.option(
    *("--set", "names"),
    metavar="NAME",
    multiple=True,
    help="A feature set (tunedb features); may be repeated. Default: steps, and with TVM "
    "tunedb.scheduled.",
)
@click.option(
    "--workload",
    metavar="WORKLOAD",
    shell_complete=complete_workload,
    help="Only this workload: its id, name or digest.",
)
@target_option()
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes that replay programs. Default: one for each processor.",
)
@click.option("--limit", type=click.IntRange(min=0), help="Largest number of programs to compute.")
@click.option("--retry", is_flag=True, help="Retry programs that failed before.")
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    names: tuple[str, ...],
    workload: str | None,
    target: str | None,
    workers: int | None,
    limit: int | None,
    retry: bool,
) -> None:
    """Compute features for programs that have none.

    The command adds missing features batch by batch, and replaces features that came with a merge.
    An interrupted run continues where it stopped. Sets that need a program's module replay it in
    worker processes (with TVM, and only programs of trusted sources); a crash or a hang affects
    only that program. Programs that fail are quarantined with TVM's error (tunedb quarantine) and
    skipped in later runs.

    Example:
      tunedb extract
      tunedb extract --set ansor.per_store/tvm --workers 8
      tunedb extract --workload matmul --target llvm --retry
    """
    sets = list(_feature_sets(settings, names))
    reports: list[ExtractReport] = []
    with writing(settings) as store:
        selection = {
            "workload_ids": None if workload is None else store.lookup.workload(workload),
            "target_ids": find_targets(store, target),
            "limit": limit,
            "retry": retry,
        }
        try:
            for feature_set in sets:
                _extract(settings, store, feature_set, workers, reports, selection)
        except KeyboardInterrupt:
            _report(settings, reports)
            raise interrupted("Interrupted; stored rows stay, and the next run continues") from None
        except Exception:
            # Finished batches are stored, so the report precedes the error.
            _report(settings, reports)
            raise
        kernels = store.programs.has_kernels()
    _report(settings, reports)
    if kernels:
        settings.note(
            "configurations of GPU kernels have no features; tunedb advise trains on their launches"
        )


def _feature_sets(settings: Settings, names: tuple[str, ...]) -> Iterator[FeatureSet]:
    """Yield the named feature sets, or the default ones."""
    from ...features.base import feature_set

    if not names:
        yield feature_set(_STEPS)
        if find_spec("tvm") is None:
            settings.note(f"TVM is not installed: {_SCHEDULED} is left out")
            return
        names = (_SCHEDULED,)
    yield from map(feature_set, dict.fromkeys(names))


def _extract(
    settings: Settings,
    store: Store,
    feature_set: FeatureSet,
    workers: int | None,
    reports: list[ExtractReport],
    selection: dict[str, Any],
) -> None:
    """Compute the missing rows of one feature set."""
    from ...extraction.extract import ExtractReport, extract

    report = ExtractReport(feature_set.name, feature_set.version)
    reports.append(report)
    with ExitStack() as stack:
        rebuilder = stack.enter_context(_rebuilder(store, feature_set, workers))
        progress = stack.enter_context(progress_bar(settings, None))
        progress.describe(feature_set.name)

        def begin(report: ExtractReport) -> None:
            limit = selection["limit"]
            progress.resize(report.missing if limit is None else min(limit, report.missing))

        extract(
            store,
            feature_set,
            rebuilder=rebuilder,
            on_begin=begin,
            on_program=counter(progress),
            report=report,
            **selection,
        )


@contextmanager
def _rebuilder(
    store: Store, feature_set: FeatureSet, workers: int | None
) -> Iterator[Rebuilder | None]:
    """Yield a pool that replays programs, for a set that needs their modules."""
    from ...features.base import StepFeatures

    if isinstance(feature_set, StepFeatures):
        yield None
        return
    from ...plugins.metaschedule.workers.replay_pool import ReplayPool

    with ReplayPool(store, feature_set.name, workers=workers) as pool:
        yield pool


def _report(settings: Settings, reports: list[ExtractReport]) -> None:
    """Print the report of each set, and reasons of failures on stderr."""
    rows = [
        {
            "set": report.name,
            "rate": (report.done + report.failed) / report.seconds if report.seconds else None,
            **{
                column.key: getattr(report, column.key)
                for column in COLUMNS
                if column.key not in ("set", "rate")
            },
        }
        for report in reports
    ]
    print_rows(settings, COLUMNS, rows)
    for report in reports:
        for reason, number in _main_reasons(report.reasons):
            settings.note(f"{report.name}: {text.count(number, 'program')}: {reason}")
    if any(report.failed for report in reports):
        settings.note("Programs that failed are in quarantine; see: tunedb quarantine")


def _main_reasons(reasons: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(reasons.items(), key=lambda item: -item[1])[:_MAX_REASONS]
