"""``tunedb plugins``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import click

from .options import Settings, common_options, pass_settings
from .output import Column, output_options, print_rows

COLUMNS = (
    Column("name", "format"),
    Column("reads", "reads"),
    Column("exports", "exports"),
    Column("package", "package", fold=True),
    Column("entry_point", "module", flexible=True),
    Column("loads", "loads", fold=True),
    Column("reason", "reason", flexible=True),
)


@click.command()
@output_options
@common_options
@pass_settings
def command(settings: Settings) -> None:
    """List the log formats and whether they load.

    A format reads logs line by line or whole files; "exports" says whether tunedb export writes
    it. Exits with 1 if one does not load. TUNEDB_PLUGINS="" leaves out those of other packages.

    Example:
      tunedb plugins
      TUNEDB_PLUGINS= tunedb plugins --json
    """
    rows = list(_formats())
    columns = [
        Column("reason") if c.key == "reason" and not any(r["reason"] for r in rows) else c
        for c in COLUMNS
    ]
    print_rows(settings, columns, rows)
    if any(row["loads"] is False for row in rows):
        raise click.exceptions.Exit(1)


def _formats() -> Iterator[dict[str, Any]]:
    from ..logs.base import GROUP, LineFormat, load_formats
    from .export import is_written

    own_only = os.environ.get("TUNEDB_PLUGINS") == ""
    found, broken = load_formats()
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        is_off = own_only and not entry.value.startswith("tunedb.")
        known = None if is_off or entry.name in broken else found.get(entry.name)
        reads = None
        if known is not None:
            reads = "lines" if isinstance(known, LineFormat) else "whole files"
        yield {
            "name": entry.name,
            "reads": reads,
            "exports": None if known is None else is_written(entry.name, known),
            "package": None if entry.dist is None else f"{entry.dist.name} {entry.dist.version}",
            "entry_point": entry.value,
            "loads": None if is_off else known is not None,
            "reason": "TUNEDB_PLUGINS leaves it out" if is_off else broken.get(entry.name),
        }
