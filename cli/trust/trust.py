"""``tunedb trust``."""

from __future__ import annotations

from typing import Any

import click

from ...system import text
from .. import choose
from ..options import Settings, common_options, pass_settings, updating
from ..output import Column, output_options, print_object

COLUMNS = (
    Column("id"),
    Column("name"),
    Column("before"),
    Column("trust"),
    Column("changed"),
    Column("dry_run"),
)


@click.command()
@click.argument("source", shell_complete=choose.complete_source)
@click.argument("trust", type=click.Choice(["own", "verified", "foreign"]))
@click.option("--dry-run", is_flag=True, help="Report the changes; change nothing.")
@output_options
@common_options
@pass_settings
def command(settings: Settings, source: str, trust: str, dry_run: bool) -> None:
    """Set the trust in a source.

    SOURCE is an id, a name or the beginning of a digest (tunedb sources). Records of own and
    verified sources are served, records of foreign sources are not. Before a foreign source becomes
    trusted, the command checks the traces of all its records: none may contain instructions that
    could run code or read files. It does not check results; tunedb revalidate measures programs
    again and compares their results.

    Example:
      tunedb trust 3 verified --dry-run
      tunedb trust nightly own
      tunedb trust 5e1f foreign
    """
    from ...records import Trust

    with updating(settings) as store:
        id_ = store.lookup.source(source)
        before = store.sources.get(id_)
        changed = store.trust.set(id_, Trust[trust.upper()], dry_run=dry_run)
    row = {
        "id": id_,
        "name": before.name,
        "before": before.trust.name.lower(),
        "trust": trust,
        "changed": changed,
        "dry_run": dry_run,
    }
    print_object(settings, COLUMNS, row, lambda: _show(row))


def _show(row: dict[str, Any]) -> None:
    would = "would " if row["dry_run"] else ""
    verb = "stop" if row["trust"] == "foreign" else "start"
    changes = f"{text.count(row['changed'], 'record')} {would}{verb} being served"
    if not row["changed"]:
        changes = "served records stay the same"
    name = text.clean(row["name"])
    click.echo(f"{row['id']} ({name}): {row['before']} → {row['trust']}; {changes}")
