"""``tunedb targets``."""

from __future__ import annotations

import click

from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_rows

COLUMNS = (
    Column("id", "id", right=True),
    Column("digest"),
    Column("kind", "kind"),
    Column("architecture", "architecture"),
    Column("config", "configuration", flexible=True),
    Column("records", "records", right=True),
    Column("workloads", "workloads", right=True),
)


@click.command()
@output_options
@common_options
@pass_settings
def command(settings: Settings) -> None:
    """List the targets.

    The option --target of other commands takes their ids and kinds.

    Example:
      tunedb targets
      tunedb targets --json
    """
    with reading(settings) as store:
        rows = [
            {
                "id": summary.id,
                "digest": summary.target.digest.hex(),
                "kind": summary.target.kind,
                "architecture": summary.target.architecture or None,
                "config": summary.target.attributes,
                "records": summary.records,
                "workloads": summary.workloads,
            }
            for summary in store.targets.find()
        ]
    print_rows(settings, COLUMNS, rows, empty="no target yet; see: tunedb import --help")
