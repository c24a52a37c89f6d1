"""A database as the sender of an exchange: a file or a server, trusted or foreign."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    Select,
    any_,
    bindparam,
    cast,
    create_engine,
    event,
    func,
    literal_column,
    null,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import URL
from sqlalchemy.pool import StaticPool

from .. import limits
from ..errors import LimitError, SchemaError, StorageError
from ..storage import schema, versions
from ..storage.columns import AT, MEASUREMENT
from ..storage.engine import (
    Prepared,
    connect_reader,
    converted_errors,
    make_engine,
    parse_url,
    show_url,
    sqlite_path,
)
from ..storage.exchange_types import COLUMNS, Chunk, Position, Selection
from ..system import compression
from . import selection as record_selection
from .foreign_file import ForeignFile, foreign_errors, open_file

# ---- Chunks of rows, bounded in rows and bytes ---------------------------------------------------

Row = tuple[Any, ...]

_SIZED = (bytes, str)


def _size(row: Row) -> int:
    """Return the bytes and characters of a row's long values."""
    return sum([len(value) for value in row if value.__class__ in _SIZED])


def chunks_of(table: str, rows: Iterable[Row]) -> Iterator[Chunk]:
    """Yield rows in chunks that are bounded in rows and bytes."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += _size(row)
        if len(batch) == limits.BATCH_ROWS or size > limits.CHUNK_BYTES:
            yield Chunk(table, batch)
            batch, size = [], 0
    if batch:
        yield Chunk(table, batch)


def first_chunk(page: Generator[Row], after: int, where: str) -> tuple[list[Row], bool]:
    """Return the rows of a page that fit into a chunk, and true if some did not.

    Parameters
    ----------
    page : generator of tuple
        Rows in order of their ids, which come first; it is closed.
    after : int
        Number below all ids.
    where : str
        The database, for messages.

    Raises
    ------
    StorageError
        The rows are not in order: a damaged file could be read for ever.
    """
    rows: list[Row] = []
    size = 0
    with closing(page):
        for row in page:
            number = row[0]
            if number.__class__ is not int or number <= after:
                raise StorageError(f"{where}: damaged: its rows are out of order")
            after = number
            rows.append(row)
            size += _size(row)
            if size > limits.CHUNK_BYTES:
                return rows, True
    return rows, False


# ---- Statements, one set per revision ------------------------------------------------------------
#
# Columns are in the order of tunedb.storage.exchange_types.COLUMNS, so that a fetched row is a row
# of a chunk. Columns that an earlier revision lacks are NULL.

_m, _p, _f, _v = schema.measurement.c, schema.program.c, schema.failure.c, schema.feature.c
_l, _c = schema.launch.c, schema.counter_set.c

_ROWS = schema.measurement.join(schema.program, _p.id == _m.program_id)

#: First revisions with contexts, costs and binary decisions; with retractions of other databases;
#: with launches; with the sources of aliases, failures and launches; and with finals.
_LOGS, _SHARING, _LAUNCHES, _ATTRIBUTION, _FINALS = "0002", "0004", "0005", "0006", "0010"

#: Positions of references in a row of ``measurement``, and their tables.
_REFERENCES = tuple((AT[name], name) for name in COLUMNS if name in AT)

_TABLES = schema.metadata.tables

#: Columns of the shared tables.
_SHARED: Mapping[str, tuple[Any, ...]] = {
    name: tuple(_TABLES[name].c[column] for column in COLUMNS[name]) for _, name in _REFERENCES
}

#: Tables with compressed bodies.
COMPRESSED = frozenset({"workload", "sketch", "tail"})


def _number(name: str) -> Any:
    return bindparam(name, type_=schema.Int)


@dataclass(frozen=True, slots=True)
class LaunchStatements:
    """Statements for launches up to id ``newest``.

    Parameters
    ----------
    of_range, of_ids, later : Prepared
        As :attr:`Statements.failures`, :attr:`Statements.failures_of` and :attr:`Statements.later`.
    sets_of_range, sets_of_ids, sets_later : Prepared
        Counter sets of these launches.
    """

    of_range: Prepared
    of_ids: Prepared
    later: Prepared
    sets_of_range: Prepared
    sets_of_ids: Prepared
    sets_later: Prepared


@dataclass(frozen=True, slots=True)
class Statements:
    """Statements for one revision.

    Parameters
    ----------
    position : Prepared
        Last measurement, its digest, last failure, number of retractions, last launch.
    digest : Prepared
        Digest of measurement ``id``.
    page, page_of : Prepared
        Measurements in order of their ids: after ``after`` and up to ``until``, at most ``n``;
        those with ids ``ids``.
    failures, failures_of : Prepared
        Failures up to id ``newest`` of measurements from ``first`` to ``last``; of ``ids``.
    later : Prepared
        Failures after id ``oldest`` and up to ``newest`` of measurements up to ``last``, preceded
        by the id of the measurement.
    features, features_of : Prepared
        Features of measurements from ``first`` to ``last``; of ``ids``; preceded by the id of the
        program.
    feature_sets, retractions : Prepared
        All rows.
    aliases_of : Prepared
        Aliases of workloads ``ids``.
    shared : mapping
        Rows with ids ``ids`` of each shared table.
    launches : LaunchStatements or None
        None for revisions without launches.
    """

    position: Prepared
    digest: Prepared
    page: Prepared
    page_of: Prepared
    failures: Prepared
    failures_of: Prepared
    later: Prepared
    features: Prepared
    features_of: Prepared
    feature_sets: Prepared
    retractions: Prepared
    aliases_of: Prepared
    shared: Mapping[str, Prepared]
    launches: LaunchStatements | None


def among(column: Any, statement: Select[Any]) -> Prepared:
    """Return a statement for the rows whose `column` is one of ``ids``."""
    values = func.json_each(bindparam("ids", type_=schema.Text)).table_valued("value")
    array = bindparam("ids", type_=ARRAY(BigInteger))
    return Prepared(
        {
            "sqlite": statement.where(column.in_(select(values.c.value))),
            "postgresql": statement.where(column == any_(array)),
        }
    )


#: Reads the id up to which records may have been pruned.
PRUNED = Prepared(select(schema.meta.c.value).where(schema.meta.c.key == schema.PRUNED))


@cache
def statements_of(revision: str) -> Statements:
    """Return the statements for a revision."""
    measurement = _measurement(revision)
    failure = (_f.id, _f.digest)
    is_attributed = revision >= _ATTRIBUTION
    source = _f.source_id if is_attributed else null()
    content = (_f.kind, _f.phase, _f.message, _f.seconds, source)
    failures = select(*failure, _f.measurement_id, null(), null(), *content).where(
        _f.id <= _number("newest")
    )
    features = select(
        _v.program_id, _m.id, _v.feature_set_id, _v.n_rows, _v.n_columns, _v.data
    ).join_from(schema.measurement, schema.feature, _v.program_id == _m.program_id)
    alias, retraction = schema.workload_alias.c, schema.retraction.c
    store = retraction.store if revision >= _SHARING else null()
    sets = schema.feature_set.c
    return Statements(
        position=_position(revision),
        digest=Prepared(select(_m.digest).where(_m.id == _number("id"))),
        page=Prepared(
            measurement.where(_m.id > _number("after"), _m.id <= _number("until"))
            .order_by(_m.id)
            .limit(_number("n"))
        ),
        page_of=among(_m.id, measurement.order_by(_m.id)),
        failures=Prepared(
            failures.where(_f.measurement_id.between(_number("first"), _number("last")))
        ),
        failures_of=among(_f.measurement_id, failures),
        later=_later(content),
        features=Prepared(features.where(_m.id.between(_number("first"), _number("last")))),
        features_of=among(_m.id, features),
        feature_sets=Prepared(select(sets.id, sets.name, sets.version, sets.columns)),
        retractions=Prepared(
            select(retraction.digest, store, retraction.subject, retraction.reason).order_by(
                retraction.digest
            )
        ),
        aliases_of=among(
            alias.workload_id,
            select(
                *(alias.workload_id, alias.scheme, alias.key),
                alias.source_id if is_attributed else null(),
            ),
        ),
        shared={
            name: among(columns[0], select(*columns))
            for name, columns in _SHARED.items()
            if name != "context" or revision >= _LOGS
        },
        launches=_launches(is_attributed=is_attributed) if revision >= _LAUNCHES else None,
    )


def _measurement(revision: str) -> Select[Any]:
    """Return the query of measurements with the columns of their programs."""
    earlier: dict[str, Any] = {}
    if revision < _LOGS:
        # The first revision stored "unknown" instead of NULL.
        earlier["origin"] = func.nullif(_m.origin, literal_column("'unknown'"))
        earlier["decisions"] = cast(_p.decisions, schema.Blob)
    return select(
        *(
            null()
            if column.since > revision
            else earlier.get(column.name, _TABLES[column.table].c[column.stored])
            for column in MEASUREMENT
        )
    ).select_from(_ROWS)


def _later(content: tuple[Any, ...]) -> Prepared:
    """Return the query of failures added after their measurements were sent."""
    return Prepared(
        select(
            *(_f.measurement_id, _f.id, _f.digest, null(), _p.digest, _m.digest),
            *content,
        )
        .select_from(schema.failure.join(_ROWS, _m.id == _f.measurement_id))
        .where(_f.id > _number("oldest"), _f.id <= _number("newest"), _m.id <= _number("last"))
        .order_by(_f.id)
    )


def _launches(*, is_attributed: bool) -> LaunchStatements:
    """Return the statements for launches."""
    columns = (
        *(_l.number, _l.kernel, _l.threads),
        *(_l.block_x, _l.block_y, _l.block_z, _l.grid_x, _l.grid_y, _l.grid_z),
        *(_l.registers, _l.static_shared, _l.dynamic_shared, _l.seconds),
        *(_l.counter_set_id, _l.counters),
        _l.source_id if is_attributed else null(),
    )
    until = _l.id <= _number("newest")
    launches = select(_l.id, _l.digest, _l.measurement_id, null(), null(), *columns).where(until)
    sets = (
        select(_c.id, _c.digest, _c.tool, _c.tool_version, _c.compute_capability, _c.counters)
        .distinct()
        .join_from(schema.launch, schema.counter_set, _c.id == _l.counter_set_id)
        .where(until)
    )
    in_range = _l.measurement_id.between(_number("first"), _number("last"))
    is_later = (_l.id > _number("oldest"), _l.measurement_id <= _number("last"))
    return LaunchStatements(
        of_range=Prepared(launches.where(in_range)),
        of_ids=among(_l.measurement_id, launches),
        later=Prepared(
            select(_l.measurement_id, _l.id, _l.digest, null(), _p.digest, _m.digest, *columns)
            .select_from(schema.launch.join(_ROWS, _m.id == _l.measurement_id))
            .where(until, *is_later)
            .order_by(_l.id)
        ),
        sets_of_range=Prepared(sets.where(in_range)),
        sets_of_ids=among(_l.measurement_id, sets),
        sets_later=Prepared(sets.where(*is_later)),
    )


def _position(revision: str) -> Prepared:
    """Return the query of a database's position."""
    other = schema.measurement.alias().c
    last = select(func.max(other.id)).scalar_subquery()
    return Prepared(
        select(
            last,
            select(_m.digest).where(_m.id == last).scalar_subquery(),
            select(func.max(_f.id)).scalar_subquery(),
            select(func.count()).select_from(schema.retraction).scalar_subquery(),
            select(func.max(_l.id)).scalar_subquery() if revision >= _LAUNCHES else null(),
        )
    )


# ---- The peer ------------------------------------------------------------------------------------

#: Ids per statement, which keeps their text short.
_IDS = 500


class DatabasePeer:
    """A database that sends its records (:class:`tunedb.storage.exchange_types.Peer`).

    Measurements are added to a database and rarely removed, so :meth:`position`, read first, bounds
    a consistent view of it; each page of records with everything to which it refers is one
    snapshot.

    Parameters
    ----------
    url : str, Path or URL
        A path, ``sqlite:///…`` or ``postgresql+psycopg://…``.
    own : bool
        The database is ours: a file is opened normally and must have this version's schema.
    check : bool
        Let SQLite check a whole foreign file for damage first.

    Raises
    ------
    NotFoundError, SchemaError, StorageError, UsageError
        It cannot be read (:func:`tunedb.exchange.foreign_file.open_file`).

    Attributes
    ----------
    location : str
        Name in messages, without a password.
    store_key : str
        Its stated store key.
    total : int
        Number of measurements to come, for a progress bar; exact once :meth:`chunks` has begun with
        a selection.
    revision : str
        Revision of its schema.
    """

    def __init__(self, url: str | Path | URL, *, own: bool = False, check: bool = True) -> None:
        parsed = parse_url(url)
        self.location: str = show_url(parsed)
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
        """Connect, and read revision, store key and position."""
        if self._foreign is None:
            if sqlite_path(url) is not None:
                versions.check_file(url, create=False)
            with self._errors(), connect_reader(self._engine) as reader:
                versions.prepare(reader, show_url(url), create=False)
        self.revision: str = schema.HEAD if self._foreign is None else self._foreign.revision
        self._statements = statements_of(self.revision)
        options: dict[str, Any] = {"tunedb_reads": True}
        if not self._is_sqlite:
            options |= {"isolation_level": "REPEATABLE READ", "stream_results": True}
        with self._errors():
            self._connection = self._engine.connect().execution_options(**options)
        self.store_key: str = self._own_key() if self._foreign is None else self._foreign.store_key
        self.total: int = self.position().measurement_id

    def _own_key(self) -> str:
        meta = schema.meta.c
        with self._snapshot() as connection:
            key: str | None = connection.execute(
                select(meta.value).where(meta.key == "store")
            ).scalar()
        if key is None:
            raise SchemaError(f"{self.location}: it has no store key")
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
        """Close the connection; closing twice does nothing."""
        connection, self._connection = self._connection, None
        # A broken connection may fail to roll back.
        with self._errors():
            if connection is not None:
                connection.close()
            self._engine.dispose()
        if self._foreign is not None:
            self._foreign.connection.close()

    def _errors(self) -> AbstractContextManager[None]:
        converted = converted_errors if self._foreign is None else foreign_errors
        return converted(self.location)

    @contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        """Yield the connection in a reading transaction, which may be that of a caller."""
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
                # SQLAlchemy's row objects cost as much as reading the rows; they are needed for
                # servers, because only SQLAlchemy converts errors of their driver.
                yield from (result.cursor if self._is_sqlite else map(tuple, result))  # type: ignore[misc]
            finally:
                result.close()

    def _among(self, prepared: Prepared, ids: Sequence[int], **parameters: Any) -> Generator[Row]:
        """Yield the rows of a statement for `ids`."""
        listed = orjson.dumps(ids).decode() if self._is_sqlite else list(ids)
        return self._rows(prepared, ids=listed, **parameters)

    # ------------------------------------------------------------------ position

    def position(self) -> Position:
        """Return the position of its last rows."""
        ((last, digest, failure, retractions, launch),) = self._rows(self._statements.position)
        self._require(last or 0, failure or 0, launch or 0)
        return Position(last or 0, failure or 0, digest, retractions, launch or 0)

    def digest_at(self, measurement_id: int) -> bytes | None:
        """Return the digest of a measurement, or None if there is none with this id."""
        rows = list(self._rows(self._statements.digest, id=measurement_id))
        return rows[0][0] if rows else None

    def pruned_until(self) -> int:
        """Return the id up to which records may have been pruned; 0 if none were."""
        values = [value for (value,) in self._rows(PRUNED)]
        return int(values[0]) if values and re.fullmatch("[0-9]{1,19}", values[0]) else 0

    def _require(self, *numbers: object) -> None:
        """Raise StorageError for an id that is not a number."""
        if not all(isinstance(number, int) for number in numbers):
            raise StorageError(f"{self.location}: damaged: a row has no number")

    # ------------------------------------------------------------------ rows

    def chunks(
        self, selection: Selection, since: Position | None = None, until: Position | None = None
    ) -> Iterator[Chunk]:
        """Yield the selected rows, each after the rows to which it refers.

        Parameters
        ----------
        selection : Selection
            Records to send.
        since, until : Position or None
            Only measurements, failures and launches after and up to these. With ``best``, each new
            record may change the best of a workload, so all selected records are sent if anything
            is new.

        Yields
        ------
        Chunk
            At most :data:`tunedb.limits.BATCH_ROWS` rows, and little more than
            :data:`tunedb.limits.CHUNK_BYTES` bytes.

        Raises
        ------
        NotFoundError
            No row matches a name of the selection.
        LimitError, StorageError
            The database cannot be read.
        """
        since = since or Position()
        until = until or self.position()
        start = since.measurement_id
        chosen: NDArray[np.int64] | None = None
        if record_selection.is_restricted(selection):
            chosen = self._chosen(selection, until.measurement_id)
            if selection.best is not None and start < until.measurement_id:
                start = 0
        first = 0 if chosen is None else int(np.searchsorted(chosen, start, "right"))
        left = max(0, until.measurement_id - start) if chosen is None else len(chosen) - first
        self.total = left
        sent: dict[str, set[Any]] = {name: set() for _, name in _REFERENCES}
        if chosen is None:
            yield from self._range(start, until, selection, sent)
        else:
            for at in range(first, len(chosen), limits.BATCH_ROWS):
                ids = chosen[at : at + limits.BATCH_ROWS].tolist()
                yield from self._listed(ids, until, selection, sent)
        if start:
            yield from self._later(since, until, start, chosen, sent)
        if since.retractions != until.retractions:
            rows = self._rows(self._statements.retractions)
            # The first revisions had only retractions of their own database.
            retractions = (
                (digest, self.store_key if store is None else store, subject, reason)
                for digest, store, subject, reason in rows
            )
            yield from chunks_of("retraction", retractions)

    def _chosen(self, selection: Selection, until: int) -> NDArray[np.int64]:
        """Return the ids of the selected measurements."""
        with self._snapshot() as connection:
            try:
                return record_selection.chosen_ids(
                    *(connection.execute, selection, until), has_finals=self.revision >= _FINALS
                )
            except StorageError as error:
                raise StorageError(f"{self.location}: {error}") from None

    def _range(
        self, after: int, until: Position, selection: Selection, sent: dict[str, set[Any]]
    ) -> Iterator[Chunk]:
        """Yield all measurements after an id, with the rows that belong to them."""
        while after < until.measurement_id:
            with self._snapshot():
                page = self._rows(
                    self._statements.page,
                    after=after,
                    until=until.measurement_id,
                    n=limits.BATCH_ROWS,
                )
                rows, more = first_chunk(page, after, self.location)
                if not rows:
                    return
                after = rows[-1][0]
                pick = partial(self._of_range, first=rows[0][0], last=after)
                yield from self._with_statements(rows, pick, until, selection, sent)
            if not more and len(rows) < limits.BATCH_ROWS:
                return

    def _listed(
        self,
        ids: list[int],
        until: Position,
        selection: Selection,
        sent: dict[str, set[Any]],
    ) -> Iterator[Chunk]:
        """Yield some measurements, with the rows that belong to them."""
        after, more = ids[0] - 1, True
        while more:
            with self._snapshot():
                left = [id_ for id_ in ids if id_ > after]
                page = self._among(self._statements.page_of, left)
                rows, more = first_chunk(page, after, self.location)
                if not rows:
                    return
                after = rows[-1][0]
                pick = partial(self._of_listed, [row[0] for row in rows])
                yield from self._with_statements(rows, pick, until, selection, sent)

    def _of_range(self, ranged: Prepared, _: Prepared, **parameters: Any) -> Iterator[Row]:
        return self._rows(ranged, **parameters)

    def _of_listed(
        self, ids: list[int], _: Prepared, listed: Prepared, **parameters: Any
    ) -> Iterator[Row]:
        return self._among(listed, ids, **parameters)

    def _with_statements(
        self,
        rows: list[Row],
        pick: Callable[..., Iterator[Row]],
        until: Position,
        selection: Selection,
        sent: dict[str, set[Any]],
    ) -> Iterator[Chunk]:
        """Yield a page of measurements with all rows to which they refer and that refer to them."""
        # `pick` runs one of two statements: for a range of measurements, or for some ids.
        statements, launches = self._statements, self._statements.launches
        yield from self._with_shared(rows, sent)
        failures = pick(statements.failures, statements.failures_of, newest=until.failure_id)
        yield from self._with_sources("failure", failures, sent)
        if launches is not None and until.launch_id:
            newest = until.launch_id
            yield from self._launches(
                pick(launches.sets_of_range, launches.sets_of_ids, newest=newest),
                pick(launches.of_range, launches.of_ids, newest=newest),
                sent,
            )
        if selection.features:
            yield from self._features(pick(statements.features, statements.features_of), sent)

    def _with_shared(self, rows: list[Row], sent: dict[str, set[Any]]) -> Iterator[Chunk]:
        """Yield measurements after the shared rows to which they are the first to refer."""
        for at, name in _REFERENCES:
            known = sent[name]
            needed = {row[at] for row in rows} - known
            needed.discard(None)
            # Values that are not ids are reported by the verification of the measurement.
            ids = sorted(id_ for id_ in needed if id_.__class__ is int)
            known.update(ids)
            for start in range(0, len(ids), _IDS):
                yield from self._shared(name, ids[start : start + _IDS], sent)
        yield Chunk("measurement", rows)

    def _shared(self, name: str, ids: list[int], sent: dict[str, set[Any]]) -> Iterator[Chunk]:
        """Yield rows of one shared table, and the aliases of workloads."""
        statement = self._statements.shared.get(name)
        if statement is None:
            return
        rows = self._among(statement, ids)
        if name in COMPRESSED:
            at = COLUMNS[name].index("body")
            rows = (self._unpacked(row, at) for row in rows)
        yield from chunks_of(name, rows)
        if name == "workload":
            aliases = self._among(self._statements.aliases_of, ids)
            yield from self._with_sources("workload_alias", aliases, sent)

    def _with_sources(
        self, table: str, rows: Iterator[Row], sent: dict[str, set[Any]]
    ) -> Iterator[Chunk]:
        """Yield rows after the sources that state them, unless these were sent."""
        for chunk in chunks_of(table, rows):
            ids = sorted(
                {i for row in chunk.rows if (i := row[-1]).__class__ is int} - sent["source"]
            )
            sent["source"].update(ids)
            for start in range(0, len(ids), _IDS):
                yield from self._shared("source", ids[start : start + _IDS], sent)
            yield chunk

    def _unpacked(self, row: Row, at: int) -> Row:
        """Return a row with its body unpacked, or with None if that fails."""
        limit = limits.MAX_BODY_BYTES if self._foreign is None else limits.MAX_FOREIGN_BYTES
        body: bytes | None
        try:
            body = compression.decompress(row[at], limit)
        except (LimitError, StorageError, TypeError):
            body = None
        return (*row[:at], body, *row[at + 1 :])

    def _features(self, rows: Iterator[Row], sent: dict[str, set[Any]]) -> Iterator[Chunk]:
        """Yield features, once per program, which may have several measurements."""
        if "feature_set" not in sent:
            sent["feature_set"] = set()
            yield from chunks_of("feature_set", self._rows(self._statements.feature_sets))
        seen: set[tuple[Any, Any]] = set()

        def new() -> Iterator[Row]:
            for program, *values in rows:
                if (program, values[1]) not in seen:
                    seen.add((program, values[1]))
                    yield tuple(values)

        yield from chunks_of("feature", new())

    def _launches(
        self, sets: Iterator[Row], launches: Iterator[Row], sent: dict[str, set[Any]]
    ) -> Iterator[Chunk]:
        """Yield launches after their counter sets, unless these were sent."""
        known = sent.setdefault("counter_set", set())
        new = [row for row in sets if row[0] not in known]
        known.update(row[0] for row in new)
        yield from chunks_of("counter_set", new)
        yield from self._with_sources("launch", launches, sent)

    def _later(
        self,
        since: Position,
        until: Position,
        last: int,
        chosen: NDArray[np.int64] | None,
        sent: dict[str, set[Any]],
    ) -> Iterator[Chunk]:
        """Yield failures and launches added after their measurements were sent."""

        def selected(rows: Iterator[Row]) -> Iterator[Row]:
            for row in rows:
                if chosen is None or record_selection.has(chosen, row[0]):
                    yield row[1:]

        if since.failure_id < until.failure_id:
            bounds = {"oldest": since.failure_id, "newest": until.failure_id, "last": last}
            failures = selected(self._rows(self._statements.later, **bounds))
            yield from self._with_sources("failure", failures, sent)
        launches = self._statements.launches
        if launches is not None and since.launch_id < until.launch_id:
            bounds = {"oldest": since.launch_id, "newest": until.launch_id, "last": last}
            sets = self._rows(launches.sets_later, **bounds)
            later = selected(self._rows(launches.later, **bounds))
            yield from self._launches(sets, later, sent)
