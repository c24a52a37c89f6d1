"""Filling in the launches of TVM's own GPU programs (:mod:`.tvm_threads` reads them)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from .. import limits
from ..errors import TuneDBError
from ..launches import Launch
from ..records import Measurement, WorkloadFormat
from ..results import Record, StoredProgram
from .ansor_threads import launches_of_steps
from .tvm_threads import launches_of_rows, launches_of_trace

if TYPE_CHECKING:
    from ..query import Query
    from ..store import Store

#: Workloads whose programs are traces of MetaSchedule.
_TRACES = (WorkloadFormat.GRAPH, WorkloadFormat.NODES, WorkloadFormat.ARGUMENTS)

#: Feature sets whose rows hold extents of threads.
_SETS = ("ansor.per_store/tvm", "ansor.per_store/ansor")

#: Blocks of a launch's trace that are remembered by workload.
_MOST = 1_000


@dataclass
class FillReport:
    """What became of the records of GPU programs.

    Parameters
    ----------
    records : int
        Records of TVM's programs for GPUs.
    known : int
        Those that had launches before.
    filled : int
        Those that got some now.
    unknown : int
        Those whose stored parts do not say the extents of their threads.
    launches : int
        Launches that are new.
    """

    records: int = 0
    known: int = 0
    filled: int = 0
    unknown: int = 0
    launches: int = 0


def fill_launches(
    store: Store,
    *,
    workload_ids: Sequence[int] | None = None,
    target_ids: Sequence[int] | None = None,
    on_record: Callable[[int], None] | None = None,
    report: FillReport | None = None,
) -> FillReport:
    """Add launches to the records of TVM's GPU programs that have none.

    What is stored is final batch by batch: a run that was interrupted goes on where it stopped.

    Parameters
    ----------
    store : Store
        Where the records are.
    workload_ids, target_ids : sequence of int or None
        Only records of these workloads and targets.
    on_record : callable or None
        Called with the number of records that were looked at so far.
    report : FillReport or None
        Filled in as batches finish, so that a caller has it when interrupted.

    Returns
    -------
    FillReport
        Records of other tools than TVM, of processors, and retracted ones are not counted.
    """
    report = report or FillReport()
    finder = _Finder(store.query)
    records = _records(store.query, workload_ids, gpu_targets(store.query, target_ids))
    seen = 0
    while batch := list(islice(records, limits.FEATURE_PROGRAMS)):
        wanted = [one for one in batch if not one.retracted and _is_tvm(one)]
        bare = [one for one in wanted if not store.query.launches_of(one.id)]
        found = finder.find([one.measurement for one in bare])
        rows = [
            (one.measurement, launch)
            for one, launches in zip(bare, found, strict=True)
            for launch in launches
        ]
        report.launches += store.add_launches(rows)
        report.records += len(wanted)
        report.known += len(wanted) - len(bare)
        report.filled += sum(map(bool, found))
        report.unknown += len(bare) - sum(map(bool, found))
        seen += len(batch)
        if on_record is not None:
            on_record(seen)
    return report


def gpu_targets(query: Query, target_ids: Sequence[int] | None = None) -> list[int]:
    """Return the targets that are GPUs, of those that are given or of all."""
    from ..features.steps.targets import device_of

    chosen = query.target_ids() if target_ids is None else target_ids
    return [id_ for id_ in chosen if device_of(query.target(id_))[0] > 0]


def _records(
    query: Query, workload_ids: Sequence[int] | None, target_ids: list[int]
) -> Iterator[Record]:
    if not target_ids:
        return iter(())
    if workload_ids is None:
        return query.iterate(target_ids=target_ids)
    return chain.from_iterable(query.iterate(id_, target_ids) for id_ in workload_ids)


def _is_tvm(record: Record) -> bool:
    return record.measurement.program.workload.format in (*_TRACES, WorkloadFormat.ANSOR)


class _Finder:
    """Finds out the launches of programs; it remembers what workloads say."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._orders: dict[int, tuple[str, ...]] = {}

    def find(self, measurements: Sequence[Measurement]) -> list[tuple[Launch, ...]]:
        """Return the launches of each measurement's program; none where they are not known."""
        from ..features.base import feature_set

        digests = {one.program.digest: None for one in measurements}
        ids = dict(zip(digests, self._query.program_ids(digests), strict=True))
        stored = {one.id: one for one in self._query.programs([i for i in ids.values() if i])}
        rows: dict[int, list[tuple[Launch, ...]]] = {id_: [] for id_ in stored}
        for name in _SETS:
            one = feature_set(name)
            for program, table in zip(
                stored.values(), self._query.feature_rows(one, list(stored)), strict=True
            ):
                if table is not None:
                    told = launches_of_rows(table, one.columns, program.workload.name)
                    rows[program.id].append(told)
        found = {}
        for id_, program in stored.items():
            try:
                found[id_] = agreed(self._of_steps(program), rows[id_])
            except TuneDBError:  # a damaged program has no launches; `tunedb db check` names it
                found[id_] = ()
        return [found.get(ids[one.program.digest] or 0, ()) for one in measurements]

    def _of_steps(self, program: StoredProgram) -> tuple[Launch, ...]:
        name = program.workload.name
        if program.workload.format != WorkloadFormat.ANSOR:
            return launches_of_trace(program.trace, name, self._order(program))
        return launches_of_steps(program.trace, name)

    def _order(self, program: StoredProgram) -> tuple[str, ...]:
        """Return the names of a workload's blocks in their order."""
        from ..features.steps.tasks import read_task

        found = self._orders.get(program.workload_id)
        if found is None:
            structure, _ = read_task(program.workload, program.signature, "metaschedule")
            if len(self._orders) >= _MOST:
                self._orders.clear()
            found = self._orders[program.workload_id] = tuple(name for name, _ in structure.blocks)
        return found


def agreed(steps: tuple[Launch, ...], rows: Sequence[tuple[Launch, ...]]) -> tuple[Launch, ...]:
    """Return the launches on which the steps of a program and its features agree.

    Parameters
    ----------
    steps : tuple of Launch
        What the steps say; empty where they say nothing.
    rows : sequence of tuple of Launch
        What each set of features says.

    Returns
    -------
    tuple of Launch
        Of the features where they have as many kernels as the steps: they know grids. They may
        have fewer: they take equal neighbours for one kernel, and kernels that store nothing but
        constants have no rows. Empty where a block differs, or where nothing is known.
    """
    told = [one for one in rows if one]
    blocks = {frozenset(launch.block for launch in one) for one in told}
    if len(blocks) > 1 or (steps and not all(one <= {x.block for x in steps} for one in blocks)):
        return ()
    most = max(map(len, told), default=0)
    if len(steps) > most:
        return steps
    return next((one for one in told if len(one) == most), ())
