"""Retractions: SQL conditions that tell which measurements are retracted, and which are served.

A retraction names a measurement, a source or a session by its digest, and the database that issued
it. It counts if that is this database, or the one to which the measurement's source belongs: nobody
retracts the records of others. A retraction with the subject ``aliases`` retracts only the aliases
of a source (:mod:`tunedb.storage.attribution`). Other subjects are labels, because a digest covers
the name of its table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, case, literal_column, or_, select

from .. import identity
from ..records import Status, Trust
from . import schema

Subject = Literal["measurement", "source", "session", "aliases"]

#: Retracts a source's aliases of workloads and none of its records.
ALIASES: Subject = "aliases"

#: Possible subjects of a retraction.
SUBJECTS: tuple[Subject, ...] = ("measurement", "source", "session", ALIASES)

_ONE: ColumnElement[int] = literal_column("1")


@dataclass(frozen=True, slots=True)
class Retraction:
    """A statement that records must not be served.

    Parameters
    ----------
    digest : bytes
        Digest of a measurement, source or session; of a source for the subject ``aliases``.
    store : str
        Key of the database that issued it.
    subject : str
        One of :data:`SUBJECTS`.
    reason : str
        Reason, for people.
    """

    digest: bytes
    store: str
    subject: Subject
    reason: str


def store_key() -> ColumnElement[str]:
    """Return the subquery of this database's key."""
    key = select(schema.meta.c.value).where(schema.meta.c.key == literal_column("'store'"))
    return key.correlate_except(schema.meta).scalar_subquery()


def may_retract(retraction: Any, source: Any) -> ColumnElement[bool]:
    """Return the condition that a retraction was issued by a source's database or by ours."""
    return or_(retraction.c.store == source.c.store, retraction.c.store == store_key())


def _retracts_records(retraction: Any) -> ColumnElement[bool]:
    """Return the condition that a retraction is of records, not of aliases."""
    condition: ColumnElement[bool] = retraction.c.subject != literal_column(f"'{ALIASES}'")
    return condition


def is_retracted(m: Any, *, many: bool = False) -> ColumnElement[bool]:
    """Return the condition that a measurement is retracted.

    Parameters
    ----------
    m : object
        Has the columns ``digest``, ``source_id`` and ``session_id`` of the measurement as
        attributes: ``schema.measurement.c``, those of an alias, or parameters.
    many : bool
        Optimise for statements over many measurements. The condition is the same; all retracted
        digests are then collected once, and a measurement costs 0.2 µs instead of 2.

    Notes
    -----
    An empty table of retractions costs one lookup. Otherwise each measurement costs three lookups
    by primary keys, which is best for an insertion.
    """
    retraction, source, session = (
        schema.retraction.alias(),
        schema.source.alias(),
        schema.session.alias(),
    )
    counts = and_(
        source.c.id == m.source_id,
        may_retract(retraction, source),
        _retracts_records(retraction),
    )
    subjects = (
        retraction.c.digest == m.digest,
        retraction.c.digest == source.c.digest,
        and_(session.c.id == m.session_id, retraction.c.digest == session.c.digest),
    )
    retracted = [
        select(_ONE).where(subject, counts).correlate_except(retraction, source, session).exists()
        for subject in subjects
    ]
    prefilter = [_is_named(m)] if many else []
    is_any = select(_ONE).select_from(schema.retraction.alias()).exists()
    return and_(is_any, *prefilter, or_(*retracted))


def _is_named(m: Any) -> ColumnElement[bool]:
    """Return the condition that any retraction names a measurement, whether it counts or not."""
    retraction, source, session = (
        table.alias() for table in (schema.retraction, schema.source, schema.session)
    )
    digests = select(retraction.c.digest).where(_retracts_records(retraction))
    return or_(
        m.digest.in_(digests),
        m.source_id.in_(select(source.c.id).where(source.c.digest.in_(digests))),
        m.session_id.in_(select(session.c.id).where(session.c.digest.in_(digests))),
    )


def is_served(m: Any) -> ColumnElement[bool]:
    """Return the condition that a measurement is served: valid, trusted and not retracted.

    Parameters
    ----------
    m : object
        Columns of table measurement, or of an alias of it; for statements over many rows.
    """
    source, program, sketch = (
        schema.source.alias(),
        schema.program.alias(),
        schema.sketch.alias(),
    )
    empty_digest = identity.shared_digest("sketch", b"[]")
    empty = select(sketch.c.id).where(sketch.c.digest == empty_digest)
    does_nothing = and_(
        # Few databases have an empty sketch; the others need not look at programs.
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
    """Return the value of column ``served`` of a measurement, by :func:`is_served`."""
    return case((is_served(m), _ONE), else_=literal_column("0"))
