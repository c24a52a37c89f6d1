"""``tunedb features``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_fields, print_object, print_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...features.base import NamedSet
    from ...results import StoredFeatures
    from ...storage.store import Store

COLUMNS = (
    Column("name", "set", flexible=True),
    Column("version", "version", right=True),
    Column("needs", "needs"),
    Column("columns", "columns", text.number, right=True),
    Column("installed", "installed", fold=True),
    Column("with", "with", text.number, right=True),
    Column("without", "without", text.number, right=True),
    Column("unable", "no module", text.number, right=True, least=90),
    Column("rows", "rows", text.number, right=True, least=100),
    Column("bytes", "size", text.size, right=True),
)
_COLUMN = (Column("index", "column", right=True), Column("name", "name", flexible=True))


@click.command()
@click.argument("name", required=False, metavar="[SET]")
@click.option("--columns", "wants_columns", is_flag=True, help="List the columns of SET.")
@output_options
@common_options
@pass_settings
def command(settings: Settings, name: str | None, wants_columns: bool) -> None:
    """List the feature sets, their columns and coverage.

    "with" counts programs that have rows of the set in the database, "without" programs that can
    get them (tunedb extract), "no module" programs that TVM cannot rebuild or may not get. The list
    includes stored sets whose version is not installed.

    Example:
      tunedb features
      tunedb features tunedb.scheduled --columns
      tunedb features steps --json
    """
    from ...errors import NotFoundError, UsageError
    from ...features.base import feature_names, feature_set

    if wants_columns:
        if name is None:
            raise UsageError("--columns needs a set: tunedb features SET --columns")
        names = feature_names(feature_set(name))
        rows_ = ({"index": i, "name": column} for i, column in enumerate(names))
        empty = f"the number of columns of {name} depends on the program"
        print_rows(settings, _COLUMN, rows_, empty=empty)
        return
    with _optional_store(settings) as store:
        rows = list(_rows(store))
    if name is None:
        print_rows(settings, COLUMNS, rows, empty="no feature set loads; see: tunedb plugins")
        return
    versions = [row for row in rows if row["name"] == name]
    if not versions:
        known = ", ".join(dict.fromkeys(row["name"] for row in rows))
        raise NotFoundError(f"no feature set {name!r}; there are: {known}")
    # Other versions than the installed one are only stored.
    row = next((row for row in versions if row["installed"]), versions[-1])
    print_object(settings, COLUMNS, row, lambda: _show(row))


@contextmanager
def _optional_store(settings: Settings) -> Iterator[Store | None]:
    """Yield the database; None if it is the default one and does not exist."""
    from ...storage.engine import parse_url, sqlite_path

    location = settings.locate()
    path = sqlite_path(parse_url(location.url))
    if location.is_default and path is not None and not path.exists():
        yield None
        return
    with reading(settings) as store:
        yield store


def _rows(store: Store | None) -> Iterator[dict[str, Any]]:
    from ...features.base import StepFeatures, feature_sets

    stored: dict[tuple[str, int], StoredFeatures] = {}
    if store is not None:
        stored = {(rows.name, rows.version): rows for rows in store.features.sets()}
    for installed in feature_sets().values():
        rows = stored.pop((installed.name, installed.version), None)
        row = _row(installed, rows, needs=str(installed.needs))
        if store is not None:
            for_tvm = not isinstance(installed, StepFeatures)
            coverage = store.features.coverage(installed, for_tvm=for_tvm)
            row["with"] = coverage.known
            row["without"] = coverage.able - coverage.known
            row["unable"] = coverage.programs - coverage.able
        yield row
    for rows in stored.values():
        yield {**_row(rows, rows, needs=None), "installed": False}


def _row(features: NamedSet, stored: StoredFeatures | None, *, needs: str | None) -> dict[str, Any]:
    return {
        "name": features.name,
        "version": features.version,
        "needs": needs,
        "columns": len(features.columns) or None,
        "installed": True,
        "with": None if stored is None else stored.programs,
        "without": None,
        "unable": None,
        "rows": None if stored is None else stored.rows,
        "bytes": None if stored is None else stored.bytes,
    }


def _show(row: dict[str, Any]) -> None:
    fields = [
        (column.title or column.key, column.show(row[column.key]))
        for column in COLUMNS
        if column.key != "name"
    ]
    print_fields(fields, heading=text.clean(row["name"]))
