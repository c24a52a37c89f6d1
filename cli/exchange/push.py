"""``tunedb push``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import Settings, common_options, pass_settings
from ..output import output_options
from .options import exchange, exchange_options
from .selection import selection_options

if TYPE_CHECKING:
    from ...storage.exchanged import Selection


@click.command()
@click.argument("url", required=False)
@exchange_options
@selection_options
@output_options
@common_options
@pass_settings
def command(
    settings: Settings, url: str | None, anew: bool, dry_run: bool, selection: Selection
) -> None:
    """Give a server what is new here.

    URL is a server or a file of another team; by default TUNEDB_SERVER, or server in a tunedb.toml.
    It must exist (tunedb db init URL). Only what came in since the last time is looked at, and what
    the other side has is not sent again. An interrupted push goes on where it stopped.

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
            store, there, selection=selection, anew=anew, dry_run=dry_run, on_progress=show
        ),
        is_pull=False,
        dry_run=dry_run,
    )
