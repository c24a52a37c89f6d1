"""``tunedb retract``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...system import text
from .. import choose
from ..confirm import confirm
from ..options import Settings, common_options, pass_settings, updating
from ..output import Column, output_options, print_object

if TYPE_CHECKING:
    from ...storage.store import Store

COLUMNS = (
    Column("records"),
    Column("sources"),
    Column("sessions"),
    Column("reason"),
    Column("stopped"),
    Column("dry_run"),
)


@click.command()
@click.argument("records", nargs=-1, metavar="[RECORD]...")
@click.option(
    *("--source", "sources"),
    metavar="SOURCE",
    multiple=True,
    shell_complete=choose.complete_source,
    help="All records of this source: its id, name or digest (tunedb sources); may be repeated.",
)
@click.option(
    *("--session", "sessions"),
    metavar="KEY",
    multiple=True,
    help="All records of this session: its key, id or digest; may be repeated.",
)
@click.option(
    "--not-allowed",
    is_flag=True,
    help="Retract only the sources' records whose traces must not reach TVM.",
)
@click.option("--reason", required=True, metavar="TEXT", help="Reason; stored with the retraction.")
@click.option("--dry-run", is_flag=True, help="Report the changes; change nothing.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@output_options
@common_options
@pass_settings
def command(settings: Settings, dry_run: bool, yes: bool, reason: str, **words: Any) -> None:
    """Retract records: they stay stored and are never served.

    A retraction cannot be undone, and other databases get it with its records. It also covers
    later records of a retracted source or session. Models do not train on retracted records.

    Example:
      tunedb retract 17 18 --reason "the clock was wrong"
      tunedb retract --session 4 --reason "throttled" --dry-run
      tunedb retract --source nightly --reason "measured on a busy machine" --yes
    """
    from ...errors import UsageError

    with updating(settings) as store:
        ids = _resolve(store, **words)
        if not any(words.values()):
            raise UsageError("choose what to retract: RECORD, --source or --session")
        stopped = store.answers.count(ids["records"], ids["sources"], ids["sessions"])
        if not dry_run and any(ids.values()):
            effect = f"{text.count(stopped, 'record')} would no longer be served, for good"
            confirm(f"Retract {_counts(ids)}? {effect}", yes=yes)
            _retract(store, ids, reason)
    row = {**ids, "reason": reason, "stopped": stopped, "dry_run": dry_run}
    print_object(settings, COLUMNS, row, lambda: _show(row))


def _resolve(
    store: Store,
    records: tuple[str, ...],
    sources: tuple[str, ...],
    sessions: tuple[str, ...],
    not_allowed: bool,
) -> dict[str, list[int]]:
    """Return the ids that the words name."""
    from ...errors import UsageError

    ids = {
        "records": sorted({store.lookup.record(words) for words in records}),
        "sources": sorted({store.lookup.source(words) for words in sources}),
        "sessions": sorted({store.lookup.session(words) for words in sessions}),
    }
    if not_allowed:
        if not sources or records or sessions:
            raise UsageError("--not-allowed needs --source, and takes no RECORD or --session")
        rejected = {row.record_id for id_ in ids["sources"] for row in store.answers.rejected(id_)}
        ids |= {"records": sorted(rejected), "sources": []}
    return ids


def _counts(ids: dict[str, list[int]]) -> str:
    nouns = {"records": "record", "sources": "source", "sessions": "session"}
    return ", ".join(text.count(len(ids[key]), nouns[key]) for key in nouns if ids[key])


def _retract(store: Store, ids: dict[str, list[int]], reason: str) -> None:
    """Retract everything; earlier retractions stay as they are."""
    if ids["records"]:
        store.trust.retract(ids["records"], reason)
    for id_ in ids["sources"]:
        store.trust.retract_source(id_, reason)
    for id_ in ids["sessions"]:
        store.trust.retract_session(id_, reason)


def _show(row: dict[str, Any]) -> None:
    if not _counts(row):
        click.echo("Nothing to retract: all traces of these sources are allowed")
        return
    verb = "Would retract" if row["dry_run"] else "Retracted"
    stops = "would stop" if row["dry_run"] else "stopped"
    click.echo(
        f"{verb} {_counts(row)}; {text.count(row['stopped'], 'record')} {stops} being served"
    )
