"""``tunedb export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import choose, text
from .options import Settings, common_options, pass_settings, reading
from .output import Column, output_options, print_object, print_table
from .progress import bar, counter

if TYPE_CHECKING:
    from ..logs.export import ExportReport

COLUMNS = tuple(map(Column, ("format", "directories", "workloads", "records", "left_out")))

_SUMMARY = (Column("what", "what", flexible=True), Column("records", "records", right=True))


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--format",
    "format_",
    type=click.Choice(["metaschedule"]),
    default="metaschedule",
    show_default=True,
    help="What to write.",
)
@choose.target_option()
@click.option(
    "--workload",
    metavar="WORKLOAD",
    shell_complete=choose.complete_workload,
    help="Only this workload: its id, name, or the beginning of its digest.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    directory: Path,
    format_: str,
    target: str | None,
    workload: str | None,
    force: bool,
) -> None:
    """Write records as files of other tools.

    DIRECTORY becomes a work directory that TVM's JSONDatabase loads. Foreign and retracted
    records are left out; what the format cannot hold (sessions, causes of failure, times of day)
    stays in the database.

    Example:
      tunedb export ./work_dir
      tunedb export ./for_llvm --target llvm --workload matmul --force
    """
    from ..errors import NotFoundError
    from ..logs.export import export_metaschedule

    with reading(settings) as store:
        query = store.query
        target_ids = choose.find_targets(query, target)
        workload_ids = None if workload is None else choose.find_workload(query, workload)
        with bar(settings, query.size(target_ids)) as shown:
            report = export_metaschedule(
                query,
                directory,
                target_ids=target_ids,
                workload_ids=workload_ids,
                force=force,
                on_record=counter(shown),
            )
        location = store.location
    print_object(settings, COLUMNS, _row(report, format_), lambda: _show(report))
    if not report.records:
        raise NotFoundError(f"{location}: no record to export; nothing was written")


def _row(report: ExportReport, format_: str) -> dict[str, object]:
    return {
        "format": format_,
        "directories": report.directories,
        "workloads": report.workloads,
        "records": report.records,
        "left_out": report.left_out,
    }


def _show(report: ExportReport) -> None:
    workloads = text.count(report.workloads, "workload")
    rows: list[dict[str, object]] = []
    if report.records:
        where = ", ".join(report.directories)
        rows.append({"what": f"written to {where} ({workloads})", "records": report.records})
    for reason, number in sorted(report.left_out.items()):
        rows.append({"what": f"left out: {reason}", "records": number})
    if rows:
        print_table(_SUMMARY, rows)
