"""``tunedb merge``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from ..options import Settings, common_options, pass_settings
from ..output import output_options, print_rows
from ..progress import ProgressBar, progress_bar
from .options import COLUMNS, receiving, report_row, show_sources, tell
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
    run = _Run(settings, selection, accept_trusted_names=accept_trusted_names, dry_run=dry_run)
    try:
        with receiving(settings, dry_run=dry_run) as store:
            run.ours = store.key
            for other in others:
                run.merge(store, other)
    except (Exception, KeyboardInterrupt):
        # What came of the others stays, so it is told before the error is.
        if run.rows:
            run.tell()
        raise
    run.tell()
    if any(row["rejected"] for row in run.rows):
        raise click.exceptions.Exit(1)


class _Run:
    """Merges one database after another."""

    def __init__(
        self, settings: Settings, selection: Selection, *, accept_trusted_names: bool, dry_run: bool
    ) -> None:
        self._settings = settings
        self._selection = selection
        self._accept_trusted_names = accept_trusted_names
        self._dry_run = dry_run
        self.rows: list[dict[str, Any]] = []
        self.ours = ""

    def merge(self, store: Store, other: str) -> None:
        """Merge one database."""
        from ...exchange.merge import merge
        from ...exchange.peers import open_peer

        reports: list[MergeReport] = []
        with (
            closing(open_peer(other)) as peer,
            progress_bar(self._settings, peer.total) as progress,
        ):
            progress.describe(peer.location)
            try:
                reports.append(
                    merge(
                        store,
                        peer,
                        selection=self._selection,
                        accept_trusted_names=self._accept_trusted_names,
                        dry_run=self._dry_run,
                        on_progress=_shown_by(progress, reports),
                    )
                )
            finally:
                # Of a merge that broke off, what was there last.
                if reports:
                    self.rows.append(report_row(reports[-1]))

    def tell(self) -> None:
        """Print what came of all of them."""
        rows = self.rows
        print_rows(self._settings, COLUMNS, rows, show=lambda: show_sources(rows, self.ours))
        for row in rows:
            tell(self._settings, row, is_pull=True)
        if self._dry_run:
            self._settings.note("dry run: nothing was written")


def _shown_by(progress: ProgressBar, reports: list[MergeReport]) -> Callable[[MergeReport], None]:
    """Return what shows the progress of a merge, and keeps its report."""

    def show(report: MergeReport) -> None:
        reports[:] = [report]
        progress.resize(report.total)
        progress.update(report.read)

    return show
