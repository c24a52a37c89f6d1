"""Rows of records: the parameters of insertions, made after all rows to which they refer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import Connection, select

from .. import identity, limits
from ..errors import FormatError, UsageError
from ..launches import CounterSet, Launch
from ..programs.workload_info import signature_of
from ..records import (
    Failure,
    Measurement,
    Origin,
    Program,
    Quarantined,
    Session,
    Signature,
    Source,
    SourceKind,
    Target,
    Trust,
    Workload,
)
from ..run_times import checked_mean
from ..system.compression import compress
from . import schema, statements
from .columns import MEASUREMENT, Form

if TYPE_CHECKING:
    from ..features.base import NamedSet
    from .exchange_types import ForeignSource


#: Fields of a record that its row holds unchanged, and those that it holds as JSON: as text, or as
#: the id of a row of another table.
_PLAIN = tuple(column.stored for column in MEASUREMENT if column.form is Form.PLAIN)
_plain_of = attrgetter(*(column.name for column in MEASUREMENT if column.form is Form.PLAIN))
_JSON = [c for c in MEASUREMENT if c.form in (Form.JSON, Form.SHARED_JSON)]
_json_of = attrgetter(*(column.name for column in _JSON))
_TEXTS = tuple((c.stored, c.name if c.form is Form.SHARED_JSON else None) for c in _JSON)
_NO_TEXTS = (None,) * len(_TEXTS)
_WITHOUT_TEXTS = dict.fromkeys(stored for stored, _ in _TEXTS)


def now() -> int:
    """Return microseconds since 1970, UTC."""
    return time.time_ns() // 1000


class IdCache:
    """Row ids of shared rows by digest, filled in as transactions succeed.

    Such rows are never removed (:mod:`tunedb.storage.pruning`), so an id stays valid. A full cache
    is emptied.
    """

    _MOST = 100_000

    def __init__(self) -> None:
        # A digest covers the name of its table, so one dictionary serves all tables.
        self._known: dict[bytes, int] = {}
        self._pending: list[bytes] = []
        #: Returns an id or None; a bound method, because an import makes millions of calls.
        self.get: Callable[[bytes], int | None] = self._known.get

    def put(self, digest: bytes, id_: int) -> None:
        """Add an id from the current transaction."""
        self._known[digest] = id_
        self._pending.append(digest)

    def commit(self) -> None:
        """Keep the ids of the current transaction."""
        self._pending.clear()
        if len(self._known) > self._MOST:
            self._known.clear()

    def rollback(self) -> None:
        """Drop the ids of the current transaction: its rows do not exist."""
        for digest in self._pending:
            self._known.pop(digest, None)
        self._pending.clear()


class Rows:
    """Creates rows for a batch inside the writer's transaction.

    Parameters
    ----------
    store_key : str
        Key of the database.
    ids : IdCache
        Committed or rolled back with the transaction.
    is_owner : bool
        True if this account may set versions and scripts of workloads (:meth:`own`).
    """

    def __init__(self, store_key: str, ids: IdCache, *, is_owner: bool) -> None:
        self.ids = ids
        self._store_key = store_key
        self._is_owner = is_owner

    def _ensure(self, connection: Connection, table: str, row: Mapping[str, Any]) -> int:
        """Return the id of the row with that digest, inserting it if missing."""
        id_ = self.ids.get(row["digest"])
        if id_ is not None:
            return id_
        find, digest = statements.id_of[table], row["digest"]
        found = (
            find.tuples(connection, digest=digest)
            or statements.insert_for_id[table].tuples(connection, **row)
            # Another process has added it since the lookup.
            or find.tuples(connection, digest=digest)
        )
        id_ = int(found[0][0])
        self.ids.put(digest, id_)
        return id_

    def measurement(
        self, connection: Connection, measurement: Measurement, source_id: int, trust: int
    ) -> dict[str, Any]:
        """Return the parameters of a measurement's insertion; insert the rows it refers to."""
        program = measurement.program
        session, origin, times = measurement.session, measurement.origin, measurement.run_secs
        program_row = self._program(connection, program)
        row: dict[str, Any] = {
            "_program": program_row,
            "program": program_row["digest"],
            "workload_id": program_row["workload_id"],
            "target_id": program_row["target_id"],
            "digest": measurement.digest,
            "status": int(measurement.status),
            "run_secs": None if times is None else identity.pack_floats(times),
            "mean": checked_mean(measurement) if times else None,
            "session_id": None if session is None else self.session(connection, session),
            "source_id": source_id,
            "origin": None if origin is Origin.UNKNOWN else origin.value,
            "served": int(trust >= Trust.VERIFIED and measurement.is_valid),
            **_WITHOUT_TEXTS,
        }
        for stored, value in zip(_PLAIN, _plain_of(measurement)):  # noqa: B905 - a tenth of the time
            row[stored] = value
        texts = _json_of(measurement)
        if texts != _NO_TEXTS:
            for (stored, table), body in zip(_TEXTS, texts, strict=True):
                if body is not None:
                    row[stored] = (
                        self._interned(connection, table, body) if table else _exact(body.decode())
                    )
        return row

    def _program(self, connection: Connection, program: Program) -> dict[str, Any]:
        """Return the parameters of a program's insertion; insert the rows it refers to."""
        trace, known_id = program.trace, self.ids.get
        sketch, tail, tail_id = program.sketch_digest, program.tail_digest, None
        if tail is not None and trace.tail is not None:
            tail_id = known_id(tail) or self._body(connection, "tail", tail, trace.tail)
        return {
            "digest": program.digest,
            "workload_id": known_id(program.workload.digest)
            or self.workload(connection, program.workload),
            "target_id": known_id(program.target.digest) or self.target(connection, program.target),
            "sketch_id": known_id(sketch) or self._body(connection, "sketch", sketch, trace.sketch),
            "tail_id": tail_id,
            "decisions": trace.decisions,
        }

    def _body(self, connection: Connection, table: str, digest: bytes, body: bytes) -> int:
        """Return the id of a sketch or tail, inserting it if missing."""
        id_ = self.ids.get(digest)
        if id_ is not None:
            return id_
        return self._ensure(connection, table, {"digest": digest, "body": compress(body)})

    def _interned(self, connection: Connection, table: str, body: bytes) -> int:
        """Return the id of a shared JSON text, inserting it if missing."""
        digest = identity.shared_digest(table, body)
        id_ = self.ids.get(digest)
        if id_ is not None:
            return id_
        return self._ensure(connection, table, {"digest": digest, "body": _exact(body.decode())})

    def session(self, connection: Connection, session: Session) -> int:
        """Return the id of a session, inserting it if missing."""
        id_ = self.ids.get(session.digest)
        if id_ is not None:
            return id_
        row = {
            "digest": session.digest,
            "key": _exact(session.key),
            "started_at": session.started_at,
            "fingerprint": _exact(session.fingerprint.decode()),
        }
        return self._ensure(connection, "session", row)

    def target(self, connection: Connection, target: Target) -> int:
        """Return the id of a target, inserting it if missing."""
        id_ = self.ids.get(target.digest)
        if id_ is not None:
            return id_
        row = {
            "digest": target.digest,
            "kind": _exact(target.kind),
            "architecture": identity.clean_text(target.architecture),
            "config": _exact(target.config.decode()),
            "text": label(target.text),
        }
        return self._ensure(connection, "target", row)

    def workload(self, connection: Connection, workload: Workload) -> int:
        """Return the id of a workload, inserting it if missing."""
        id_ = self.ids.get(workload.digest)
        if id_ is not None:
            return id_
        # Checked before the signature is computed, which is expensive.
        id_ = statements.id_of["workload"](connection, digest=workload.digest).scalar()
        if id_ is not None:
            self.ids.put(workload.digest, id_)
            return int(id_)
        signature = signature_of(workload)
        row = {
            "digest": workload.digest,
            "format": _exact(workload.format),
            "body": compress(workload.body),
            "name": label(workload.name),
            "tvm_version": label(workload.tvm_version),
            "script": None,
            "function": label(signature.function),
            "arguments": arguments_text(signature),
            "family": label(signature.family),
            "flops": signature.flops,
            "created_at": now(),
        }
        return self._ensure(connection, "workload", row)

    def counter_set(self, connection: Connection, counter_set: CounterSet) -> int:
        """Return the id of a counter set, inserting it if missing."""
        id_ = self.ids.get(counter_set.digest)
        if id_ is not None:
            return id_
        row = {
            "digest": counter_set.digest,
            "tool": counter_set.tool,
            "tool_version": counter_set.tool_version,
            "compute_capability": counter_set.compute_capability,
            "counters": counter_set.body.decode(),
        }
        return self._ensure(connection, "counter_set", row)

    def own(self, connection: Connection, workload: Workload) -> None:
        """Store the version and the script that an own source gives a workload.

        The version decides whether TVM reads the graph, and the script is code that the plugin may
        run. Foreign sources therefore set neither, nor do writers of a server who do not own it.
        """
        if not self._is_owner:
            return
        id_ = self.workload(connection, workload)
        key = b"own" + workload.digest
        if self.ids.get(key) is None:
            version = label(workload.tvm_version)
            statements.correct_version(
                connection, workload=id_, version=version, store=self._store_key
            )
            self.ids.put(key, id_)
        key = b"script" + workload.digest
        if workload.script is not None and self.ids.get(key) is None:
            text = compress(workload.script.encode())
            statements.add_script(connection, workload=id_, text=text)
            self.ids.put(key, id_)

    def source(self, connection: Connection, source: Source) -> tuple[int, int]:
        """Return the id and the trust of a source, inserting it if missing.

        An existing source keeps its trust.
        """
        name = identity.clean_text(source.name)
        digest = identity.digest("source", self._store_key.encode(), name.encode())
        row = _source_row(digest, name, source.kind, source.trust, self._store_key)
        id_ = self._ensure(connection, "source", row)
        trust = connection.execute(
            select(schema.source.c.trust).where(schema.source.c.id == id_)
        ).scalar_one()
        return id_, int(trust)

    def foreign_source(self, connection: Connection, source: ForeignSource) -> int:
        """Return the id of another database's source, inserting it as foreign if missing."""
        row = _source_row(source.digest, source.name, source.kind, Trust.FOREIGN, source.store)
        return self._ensure(connection, "source", row)

    def feature_set(self, connection: Connection, feature_set: NamedSet) -> int:
        """Return the id of a feature set, inserting it if missing.

        Raises
        ------
        UsageError
            This version of the set is stored with other columns.
        """
        name, version = _exact(feature_set.name), feature_set.version
        columns = orjson.dumps(feature_set.columns).decode()
        key = b"feature_set" + orjson.dumps((name, version, columns))
        id_ = self.ids.get(key)
        if id_ is not None:
            return id_
        statements.insert["feature_set"](connection, name=name, version=version, columns=columns)
        row = statements.feature_set(connection, name=name, version=version).one()
        if row.columns != columns:
            raise UsageError(
                f"version {version} of feature set {name!r} is stored with other columns; "
                "columns may only change together with the version"
            )
        self.ids.put(key, row.id)
        return int(row.id)


def _source_row(
    digest: bytes, name: str, kind: SourceKind, trust: Trust, store: str
) -> dict[str, Any]:
    """Return the parameters of a source's insertion."""
    from .. import __version__

    return {
        "digest": digest,
        "name": name,
        "kind": kind.value,
        "trust": int(trust),
        "store": store,
        "created_at": now(),
        "tunedb_version": __version__,
        "note": None,
    }


def arguments_text(signature: Signature) -> str | None:
    """Return a signature's arguments as JSON ``[[dtype, shape], …]``."""
    if signature.arguments is None:
        return None
    return label(orjson.dumps(signature.arguments).decode())


def label(text: str | None) -> str | None:
    """Return text that is not part of an identity in a form that both databases can store."""
    return None if text is None else identity.clean_text(text)


def _exact(text: str) -> str:
    """Return text that is part of an identity; FormatError if it cannot be stored."""
    if "\0" in text:
        raise FormatError(f"NUL in {text[:80]!r}; PostgreSQL could not keep it")
    return text


def quarantine_row(row: Quarantined) -> dict[str, Any]:
    """Return the parameters of a quarantined line's insertion.

    The digest covers the stored bytes, which are cut at the limit.
    """
    file, data = identity.clean_text(row.file), row.data[: limits.MAX_QUARANTINE_BYTES]
    return {
        "digest": identity.digest("quarantine", file.encode(), identity.pack_int(row.line), data),
        "file": file,
        "line": row.line,
        "reason": identity.clean_text(row.reason),
        "data": data,
    }


def failure_row(
    program: bytes, measurement: bytes, failure: Failure, source_id: int
) -> dict[str, Any]:
    """Return the parameters of a failure's insertion; the digest covers the stored text.

    Parameters
    ----------
    program, measurement : bytes
        Digests of the failed measurement and of its program.
    failure : Failure
        Cause of the failure.
    source_id : int
        Row id of the source that states it.
    """
    seconds = failure.seconds
    if seconds is not None and not math.isfinite(seconds):
        seconds = None
    failure = replace(failure, message=identity.clean_text(failure.message), seconds=seconds)
    return {
        "digest": failure.digest(measurement),
        "measurement": measurement,
        "program": program,
        "kind": failure.kind.value,
        "phase": failure.phase.value,
        "message": failure.message,
        "seconds": failure.seconds,
        "source_id": source_id,
    }


def launch_row(
    program: bytes,
    measurement: bytes,
    launch: Launch,
    counter_set_id: int | None,
    source_id: int,
) -> dict[str, Any]:
    """Return the parameters of a launch's insertion."""
    block, grid = launch.block or (None,) * 3, launch.grid or (None,) * 3
    return {
        "digest": launch.digest(measurement),
        "measurement": measurement,
        "program": program,
        "number": launch.number,
        "kernel": launch.kernel,
        "threads": launch.threads,
        **{f"block_{axis}": extent for axis, extent in zip("xyz", block, strict=True)},
        **{f"grid_{axis}": extent for axis, extent in zip("xyz", grid, strict=True)},
        "registers": launch.registers,
        "static_shared": launch.static_shared,
        "dynamic_shared": launch.dynamic_shared,
        "seconds": launch.seconds,
        "counter_set_id": counter_set_id,
        "counters": identity.pack_floats(launch.values) if launch.values else None,
        "source_id": source_id,
    }
