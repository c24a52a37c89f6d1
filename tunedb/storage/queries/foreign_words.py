"""What sources say of records and is not believed: stored, shown, and never used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, Table, select

from ...launches import Launch
from ...records import Failure, FailureKind, Phase, Source
from .. import schema
from ..attribution import is_believed
from .launches import Launches, launch_of

_m, _f, _l = schema.measurement.c, schema.failure.c, schema.launch.c

#: Words of each kind that are read of a record: anybody may say any number.
_MOST = 50


@dataclass(frozen=True, slots=True)
class Word:
    """A failure or a launch, and the source that says it.

    Parameters
    ----------
    source : Source
        Not that of the record, and not trusted here, or taken back.
    said : Failure or Launch
        What it says.
    """

    source: Source
    said: Failure | Launch


class Words(Launches):
    """Reads of what does not count."""

    def unbelieved(self, record_id: int) -> list[Word]:
        """Return what is said of a record and not believed: failures, then launches.

        The last 50 of each, without those that somebody who is believed says too. Made of several
        statements.
        """
        failures = self._select(_not_believed(schema.failure, _f, record_id))
        launches = self._select(_not_believed(schema.launch, _l, record_id))
        words = [
            Word(
                self._sources.fetch(row.source_id, self.source),
                Failure(FailureKind(row.kind), Phase(row.phase), row.message, row.seconds),
            )
            for row in reversed(failures)
        ]
        return words + [
            Word(
                self._sources.fetch(row.source_id, self.source),
                launch_of(row, self.counter_set(row.counter_set_id)),
            )
            for row in reversed(launches)
        ]


def _not_believed(table: Table, said: Any, record_id: int) -> Select[Any]:
    same = table.alias().c
    is_repeated = select(same.id).where(
        same.measurement_id == _m.id, same.digest == said.digest, is_believed(same, _m)
    )
    return (
        select(table)
        .join_from(table, schema.measurement, _m.id == said.measurement_id)
        .where(_m.id == record_id, ~is_believed(said, _m), ~is_repeated.exists())
        .order_by(said.id.desc())
        .limit(_MOST)
    )
