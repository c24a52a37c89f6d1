"""Records: measurements with everything that they name."""

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
from .attribution import is_believed
from .batches import Batches
from .database import Database
from .launches import counter_set, launch_of
from .loader import Loader
from .programs import Programs
from .quarantine import Quarantine
from .targets import Targets
from .workloads import Workloads

_m, _f, _l = schema.measurement.c, schema.failure.c, schema.launch.c

#: Rows fetched at a time by iterating methods.
_PAGE = 500

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

    __repr__ = one_line


class Records:
    """``store.records``: adds measurements and reads records.

    Where a workload or target is asked for, ids, an id, or what
    :meth:`~.workloads.Workloads.find` and :meth:`~.targets.Targets.find` understand will do.
    """

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
        """Add measurements with everything that they name, in batches.

        Parameters
        ----------
        measurements : iterable of Measurement
            Consumed lazily; each batch of :data:`tunedb.limits.BATCH_ROWS` is one transaction.
        source : Source
            Where they come from.
        quarantined : iterable of Quarantined
            Bytes that were not understood, kept under the same source.

        Returns
        -------
        AddReport
            How many measurements were new and how many were known.

        Raises
        ------
        FormatError
            A time is not finite. Nothing of its batch is stored.
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

    # ------------------------------------------------------------------ the best

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

    # ------------------------------------------------------------------ all

    def get(self, id_: int) -> Record:
        """Return a record by its id.

        Raises
        ------
        NotFoundError
            There is none.
        """
        return self._loader.record_by_id(id_)

    def find(self, text: str, most: int = 10) -> list[int]:
        """Return the ids of records whose id, or whose digest from its start, is `text`.

        Parameters
        ----------
        text : str
            An id, or at least four hexadecimal digits.
        most : int
            How many at most.
        """
        if text.isascii() and text.isdecimal() and len(text) < 19:
            found = self._db.select(select(_m.id).where(_m.id == int(text)))
            if found:
                return [found[0].id]
        digits = 2 * identity.DIGEST_BYTES
        if not 4 <= len(text) <= digits or not set(text.lower()) <= set("0123456789abcdef"):
            return []
        # No index has digests alone, so this reads all of one.
        low, high = (bytes.fromhex(text.ljust(digits, filler)) for filler in "0f")
        rows = self._db.select(select(_m.id).where(_m.digest.between(low, high)).limit(most))
        return sorted(row.id for row in rows)

    def iterate(
        self, workload_id: int | None = None, target_ids: Sequence[int] | None = None
    ) -> Iterator[Record]:
        """Yield records in order of insertion, failed and retracted ones included.

        Each page of 500 is a snapshot; records that are added meanwhile come at the end.

        Parameters
        ----------
        workload_id : int or None
            Only this workload's.
        target_ids : sequence of int or None
            Only these targets'.
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
        """Return the course of a search: ``(id, mean, best so far)`` of the served records.

        In order of time of measurement, then of insertion; times in seconds.
        """
        statement = select(_m.id, _m.mean).where(_m.workload_id.in_(workload_ids), _m.served == 1)
        if target_ids is not None:
            statement = statement.where(_m.target_id.in_(target_ids))
        best = float("inf")
        course = []
        for id_, mean in self._db.select(statement.order_by(_m.measured_at, _m.id)):
            best = min(best, mean)
            course.append((id_, mean, best))
        return course

    def count(self, target_ids: Sequence[int] | None = None) -> int:
        """Return the number of measurements, failed ones included, of all or some targets."""
        if target_ids is None:
            return int(self._db.fetch(st.size)[0][0])
        counted = select(func.count()).select_from(schema.measurement)
        return int(self._db.select(counted.where(_m.target_id.in_(target_ids)))[0][0])

    def failures(self) -> dict[str, int]:
        """Return the number of failures of each kind."""
        rows = self._db.select(
            select(_f.kind, func.count(_f.measurement_id.distinct()))
            .join_from(schema.failure, schema.measurement, _m.id == _f.measurement_id)
            .where(is_believed(_f, _m))
            .group_by(_f.kind)
        )
        return {row[0]: row[1] for row in rows}

    # ------------------------------------------------------------------ what does not count

    def unbelieved(self, record_id: int) -> list[Word]:
        """Return what is said of a record and not believed: failures, then launches.

        The last 50 of each, without those that somebody who is believed says too. Made of several
        statements.
        """
        failures = self._db.select(_not_believed(schema.failure, _f, record_id))
        launches = self._db.select(_not_believed(schema.launch, _l, record_id))
        words = [
            Word(
                self._loader.source(row.source_id),
                Failure(FailureKind(row.kind), Phase(row.phase), row.message, row.seconds),
            )
            for row in reversed(failures)
        ]
        return words + [
            Word(
                self._loader.source(row.source_id),
                launch_of(row, counter_set(self._db, row.counter_set_id)),
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
