"""Which records a selection means: of a database by SQL, of a stream of chunks by looking at all.

Both choose alike; a test compares them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Select, cast, func, or_, select

from .. import identity, limits
from ..errors import LimitError, NotFoundError, StorageError
from ..identity import DIGEST_BYTES
from ..records import LOOSE, Origin, Status, Target
from ..run_times import mean_of
from ..storage import schema
from ..storage.exchanged import COLUMNS, Chunk, Selection
from .foreign_file import told
from .payloads import Bodies

if TYPE_CHECKING:
    from ..storage.store import Store

# ---- Which workloads, targets and sources of somebody's database a selection's words mean --------

#: Shortest beginning of a digest, in hexadecimal digits, that is taken for one.
_SHORTEST = 4

#: Names that a message lists.
_MOST_NAMED = 8


class Words:
    """Words of one kind, and the rows that they mean.

    A row's name, or another label of it, comes before a part of its name and the beginning of its
    digest: ``matmul`` means the workload of that name and not ``batch_matmul``.

    Parameters
    ----------
    kind : str
        ``workload``, ``target`` or ``source``; for messages.
    words : iterable of str
        At least one.
    parts : bool
        Parts of names count.
    """

    def __init__(self, kind: str, words: Iterable[str], *, parts: bool) -> None:
        self._kind = kind
        self._parts = parts
        self._exact: dict[str, set[int]] = {word: set() for word in words}
        self._loose: dict[str, set[int]] = {word: set() for word in self._exact}
        self._names: list[str] = []

    def add(self, number: int, names: Iterable[Any], digest: Any) -> None:
        """Look at one row; what is no text or no bytes means nothing."""
        labels = [name for name in names if isinstance(name, str)]
        if labels and len(self._names) <= _MOST_NAMED and labels[0] not in self._names:
            self._names.append(labels[0])
        written = digest.hex() if isinstance(digest, bytes) else ""
        for word in self._exact:
            if word in labels:
                self._exact[word].add(number)
            elif (self._parts and any(word in label for label in labels)) or (
                len(word) >= _SHORTEST and written.startswith(word.lower())
            ):
                self._loose[word].add(number)

    def found(self) -> set[int]:
        """Return the numbers of the rows that are meant.

        Raises
        ------
        NotFoundError
            A word means none; the message says what there is.
        """
        meant: set[int] = set()
        for word, exact in self._exact.items():
            numbers = exact or self._loose[word]
            if not numbers:
                raise NotFoundError(f"no {self._kind} {word!r} there; {self._listed()}")
            meant |= numbers
        return meant

    def _listed(self) -> str:
        names = [told(name) for name in self._names[:_MOST_NAMED]]
        if not names:
            return "there is none"
        more = " and more" if len(self._names) > _MOST_NAMED else ""
        return f"there are: {', '.join(names)}{more}"


def labels_of(kind: Any, config: Any) -> list[str]:
    """Return the words for a target: its kind, its label, and its label with its cores.

    Those that can be told: `config` may be anything.
    """
    if not isinstance(kind, str):
        return []
    if not isinstance(config, str) or len(config) > limits.MAX_TARGET_CHARS:
        return [kind]
    try:
        target = Target(kind, config.encode())
        attributes = target.attributes
        if not isinstance(attributes, dict):
            return [kind]
        cores = attributes.get("num-cores")
        label = target.label
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return [kind]
    return [label, kind, f"{label} {cores} cores"] if isinstance(cores, int) else [label, kind]


def is_strict(scheme: Any) -> bool:
    """Tell whether workloads with a common alias of this scheme are the same computation."""
    return isinstance(scheme, str) and not scheme.endswith(LOOSE)


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


# ---- What a selection leaves of a stream of chunks; :mod:`tunedb.exchange.selection` does it by
# ---- # SQL
#
# The stream is read several times, so that of records only numbers are held in memory. It may be
# anybody's: what has another type than it should is passed on or left out, and never raises.

Row = tuple[Any, ...]
Chunks = Callable[[], Iterator[Chunk]]

_NOTHING = bytes(identity.DIGEST_BYTES)

#: What a row that is nothing may raise.
_WRONG = (TypeError, ValueError, AttributeError, OverflowError, KeyError, IndexError, struct.error)

_AT = {name: at for at, name in enumerate(COLUMNS["measurement"])}
_SET = COLUMNS["launch"].index("counter_set")
_BODIED = frozenset({"args_info", "context"})

#: Shared rows among which records are chosen: more than are taken over, and still some that fit
#: into memory.
_MOST_SHARED = 4 * limits.MAX_SHARED_ROWS

_SHARED = ("source", "session", "workload", "target", "sketch", "tail", "args_info", "context")


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
    chosen = _chosen(chunks, selection)
    needed = _needed(chunks, chosen)
    for chunk in chunks():
        rows = _kept(chunk, chosen, needed, features=selection.features)
        if rows:
            yield Chunk(chunk.table, rows)


def _members(rows: Sequence[Row], at: int, ids: Ids) -> list[bool]:
    """Return for each row whether its number is among `ids`, which are in order."""
    try:
        numbers = np.array([row[at] for row in rows], np.int64)
    except _WRONG:
        known = set(ids.tolist())
        return [row[at].__class__ is int and row[at] in known for row in rows]
    if not len(ids):
        return [False] * len(rows)
    places = np.minimum(np.searchsorted(ids, numbers), len(ids) - 1)
    found: list[bool] = (ids[places] == numbers).tolist()
    return found


def _needed(chunks: Chunks, chosen: Ids) -> dict[str, set[Any]]:
    """Return the numbers of the shared rows to which chosen measurements refer."""
    needed: dict[str, set[Any]] = {name: set() for name in _SHARED}
    sets: set[Any] = set()
    named_by: dict[Any, set[Any]] = {}
    for chunk in chunks():
        if chunk.table == "workload_alias":
            for row in chunk.rows:
                if row[0].__class__ is int and row[-1].__class__ is int:
                    named_by.setdefault(row[0], set()).add(row[-1])
        elif chunk.table == "measurement":
            rows = _only(chunk.rows, 0, chosen)
            for name, numbers in needed.items():
                at = _AT[name]
                numbers.update(row[at] for row in rows if row[at].__class__ is int)
        elif chunk.table in ("failure", "launch"):
            rows = _kept(chunk, chosen, {}, features=False)
            needed["source"].update(row[-1] for row in rows if row[-1].__class__ is int)
            if chunk.table == "launch":
                sets.update(row[_SET] for row in rows if row[_SET].__class__ is int)
    for workload in needed["workload"]:
        needed["source"] |= named_by.get(workload, set())
    return {**needed, "counter_set": sets}


def _only(rows: Sequence[Row], at: int, ids: Ids) -> list[Row]:
    return [row for row, taken in zip(rows, _members(rows, at, ids), strict=True) if taken]


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


# ---------------------------------------------------------------------- which measurements


def _chosen(chunks: Chunks, selection: Selection) -> Ids:
    """Return the numbers of the measurements that are meant, in order."""
    catalog = _Catalog(selection)
    if selection.workloads or selection.targets or selection.sources:
        for chunk in chunks():
            catalog.add(chunk)
    wanted = catalog.found()
    meant = (
        [row for row in chunk.rows if _is_meant(row, wanted, selection.since)]
        if chunk.table == "measurement"
        else chunk
        for chunk in chunks()
    )
    if selection.best is not None:
        return _best(meant, selection.best, selection.rest)
    ids = [np.array([row[0] for row in rows], np.int64) for rows in meant if isinstance(rows, list)]
    return np.unique(np.concatenate(ids)) if ids else np.empty(0, np.int64)


def _best(meant: Iterator[list[Row] | Chunk], best: int, rest: float) -> Ids:
    """Return the numbers of the best of measurements, which come between the rows of others."""
    ranks = Ranks()
    with closing(_Digests()) as digests:
        for rows in meant:
            if isinstance(rows, Chunk):
                digests.add(rows)
            elif rows:
                ranks.add(
                    [row[0] for row in rows],
                    [(row[_AT["workload"]], row[_AT["target"]]) for row in rows],
                    [_status(row) for row in rows],
                    [_mean(row) for row in rows],
                    [digests.of(row) for row in rows],
                )
    return ranks.chosen(best, rest)


def _is_meant(row: Row, wanted: dict[str, set[int]], since: int) -> bool:
    """Tell whether a measurement fulfils all conditions but for ``best``."""
    measured_at = row[_AT["measured_at"]]
    if row[0].__class__ is not int or not -(2**63) <= row[0] < 2**63:
        return False
    if since and not (measured_at.__class__ is int and measured_at >= since):
        return False
    return all(row[_AT[name]] in numbers for name, numbers in wanted.items())


def _status(row: Row) -> int:
    status = row[_AT["status"]]
    return status if status.__class__ is int and 0 <= status < 256 else 255


def _mean(row: Row) -> float:
    """Return the mean of a measurement's times; infinite where it has none."""
    try:
        times = identity.unpack_floats(row[_AT["run_secs"]])
        # A mean that is no number is none.
        return (mean_of(times) if len(times) > 1 else 0.0 + times[0]) if times else math.inf
    except _WRONG:
        return math.inf


class _Catalog:
    """What the words of a selection mean in a stream."""

    def __init__(self, selection: Selection) -> None:
        given = {
            "workload": selection.workloads,
            "target": selection.targets,
            "source": selection.sources,
        }
        self._words = {
            kind: Words(kind, words, parts=kind == "workload")
            for kind, words in given.items()
            if words
        }
        self._aliases: list[Row] = []

    def add(self, chunk: Chunk) -> None:
        """Look at the rows of a chunk."""
        if chunk.table == "workload_alias" and "workload" in self._words:
            self._aliases += [row for row in chunk.rows if is_strict(row[1])]
        words = self._words.get(chunk.table)
        if words is None:
            return
        for row in chunk.rows:
            fields = dict(zip(COLUMNS[chunk.table], row, strict=True))
            names = (
                labels_of(fields["kind"], fields["config"])
                if chunk.table == "target"
                else [fields["name"]]
            )
            words.add(row[0], names, row[1] or _digest_of(chunk.table, row))

    def found(self) -> dict[str, set[int]]:
        """Return the numbers of the rows that are meant, by the table that has words."""
        meant = {kind: words.found() for kind, words in self._words.items()}
        if workloads := meant.get("workload"):
            keys = {(scheme, key) for n, scheme, key, _ in self._aliases if n in workloads}
            workloads |= {n for n, scheme, key, _ in self._aliases if (scheme, key) in keys}
        return meant


# ---------------------------------------------------------------------- digests


def _encoded(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]


def _digest_of(table: str, row: Row) -> bytes:
    """Return the digest of a shared row from what it holds; of nothing where it holds nothing."""
    try:
        if table == "workload":
            return identity.digest(table, row[2].encode(), row[3])
        if table == "target":
            return identity.digest(table, *_encoded(row[2], row[3]))
        if table == "source":
            return identity.digest(table, *_encoded(row[4], row[2]))
        if table == "session":
            started = identity.pack_int(row[3])
            return identity.digest(table, row[2].encode(), started, row[4].encode())
        return identity.shared_digest(table, row[2])
    except _WRONG:
        return _NOTHING


class _Digests:
    """Digests of measurements: said by the stream, or made of what it holds."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[int, bytes]] = {
            name: {} for name in ("workload", "target", "sketch", "tail", "session")
        }
        self._bodies = Bodies()
        self._count = 0

    def close(self) -> None:
        """Give back the memory."""
        self._bodies.close()

    def add(self, chunk: Chunk) -> None:
        """Note the shared rows of a chunk."""
        known = self._parts.get(chunk.table)
        if known is not None:
            known.update((row[0], row[1] or _digest_of(chunk.table, row)) for row in chunk.rows)
        elif chunk.table in _BODIED:
            for row in chunk.rows:
                body = row[2].encode() if isinstance(row[2], str) else row[2]
                if isinstance(body, bytes):
                    self._bodies.put(chunk.table, row[0], body)
        else:
            return
        self._count += len(chunk.rows)
        if self._count > _MOST_SHARED:
            raise LimitError(
                f"more than {_MOST_SHARED:,} sketches and similar rows in one exchange"
            )

    def of(self, row: Row) -> bytes:
        """Return the digest of a measurement."""
        said = row[1]
        if isinstance(said, bytes) and len(said) == identity.DIGEST_BYTES:
            return said
        try:
            return self._made(dict(zip(COLUMNS["measurement"], row, strict=True)))
        except _WRONG:
            return _NOTHING

    def _made(self, row: dict[str, Any]) -> bytes:
        def part(table: str) -> bytes:
            return self._parts[table][row[table]]

        def body(table: str) -> bytes | None:
            return None if row[table] is None else self._bodies.get(table, row[table])

        program = identity.program_digest(
            part("workload"),
            part("target"),
            part("sketch"),
            None if row["tail"] is None else part("tail"),
            row["decisions"],
        )
        extra = row["extra"]
        return identity.measurement_digest(
            program,
            row["status"],
            row["run_secs"],
            row["measured_at"],
            row["occurrence"],
            None if row["session"] is None else part("session"),
            body("args_info"),
            row["origin"] or Origin.UNKNOWN.value,
            row["donor"],
            row["all_cost"],
            body("context"),
            None if extra is None else extra.encode(),
        )


# ---- Selection by SQL ----------------------------------------------------------------------------

__all__ = ["chosen_ids", "filtered", "has", "is_restricted"]

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
        words = Words("workload", selection.workloads, parts=True)
        named = select(w.id, _short(w.name), _short(w.digest))
        for id_, name, digest in _pages(fetch, named, w.id):
            words.add(id_, [name], digest)
        meant = words.found()
        conditions.append(_is_one(_m.workload_id, meant | equivalent(meant)))
    if selection.targets:
        words = Words("target", selection.targets, parts=False)
        for id_, kind, config in _pages(fetch, select(t.id, t.kind, _short(t.config)), t.id):
            words.add(id_, labels_of(kind, config), None)
        conditions.append(_is_one(_m.target_id, words.found()))
    if selection.sources:
        words = Words("source", selection.sources, parts=False)
        named = select(s.id, _short(s.name), _short(s.digest))
        for id_, name, digest in _pages(fetch, named, s.id):
            words.add(id_, [name], digest)
        conditions.append(_is_one(_m.source_id, words.found()))
    if selection.since:
        conditions.append(_m.measured_at >= selection.since)
    return conditions


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
