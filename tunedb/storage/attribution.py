"""Whose word counts: the conditions under which an alias, a failure or a launch is believed.

Every such row names the source that says it. A source speaks for its own records; of the records
and workloads of others it is believed where it is trusted here (verified or own) and was not taken
back. What foreign sources say of others stays stored and is never used.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Table, and_, func, literal_column, or_, select

from ..records import Trust
from . import schema
from .retractions import ALIASES, may_take_back

_ONE: ColumnElement[int] = literal_column("1")
_VERIFIED: ColumnElement[int] = literal_column(str(int(Trust.VERIFIED)))


def is_trusted(source_id: Any, *, aliases: bool = False) -> ColumnElement[bool]:
    """Return the condition that a source is trusted here and was not taken back.

    Parameters
    ----------
    source_id : column or parameter
        Local number of the source.
    aliases : bool
        The aliases of the source must not have been taken back either.
    """
    source, taken = schema.source.alias(), schema.retraction.alias()
    subjects = [] if aliases else [taken.c.subject != literal_column(f"'{ALIASES}'")]
    is_taken_back = (
        select(_ONE)
        .where(
            taken.c.digest == source.c.digest,
            may_take_back(taken, source),
            *subjects,
        )
        .correlate(source)
        .exists()
    )
    return (
        select(_ONE)
        .where(source.c.id == source_id, source.c.trust >= _VERIFIED, ~is_taken_back)
        .correlate_except(source, taken)
        .exists()
    )


def is_believed(said: Any, measurement: Any) -> ColumnElement[bool]:
    """Return the condition that what a source says of a measurement counts.

    Parameters
    ----------
    said : object
        The columns of table failure or launch, or of an alias of it.
    measurement : object
        The columns of table measurement, or of an alias of it.
    """
    return or_(said.source_id == measurement.source_id, is_trusted(said.source_id))


def is_preferred(table: Table, measurement: Any) -> ColumnElement[bool]:
    """Return the condition that a row of launches is what counts of its measurement.

    All that the measurement's own source says; where it says nothing, what trusted ones say.

    Parameters
    ----------
    table : Table
        ``launch``, whose rows the condition is of.
    measurement : object
        As for :func:`is_believed`.
    """
    own = table.alias().c
    says_something = (
        select(_ONE)
        .where(own.measurement_id == measurement.id, own.source_id == measurement.source_id)
        .correlate_except(own.id.table)
        .exists()
    )
    return or_(
        table.c.source_id == measurement.source_id,
        and_(is_trusted(table.c.source_id), ~says_something),
    )


def last_word(table: Table, measurement: Any) -> Any:
    """Return the number of the failure that counts of a measurement, NULL where there is none.

    The last that its own source said; where it said nothing, the last of trusted ones.

    Parameters
    ----------
    table : Table
        ``failure``.
    measurement : object
        As for :func:`is_believed`.
    """

    def last_of(said: Any, condition: ColumnElement[bool]) -> Any:
        last = select(func.max(said.id)).where(said.measurement_id == measurement.id, condition)
        return last.correlate_except(said.id.table).scalar_subquery()

    own, others = table.alias().c, table.alias().c
    return func.coalesce(
        last_of(own, own.source_id == measurement.source_id),
        last_of(others, is_trusted(others.source_id)),
    )


def features_count(features: Any) -> ColumnElement[bool]:
    """Return the condition that a program's rows of a feature set count.

    Those that were computed here do. Those that came with a merge count where their source is
    trusted, or where no trusted source has measured the program.

    Parameters
    ----------
    features : object
        The columns of table feature.
    """
    m, source = schema.measurement.alias(), schema.source.alias()
    is_measured = (
        select(_ONE)
        .select_from(m.join(source, source.c.id == m.c.source_id))
        .where(m.c.program_id == features.program_id, source.c.trust >= _VERIFIED)
        .correlate_except(m, source)
        .exists()
    )
    return ~and_(is_marked(features, by_strangers=True), is_measured)


def is_marked(features: Any, *, by_strangers: bool = False) -> ColumnElement[bool]:
    """Return the condition that a program's rows of a feature set came with a merge.

    Parameters
    ----------
    features : object
        The columns of table feature.
    by_strangers : bool
        Only with records of sources that are not trusted here.
    """
    mark = schema.foreign_feature.alias()
    whose = [~is_trusted(mark.c.source_id)] if by_strangers else []
    return (
        select(_ONE)
        .where(
            mark.c.program_id == features.program_id,
            mark.c.feature_set_id == features.feature_set_id,
            *whose,
        )
        .correlate_except(mark)
        .exists()
    )
