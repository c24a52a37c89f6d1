"""``tunedb retract``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .. import choose, text
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

    A retraction cannot be undone, and goes to other databases with its records. It also covers
    later records of a retracted source or session. Models do not train on retracted records.

    Example:
      tunedb retract 17 18 --reason "the clock was wrong"
      tunedb retract --session 4 --reason "throttled" --dry-run
      tunedb retract --source nightly --reason "measured on a busy machine" --yes
    """
    from ...errors import UsageError

    with updating(settings) as store:
        chosen = _chosen(store, **words)
        if not any(words.values()):
            raise UsageError("choose what to retract: RECORD, --source or --session")
        stopped = store.answers.count(chosen["records"], chosen["sources"], chosen["sessions"])
        if not dry_run and any(chosen.values()):
            told = f"{text.count(stopped, 'record')} would no longer be served, for good"
            confirm(f"Retract {_named(chosen)}? {told}", yes=yes)
            _retract(store, chosen, reason)
    row = {**chosen, "reason": reason, "stopped": stopped, "dry_run": dry_run}
    print_object(settings, COLUMNS, row, lambda: _show(row))


def _chosen(
    store: Store,
    records: tuple[str, ...],
    sources: tuple[str, ...],
    sessions: tuple[str, ...],
    not_allowed: bool,
) -> dict[str, list[int]]:
    """Return the ids that are meant."""
    from ...errors import UsageError

    chosen = {
        "records": sorted({store.lookup.record(words) for words in records}),
        "sources": sorted({store.lookup.source(words) for words in sources}),
        "sessions": sorted({store.lookup.session(words) for words in sessions}),
    }
    if not_allowed:
        if not sources or records or sessions:
            raise UsageError("--not-allowed needs --source, and nothing else")
        rejected = {
            row.record_id for id_ in chosen["sources"] for row in store.answers.rejected(id_)
        }
        chosen |= {"records": sorted(rejected), "sources": []}
    return chosen


def _named(chosen: dict[str, list[int]]) -> str:
    nouns = {"records": "record", "sources": "source", "sessions": "session"}
    return ", ".join(text.count(len(chosen[key]), nouns[key]) for key in nouns if chosen[key])


def _retract(store: Store, chosen: dict[str, list[int]], reason: str) -> None:
    """Take everything back that is meant; what is known already stays as it is."""
    if chosen["records"]:
        store.trust.retract(chosen["records"], reason)
    for id_ in chosen["sources"]:
        store.trust.retract_source(id_, reason)
    for id_ in chosen["sessions"]:
        store.trust.retract_session(id_, reason)


def _show(row: dict[str, Any]) -> None:
    if not _named(row):
        click.echo("Nothing to retract: all traces of these sources are allowed")
        return
    done = "Would retract" if row["dry_run"] else "Took back"
    stops = "would stop" if row["dry_run"] else "stopped"
    click.echo(f"{done} {_named(row)}; {text.count(row['stopped'], 'record')} {stops} being served")
