"""The best programs of a workload, each by its best record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ....query import Query
from ....records import Trust
from ....results import Record

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

    Those with a retracted record are left out. The parameters are those of
    :func:`served_programs`; all records of the workloads are read.
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
            if record.retracted or record.source.trust >= Trust.VERIFIED:
                passed_over.add(record.measurement.program.digest)
            elif record.measurement.is_valid and record.mean is not None:
                best.append((record.mean, record.id))
    for _, number in sorted(best):
        record = query.record(number)
        if record.measurement.program.digest not in passed_over:
            yield record
