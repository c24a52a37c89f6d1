"""The only writer.

Guarantees of :class:`Store`, on SQLite and PostgreSQL alike:

Durability
    When a method that writes returns, its rows survive ``kill -9`` of any process.
Atomicity
    Nobody ever sees part of a batch.
Idempotence
    A row is known by its digest; adding it again changes nothing.
Order
    ``id`` of a measurement grows in the order of insertion.
Threads and processes
    A store may be used from any thread (one at a time goes in); any number of processes may use
    one database.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from .. import limits
from ..errors import StorageError, UsageError
from ..records import (
    TUNING,
    Alias,
    Measurement,
    Quarantined,
    Session,
    Source,
    Target,
    Trust,
    Workload,
)
from ..results import AddReport
from . import approval, guards, statements, versions
from .deletion import Removing
from .derived import Derived
from .engine import (
    command_word,
    connect_reader,
    converted_errors,
    make_concurrent,
    make_engine,
    parse_url,
    show_url,
    sqlite_path,
)
from .guards import Guards
from .learnt import Learnt
from .merging import Merging
from .network_filesystem import refuse_network_file
from .queries import Query
from .retry import patiently
from .rows import Rows, failure_row_of, label, now, quarantine_row
from .trust import Governing

_log = logging.getLogger("tunedb")


class Store(Derived, Learnt, Governing, Merging, Removing):
    """A database of tuning records (see the module for its guarantees).

    Parameters
    ----------
    url : str
        See :func:`tunedb.open`.
    create : bool
        Make what is missing.
    read_only : bool
        Never write.

    Attributes
    ----------
    query : Query
        Everything that reads.
    location : str
        The database for messages: a path, or a URL without its password.
    """

    #: Seconds for which a call to a server that went away is made again; see :meth:`be_patient`.
    patience: float = 0

    def __init__(
        self, url: str | Path | URL, *, create: bool = True, read_only: bool = False
    ) -> None:
        self.url = parse_url(url)
        self.location = show_url(self.url)
        self.read_only = read_only
        self.lock = threading.RLock()
        self._writer: Connection | None = None
        self._closed = False
        if not read_only:
            refuse_network_file(sqlite_path(self.url))
        self._is_made_here = False
        if versions.check_file(self.url, create=create and not read_only) and (
            self.url.database != ":memory:"
        ):
            self._is_made_here = versions.create_file(self.url)
        self._engine = make_engine(self.url, read_only=read_only)
        try:
            made = versions.prepare(self._engine, self.url, create=create and not read_only)
            self._guards = Guards(is_owner=True)
            if not read_only:
                make_concurrent(self._engine, self.location)
                with converted_errors(self.location), connect_reader(self._engine) as connection:
                    self._guards = guards.require(connection, self.location)
            self.query = Query(self._connect_reader, self.lock, self.location)
            self._rows = Rows(self.query.store_key, is_owner=self._guards.is_owner)
            # An empty file of somebody else's stays his, whoever fills it.
            self._is_made_here |= made and approval.is_own_file(self.url)
            if self._is_made_here and self.url.database != ":memory:":
                self._approve()
        except BaseException:
            self._engine.dispose()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.location!r})"

    def _connect_reader(self) -> Connection:
        """Return a connection that reads."""
        self._check_open()
        return connect_reader(self._engine)

    def _check_open(self) -> None:
        """Raise UsageError for a store that was closed."""
        if self._closed:
            raise UsageError(f"{self.location}: the store is closed; open it again")

    def _approve(self) -> None:
        """Approve the database that was made just now."""
        try:
            approval.approve(self.url, self.query.store_key)
        except StorageError as error:
            word = command_word(self.url)
            _log.warning(
                "%s: created, but not approved: %s; later run: tunedb db trust %s",
                self.location,
                error,
                word,
            )

    def require_approved(self) -> None:
        """Raise unless TVM, or a library that believes its input, may get what is stored.

        Raises
        ------
        ApprovalError
            The user has neither made the database nor approved it.
        """
        if not self._is_made_here:
            approval.require(self.url, self.query.store_key)

    def be_patient(self, seconds: float) -> None:
        """Wait for a server that goes away, and carry on when it is back.

        What reads, and what adds records, workloads and sessions, is tried again for so many
        seconds before it raises :class:`UnreachableError`. A transaction whose end nobody heard of
        may thus be made twice, which adds nothing.
        """
        self.patience = self.query.patience = seconds

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        with self.lock, converted_errors(self.location):
            self._closed = True
            self.query.close()
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            self._engine.dispose()

    # ------------------------------------------------------------------ transactions

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Yield the writer's connection inside one write transaction."""
        if self.read_only:
            raise StorageError(f"{self.location}: it was opened read-only")
        with self.lock, converted_errors(self.location):
            self._check_open()
            if self._writer is None:
                self._writer = self._engine.connect()
            try:
                with self._writer.begin():
                    yield self._writer
                self._rows.ids.commit()
            except BaseException:
                self._rows.ids.rollback()
                # A connection that broke is not used again.
                if self._writer is not None and self._writer.invalidated:
                    self._writer.close()
                    self._writer = None
                raise

    # ------------------------------------------------------------------ adding

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
            ids, fresh = self.add_batch(batch, source)
            new += fresh
            known += len(ids) - fresh
        rows = list(quarantined)
        if rows:
            self.quarantine(rows, source)
        return AddReport(new=new, known=known)

    @patiently
    def add_batch(self, batch: Sequence[Measurement], source: Source) -> tuple[list[int], int]:
        """Add measurements in one transaction.

        Returns
        -------
        ids : list of int
            The measurement's id for each of the batch, in its order.
        new : int
            How many were not known before.
        """
        with self._transaction() as connection:
            last = statements.last_measurement(connection).scalar() or 0
            self._insert(connection, batch, source)
            after: Sequence[Any] = statements.measurements_after(connection, id=last).all()
            added = {digest: id_ for id_, digest in after}
            ids = [added.get(m.digest) or _measurement_id(connection, m) for m in batch]
        return ids, len(added.keys() & {m.digest for m in batch})

    def import_batch(
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
        with self._transaction() as connection:
            last = statements.last_measurement(connection).scalar() or 0
            number = self._insert(connection, batch, source) if batch else 0
            for workload in workloads:
                self._rows.workload(connection, workload)
            self._insert_quarantined(connection, quarantined, source)
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
        self._insert_launches(
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

    # ------------------------------------------------------------------ everything else

    @patiently
    def add_workload(
        self, workload: Workload, aliases: Iterable[Alias] = (), source: Source = TUNING
    ) -> int:
        """Add a workload and the names under which it is known; return its id.

        A workload that is known without its script, because it was imported, gets it.

        Parameters
        ----------
        workload : Workload
            What to add.
        aliases : iterable of Alias
            Its names.
        source : Source
            The source of this database that gives these names.
        """
        with self._transaction() as connection:
            id_ = self._rows.workload(connection, workload)
            self._rows.own(connection, workload)
            self._insert_aliases(connection, id_, aliases, source)
        return id_

    @patiently
    def add_aliases(self, workload_id: int, aliases: Iterable[Alias], source: Source) -> None:
        """Add names of a stored workload, of which nothing else is said.

        Parameters
        ----------
        workload_id : int
            Local number of the workload.
        aliases : iterable of Alias
            Its names.
        source : Source
            The source of this database that gives them.
        """
        with self._transaction() as connection:
            self._insert_aliases(connection, workload_id, aliases, source)

    def _insert_aliases(
        self, connection: Connection, workload_id: int, aliases: Iterable[Alias], source: Source
    ) -> None:
        """Insert the names that a source of this database gives a workload."""
        found = list(aliases)
        if not found:
            return
        source_id, _ = self._rows.source(connection, source)
        statements.insert["workload_alias"].many(
            connection,
            [
                {
                    "scheme": label(alias.scheme),
                    "key": label(alias.key),
                    "workload_id": workload_id,
                    "source_id": source_id,
                }
                for alias in found
            ],
        )

    @patiently
    def add_target(self, target: Target) -> int:
        """Add a target; return its id."""
        with self._transaction() as connection:
            return self._rows.target(connection, target)

    @patiently
    def add_session(self, session: Session) -> None:
        """Add a session that has no measurements (yet)."""
        with self._transaction() as connection:
            self._rows.session(connection, session)

    def quarantine(self, rows: Iterable[Quarantined], source: Source) -> int:
        """Keep bytes that could not be understood; return how many were new."""
        with self._transaction() as connection:
            return self._insert_quarantined(connection, rows, source)

    def release(self, ids: Iterable[int]) -> None:
        """Take rows out of quarantine, because their bytes were understood meanwhile."""
        with self._transaction() as connection:
            statements.release.many(connection, [{"quarantined": id_} for id_ in ids])

    def _insert_quarantined(
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


def _measurement_id(connection: Connection, measurement: Measurement) -> int:
    """Return the id of a measurement that is there."""
    found = statements.measurement_id(
        connection, measurement=measurement.digest, program=measurement.program.digest
    )
    return int(found.scalar_one())
