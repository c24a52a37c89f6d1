"""``tunedb advise launches``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ...system import text
from ..choose import complete_workload, find_targets, target_option
from ..interrupt import interrupted
from ..options import Settings, common_options, pass_settings, writing
from ..output import Column, output_options, print_object
from ..progress import progress_bar

if TYPE_CHECKING:
    from ...advisor.tvm_launches import FillReport

COLUMNS = (
    Column("records", "records", text.number, right=True),
    Column("known", "known", text.number, right=True),
    Column("filled", "filled", text.number, right=True),
    Column("unknown", "unknown", text.number, right=True),
    Column("launches", "launches", text.number, right=True),
)


@click.command()
@click.option(
    "--workload",
    metavar="WORKLOAD",
    shell_complete=complete_workload,
    help="Only this workload: its id, name or digest.",
)
@target_option()
@output_options
@common_options
@pass_settings
def launches(settings: Settings, workload: str | None, target: str | None) -> None:
    """Fill in the launches of TVM's own GPU programs.

    The thread blocks of their kernels follow from the traces of MetaSchedule, the steps of
    auto_scheduler, and the features ansor.per_store where those are stored (tunedb extract). A
    record whose blocks are not certain gets no launch. An interrupted run continues where it
    stopped.

    Example:
      tunedb advise launches
      tunedb advise launches --workload matmul --target cuda --json
    """
    from ...advisor.tvm_launches import FillReport, fill_launches, gpu_targets

    report = FillReport()
    with writing(settings) as store:
        target_ids = find_targets(store, target)
        workloads = None if workload is None else store.lookup.workload(workload)
        total = store.records.count(gpu_targets(store, target_ids)) if workload is None else None
        try:
            with progress_bar(settings, total) as progress:
                fill_launches(
                    store,
                    workload_ids=workloads,
                    target_ids=target_ids,
                    on_record=progress.update,
                    report=report,
                )
        except KeyboardInterrupt:
            _print_report(settings, report)
            raise interrupted("Interrupted; stored rows stay, and the next run continues") from None
    _print_report(settings, report)


def _print_report(settings: Settings, report: FillReport) -> None:
    """Print the numbers of records and launches."""

    def show() -> None:
        records = text.count(report.records, "record")
        click.echo(f"{records} of TVM's programs for GPUs; {report.known} had launches before")
        launches = text.count(report.launches, "launch")
        click.echo(f"{text.count(report.filled, 'record')} got {launches}")
        if report.unknown:
            click.echo(f"{report.unknown} have no known threads (tunedb extract may help)")

    print_object(settings, COLUMNS, asdict(report), show)
