"""Columns of a measurement, each defined once: for records, rows, digests and exchanges.

Rows, the digest's fields, chunks, bundles and verification are derived from :data:`MEASUREMENT`.
The schema and its migrations are written out; a test compares them with the table. CONTRIBUTING.md
lists the changes for a new column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .. import identity, limits
from ..json_checks import INT64
from ..records import Origin, Status

#: Version of bundles; raised with any change that an older reader would not understand.
BUNDLE_VERSION = 4


class Form(Enum):
    """Relation of a column to the field of :class:`tunedb.records.Measurement` with its name."""

    #: No such field, or a field converted by hand.
    OTHER = 0
    #: Row id of the table with the column's name.
    REFERENCE = 1
    #: The same value everywhere.
    PLAIN = 2
    #: Canonical JSON: bytes in a record, text in a row.
    JSON = 3
    #: Canonical JSON shared by many records: the body of a row of another table.
    SHARED_JSON = 4


@dataclass(frozen=True, slots=True)
class Column:
    """A column of measurements in a chunk of an exchange.

    Parameters
    ----------
    name : str
        Name in a chunk, and of the record's field.
    type : type
        Type of the values.
    wire : str
        Encoding in a bundle (:mod:`tunedb.exchange.column_codec`): empty if bundles omit it, with
        "?" if a value may be None.
    form : Form
        Relation to the record's field.
    in_identity : bool
        True if the digest covers it. The digest's fields stand in the order of the table.
    check : callable or None
        Returns true if all values of a chunk, without None, are within bounds.
    values : frozenset or None
        Valid values of an enumeration.
    table : str
        Table with the column.
    since : str
        First revision of the schema with the column.
    bundle : int
        First version of bundles with the column.
    """

    name: str
    type: type
    wire: str
    form: Form = Form.OTHER
    in_identity: bool = False
    check: Callable[[Sequence[Any]], bool] | None = None
    values: frozenset[Any] | None = None
    table: str = "measurement"
    since: str = "0001"
    bundle: int = 1

    @property
    def stored(self) -> str:
        """Name of the column in its table."""
        if self.form in (Form.REFERENCE, Form.SHARED_JSON):
            return f"{self.name}_id"
        return self.name.removeprefix("program_")

    @property
    def may_be_none(self) -> bool:
        """True if a value of a chunk may be None."""
        return not self.wire or self.wire.endswith("?")


# ---- Bounds of values; limits are read when a chunk is checked -----------------------------------


def _are_int64(values: Sequence[int]) -> bool:
    return not values or (min(values) >= -INT64 and max(values) < INT64)


def _are_finite(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))


def _are_run_times(values: Sequence[bytes]) -> bool:
    sizes = set(map(len, values))
    return all(size % 8 == 0 for size in sizes) and max(sizes, default=0) <= limits.MAX_RUN_SECS * 8


def _are_digests(values: Sequence[bytes]) -> bool:
    return set(map(len, values)) <= {identity.DIGEST_BYTES}


def _are_decisions(values: Sequence[bytes]) -> bool:
    return max(map(len, values), default=0) <= limits.MAX_FOREIGN_DECISION_BYTES


def _are_short_json(values: Sequence[str | bytes]) -> bool:
    return max(map(len, values), default=0) <= limits.MAX_FOREIGN_EXTRA_BYTES


_STATUSES = frozenset(map(int, Status))
_ORIGINS = frozenset(map(str, Origin))

#: All columns, in the order of a chunk's rows and of the digest's fields: new ones come last.
MEASUREMENT: tuple[Column, ...] = (
    Column("id", int, "steps"),
    Column("digest", bytes, ""),
    Column("program_digest", bytes, "", table="program"),
    Column("workload", int, "integer", Form.REFERENCE, table="program"),
    Column("target", int, "integer", Form.REFERENCE, table="program"),
    Column("sketch", int, "integer", Form.REFERENCE, table="program"),
    Column("tail", int, "integer?", Form.REFERENCE, table="program"),
    Column("decisions", bytes, "bytes", check=_are_decisions, table="program"),
    Column("status", int, "integer", in_identity=True, values=_STATUSES),
    Column("run_secs", bytes, "times?", in_identity=True, check=_are_run_times),
    Column("measured_at", int, "steps", Form.PLAIN, in_identity=True, check=_are_int64),
    Column("occurrence", int, "steps", Form.PLAIN, in_identity=True, check=_are_int64),
    Column("session", int, "integer?", Form.REFERENCE, in_identity=True),
    Column("source", int, "integer", Form.REFERENCE),
    Column("args_info", int, "integer?", Form.SHARED_JSON, in_identity=True),
    Column("origin", str, "text?", in_identity=True, values=_ORIGINS),
    Column("donor", bytes, "bytes?", Form.PLAIN, in_identity=True, check=_are_digests),
    Column(
        "all_cost", float, "real?", Form.PLAIN, in_identity=True, check=_are_finite, since="0002"
    ),
    Column("context", int, "integer?", Form.SHARED_JSON, in_identity=True, since="0002"),
    Column(
        "extra",
        *(str, "text?", Form.JSON),
        in_identity=True,
        check=_are_short_json,
        since="0002",
    ),
)

#: Position of each column in a chunk's row.
AT = {column.name: at for at, column in enumerate(MEASUREMENT)}

#: Columns covered by the digest, in the order of its fields.
IDENTITY = tuple(column for column in MEASUREMENT if column.in_identity)
#: Position of each column in :data:`IDENTITY`.
IDENTITY_AT = {column.name: at for at, column in enumerate(IDENTITY)}
_ORIGIN = IDENTITY_AT["origin"]
_TEXTS = tuple(at for at, c in enumerate(IDENTITY) if c.form in (Form.JSON, Form.SHARED_JSON))


def covered(row: Sequence[Any]) -> list[Any]:
    """Return the digest's fields from the stored values of :data:`IDENTITY`, in their order."""
    values = list(row)
    for at in _TEXTS:
        if values[at] is not None:
            values[at] = values[at].encode()
    values[_ORIGIN] = values[_ORIGIN] or Origin.UNKNOWN
    return values


def names_of(*forms: Form) -> tuple[str, ...]:
    """Return the names of the columns with one of these forms, in the order of the table."""
    return tuple(column.name for column in MEASUREMENT if column.form in forms)
