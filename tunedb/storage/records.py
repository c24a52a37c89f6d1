"""Records: measurements with everything to which they refer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from sqlalchemy import Select, Table, func, select

from .. import limits
from ..errors import UsageError
from ..launches import Launch
from ..records import Failure, FailureKind, Measurement, Phase, Quarantined, Source
from ..results import AddReport, Record, TargetSummary, WorkloadSummary
from ..system.one_line import one_line
from . import read_statements as st
from . import schema
from .answers import Answers
from .attribution import is_accepted
from .batches import Batches
from .database import Database
from .launches import counter_set, launch_from_row
from .loader import Loader
from .lookup import Lookup
from .quarantine import Quarantine

_m, _f, _l = schema.measurement.c, schema.failure.c, schema.launch.c

#: Rows per statement of iterating methods.
_PAGE = 500

#: Statements of each kind that a query reads for a record: foreign sources may state any number.
_MAX_STATEMENTS = 50


#: Arguments that name workloads and targets.
AnyWorkloads: TypeAlias = int | str | WorkloadSummary | Sequence[int | WorkloadSummary]
AnyTargets: TypeAlias = int | str | TargetSummary | Sequence[int | TargetSummary]


@dataclass(frozen=True, slots=True)
class Statement:
    """A failure or a launch that is not accepted, and the source that states it.

    Parameters
    ----------
    source : Source
        Neither the record's own source nor a trusted one, or a retracted one.
    content : Failure or Launch
        The stated failure or launch.
    """

    source: Source
    content: Failure | Launch

    __repr__ = one_line


class Records:
    """``store.records``: adds measurements and reads records."""

    def __init__(
        self,
        db: Database,
        loader: Loader,
        batches: Batches,
        quarantine: Quarantine,
        answers: Answers,
        lookup: Lookup,
    ) -> None:
        self._db = db
        self._loader = loader
        self._batches = batches
        self._quarantine = quarantine
        self._answers = answers
        self._lookup = lookup

    def __repr__(self) -> str:
        return f"<records of {self._db.location}>"

    def add(
        self,
        measurements: Iterable[Measurement],
        source: Source,
        *,
        quarantined: Iterable[Quarantined] = (),
    ) -> AddReport:
        """Add measurements with everything to which they refer, in batches.

        Parameters
        ----------
        measurements : iterable of Measurement
            Consumed lazily; each batch of :data:`tunedb.limits.BATCH_ROWS` is one transaction.
        source : Source
            Origin of the measurements.
        quarantined : iterable of Quarantined
            Unreadable bytes, kept under the same source.

        Returns
        -------
        AddReport
            Numbers of new and of known measurements.

        Raises
        ------
        FormatError
            A time is not finite; nothing of its batch is stored.
        """
        new = known = 0
        iterator = iter(measurements)
        while batch := list(islice(iterator, limits.BATCH_ROWS)):
            ids, fresh = self._batches.add(batch, source)
            new += fresh
            known += len(ids) - fresh
        rows = list(quarantined)
        if rows:
            self._quarantine.add(rows, source)
        return AddReport(new=new, known=known)

    # ------------------------------------------------------------------ best records

    def top_k(
        self, workload: AnyWorkloads, target: AnyTargets | None = None, k: int = 10
    ) -> list[Record]:
        """Return the best records of workloads, best first.

        Ascending mean of run times, ties in order of insertion; failed, retracted and untrusted
        records are left out, and so are those that a final has superseded.

        Parameters
        ----------
        workload : int, str, WorkloadSummary or sequence of int or WorkloadSummary
            Workloads to search together: ids, text as for :meth:`Workloads.find`, or its result.
        target : int, str, TargetSummary, sequence of int or TargetSummary, or None
            Targets to search together: ids, text as for :meth:`Targets.find`, or its result; None
            for all.
        k : int
            Maximum number of records.

        Returns
        -------
        list of Record

        Raises
        ------
        NotFoundError
            No workload or target matches a text.
        UsageError
            `k` is negative.

        Examples
        --------
        >>> store.records.top_k("matmul", "llvm", k=2)
        [Record(1, 'matmul_0' for llvm, 0.001 s, from 'own')]
        """
        if k < 0:
            raise UsageError(f"k must not be negative, got {k}")
        workload_ids = self._workload_ids(workload)
        target_ids = (
            self._answers.targets(workload_ids) if target is None else self._target_ids(target)
        )
        return self._loader.records_by_id(self._answers.best_ids(workload_ids, target_ids, k))

    def _workload_ids(self, workload: AnyWorkloads) -> list[int]:
        return ids_of(workload, self._lookup.require_workloads)

    def _target_ids(self, target: AnyTargets) -> list[int]:
        return ids_of(target, self._lookup.require_targets)

    def best(self, workload: AnyWorkloads, target: AnyTargets | None = None) -> Record | None:
        """Return the best record of workloads.

        Parameters
        ----------
        workload, target
            As for :meth:`top_k`.

        Returns
        -------
        Record or None
            None without a valid record.

        Raises
        ------
        NotFoundError
            No workload or target matches a text.

        Examples
        --------
        >>> store.records.best("matmul").mean
        0.001
        """
        return next(iter(self.top_k(workload, target, 1)), None)

    # ------------------------------------------------------------------ all records

    def get(self, id_: int) -> Record:
        """Return a record by its id.

        Parameters
        ----------
        id_ : int
            Id of the record.

        Returns
        -------
        Record

        Raises
        ------
        NotFoundError
            The database has no such record.
        """
        return self._loader.record_by_id(id_)

    def find(self, text: str, limit: int = 10) -> list[int]:
        """Return the ids of records with this id or digest.

        Parameters
        ----------
        text : str
            An id, or the first four or more hexadecimal digits of a digest.
        limit : int
            Maximum number of ids.

        Returns
        -------
        list of int
        """
        return self._lookup.records(text, limit)

    def iterate(
        self, workload: AnyWorkloads | None = None, target: AnyTargets | None = None
    ) -> Iterator[Record]:
        """Yield records in order of insertion, including failed and retracted ones.

        Each page of 500 records is a snapshot; records added meanwhile come last.

        Parameters
        ----------
        workload, target
            Only records of these workloads and targets, as for :meth:`top_k`; None for all.

        Yields
        ------
        Record

        Raises
        ------
        NotFoundError
            No workload or target matches a text.

        Examples
        --------
        >>> [record.measurement.status.name for record in store.records.iterate("matmul")]
        ['OK', 'FAILED']
        """
        ids = select(_m.id).order_by(_m.id).limit(_PAGE)
        if workload is not None:
            ids = ids.where(_m.workload_id.in_(self._workload_ids(workload)))
        if target is not None:
            ids = ids.where(_m.target_id.in_(self._target_ids(target)))
        query, after = st.record_query().order_by(_m.id), 0
        while True:
            # The inner query bounds the work of the joins. PostgreSQL's statistics say "no rows"
            # until they notice a large import, and then it would join all rows for each page.
            rows = self._db.select(query.where(_m.id.in_(ids.where(_m.id > after))))
            for row in rows:
                yield self._loader.record(row)
            if len(rows) < _PAGE:
                return
            after = rows[-1].id

    def history(
        self, workload: AnyWorkloads, target: AnyTargets | None = None
    ) -> list[tuple[int, float, float]]:
        """Return the progress of a search over the served records of workloads.

        Parameters
        ----------
        workload, target
            As for :meth:`top_k`.

        Returns
        -------
        list of (int, float, float)
            Record id, mean time, and best time so far, in seconds; in order of time of measurement,
            then of insertion.

        Raises
        ------
        NotFoundError
            No workload or target matches a text.
        """
        workload_ids = self._workload_ids(workload)
        statement = select(_m.id, _m.mean).where(_m.workload_id.in_(workload_ids), _m.served == 1)
        if target is not None:
            statement = statement.where(_m.target_id.in_(self._target_ids(target)))
        best = float("inf")
        history = []
        for id_, mean in self._db.select(statement.order_by(_m.measured_at, _m.id)):
            best = min(best, mean)
            history.append((id_, mean, best))
        return history

    def count(self, target: AnyTargets | None = None) -> int:
        """Return the number of measurements, including failed ones.

        Parameters
        ----------
        target
            Only measurements of these targets, as for :meth:`top_k`; None for all.

        Returns
        -------
        int

        Raises
        ------
        NotFoundError
            No target matches a text.
        """
        if target is None:
            return int(self._db.fetch(st.size)[0][0])
        counted = select(func.count()).select_from(schema.measurement)
        return int(self._db.select(counted.where(_m.target_id.in_(self._target_ids(target))))[0][0])

    def failures(self) -> dict[str, int]:
        """Return the number of failures of each kind.

        Returns
        -------
        dict
            Name of a :class:`FailureKind` → number of measurements.

        Examples
        --------
        >>> store.records.failures()
        {'timeout': 1}
        """
        rows = self._db.select(
            select(_f.kind, func.count(_f.measurement_id.distinct()))
            .join_from(schema.failure, schema.measurement, _m.id == _f.measurement_id)
            .where(is_accepted(_f, _m))
            .group_by(_f.kind)
        )
        return {row[0]: row[1] for row in rows}

    # ------------------------------------------------------------------ unaccepted statements

    def unaccepted(self, record_id: int) -> list[Statement]:
        """Return the statements about a record that are not accepted: failures, then launches.

        The last 50 of each kind, without those that an accepted source states too. Runs several
        statements.

        Parameters
        ----------
        record_id : int
            Id of the record.

        Returns
        -------
        list of Statement
        """
        failures = self._db.select(_unaccepted(schema.failure, _f, record_id))
        launches = self._db.select(_unaccepted(schema.launch, _l, record_id))
        stated_failures = [
            Statement(
                self._loader.source(row.source_id),
                Failure(FailureKind(row.kind), Phase(row.phase), row.message, row.seconds),
            )
            for row in reversed(failures)
        ]
        return stated_failures + [
            Statement(
                self._loader.source(row.source_id),
                launch_from_row(row, counter_set(self._db, row.counter_set_id)),
            )
            for row in reversed(launches)
        ]


def ids_of(rows: AnyWorkloads | AnyTargets, find: Callable[[str], list[int]]) -> list[int]:
    """Return the ids of rows that a caller names by id, text or summary."""
    if isinstance(rows, str):
        return find(rows)
    if isinstance(rows, int):
        return [rows]
    if isinstance(rows, WorkloadSummary | TargetSummary):
        return [rows.id]
    return [row if isinstance(row, int) else row.id for row in rows]


def _unaccepted(table: Table, statement: Any, record_id: int) -> Select[Any]:
    """Return the query of a table's unaccepted statements about a record, last first."""
    same = table.alias().c
    is_repeated = select(same.id).where(
        same.measurement_id == _m.id, same.digest == statement.digest, is_accepted(same, _m)
    )
    return (
        select(table)
        .join_from(table, schema.measurement, _m.id == statement.measurement_id)
        .where(_m.id == record_id, ~is_accepted(statement, _m), ~is_repeated.exists())
        .order_by(statement.id.desc())
        .limit(_MAX_STATEMENTS)
    )
