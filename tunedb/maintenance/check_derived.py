"""Checks of derived data: launches, features, models, and columns that others determine.

A part of :mod:`tunedb.maintenance.check`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, Table, bindparam, func, literal, select, tuple_

from .. import identity
from ..errors import FormatError, TuneDBError
from ..json_checks import parse_json
from ..launches import CounterSet, counters_of
from ..programs.workload_info import signature_of
from ..records import SourceKind, Target, Trust, Workload
from ..storage import schema
from ..storage.rows import arguments_text, label
from ..system.compression import decompress

if TYPE_CHECKING:
    from ..storage.store import Store
    from .check import CheckReport

_l = schema.launch.c

#: Rows of one read.
PAGE = 1000

#: Exceptions that reading a damaged row may raise.
DAMAGE = (TuneDBError, ValueError, TypeError, KeyError, IndexError, struct.error)


def unreadable(error: Exception) -> str:
    """Return the problem of a row that raised one of :data:`DAMAGE`."""
    return f"it cannot be read ({type(error).__name__}: {error})"


# ---------------------------------------------------------------------- features


def _of_sample(statement: Select[Any], ids: Sequence[int] | None) -> Select[Any]:
    """Restrict a query of features to the programs of some measurements; None for all."""
    if ids is None:
        return statement
    measured = select(schema.measurement.c.program_id).where(
        schema.measurement.c.id.in_(bindparam(None, ids, expanding=True, literal_execute=True))
    )
    return statement.where(schema.feature.c.program_id.in_(measured))


def n_features(connection: Connection, ids: Sequence[int] | None) -> int:
    """Return the number of rows of features to check."""
    counted = select(func.count()).select_from(schema.feature)
    return int(connection.execute(_of_sample(counted, ids)).scalar_one())


def feature_rows(connection: Connection, ids: Sequence[int] | None) -> Iterator[Any]:
    """Yield rows of features with the columns of their set, a page at a time."""
    f, s = schema.feature.c, schema.feature_set.c
    statement = (
        select(f.program_id, f.feature_set_id, f.n_rows, f.n_columns, f.data)
        .add_columns(s.name, s.version, s.columns)
        .join_from(schema.feature, schema.feature_set, s.id == f.feature_set_id)
        .order_by(f.program_id, f.feature_set_id)
        .limit(PAGE)
    )
    statement = _of_sample(statement, ids)
    after = (0, 0)
    while True:
        key = tuple_(f.program_id, f.feature_set_id)
        rows = connection.execute(statement.where(key > tuple_(*map(literal, after)))).all()
        yield from rows
        if len(rows) < PAGE:
            return
        after = rows[-1].program_id, rows[-1].feature_set_id


def check_features(row: Any, report: CheckReport) -> None:
    """Check that a program's rows unpack, with a number for each name of their set."""
    from ..features import blobs

    label = f"{row.name} version {row.version}"
    try:
        columns = parse_json(row.columns.encode())
        blobs.unpack(row.n_rows, row.n_columns, bytes(row.data))
    except DAMAGE as error:
        report.add("readable", "feature", row.program_id, f"{label}: {unreadable(error)}")
        return
    if columns and len(columns) != row.n_columns:
        words = f"{label}: {row.n_columns} columns, not {len(columns)}"
        report.add("derived", "feature", row.program_id, words)


# ---------------------------------------------------------------------- launches


def launches_to_check() -> Select[Any]:
    """Return the query of launches with their measurement's digest and their set of counters."""
    s = schema.counter_set.c
    return (
        select(
            schema.launch,
            schema.measurement.c.digest.label("measurement"),
            *(c.label(f"set_{c.name}") for c in s if c.name not in ("id", "digest")),
        )
        .join_from(schema.launch, schema.measurement, schema.measurement.c.id == _l.measurement_id)
        .outerjoin(schema.counter_set, s.id == _l.counter_set_id)
    )


@lru_cache(maxsize=64)
def _counter_set(tool: str, version: str | None, capability: str | None, text: str) -> CounterSet:
    return CounterSet(tool, version, capability, counters_of(text.encode()))


def counter_set_digest(row: Any) -> bytes:
    """Return the digest that a row of table ``counter_set`` must have."""
    return _counter_set(row.tool, row.tool_version, row.compute_capability, row.counters).digest


def launch_digest(row: Any) -> bytes:
    """Return the digest that a row of :func:`launches_to_check` must have."""
    from ..storage.launches import launch_from_row

    found = None
    if row.counter_set_id is not None:
        if row.set_tool is None:
            raise FormatError("its set of counters is missing")
        columns = (row.set_tool, row.set_tool_version, row.set_compute_capability)
        found = _counter_set(*columns, row.set_counters)
    return launch_from_row(row, found).digest(bytes(row.measurement))


# ---------------------------------------------------------------------- models


def model_digest(row: Any) -> bytes:
    """Return the digest that a row of table ``model`` must have."""
    from ..models.cards import digest_of_row

    body = None if row.body is None else bytes(row.body)
    texts = (row.parameters.encode(), bytes(row.training_digest), row.card.encode())
    return digest_of_row(row.kind, *texts, body)


# ---------------------------------------------------------------------- determined columns


def _of_workload(row: Any, _: Store) -> dict[str, Any]:
    """Return the columns that a workload's body determines."""
    signature = signature_of(Workload(row.format, decompress(row.body)))
    return {
        "function": label(signature.function),
        "arguments": arguments_text(signature),
        "family": label(signature.family),
        "flops": signature.flops,
    }


def _of_target(row: Any, _: Store) -> dict[str, Any]:
    """Return the columns that a target's configuration determines."""
    target = Target(row.kind, row.config.encode())
    return {"architecture": identity.clean_text(target.architecture)}


def _of_source(row: Any, _: Store) -> dict[str, Any]:
    """Raise ValueError for a source of an unknown kind or trust."""
    SourceKind(row.kind)
    Trust(row.trust)
    return {}


def _of_model(row: Any, store: Store) -> dict[str, Any]:
    """Raise FormatError if a model's card names another store: models are never exchanged."""
    card = parse_json(row.card.encode())
    key = card.get("store", store.key) if isinstance(card, dict) else None
    if key != store.key:
        raise FormatError("its card names another store; it was trained elsewhere")
    return {}


#: Checks of columns that others determine, or that have few values.
DETERMINED: dict[Table, Callable[[Any, Store], dict[str, Any]]] = {
    schema.workload: _of_workload,
    schema.target: _of_target,
    schema.source: _of_source,
    schema.model: _of_model,
}
