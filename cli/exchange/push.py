"""``tunedb push``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import Settings, common_options, pass_settings
from ..output import output_options
from .options import exchange, exchange_options
from .selection import selection_options

if TYPE_CHECKING:
    from ...storage.exchange_types import Selection


@click.command()
@click.argument("url", required=False)
@exchange_options
@selection_options
@output_options
@common_options
@pass_settings
def command(
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
    from ...exchange.sync import push

    exchange(
        settings,
        url,
        lambda store, there, show: push(
            store, there, selection=selection, full=full, dry_run=dry_run, on_progress=show
        ),
        is_pull=False,
        dry_run=dry_run,
    )
