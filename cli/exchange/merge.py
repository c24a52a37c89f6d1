"""``tunedb merge``."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from ..options import Settings, common_options, pass_settings, receiving
from ..output import output_options, print_rows
from ..progress import progress_bar
from .merge_report import COLUMNS, print_notes, print_sources, report_row, show_progress
from .selection import selection_options

if TYPE_CHECKING:
    from ...exchange.merge import MergeReport
    from ...storage.exchange_types import Selection
    from ...storage.store import Store


@click.command()
@click.argument("others", nargs=-1, required=True, metavar="OTHER...")
@click.option("--dry-run", is_flag=True, help="Compare and report; write nothing.")
@click.option(
    "--accept-trusted-names",
    is_flag=True,
    help="Accept new records under names of trusted sources, although nothing is signed.",
)
@selection_options
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    others: tuple[str, ...],
    dry_run: bool,
    accept_trusted_names: bool,
    selection: Selection,
) -> None:
    """Merge the records of other databases and bundles.

    OTHER is a database file, a bundle, the URL of a server, or - for a bundle from standard input.
    The command checks every row. It reports the rows that it rejects, and then the exit code is 1.
    Merged records are foreign: tunedb trust and tunedb revalidate decide which of them are served.
    A second merge adds nothing; to finish an interrupted merge, run it again.

    Example:
      tunedb merge team-b.tunedb
      tunedb merge /mnt/team/all.db --target llvm --best 20 --dry-run
      tunedb merge postgresql://bob@db.example.org/tunedb --since 2026-11-01
    """
    rows: list[dict[str, Any]] = []
    key = ""

    def print_report() -> None:
        print_rows(settings, COLUMNS, rows, show=lambda: print_sources(rows, key))
        for row in rows:
            print_notes(settings, row, is_pull=True)
        if dry_run:
            settings.note("dry run: nothing was written")

    try:
        with receiving(settings, dry_run=dry_run) as store:
            key = store.key
            for other in others:
                _merge(
                    settings,
                    store,
                    other,
                    rows,
                    selection=selection,
                    accept_trusted_names=accept_trusted_names,
                    dry_run=dry_run,
                )
    except (Exception, KeyboardInterrupt):
        # Finished merges are stored, so their report precedes the error.
        if rows:
            print_report()
        raise
    print_report()
    if any(row["rejected"] for row in rows):
        raise click.exceptions.Exit(1)


def _merge(
    settings: Settings, store: Store, other: str, rows: list[dict[str, Any]], **options: Any
) -> None:
    """Merge one database, and append the row of its report, also after an error."""
    from ...exchange.merge import merge
    from ...exchange.peers import open_peer

    report: MergeReport | None = None
    with closing(open_peer(other)) as peer, progress_bar(settings, peer.total) as progress:
        progress.describe(peer.location)
        show = show_progress(progress)

        def on_progress(current: MergeReport) -> None:
            nonlocal report
            report = current
            show(current)

        try:
            report = merge(store, peer, on_progress=on_progress, **options)
        finally:
            if report is not None:
                rows.append(report_row(report))
