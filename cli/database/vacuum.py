"""``tunedb vacuum``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..options import Settings, common_options, pass_settings, reading, updating
from ..output import Column, output_options, print_fields, print_object

if TYPE_CHECKING:
    from ...maintenance.vacuum import VacuumPlan

COLUMNS = tuple(map(Column, ("location", "dry_run", "before", "after", "free", "seconds", "needs")))


@click.command()
@click.option(
    "--dry-run", is_flag=True, help="Show the space to free and the space needed; change nothing."
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
        plan = plan_vacuum(store)
        location = store.location
    row: dict[str, Any] = {
        "location": location,
        "dry_run": dry_run,
        "before": plan.bytes,
        "after": None,
        "free": plan.freed,
        "seconds": plan.seconds,
        "needs": [
            {"folder": str(room.folder), "bytes": room.needed, "free": room.free}
            for room in plan.rooms
        ],
    }
    if not dry_run:
        with updating(settings) as store:
            row["after"] = vacuum(store).after
    print_object(settings, COLUMNS, row, lambda: _show(row, plan))


def _show(row: dict[str, Any], plan: VacuumPlan) -> None:
    fields = [
        ("location", text.clean(row["location"])),
        ("size", text.size(row["before"])),
        ("free space", text.size(row["free"])),
    ]
    if row["dry_run"]:
        if plan.seconds is not None:
            fields.append(("expected time", text.span(plan.seconds)))
        fields += [
            (
                "space needed",
                text.clean(f"{text.size(r.needed)} in {r.folder} ({text.size(r.free)} free)"),
            )
            for r in plan.rooms
        ]
    else:
        fields.append(("new size", text.size(row["after"])))
    print_fields(fields)
