"""Records: measurements with everything to which they refer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import Select, Table, func, select

from .. import identity, limits
from ..errors import NotFoundError, UsageError
from ..launches import Launch
from ..records import Failure, FailureKind, Measurement, Phase, Quarantined, Source
from ..results import AddReport, Record
from ..system.one_line import one_line
from . import read_statements as st
from . import schema
from .answers import Answers
from .attribution import is_accepted
from .batches import Batches
from .database import Database
from .launches import counter_set, launch_from_row
from .loader import Loader
from .programs import Programs
from .quarantine import Quarantine
from .targets import Targets
from .workloads import Workloads

_m, _f, _l = schema.measurement.c, schema.failure.c, schema.launch.c

#: Rows per statement of iterating methods.
_PAGE = 500

#: Statements of each kind that are read of a record: strangers may make any number.
_MAX_STATEMENTS = 50


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
        workloads: Workloads,
        targets: Targets,
        programs: Programs,
    ) -> None:
        self._db = db
        self._loader = loader
        self._batches = batches
        self._quarantine = quarantine
        self._answers = answers
        self._workloads = workloads
        self._targets = targets
        self._programs = programs

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
        self,
        workload: int | str | Sequence[int],
        target: int | str | Sequence[int] | None = None,
        k: int = 10,
    ) -> list[Record]:
        """Return the best records of workloads, best first.

        Ascending mean of run times, ties in order of insertion; failed, retracted and untrusted
        records are left out.

        Parameters
        ----------
        workload : int, str or sequence of int
            Workloads, which count as one.
        target : int, str, sequence of int or None
            Targets, which count as one; None for all.
        k : int
            How many at most.

        Raises
        ------
        NotFoundError
            Nothing has that name.
        UsageError
            `k` is negative.
        """
        if k < 0:
            raise UsageError(f"k must not be negative, got {k}")
        workload_ids = _ids(workload, self._workloads.find, "workload")
        if target is None:
            target_ids: Sequence[int] = self._programs.targets(workload_ids)
        else:
            target_ids = _ids(target, self._targets.find, "target")
        return [self.get(i) for i in self._answers.best_ids(workload_ids, target_ids, k)]

    def best(
        self,
        workload: int | str | Sequence[int],
        target: int | str | Sequence[int] | None = None,
    ) -> Record | None:
        """Return the best record of workloads (:meth:`top_k`), or None."""
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
        if text.isascii() and text.isdecimal() and len(text) < 19:
            rows = self._db.select(select(_m.id).where(_m.id == int(text)))
            if rows:
                return [rows[0].id]
        digits = 2 * identity.DIGEST_BYTES
        if not 4 <= len(text) <= digits or not set(text.lower()) <= set("0123456789abcdef"):
            return []
        # Reads all of an index: none begins with the digest.
        low, high = (bytes.fromhex(text.ljust(digits, filler)) for filler in "0f")
        rows = self._db.select(select(_m.id).where(_m.digest.between(low, high)).limit(limit))
        return sorted(row.id for row in rows)

    def iterate(
        self, workload_id: int | None = None, target_ids: Sequence[int] | None = None
    ) -> Iterator[Record]:
        """Yield records in order of insertion, including failed and retracted ones.

        Each page of 500 records is a snapshot; records added meanwhile come last.

        Parameters
        ----------
        workload_id : int or None
            Only records of this workload.
        target_ids : sequence of int or None
            Only records of these targets.

        Yields
        ------
        Record
        """
        statement = st.record_query().order_by(_m.id).limit(_PAGE)
        if workload_id is not None:
            statement = statement.where(_m.workload_id == workload_id)
        if target_ids is not None:
            statement = statement.where(_m.target_id.in_(target_ids))
        after = 0
        while True:
            rows = self._db.select(statement.where(_m.id > after))
            for row in rows:
                yield self._loader.record(row)
            if len(rows) < _PAGE:
                return
            after = rows[-1].id

    def history(
        self, workload_ids: Sequence[int], target_ids: Sequence[int] | None = None
    ) -> list[tuple[int, float, float]]:
        """Return the progress of a search over the served records of workloads.

        Parameters
        ----------
        workload_ids : sequence of int
            Ids of the workloads.
        target_ids : sequence of int or None
            Only records of these targets.

        Returns
        -------
        list of (int, float, float)
            Record id, mean time, and best time so far, in seconds; in order of time of measurement,
            then of insertion.
        """
        statement = select(_m.id, _m.mean).where(_m.workload_id.in_(workload_ids), _m.served == 1)
        if target_ids is not None:
            statement = statement.where(_m.target_id.in_(target_ids))
        best = float("inf")
        history = []
        for id_, mean in self._db.select(statement.order_by(_m.measured_at, _m.id)):
            best = min(best, mean)
            history.append((id_, mean, best))
        return history

    def count(self, target_ids: Sequence[int] | None = None) -> int:
        """Return the number of measurements, including failed ones.

        Parameters
        ----------
        target_ids : sequence of int or None
            Only measurements of these targets.

        Returns
        -------
        int
        """
        if target_ids is None:
            return int(self._db.fetch(st.size)[0][0])
        counted = select(func.count()).select_from(schema.measurement)
        return int(self._db.select(counted.where(_m.target_id.in_(target_ids)))[0][0])

    def failures(self) -> dict[str, int]:
        """Return the number of failures of each kind.

        Returns
        -------
        dict
            Name of a :class:`FailureKind` → number of measurements.
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


def _ids(
    words: int | str | Sequence[int], find: Callable[[str], list[int]], noun: str
) -> Sequence[int]:
    """Return the ids that a caller means; NotFoundError for a text that means nothing."""
    if isinstance(words, str):
        ids = find(words)
        if not ids:
            raise NotFoundError(f"no {noun} {words!r}")
        return ids
    return [words] if isinstance(words, int) else words


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
