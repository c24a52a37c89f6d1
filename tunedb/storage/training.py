"""Training data: measured programs with their features, and the outcomes of predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, and_, case, func, select

from ..records import FailureKind, Origin, Signature, Status, WorkloadFormat
from ..system.one_line import one_line
from . import schema
from .attribution import accepted_failure, is_accepted
from .database import Database
from .deadlines import long_statements
from .engine import converted_errors
from .loader import Loader
from .programs import Programs
from .retractions import is_retracted
from .sessions import Runs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..features.base import NamedSet

_m, _p, _w, _t = (
    table.c for table in (schema.measurement, schema.program, schema.workload, schema.target)
)
_failure, _feature, _d = schema.failure.c, schema.feature.c, schema.prediction.c

#: Number of each value of a text column; values of newer versions count as unknown.
_FAILURES = {kind.value: number for number, kind in enumerate(FailureKind, 1)}
_ORIGINS = {origin.value: number for number, origin in enumerate(Origin)}

#: Number of columns of :func:`_records`.
_COLUMNS = 14

#: Records converted to arrays at a time: the tuples of all would take ten times as much memory.
_BATCH = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRecords:
    """Measured and failed records as columns, in the order of their ids.

    Parameters
    ----------
    ids, program_ids, workload_ids, target_ids : ndarray of int64, shape (n,)
        Row ids.
    digests : ndarray of uint64, shape (n, 2)
        Digests of the programs, as two numbers of which the first is more significant.
    subjects : ndarray of int64, shape (n,)
        Session id, or negated source id for records without session and for records of strangers
        that name a session of a trusted source.
    failed : ndarray of bool, shape (n,)
        True if the record has no valid run time.
    cut_short : ndarray of bool, shape (n,)
        True if the record has the first repeats only (:attr:`Status.CUT_SHORT`).
    failures : ndarray of int8, shape (n,)
        Last accepted cause of failure (1 for the first :class:`FailureKind`, and so on); 0 if
        unknown.
    measured_at : ndarray of int64, shape (n,)
        Microseconds since 1970, UTC; 0 if unknown.
    costs : ndarray of float64, shape (n,)
        Seconds of the whole trial; NaN if unknown.
    origins : ndarray of int8, shape (n,)
        0 for the first :class:`Origin`, and so on.
    n_times : ndarray of int64, shape (n,)
        Number of run times of each record.
    times : ndarray of float64
        Run times of all records, one after another, in seconds.
    n_rows, n_columns : ndarray of int64, shape (n,)
        Shape of the program's features; -1 without features.
    """

    ids: NDArray[np.int64]
    program_ids: NDArray[np.int64]
    workload_ids: NDArray[np.int64]
    target_ids: NDArray[np.int64]
    digests: NDArray[np.uint64]
    subjects: NDArray[np.int64]
    failed: NDArray[np.bool_]
    cut_short: NDArray[np.bool_]
    failures: NDArray[np.int8]
    measured_at: NDArray[np.int64]
    costs: NDArray[np.float64]
    origins: NDArray[np.int8]
    n_times: NDArray[np.int64]
    times: NDArray[np.float64]
    n_rows: NDArray[np.int64]
    n_columns: NDArray[np.int64]

    __repr__ = one_line

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Trial:
    """A prediction, with the outcome of its program.

    Parameters
    ----------
    model_id, program_id, workload_id, target_id : int
        Row ids.
    record_id : int
        Id of the program's first measurement.
    score : float
        Score by the model; higher is faster.
    mean : float or None
        Shortest mean run time in seconds; None if the program never succeeded.
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


class Training:
    """``store.training``, for packages that train and evaluate models."""

    def __init__(self, db: Database, loader: Loader, programs: Programs, runs: Runs) -> None:
        self._db = db
        self._loader = loader
        self._programs = programs
        self._runs = runs

    def records(
        self,
        feature_set: NamedSet,
        *,
        workload_ids: Sequence[int] | None = None,
        target_ids: Sequence[int] | None = None,
        source_ids: Sequence[int] | None = None,
    ) -> TrainingRecords:
        """Return all records that ran or failed, including those of foreign sources.

        Retracted and unmeasured records are omitted.

        Parameters
        ----------
        feature_set : FeatureSet
            Feature set; only rows of its version count.
        workload_ids, target_ids, source_ids : sequence of int or None
            Only records of these workloads, targets and sources.
        """
        set_id = self._programs.set_id(feature_set)
        query = _records(set_id, self._runs.subject(), self._programs.feature_conditions())
        statement = self._programs.chosen(query, workload_ids, target_ids, for_tvm=False)
        if source_ids is not None:
            statement = statement.where(_m.source_id.in_(source_ids))
        with (
            self._db.lock,
            converted_errors(self._db.location),
            long_statements(connection := self._db.reader()),
        ):
            result = connection.execute(statement.order_by(_m.id))
            return _concatenated(_columns(rows) for rows in result.partitions(_BATCH))

    def workloads(self, ids: Sequence[int]) -> list[tuple[int, bytes, str, Signature]]:
        """Return id, digest, name and signature of workloads, in the order of digests."""
        columns = (_w.id, _w.digest, _w.name, _w.function, _w.arguments, _w.family, _w.flops)
        chosen = set(ids)
        rows = self._db.select(select(*columns).order_by(_w.digest))
        return [
            (row.id, bytes(row.digest), row.name, self._loader.signature(row))
            for row in rows
            if row.id in chosen
        ]

    def target_digests(self) -> dict[int, bytes]:
        """Return the digest of each target by its id."""
        return {row.id: bytes(row.digest) for row in self._db.select(select(_t.id, _t.digest))}

    def t1_inputs(self) -> list[tuple[str, bytes]]:
        """Return name and body of each FAIR T1 input, in the order of their digests."""
        rows = self._db.select(
            select(_w.name, _w.body).where(_w.format == WorkloadFormat.T1.value).order_by(_w.digest)
        )
        return [(row.name, self._db.unpack(row.body)) for row in rows]

    # ------------------------------------------------------------------ predictions

    def trials(self, model_id: int | None = None) -> list[Trial]:
        """Return the predictions of programs that were measured.

        Measurements are ignored if they were retracted or cut short, never ran, or failed because
        of the infrastructure.

        Parameters
        ----------
        model_id : int or None
            Only predictions of this model.

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
            .where(_is_informative())
            .group_by(*key, _d.score, _d.predicted_at)
            .order_by(_d.model_id, first)
        )
        if model_id is not None:
            statement = statement.where(_d.model_id == model_id)
        return [Trial(*row) for row in self._db.select(statement)]

    def measured_before(self, program_ids: Sequence[int], moment: int) -> set[int]:
        """Return those programs that were measured before a moment.

        Measurements that :meth:`trials` ignores do not count; those of unknown time do.

        Parameters
        ----------
        program_ids : sequence of int
            Program ids; they become parameters of one statement.
        moment : int
            Microseconds since 1970, UTC.
        """
        statement = (
            select(_m.program_id)
            .where(_m.program_id.in_(program_ids), _m.measured_at < moment, _is_informative())
            .distinct()
        )
        return {row[0] for row in self._db.select(statement)}

    def predictions(self) -> dict[int, int]:
        """Return the number of predictions of each model, by its id."""
        counted = select(_d.model_id, func.count()).group_by(_d.model_id)
        return {row[0]: row[1] for row in self._db.select(counted)}


def _records(set_id: int | None, subject: Any, conditions: Sequence[Any]) -> Select[Any]:
    """Return the query of training records, whose rows :func:`_columns` reads."""
    # Evaluated for failed records only.
    failure_kind = (
        select(_failure.kind)
        .where(_failure.id == accepted_failure(schema.failure, _m))
        .scalar_subquery()
    )
    joined = schema.measurement.join(schema.program, _p.id == _m.program_id).outerjoin(
        schema.feature,
        and_(_feature.program_id == _m.program_id, _feature.feature_set_id == set_id, *conditions),
    )
    return (
        select(
            _m.id,
            _m.program_id,
            _p.digest,
            _m.workload_id,
            _m.target_id,
            subject,
            _m.status,
            case((_m.status == int(Status.FAILED), failure_kind)),
            _m.run_secs,
            _m.measured_at,
            _m.all_cost,
            _m.origin,
            func.coalesce(_feature.n_rows, -1),
            func.coalesce(_feature.n_columns, -1),
        )
        .select_from(joined)
        .where(_m.status != int(Status.UNMEASURED), ~is_retracted(_m, many=True))
    )


def _columns(rows: Sequence[Any]) -> TrainingRecords:
    """Return rows of :func:`_records` as arrays."""
    import numpy as np

    columns = list(zip(*rows, strict=True)) or [()] * _COLUMNS
    ids, programs, digests, workloads, targets, subjects, status, kinds, *rest = columns
    times, measured_at, costs, origins, n_rows, n_columns = rest
    blobs = [time or b"" for time in times]
    return TrainingRecords(
        ids=np.array(ids, np.int64),
        program_ids=np.array(programs, np.int64),
        workload_ids=np.array(workloads, np.int64),
        target_ids=np.array(targets, np.int64),
        digests=np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2).astype(np.uint64),
        subjects=np.array(subjects, np.int64),
        failed=np.array(status, np.int64) == int(Status.FAILED),
        cut_short=np.array(status, np.int64) == int(Status.CUT_SHORT),
        failures=np.array([0 if k is None else _FAILURES.get(k, 0) for k in kinds], np.int8),
        measured_at=np.array(measured_at, np.int64),
        costs=np.array(costs, np.float64),
        origins=np.array([0 if o is None else _ORIGINS.get(o, 0) for o in origins], np.int8),
        n_times=np.array([len(blob) // 8 for blob in blobs], np.int64),
        times=np.frombuffer(b"".join(blobs), "<f8"),
        n_rows=np.array(n_rows, np.int64),
        n_columns=np.array(n_columns, np.int64),
    )


def _concatenated(batches: Iterable[TrainingRecords]) -> TrainingRecords:
    """Return the records of all batches, of which there may be none; holds them once."""
    import numpy as np

    empty = _columns([])
    columns = {field.name: getattr(empty, field.name) for field in fields(TrainingRecords)}
    buffers = {name: bytearray() for name in columns}
    for batch in batches:
        for name, buffer in buffers.items():
            buffer.extend(getattr(batch, name).tobytes())
    return TrainingRecords(
        **{
            name: np.frombuffer(buffers.pop(name), column.dtype).reshape(-1, *column.shape[1:])
            for name, column in columns.items()
        }
    )


def _is_informative() -> Any:
    """Return the condition for measurements that are evidence about their program."""
    is_infrastructure = (
        select(1)
        .where(
            _failure.measurement_id == _m.id,
            _failure.kind == str(FailureKind.INFRASTRUCTURE),
            is_accepted(_failure, _m),
        )
        .exists()
    )
    failed = and_(_m.status == int(Status.FAILED), ~is_infrastructure)
    return and_((_m.status == int(Status.OK)) | failed, ~is_retracted(_m, many=True))
