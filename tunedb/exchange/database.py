"""A database as the giving side of an exchange: a file or a server, ours or somebody else's."""

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
    converted_errors,
    make_engine,
    parse_url,
    show_url,
    sqlite_path,
)
from ..storage.exchanged import COLUMNS, Chunk, Position, Selection
from ..system import compression
from . import selection as choosing
from .foreign_file import ForeignFile, foreign_errors, open_file

# ---- Rows into chunks that are bounded in rows and bytes -----------------------------------------

Row = tuple[Any, ...]

_SIZED = (bytes, str)


def _size(row: Row) -> int:
    """Return the bytes and characters of a row's long values."""
    return sum([len(value) for value in row if value.__class__ in _SIZED])


def cut(table: str, rows: Iterable[Row]) -> Iterator[Chunk]:
    """Yield rows in chunks that are bounded in rows and bytes."""
    part: list[Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += _size(row)
        if len(part) == limits.BATCH_ROWS or size > limits.CHUNK_BYTES:
            yield Chunk(table, part)
            part, size = [], 0
    if part:
        yield Chunk(table, part)


def taken(page: Generator[Row], after: int, where: str) -> tuple[list[Row], bool]:
    """Return the rows of a page that fit into a chunk, and whether some did not.

    Parameters
    ----------
    page : generator of tuple
        Rows in order of their numbers, which come first; it is closed.
    after : int
        Below all of them.
    where : str
        The database, for messages.

    Raises
    ------
    StorageError
        They are not in order: a damaged file could be read for ever.
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


# ---- What is asked of a database that is read for an exchange; one set of statements per ---------
# revision
#
# Columns come in the order of :data:`tunedb.storage.exchanged.COLUMNS`, so that a row that was
# fetched # is a row of a chunk. What an earlier revision lacks is NULL.

_m, _p, _f, _v = schema.measurement.c, schema.program.c, schema.failure.c, schema.feature.c
_l, _c = schema.launch.c, schema.counter_set.c

_ROWS = schema.measurement.join(schema.program, _p.id == _m.program_id)

#: The first revision with contexts, whole trials and bytes as decisions; with retractions of other
#: databases; with launches; and with the sources of aliases, failures and launches.
_LOGS, _SHARING, _LAUNCHES, _SAID = "0002", "0004", "0005", "0006"

#: Where a row of ``measurement`` names a shared row, and of which table.
_REFERENCES = tuple((AT[name], name) for name in COLUMNS if name in AT)

_TABLES = schema.metadata.tables

#: What shared rows are read from.
_SHARED: Mapping[str, tuple[Any, ...]] = {
    name: tuple(_TABLES[name].c[column] for column in COLUMNS[name]) for _, name in _REFERENCES
}

#: Tables whose bodies are compressed.
COMPRESSED = frozenset({"workload", "sketch", "tail"})


def _number(name: str) -> Any:
    return bindparam(name, type_=schema.Int)


@dataclass(frozen=True, slots=True)
class Launches:
    """The statements for launches, up to number ``newest``.

    Parameters
    ----------
    of_range, of, later : Prepared
        As :attr:`Tables.failures`, :attr:`Tables.failures_of` and :attr:`Tables.later`.
    sets_of_range, sets_of, sets_later : Prepared
        The sets of counters that these refer to.
    """

    of_range: Prepared
    of: Prepared
    later: Prepared
    sets_of_range: Prepared
    sets_of: Prepared
    sets_later: Prepared


@dataclass(frozen=True, slots=True)
class Tables:
    """The statements for one revision.

    Parameters
    ----------
    position : Prepared
        Last measurement, its digest, last failure, number of retractions, last launch.
    digest : Prepared
        The digest of measurement ``id``.
    page, page_of : Prepared
        Measurements in order of their numbers: above ``after`` and up to ``until``, at most
        ``n``; those with numbers ``ids``.
    failures, failures_of : Prepared
        Failures up to number ``newest`` of measurements from ``first`` to ``last``; of ``ids``.
    later : Prepared
        Failures above number ``oldest`` and up to ``newest`` of measurements up to ``last``; the
        number of the measurement stands before the columns.
    features, features_of : Prepared
        Features of measurements from ``first`` to ``last``; of ``ids``. The number of the program
        stands before the columns.
    feature_sets, retractions : Prepared
        All of them.
    aliases_of : Prepared
        The aliases of workloads ``ids``.
    shared : mapping
        Table → its rows with numbers ``ids``.
    launches : Launches or None
        None where the revision has none.
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
    launches: Launches | None


def among(column: Any, statement: Select[Any]) -> Prepared:
    """Return a statement of the rows whose `column` is one of ``ids`` (see :func:`listed`)."""
    values = func.json_each(bindparam("ids", type_=schema.Text)).table_valued("value")
    array = bindparam("ids", type_=ARRAY(BigInteger))
    return Prepared(
        {
            "sqlite": statement.where(column.in_(select(values.c.value))),
            "postgresql": statement.where(column == any_(array)),
        }
    )


#: Up to which number records may have been pruned.
PRUNED = Prepared(select(schema.meta.c.value).where(schema.meta.c.key == schema.PRUNED))


@cache
def tables_of(revision: str) -> Tables:
    """Return the statements for a revision."""
    measurement = _measurement(revision)
    failure = (_f.id, _f.digest)
    is_said = revision >= _SAID
    said = (_f.kind, _f.phase, _f.message, _f.seconds, _f.source_id if is_said else null())
    own = select(*failure, _f.measurement_id, null(), null(), *said).where(
        _f.id <= _number("newest")
    )
    features = select(
        _v.program_id, _m.id, _v.feature_set_id, _v.n_rows, _v.n_columns, _v.data
    ).join_from(schema.measurement, schema.feature, _v.program_id == _m.program_id)
    alias, retraction = schema.workload_alias.c, schema.retraction.c
    store = retraction.store if revision >= _SHARING else null()
    sets = schema.feature_set.c
    return Tables(
        position=_position(revision),
        digest=Prepared(select(_m.digest).where(_m.id == _number("id"))),
        page=Prepared(
            measurement.where(_m.id > _number("after"), _m.id <= _number("until"))
            .order_by(_m.id)
            .limit(_number("n"))
        ),
        page_of=among(_m.id, measurement.order_by(_m.id)),
        failures=Prepared(own.where(_f.measurement_id.between(_number("first"), _number("last")))),
        failures_of=among(_f.measurement_id, own),
        later=_later(said),
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
                alias.source_id if is_said else null(),
            ),
        ),
        shared={
            name: among(columns[0], select(*columns))
            for name, columns in _SHARED.items()
            if name != "context" or revision >= _LOGS
        },
        launches=_launches(said=is_said) if revision >= _LAUNCHES else None,
    )


def _measurement(revision: str) -> Select[Any]:
    """Return the columns of measurements with those of their programs."""
    earlier: dict[str, Any] = {}
    if revision < _LOGS:
        # The first revision had a word for None.
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


def _later(said: tuple[Any, ...]) -> Prepared:
    """Return the failures that were learnt after their measurements were given."""
    return Prepared(
        select(
            *(_f.measurement_id, _f.id, _f.digest, null(), _p.digest, _m.digest),
            *said,
        )
        .select_from(schema.failure.join(_ROWS, _m.id == _f.measurement_id))
        .where(_f.id > _number("oldest"), _f.id <= _number("newest"), _m.id <= _number("last"))
        .order_by(_f.id)
    )


def _launches(*, said: bool) -> Launches:
    """Return the statements for launches; `said` is whether their sources are known."""
    columns = (
        *(_l.number, _l.kernel, _l.threads),
        *(_l.block_x, _l.block_y, _l.block_z, _l.grid_x, _l.grid_y, _l.grid_z),
        *(_l.registers, _l.static_shared, _l.dynamic_shared, _l.seconds),
        *(_l.counter_set_id, _l.counters),
        _l.source_id if said else null(),
    )
    until = _l.id <= _number("newest")
    own = select(_l.id, _l.digest, _l.measurement_id, null(), null(), *columns).where(until)
    named = (_c.id, _c.digest, _c.tool, _c.tool_version, _c.compute_capability, _c.counters)
    sets = (
        select(*named)
        .distinct()
        .join_from(schema.launch, schema.counter_set, _c.id == _l.counter_set_id)
        .where(until)
    )
    ends = _l.measurement_id.between(_number("first"), _number("last"))
    after = (_l.id > _number("oldest"), _l.measurement_id <= _number("last"))
    return Launches(
        of_range=Prepared(own.where(ends)),
        of=among(_l.measurement_id, own),
        later=Prepared(
            select(_l.measurement_id, _l.id, _l.digest, null(), _p.digest, _m.digest, *columns)
            .select_from(schema.launch.join(_ROWS, _m.id == _l.measurement_id))
            .where(until, *after)
            .order_by(_l.id)
        ),
        sets_of_range=Prepared(sets.where(ends)),
        sets_of=among(_l.measurement_id, sets),
        sets_later=Prepared(sets.where(*after)),
    )


def _position(revision: str) -> Prepared:
    """Return how far the rows of a database go."""
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


# ---- A database that is read for an exchange: its connection, and how far its rows go ------------


class OpenedDatabase:
    """The part of :class:`tunedb.exchange.database.DatabasePeer` that opens and asks."""

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


# ---- The giving database -------------------------------------------------------------------------

#: Numbers asked for at once: the text of them stays short.
_NUMBERS = 500


class DatabasePeer(OpenedDatabase):
    """A database that gives its records (:class:`tunedb.storage.exchanged.Peer`).

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
        It cannot be read (:func:`tunedb.exchange.foreign_file.open_file`).

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
            Only measurements, failures and launches after and up to there. The best of a workload
            may be others with each record that is added: with ``best`` all of them are given where
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
        if start:
            yield from self._later(since, until, start, chosen, given)
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
        while after < until.measurement_id:
            with self._snapshot():
                page = self._rows(
                    self._tables.page, after=after, until=until.measurement_id, n=limits.BATCH_ROWS
                )
                rows, more = taken(page, after, self.location)
                if not rows:
                    return
                after = rows[-1][0]
                pick = partial(self._of_range, first=rows[0][0], last=after)
                yield from self._with_learnt(rows, pick, until, selection, given)
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
        after, more = ids[0] - 1, True
        while more:
            with self._snapshot():
                left = [id_ for id_ in ids if id_ > after]
                page = self._among(self._tables.page_of, left)
                rows, more = taken(page, after, self.location)
                if not rows:
                    return
                after = rows[-1][0]
                pick = partial(self._of_listed, [row[0] for row in rows])
                yield from self._with_learnt(rows, pick, until, selection, given)

    def _of_range(self, ranged: Prepared, _: Prepared, **parameters: Any) -> Iterator[Row]:
        return self._rows(ranged, **parameters)

    def _of_listed(
        self, ids: list[int], _: Prepared, listed: Prepared, **parameters: Any
    ) -> Iterator[Row]:
        return self._among(listed, ids, **parameters)

    def _with_learnt(
        self,
        rows: list[Row],
        pick: Callable[..., Iterator[Row]],
        until: Position,
        selection: Selection,
        given: dict[str, set[Any]],
    ) -> Iterator[Chunk]:
        """Yield a page of measurements after what they refer to, and then what belongs to them.

        `pick` runs one of two statements: that for a range of measurements, or that for some.
        """
        tables, launches = self._tables, self._tables.launches
        yield from self._with_shared(rows, given)
        failures = pick(tables.failures, tables.failures_of, newest=until.failure_id)
        yield from self._said("failure", failures, given)
        if launches is not None and until.launch_id:
            newest = until.launch_id
            sets = pick(launches.sets_of_range, launches.sets_of, newest=newest)
            found = pick(launches.of_range, launches.of, newest=newest)
            yield from self._launched(sets, found, given)
        if selection.features:
            yield from self._features(pick(tables.features, tables.features_of), given)

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
                yield from self._shared(name, ids[start : start + _NUMBERS], given)
        yield Chunk("measurement", rows)

    def _shared(self, name: str, ids: list[int], given: dict[str, set[Any]]) -> Iterator[Chunk]:
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
            yield from self._said(
                "workload_alias", self._among(self._tables.aliases_of, ids), given
            )

    def _said(self, table: str, rows: Iterator[Row], given: dict[str, set[Any]]) -> Iterator[Chunk]:
        """Yield rows after the sources that say it, where these are needed for the first time."""
        for chunk in cut(table, rows):
            ids = sorted(
                {i for row in chunk.rows if (i := row[-1]).__class__ is int} - given["source"]
            )
            given["source"].update(ids)
            for start in range(0, len(ids), _NUMBERS):
                yield from self._shared("source", ids[start : start + _NUMBERS], given)
            yield chunk

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

    def _launched(
        self, sets: Iterator[Row], launches: Iterator[Row], given: dict[str, set[Any]]
    ) -> Iterator[Chunk]:
        """Yield launches after the sets of counters that are needed for the first time."""
        known = given.setdefault("counter_set", set())
        new = [row for row in sets if row[0] not in known]
        known.update(row[0] for row in new)
        yield from cut("counter_set", new)
        yield from self._said("launch", launches, given)

    def _later(
        self,
        since: Position,
        until: Position,
        last: int,
        chosen: NDArray[np.int64] | None,
        given: dict[str, set[Any]],
    ) -> Iterator[Chunk]:
        """Yield failures and launches that were learnt after their measurements were given."""

        def meant(rows: Iterator[Row]) -> Iterator[Row]:
            for row in rows:
                if chosen is None or choosing.has(chosen, row[0]):
                    yield row[1:]

        if since.failure_id < until.failure_id:
            ends = {"oldest": since.failure_id, "newest": until.failure_id, "last": last}
            yield from self._said("failure", meant(self._rows(self._tables.later, **ends)), given)
        launches = self._tables.launches
        if launches is not None and since.launch_id < until.launch_id:
            ends = {"oldest": since.launch_id, "newest": until.launch_id, "last": last}
            found = meant(self._rows(launches.later, **ends))
            yield from self._launched(self._rows(launches.sets_later, **ends), found, given)
