"""``tunedb sources``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from .. import choose
from ..confirm import confirm
from ..layers import measured_on, prior_of, prior_options
from ..options import Settings, common_options, pass_settings, reading, updating
from ..output import Column, output_options, print_rows

if TYPE_CHECKING:
    from ...storage.sources import SourceRow

#: Characters of a database's key in a table.
_SHORT = 8


def columns(store_key: str) -> tuple[Column, ...]:
    """Return the columns of the table, for the database with this key."""

    def owner(key: str) -> str:
        return "ours" if key == store_key else text.clean(key[:_SHORT])

    return (
        Column("id", "id", right=True),
        Column("digest"),
        Column("name", "name", text.short_path, flexible=True, keep_end=True),
        Column("kind", "kind", least=90),
        Column("trust", "trust"),
        Column("store", "database", owner),
        Column("records", "records", text.number, right=True),
        Column("served", "served", text.number, right=True),
        Column("retracted", "retracted", text.number, right=True),
        Column("aliases", "aliases", text.number, right=True, least=90),
        Column("since", "since", least=100),
        Column("reason"),
        Column("aliases_reason"),
        Column("card"),
    )


@click.command()
@click.option(
    "--retract-aliases",
    metavar="SOURCE",
    shell_complete=choose.complete_source,
    help="Retract this source's aliases of workloads, for good; its records stay.",
)
@click.option("--reason", metavar="TEXT", help="Reason; stored with the retraction.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@prior_options
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    retract_aliases: str | None,
    reason: str | None,
    yes: bool,
    prior: str | None,
    no_prior: bool,
) -> None:
    """List the sources of records, and their trust.

    A source is a set of logs that were imported under one name, a tuner that wrote into the
    database, or a merged source of another database. Records of own and verified sources are
    served; records of foreign sources only train models. The column "database" has the key of the
    database that a source comes from, "ours" for this one.

    With an alias, a source states that two workloads are the same. Aliases of foreign sources are
    ignored. Aliases of a trusted source can be retracted without its records (tunedb retract
    --source retracts both).

    The last row is the prior, whose records are below all others and are none of this database's;
    it is shown without a database, too.

    Example:
      tunedb sources
      tunedb sources --retract-aliases nightly --reason "its hashes are wrong"
      tunedb sources --json | jq '.[] | select(.trust == "foreign")'
    """
    if retract_aliases is not None:
        _retract_aliases(settings, retract_aliases, reason, yes=yes)
    shipped = _prior_rows(settings, prior_of(prior, no_prior))
    rows, key = _own_rows(settings, shipped)
    rows += shipped
    table = columns(key)
    print_rows(settings, table, rows, empty="no source yet; see: tunedb import --help")
    retracted = [str(row["id"]) for row in rows if row["reason"] is not None]
    if retracted:
        settings.note(f"Retracted sources: {', '.join(retracted)}")
    without_aliases = [str(row["id"]) for row in rows if row["aliases_reason"] is not None]
    if without_aliases:
        settings.note(f"Sources with retracted aliases: {', '.join(without_aliases)}")


def _own_rows(
    settings: Settings, shipped: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of the database's sources, and its key.

    There are none where a prior is shown and nobody has named or made a database.
    """
    from ...errors import NotFoundError

    try:
        with reading(settings) as store:
            return [_row(row) for row in store.sources.summaries()], store.key
    except NotFoundError as error:
        if not shipped or not settings.locate().is_default:
            raise
        settings.note(str(error))
        return [], ""


def _retract_aliases(settings: Settings, words: str, reason: str | None, *, yes: bool) -> None:
    """Retract the aliases of the source that `words` name."""
    if reason is None:
        raise click.UsageError("--retract-aliases needs --reason TEXT")
    with updating(settings) as store:
        source_id = store.lookup.source(words)
        (row,) = (row for row in store.sources.summaries() if row.id == source_id)
        aliases = text.count(row.aliases, "alias")
        confirm(f"Retract {aliases} of source {source_id}, for good?", yes=yes)
        store.trust.retract_aliases(source_id, reason)


def _prior_rows(settings: Settings, choice: str) -> list[dict[str, Any]]:
    """Return the row of the prior, with a note of its card; none where it cannot be read."""
    from ...errors import TuneDBError
    from ...exchange.peers import skipped_message
    from ...exchange.prior import SHIPPED, prior_path, read_card

    path = prior_path(choice)
    if path is None:
        return []
    try:
        card = read_card(path)
    except TuneDBError as error:
        settings.warn(skipped_message(str(path), str(error)))
        return []
    settings.note(
        text.clean(
            f"Prior {path}: {text.count(card['workloads'], 'workload')} for "
            f"{', '.join(card['targets'])}, measured on {measured_on(card)}, "
            f"licence {card['licence']}"
        )
    )
    row = dict.fromkeys(column.key for column in columns(""))
    return [
        row
        | {
            "digest": card["digest"],
            "name": str(path),
            "kind": "bundle",
            "trust": SHIPPED,
            "store": card["store"],
            "records": card["records"],
            "card": card,
        }
    ]


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
        "aliases": row.aliases,
        "since": text.moment(row.created_at),
        "reason": row.reason,
        "aliases_reason": row.aliases_reason,
        "card": None,
    }
