"""A database as the giving side of an exchange: a file or a server, ours or somebody else's."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.engine import URL
from sqlalchemy.pool import StaticPool

from .. import compression, limits, schema, versions
from ..engine import Prepared, converted_errors, make_engine, parse_url, show_url, sqlite_path
from ..errors import LimitError, SchemaError, StorageError
from . import choosing
from .cutting import Row, cut, taken
from .foreign import ForeignFile, foreign_errors, open_file
from .selection import Selection
from .tables import COMPRESSED, PRUNED, tables_of
from .wire import COLUMNS, Chunk, Position

#: Where a row of ``measurement`` names a shared row, and of which table.
_REFERENCES = tuple(
    (at, name)
    for name in (
        *("source", "session", "workload", "target", "sketch", "tail", "args_info", "context"),
    )
    for at in (COLUMNS["measurement"].index(name),)
)

#: Numbers asked for at once: the text of them stays short.
_NUMBERS = 500


class DatabasePeer:
    """A database that gives its records (:class:`tunedb.sharing.wire.Peer`).

    What was measured is added to a database and hardly ever taken out, so that
    :meth:`position`, read before anything else, bounds a consistent view of it; each page of
    records with all that it refers to is one snapshot.

    Parameters
    ----------
    url : str, Path or URL
        A path, ``sqlite:///…`` or ``postgresql+psycopg://…``.
    own : bool
        It is ours: a file is opened as always and must have this version's schema.
    check : bool
        Let SQLite look through the whole of a foreign file for damage first.

    Raises
    ------
    NotFoundError, SchemaError, StorageError, UsageError
        It cannot be read (:func:`tunedb.sharing.foreign.open_file`).

    Attributes
    ----------
    location : str
        For messages, without a password.
    store_key : str
        Which database it says that it is.
    total : int
        Measurements that it will give, for a progress bar; exact once :meth:`chunks` has begun
        with a selection.
    revision : str
        Its schema.
    """

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
        ((last, digest, failure, retractions),) = self._rows(self._tables.position)
        self._require(last or 0, failure or 0)
        return Position(last or 0, failure or 0, digest, retractions)

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

    # ------------------------------------------------------------------ what it gives

    def chunks(
        self, selection: Selection, since: Position | None = None, until: Position | None = None
    ) -> Iterator[Chunk]:
        """Yield what is selected, each row after those that it refers to.

        Parameters
        ----------
        selection : Selection
            What to give.
        since, until : Position or None
            Only measurements and failures after and up to there. The best of a workload may be
            others with each record that is added: with ``best`` all of them are given where
            anything was added.

        Yields
        ------
        Chunk
            Of at most :data:`tunedb.limits.BATCH_ROWS` rows, and few more than
            :data:`tunedb.limits.CHUNK_BYTES` bytes.

        Raises
        ------
        NotFoundError
            Nothing has a name of the selection.
        LimitError, StorageError
            It cannot be read on.
        """
        since = since or Position()
        until = until or self.position()
        start = since.measurement_id
        chosen: NDArray[np.int64] | None = None
        if choosing.is_restricted(selection):
            chosen = self._chosen(selection, until.measurement_id)
            if selection.best is not None and start < until.measurement_id:
                start = 0
        first = 0 if chosen is None else int(np.searchsorted(chosen, start, "right"))
        self.total = max(0, until.measurement_id - start) if chosen is None else len(chosen) - first
        given: dict[str, set[Any]] = {name: set() for _, name in _REFERENCES}
        if chosen is None:
            yield from self._range(start, until, selection, given)
        else:
            for at in range(first, len(chosen), limits.BATCH_ROWS):
                ids = chosen[at : at + limits.BATCH_ROWS].tolist()
                yield from self._listed(ids, until, selection, given)
        if start and since.failure_id < until.failure_id:
            yield from self._later(since, until, start, chosen)
        if since.retractions != until.retractions:
            rows = self._rows(self._tables.retractions)
            own = self.store_key
            filled = ((d, own if s is None else s, subject, why) for d, s, subject, why in rows)
            yield from cut("retraction", filled)

    def _chosen(self, selection: Selection, until: int) -> NDArray[np.int64]:
        """Return the numbers of the measurements that are meant."""
        with self._snapshot() as connection:
            try:
                return choosing.chosen_ids(connection.execute, selection, until)
            except StorageError as error:
                raise StorageError(f"{self.location}: {error}") from None

    def _range(
        self, after: int, until: Position, selection: Selection, given: dict[str, set[Any]]
    ) -> Iterator[Chunk]:
        """Yield all measurements after one, with what belongs to them."""
        tables, newest = self._tables, until.failure_id
        while after < until.measurement_id:
            with self._snapshot():
                page = self._rows(
                    tables.page, after=after, until=until.measurement_id, n=limits.BATCH_ROWS
                )
                rows, more = taken(page, after, self.location)
                if not rows:
                    return
                ends = {"first": rows[0][0], "last": rows[-1][0]}
                yield from self._with_shared(rows, given)
                yield from cut("failure", self._rows(tables.failures, newest=newest, **ends))
                if selection.features:
                    yield from self._features(self._rows(tables.features, **ends), given)
            after = rows[-1][0]
            if not more and len(rows) < limits.BATCH_ROWS:
                return

    def _listed(
        self,
        ids: list[int],
        until: Position,
        selection: Selection,
        given: dict[str, set[Any]],
    ) -> Iterator[Chunk]:
        """Yield some measurements, with what belongs to them."""
        tables = self._tables
        after, more = ids[0] - 1, True
        while more:
            with self._snapshot():
                left = [id_ for id_ in ids if id_ > after]
                page = self._among(tables.page_of, left)
                rows, more = taken(page, after, self.location)
                if not rows:
                    return
                after = rows[-1][0]
                had = [row[0] for row in rows]
                yield from self._with_shared(rows, given)
                failures = self._among(tables.failures_of, had, newest=until.failure_id)
                yield from cut("failure", failures)
                if selection.features:
                    yield from self._features(self._among(tables.features_of, had), given)

    def _with_shared(self, rows: list[Row], given: dict[str, set[Any]]) -> Iterator[Chunk]:
        """Yield measurements after the shared rows that are needed for the first time."""
        for at, name in _REFERENCES:
            known = given[name]
            needed = {row[at] for row in rows} - known
            needed.discard(None)
            # A value that is no number names nothing; whoever verifies the measurement says so.
            ids = sorted(id_ for id_ in needed if id_.__class__ is int)
            known.update(ids)
            for start in range(0, len(ids), _NUMBERS):
                yield from self._shared(name, ids[start : start + _NUMBERS])
        yield Chunk("measurement", rows)

    def _shared(self, name: str, ids: list[int]) -> Iterator[Chunk]:
        """Yield rows of one table, and the aliases of workloads."""
        statement = self._tables.shared.get(name)
        if statement is None:
            return
        rows = self._among(statement, ids)
        if name in COMPRESSED:
            at = COLUMNS[name].index("body")
            rows = (self._unpacked(row, at) for row in rows)
        yield from cut(name, rows)
        if name == "workload":
            yield from cut("workload_alias", self._among(self._tables.aliases_of, ids))

    def _unpacked(self, row: Row, at: int) -> Row:
        """Return a row with its body as it is, or without where that cannot be."""
        limit = limits.MAX_BODY_BYTES if self._foreign is None else limits.MAX_FOREIGN_BYTES
        body: bytes | None
        try:
            body = compression.decompress(row[at], limit)
        except (LimitError, StorageError, TypeError):
            body = None
        return (*row[:at], body, *row[at + 1 :])

    def _features(self, rows: Iterator[Row], given: dict[str, set[Any]]) -> Iterator[Chunk]:
        """Yield features, each once although a program may have several measurements."""
        if "feature_set" not in given:
            given["feature_set"] = set()
            yield from cut("feature_set", self._rows(self._tables.feature_sets))
        seen: set[tuple[Any, Any]] = set()

        def new() -> Iterator[Row]:
            for program, *values in rows:
                if (program, values[1]) not in seen:
                    seen.add((program, values[1]))
                    yield tuple(values)

        yield from cut("feature", new())

    def _later(
        self, since: Position, until: Position, last: int, chosen: NDArray[np.int64] | None
    ) -> Iterator[Chunk]:
        """Yield failures that were learnt after their measurements were given."""
        rows = self._rows(
            self._tables.later, oldest=since.failure_id, newest=until.failure_id, last=last
        )
        yield from cut(
            "failure", (row[1:] for row in rows if chosen is None or choosing.has(chosen, row[0]))
        )
