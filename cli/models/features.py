"""``tunedb features``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from .. import text
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
        listed = ({"index": i, "name": column} for i, column in enumerate(names))
        empty = f"the number of columns of {name} depends on the program"
        print_rows(settings, _COLUMN, listed, empty=empty)
        return
    with _query(settings) as store:
        rows = list(_rows(store))
    if name is None:
        print_rows(settings, COLUMNS, rows, empty="no feature set loads; see: tunedb plugins")
        return
    found = [row for row in rows if row["name"] == name]
    if not found:
        known = ", ".join(dict.fromkeys(row["name"] for row in rows))
        raise NotFoundError(f"no feature set {name!r}; there are: {known}")
    # The installed version is the newest; others are the database's alone.
    row = next((row for row in found if row["installed"]), found[-1])
    print_object(settings, COLUMNS, row, lambda: _show(row))


@contextmanager
def _query(settings: Settings) -> Iterator[Store | None]:
    """Yield what reads the database; None where nobody named one and there is none."""
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
        stored = {(one.name, one.version): one for one in store.features.sets()}
    for one in feature_sets().values():
        row = _row(one, stored.pop((one.name, one.version), None), needs=str(one.needs))
        if store is not None:
            found = store.features.coverage(one, for_tvm=not isinstance(one, StepFeatures))
            row |= {"without": found.able - found.known, "unable": found.programs - found.able}
            row["with"] = found.known
        yield row
    for other in stored.values():
        yield {**_row(other, other, needs=None), "installed": False}


def _row(one: NamedSet, stored: StoredFeatures | None, *, needs: str | None) -> dict[str, Any]:
    return {
        "name": one.name,
        "version": one.version,
        "needs": needs,
        "columns": len(one.columns) or None,
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
