"""Batches: measurements as tuning runs and imports commit them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, func, select

from ..launches import Launch
from ..records import TUNING, Failure, Measurement, Quarantined, Source, Trust, Workload
from . import read_statements as st
from . import schema, statements
from .database import Database
from .retry import retried
from .rows import Rows, failure_row_of, launch_row_of, now, quarantine_row

T = TypeVar("T")

#: Digests of program and measurement, a launch of it, and the local number of the source that says
#: so.
Launched = tuple[bytes, bytes, Launch, int]

_m = schema.measurement.c


class Batches:
    """``store.batches``, for rooms that add records; users have ``store.records``."""

    def __init__(self, db: Database, rows: Rows) -> None:
        self._db = db
        self._rows = rows

    @retried
    def add(self, batch: Sequence[Measurement], source: Source) -> tuple[list[int], int]:
        """Add measurements in one transaction.

        Returns
        -------
        ids : list of int
            The measurement's id for each of the batch, in its order.
        new : int
            How many were not known before.
        """
        with self._db.transaction() as connection:
            last = statements.last_measurement(connection).scalar() or 0
            self._insert(connection, batch, source)
            after: Sequence[Any] = statements.measurements_after(connection, id=last).all()
            added = {digest: id_ for id_, digest in after}
            ids = [added.get(m.digest) or _measurement_id(connection, m) for m in batch]
        return ids, len(added.keys() & {m.digest for m in batch})

    def load(
        self,
        batch: Sequence[Measurement],
        source: Source,
        workloads: Iterable[Workload] = (),
        quarantined: Iterable[Quarantined] = (),
    ) -> list[bool]:
        """Add what was read of a log in one transaction.

        Parameters
        ----------
        batch : sequence of Measurement
            Records.
        source : Source
            Where they come from.
        workloads : iterable of Workload
            Workloads that need not have a record.
        quarantined : iterable of Quarantined
            Bytes that were not understood.

        Returns
        -------
        list of bool
            For each measurement whether it was new.
        """
        with self._db.transaction() as connection:
            last = statements.last_measurement(connection).scalar() or 0
            number = self._insert(connection, batch, source) if batch else 0
            for workload in workloads:
                self._rows.workload(connection, workload)
            self.insert_quarantined(connection, quarantined, source)
            if number in (0, len(batch)):
                return [number > 0] * len(batch)
            after: Sequence[Any] = statements.measurements_after(connection, id=last).all()
        added = {digest for _, digest in after}
        return [m.digest in added for m in batch]

    def _insert(self, connection: Connection, batch: Sequence[Measurement], source: Source) -> int:
        """Insert measurements with all that they name; return how many were new."""
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
                failure_row_of(m.program.digest, m.digest, m.failure, source_id)
                for m in batch
                if m.failure is not None
            ],
        )
        self.insert_launches(
            connection,
            [
                (m.program.digest, m.digest, one, source_id)
                for m in batch
                if m.launches
                for one in m.launches
            ],
        )
        return new

    def _take_over(
        self, connection: Connection, batch: Sequence[Measurement], source_id: int, trust: int
    ) -> None:
        """Let known records of less trusted sources be this source's."""
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
        """Insert bytes that could not be understood; return how many were new."""
        kept = [quarantine_row(row) for row in rows]
        if not kept:
            return 0
        source_id, _ = self._rows.source(connection, source)
        moment = now()
        return statements.insert["quarantine"].many(
            connection, [{**row, "source_id": source_id, "created_at": moment} for row in kept]
        )

    # ------------------------------------------------------------------ words of measurements

    @retried
    def add_failures(self, failures: Iterable[tuple[Measurement, Failure]]) -> None:
        """Add what this database says of failed measurements that are stored."""
        with self._db.transaction() as connection:
            rows = [
                failure_row_of(one.program.digest, one.digest, failure, source_id)
                for one, failure, source_id in self.said(connection, failures)
            ]
            statements.insert["failure"].many(connection, rows)

    def said(
        self, connection: Connection, words: Iterable[tuple[Measurement, T]]
    ) -> Iterator[tuple[Measurement, T, int]]:
        """Yield what is said of measurements that are stored, with the source that says it.

        This database speaks for its own records in the name of their sources, and of those of
        others in the name of its tuning runs.
        """
        for measurement, word in words:
            found = statements.source_of(
                connection,
                measurement=measurement.digest,
                program=measurement.program.digest,
            ).one_or_none()
            if found is None:
                continue
            if found.store == self._db.key:
                yield measurement, word, found.source_id
            else:
                yield measurement, word, self._rows.source(connection, TUNING)[0]

    def insert_launches(self, connection: Connection, launches: Sequence[Launched]) -> int:
        """Insert launches with their sets of counters; return how many were new."""
        if not launches:
            return 0
        make = self._rows.counter_set
        sets = {
            one.counter_set.digest: make(connection, one.counter_set)
            for one in {id(one.counter_set): one for _, _, one, _ in launches}.values()
            if one.counter_set is not None
        }
        rows = [
            launch_row_of(
                program,
                measurement,
                one,
                None if one.counter_set is None else sets[one.counter_set.digest],
                source_id,
            )
            for program, measurement, one, source_id in launches
        ]
        return statements.insert["launch"].many(connection, rows)

    # ------------------------------------------------------------------ what is known

    def knows(self, measurement: Measurement) -> bool:
        """Tell whether a measurement is stored."""
        digests = {"measurement": measurement.digest, "program": measurement.program.digest}
        return bool(self._db.fetch(st.measurement_by_digest, **digests))

    def last_id(self) -> int:
        """Return the greatest id of a record, 0 where there is none."""
        return self._db.select(select(func.max(_m.id).label("id")))[0].id or 0

    def quarantined_lines(self, file: str) -> dict[int, list[int]]:
        """Return the ids of what could not be understood of a file, by number of line."""
        q = schema.quarantine.c
        lines: dict[int, list[int]] = {}
        for row in self._db.select(select(q.id, q.line).where(q.file == file)):
            lines.setdefault(row.line, []).append(row.id)
        return lines


def _measurement_id(connection: Connection, measurement: Measurement) -> int:
    """Return the id of a measurement that is there."""
    found = statements.measurement_id(
        connection, measurement=measurement.digest, program=measurement.program.digest
    )
    return int(found.scalar_one())
