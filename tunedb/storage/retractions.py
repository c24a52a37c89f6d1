"""Which measurements were taken back, and which are served: the conditions, in one place.

A retraction names a measurement, a source or a session by its digest, and the database that says
so. It counts where that is this database, or the one that the measurement's source is of: nobody
takes back another's records. One with the subject ``aliases`` takes back the aliases of a source
alone (:mod:`tunedb.storage.attribution`); otherwise the subject is a label, because digests cover
the name of their table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, case, literal_column, or_, select

from .. import identity
from ..records import Status, Trust
from . import schema

Subject = Literal["measurement", "source", "session", "aliases"]

#: Takes back the names that a source gave workloads, and none of its records.
ALIASES: Subject = "aliases"

#: What a retraction may be of.
SUBJECTS: tuple[Subject, ...] = ("measurement", "source", "session", ALIASES)

_ONE: ColumnElement[int] = literal_column("1")


@dataclass(frozen=True, slots=True)
class Retraction:
    """Somebody's word that records must not be served.

    Parameters
    ----------
    digest : bytes
        Of a measurement, a source or a session; with the subject ``aliases`` of a source.
    store : str
        The database that says so.
    subject : str
        One of :data:`SUBJECTS`.
    reason : str
        Why.
    """

    digest: bytes
    store: str
    subject: Subject
    reason: str


def ours() -> ColumnElement[str]:
    """Return the key of this database."""
    key = select(schema.meta.c.value).where(schema.meta.c.key == literal_column("'store'"))
    return key.correlate_except(schema.meta).scalar_subquery()


def may_take_back(taken: Any, source: Any) -> ColumnElement[bool]:
    """Return the condition that a retraction counts for a source: it is its database's, or ours."""
    return or_(taken.c.store == source.c.store, taken.c.store == ours())


def _is_of_records(taken: Any) -> ColumnElement[bool]:
    """Return the condition that a retraction takes back records."""
    is_so: ColumnElement[bool] = taken.c.subject != literal_column(f"'{ALIASES}'")
    return is_so


def is_retracted(m: Any, *, many: bool = False) -> ColumnElement[bool]:
    """Return the condition that a measurement was taken back.

    Parameters
    ----------
    m : object
        Has the columns ``digest``, ``source_id`` and ``session_id`` of the measurement as
        attributes: ``schema.measurement.c``, those of an alias, or parameters.
    many : bool
        Whether the statement looks at many measurements. The condition is the same; what was taken
        back is then put together once, and a measurement costs 0.2 µs instead of 2.

    Notes
    -----
    A table without a row costs one look at it. Otherwise each measurement costs three lookups by
    primary keys, which is what an insertion needs.
    """
    taken, source, session = (
        schema.retraction.alias(),
        schema.source.alias(),
        schema.session.alias(),
    )
    counts = and_(
        source.c.id == m.source_id,
        may_take_back(taken, source),
        _is_of_records(taken),
    )
    named = (
        taken.c.digest == m.digest,
        taken.c.digest == source.c.digest,
        and_(session.c.id == m.session_id, taken.c.digest == session.c.digest),
    )
    found = [
        select(_ONE).where(one, counts).correlate_except(taken, source, session).exists()
        for one in named
    ]
    first = [_is_named(m)] if many else []
    return and_(select(_ONE).select_from(schema.retraction.alias()).exists(), *first, or_(*found))


def _is_named(m: Any) -> ColumnElement[bool]:
    """Return the condition that anybody took a measurement back, with whatever right."""
    taken, source, session = (
        table.alias() for table in (schema.retraction, schema.source, schema.session)
    )
    digests = select(taken.c.digest).where(_is_of_records(taken))
    return or_(
        m.digest.in_(digests),
        m.source_id.in_(select(source.c.id).where(source.c.digest.in_(digests))),
        m.session_id.in_(select(session.c.id).where(session.c.digest.in_(digests))),
    )


def is_served(m: Any) -> ColumnElement[bool]:
    """Return the condition that a measurement is served: valid, trusted and not taken back.

    Parameters
    ----------
    m : object
        The columns of table measurement, or of an alias of it; of many rows.
    """
    source, program, sketch = (
        schema.source.alias(),
        schema.program.alias(),
        schema.sketch.alias(),
    )
    nothing = identity.shared_digest("sketch", b"[]")
    empty = select(sketch.c.id).where(sketch.c.digest == nothing)
    does_nothing = and_(
        # Almost no database has it, and then no program is looked at.
        empty.exists(),
        select(_ONE)
        .where(program.c.id == m.program_id, program.c.sketch_id == empty.scalar_subquery())
        .correlate_except(program, sketch)
        .exists(),
    )
    trusted = (
        select(_ONE)
        .where(source.c.id == m.source_id, source.c.trust >= int(Trust.VERIFIED))
        .correlate_except(source)
        .exists()
    )
    return and_(m.status == int(Status.OK), trusted, ~does_nothing, ~is_retracted(m, many=True))


def served_value(m: Any) -> ColumnElement[int]:
    """Return what column ``served`` of a measurement must hold; as :func:`is_served`."""
    return case((is_served(m), _ONE), else_=literal_column("0"))
