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

import math
import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Table, bindparam, case, exists, literal_column, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import Executable

from . import identity, limits, schema, versions
from .compression import compress
from .engine import Prepared, connect_reader, converted_errors, make_engine, parse_url, show_url
from .errors import FormatError, StorageError, UsageError
from .query import Query
from .records import (
    AddReport,
    Alias,
    Failure,
    Measurement,
    Quarantined,
    Session,
    Source,
    Status,
    Target,
    Trust,
    Workload,
)

#: TVM's sentinel for "no time" (``src/s_tir/meta_schedule/database``: SortTuningRecord).
NO_TIME = 1e10

_INSERT = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def _insert(table: Table, source: Executable | None = None) -> Prepared:
    """Return ``INSERT … ON CONFLICT DO NOTHING`` of all columns but ``id``, per dialect."""
    statements: dict[str, Executable] = {}
    columns = [column for column in table.columns if column.name != "id"]
    for name, insert in _INSERT.items():
        statement: Any = insert(table)
        if source is None:
            statement = statement.values({c.name: bindparam(c.name, type_=c.type) for c in columns})
        else:
            statement = statement.from_select([c.name for c in columns], source)
        statements[name] = statement.on_conflict_do_nothing()
    return Prepared(statements)


def _insert_measurement() -> Prepared:
    """Return the insertion that finds its program by digest and derives ``served``."""
    m, p, r = schema.measurement.c, schema.program.c, schema.retraction.c
    given: dict[str, Any] = {c.name: bindparam(c.name, type_=c.type) for c in m}
    retracted = exists(
        select(literal_column("1")).where(
            r.subject == literal_column("'measurement'"),
            r.digest == bindparam("digest", type_=m.digest.type),
        )
    )
    columns = {
        **given,
        "program_id": p.id,
        "workload_id": p.workload_id,
        "target_id": p.target_id,
        "served": case((retracted, literal_column("0")), else_=given["served"]),
    }
    source = select(*(columns[c.name] for c in m if c.name != "id")).where(
        p.digest == bindparam("program", type_=p.digest.type)
    )
    return _insert(schema.measurement, source)


def _insert_failure() -> Prepared:
    """Return the insertion that finds its measurement by digest."""
    f, m = schema.failure.c, schema.measurement.c
    given: dict[str, Any] = {c.name: bindparam(c.name, type_=c.type) for c in f}
    columns = {**given, "measurement_id": m.id}
    source = select(*(columns[c.name] for c in f if c.name != "id")).where(
        m.digest == bindparam("measurement", type_=m.digest.type)
    )
    return _insert(schema.failure, source)


_insert_rows = {
    table.name: _insert(table)
    for table in (
        schema.source,
        schema.session,
        schema.workload,
        schema.workload_alias,
        schema.target,
        schema.sketch,
        schema.tail,
        schema.args_info,
        schema.program,
        schema.quarantine,
        schema.retraction,
    )
}
_insert_rows["measurement"] = _insert_measurement()
_insert_rows["failure"] = _insert_failure()

_id_of = {
    table.name: Prepared(
        select(table.c.id).where(table.c.digest == bindparam("digest", type_=table.c.digest.type))
    )
    for table in schema.metadata.sorted_tables
    if "digest" in table.c and "id" in table.c
}
_last_measurement = Prepared(
    select(schema.measurement.c.id)
    .order_by(schema.measurement.c.id.desc())
    .limit(literal_column("1"))
)
_measurements_after = Prepared(
    select(schema.measurement.c.id, schema.measurement.c.digest).where(
        schema.measurement.c.id > bindparam("id", type_=schema.Int)
    )
)
_stop_serving = Prepared(
    update(schema.measurement)
    .where(schema.measurement.c.digest == bindparam("measurement", type_=schema.Blob))
    .values(served=0)
)


def _now() -> int:
    """Return microseconds since 1970, UTC."""
    return time.time_ns() // 1000


def mean_of(run_secs: Sequence[float]) -> float:
    """Return the mean as TVM computes it: summed from left to right in double precision.

    Python's ``sum`` compensates rounding since 3.12, so it could order two records differently
    (``src/s_tir/meta_schedule/database/database_utils.cc``).
    """
    total = 0.0
    for value in run_secs:
        total += value
    return total / len(run_secs)


def status_of(run_secs: Sequence[float] | None) -> Status:
    """Return whether run times count in TVM's eyes: some time is not the sentinel 1e10."""
    if run_secs and any(value != NO_TIME for value in run_secs):
        return Status.OK
    return Status.FAILED


class _Ids:
    """Digest → id of rows that many records share, filled in as transactions succeed.

    Rows are never deleted, so an id stays right; the memory is bounded by starting anew.
    """

    _MOST = 100_000

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], int] = {}
        self._pending: dict[tuple[str, bytes], int] = {}

    def get(self, table: str, digest: bytes) -> int | None:
        key = (table, digest)
        return self._known.get(key) or self._pending.get(key)

    def put(self, table: str, digest: bytes, id_: int) -> None:
        self._pending[table, digest] = id_

    def commit(self) -> None:
        if len(self._known) > self._MOST:
            self._known.clear()
        self._known.update(self._pending)
        self._pending.clear()

    def rollback(self) -> None:
        self._pending.clear()


class Store:
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

    def __init__(self, url: str | Path, *, create: bool = True, read_only: bool = False) -> None:
        self.url = parse_url(url)
        self.location = show_url(self.url)
        self.read_only = read_only
        self.lock = threading.RLock()
        self._ids = _Ids()
        self._writer: Connection | None = None
        self._closed = False
        if versions.check_file(self.url, create=create and not read_only) and (
            self.url.database != ":memory:"
        ):
            versions.create_file(self.url)
        self._engine = make_engine(self.url, read_only=read_only)
        try:
            versions.prepare(self._engine, self.url, create=create and not read_only)
            self.query = Query(self._connect_reader, self.lock, self.location)
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
                self._ids.commit()
            except BaseException:
                self._ids.rollback()
                # A connection that broke is not used again.
                if self._writer is not None and self._writer.invalidated:
                    self._writer.close()
                    self._writer = None
                raise

    def _ensure(self, connection: Connection, table: str, row: Mapping[str, Any]) -> int:
        """Return the id of the row with that digest, inserting it where it is missing."""
        id_ = self._ids.get(table, row["digest"])
        if id_ is not None:
            return id_
        found = _id_of[table](connection, digest=row["digest"]).scalar()
        if found is None:
            _insert_rows[table](connection, **row)
            found = _id_of[table](connection, digest=row["digest"]).scalar_one()
        self._ids.put(table, row["digest"], found)
        return int(found)

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

    def add_batch(self, batch: Sequence[Measurement], source: Source) -> tuple[list[int], int]:
        """Add measurements in one transaction.

        Returns
        -------
        ids : list of int
            The measurement's id for each of the batch, in its order.
        new : int
            How many were not known before.
        """
        for measurement in batch:
            _check_times(measurement)
        with self._transaction() as connection:
            source_id, trust = self._source(connection, source)
            rows = [self._measurement_row(connection, m, source_id, trust) for m in batch]
            programs = {row["program"]: row for row in rows}
            _insert_rows["program"].many(connection, [row["_program"] for row in programs.values()])
            last = _last_measurement(connection).scalar() or 0
            _insert_rows["measurement"].many(connection, rows)
            added = {row.digest: row.id for row in _measurements_after(connection, id=last)}
            ids = [self._measurement_id(connection, m.digest, added) for m in batch]
            failures = [m for m in batch if m.failure is not None]
            _insert_rows["failure"].many(
                connection, [_failure_row(m.digest, m.failure) for m in failures if m.failure]
            )
        return ids, len(added.keys() & {m.digest for m in batch})

    def _measurement_id(
        self, connection: Connection, digest: bytes, added: Mapping[bytes, int]
    ) -> int:
        """Return the id of a measurement that this transaction added or that was known."""
        id_ = added.get(digest)
        if id_ is None:
            id_ = int(_id_of["measurement"](connection, digest=digest).scalar_one())
        return id_

    def _measurement_row(
        self, connection: Connection, measurement: Measurement, source_id: int, trust: int
    ) -> dict[str, Any]:
        """Return the parameters of the measurement's insertion, after all that it refers to."""
        program = measurement.program
        session, args = measurement.session, measurement.args_info
        times = measurement.run_secs
        mean = mean_of(times) if times else None
        return {
            "_program": self._program_row(connection, measurement),
            "program": program.digest,
            "digest": measurement.digest,
            "status": int(measurement.status),
            "run_secs": None if times is None else identity.pack_floats(times),
            "mean": mean,
            "median": statistics.median(times) if times else None,
            "minimum": min(times) if times else None,
            "measured_at": measurement.measured_at,
            "occurrence": measurement.occurrence,
            "session_id": None if session is None else self._session(connection, session),
            "source_id": source_id,
            "args_info_id": None if args is None else self._args_info(connection, args),
            "origin": measurement.origin.value,
            "donor": measurement.donor,
            "served": int(measurement.is_valid and trust >= Trust.VERIFIED),
        }

    def _program_row(self, connection: Connection, measurement: Measurement) -> dict[str, Any]:
        """Return the parameters of the program's insertion, after all that it refers to."""
        program = measurement.program
        tail, tail_id = program.tail_digest, None
        if tail is not None and program.trace.tail is not None:
            tail_id = self._body(connection, "tail", tail, program.trace.tail)
        return {
            "digest": program.digest,
            "workload_id": self._workload(connection, program.workload),
            "target_id": self._target(connection, program.target),
            "sketch_id": self._body(
                connection, "sketch", program.sketch_digest, program.trace.sketch
            ),
            "tail_id": tail_id,
            "decisions": _exact(program.trace.decisions.decode()),
        }

    def _body(self, connection: Connection, table: str, digest: bytes, body: bytes) -> int:
        """Return the id of a sketch or tail."""
        id_ = self._ids.get(table, digest)
        if id_ is not None:
            return id_
        return self._ensure(connection, table, {"digest": digest, "body": compress(body)})

    def _args_info(self, connection: Connection, body: bytes) -> int:
        digest = identity.digest("args_info", body)
        row = {"digest": digest, "body": _exact(body.decode())}
        return self._ensure(connection, "args_info", row)

    def _session(self, connection: Connection, session: Session) -> int:
        row = {
            "digest": session.digest,
            "key": _exact(session.key),
            "started_at": session.started_at,
            "fingerprint": _exact(session.fingerprint.decode()),
        }
        return self._ensure(connection, "session", row)

    def _target(self, connection: Connection, target: Target) -> int:
        id_ = self._ids.get("target", target.digest)
        if id_ is not None:
            return id_
        row = {
            "digest": target.digest,
            "kind": _exact(target.kind),
            "architecture": identity.clean_text(target.architecture),
            "config": _exact(target.config.decode()),
            "text": _label(target.text),
        }
        return self._ensure(connection, "target", row)

    def _workload(self, connection: Connection, workload: Workload) -> int:
        id_ = self._ids.get("workload", workload.digest)
        if id_ is not None:
            return id_
        row = {
            "digest": workload.digest,
            "format": _exact(workload.format),
            "body": compress(workload.body),
            "name": _label(workload.name),
            "tvm_version": _label(workload.tvm_version),
            "script": None if workload.script is None else compress(workload.script.encode()),
            "created_at": _now(),
        }
        return self._ensure(connection, "workload", row)

    def _source(self, connection: Connection, source: Source) -> tuple[int, int]:
        """Return the id and the trust of a source; one that exists keeps its trust."""
        from . import __version__

        name = identity.clean_text(source.name)
        digest = identity.digest("source", self.query.store_key.encode(), name.encode())
        row = {
            "digest": digest,
            "name": name,
            "kind": source.kind.value,
            "trust": int(source.trust),
            "store": self.query.store_key,
            "created_at": _now(),
            "tunedb_version": __version__,
            "note": None,
        }
        id_ = self._ensure(connection, "source", row)
        trust = connection.execute(
            select(schema.source.c.trust).where(schema.source.c.id == id_)
        ).scalar_one()
        return id_, int(trust)

    # ------------------------------------------------------------------ everything else

    def add_workload(self, workload: Workload, aliases: Iterable[Alias] = ()) -> int:
        """Add a workload and the names under which it is known; return its id."""
        with self._transaction() as connection:
            id_ = self._workload(connection, workload)
            _insert_rows["workload_alias"].many(
                connection,
                [
                    {"scheme": _label(a.scheme), "key": _label(a.key), "workload_id": id_}
                    for a in aliases
                ],
            )
        return id_

    def add_target(self, target: Target) -> int:
        """Add a target; return its id."""
        with self._transaction() as connection:
            return self._target(connection, target)

    def add_failures(self, failures: Iterable[tuple[Measurement, Failure]]) -> None:
        """Add what was learnt later about measurements that are stored."""
        rows = [_failure_row(measurement.digest, failure) for measurement, failure in failures]
        with self._transaction() as connection:
            _insert_rows["failure"].many(connection, rows)

    def quarantine(self, rows: Iterable[Quarantined], source: Source) -> int:
        """Keep bytes that could not be understood; return how many were new."""
        now = _now()
        with self._transaction() as connection:
            source_id, _ = self._source(connection, source)
            before = self.query.count_quarantined(connection)
            _insert_rows["quarantine"].many(
                connection,
                [
                    {**_quarantine_row(row), "source_id": source_id, "created_at": now}
                    for row in rows
                ],
            )
            return self.query.count_quarantined(connection) - before

    def retract(self, ids: Iterable[int], reason: str) -> int:
        """Take records back: they stay stored and are never served again.

        Parameters
        ----------
        ids : iterable of int
            Ids of records.
        reason : str
            Why; kept with the retraction.

        Returns
        -------
        int
            How many were not retracted before.

        Raises
        ------
        NotFoundError
            An id that does not exist; nothing is retracted then.
        """
        digests = [self.query.digest_of(id_) for id_ in ids]
        if not reason:
            raise UsageError("a retraction needs a reason")
        reason = identity.clean_text(reason)
        now = _now()
        with self._transaction() as connection:
            before = self.query.count_retracted(connection)
            _insert_rows["retraction"].many(
                connection,
                [
                    {"subject": "measurement", "digest": d, "reason": reason, "created_at": now}
                    for d in digests
                ],
            )
            _stop_serving.many(connection, [{"measurement": digest} for digest in digests])
            return self.query.count_retracted(connection) - before


def _label(text: str | None) -> str | None:
    """Return a text that is no part of an identity as both databases can hold it."""
    return None if text is None else identity.clean_text(text)


def _exact(text: str) -> str:
    """Return a text that is part of an identity, or raise FormatError where it cannot be kept."""
    if "\0" in text:
        raise FormatError(f"NUL in {text[:80]!r}; PostgreSQL could not keep it")
    return text


def _quarantine_row(row: Quarantined) -> dict[str, Any]:
    """Return the parameters of a quarantined line's insertion; its digest is of what is kept."""
    file, data = identity.clean_text(row.file), row.data[: limits.MAX_QUARANTINE_BYTES]
    return {
        "digest": identity.digest("quarantine", file.encode(), identity.pack_int(row.line), data),
        "file": file,
        "line": row.line,
        "reason": identity.clean_text(row.reason),
        "data": data,
    }


def _failure_row(measurement: bytes, failure: Failure) -> dict[str, Any]:
    """Return the parameters of a failure's insertion; its digest is of what is kept."""
    seconds = failure.seconds
    if seconds is not None and not math.isfinite(seconds):
        seconds = None
    failure = replace(failure, message=identity.clean_text(failure.message), seconds=seconds)
    return {
        "digest": failure.digest(measurement),
        "measurement": measurement,
        "kind": failure.kind.value,
        "phase": failure.phase.value,
        "message": failure.message,
        "seconds": failure.seconds,
    }


def _check_times(measurement: Measurement) -> None:
    """Raise FormatError for a time that no clock can give."""
    times = measurement.run_secs
    if not times:
        return
    if len(times) > limits.MAX_RUN_SECS:
        raise FormatError(f"{len(times)} run times in one record are over the limit")
    for value in times:
        if not math.isfinite(value):
            raise FormatError(
                f"run time {value} of workload {measurement.program.workload.name!r} "
                "is not finite; measure the program again"
            )
    if not math.isfinite(mean_of(times)):
        raise FormatError("the mean of the run times is not finite; measure the program again")
