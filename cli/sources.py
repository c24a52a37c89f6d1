"""``tunedb sources``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import text
from .options import Settings, common_options, pass_settings, reading
from .output import Column, output_options, print_rows

if TYPE_CHECKING:
    from ..query.sources import SourceRow

#: Characters of another database's key that a table shows.
_SHORT = 8


def columns(store_key: str) -> tuple[Column, ...]:
    """Return the columns of a list of sources, for the database with this key."""

    def whose(key: str) -> str:
        return "ours" if key == store_key else text.clean(key[:_SHORT])

    return (
        Column("id", "id", right=True),
        Column("digest"),
        Column("name", "name", text.short_path, flexible=True, keep_end=True),
        Column("kind", "kind", least=90),
        Column("trust", "trust"),
        Column("store", "store", whose),
        Column("records", "records", text.number, right=True),
        Column("served", "served", text.number, right=True),
        Column("retracted", "retracted", text.number, right=True),
        Column("since", "since", least=100),
        Column("reason"),
    )


@click.command()
@output_options
@common_options
@pass_settings
def command(settings: Settings) -> None:
    """List where records came from, and how far it is trusted.

    A source is what was imported under one name, a tuner that wrote into the database, or a
    source of another database that came by a merge. Records of own and verified sources are
    served; models learn from those of foreign ones, and nothing else uses them. A key in place of
    "ours" is that of the database that a source comes from.

    Example:
      tunedb sources
      tunedb sources --json | jq '.[] | select(.trust == "foreign")'
    """
    with reading(settings) as store:
        rows = [_row(row) for row in store.query.source_rows()]
        shown = columns(store.query.store_key)
    print_rows(settings, shown, rows, empty="no source yet; see: tunedb import --help")
    taken = [str(row["id"]) for row in rows if row["reason"] is not None]
    if taken:
        settings.note(f"Taken back as a whole: {', '.join(taken)}")


def _row(row: SourceRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "digest": row.digest.hex(),
        "name": row.name,
        "kind": row.kind.value,
        "trust": row.trust.name.lower(),
        "store": row.store,
        "records": row.records,
        "served": row.served,
        "retracted": row.retracted,
        "since": text.moment(row.created_at),
        "reason": row.reason,
    }
