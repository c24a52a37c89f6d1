"""Selection of records by SQL, from a database or from a stream of chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, StaticPool, cast, create_engine, func, or_, select

from .. import identity, limits
from ..errors import StorageError
from ..identity import DIGEST_BYTES
from ..records import LOOSE, Status
from ..run_times import mean_of
from ..storage import schema, superseded
from ..storage.columns import AT, Form, names_of
from ..storage.engine import converted_errors
from ..storage.exchange_types import COLUMNS, Chunk, Selection
from ..storage.lookup import Kind, Matcher, target_labels
from .verify import DigestedRow, MeasurementVerifier, SharedRows

if TYPE_CHECKING:
    from ..storage.store import Store

__all__ = ["chosen_ids", "filtered", "has", "is_restricted"]

# ---- Ranking: the fastest records of each workload and target, and a sample of the others --------

Ids = NDArray[np.int64]


class Ranks:
    """Rank keys of records: 37 bytes each, and about as many while they are sorted."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, int], int] = {}
        self._parts: dict[str, list[NDArray[np.generic]]] = {
            name: [] for name in ("id", "group", "failed", "mean", "high", "low")
        }

    def add(
        self,
        ids: Sequence[int],
        groups: Sequence[tuple[int, int]],
        statuses: Sequence[int],
        means: Sequence[float | None],
        digests: Sequence[bytes],
    ) -> None:
        """Add records.

        Parameters
        ----------
        ids : sequence of int
            Record ids.
        groups : sequence of tuple
            Ids of workload and target.
        statuses : sequence of int
            Values of :class:`tunedb.records.Status`.
        means : sequence of float or None
            Mean times in seconds.
        digests : sequence of bytes
            16 bytes each; they break ties, so that all machines choose the same records.

        Raises
        ------
        ValueError
            A digest has another length.
        """
        numbers = self._groups
        codes = [numbers.setdefault(group, len(numbers)) for group in groups]
        failed = np.array(statuses, np.int64) != Status.OK
        mean = np.array(means, np.float64)
        mean[np.isnan(mean)] = math.inf
        # Failed records rank after all others, by digest.
        mean[failed] = 0.0
        if any(len(digest) != DIGEST_BYTES for digest in digests):
            raise ValueError("a digest of another length")
        halves = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2).astype(np.uint64)
        for name, values in (
            ("id", np.array(ids, np.int64)),
            ("group", np.array(codes, np.int32)),
            ("failed", failed),
            ("mean", mean),
            ("high", halves[:, 0].copy()),
            ("low", halves[:, 1].copy()),
        ):
            self._parts[name].append(values)

    def chosen(self, best: int, rest: float) -> Ids:
        """Return the sorted ids of the best records and of the others; may be called once.

        Parameters
        ----------
        best : int
            Number of the fastest records of each group.
        rest : float
            Number of others, as a share of `best`.
        """
        if not self._parts["id"]:
            return np.empty(0, np.int64)
        # Concatenated one by one, to free the parts at once.
        columns = {name: np.concatenate(self._parts.pop(name)) for name in list(self._parts)}
        ids = columns.pop("id")
        keys = ("low", "high", "mean", "failed", "group")
        order = np.lexsort([columns[name] for name in keys])
        group, failed = columns["group"][order], columns["failed"][order]
        del columns
        starts = np.flatnonzero(np.diff(group, prepend=np.int32(-1)))
        ends = np.append(starts[1:], len(order))
        # Bounded by what arrays hold: users may give any number.
        share = math.floor(min(min(best, 2**62) * rest, len(ids)) + 0.5)
        ranks = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            valid = int(np.count_nonzero(~failed[start:end]))
            ranks.append(start + _spread(end - start, valid, best, share))
        chosen = ids[order[np.concatenate(ranks)]]
        chosen.sort()
        return chosen


def _spread(size: int, valid: int, best: int, share: int) -> Ids:
    """Return the first `best` of the valid ranks of a group, and `share` evenly spread others."""
    first = min(best, valid)
    left = size - first
    count = min(share, left)
    # The middles of equal stretches. 2 i + 1 < 2 count, so the product stays below 2 left count.
    middles = (2 * np.arange(count, dtype=np.int64) + 1) * left // (2 * count or 1)
    return np.concatenate([np.arange(first, dtype=np.int64), first + middles])


# ---- Selection by SQL ----------------------------------------------------------------------------

#: Runs a statement and returns its rows.
Fetch = Callable[[Select[Any]], Iterable[Any]]

#: Rows per statement.
_PAGE = 20_000

#: Ids per condition.
_IDS = 500

_m = schema.measurement.c


def has(ids: Ids, number: int) -> bool:
    """Return true if a number is among sorted `ids`."""
    at = int(np.searchsorted(ids, number))
    return at < len(ids) and int(ids[at]) == number


def chosen_ids(
    database: Store | Fetch,
    selection: Selection,
    until: int | None = None,
    *,
    has_finals: bool = True,
) -> Ids:
    """Return the sorted ids of the selected measurements.

    With ``best``, superseded records (:mod:`tunedb.storage.superseded`) are left out.

    Parameters
    ----------
    database : Store or callable
        A store of ours, or a function that returns the rows of a Core statement.
    selection : Selection
        The selection.
    until : int or None
        Only measurements up to this id; others are not ranked for ``best``.
    has_finals : bool
        False for a database of a revision before finals.

    Returns
    -------
    array of int64
        8 bytes per record; below 64 bytes per record that fulfils the other conditions while
        ``best`` is computed.

    Raises
    ------
    NotFoundError
        No row matches a name of the selection.
    StorageError
        A measurement cannot be ranked.
    """
    fetch: Fetch
    if callable(database):
        fetch, equivalent = database, partial(_equivalent, database)
    else:
        fetch, equivalent = database.exchange.select, partial(_confirmed, database)
    conditions = _conditions(fetch, selection, equivalent)
    if until is not None:
        conditions.append(_m.id <= until)
    try:
        if selection.best is None:
            return _all(fetch, conditions)
        if has_finals:
            conditions.append(superseded.is_ranked(_m, is_portable=True))
        ranks = Ranks()
        _fill(fetch, conditions, ranks)
    except (TypeError, ValueError, OverflowError) as error:
        raise StorageError(
            f"a measurement cannot be compared ({error}); run: tunedb db check"
        ) from None
    return ranks.chosen(selection.best, selection.rest)


def _conditions(
    fetch: Fetch, selection: Selection, equivalent: Callable[[set[int]], set[int]]
) -> list[Any]:
    """Return the conditions of a selection except ``best``."""
    w, t, s = schema.workload.c, schema.target.c, schema.source.c
    conditions: list[Any] = []
    if selection.workloads:
        named = _named("workload", selection.workloads, _pages(fetch, _names(w), w.id))
        conditions.append(_is_one(_m.workload_id, named | equivalent(named)))
    if selection.targets:
        matcher = Matcher("target", selection.targets, ids=False)
        for id_, kind, config in _pages(fetch, select(t.id, t.kind, _short(t.config)), t.id):
            labels, attributes = target_labels(kind, config)
            matcher.add(id_, labels, attributes=attributes)
        conditions.append(_is_one(_m.target_id, matcher.all()))
    if selection.sources:
        named = _named("source", selection.sources, _pages(fetch, _names(s), s.id))
        conditions.append(_is_one(_m.source_id, named))
    if selection.since:
        conditions.append(_m.measured_at >= selection.since)
    return conditions


def _names(columns: Any) -> Select[Any]:
    return select(columns.id, _short(columns.name), _short(columns.digest))


def _named(kind: Kind, words: Iterable[str], rows: Iterable[Any]) -> set[int]:
    """Return the ids of the rows (id, name, digest) that match one of the words."""
    matcher = Matcher(kind, words, ids=False)
    for id_, name, digest in rows:
        # A damaged file may hold any type.
        labels = [name] if isinstance(name, str) else []
        matcher.add(id_, labels, digest if isinstance(digest, bytes) else None)
    return matcher.all()


def _short(column: Any) -> Any:
    """Return a column, cut to the length that is used."""
    if column.type is schema.Blob:
        return func.substr(column, 1, DIGEST_BYTES)
    return func.substr(column, 1, limits.MAX_TARGET_CHARS + 1)


def _pages(fetch: Fetch, statement: Select[Any], key: Any) -> Iterator[Any]:
    """Yield the rows of a statement in order of `key`, its first column."""
    after: int | None = None
    while True:
        page = statement if after is None else statement.where(key > after)
        count = 0
        for row in fetch(page.order_by(key).limit(_PAGE)):
            # A damaged file whose rows are out of order could be read for ever.
            if not isinstance(row[0], int) or (after is not None and row[0] <= after):
                raise StorageError("damaged: rows are out of order")
            after = row[0]
            count += 1
            yield row
        if count < _PAGE:
            return


def _is_one(column: Any, numbers: Collection[int]) -> Any:
    """Return the condition that a column has one of some values."""
    ordered = sorted(numbers)
    batches = [ordered[at : at + _IDS] for at in range(0, len(ordered), _IDS)]
    return or_(*(column.in_(batch) for batch in batches))


def _confirmed(store: Store, ids: Collection[int]) -> set[int]:
    """Return the equivalents of workloads of our database."""
    return {other for id_ in ids for other in store.workloads.equivalent(id_)}


def _equivalent(fetch: Fetch, ids: Collection[int]) -> set[int]:
    """Return the workloads of another database that share an alias with one of `ids`."""
    alias, other = schema.workload_alias.alias().c, schema.workload_alias.alias().c
    equivalents: set[int] = set()
    ordered = sorted(ids)
    for at in range(0, len(ordered), _IDS):
        statement = (
            select(other.workload_id)
            .distinct()
            .where(
                alias.workload_id.in_(ordered[at : at + _IDS]),
                other.scheme == alias.scheme,
                other.key == alias.key,
                *(~alias.scheme.endswith(mode) for mode in LOOSE),
            )
        )
        equivalents.update(row[0] for row in fetch(statement))
    return equivalents


def _measured(conditions: Sequence[Any], *columns: Any) -> Select[Any]:
    # A damaged file may have long text in a numeric column.
    numbers = [cast(column, column.type) for column in columns if column.type is not schema.Blob]
    digests = [_short(column) for column in columns if column.type is schema.Blob]
    return select(*numbers, *digests).where(*conditions)


def _all(fetch: Fetch, conditions: Sequence[Any]) -> Ids:
    rows = _pages(fetch, _measured(conditions, _m.id), _m.id)
    return np.fromiter((row[0] for row in rows), np.int64)


def _fill(fetch: Fetch, conditions: Sequence[Any], ranks: Ranks) -> None:
    """Rank all measurements that fulfil the conditions."""
    statement = _measured(
        conditions, _m.id, _m.workload_id, _m.target_id, _m.status, _m.mean, _m.digest
    )
    page: list[Sequence[Any]] = []

    def note() -> None:
        ids, workloads, targets, statuses, means, digests = zip(*page, strict=True)
        groups = list(zip(workloads, targets, strict=True))
        ranks.add(ids, groups, statuses, means, digests)
        page.clear()

    for row in _pages(fetch, statement, _m.id):
        page.append(row)
        if len(page) == _PAGE:
            note()
    if page:
        note()


# ---- Selection from a stream of chunks -----------------------------------------------------------
#
# The columns that decide are loaded into a temporary database, where the same SQL selects. The
# stream is read several times, so that only ids of records are held in memory.

Row = tuple[Any, ...]
Chunks = Callable[[], Iterator[Chunk]]

_NO_DIGEST = bytes(DIGEST_BYTES)

_SET = COLUMNS["launch"].index("counter_set")

#: Maximum number of shared rows: more than a merge accepts, and still few enough for memory.
_MAX_SHARED = 4 * limits.MAX_SHARED_ROWS

_SHARED = names_of(Form.REFERENCE, Form.SHARED_JSON)

#: Columns that :func:`chosen_ids` reads, by table.
_DECIDING = {
    "workload": ("id", "name", "digest"),
    "target": ("id", "kind", "config"),
    "source": ("id", "name", "digest"),
    "workload_alias": ("workload_id", "scheme", "key"),
    "session": ("id", "fingerprint"),
    "measurement": (
        *("id", "workload_id", "target_id", "source_id", "measured_at", "status", "session_id"),
        *("extra", "mean", "digest", "program_id"),
    ),
}
_INSERT = {
    table: f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
    for table, columns in _DECIDING.items()
}
_values_of = itemgetter(
    *(AT[name] for name in ("id", "workload", "target", "source")),
    *(AT[name] for name in ("measured_at", "status", "session")),
)


def is_restricted(selection: Selection) -> bool:
    """Return true if a selection excludes measurements."""
    s = selection
    return bool(s.workloads or s.targets or s.sources or s.since) or s.best is not None


def filtered(chunks: Chunks, selection: Selection) -> Iterator[Chunk]:
    """Yield the selected rows of a stream.

    Parameters
    ----------
    chunks : callable
        Returns the stream from its beginning; called up to three times.
    selection : Selection
        The selection.

    Yields
    ------
    Chunk
        Shared rows only if a selected measurement refers to them. All retractions.

    Raises
    ------
    NotFoundError
        No row matches a name of the selection.
    """
    if not is_restricted(selection):
        for chunk in chunks():
            if selection.features or chunk.table not in ("feature", "feature_set"):
                yield chunk
        return
    with _temporary_database() as connection:
        _load(connection, chunks(), selection)
        chosen = chosen_ids(connection.execute, selection)
    needed = _needed(chunks, chosen)
    for chunk in chunks():
        rows = _selected(chunk, chosen, needed, features=selection.features)
        if rows:
            yield Chunk(chunk.table, rows)


@contextmanager
def _temporary_database() -> Iterator[Connection]:
    """Yield a database with the tables of :data:`_DECIDING`; a large one is on disk."""
    engine = create_engine("sqlite:///file:?uri=true", poolclass=StaticPool)
    try:
        with converted_errors("temporary file"), engine.connect() as connection:
            for pragma in ("journal_mode=OFF", "temp_store=FILE", "cache_size=-8192"):
                connection.exec_driver_sql(f"PRAGMA {pragma}")
            for table, columns in _DECIDING.items():
                first, *others = columns
                key = f"{first} INTEGER PRIMARY KEY" if first == "id" else first
                connection.exec_driver_sql(f"CREATE TABLE {table} ({', '.join((key, *others))})")
            yield connection
    finally:
        engine.dispose()


def _load(connection: Connection, chunks: Iterator[Chunk], selection: Selection) -> None:
    """Load the deciding columns of a stream."""
    is_ranked = selection.best is not None
    named = {"workload": selection.workloads, "source": selection.sources}
    # Only these tables need digests, which bundles omit.
    digested = _SHARED if is_ranked else tuple(table for table, words in named.items() if words)
    with closing(SharedRows(_ignore, _MAX_SHARED)) as shared:
        verifier = MeasurementVerifier(shared)
        for table, rows in ((chunk.table, chunk.rows) for chunk in chunks):
            if table in digested:
                shared.take(table, rows)
            if table == "measurement":
                ranks: Iterable[Row] = repeat((None,) * 4)
                if is_ranked:
                    ranks = map(_rank, rows, verifier.digested(rows))
                values = [(*_values_of(row), *rank) for row, rank in zip(rows, ranks, strict=False)]
            elif table in _DECIDING:
                columns = [name.removesuffix("_id") for name in _DECIDING[table]]
                at = [COLUMNS[table].index(name) for name in columns]
                values = [tuple(row[i] for i in at) for row in rows]
                if table in digested and columns[-1] == "digest":
                    digests = shared.digests[table]
                    values = [(*row[:-1], digests.get(row[0])) for row in values]
            else:
                continue
            connection.exec_driver_sql(_INSERT[table], values)
    connection.exec_driver_sql("CREATE INDEX alias ON workload_alias (scheme, key)")
    connection.exec_driver_sql("CREATE INDEX workload_of_alias ON workload_alias (workload_id)")


def _ignore(reason: str, example: str) -> None:
    """Ignore a malformed row, which the receiver of the stream reports."""


def _rank(row: Row, item: DigestedRow | tuple[Row, str]) -> Row:
    """Return what decides about a measurement's rank: a program's digest serves as its id.

    A row that refers to a malformed one, e.g. a session that is not JSON, has no program.
    """
    extra = row[AT["extra"]]
    extra = extra[: len(schema.LOST)] if isinstance(extra, str) else None
    if isinstance(item, DigestedRow):
        return extra, _mean(row), item.measurement, item.program
    return extra, _mean(row), _NO_DIGEST, None


def _mean(row: Row) -> float | None:
    """Return the mean of a measurement's times, or None."""
    times = identity.unpack_floats(row[AT["run_secs"]] or b"")
    try:
        # SQLite stores NaN as NULL too.
        return mean_of(times) if times else None
    except (OverflowError, ValueError):
        return None


def _needed(chunks: Chunks, chosen: Ids) -> dict[str, set[Any]]:
    """Return the ids of the shared rows to which chosen measurements refer."""
    needed: dict[str, set[Any]] = {name: set() for name in (*_SHARED, "counter_set")}
    named_by: dict[int, set[Any]] = {}
    for chunk in chunks():
        if chunk.table == "workload_alias":
            for row in chunk.rows:
                named_by.setdefault(row[0], set()).add(row[-1])
        elif chunk.table == "measurement":
            rows = _only(chunk.rows, 0, chosen)
            for name in _SHARED:
                needed[name].update(row[AT[name]] for row in rows)
        elif chunk.table in ("failure", "launch"):
            rows = _selected(chunk, chosen, {}, features=False)
            needed["source"].update(row[-1] for row in rows)
            if chunk.table == "launch":
                needed["counter_set"].update(row[_SET] for row in rows)
    for workload in needed["workload"]:
        needed["source"] |= named_by.get(workload, set())
    return needed


def _only(rows: Sequence[Row], at: int, ids: Ids) -> list[Row]:
    """Return the rows whose id is among sorted `ids`."""
    if not len(ids):
        return []
    numbers = np.array([row[at] for row in rows], np.int64)
    places = np.minimum(np.searchsorted(ids, numbers), len(ids) - 1)
    is_chosen = (ids[places] == numbers).tolist()
    return [row for row, chosen in zip(rows, is_chosen, strict=True) if chosen]


def _selected(
    chunk: Chunk, chosen: Ids, needed: dict[str, set[Any]], *, features: bool
) -> list[Row]:
    """Return the selected rows of a chunk."""
    table, rows = chunk.table, chunk.rows
    if table == "measurement":
        return _only(rows, 0, chosen)
    if table in needed:
        return [row for row in rows if row[0] in needed[table]]
    if table == "workload_alias":
        return [row for row in rows if row[0] in needed["workload"]]
    if table in ("failure", "launch"):
        # A row that names its measurement by digests belongs to a record sent before.
        later = [row for row in rows if row[2] is None]
        return later + _only([row for row in rows if row[2] is not None], 2, chosen)
    if table == "feature":
        return _only(rows, 0, chosen) if features else []
    return rows if features or table != "feature_set" else []
