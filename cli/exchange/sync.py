"""``tunedb push`` and ``tunedb pull``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..options import Settings, common_options, pass_settings, receiving, updating
from ..output import output_options, print_object
from ..progress import progress_bar
from .merge_report import COLUMNS, print_notes, print_sources, report_row, show_progress
from .selection import selection_options

if TYPE_CHECKING:
    from ...exchange.merge import MergeReport
    from ...storage.exchange_types import Selection
    from ...storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--dry-run", is_flag=True, help="Report what would be exchanged; write nothing."),
    click.option(
        "--full", is_flag=True, help="Compare all records, not only those since the last exchange."
    ),
)


def _sync_options(function: F) -> F:
    """Add ``--dry-run`` and ``--full`` to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command()
@click.argument("url", required=False)
@_sync_options
@selection_options
@output_options
@common_options
@pass_settings
def push(
    settings: Settings, url: str | None, full: bool, dry_run: bool, selection: Selection
) -> None:
    """Send new records to a server.

    URL is a server or a file of another team. Default: TUNEDB_SERVER, or server in a tunedb.toml.
    The database must exist (tunedb db init URL). The command reads only records that are new since
    the last push, and sends no record that the other side has. An interrupted push continues where
    it stopped.

    Example:
      tunedb push postgresql://alice@db.example.org/tunedb
      tunedb push --dry-run
      tunedb push /srv/team.db --target llvm --best 20
    """
    from ...exchange.sync import push as push_records

    _exchange(
        settings,
        url,
        lambda store, peer, on_progress: push_records(
            store, peer, selection=selection, full=full, dry_run=dry_run, on_progress=on_progress
        ),
        is_pull=False,
        dry_run=dry_run,
    )


@click.command()
@click.argument("url", required=False)
@click.option(
    "--accept-trusted-names",
    is_flag=True,
    help="Accept new records under names of trusted sources, although nothing is signed.",
)
@_sync_options
@selection_options
@output_options
@common_options
@pass_settings
def pull(
    settings: Settings,
    url: str | None,
    accept_trusted_names: bool,
    full: bool,
    dry_run: bool,
    selection: Selection,
) -> None:
    """Fetch new records from a server.

    URL is a server or a file of another team, which needs to be readable only. Default:
    TUNEDB_SERVER, or server in a tunedb.toml. The command reads only records that are new since
    the last pull. Pulled records are foreign: tunedb trust decides which of them are served. An
    interrupted pull continues where it stopped.

    Example:
      tunedb pull postgresql://bob@db.example.org/tunedb
      tunedb pull --workload matmul --dry-run
      tunedb pull --full --accept-trusted-names
    """
    from ...exchange.sync import pull as pull_records

    _exchange(
        settings,
        url,
        lambda store, peer, on_progress: pull_records(
            store,
            peer,
            selection=selection,
            accept_trusted_names=accept_trusted_names,
            full=full,
            dry_run=dry_run,
            on_progress=on_progress,
        ),
        is_pull=True,
        dry_run=dry_run,
    )


def _exchange(
    settings: Settings,
    url: str | None,
    run: Callable[[Store, str, Callable[[MergeReport], None]], MergeReport],
    *,
    is_pull: bool,
    dry_run: bool,
) -> None:
    """Push or pull, and print the report; exit with 1 if rows were rejected."""
    from ...storage.config import locate_server

    peer = locate_server(url).url
    database = receiving(settings, dry_run=dry_run) if is_pull else updating(settings)
    with database as store, progress_bar(settings, None) as progress:
        report = run(store, peer, show_progress(progress))
        key = store.key
    row = report_row(report)
    print_object(settings, COLUMNS, row, lambda: print_sources([row], key))
    print_notes(settings, row, is_pull=is_pull)
    if row["rejected"]:
        raise click.exceptions.Exit(1)
