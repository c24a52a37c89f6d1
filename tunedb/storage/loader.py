"""Conversion of rows to objects, with caches of objects that many rows share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import orjson
from sqlalchemy import select

from .. import identity
from ..errors import NotFoundError
from ..programs.workload_info import signature_of
from ..records import (
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Session,
    Signature,
    Source,
    SourceKind,
    Status,
    Target,
    Trace,
    Trust,
    Workload,
)
from ..results import Record, StoredProgram
from . import columns, schema
from . import read_statements as st
from .columns import Form
from .database import Database

T = TypeVar("T")

#: Fields of a record that need no other row; JSON fields are text in a row.
_TEXTS = columns.names_of(Form.JSON, Form.SHARED_JSON)
_FIELDS = (*columns.names_of(Form.PLAIN), *_TEXTS)
_fields_of = attrgetter(*_FIELDS)

#: Sizes of the caches, in rows; a sketch and its tail have 2 KB.
_CACHE_ROWS = 4096
_CACHE_WORKLOADS = 64

#: Values in one ``IN (…)``: SQLite takes 32,766 parameters.
_BATCH = 500


def in_batches(values: Sequence[int]) -> Iterable[Sequence[int]]:
    """Yield values in batches that fit one statement."""
    return (values[start : start + _BATCH] for start in range(0, len(values), _BATCH))


class Cache(OrderedDict[int, T]):
    """A mapping that drops its least recently used value.

    Threads may share one without a lock, which ``cachetools.LRUCache`` does not allow.
    """

    def __init__(self, max_size: int = _CACHE_ROWS) -> None:
        super().__init__()
        self._max_size = max_size

    def fetch(self, key: int, make: Callable[[int], T]) -> T:
        """Return the value of `key`, creating it if missing."""
        # Another thread may remove the key between any two steps.
        try:
            value = self[key]
            self.move_to_end(key)
        except KeyError:
            pass
        else:
            return value
        value = self[key] = make(key)
        if len(self) > self._max_size:
            self.popitem(last=False)
        return value


class Loader:
    """Converts rows to objects; programs share those of their workload, target, sketch and tail.

    Attributes
    ----------
    bodies : dict
        Caches of bodies by row id, for ``sketch`` and ``tail``.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._workloads: Cache[Workload] = Cache(_CACHE_WORKLOADS)
        self._signed_workloads: Cache[tuple[Workload, Signature]] = Cache(_CACHE_WORKLOADS)
        # 32 bytes each, kept when a body is dropped.
        self._workload_digests: dict[int, tuple[bytes, bytes]] = {}
        self._targets: Cache[Target] = Cache()
        self._sessions: Cache[Session] = Cache()
        self._sources: Cache[Source] = Cache()
        self.bodies: dict[str, Cache[bytes]] = {"sketch": Cache(), "tail": Cache()}

    def workload(self, id_: int) -> Workload:
        """Return a workload by its id."""
        return self._workloads.fetch(id_, self._load_workload)

    def _load_workload(self, id_: int) -> Workload:
        row = self._db.row_by_id("workload", id_)
        script = None if row.script is None else self._db.unpack(row.script).decode()
        workload = Workload(
            row.format, self._db.unpack(row.body), row.name, row.tvm_version, script
        )
        self._workload_digests[id_] = (workload.digest, bytes(row.digest))
        return workload

    def workload_digests(self, id_: int) -> tuple[bytes, bytes]:
        """Return the digest computed from a workload's body, and the digest stored in its row."""
        if id_ not in self._workload_digests:
            self._load_workload(id_)
        return self._workload_digests[id_]

    def workload_with_signature(self, id_: int) -> tuple[Workload, Signature]:
        """Return a workload and its signature."""
        return self._signed_workloads.fetch(id_, self._load_workload_with_signature)

    def _load_workload_with_signature(self, id_: int) -> tuple[Workload, Signature]:
        return self.workload(id_), self.signature(self._db.row_by_id("workload", id_))

    def signature(self, row: Any) -> Signature:
        """Return a row's signature; rows of revision 0001 lack it, so it is computed."""
        if (row.function, row.arguments, row.family, row.flops) == (None, None, None, None):
            return signature_of(self.workload(row.id))
        arguments = None
        if row.arguments is not None:
            arguments = tuple((d, tuple(shape)) for d, shape in orjson.loads(row.arguments))
        return Signature(row.function, arguments, row.family, row.flops)

    def target(self, id_: int) -> Target:
        """Return a target by its id."""

        def load(key: int) -> Target:
            row = self._db.row_by_id("target", key)
            return Target(row.kind, row.config.encode(), row.text)

        return self._targets.fetch(id_, load)

    def session(self, id_: int) -> Session:
        """Return a session by its id."""

        def load(key: int) -> Session:
            row = self._db.row_by_id("session", key)
            return Session(row.key, row.started_at, row.fingerprint.encode())

        return self._sessions.fetch(id_, load)

    def all_sessions(self) -> list[tuple[int, Session]]:
        """Return all sessions with their ids, in the order of their start."""
        s = schema.session.c
        rows = self._db.select(select(schema.session).order_by(s.started_at, s.id))
        by_id = {row.id: row for row in rows}

        def make(id_: int) -> Session:
            row = by_id[id_]
            return Session(row.key, row.started_at, row.fingerprint.encode())

        return [(id_, self._sessions.fetch(id_, make)) for id_ in by_id]

    def source(self, id_: int) -> Source:
        """Return a source by its id, with its trust at the time of the first read."""
        return self._sources.fetch(id_, self.read_source)

    def read_source(self, id_: int) -> Source:
        """Return a source by its id, with its present trust."""
        row = self._db.row_by_id("source", id_)
        return Source(row.name, SourceKind(row.kind), Trust(row.trust))

    def forget_sources(self) -> None:
        """Clear the cache of sources, because their trust has changed."""
        self._sources.clear()

    def body(self, table: str, id_: int) -> bytes:
        """Return the body of a sketch or tail."""
        return self.bodies[table].fetch(
            id_, lambda k: self._db.unpack(self._db.row_by_id(table, k).body)
        )

    def program(self, row: Any) -> Program:
        """Return the program of a row of table program."""
        tail = None if row.tail_id is None else self.body("tail", row.tail_id)
        trace = Trace(self.body("sketch", row.sketch_id), tail, bytes(row.decisions))
        return Program(self.workload(row.workload_id), self.target(row.target_id), trace)

    def programs(self, rows: Sequence[Any]) -> list[StoredProgram]:
        """Return the programs of rows of table program."""
        workloads = {i: self.workload_with_signature(i) for i in {r[2] for r in rows}}
        targets = {i: self.target(i) for i in {r[3] for r in rows}}
        sketches = {i: self.body("sketch", i) for i in {r[4] for r in rows}}
        tails: dict[int | None, bytes | None] = {None: None}
        tails.update({i: self.body("tail", i) for i in {r[5] for r in rows} - {None}})
        return [
            StoredProgram(
                id_,
                workload,
                *workloads[workload],
                target,
                targets[target],
                sketch,
                tail,
                Trace(sketches[sketch], tails[tail], bytes(decisions)),
            )
            for id_, _, workload, target, sketch, tail, decisions in rows
        ]

    def record(self, row: Any) -> Record:
        """Return the record of a row of :func:`st.record_query`."""
        failure = None
        if row.failure_kind is not None:
            failure = Failure(
                FailureKind(row.failure_kind), Phase(row.phase), row.message, row.seconds
            )
        measurement = Measurement(
            program=self.program(row),
            run_secs=None if row.run_secs is None else identity.unpack_floats(row.run_secs),
            status=Status(row.status),
            session=None if row.session_id is None else self.session(row.session_id),
            origin=Origin.UNKNOWN if row.origin is None else Origin(row.origin),
            failure=failure,
            **_plain_of(row),
        )
        source = self.source(row.source_id)
        return Record(
            id=row.id,
            workload_id=row.workload_id,
            target_id=row.target_id,
            measurement=measurement,
            source=source,
            mean=row.mean,
            retracted=bool(row.retracted),
        )

    def record_by_id(self, id_: int) -> Record:
        """Return a record by its id.

        Raises
        ------
        NotFoundError
            The database has no such record.
        """
        rows = self._db.fetch(st.record_by_id, id=id_)
        if not rows:
            raise NotFoundError(f"{self._db.location}: no record {id_}")
        return self.record(rows[0])

    def records_by_id(self, ids: Sequence[int]) -> list[Record]:
        """Return records in the order of their ids; missing ones are omitted.

        Ten records take half of the time of ten calls of :meth:`record_by_id`.
        """
        rows: dict[int, Any] = {}
        for batch in in_batches(ids):
            rows.update({row.id: row for row in self._db.select(st.records_by_id, ids=batch)})
        return [self.record(rows[id_]) for id_ in ids if id_ in rows]


def _plain_of(row: Any) -> dict[str, Any]:
    """Return the fields of a record that need no other row, of a :func:`st.record_query`."""
    fields = dict(zip(_FIELDS, _fields_of(row)))  # noqa: B905 - of a hot path
    for name in _TEXTS:
        if fields[name] is not None:
            fields[name] = fields[name].encode()
    return fields
