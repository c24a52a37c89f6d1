"""Which programs are measured again: the best ones of a workload, each by its best record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ....query import Query
from ....records import Trust
from ....results import Record
from ....retractions import Retraction
from .. import modules

#: Records looked up at a time, until they have enough programs.
_CHUNK = 32


def served_programs(
    query: Query, workload_ids: Sequence[int], target_id: int, k: int
) -> list[Record]:
    """Return the best record of each of the k best programs that are served.

    Parameters
    ----------
    query : Query
        The database.
    workload_ids : sequence of int
        Workloads that count as one.
    target_id : int
        The target.
    k : int
        How many programs at most.
    """
    return _first_of_each(_served(query, workload_ids, target_id), k)


def foreign_programs(
    query: Query, workload_ids: Sequence[int], target_id: int, k: int
) -> list[Record]:
    """Return the best record of each of the k best programs that only foreign sources have.

    Those of which a record was taken back here are left out, because it was wrong. What others
    take back of their own is no word about the same program of somebody else. The parameters are
    those of :func:`served_programs`; all records of the workloads are read.
    """
    return _first_of_each(_foreign(query, workload_ids, target_id), k)


def _first_of_each(records: Iterable[Record], k: int) -> list[Record]:
    found: dict[bytes, Record] = {}
    for record in records:
        found.setdefault(record.measurement.program.digest, record)
        if len(found) == k:
            break
    return list(found.values())


def _served(query: Query, workload_ids: Sequence[int], target_id: int) -> Iterator[Record]:
    seen, wanted = 0, _CHUNK
    while True:
        ids = query.top_k_ids(workload_ids, [target_id], wanted)
        yield from map(query.record, ids[seen:])
        if len(ids) < wanted:
            return
        seen, wanted = wanted, 2 * wanted


def _foreign(query: Query, workload_ids: Sequence[int], target_id: int) -> Iterator[Record]:
    best: list[tuple[float, int]] = []
    passed_over: set[bytes] = set()
    for id_ in workload_ids:
        for record in query.iterate(id_, [target_id]):
            if record.source.trust >= Trust.VERIFIED or _is_taken_back_here(query, record):
                passed_over.add(record.measurement.program.digest)
            elif record.retracted:
                continue
            elif record.measurement.is_valid and record.mean is not None:
                best.append((record.mean, record.id))
    for _, number in sorted(best):
        record = query.record(number)
        if record.measurement.program.digest not in passed_over:
            yield record


def _is_taken_back_here(query: Query, record: Record) -> bool:
    """Tell whether this database says of a record itself that it must not be served."""
    if not record.retracted:
        return False
    word = Retraction(record.measurement.digest, query.store_key, "measurement", "")
    return bool(query.known_retractions([word]))


def is_named(query: Query, mod: Any, equality: str) -> bool:
    """Tell whether a module is stored, or a name under which it is known, by whomever.

    Parameters
    ----------
    query : Query
        The database.
    mod : tvm.IRModule
        A module.
    equality : str
        One of :data:`~tunedb.plugins.metaschedule.modules.EQUALITIES`.
    """
    record = modules.to_workload(mod)
    if query.workload_id(record.digest) is not None:
        return True
    names = [modules.alias(mod, equality), modules.script_alias(record.script or "")]
    return bool(query.standings_of(names))
