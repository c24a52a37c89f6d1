"""``tunedb vacuum``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .. import text
from ..options import Settings, common_options, pass_settings, reading, updating
from ..output import Column, output_options, print_fields, print_object

if TYPE_CHECKING:
    from ...maintenance.vacuum import VacuumPlan

COLUMNS = tuple(map(Column, ("location", "dry_run", "before", "after", "free", "seconds", "needs")))


@click.command()
@click.option(
    "--dry-run", is_flag=True, help="Show the space that it would free and need; change nothing."
)
@output_options
@common_options
@pass_settings
def command(settings: Settings, dry_run: bool) -> None:
    """Free the disk space of removed rows.

    SQLite rewrites the file, which temporarily needs as much space again; other processes can read
    during the vacuum and write after it. On a server, new rows reuse the space, the command updates
    the statistics, and the files keep their size.

    Example:
      tunedb vacuum --dry-run
      tunedb prune --features && tunedb vacuum
    """
    from ...maintenance.vacuum import plan_vacuum, vacuum

    with reading(settings) as store:
        planned = plan_vacuum(store)
        location = store.location
    row: dict[str, Any] = {
        "location": location,
        "dry_run": dry_run,
        "before": planned.bytes,
        "after": None,
        "free": planned.freed,
        "seconds": planned.seconds,
        "needs": [
            {"folder": str(room.folder), "bytes": room.needed, "free": room.free}
            for room in planned.rooms
        ],
    }
    if not dry_run:
        with updating(settings) as store:
            row["after"] = vacuum(store).after
    print_object(settings, COLUMNS, row, lambda: _show(row, planned))


def _show(row: dict[str, Any], planned: VacuumPlan) -> None:
    fields = [
        ("location", text.clean(row["location"])),
        ("size", text.size(row["before"])),
        ("free in it", text.size(row["free"])),
    ]
    if row["dry_run"]:
        if planned.seconds is not None:
            fields.append(("takes about", text.span(planned.seconds)))
        fields += [
            ("needs", text.clean(f"{text.size(r.needed)} in {r.folder} ({text.size(r.free)} free)"))
            for r in planned.rooms
        ]
    else:
        fields.append(("size now", text.size(row["after"])))
    print_fields(fields)
