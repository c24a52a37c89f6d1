"""``tunedb workloads``."""

from __future__ import annotations

import click

from . import text
from .options import Settings, common_options, pass_settings, reading
from .output import Column, output_options, print_rows

COLUMNS = (
    Column("id", "id", right=True),
    Column("digest"),
    Column("name", "name", flexible=True),
    Column("arguments", "arguments", text.arguments, flexible=True),
    Column("format", "format", fold=True),
    Column("tvm_version", "TVM", fold=True),
    Column("records", "records", right=True),
    Column("failed", "failed", right=True),
    Column("best", "best", text.seconds, right=True),
    Column("targets", "targets", right=True),
)


@click.command()
@output_options
@common_options
@pass_settings
def command(settings: Settings) -> None:
    """List the workloads.

    With what was recorded of each: how many records, how many of them failed, the best mean time
    of one that TVM may get, and for how many targets.

    Example:
      tunedb workloads
      tunedb workloads --csv > workloads.csv
    """
    import orjson

    with reading(settings) as store:
        arguments = store.query.args_info()
        rows = [
            {
                "id": summary.id,
                "digest": summary.digest.hex(),
                "name": summary.name,
                "arguments": orjson.loads(arguments.get(summary.id, b"null")),
                "format": summary.format,
                "tvm_version": summary.tvm_version,
                "records": summary.records,
                "failed": summary.failed,
                "best": summary.best,
                "targets": summary.targets,
            }
            for summary in store.query.workloads()
        ]
    print_rows(settings, COLUMNS, rows, empty="no workload yet; see: tunedb import --help")
