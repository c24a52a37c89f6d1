"""``tunedb plugins``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from typing import Any, TypeVar

import click

from .options import Settings, common_options, pass_settings
from .output import Column, output_options, print_rows

T = TypeVar("T")

COLUMNS = (
    Column("kind", "kind"),
    Column("name", "name"),
    Column("reads", "reads"),
    Column("exports", "exports"),
    Column("needs", "needs"),
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
    """List formats, feature sets, model components and definitions, and whether they load.

    A format reads logs line by line or whole files; "exports" shows whether tunedb export writes
    it. A feature set is computed from its "needs": steps, or a module in some form. Losses, row
    models, labels and training sets are options of tunedb train. Definitions compute workloads of
    old logs (tunedb convert). The last line is TVM; its reason says what the installed release
    lacks. The exit code is 1 if a plugin does not load. TUNEDB_PLUGINS="" disables the plugins of
    other packages.

    Example:
      tunedb plugins
      TUNEDB_PLUGINS= tunedb plugins --json
    """
    rows = [*_formats(), *_feature_sets(), *_model_components(), *_definitions(), *_tvm()]
    columns = [
        Column("reason") if c.key == "reason" and not any(r["reason"] for r in rows) else c
        for c in COLUMNS
    ]
    print_rows(settings, columns, rows)
    if any(row["loads"] is False for row in rows):
        raise click.exceptions.Exit(1)


def _formats() -> Iterator[dict[str, Any]]:
    from ..formats.base import GROUP, LineFormat, load_formats
    from .logs.export import is_exportable

    loaded, errors = load_formats()
    for entry, log_format, row in _entries(GROUP, loaded, errors):
        reads = exports = None
        if log_format is not None:
            reads = "lines" if isinstance(log_format, LineFormat) else "whole files"
            exports = is_exportable(entry.name, log_format)
        yield {**row, "kind": "log format", "reads": reads, "exports": exports, "needs": None}


def _feature_sets() -> Iterator[dict[str, Any]]:
    from ..features.base import GROUP, load_feature_sets

    loaded, errors = load_feature_sets()
    for _, feature_set, row in _entries(GROUP, loaded, errors):
        needs = None if feature_set is None else str(feature_set.needs)
        yield {**row, "kind": "feature set", "reads": None, "exports": None, "needs": needs}


def _model_components() -> Iterator[dict[str, Any]]:
    from ..models.base import GROUPS, load_parts

    for kind, (group, _) in GROUPS.items():
        loaded, errors = load_parts(kind)
        for _entry, _component, row in _entries(group, loaded, errors):
            yield {**row, "kind": kind, "reads": None, "exports": None, "needs": None}


def _definitions() -> Iterator[dict[str, Any]]:
    if find_spec("tvm") is None:
        return
    from ..plugins.metaschedule.convert.definitions import GROUP, load_definitions

    loaded, errors = load_definitions()
    for _entry, _definition, row in _entries(GROUP, loaded, errors):
        yield {**row, "kind": "definition", "reads": None, "exports": None, "needs": None}


def _tvm() -> Iterator[dict[str, Any]]:
    """Yield the row of the installed TVM."""
    from ..errors import PluginError

    if find_spec("tvm") is None:
        return
    package = None
    with suppress(PackageNotFoundError):  # built from source
        package = f"apache-tvm {version('apache-tvm')}"
    try:
        from ..plugins.metaschedule.compat import lacking

        reason, loads = lacking(), True
    except PluginError as error:
        reason, loads = str(error), False
    yield {
        "kind": "TVM",
        "name": "metaschedule",
        "package": package,
        "entry_point": "tunedb.plugins.metaschedule",
        "loads": loads,
        "reason": reason,
        "reads": None,
        "exports": None,
        "needs": None,
    }


def _entries(
    group: str, loaded: Mapping[str, T], errors: Mapping[str, str]
) -> Iterator[tuple[EntryPoint, T | None, dict[str, Any]]]:
    """Yield each entry point of a group, its object if it loads, and the common part of its row."""
    own_only = os.environ.get("TUNEDB_PLUGINS") == ""
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        is_off = own_only and not entry.value.startswith("tunedb.")
        plugin = None if is_off or entry.name in errors else loaded.get(entry.name)
        row = {
            "name": entry.name,
            "package": None if entry.dist is None else f"{entry.dist.name} {entry.dist.version}",
            "entry_point": entry.value,
            "loads": None if is_off else plugin is not None,
            "reason": "disabled by TUNEDB_PLUGINS" if is_off else errors.get(entry.name),
        }
        yield entry, plugin, row
