"""Which records a selection means: of a database by SQL, of a stream of chunks by looking at all.

Both choose alike; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Select, cast, func, or_, select

from .. import limits, schema
from ..errors import StorageError
from ..identity import DIGEST_BYTES
from ..records import LOOSE
from .filtering import filtered, is_restricted
from .names import Words, labels_of
from .ranks import Ids, Ranks
from .selection import Selection

if TYPE_CHECKING:
    from ..query import Query

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


def chosen_ids(database: Query | Fetch, selection: Selection, until: int | None = None) -> Ids:
    """Return the numbers of the measurements that a selection means, in order.

    Parameters
    ----------
    database : Query or callable
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
        fetch, equivalent = database._select, partial(_confirmed, database)
    conditions = _conditions(fetch, selection, equivalent)
    if until is not None:
        conditions.append(_m.id <= until)
    try:
        if selection.best is None:
            return _all(fetch, conditions)
        ranks = Ranks()
        _fill(fetch, conditions, ranks)
    except (TypeError, ValueError, OverflowError) as error:
        raise StorageError(f"a measurement cannot be compared ({error}); check it") from None
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


def _confirmed(query: Query, ids: Collection[int]) -> set[int]:
    """Return the workloads of our database that are the same computation as one of `ids`."""
    return {other for id_ in ids for other in query.equivalent(id_)}


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
