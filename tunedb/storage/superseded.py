"""Superseded records: those that lost their rank in a final, and stay valid.

The fastest of many noisy times is often a lucky one. A final measures the best programs of a task
in turn and stores the times as further measurements, whose ``extra`` states which program won. The
record of a program that lost supersedes its earlier ones, because its rank then comes from times
that were compared with the winner's. The winner keeps its rank: in a slow hour the times of a final
would rank it behind programs that no final compared.

A record of a lost final supersedes a record of the same program if

- it is served, and of the same source or an own one: nobody demotes the records of others;
- it was measured later;
- both have sessions, of one machine (:func:`tunedb.system.host.machine_class`): the last final
  decides with its evaluator, e.g. that of a network whose weights are cold.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, ColumnElement, Select, func, literal_column, or_, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from .. import identity
from ..json_checks import parse_json
from ..records import Trust
from ..system.host import DEVICES, NOT_OF_MACHINE
from . import schema


def extra_of_final(extra: bytes | None, *, won: bool) -> bytes:
    """Return a measurement's ``extra`` with the outcome of its final.

    The outcome comes first (:data:`schema.FINAL`): no key of a tuning run sorts before it.
    """
    outcome = {"final": "won" if won else "lost"}
    return identity.canonical_json({**parse_json(extra or b"{}"), **outcome})


def is_of_final(m: Any) -> Any:
    """Return the condition that a measurement with an ``extra`` is of a final."""
    return _starts_with(m.extra, schema.FINAL)


def is_ranked(
    m: Any, workload_id: Any = None, target_id: Any = None, *, is_portable: bool = False
) -> ColumnElement[bool]:
    """Return the condition that a measurement is not superseded.

    A statement about a task without lost finals needs one more lookup. The parameters besides the
    measurement are those of :func:`superseded_ids`.
    """
    final = schema.measurement.alias()
    is_any = (
        select(literal_column("1"))
        .select_from(final)
        .where(_starts_with(final.c.extra, schema.LOST), *_is_of(final.c, workload_id, target_id))
        .exists()
    )
    return or_(
        ~is_any, m.id.not_in(superseded_ids(workload_id, target_id, is_portable=is_portable))
    )


def superseded_ids(
    workload_id: Any = None, target_id: Any = None, *, is_portable: bool = False
) -> Select[Any]:
    """Return the query of the ids of superseded records.

    Parameters
    ----------
    workload_id, target_id : parameter or column
        Only records of this workload and target; otherwise of all.
    is_portable : bool
        Only finals of the record's own source, whether they are served or not: trust and
        retractions of this database do not count, so that all databases agree.
    """
    final, earlier = schema.measurement.alias(), schema.measurement.alias()
    session, other = schema.session.alias(), schema.session.alias()
    own = select(schema.source.c.id).where(
        schema.source.c.trust >= literal_column(str(int(Trust.OWN)))
    )
    counts = [final.c.source_id == earlier.c.source_id, final.c.status == literal_column("0")]
    if not is_portable:
        counts = [or_(counts[0], final.c.source_id.in_(own)), final.c.served == literal_column("1")]
    query = (
        select(earlier.c.id)
        .select_from(
            final.join(earlier, earlier.c.program_id == final.c.program_id)
            .join(session, session.c.id == final.c.session_id)
            .join(other, other.c.id == earlier.c.session_id)
        )
        .where(
            _starts_with(final.c.extra, schema.LOST),
            *counts,
            earlier.c.measured_at < final.c.measured_at,
            or_(
                session.c.id == other.c.id,
                _IsSameMachine(session.c.fingerprint, other.c.fingerprint),
            ),
        )
    )
    return query.where(*_is_of(final.c, workload_id, target_id))


def _is_of(m: Any, workload_id: Any, target_id: Any) -> list[Any]:
    """Return the conditions that a measurement is of a workload and a target, if given."""
    pairs = ((m.workload_id, workload_id), (m.target_id, target_id))
    return [column == value for column, value in pairs if value is not None]


def _starts_with(column: Any, start: str) -> Any:
    """Return the condition that a text starts so, as :data:`schema.LOST_INDEX` states it."""
    size: Any = literal_column(str(len(start)))
    return func.substr(column, literal_column("1"), size) == literal_column(f"'{start}'")


class _IsSameMachine(FunctionElement[bool]):
    """The condition that two fingerprints are of one machine."""

    type = Boolean()
    inherit_cache = True


def _names(keys: frozenset[str]) -> str:
    return ", ".join(f"'{key}'" for key in sorted(keys))


@compiles(_IsSameMachine, "sqlite")
def _on_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    # Views may call no other function of JSON (revision 0009).
    members = "SELECT key, type, value FROM json_each({0}) WHERE key NOT IN ({1})"
    devices = "SELECT 1 FROM json_each({0}) WHERE key IN ({1})"
    one, other = (compiler.process(clause, **options) for clause in element.clauses)
    first, second = (members.format(text, _names(NOT_OF_MACHINE)) for text in (one, other))
    return (
        f"(EXISTS ({devices.format(one, _names(DEVICES))})"
        f" AND NOT EXISTS ({first} EXCEPT {second}) AND NOT EXISTS ({second} EXCEPT {first}))"
    )


@compiles(_IsSameMachine, "postgresql")
def _on_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    one, other = (
        f"CAST(tunedb_json(convert_to({compiler.process(clause, **options)}, 'UTF8')) AS jsonb)"
        for clause in element.clauses
    )
    names, devices = (f"ARRAY[{_names(keys)}]" for keys in (NOT_OF_MACHINE, DEVICES))
    return f"(jsonb_exists_any({one}, {devices}) AND {one} - {names} = {other} - {names})"
