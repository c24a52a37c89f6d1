"""Whose word counts: the conditions under which an alias, a failure or a launch is believed.

Every such row names the source that says it. A source speaks for its own records; of the records
and workloads of others it is believed where it is trusted here (verified or own) and was not taken
back. What foreign sources say of others stays stored and is never used.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, literal_column, or_, select

from . import schema
from .records import Trust
from .retractions import ALIASES, ours

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
            or_(taken.c.store == source.c.store, taken.c.store == ours()),
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
