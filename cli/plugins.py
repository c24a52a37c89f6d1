"""``tunedb plugins``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from .options import Settings, common_options, pass_settings
from .output import Column, output_options, print_rows

COLUMNS = (
    Column("name", "name"),
    Column("kind", "kind"),
    Column("package", "package"),
    Column("entry_point", "entry point", flexible=True),
    Column("loads", "loads"),
    Column("reason", "reason", flexible=True),
)


@click.command()
@output_options
@common_options
@pass_settings
def command(settings: Settings) -> None:
    """List the log formats and whether they load.

    Exits with 1 if one does not. TUNEDB_PLUGINS="" leaves out those of other packages.

    Example:
      tunedb plugins
      TUNEDB_PLUGINS= tunedb plugins --json
    """
    rows = list(_formats())
    print_rows(settings, COLUMNS, rows, empty="no log format is registered; reinstall tunedb")
    if not rows or any(row["loads"] is False for row in rows):
        raise click.exceptions.Exit(1)


def _formats() -> Iterator[dict[str, Any]]:
    from ..logs.base import GROUP

    own_only = os.environ.get("TUNEDB_PLUGINS") == ""
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        is_off = own_only and not entry.value.startswith("tunedb.")
        reason = "TUNEDB_PLUGINS leaves it out" if is_off else _reason(entry)
        yield {
            "name": entry.name,
            "kind": "log format",
            "package": None if entry.dist is None else f"{entry.dist.name} {entry.dist.version}",
            "entry_point": entry.value,
            "loads": None if is_off else reason is None,
            "reason": reason,
        }


def _reason(entry: EntryPoint) -> str | None:
    """Return why a plugin does not load, or None."""
    try:
        entry.load()()
    except Exception as error:  # a plugin's import may raise anything
        return f"{type(error).__name__}: {error}"
    return None
