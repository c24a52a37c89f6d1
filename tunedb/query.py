"""The only reader with SQL.

Every method is one statement, so it sees one snapshot, or says that it is made of several.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

import orjson
from sqlalchemy import Connection, Select, bindparam, case, func, literal_column, select

from . import identity, schema
from .compression import decompress
from .engine import Prepared, converted_errors
from .errors import NotFoundError, SchemaError, UsageError
from .records import (
    Alias,
    Answer,
    Counts,
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Quarantined,
    Record,
    Session,
    Source,
    SourceKind,
    Status,
    Target,
    TargetSummary,
    Trace,
    Trust,
    Workload,
    WorkloadSummary,
)

T = TypeVar("T")

_m, _p, _f = schema.measurement.c, schema.program.c, schema.failure.c

#: Rows fetched at a time by iterating methods.
_PAGE = 500

#: Bodies (workloads, sketches, tails) kept in memory; a sketch and its tail have 2 KB.
_CACHE_ROWS = 4096
_CACHE_WORKLOADS = 64


def _parameter(name: str, column: Any = _m.id) -> Any:
    return bindparam(name, type_=column.type)


_top_k = Prepared(
    select(_m.mean, _m.id)
    .where(
        _m.workload_id == _parameter("workload"),
        _m.target_id == _parameter("target"),
        _m.served == literal_column("1"),
    )
    .order_by(_m.mean, _m.id)
    .limit(_parameter("k"))
)


def _record_query() -> Select[Any]:
    """Return the query whose rows :meth:`Query._record` understands."""
    retracted = (
        select(schema.retraction.c.reason)
        .where(
            schema.retraction.c.subject == literal_column("'measurement'"),
            schema.retraction.c.digest == _m.digest,
        )
        .exists()
    )
    # What was learnt last says most.
    other = schema.failure.alias().c
    last_failure = select(func.max(other.id)).where(other.measurement_id == _m.id).scalar_subquery()
    joined = (
        schema.measurement.join(schema.program, _p.id == _m.program_id)
        .outerjoin(schema.args_info, schema.args_info.c.id == _m.args_info_id)
        .outerjoin(schema.failure, _f.id == last_failure)
    )
    return select(
        _m.id,
        _m.digest,
        _p.workload_id,
        _p.target_id,
        _p.sketch_id,
        _p.tail_id,
        _p.decisions,
        _m.status,
        _m.run_secs,
        _m.mean,
        _m.measured_at,
        _m.occurrence,
        _m.session_id,
        _m.source_id,
        schema.args_info.c.body.label("args_info"),
        _m.origin,
        _m.donor,
        _f.kind.label("failure_kind"),
        _f.phase,
        _f.message,
        _f.seconds,
        case((retracted, literal_column("1")), else_=literal_column("0")).label("retracted"),
    ).select_from(joined)


_record_by_id = Prepared(_record_query().where(_m.id == _parameter("id")))
_answer = Prepared(
    select(
        _m.workload_id,
        _m.target_id,
        _m.run_secs,
        _p.sketch_id,
        schema.sketch.c.body.label("sketch"),
        _p.tail_id,
        schema.tail.c.body.label("tail"),
        _p.decisions,
        schema.args_info.c.body.label("args_info"),
    )
    .select_from(
        schema.measurement.join(schema.program, _p.id == _m.program_id)
        .join(schema.sketch, schema.sketch.c.id == _p.sketch_id)
        .outerjoin(schema.tail, schema.tail.c.id == _p.tail_id)
        .outerjoin(schema.args_info, schema.args_info.c.id == _m.args_info_id)
    )
    .where(_m.id == _parameter("id"))
)
_by_id = {
    table.name: Prepared(select(table).where(table.c.id == _parameter("id")))
    for table in (
        schema.workload,
        schema.target,
        schema.sketch,
        schema.tail,
        schema.session,
        schema.source,
    )
}
_aliases_of = Prepared(
    select(schema.workload_alias.c.scheme, schema.workload_alias.c.key).where(
        schema.workload_alias.c.workload_id == _parameter("id")
    )
)
_workloads_by_alias = Prepared(
    select(schema.workload_alias.c.workload_id)
    .where(
        schema.workload_alias.c.scheme == bindparam("scheme", type_=schema.Text),
        schema.workload_alias.c.key == bindparam("key", type_=schema.Text),
    )
    .order_by(schema.workload_alias.c.workload_id)
)
_workload_by_digest = Prepared(
    select(schema.workload.c.id).where(
        schema.workload.c.digest == bindparam("digest", type_=schema.Blob)
    )
)
_target_by_digest = Prepared(
    select(schema.target.c.id).where(
        schema.target.c.digest == bindparam("digest", type_=schema.Blob)
    )
)
_targets_by_kind = Prepared(
    select(schema.target.c.id)
    .where(
        schema.target.c.kind == bindparam("kind", type_=schema.Text),
        schema.target.c.architecture == bindparam("architecture", type_=schema.Text),
    )
    .order_by(schema.target.c.id)
)
_targets_of = Prepared(
    select(_p.target_id).distinct().where(_p.workload_id == _parameter("workload"))
)
_served_targets = Prepared(
    # One index seek for each target; DISTINCT would walk all records of the workload.
    select(schema.target.c.id).where(
        select(literal_column("1"))
        .where(
            _m.workload_id == _parameter("workload"),
            _m.target_id == schema.target.c.id,
            _m.served == literal_column("1"),
        )
        .exists()
    )
)
_workloads_without = Prepared(
    select(schema.workload.c.id)
    .where(
        schema.workload.c.id > _parameter("after"),
        schema.workload.c.tvm_version.like(bindparam("version", type_=schema.Text)),
        ~select(literal_column("1"))
        .where(
            schema.workload_alias.c.workload_id == schema.workload.c.id,
            schema.workload_alias.c.scheme == bindparam("scheme", type_=schema.Text),
        )
        .exists(),
        select(literal_column("1"))
        .where(_m.workload_id == schema.workload.c.id, _m.served == literal_column("1"))
        .exists(),
    )
    .order_by(schema.workload.c.id)
)
_measurement_by_digest = Prepared(
    select(_m.id).where(_m.digest == bindparam("digest", type_=schema.Blob))
)
_last_workload = Prepared(select(func.max(schema.workload.c.id)))
_size = Prepared(select(func.count()).select_from(schema.measurement))
_count_quarantined = Prepared(select(func.count()).select_from(schema.quarantine))
_count_retracted = Prepared(select(func.count()).select_from(schema.retraction))


class _Cache(OrderedDict[int, T]):
    """A mapping that forgets what was used longest ago."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def fetch(self, key: int, make: Callable[[int], T]) -> T:
        """Return the value of `key`, made where it is missing.

        Another thread may throw out the key between any two steps.
        """
        try:
            value = self[key]
            self.move_to_end(key)
        except KeyError:
            pass
        else:
            return value
        value = self[key] = make(key)
        if len(self) > self._most:
            self.popitem(last=False)
        return value


class Query:
    """Reads of one database. Made by :class:`tunedb.store.Store` as its ``query``.

    Attributes
    ----------
    store_key : str
        Identity of the database, random and made with it.
    """

    def __init__(
        self, connect: Callable[[], Connection], lock: threading.RLock, location: str
    ) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._lock = lock
        self._location = location
        self._workloads: _Cache[Workload] = _Cache(_CACHE_WORKLOADS)
        self._targets: _Cache[Target] = _Cache(_CACHE_ROWS)
        self._bodies: dict[str, _Cache[bytes]] = {
            "sketch": _Cache(_CACHE_ROWS),
            "tail": _Cache(_CACHE_ROWS),
        }
        self._sessions: _Cache[Session] = _Cache(_CACHE_ROWS)
        self._sources: _Cache[Source] = _Cache(_CACHE_ROWS)
        meta = self.meta()
        if "store" not in meta:
            raise SchemaError(f"{location}: it does not say which store it is; restore a copy")
        self.store_key: str = meta["store"]

    def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Connection:
        """Return the connection, a new one where the server has cut it."""
        if self._connection is not None and self._connection.invalidated:
            self._connection.close()
            self._connection = None
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _rows(self, prepared: Prepared, **parameters: Any) -> Sequence[Any]:
        """Return all rows of a prepared statement."""
        with self._lock, converted_errors(self._location):
            return prepared(self._connected(), **parameters).all()

    def _select(self, statement: Select[Any]) -> Sequence[Any]:
        """Return all rows of a statement that is not worth preparing."""
        with self._lock, converted_errors(self._location):
            return self._connected().execute(statement).all()

    # ------------------------------------------------------------------ sizes

    def meta(self) -> dict[str, str]:
        """Return what the database says of itself."""
        return {row.key: row.value for row in self._select(select(schema.meta))}

    def size(self, target_ids: Sequence[int] | None = None) -> int:
        """Return the number of measurements, failed ones included, of all or some targets."""
        if target_ids is None:
            return int(self._rows(_size)[0][0])
        counted = select(func.count()).select_from(schema.measurement)
        return int(self._select(counted.where(_m.target_id.in_(target_ids)))[0][0])

    def counts(self) -> Counts:
        """Return the number of rows of each kind."""
        names = (
            *("workload", "target", "sketch", "tail", "program", "measurement"),
            *("session", "source", "quarantine", "retraction"),
        )
        tables = schema.metadata.tables
        parts = [select(func.count()).select_from(tables[n]).scalar_subquery() for n in names]
        failed = (
            select(func.count())
            .select_from(schema.measurement)
            .where(_m.status == int(Status.FAILED))
            .scalar_subquery()
        )
        row = self._select(select(*parts, failed))[0]
        values = dict(zip(names, row, strict=False))
        return Counts(
            workloads=values["workload"],
            targets=values["target"],
            sketches=values["sketch"],
            tails=values["tail"],
            programs=values["program"],
            measurements=values["measurement"],
            failed=row[-1],
            sessions=values["session"],
            sources=values["source"],
            quarantined=values["quarantine"],
            retracted=values["retraction"],
        )

    def count_quarantined(self, connection: Connection) -> int:
        """Return the number of quarantined rows as a writer's transaction sees it."""
        return int(_count_quarantined(connection).scalar_one())

    def count_retracted(self, connection: Connection) -> int:
        """Return the number of retractions as a writer's transaction sees it."""
        return int(_count_retracted(connection).scalar_one())

    # ------------------------------------------------------------------ workloads and targets

    def workload(self, id_: int) -> Workload:
        """Return a workload by its id."""
        return self._workloads.fetch(id_, self._load_workload)

    def _load_workload(self, id_: int) -> Workload:
        row = self._one("workload", id_)
        script = None if row.script is None else decompress(row.script).decode()
        return Workload(row.format, decompress(row.body), row.name, row.tvm_version, script)

    def _one(self, table: str, id_: int) -> Any:
        """Return the row of a table by id."""
        rows = self._rows(_by_id[table], id=id_)
        if not rows:
            raise NotFoundError(f"{self._location}: no {table} {id_}")
        return rows[0]

    def target(self, id_: int) -> Target:
        """Return a target by its id."""

        def load(key: int) -> Target:
            row = self._one("target", key)
            return Target(row.kind, row.config.encode(), row.text)

        return self._targets.fetch(id_, load)

    def workload_id(self, digest: bytes) -> int | None:
        """Return the id of the workload with this digest, or None."""
        rows = self._rows(_workload_by_digest, digest=digest)
        return rows[0][0] if rows else None

    def workloads_by_alias(self, alias: Alias) -> list[int]:
        """Return the ids of workloads known under an alias, first committed first."""
        scheme, key = identity.clean_text(alias.scheme), identity.clean_text(alias.key)
        return [row[0] for row in self._rows(_workloads_by_alias, scheme=scheme, key=key)]

    def aliases(self, workload_id: int) -> list[Alias]:
        """Return the names under which a workload is known to be equal to others."""
        return [Alias(row.scheme, row.key) for row in self._rows(_aliases_of, id=workload_id)]

    def equivalent(self, workload_id: int) -> list[int]:
        """Return the ids of the workloads that are the same computation, itself included.

        Those that share a structural hash, a script or a link. TVM's looser equalities
        (``ignore-tensor``, ``anchor-block``) are for a handle that asks for them.
        """
        found = {workload_id}
        for alias in self.aliases(workload_id):
            if not alias.scheme.endswith((":ignore-tensor", ":anchor-block")):
                found.update(self.workloads_by_alias(alias))
        return sorted(found)

    def served_targets(self, workload_ids: Iterable[int]) -> list[int]:
        """Return the ids of the targets for which these workloads have records to serve."""
        found = {r[0] for w in workload_ids for r in self._rows(_served_targets, workload=w)}
        return sorted(found)

    def workloads_without(self, scheme: str, tvm_version: str, after: int) -> list[int]:
        """Return ids above `after` of served workloads of a TVM release without such an alias."""
        return [
            row[0]
            for row in self._rows(
                _workloads_without, scheme=scheme, version=tvm_version + "%", after=after
            )
        ]

    def last_workload(self) -> int:
        """Return the highest id of a workload, or 0."""
        return int(self._rows(_last_workload)[0][0] or 0)

    def targets_of(self, workload_ids: Iterable[int]) -> list[int]:
        """Return the ids of the targets for which these workloads have programs."""
        found = {row[0] for w in workload_ids for row in self._rows(_targets_of, workload=w)}
        return sorted(found)

    def find_workloads(self, text: str) -> list[int]:
        """Return the ids of workloads whose name, id or digest (from its start) is `text`."""
        table = schema.workload.c
        rows = self._select(select(table.id, table.name, table.digest).order_by(table.id))
        exact = [row.id for row in rows if text in (row.name, str(row.id))]
        if exact:
            return exact
        short = text.lower()
        return [
            row.id
            for row in rows
            if text in row.name or (len(short) >= 4 and row.digest.hex().startswith(short))
        ]

    def find_targets(self, text: str) -> list[int]:
        """Return the ids of targets whose kind or id is `text`, or that have these attributes.

        Parameters
        ----------
        text : str
            ``llvm``, ``3`` or JSON such as ``{"kind": "llvm", "num-cores": 2}``.

        Raises
        ------
        UsageError
            Text that begins as JSON and is none.
        """
        wanted: dict[str, Any] | None = None
        if text.lstrip().startswith("{"):
            try:
                wanted = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise UsageError(f"target {text!r} is not JSON ({error})") from None
        found = []
        for row in self._select(select(schema.target.c.id).order_by(schema.target.c.id)):
            target = self.target(row.id)
            if wanted is None:
                matches = text in (target.kind, str(row.id))
            else:
                have = target.attributes or {}
                matches = all(have.get(key) == value for key, value in wanted.items())
            if matches:
                found.append(row.id)
        return found

    def target_id(self, digest: bytes) -> int | None:
        """Return the id of the target with this digest, or None."""
        rows = self._rows(_target_by_digest, digest=digest)
        return rows[0][0] if rows else None

    def compatible_targets(self, target: Target) -> list[int]:
        """Return the ids of targets of the same kind and architecture."""
        architecture = identity.clean_text(target.architecture)
        rows = self._rows(_targets_by_kind, kind=target.kind, architecture=architecture)
        return [row[0] for row in rows]

    def workloads(self) -> list[WorkloadSummary]:
        """Return all workloads with their numbers of records and best times."""
        stats = (
            select(
                _m.workload_id,
                func.count().label("records"),
                func.sum(case((_m.status == int(Status.FAILED), 1), else_=0)).label("failed"),
                func.min(case((_m.served == 1, _m.mean), else_=None)).label("best"),
                func.count(_m.target_id.distinct()).label("targets"),
            )
            .group_by(_m.workload_id)
            .subquery()
        )
        w = schema.workload.c
        rows = self._select(
            select(w.id, w.digest, w.name, w.format, w.tvm_version, stats)
            .select_from(schema.workload.outerjoin(stats, stats.c.workload_id == w.id))
            .order_by(w.id)
        )
        return [
            WorkloadSummary(
                id=row.id,
                digest=row.digest,
                name=row.name,
                format=row.format,
                tvm_version=row.tvm_version,
                records=row.records or 0,
                failed=row.failed or 0,
                best=row.best,
                targets=row.targets or 0,
            )
            for row in rows
        ]

    def targets(self) -> list[TargetSummary]:
        """Return all targets with their numbers of records and workloads."""
        t = schema.target.c
        rows = self._select(
            select(t.id, func.count(_m.id), func.count(_m.workload_id.distinct()))
            .select_from(schema.target.outerjoin(schema.measurement, _m.target_id == t.id))
            .group_by(t.id)
            .order_by(t.id)
        )
        return [TargetSummary(id_, self.target(id_), n, w) for id_, n, w in rows]

    def args_info(self) -> dict[int, bytes]:
        """Return a description of the arguments of each workload that has one, by its id."""
        first = (
            select(_m.workload_id, func.min(_m.args_info_id).label("args_info_id"))
            .group_by(_m.workload_id)
            .subquery()
        )
        a = schema.args_info.c
        rows = self._select(
            select(first.c.workload_id, a.body).join_from(
                first, schema.args_info, a.id == first.c.args_info_id
            )
        )
        return {row.workload_id: row.body.encode() for row in rows}

    # ------------------------------------------------------------------ records

    def top_k_ids(
        self, workload_ids: Sequence[int], target_ids: Sequence[int], k: int
    ) -> list[int]:
        """Return the ids of the best records, best first.

        Ascending mean of run times, ties in order of insertion; failed, retracted and untrusted
        records are left out. One index lookup for each workload and target.
        """
        if len(workload_ids) == len(target_ids) == 1:
            rows = self._rows(_top_k, workload=workload_ids[0], target=target_ids[0], k=k)
            return [row[1] for row in rows]
        parts = [
            [tuple(row) for row in self._rows(_top_k, workload=w, target=t, k=k)]
            for w in workload_ids
            for t in target_ids
        ]
        return [id_ for _, id_ in islice(merge(*parts), k)]

    def top_k(
        self,
        workload_ids: Sequence[int],
        target_ids: Sequence[int] | None = None,
        k: int = 10,
    ) -> list[Record]:
        """Return the best records of workloads, best first (see :meth:`top_k_ids`).

        Parameters
        ----------
        workload_ids : sequence of int
            Workloads that count as one.
        target_ids : sequence of int or None
            Targets that count as one; None for all.
        k : int
            How many at most.

        Raises
        ------
        UsageError
            `k` is negative.
        """
        if k < 0:
            raise UsageError(f"k must not be negative, got {k}")
        if target_ids is None:
            target_ids = self.targets_of(workload_ids)
        return [self.record(i) for i in self.top_k_ids(workload_ids, target_ids, k)]

    def best(
        self, workload_ids: Sequence[int], target_ids: Sequence[int] | None = None
    ) -> Record | None:
        """Return the best record of workloads, or None."""
        return next(iter(self.top_k(workload_ids, target_ids, 1)), None)

    def record(self, id_: int) -> Record:
        """Return a record by its id.

        Raises
        ------
        NotFoundError
            There is none.
        """
        rows = self._rows(_record_by_id, id=id_)
        if not rows:
            raise NotFoundError(f"{self._location}: no record {id_}")
        return self._record(rows[0])

    def find_records(self, text: str, most: int = 10) -> list[int]:
        """Return the ids of records whose id, or whose digest from its start, is `text`.

        Parameters
        ----------
        text : str
            An id, or at least four hexadecimal digits.
        most : int
            How many at most.
        """
        if text.isascii() and text.isdecimal() and len(text) < 19:
            found = self._select(select(_m.id).where(_m.id == int(text)))
            if found:
                return [found[0].id]
        digits = 2 * identity.DIGEST_BYTES
        if not 4 <= len(text) <= digits or not set(text.lower()) <= set("0123456789abcdef"):
            return []
        # A range of digests, which their index serves.
        low, high = (bytes.fromhex(text.ljust(digits, filler)) for filler in "0f")
        rows = self._select(select(_m.id).where(_m.digest.between(low, high)).limit(most))
        return sorted(row.id for row in rows)

    def answer(self, id_: int) -> Answer:
        """Return what a tuning loop needs of a record, in one statement (:meth:`record`: six).

        Raises
        ------
        NotFoundError
            There is none.
        """
        rows = self._rows(_answer, id=id_)
        if not rows:
            raise NotFoundError(f"{self._location}: no record {id_}")
        row = rows[0]
        bodies = self._bodies
        sketch = bodies["sketch"].fetch(row.sketch_id, lambda _: decompress(row.sketch))
        tail = None
        if row.tail_id is not None:
            tail = bodies["tail"].fetch(row.tail_id, lambda _: decompress(row.tail))
        return Answer(
            id=id_,
            workload_id=row.workload_id,
            target_id=row.target_id,
            trace=Trace(sketch, tail, row.decisions.encode()),
            run_secs=None if row.run_secs is None else identity.unpack_floats(row.run_secs),
            args_info=None if row.args_info is None else row.args_info.encode(),
        )

    def answers(self, target_ids: Sequence[int] | None = None) -> Iterator[Answer]:
        """Yield all records that were not retracted, in order of insertion, failed ones too."""
        gone = select(schema.retraction.c.digest).where(
            schema.retraction.c.subject == "measurement", schema.retraction.c.digest == _m.digest
        )
        statement = select(_m.id).where(~gone.exists()).order_by(_m.id).limit(_PAGE)
        if target_ids is not None:
            statement = statement.where(_m.target_id.in_(target_ids))
        after, ids = 0, [0]
        while ids:
            ids = [row.id for row in self._select(statement.where(_m.id > after))]
            yield from map(self.answer, ids)
            after = ids[-1] if ids else 0

    def knows(self, digest: bytes) -> bool:
        """Tell whether a measurement with this digest is stored."""
        return bool(self._rows(_measurement_by_digest, digest=digest))

    def digest_of(self, id_: int) -> bytes:
        """Return the digest of the measurement with this id."""
        return self.record(id_).measurement.digest

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
        statement = _record_query().order_by(_m.id).limit(_PAGE)
        if workload_id is not None:
            statement = statement.where(_m.workload_id == workload_id)
        if target_ids is not None:
            statement = statement.where(_m.target_id.in_(target_ids))
        after = 0
        while True:
            rows = self._select(statement.where(_m.id > after))
            for row in rows:
                yield self._record(row)
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
        for id_, mean in self._select(statement.order_by(_m.measured_at, _m.id)):
            best = min(best, mean)
            course.append((id_, mean, best))
        return course

    def failures(self) -> dict[str, int]:
        """Return the number of failures of each kind."""
        rows = self._select(
            select(_f.kind, func.count(_f.measurement_id.distinct())).group_by(_f.kind)
        )
        return {row[0]: row[1] for row in rows}

    def quarantine(self, limit: int = 100) -> list[Quarantined]:
        """Return what could not be understood, newest first."""
        q = schema.quarantine.c
        rows = self._select(
            select(q.file, q.line, q.reason, q.data).order_by(q.id.desc()).limit(limit)
        )
        return [Quarantined(row.file, row.line, row.reason, bytes(row.data)) for row in rows]

    def source(self, id_: int) -> Source:
        """Return a source by its id."""
        row = self._one("source", id_)
        return Source(row.name, SourceKind(row.kind), Trust(row.trust))

    def sources(self) -> list[tuple[Source, int]]:
        """Return all sources with their numbers of records."""
        t = schema.source.c
        rows = self._select(
            select(t.name, t.kind, t.trust, func.count(_m.id).label("records"))
            .select_from(schema.source.outerjoin(schema.measurement, _m.source_id == t.id))
            .group_by(t.id, t.name, t.kind, t.trust)
            .order_by(t.id)
        )
        return [
            (Source(row.name, SourceKind(row.kind), Trust(row.trust)), row.records) for row in rows
        ]

    def session(self, id_: int) -> Session:
        """Return a session by its id."""

        def load(key: int) -> Session:
            row = self._one("session", key)
            return Session(row.key, row.started_at, row.fingerprint.encode())

        return self._sessions.fetch(id_, load)

    def _trace_body(self, table: str, id_: int) -> bytes:
        """Return the body of a sketch or tail."""
        return self._bodies[table].fetch(id_, lambda k: decompress(self._one(table, k).body))

    def _record(self, row: Any) -> Record:
        """Return the record of a row of :func:`_record_query`."""
        tail = None if row.tail_id is None else self._trace_body("tail", row.tail_id)
        trace = Trace(self._trace_body("sketch", row.sketch_id), tail, row.decisions.encode())
        failure = None
        if row.failure_kind is not None:
            failure = Failure(
                FailureKind(row.failure_kind), Phase(row.phase), row.message, row.seconds
            )
        measurement = Measurement(
            program=Program(self.workload(row.workload_id), self.target(row.target_id), trace),
            run_secs=None if row.run_secs is None else identity.unpack_floats(row.run_secs),
            status=Status(row.status),
            measured_at=row.measured_at,
            occurrence=row.occurrence,
            session=None if row.session_id is None else self.session(row.session_id),
            args_info=None if row.args_info is None else row.args_info.encode(),
            origin=Origin(row.origin),
            donor=None if row.donor is None else bytes(row.donor),
            failure=failure,
        )
        source = self._sources.fetch(row.source_id, self.source)
        return Record(
            id=row.id,
            workload_id=row.workload_id,
            target_id=row.target_id,
            measurement=measurement,
            source=source,
            mean=row.mean,
            retracted=bool(row.retracted),
        )
