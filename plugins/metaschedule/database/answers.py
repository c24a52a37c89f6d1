"""What one store answers to a handle, best first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ....records import Target
from ....storage.store import Store
from ..targets import TargetTable
from .records import RecordTable
from .workloads import Known, WorkloadTable

#: How many records a query takes at a time while it skips those that do not replay.
_CHUNK = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A record that answers.

    Parameters
    ----------
    id : int
        Its number in its store.
    record : tvm TuningRecord
        What TVM gets.
    answers : Answers
        Whose it is.
    """

    id: int
    record: Any
    answers: Answers

    def discard(self, error: Exception) -> None:
        """Pass over the record from now on, because it does not replay."""
        self.answers.records.discard(self.record, error)


@dataclass(frozen=True, slots=True)
class Answers:
    """A store as one handle sees it.

    Parameters
    ----------
    store : Store
        Where the records are.
    workloads, targets, records : WorkloadTable, TargetTable, RecordTable
        What stands for its rows.
    """

    store: Store
    workloads: WorkloadTable
    targets: TargetTable
    records: RecordTable

    def of(
        self, asker: Known, target: Target | None, level: int, chunk: int = 1
    ) -> Iterator[Found]:
        """Yield the records of a workload for one group of targets, best first.

        Parameters
        ----------
        asker : Known
            The workload.
        target : Target or None
            The target that is asked for; None for that of the handle.
        level : int
            One of :attr:`TargetTable.levels`.
        chunk : int
            How many are asked for at first.
        """
        equal = self.workloads.equal_ids(asker)
        if target is None:
            ids = self.targets.serving(equal, level)
        else:
            ids = self.targets.group(target, level)
        if ids:
            yield from self._best(asker, equal, ids, chunk)

    def _best(
        self, asker: Known, equal: Sequence[int], targets: Sequence[int], chunk: int
    ) -> Iterator[Found]:
        """Yield the records of equal workloads, best first, without those that are broken."""
        seen, wanted = 0, chunk
        while True:
            ids = self.store.answers.best_ids(equal, targets, wanted)
            for id_ in ids[seen:]:
                record = self.records.get(id_, asker)
                if record is not None:
                    yield Found(id_, record, self)
            if len(ids) < wanted:
                return
            seen, wanted = len(ids), wanted + max(chunk, _CHUNK)
