"""Batches: transactions by which tuning runs and imports add measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, func, select

from ..launches import Launch
from ..records import TUNING, Failure, Measurement, Quarantined, Source, Trust, Workload
from . import read_statements as st
from . import schema, statements
from .database import Database
from .retry import retried
from .rows import Rows, failure_row, launch_row, now, quarantine_row

T = TypeVar("T")

#: Digests of program and measurement, a launch of it, and the id of the source that states it.
AttributedLaunch = tuple[bytes, bytes, Launch, int]

_m = schema.measurement.c


@dataclass(frozen=True, slots=True)
class LogContent:
    """Parsed content of a log, or of a part of one.

    Parameters
    ----------
    source : Source
        Origin of the records.
    measurements : sequence of Measurement
        Records.
    workloads : iterable of Workload
        Workloads that need not have a record.
    quarantined : iterable of Quarantined
        Unreadable bytes.
    """

    source: Source
    measurements: Sequence[Measurement] = ()
    workloads: Iterable[Workload] = ()
    quarantined: Iterable[Quarantined] = ()


class Batches:
    """``store.batches``, for packages that add records; users have ``store.records``."""

    def __init__(self, db: Database, rows: Rows) -> None:
        self._db = db
        self._rows = rows

    @retried
    def add(self, batch: Sequence[Measurement], source: Source) -> tuple[list[int], int]:
        """Add measurements in one transaction.

        Returns
        -------
        ids : list of int
            Id of each measurement, in the order of the batch.
        new : int
            Number of measurements that were not stored before.
        """
        with self._db.transaction() as connection:
            last = statements.last_measurement(connection).scalar() or 0
            self._insert(connection, batch, source)
            after: Sequence[Any] = statements.measurements_after(connection, id=last).all()
            added = {digest: id_ for id_, digest in after}
            ids = [added.get(m.digest) or _measurement_id(connection, m) for m in batch]
        self._db.analyze_if_grown(len(added))
        return ids, len(added.keys() & {m.digest for m in batch})

    def load(
        self,
        batch: Sequence[Measurement],
        source: Source,
        workloads: Iterable[Workload] = (),
        quarantined: Iterable[Quarantined] = (),
    ) -> list[bool]:
        """Add the content of a log in one transaction; arguments as of :class:`LogContent`.

        Returns
        -------
        list of bool
            True for each measurement that was not stored before.
        """
        return self.load_all([LogContent(source, batch, workloads, quarantined)])[0]

    def load_all(self, contents: Iterable[LogContent]) -> list[list[bool]]:
        """Add the contents of logs in one transaction.

        Returns
        -------
        list of list of bool
            For each content, True for each measurement that was not stored before.
        """
        with self._db.transaction() as connection:
            found = [self._load(connection, content) for content in contents]
        self._db.analyze_if_grown(sum(map(sum, found)))
        return found

    def _load(self, connection: Connection, content: LogContent) -> list[bool]:
        batch, source = content.measurements, content.source
        last = statements.last_measurement(connection).scalar() or 0
        new = self._insert(connection, batch, source) if batch else 0
        for workload in content.workloads:
            self._rows.workload(connection, workload)
        self.insert_quarantined(connection, content.quarantined, source)
        if not 0 < new < len(batch):
            return [new > 0] * len(batch)
        after: Sequence[Any] = statements.measurements_after(connection, id=last).all()
        added = {digest for _, digest in after}
        return [m.digest in added for m in batch]

    def _insert(self, connection: Connection, batch: Sequence[Measurement], source: Source) -> int:
        """Insert measurements and the rows to which they refer; return the number of new ones."""
        source_id, trust = self._rows.source(connection, source)
        rows = [self._rows.measurement(connection, m, source_id, trust) for m in batch]
        if trust >= Trust.OWN:
            for workload in {id(m.program.workload): m.program.workload for m in batch}.values():
                self._rows.own(connection, workload)
        programs = {row["program"]: row["_program"] for row in rows}
        statements.insert["program"].many(connection, list(programs.values()))
        new = statements.insert["measurement"].many(connection, rows)
        if new < len(rows) and trust >= Trust.VERIFIED:
            self._take_over(connection, batch, source_id, trust)
        statements.insert["failure"].many(
            connection,
            [
                failure_row(m.program.digest, m.digest, m.failure, source_id)
                for m in batch
                if m.failure is not None
            ],
        )
        self.insert_launches(
            connection,
            [
                (m.program.digest, m.digest, launch, source_id)
                for m in batch
                if m.launches
                for launch in m.launches
            ],
        )
        return new

    def _take_over(
        self, connection: Connection, batch: Sequence[Measurement], source_id: int, trust: int
    ) -> None:
        """Assign known records of less trusted sources to this source."""
        if statements.less_trusted(connection, trust=trust).scalar() is None:
            return
        rows = [
            {
                "measurement": measurement.digest,
                "program": measurement.program.digest,
                "source": source_id,
                "trust": trust,
                "valid": int(measurement.is_valid),
            }
            for measurement in batch
        ]
        statements.take_over.many(connection, rows)

    def insert_quarantined(
        self, connection: Connection, rows: Iterable[Quarantined], source: Source
    ) -> int:
        """Insert unreadable bytes; return the number of new rows."""
        new_rows = [quarantine_row(row) for row in rows]
        if not new_rows:
            return 0
        source_id, _ = self._rows.source(connection, source)
        common = {"source_id": source_id, "created_at": now()}
        return statements.insert["quarantine"].many(connection, [row | common for row in new_rows])

    # ------------------------------------------------------------------ statements about records

    @retried
    def add_failures(self, failures: Iterable[tuple[Measurement, Failure]]) -> None:
        """Add causes of stored failed measurements."""
        with self._db.transaction() as connection:
            rows = [
                failure_row(measurement.program.digest, measurement.digest, failure, source_id)
                for measurement, failure, source_id in self.attributed(connection, failures)
            ]
            statements.insert["failure"].many(connection, rows)

    def attributed(
        self, connection: Connection, statements_: Iterable[tuple[Measurement, T]]
    ) -> Iterator[tuple[Measurement, T, int]]:
        """Yield statements about stored measurements, each with the id of its source.

        For this database's own records that is their source; for records of others it is the source
        of this database's tuning runs.
        """
        for measurement, statement in statements_:
            source = statements.source_of(
                connection,
                measurement=measurement.digest,
                program=measurement.program.digest,
            ).one_or_none()
            if source is None:
                continue
            if source.store == self._db.key:
                yield measurement, statement, source.source_id
            else:
                yield measurement, statement, self._rows.source(connection, TUNING)[0]

    def insert_launches(self, connection: Connection, launches: Sequence[AttributedLaunch]) -> int:
        """Insert launches with their counter sets; return the number of new ones."""
        if not launches:
            return 0
        counter_sets = {id(launch.counter_set): launch.counter_set for _, _, launch, _ in launches}
        set_ids = {
            set_.digest: self._rows.counter_set(connection, set_)
            for set_ in counter_sets.values()
            if set_ is not None
        }
        rows = [
            launch_row(
                program,
                measurement,
                launch,
                None if launch.counter_set is None else set_ids[launch.counter_set.digest],
                source_id,
            )
            for program, measurement, launch, source_id in launches
        ]
        return statements.insert["launch"].many(connection, rows)

    # ------------------------------------------------------------------ reading

    def contains(self, measurement: Measurement) -> bool:
        """Return true if a measurement is stored."""
        digests = {"measurement": measurement.digest, "program": measurement.program.digest}
        return bool(self._db.fetch(st.measurement_by_digest, **digests))

    def last_id(self) -> int:
        """Return the greatest id of a record; 0 if there is none."""
        return self._db.select(select(func.max(_m.id).label("id")))[0].id or 0

    def quarantined_lines(self, file: str) -> dict[int, list[int]]:
        """Return the ids of a file's quarantined rows, by line number."""
        q = schema.quarantine.c
        lines: dict[int, list[int]] = {}
        for row in self._db.select(select(q.id, q.line).where(q.file == file)):
            lines.setdefault(row.line, []).append(row.id)
        return lines


def _measurement_id(connection: Connection, measurement: Measurement) -> int:
    """Return the id of a stored measurement."""
    result = statements.measurement_id(
        connection, measurement=measurement.digest, program=measurement.program.digest
    )
    return int(result.scalar_one())
