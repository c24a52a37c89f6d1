"""A database that is read for an exchange: its connection, and how far its rows go."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.engine import URL
from sqlalchemy.pool import StaticPool

from .. import schema, versions
from ..engine import Prepared, converted_errors, make_engine, parse_url, show_url, sqlite_path
from ..errors import SchemaError, StorageError
from .cutting import Row
from .foreign import ForeignFile, foreign_errors, open_file
from .tables import PRUNED, tables_of
from .wire import Position


class OpenedDatabase:
    """The part of :class:`tunedb.sharing.database.DatabasePeer` that opens and asks."""

    def __init__(self, url: str | Path | URL, *, own: bool = False, check: bool = True) -> None:
        parsed = parse_url(url)
        self.location = show_url(parsed)
        self._is_sqlite = parsed.get_backend_name() == "sqlite"
        self._foreign: ForeignFile | None = None
        path = sqlite_path(parsed)
        if path is not None and not own:
            self._foreign = open_file(path, check=check)
        self._engine = self._make_engine(parsed)
        self._connection: Connection | None = None
        try:
            self._open(parsed)
        except BaseException:
            self.close()
            raise

    def _make_engine(self, url: URL) -> Engine:
        foreign = self._foreign
        if foreign is None:
            return make_engine(url, read_only=True)
        engine = create_engine(
            "sqlite://", creator=lambda: foreign.connection, poolclass=StaticPool
        )

        @event.listens_for(engine, "before_cursor_execute")
        def restart(*_: object) -> None:
            foreign.watch.restart()

        return engine

    def _open(self, url: URL) -> None:
        """Connect, and read what the database says of itself."""
        if self._foreign is None:
            if sqlite_path(url) is not None:
                versions.check_file(url, create=False)
            versions.prepare(self._engine, url, create=False)
        self.revision = schema.HEAD if self._foreign is None else self._foreign.revision
        self._tables = tables_of(self.revision)
        options: dict[str, Any] = {"tunedb_reads": True}
        if not self._is_sqlite:
            options |= {"isolation_level": "REPEATABLE READ", "stream_results": True}
        with self._errors():
            self._connection = self._engine.connect().execution_options(**options)
        self.store_key = self._own_key() if self._foreign is None else self._foreign.store_key
        self.total = self.position().measurement_id

    def _own_key(self) -> str:
        meta = schema.meta.c
        with self._snapshot() as connection:
            key: str | None = connection.execute(
                select(meta.value).where(meta.key == "store")
            ).scalar()
        if key is None:
            raise SchemaError(f"{self.location}: it does not say which store it is")
        return key

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        connection, self._connection = self._connection, None
        # A connection that was cut may refuse to be rolled back.
        with self._errors():
            if connection is not None:
                connection.close()
            self._engine.dispose()
        if self._foreign is not None:
            self._foreign.connection.close()

    def _errors(self) -> AbstractContextManager[None]:
        of = converted_errors if self._foreign is None else foreign_errors
        return of(self.location)

    @contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        """Yield the connection inside a transaction that reads; one inside another is the same."""
        connection = self._connection
        if connection is None:
            raise StorageError(f"{self.location}: it was closed")
        with self._errors():
            if connection.in_transaction():
                yield connection
                return
            with connection.begin():
                if self._is_sqlite:
                    connection.exec_driver_sql("BEGIN")
                yield connection

    def _rows(self, prepared: Prepared, **parameters: Any) -> Generator[Row]:
        """Yield the rows of a statement as plain tuples."""
        with self._snapshot() as connection:
            result = prepared(connection, **parameters)
            try:
                # SQLAlchemy makes a row of each, which takes as long as reading it does; but only
                # it tells its own errors from a server's driver's.
                yield from (result.cursor if self._is_sqlite else map(tuple, result))  # type: ignore[misc]
            finally:
                result.close()

    def _among(self, prepared: Prepared, ids: Sequence[int], **parameters: Any) -> Generator[Row]:
        """Yield the rows of a statement that asks for `ids`."""
        listed = orjson.dumps(ids).decode() if self._is_sqlite else list(ids)
        return self._rows(prepared, ids=listed, **parameters)

    # ------------------------------------------------------------------ where it stands

    def position(self) -> Position:
        """Return how far its rows go."""
        ((last, digest, failure, retractions, launch),) = self._rows(self._tables.position)
        self._require(last or 0, failure or 0, launch or 0)
        return Position(last or 0, failure or 0, digest, retractions, launch or 0)

    def digest_at(self, measurement_id: int) -> bytes | None:
        """Return the digest of a measurement; None where there is none of that number."""
        rows = list(self._rows(self._tables.digest, id=measurement_id))
        return rows[0][0] if rows else None

    def pruned_until(self) -> int:
        """Return the number up to which records may have been pruned; 0 where none were."""
        said = [value for (value,) in self._rows(PRUNED)]
        return int(said[0]) if said and re.fullmatch("[0-9]{1,19}", said[0]) else 0

    def _require(self, *numbers: object) -> None:
        """Raise StorageError for a number of a row that is none."""
        if not all(isinstance(number, int) for number in numbers):
            raise StorageError(f"{self.location}: damaged: a row has no number")
