"""Conversion of auto_scheduler's records: replayed in worker processes, stored as MetaSchedule's.

A converted record keeps the target, the times and the source of its original. So it answers only
for that target, and serves others as a donor and as training data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self

import tvm

from .... import limits
from ....errors import TuneDBError, UsageError
from ....records import (
    Measurement,
    Origin,
    Program,
    Source,
    Status,
    Trace,
    Trust,
    WorkloadFormat,
)
from ....results import Record, WorkloadSummary
from ....storage.store import Store
from ..threads import usable_cpus
from ..workers.worker_pool import Job, Worker, WorkerPool
from . import convert_worker
from .convert_worker import Answer, ModuleParts
from .definitions import split_statement

#: Records of one call of a worker.
CHUNK = 256

#: Records of one process before a fresh one replaces it, because TVM leaks memory.
MAXIMUM_PROGRAMS = 20_000

NO_DEFINITION = "no definition"


@dataclass
class WorkloadReport:
    """Result for one workload.

    Parameters
    ----------
    workload_id : int
        The workload in the log's format.
    name : str
        Its name.
    read : int
        Records that were measured without error, of trusted sources, not retracted.
    replayed : int
        New converted records.
    known : int
        Records that were converted before.
    undefined : int
        Records without a definition, and those of hashes that no function of the user fits.
    refused : int
        Records that could not be replayed.
    reasons : dict
        Reason → number of refused records.
    definitions : dict
        Name of a definition, or of a function of the user → number of records that replayed on it.
    """

    workload_id: int
    name: str
    read: int = 0
    replayed: int = 0
    known: int = 0
    undefined: int = 0
    refused: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    definitions: dict[str, int] = field(default_factory=dict)

    def refuse(self, reason: str) -> None:
        """Count a refused record."""
        self.refused += 1
        if reason not in self.reasons and len(self.reasons) >= limits.MAX_REASONS:
            reason = "other reasons"
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


@dataclass
class ConvertReport:
    """Result of a conversion.

    Parameters
    ----------
    workloads : list of WorkloadReport
        Results by workload.
    untrusted : int
        Records of foreign sources, which are left out.
    problems : list of str
        Reasons why the user's functions could not be lowered for a kind of target.
    """

    workloads: list[WorkloadReport] = field(default_factory=list)
    untrusted: int = 0
    problems: list[str] = field(default_factory=list)

    def total(self, name: str) -> int:
        """Return the sum of a number of all workloads."""
        return sum(getattr(report, name) for report in self.workloads)


def convert(
    store: Store,
    *,
    workload_ids: Sequence[int] | None = None,
    target_ids: Sequence[int] | None = None,
    define: Sequence[str] = (),
    functions: Callable[[str], Mapping[str, Any]] | None = None,
    workers: int | None = None,
    best: int | None = None,
    timeout_sec: float = 30.0,
    on_begin: Callable[[int], None] | None = None,
    on_record: Callable[[], None] | None = None,
    report: ConvertReport | None = None,
) -> ConvertReport:
    """Replay auto_scheduler's records on definitions of their workloads, and store the programs.

    Records that were converted before are skipped, so an interrupted run continues.

    Parameters
    ----------
    store : Store
        The database.
    workload_ids, target_ids : sequence of int or None
        Only records of these workloads and targets.
    define : sequence of str
        Definitions ``name=package.module:function`` besides the installed ones.
    functions : callable or None
        Returns the user's own functions for a kind of target, as modules by name. Workloads whose
        log has a hash are compared with them.
    workers : int or None
        Processes; by default the number of usable processors.
    best : int or None
        Only so many of the fastest records of each workload for each target; all by default.
    timeout_sec : float
        Seconds for a definition, and for each chunk of records; a chunk that takes longer is
        replayed record by record.
    on_begin : callable or None
        Called with the number of records of the chosen workloads.
    on_record : callable or None
        Called for each record.
    report : ConvertReport or None
        Report to fill; it then stays valid after an interrupt.

    Returns
    -------
    ConvertReport

    Raises
    ------
    UsageError
        A statement of a definition has another form, or a number is out of range.
    PluginError
        A definition does not load, or no process can be started.
    ApprovalError
        The user has not approved the database.
    """
    store.require_approved()
    report = ConvertReport() if report is None else report
    chosen = [
        summary
        for summary in store.workloads.find()
        if summary.format == WorkloadFormat.ANSOR
        and (workload_ids is None or summary.id in workload_ids)
    ]
    report.workloads += [WorkloadReport(summary.id, summary.name) for summary in chosen]
    conversion = _Conversion(store, report, best, on_record)
    if on_begin is not None:
        on_begin(sum(conversion.count(summary, target_ids) for summary in chosen))
    converted = [summary.id for summary in chosen]
    for ids, own in _functions(store, converted, target_ids, functions, report):
        with ConvertPool(define, own, workers=workers, timeout_sec=timeout_sec) as pool:
            for each in report.workloads:
                conversion.run(pool, each, ids)
    return report


def _functions(
    store: Store,
    workload_ids: Sequence[int],
    target_ids: Sequence[int] | None,
    functions: Callable[[str], Mapping[str, Any]] | None,
    report: ConvertReport,
) -> Iterator[tuple[Sequence[int] | None, dict[str, str]]]:
    """Yield the targets of each kind with the user's functions for them, in TVM's JSON.

    A kind for which they cannot be lowered has none, and the report says why.
    """
    if functions is None:
        yield target_ids, {}
        return
    kinds: dict[str, list[int]] = {}
    for id_ in store.programs.targets(workload_ids):
        if target_ids is None or id_ in target_ids:
            kinds.setdefault(store.targets.get(id_).kind, []).append(id_)
    for kind, ids in kinds.items():
        try:
            own = {name: tvm.ir.save_json(mod) for name, mod in functions(kind).items()}
        except TuneDBError as error:
            own = {}
            report.problems.append(f"no function for targets of kind {kind}: {error}")
        yield ids, own


class _Conversion:
    """A run of :func:`convert`."""

    def __init__(
        self,
        store: Store,
        report: ConvertReport,
        best: int | None,
        on_record: Callable[[], None] | None,
    ) -> None:
        self._store = store
        self._report = report
        self._best = best
        self._on_record = on_record
        # Program, mean run time and time of a record → number of such records that are converted.
        self._done = Counter(store.programs.donors(Origin.REPLAYED))

    def run(
        self, pool: ConvertPool, report: WorkloadReport, target_ids: Sequence[int] | None
    ) -> None:
        """Convert the records of a workload for some targets."""
        key = self._store.workloads.get(report.workload_id).body
        for chunk in pool.replay(key, self._records(report, target_ids)):
            self._add(chunk, report)

    def count(self, summary: WorkloadSummary, target_ids: Sequence[int] | None) -> int:
        """Return the largest number of records of a workload that are looked at."""
        if self._best is None:
            return summary.records
        return min(summary.records, self._best * len(self._targets(summary.id, target_ids)))

    def _targets(self, workload_id: int, target_ids: Sequence[int] | None) -> list[int]:
        targets = self._store.programs.targets([workload_id])
        return [id_ for id_ in targets if target_ids is None or id_ in target_ids]

    def _chosen(self, workload_id: int, target_ids: Sequence[int] | None) -> Iterable[Record]:
        """Return the records of a workload that are looked at."""
        records = self._store.records
        if self._best is None:
            return records.iterate(workload_id, target_ids)
        targets = self._targets(workload_id, target_ids)
        return chain.from_iterable(records.top_k(workload_id, id_, self._best) for id_ in targets)

    def _records(
        self, report: WorkloadReport, target_ids: Sequence[int] | None
    ) -> Iterator[Record]:
        """Yield the records that are to be replayed."""
        for record in self._chosen(report.workload_id, target_ids):
            measurement = record.measurement
            if measurement.status is not Status.OK or record.retracted:
                self._finish()
            elif record.source.trust is Trust.FOREIGN:
                self._report.untrusted += 1
                self._finish()
            else:
                report.read += 1
                key = (measurement.program.digest, record.mean, measurement.measured_at)
                if self._done[key]:
                    self._done[key] -= 1
                    report.known += 1
                    self._finish()
                    continue
                yield record

    def _finish(self) -> None:
        if self._on_record is not None:
            self._on_record()

    def _add(self, chunk: Replayed, report: WorkloadReport) -> None:
        """Store the converted records of a chunk, and count the others."""
        ids = set()
        converted: dict[Source, list[Measurement]] = {}
        for record, answer in zip(chunk.records, chunk.answers, strict=True):
            if isinstance(answer, str):
                if answer in ("", NO_DEFINITION):
                    report.undefined += 1
                else:
                    report.refuse(answer)
                continue
            module = chunk.modules[answer.module]
            ids.add(answer.module)
            name = module.definition
            report.definitions[name] = report.definitions.get(name, 0) + 1
            measurement = _converted(record.measurement, module, answer.trace)
            converted.setdefault(record.source, []).append(measurement)
        for number in ids:
            self._store.workloads.add(chunk.modules[number].workload, chunk.modules[number].aliases)
        for source, measurements in converted.items():
            new = sum(self._store.batches.load(measurements, source))
            report.replayed += new
            report.known += len(measurements) - new
        for _ in chunk.records:
            self._finish()


def _converted(original: Measurement, module: ModuleParts, trace: Trace) -> Measurement:
    """Return the measurement of a converted program: that of its original."""
    return replace(
        original,
        program=Program(module.workload, original.program.target, trace),
        args_info=module.args_info,
        origin=Origin.REPLAYED,
        donor=original.program.digest,
    )


# ---- Replay in worker processes ------------------------------------------------------------------


class Replayed(NamedTuple):
    """Records with their answers, which refer to modules by number."""

    records: list[Record]
    modules: Sequence[ModuleParts]
    answers: Sequence[Answer | str]


class ConvertPool:
    """Worker processes that run definitions and replay steps.

    Parameters
    ----------
    define : sequence of str
        Definitions ``name=package.module:function`` besides the installed ones.
    functions : mapping of str to str
        Functions of the user by name, in TVM's JSON.
    workers : int or None
        Processes; by default the number of usable processors.
    timeout_sec : float
        Seconds for a definition, and for each chunk of records.

    Raises
    ------
    UsageError
        A statement has another form, or a number is out of range.
    """

    def __init__(
        self,
        define: Sequence[str] = (),
        functions: Mapping[str, str] | None = None,
        *,
        workers: int | None = None,
        timeout_sec: float = 30.0,
    ) -> None:
        self.workers: int = usable_cpus() if workers is None else workers
        if self.workers < 1 or not timeout_sec > 0:
            raise UsageError("workers and timeout_sec must be positive")
        for statement in define:
            split_statement(statement)
        self._pool = WorkerPool(
            self.workers,
            convert_worker.prepare,
            tuple(define),
            dict(functions or {}),
            kind="convert",
            label="ConvertPool",
            maximum_uses=MAXIMUM_PROGRAMS // CHUNK,
        )
        self._timeout = timeout_sec
        #: Workload whose definition ended its process → the reason.
        self._bad: dict[bytes, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the processes; repeated calls do no harm."""
        self._pool.close()

    def replay(self, key: bytes, records: Iterable[Record]) -> Iterator[Replayed]:
        """Yield the records of a workload with their answers, in chunks.

        Raises
        ------
        PluginError
            A definition does not load, or no process can be started.
        """
        for chunk, result in self._pool.stream(records, CHUNK, partial(self._job, key)):
            yield Replayed(chunk, *result)

    def _job(self, key: bytes, records: list[Record]) -> Job:
        traces = [record.measurement.program.trace for record in records]
        return partial(self._run, key=key, traces=traces)

    # In the threads of the pool.
    def _run(
        self, worker: Worker, key: bytes, traces: Sequence[Trace]
    ) -> tuple[list[ModuleParts], list[Answer | str]] | None:
        """Return modules and answers; None if one of several programs ended the process."""
        reason = self._bad.get(key)
        if reason is None:
            try:
                number = worker.call(convert_worker.define, key, limit=self._timeout)
                reason = None if number else NO_DEFINITION
            except TimeoutError:
                reason = f"its definition took longer than {self._timeout:g} s"
            except ChildProcessError as error:
                reason = f"its definition ended the process ({error})"
            if reason is not None:
                self._bad[key] = reason
        if reason is not None:
            return [], [reason] * len(traces)
        try:
            result: tuple[list[ModuleParts], list[Answer | str]] = worker.call(
                convert_worker.replay, key, traces, limit=self._timeout
            )
        except (TimeoutError, ChildProcessError) as error:
            if len(traces) > 1:
                return None
            if isinstance(error, TimeoutError):
                return [], [f"replaying it took longer than {self._timeout:g} s"]
            return [], [f"replaying it crashed TVM ({error})"]
        return result
