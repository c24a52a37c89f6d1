"""``tunedb pull``."""

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
@click.option(
    "--accept-trusted-names",
    is_flag=True,
    help="Accept new records under names of trusted sources, although nothing is signed.",
)
@exchange_options
@selection_options
@output_options
@common_options
@pass_settings
def command(
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
    from ...exchange.sync import pull

    exchange(
        settings,
        url,
        lambda store, there, show: pull(
            store,
            there,
            selection=selection,
            accept_trusted_names=accept_trusted_names,
            full=full,
            dry_run=dry_run,
            on_progress=show,
        ),
        is_pull=True,
        dry_run=dry_run,
    )
