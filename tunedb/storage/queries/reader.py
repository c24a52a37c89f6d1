"""The connection that reads, and what it remembers."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, func, select

from ... import limits
from ...errors import SchemaError, UnreachableError
from ...programs.workload_info.structure import Structure
from ...records import Session, Signature, Source, Status, Target, Workload
from ...results import Counts
from ...system.compression import decompress
from .. import schema
from ..engine import Prepared, converted_errors
from ..retractions import is_retracted
from ..retry import again
from . import statements as st

T = TypeVar("T")

#: Bodies (workloads, sketches, tails) kept in memory; a sketch and its tail have 2 KB.
_CACHE_ROWS = 4096
_CACHE_WORKLOADS = 64

_m = schema.measurement.c


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


class Reader:
    """The connection, the caches and the sizes of one database.

    Attributes
    ----------
    store_key : str
        Identity of the database, random and made with it.
    patience : float
        Seconds for which a server that went away is asked again; 0 for none.
    body_limit : int
        Bytes to which the body of a workload, sketch or tail may unpack; less for somebody else's
        database.
    """

    patience: float = 0
    body_limit: int = limits.MAX_BODY_BYTES

    def __init__(
        self, connect: Callable[[], Connection], lock: threading.RLock, location: str
    ) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._lock = lock
        self._location = location
        self._workloads: _Cache[Workload] = _Cache(_CACHE_WORKLOADS)
        self._described: _Cache[tuple[Workload, Signature]] = _Cache(_CACHE_WORKLOADS)
        # 32 bytes each: kept when a body is forgotten.
        self._workload_digests: dict[int, tuple[bytes, bytes]] = {}
        self._targets: _Cache[Target] = _Cache(_CACHE_ROWS)
        self._bodies: dict[str, _Cache[bytes]] = {
            "sketch": _Cache(_CACHE_ROWS),
            "tail": _Cache(_CACHE_ROWS),
        }
        self._sessions: _Cache[Session] = _Cache(_CACHE_ROWS)
        self._sources: _Cache[Source] = _Cache(_CACHE_ROWS)
        self._structures: _Cache[Structure] = _Cache(_CACHE_ROWS)
        meta = self.meta()
        if "store" not in meta:
            raise SchemaError(f"{location}: it has no store key; restore a copy")
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

    def _unpack(self, body: bytes) -> bytes:
        """Return a body as it is; LimitError where it is larger than :attr:`body_limit`."""
        return decompress(body, self.body_limit)

    def _rows(self, prepared: Prepared, **parameters: Any) -> Sequence[Any]:
        """Return all rows of a prepared statement."""
        try:
            with self._lock, converted_errors(self._location):
                return prepared(self._connected(), **parameters).all()
        except UnreachableError as error:
            return self._again(error, lambda one: prepared(one, **parameters).all())

    def _tuples(self, prepared: Prepared, **parameters: Any) -> Sequence[Any]:
        """Return all rows of a prepared statement without names, faster than :meth:`_rows`."""
        try:
            with self._lock, converted_errors(self._location):
                return prepared.tuples(self._connected(), **parameters)
        except UnreachableError as error:
            return self._again(error, lambda one: prepared.tuples(one, **parameters))

    def _select(self, statement: Select[Any]) -> Sequence[Any]:
        """Return all rows of a statement that is not worth preparing."""
        try:
            with self._lock, converted_errors(self._location):
                return self._connected().execute(statement).all()
        except UnreachableError as error:
            return self._again(error, lambda one: one.execute(statement).all())

    def _again(
        self, error: UnreachableError, read: Callable[[Connection], Sequence[Any]]
    ) -> Sequence[Any]:
        """Return what a statement gives that has failed, asked again while patience lasts."""

        def once() -> Sequence[Any]:
            with self._lock, converted_errors(self._location):
                return read(self._connected())

        return again(once, error, self.patience)

    # ------------------------------------------------------------------ sizes

    def meta(self) -> dict[str, str]:
        """Return what the database says of itself."""
        return {row.key: row.value for row in self._select(select(schema.meta))}

    def size(self, target_ids: Sequence[int] | None = None) -> int:
        """Return the number of measurements, failed ones included, of all or some targets."""
        if target_ids is None:
            return int(self._rows(st.size)[0][0])
        counted = select(func.count()).select_from(schema.measurement)
        return int(self._select(counted.where(_m.target_id.in_(target_ids)))[0][0])

    def counts(self) -> Counts:
        """Return the number of rows of each kind."""
        names = (
            *("workload", "target", "sketch", "tail", "program", "measurement"),
            *("session", "source", "quarantine", "launch"),
        )
        tables = schema.metadata.tables
        parts = [select(func.count()).select_from(tables[n]).scalar_subquery() for n in names]
        measurements = select(func.count()).select_from(schema.measurement)
        failed = measurements.where(_m.status == int(Status.FAILED)).scalar_subquery()
        retracted = measurements.where(is_retracted(_m, many=True)).scalar_subquery()
        row = self._select(select(*parts, failed, retracted))[0]
        values = dict(zip(names, row, strict=False))
        return Counts(
            workloads=values["workload"],
            targets=values["target"],
            sketches=values["sketch"],
            tails=values["tail"],
            programs=values["program"],
            measurements=values["measurement"],
            failed=row[-2],
            sessions=values["session"],
            sources=values["source"],
            quarantined=values["quarantine"],
            retracted=row[-1],
            launches=values["launch"],
        )
