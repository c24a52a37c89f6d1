"""Which records a selection means: SQL chooses them, of a database and of a stream of chunks."""

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
from ..storage import schema
from ..storage.columns import AT, Form, names_of
from ..storage.engine import converted_errors
from ..storage.exchanged import COLUMNS, Chunk, Selection
from ..storage.lookup import Kind, Matcher, target_labels
from .verify import Digested, Measurements, SharedRows

if TYPE_CHECKING:
    from ..storage.store import Store

__all__ = ["chosen_ids", "filtered", "has", "is_restricted"]

# ---- The fastest records of each workload and target, and an even choice of the others -----------

Ids = NDArray[np.int64]


class Ranks:
    """Records in few bytes each (37, and about as many while they are sorted)."""

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
        """Note records.

        Parameters
        ----------
        ids : sequence of int
            Their numbers.
        groups : sequence of tuple
            Numbers of workload and target.
        statuses : sequence of int
            Values of :class:`tunedb.records.Status`.
        means : sequence of float or None
            Seconds.
        digests : sequence of bytes
            Of 16 bytes each; they order what is equal otherwise, so that all machines choose the
            same records.

        Raises
        ------
        ValueError
            A digest has another length.
        """
        known = self._groups
        codes = [known.setdefault(group, len(known)) for group in groups]
        failed = np.array(statuses, np.int64) != Status.OK
        mean = np.array(means, np.float64)
        mean[np.isnan(mean)] = math.inf
        # Failed ones are one more stretch of the order.
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
        """Return the numbers of the best records and of the rest, in order; only to be asked once.

        Parameters
        ----------
        best : int
            How many of the fastest of each group.
        rest : float
            How many others, as a share of `best`.
        """
        if not self._parts["id"]:
            return np.empty(0, np.int64)
        # Joined one by one, and the parts given back at once.
        columns = {name: np.concatenate(self._parts.pop(name)) for name in list(self._parts)}
        ids = columns.pop("id")
        keys = ("low", "high", "mean", "failed", "group")
        order = np.lexsort([columns[name] for name in keys])
        group, failed = columns["group"][order], columns["failed"][order]
        del columns
        starts = np.flatnonzero(np.diff(group, prepend=np.int32(-1)))
        ends = np.append(starts[1:], len(order))
        # Below what arrays hold: people may ask for any number.
        share = math.floor(min(min(best, 2**62) * rest, len(ids)) + 0.5)
        taken = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            valid = int(np.count_nonzero(~failed[start:end]))
            taken.append(start + _spread(end - start, valid, best, share))
        numbers = ids[order[np.concatenate(taken)]]
        numbers.sort()
        return numbers


def _spread(size: int, valid: int, best: int, share: int) -> Ids:
    """Return which of the ranks of a group are chosen.

    Parameters
    ----------
    size, valid : int
        Records of the group, and how many of them are no failures: those come first.
    best, share : int
        How many of the first, and how many of all others: the middles of as many equal stretches.
    """
    first = min(best, valid)
    left = size - first
    count = min(share, left)
    # 2 i + 1 is below 2 count, so that the product stays below 2 left count.
    middles = (2 * np.arange(count, dtype=np.int64) + 1) * left // (2 * count or 1)
    return np.concatenate([np.arange(first, dtype=np.int64), first + middles])


# ---- Which measurements, by SQL ------------------------------------------------------------------

#: What returns the rows of a statement.
Fetch = Callable[[Select[Any]], Iterable[Any]]

#: Rows of one statement.
_PAGE = 20_000

#: Numbers that a statement names.
_NUMBERS = 500

_m = schema.measurement.c


def has(ids: Ids, number: int) -> bool:
    """Tell whether a number is among `ids`, which are in order."""
    at = int(np.searchsorted(ids, number))
    return at < len(ids) and int(ids[at]) == number


def chosen_ids(database: Store | Fetch, selection: Selection, until: int | None = None) -> Ids:
    """Return the numbers of the measurements that a selection means, in order.

    Parameters
    ----------
    database : Store or callable
        A database of ours; or what returns the rows of a Core statement.
    selection : Selection
        What is meant.
    until : int or None
        Only measurements up to this number. They are all that is compared for ``best``.

    Returns
    -------
    array of int64
        Takes 8 bytes for a record; while it is made, below 64 for each that fulfils the other
        conditions where ``best`` is among them.

    Raises
    ------
    NotFoundError
        Nothing has a name of the selection.
    StorageError
        A row is none that can be compared.
    """
    fetch: Fetch
    if callable(database):
        fetch, equivalent = database, partial(_equivalent, database)
    else:
        # The rows of a page come as a list, not one by one.
        fetch, equivalent = database.exchange.select, partial(_confirmed, database)
    conditions = _conditions(fetch, selection, equivalent)
    if until is not None:
        conditions.append(_m.id <= until)
    try:
        if selection.best is None:
            return _all(fetch, conditions)
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
    """Return the conditions of a selection but for ``best``."""
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
    """Return a column without more of its values than is ever looked at."""
    if column.type is schema.Blob:
        return func.substr(column, 1, DIGEST_BYTES)
    return func.substr(column, 1, limits.MAX_TARGET_CHARS + 1)


def _pages(fetch: Fetch, statement: Select[Any], key: Any) -> Iterator[Any]:
    """Yield the rows of a statement in order of `key`, its first column.

    Raises
    ------
    StorageError
        They are not in order: a damaged file could be read for ever.
    """
    after: int | None = None
    while True:
        page = statement if after is None else statement.where(key > after)
        count = 0
        for row in fetch(page.order_by(key).limit(_PAGE)):
            if not isinstance(row[0], int) or (after is not None and row[0] <= after):
                raise StorageError("damaged: rows are out of order")
            after = row[0]
            count += 1
            yield row
        if count < _PAGE:
            return


def _is_one(column: Any, numbers: Collection[int]) -> Any:
    """Return the condition that a column is one of some numbers."""
    ordered = sorted(numbers)
    parts = [ordered[at : at + _NUMBERS] for at in range(0, len(ordered), _NUMBERS)]
    return or_(*(column.in_(part) for part in parts))


def _confirmed(store: Store, ids: Collection[int]) -> set[int]:
    """Return the workloads of our database that are the same computation as one of `ids`."""
    return {other for id_ in ids for other in store.workloads.equivalent(id_)}


def _equivalent(fetch: Fetch, ids: Collection[int]) -> set[int]:
    """Return the workloads that another database calls as one of `ids`."""
    one, other = schema.workload_alias.alias().c, schema.workload_alias.alias().c
    found: set[int] = set()
    ordered = sorted(ids)
    for at in range(0, len(ordered), _NUMBERS):
        statement = (
            select(other.workload_id)
            .distinct()
            .where(
                one.workload_id.in_(ordered[at : at + _NUMBERS]),
                other.scheme == one.scheme,
                other.key == one.key,
                *(~one.scheme.endswith(mode) for mode in LOOSE),
            )
        )
        found.update(row[0] for row in fetch(statement))
    return found


def _measured(conditions: Sequence[Any], *columns: Any) -> Select[Any]:
    # A damaged file may hold a long text where a number belongs.
    numbers = [cast(column, column.type) for column in columns if column.type is not schema.Blob]
    digests = [_short(column) for column in columns if column.type is schema.Blob]
    return select(*numbers, *digests).where(*conditions)


def _all(fetch: Fetch, conditions: Sequence[Any]) -> Ids:
    rows = _pages(fetch, _measured(conditions, _m.id), _m.id)
    return np.fromiter((row[0] for row in rows), np.int64)


def _fill(fetch: Fetch, conditions: Sequence[Any], ranks: Ranks) -> None:
    """Note all measurements that fulfil the conditions."""
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


# ---- What a selection leaves of a stream of chunks -----------------------------------------------
#
# What measurements are chosen by goes into a temporary database, where SQL chooses. The stream is
# read several times, so that of records only numbers are held in memory.

Row = tuple[Any, ...]
Chunks = Callable[[], Iterator[Chunk]]

_NO_DIGEST = bytes(DIGEST_BYTES)

_SET = COLUMNS["launch"].index("counter_set")

#: Shared rows among which records are chosen: more than are taken over, and still some that fit
#: into memory.
_MOST_SHARED = 4 * limits.MAX_SHARED_ROWS

_SHARED = names_of(Form.REFERENCE, Form.SHARED_JSON)

#: Table → its columns by which :func:`chosen_ids` chooses.
_CHOOSING = {
    "workload": ("id", "name", "digest"),
    "target": ("id", "kind", "config"),
    "source": ("id", "name", "digest"),
    "workload_alias": ("workload_id", "scheme", "key"),
    "measurement": (
        *("id", "workload_id", "target_id", "source_id", "measured_at", "status"),
        *("mean", "digest"),
    ),
}
_INSERT = {
    table: f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
    for table, columns in _CHOOSING.items()
}
_values_of = itemgetter(
    *(AT[name] for name in ("id", "workload", "target", "source", "measured_at", "status"))
)


def is_restricted(selection: Selection) -> bool:
    """Tell whether a selection leaves out measurements."""
    s = selection
    return bool(s.workloads or s.targets or s.sources or s.since) or s.best is not None


def filtered(chunks: Chunks, selection: Selection) -> Iterator[Chunk]:
    """Yield what a selection means of a stream.

    Parameters
    ----------
    chunks : callable
        Returns the stream, each time from its beginning; it is called up to three times.
    selection : Selection
        What is meant.

    Yields
    ------
    Chunk
        Shared rows only where a measurement needs them. Retractions all.

    Raises
    ------
    NotFoundError
        Nothing in the stream has a name of the selection.
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
        rows = _kept(chunk, chosen, needed, features=selection.features)
        if rows:
            yield Chunk(chunk.table, rows)


@contextmanager
def _temporary_database() -> Iterator[Connection]:
    """Yield a database with the tables of :data:`_CHOOSING`, beyond a few megabytes on disk."""
    engine = create_engine("sqlite:///file:?uri=true", poolclass=StaticPool)
    try:
        with converted_errors("temporary file"), engine.connect() as connection:
            for pragma in ("journal_mode=OFF", "temp_store=FILE", "cache_size=-8192"):
                connection.exec_driver_sql(f"PRAGMA {pragma}")
            for table, columns in _CHOOSING.items():
                first, *others = columns
                key = f"{first} INTEGER PRIMARY KEY" if first == "id" else first
                connection.exec_driver_sql(f"CREATE TABLE {table} ({', '.join((key, *others))})")
            yield connection
    finally:
        engine.dispose()


def _load(connection: Connection, chunks: Iterator[Chunk], selection: Selection) -> None:
    """Put into a database what the measurements of a stream are chosen by."""
    is_ranked = selection.best is not None
    named = {"workload": selection.workloads, "source": selection.sources}
    # Only these need the digests that bundles leave out.
    digested = _SHARED if is_ranked else tuple(table for table, words in named.items() if words)
    with closing(SharedRows(_pass_over, _MOST_SHARED)) as shared:
        look = Measurements(shared)
        for table, rows in ((chunk.table, chunk.rows) for chunk in chunks):
            if table in digested:
                shared.take(table, rows)
            if table == "measurement":
                ranks: Iterable[Row] = repeat((None, None))
                if is_ranked:
                    ranks = zip(map(_mean, rows), map(_digest_of, look.digested(rows)), strict=True)
                values = [(*_values_of(row), *rank) for row, rank in zip(rows, ranks, strict=False)]
            elif table in _CHOOSING:
                columns = [name.removesuffix("_id") for name in _CHOOSING[table]]
                at = [COLUMNS[table].index(name) for name in columns]
                values = [tuple(row[i] for i in at) for row in rows]
                if table in digested and columns[-1] == "digest":
                    of = shared.digests[table]
                    values = [(*row[:-1], of.get(row[0])) for row in values]
            else:
                continue
            connection.exec_driver_sql(_INSERT[table], values)
    connection.exec_driver_sql("CREATE INDEX alias ON workload_alias (scheme, key)")
    connection.exec_driver_sql("CREATE INDEX workload_of_alias ON workload_alias (workload_id)")


def _pass_over(reason: str, example: str) -> None:
    """Pass over a row that is not sound: whoever takes the stream over says so."""


def _digest_of(item: Digested | tuple[Row, str]) -> bytes:
    return item.measurement if isinstance(item, Digested) else _NO_DIGEST


def _mean(row: Row) -> float | None:
    """Return the mean of a measurement's times, None where it has none."""
    times = identity.unpack_floats(row[AT["run_secs"]] or b"")
    try:
        # A mean that is no number is none, also to SQLite.
        return mean_of(times) if times else None
    except (OverflowError, ValueError):
        return None


def _needed(chunks: Chunks, chosen: Ids) -> dict[str, set[Any]]:
    """Return the numbers of the shared rows to which chosen measurements refer."""
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
            rows = _kept(chunk, chosen, {}, features=False)
            needed["source"].update(row[-1] for row in rows)
            if chunk.table == "launch":
                needed["counter_set"].update(row[_SET] for row in rows)
    for workload in needed["workload"]:
        needed["source"] |= named_by.get(workload, set())
    return needed


def _only(rows: Sequence[Row], at: int, ids: Ids) -> list[Row]:
    """Return the rows whose number is among `ids`, which are in order."""
    if not len(ids):
        return []
    numbers = np.array([row[at] for row in rows], np.int64)
    places = np.minimum(np.searchsorted(ids, numbers), len(ids) - 1)
    return [
        row
        for row, is_there in zip(rows, (ids[places] == numbers).tolist(), strict=True)
        if is_there
    ]


def _kept(chunk: Chunk, chosen: Ids, needed: dict[str, set[Any]], *, features: bool) -> list[Row]:
    """Return the rows of a chunk that are given on."""
    table, rows = chunk.table, chunk.rows
    if table == "measurement":
        return _only(rows, 0, chosen)
    if table in needed:
        return [row for row in rows if row[0] in needed[table]]
    if table == "workload_alias":
        return [row for row in rows if row[0] in needed["workload"]]
    if table in ("failure", "launch"):
        # One that names its measurement by digests is of a record that was given before.
        later = [row for row in rows if row[2] is None]
        return later + _only([row for row in rows if row[2] is not None], 2, chosen)
    if table == "feature":
        return _only(rows, 0, chosen) if features else []
    return rows if features or table != "feature_set" else []
