"""What a selection leaves of a stream of chunks; :mod:`tunedb.sharing.choosing` does it by SQL.

The stream is read several times, so that of records only numbers are held in memory. It may be
anybody's: what has another type than it should is passed on or left out, and never raises.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from .. import identity, limits
from ..errors import LimitError
from ..records import Origin
from ..times import mean_of
from .bodies import Bodies
from .names import Words, is_strict, labels_of
from .ranks import Ids, Ranks
from .selection import Selection
from .wire import COLUMNS, Chunk

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
            raise LimitError(f"more than {_MOST_SHARED:,} sketches and the like in one exchange")

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
