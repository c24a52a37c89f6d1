"""Connections of a store to its database: locking, transactions, retries and cached ids."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from sqlalchemy import Connection, Engine, Select

from .. import limits
from ..errors import (
    NotFoundError,
    SchemaError,
    StorageError,
    TuneDBError,
    UnreachableError,
    UsageError,
)
from ..system.compression import decompress
from . import read_statements as st
from . import schema
from .engine import Prepared, connect_reader, converted_errors
from .retry import retry
from .rows import IdCache

#: Names our tables only: others may be in the same database.
ALL_TABLES: Final = ", ".join(sorted(schema.metadata.tables))

#: New measurements after which a server's statistics are updated for the first time.
_FIRST_ANALYSIS = 1_000


class Database:
    """The connections that all parts of a store share: one for writing, one for reading.

    Parameters
    ----------
    reader : Connection
        Made by :func:`~tunedb.storage.engine.connect_reader`; its engine creates the others.
    location : str
        Name of the database in messages.
    read_only : bool
        Refuse write transactions.
    is_owner : bool
        True if this account owns the tables; always true for a file.
    body_limit : int
        Maximum bytes of an unpacked workload, sketch or tail.

    Attributes
    ----------
    key : str
        Random identity of the database, created with it.
    lock : RLock
        Serialises the threads of this process.
    ids : IdCache
        Row ids of shared rows; committed and rolled back with each transaction.
    retry_timeout : float
        Seconds for which calls to an unreachable server are retried; 0 for no retries.
    """

    def __init__(
        self,
        reader: Connection,
        location: str,
        *,
        read_only: bool,
        is_owner: bool,
        body_limit: int = limits.MAX_BODY_BYTES,
    ) -> None:
        self.engine: Engine = reader.engine
        self.location = location
        self.read_only = read_only
        self.is_owner = is_owner
        self.body_limit = body_limit
        self.lock: Final = threading.RLock()
        self.ids: Final = IdCache()
        self.retry_timeout: float = 0
        self._reader: Connection | None = reader
        self._writer: Connection | None = None
        self._closed = False
        self._rows_added = 0
        self._next_analysis = _FIRST_ANALYSIS
        meta = self.meta()
        if "store" not in meta:
            raise SchemaError(f"{location}: it has no store key; restore a copy")
        self.key: str = meta["store"]

    def close(self) -> None:
        """Close the connections; closing twice does nothing."""
        with self.lock, converted_errors(self.location):
            self._closed = True
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None
            self.engine.dispose()

    def check_open(self) -> None:
        """Raise UsageError if the store was closed."""
        if self._closed:
            raise UsageError(f"{self.location}: the store is closed; open it again")

    # ------------------------------------------------------------------ writing

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield the writing connection inside one write transaction."""
        if self.read_only:
            raise StorageError(f"{self.location}: it was opened read-only")
        with self.lock, converted_errors(self.location):
            self.check_open()
            if self._writer is None:
                self._writer = self.engine.connect()
            try:
                with self._writer.begin():
                    yield self._writer
                self.ids.commit()
            except BaseException:
                self.ids.rollback()
                # Never reuse a broken connection.
                if self._writer is not None and self._writer.invalidated:
                    self._writer.close()
                    self._writer = None
                raise

    def analyze_if_grown(self, new: int) -> None:
        """Update the statistics of a server whenever the new measurements have doubled.

        PostgreSQL does it too, but up to a minute late, and it sees empty tables while a
        transaction fills them. It then joins all rows where one would do.

        Parameters
        ----------
        new : int
            Number of measurements that a transaction has added.
        """
        self._rows_added += new
        if self._rows_added < self._next_analysis or not self.is_owner or self.is_file:
            return
        self._next_analysis = 2 * self._rows_added
        # Another process may hold the lock. The rows are committed whatever happens here.
        with suppress(TuneDBError), self.lock, converted_errors(self.location):
            self.reader().exec_driver_sql(f"ANALYZE {ALL_TABLES}")

    # ------------------------------------------------------------------ reading

    def reader(self) -> Connection:
        """Return the reading connection, reconnecting if the server closed it."""
        if self._reader is not None and self._reader.invalidated:
            self._reader.close()
            self._reader = None
        if self._reader is None:
            self.check_open()
            self._reader = connect_reader(self.engine)
        return self._reader

    def fetch(self, prepared: Prepared, **parameters: Any) -> Sequence[Any]:
        """Return all rows of a prepared statement."""
        try:
            with self.lock, converted_errors(self.location):
                return prepared(self.reader(), **parameters).all()
        except UnreachableError as error:
            return self._retry_read(error, lambda reader: prepared(reader, **parameters).all())

    def tuples(self, prepared: Prepared, **parameters: Any) -> Sequence[Any]:
        """Return all rows of a prepared statement as plain tuples, faster than :meth:`fetch`."""
        try:
            with self.lock, converted_errors(self.location):
                return prepared.tuples(self.reader(), **parameters)
        except UnreachableError as error:
            return self._retry_read(error, lambda reader: prepared.tuples(reader, **parameters))

    def select(self, statement: Select[Any], **parameters: Any) -> Sequence[Any]:
        """Return all rows of a statement that is not prepared."""
        try:
            with self.lock, converted_errors(self.location):
                return self.reader().execute(statement, parameters).all()
        except UnreachableError as error:
            return self._retry_read(
                error, lambda reader: reader.execute(statement, parameters).all()
            )

    def plain(self, sql: str) -> Sequence[Any]:
        """Return all rows of a statement given as SQL."""
        try:
            with self.lock, converted_errors(self.location):
                return self.reader().exec_driver_sql(sql).all()
        except UnreachableError as error:
            return self._retry_read(error, lambda reader: reader.exec_driver_sql(sql).all())

    def _retry_read(
        self, error: UnreachableError, read: Callable[[Connection], Sequence[Any]]
    ) -> Sequence[Any]:
        """Repeat a read that failed once, for the retry timeout."""

        def attempt() -> Sequence[Any]:
            with self.lock, converted_errors(self.location):
                return read(self.reader())

        return retry(attempt, error, self.retry_timeout)

    def row_by_id(self, table: str, id_: int) -> Any:
        """Return the row of a table by id.

        Raises
        ------
        NotFoundError
            The table has no such row.
        """
        rows = self.fetch(st.by_id[table], id=id_)
        if not rows:
            raise NotFoundError(f"{self.location}: no {table} {id_}")
        return rows[0]

    def unpack(self, body: bytes) -> bytes:
        """Return an unpacked body; LimitError if it exceeds :attr:`body_limit`."""
        return decompress(body, self.body_limit)

    def meta(self) -> dict[str, str]:
        """Return the table ``meta``: format, store key, creator, time of creation."""
        return {row.key: row.value for row in self.plain("SELECT * FROM meta")}

    @property
    def is_file(self) -> bool:
        """True for SQLite, False for a server."""
        with self.lock, converted_errors(self.location):
            return self.reader().dialect.name == "sqlite"
