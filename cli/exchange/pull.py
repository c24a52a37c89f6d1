"""``tunedb pull``."""

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
@click.option(
    "--believe",
    is_flag=True,
    help="Take new records of sources that are trusted here: nothing is signed.",
)
@exchange_options
@selection_options
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    url: str | None,
    believe: bool,
    anew: bool,
    dry_run: bool,
    selection: Selection,
) -> None:
    """Take over what is new on a server.

    URL is a server or a file of another team, which only has to be readable; by default
    TUNEDB_SERVER, or server in a tunedb.toml. Only what came in since the last time is looked at.
    What comes is foreign: tunedb trust decides what of it is served. An interrupted pull goes on
    where it stopped.

    Example:
      tunedb pull postgresql://bob@db.example.org/tunedb
      tunedb pull --workload matmul --dry-run
      tunedb pull --anew --believe
    """
    from ...exchange.sync import pull

    exchange(
        settings,
        url,
        lambda store, there, show: pull(
            store,
            there,
            selection=selection,
            believe=believe,
            anew=anew,
            dry_run=dry_run,
            on_progress=show,
        ),
        is_pull=True,
        dry_run=dry_run,
    )
