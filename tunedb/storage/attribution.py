"""Attribution: SQL conditions under which an alias, a failure or a launch is accepted.

Each such row names the source that states it. A source is accepted for its own records; for the
records and workloads of others it is accepted if it is trusted here (verified or own) and not
retracted. Statements of foreign sources about others are stored and never used.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Table, and_, func, literal_column, or_, select

from ..records import Trust
from . import schema
from .retractions import ALIASES, may_retract

_ONE: ColumnElement[int] = literal_column("1")
_VERIFIED: ColumnElement[int] = literal_column(str(int(Trust.VERIFIED)))


def is_trusted(source_id: Any, *, aliases: bool = False) -> ColumnElement[bool]:
    """Return the condition that a source is trusted here and not retracted.

    Parameters
    ----------
    source_id : column or parameter
        Row id of the source.
    aliases : bool
        Require also that the aliases of the source were not retracted.
    """
    source, retraction = schema.source.alias(), schema.retraction.alias()
    subjects = [] if aliases else [retraction.c.subject != literal_column(f"'{ALIASES}'")]
    is_retracted = (
        select(_ONE)
        .where(
            retraction.c.digest == source.c.digest,
            may_retract(retraction, source),
            *subjects,
        )
        .correlate(source)
        .exists()
    )
    return (
        select(_ONE)
        .where(source.c.id == source_id, source.c.trust >= _VERIFIED, ~is_retracted)
        .correlate_except(source, retraction)
        .exists()
    )


def is_accepted(statement: Any, measurement: Any) -> ColumnElement[bool]:
    """Return the condition that a source's statement about a measurement is accepted.

    Parameters
    ----------
    statement : object
        Columns of table failure or launch, or of an alias of it.
    measurement : object
        Columns of table measurement, or of an alias of it.
    """
    return or_(statement.source_id == measurement.source_id, is_trusted(statement.source_id))


def is_preferred(table: Table, measurement: Any) -> ColumnElement[bool]:
    """Return the condition that a launch is one of those that count for its measurement.

    All launches of the measurement's own source count; if it has none, those of trusted sources.

    Parameters
    ----------
    table : Table
        ``launch``, to whose rows the condition applies.
    measurement : object
        As for :func:`is_accepted`.
    """
    own = table.alias().c
    has_own_launches = (
        select(_ONE)
        .where(own.measurement_id == measurement.id, own.source_id == measurement.source_id)
        .correlate_except(own.id.table)
        .exists()
    )
    return or_(
        table.c.source_id == measurement.source_id,
        and_(is_trusted(table.c.source_id), ~has_own_launches),
    )


def accepted_failure(table: Table, measurement: Any) -> Any:
    """Return the id of the failure that counts for a measurement; NULL if there is none.

    The last failure of the measurement's own source, otherwise the last of a trusted one.

    Parameters
    ----------
    table : Table
        ``failure``.
    measurement : object
        As for :func:`is_accepted`.
    """

    def last_of(failure: Any, condition: ColumnElement[bool]) -> Any:
        last = select(func.max(failure.id)).where(
            failure.measurement_id == measurement.id, condition
        )
        return last.correlate_except(failure.id.table).scalar_subquery()

    own, others = table.alias().c, table.alias().c
    return func.coalesce(
        last_of(own, own.source_id == measurement.source_id),
        last_of(others, is_trusted(others.source_id)),
    )


def is_usable_feature(features: Any) -> ColumnElement[bool]:
    """Return the condition that a program's rows of a feature set are usable.

    Rows computed here always are. Merged rows are usable if their source is trusted, or if no
    trusted source has measured the program.

    Parameters
    ----------
    features : object
        Columns of table feature.
    """
    m, source = schema.measurement.alias(), schema.source.alias()
    is_measured = (
        select(_ONE)
        .select_from(m.join(source, source.c.id == m.c.source_id))
        .where(m.c.program_id == features.program_id, source.c.trust >= _VERIFIED)
        .correlate_except(m, source)
        .exists()
    )
    return ~and_(is_merged_feature(features, untrusted_only=True), is_measured)


def is_merged_feature(features: Any, *, untrusted_only: bool = False) -> ColumnElement[bool]:
    """Return the condition that a program's rows of a feature set came with a merge.

    Parameters
    ----------
    features : object
        Columns of table feature.
    untrusted_only : bool
        Only rows that came with records of untrusted sources.
    """
    mark = schema.foreign_feature.alias()
    conditions = [~is_trusted(mark.c.source_id)] if untrusted_only else []
    return (
        select(_ONE)
        .where(
            mark.c.program_id == features.program_id,
            mark.c.feature_set_id == features.feature_set_id,
            *conditions,
        )
        .correlate_except(mark)
        .exists()
    )
