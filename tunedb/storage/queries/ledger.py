"""What models predicted, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, case, func, select

from ...records import FailureKind, Source, SourceKind, Status, Trust
from .. import schema
from ..attribution import is_believed
from ..retractions import is_retracted
from .training import Training

_d, _m, _f = schema.prediction.c, schema.measurement.c, schema.failure.c
_s = schema.source.c


@dataclass(frozen=True, slots=True)
class Trial:
    """A prediction, with what became of the program.

    Parameters
    ----------
    model_id, program_id, workload_id, target_id : int
        Local numbers.
    record_id : int
        Local number of the program's first measurement.
    score : float
        What the model said; higher is faster.
    mean : float or None
        Shortest mean run time in seconds; None where the program never worked.
    predicted_at : int
        Microseconds since 1970, UTC.
    """

    model_id: int
    program_id: int
    workload_id: int
    target_id: int
    record_id: int
    score: float
    mean: float | None
    predicted_at: int


class Ledger(Training):
    """Reads of predictions, and of where records came from."""

    def trials(self, model_id: int | None = None) -> list[Trial]:
        """Return the predictions of a model, or of all, of programs that were measured.

        Measurements that were retracted, that never ran, or that failed for reasons of
        infrastructure say nothing about a program.

        Parameters
        ----------
        model_id : int or None
            Local number of the model.

        Returns
        -------
        list of Trial
            By model, then in the order of the first measurements.
        """
        key = (_d.model_id, _d.program_id, _m.workload_id, _m.target_id)
        first = func.min(_m.id)
        statement = (
            select(
                *key,
                first.label("record_id"),
                _d.score,
                func.min(case((_m.status == int(Status.OK), _m.mean), else_=None)).label("mean"),
                _d.predicted_at,
            )
            .join_from(schema.prediction, schema.measurement, _m.program_id == _d.program_id)
            .where(_says_something())
            .group_by(*key, _d.score, _d.predicted_at)
            .order_by(_d.model_id, first)
        )
        if model_id is not None:
            statement = statement.where(_d.model_id == model_id)
        return [Trial(*row) for row in self._select(statement)]

    def measured_before(self, program_ids: Sequence[int], moment: int) -> set[int]:
        """Return those of some programs that were measured before a moment.

        What :meth:`trials` leaves out does not count; a measurement of unknown time does.

        Parameters
        ----------
        program_ids : sequence of int
            Local numbers, of a batch: they become parameters of one statement.
        moment : int
            Microseconds since 1970, UTC.
        """
        statement = (
            select(_m.program_id)
            .where(_m.program_id.in_(program_ids), _m.measured_at < moment, _says_something())
            .distinct()
        )
        return {row[0] for row in self._select(statement)}

    def predictions(self) -> dict[int, int]:
        """Return how many programs each model was asked about, by the model's number."""
        counted = select(_d.model_id, func.count()).group_by(_d.model_id)
        return {row[0]: row[1] for row in self._select(counted)}

    def numbered_sources(self, ids: Sequence[int] | None = None) -> list[tuple[int, bytes, Source]]:
        """Return sources with their numbers and digests, all or those with some numbers."""
        statement = select(_s.id, _s.digest, _s.name, _s.kind, _s.trust).order_by(_s.id)
        if ids is not None:
            statement = statement.where(_s.id.in_(ids))
        return [
            (row.id, bytes(row.digest), Source(row.name, SourceKind(row.kind), Trust(row.trust)))
            for row in self._select(statement)
        ]


def _says_something() -> Any:
    """Return the condition that a measurement says something about its program."""
    blameless = (
        select(1)
        .where(
            _f.measurement_id == _m.id,
            _f.kind == str(FailureKind.INFRASTRUCTURE),
            is_believed(_f, _m),
        )
        .exists()
    )
    failed = and_(_m.status == int(Status.FAILED), ~blameless)
    return and_((_m.status == int(Status.OK)) | failed, ~is_retracted(_m, many=True))
