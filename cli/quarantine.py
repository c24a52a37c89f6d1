"""``tunedb quarantine``."""

from __future__ import annotations

import click

from .options import Settings, common_options, pass_settings, reading
from .output import Column, output_options, print_rows

COLUMNS = (
    Column("file", "file", flexible=True, keep_end=True, fold=True),
    Column("line", "line", right=True),
    Column("reason", "reason", flexible=True),
    Column("size"),
    Column("data"),
)

#: Characters of a line that are printed; the database has all of them.
_SHOWN = 200


@click.command()
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="How many at most, newest first.",
)
@output_options
@common_options
@pass_settings
def command(settings: Settings, limit: int) -> None:
    """List what imports did not understand.

    Each line of a log that could not be read, with its reason, newest first. JSON and CSV hold
    its beginning too.

    Example:
      tunedb quarantine
      tunedb quarantine --limit 1000 --jsonl | jq -r .reason | sort | uniq -c
    """
    with reading(settings) as store:
        rows = [
            {
                "file": row.file,
                "line": row.line,
                "reason": row.reason,
                "size": len(row.data),
                "data": row.data[:_SHOWN].decode(errors="backslashreplace"),
            }
            for row in store.query.quarantine(limit)
        ]
        total = store.query.counts().quarantined
    print_rows(settings, COLUMNS, rows, empty="nothing is quarantined")
    if total > len(rows):
        settings.note(f"{len(rows):,} of {total:,} lines; --limit shows more")
