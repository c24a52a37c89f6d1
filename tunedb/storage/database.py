"""One database: its two connections, the lock, the retries and the ids of a transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Select, select

from .. import limits
from ..errors import NotFoundError, SchemaError, StorageError, UnreachableError, UsageError
from ..system.compression import decompress
from . import read_statements as st
from . import schema
from .engine import Prepared, connect_reader, converted_errors
from .retry import again
from .rows import Ids


class Database:
    """What all parts of a store share: one writing and one reading connection.

    Parameters
    ----------
    engine : Engine
        Makes the connections.
    location : str
        The database for messages.
    read_only : bool
        Never write.
    is_owner : bool
        Whether this account owns the tables; so does everybody who may write to a file.
    body_limit : int
        Bytes to which the body of a workload, sketch or tail may unpack.

    Attributes
    ----------
    key : str
        Identity of the database, random and made with it.
    lock : RLock
        One thread at a time goes in.
    ids : Ids
        Of rows that many records share; committed and rolled back with each transaction.
    patience : float
        Seconds for which a server that went away is asked again; 0 for none.
    """

    def __init__(
        self,
        engine: Engine,
        location: str,
        *,
        read_only: bool,
        is_owner: bool,
        body_limit: int = limits.MAX_BODY_BYTES,
    ) -> None:
        self.engine = engine
        self.location = location
        self.read_only = read_only
        self.is_owner = is_owner
        self.body_limit = body_limit
        self.lock = threading.RLock()
        self.ids = Ids()
        self.patience: float = 0
        self._reader: Connection | None = None
        self._writer: Connection | None = None
        self._closed = False
        meta = self.meta()
        if "store" not in meta:
            raise SchemaError(f"{location}: it has no store key; restore a copy")
        self.key: str = meta["store"]

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        with self.lock, converted_errors(self.location):
            self._closed = True
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None
            self.engine.dispose()

    def check_open(self) -> None:
        """Raise UsageError for a store that was closed."""
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
                # A connection that broke is not used again.
                if self._writer is not None and self._writer.invalidated:
                    self._writer.close()
                    self._writer = None
                raise

    # ------------------------------------------------------------------ reading

    def reader(self) -> Connection:
        """Return the reading connection, a new one where the server has cut it."""
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
            return self._again(error, lambda reader: prepared(reader, **parameters).all())

    def tuples(self, prepared: Prepared, **parameters: Any) -> Sequence[Any]:
        """Return all rows of a prepared statement without names, faster than :meth:`fetch`."""
        try:
            with self.lock, converted_errors(self.location):
                return prepared.tuples(self.reader(), **parameters)
        except UnreachableError as error:
            return self._again(error, lambda reader: prepared.tuples(reader, **parameters))

    def select(self, statement: Select[Any]) -> Sequence[Any]:
        """Return all rows of a statement that is not worth preparing."""
        try:
            with self.lock, converted_errors(self.location):
                return self.reader().execute(statement).all()
        except UnreachableError as error:
            return self._again(error, lambda reader: reader.execute(statement).all())

    def _again(
        self, error: UnreachableError, read: Callable[[Connection], Sequence[Any]]
    ) -> Sequence[Any]:
        """Return the rows of a statement that has failed, asked again while patience lasts."""

        def once() -> Sequence[Any]:
            with self.lock, converted_errors(self.location):
                return read(self.reader())

        return again(once, error, self.patience)

    def one(self, table: str, id_: int) -> Any:
        """Return the row of a table by id.

        Raises
        ------
        NotFoundError
            There is none.
        """
        rows = self.fetch(st.by_id[table], id=id_)
        if not rows:
            raise NotFoundError(f"{self.location}: no {table} {id_}")
        return rows[0]

    def unpack(self, body: bytes) -> bytes:
        """Return a body as it is; LimitError where it is larger than :attr:`body_limit`."""
        return decompress(body, self.body_limit)

    def meta(self) -> dict[str, str]:
        """Return what the database says of itself."""
        return {row.key: row.value for row in self.select(select(schema.meta))}

    @property
    def is_file(self) -> bool:
        """Whether this is SQLite, whose space is that of a file."""
        with self.lock, converted_errors(self.location):
            return self.reader().dialect.name == "sqlite"
