"""Handle: :class:`Database` in plain Python, which TVM calls through function objects."""

from __future__ import annotations

import itertools
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from ....errors import FormatError, NotFoundError, UsageError
from ....exchange.prior import prior_path
from ....identity import canonical_json
from ....programs.metaschedule.trace import join_trace
from ....records import (
    NO_TARGET,
    TUNING,
    Failure,
    Measurement,
    Origin,
    Program,
    Quarantined,
    Session,
    Status,
)
from ....results import Record
from ....run_times import NO_TIME, status_of
from ....storage.store import Store
from ....storage.superseded import extra_of_final
from ....system.host import new_session
from .. import modules, trace_codec
from ..intrinsics import load_intrinsics
from ..targets import TargetTable, as_target
from ..threads import inherited_threads
from .candidates import CandidateRegistry
from .feature_commits import DEFAULT, FeatureCommits
from .layers import Layers, PriorLayer, ServedRecord, StoreAnswers
from .records import RecordTable
from .spool import Spool
from .workloads import StoredWorkload, WorkloadTable

# ---- Measured candidates -------------------------------------------------------------------------

_arg_info_as_json = tvm_ffi.get_global_func("s_tir.meta_schedule.ArgInfoAsJSON")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One measured candidate, as a measure callback gets it.

    A served candidate is a program that was measured before; it is not stored again. The missing
    repeats of one that was cut short have TVM's sentinel for no time.
    """

    workload: Any
    trace: Any
    target: Any
    args_info: Any
    run_secs: tuple[float, ...]
    failure: Failure | None = None
    is_served: bool = False
    is_cut_short: bool = False


def args_json(args: Any) -> bytes:
    """Return argument descriptions as canonical JSON."""
    # ArgInfo.as_json() converts the same tree in Python, 10 times slower.
    items = [trace_codec.dumps(_arg_info_as_json(arg)) for arg in trace_codec.items_of(args)]
    return b"[" + b",".join(items) + b"]"


# ---- The handle ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredTask:
    """The stored parts of a tuning task.

    Parameters
    ----------
    workload_id : int or None
        Local number of its workload; None where it is not stored.
    equal_ids, target_ids : list of int
        Local numbers of the equal workloads, and of the target if it is stored.
    best : Record or None
        Best record of the equal workloads for the target.
    """

    workload_id: int | None
    equal_ids: list[int]
    target_ids: list[int]
    best: Record | None


class LearningModel(Protocol):
    """A cost model that stores its predictions and learns from failed builds."""

    def not_built(self, failed: Sequence[tuple[Program, Any]], began: int) -> None:
        """Take the failed candidates of a batch; its first candidate was stored at `began`."""

    def flush(self) -> None:
        """Write the predictions for programs that are stored by now."""


class Handle:
    """A store with a target and a module equality, as TVM's tuning uses it.

    :class:`tunedb.plugins.metaschedule.Database` documents the parameters.
    """

    def __init__(
        self,
        store: Store,
        *,
        target: Any = None,
        fallback: str = "exact",
        module_equality: str = "structural",
        live_records: int = 4096,
        features: Sequence[str] = DEFAULT,
        layers: Sequence[str | Path] = (),
        prior: str | Path = "auto",
    ) -> None:
        if module_equality not in modules.EQUALITIES:
            choices = ", ".join(modules.EQUALITIES)
            raise UsageError(f"module_equality must be one of {choices}, not {module_equality!r}")
        self.store = store
        self.lock: Final = threading.RLock()
        store.answers.prepare()
        self.workloads: Final = WorkloadTable(store, module_equality)
        self.source = TUNING
        self.targets: Final = TargetTable(store, fallback)
        if target is not None:
            self.targets.bind(as_target(target))
        self.records: Final = RecordTable(
            store, self.workloads, self.targets, self.source, live_records
        )
        self._own = StoreAnswers(store, self.workloads, self.targets, self.records)
        self.layers: Final = Layers(
            layers, self._own, equality=module_equality, fallback=fallback, most=live_records
        )
        path = prior_path(prior)
        self.prior: PriorLayer | None = (
            None
            if path is None
            else PriorLayer(path, self._own, equality=module_equality, most=live_records)
        )
        self.features: Final = FeatureCommits(store, features, self.source)
        self._spool = Spool(store)
        self._session: Session | None = None
        self._sequence: Iterator[int] = itertools.count()
        self._sequences: dict[str, Iterator[int]] = {}
        self.candidates: Final = CandidateRegistry()
        #: Cost models of this handle.
        self.models: weakref.WeakSet[LearningModel] = weakref.WeakSet()
        #: Time when the first candidate of the last batch was stored, microseconds since 1970.
        self.batch_began: int = 0

    # ------------------------------------------------------------------ TVM's interface

    def has_workload(self, mod: Any) -> bool:
        """Tell whether a module equal to this one is stored, or served by a layer."""
        with self.lock:
            return self.workloads.find(mod) is not None or self._others_have(mod)

    def _others_have(self, mod: Any) -> bool:
        is_in_prior = self.prior is not None and self.prior.find(mod) is not None
        return self.layers.have(mod) or is_in_prior

    def commit_workload(self, mod: Any) -> Any:
        """Return the Workload of exactly this module, adding it if it is missing."""
        with self.lock:
            if self.store.read_only and self.workloads.find(mod) is None and self._others_have(mod):
                return ms.database.Workload(mod)
            return self.workloads.commit(mod).workload

    def commit_tuning_record(self, record: Any) -> None:
        """Store one record, unless the measure callback has stored this candidate already."""
        with self.lock:
            if self.candidates.take_recorded(record.trace):
                return
            times = record.run_secs
            candidate = Candidate(
                workload=record.workload,
                trace=record.trace,
                target=record.target,
                args_info=record.args_info,
                run_secs=() if times is None else trace_codec.floats_of(times),
            )
            measurement = self._measured(candidate, has_times=times is not None)
            if measurement is not None and self._add([measurement], [record]):
                self.candidates.commit(record.trace, measurement)

    def record_batch(self, candidates: Iterable[Candidate]) -> list[Program | None]:
        """Store the candidates of one batch in one transaction.

        Candidates that TVM's ``AddToDatabase`` has committed before are not stored again, but their
        failures get a cause; those that it commits later are skipped then.

        Parameters
        ----------
        candidates : iterable of Candidate
            Measured candidates.

        Returns
        -------
        list of Program or None
            The program of each candidate; None if it was left out.

        Raises
        ------
        StorageError
            The batch cannot be stored; it is in a file, which the message names.
        """
        programs: list[Program | None] = []
        with self.lock:
            self.candidates.begin_batch()
            self.batch_began = time.time_ns() // 1000
            causes: list[tuple[Measurement, Failure]] = []
            new: list[tuple[Candidate, Measurement]] = []
            for candidate in candidates:
                if candidate.is_served:
                    # It counts as a trial of its session all the same.
                    next(self._sequence)
                    self.candidates.record(candidate.trace)
                    programs.append(None)
                    continue
                committed = self.candidates.take_committed(candidate.trace)
                measurement = self._measured(candidate) if committed is None else committed
                programs.append(None if measurement is None else measurement.program)
                if measurement is None:
                    continue
                self.batch_began = min(self.batch_began, measurement.measured_at)
                if committed is None:
                    new.append((candidate, measurement))
                elif candidate.failure is not None:
                    causes.append((measurement, candidate.failure))
            self.candidates.end_batch()
            batch = [measurement for _, measurement in new]
            with self._spool.guarding(batch, self.session()):
                if causes:
                    self.store.batches.add_failures(causes)
                if batch:
                    self._add(batch)
            for candidate, _ in new:
                self.candidates.record(candidate.trace)
        return programs

    def record_final(self, finalists: Iterable[tuple[Measurement, tuple[float, ...]]]) -> None:
        """Store the measurements of a final; the programs keep their origins.

        Parameters
        ----------
        finalists : iterable of (Measurement, tuple of float)
            An earlier measurement of each program, and its run times in the final in seconds; the
            winner is the first one.

        Raises
        ------
        StorageError
            As for :meth:`record_batch`.
        """
        with self.lock:
            batch = [
                replace(
                    before,
                    run_secs=run_secs,
                    measured_at=time.time_ns() // 1000,
                    occurrence=next(self._sequence),
                    session=self.session(),
                    launches=(),
                    extra=extra_of_final(before.extra, won=place == 0),
                )
                for place, (before, run_secs) in enumerate(finalists)
            ]
            with self._spool.guarding(batch, self.session()):
                self._add(batch)

    def get_top_k(self, workload: Any, top_k: int) -> list[Any]:
        """Return the best records of a workload for the handle's target, best first.

        If the store has none, they are those of the first layer that has some.
        """
        if top_k < 0:
            raise ValueError(f"top_k must not be negative, got {top_k}")
        with self.lock:
            known = self.workloads.resolve(workload) if top_k else None
            groups = self._groups(known, workload.mod, workload, None, top_k) if top_k else ()
            for group in groups:
                served = list(itertools.islice(group, top_k))
                if served:
                    return [each.record for each in served]
            return []

    def stored_task(self, mod: Any, target: Any) -> StoredTask:
        """Return the stored workloads and target of a tuning task, and its best record."""
        with self.lock:
            known = self.workloads.find(mod)
            target_id = self.store.targets.id_of(self.targets.stored(target).digest)
            equal = [] if known is None else self.workloads.equal_ids(known)
            targets = [] if target_id is None else [target_id]
            best = self.store.records.best(equal, targets) if equal and targets else None
        return StoredTask(None if known is None else known.id, equal, targets, best)

    def best_records(self, mod: Any, target: Any, most: int) -> list[tuple[int, Any]]:
        """Return the numbers and TuningRecords of the store's best records of a module."""
        with self.lock:
            served = self._query(mod, target, most, layers=False)
            return [(each.id, each.record) for each in itertools.islice(served, most)]

    def get_all_tuning_records(self) -> list[Any]:
        """Return the records of the handle's target in order of insertion, failed ones included."""
        with self.lock:
            answers = self.store.answers.iterate(self.targets.shown())
            return list(self.records.build_all(answers))

    def query_tuning_record(self, mod: Any, target: Any, _name: str | None = None) -> Any:
        """Return the best record of a module for a target, or None."""
        with self.lock:
            return next((served.record for served in self._query(mod, target)), None)

    def query_schedule(self, mod: Any, target: Any, _name: str | None = None) -> Any:
        """Return the best schedule of a module for a target, or None.

        A record that does not replay is quarantined and the next best one is tried.
        """
        best = self.best_schedule(mod, target)
        return None if best is None else best[1]

    def best_schedule(self, mod: Any, target: Any) -> tuple[ServedRecord, Any] | None:
        """Return the best record that replays, and its schedule, or None."""
        with self.lock:
            for served in self._query(mod, target):
                record = served.record
                if any(each.kind.name == "Tensorize" for each in record.trace.insts):
                    load_intrinsics()
                schedule = Schedule(record.workload.mod)
                try:
                    record.trace.apply_to_schedule(schedule, remove_postproc=False)
                except Exception as error:  # TVM raises ScheduleError, InternalError, …
                    served.discard(error)
                    continue
                return served, schedule
            return None

    def query_ir_module(self, mod: Any, target: Any, name: str | None = None) -> Any:
        """Return the best scheduled module for a target, or None."""
        schedule = self.query_schedule(mod, target, name)
        return None if schedule is None else schedule.mod

    def _query(
        self, mod: Any, target: Any, chunk: int = 1, *, layers: bool = True
    ) -> Iterator[ServedRecord]:
        """Yield the records of a module in the first store and group of targets that have any."""
        bound, stored = self.targets.bound, self.targets.stored(target)
        if bound is not None and bound.kind != stored.kind:
            return
        known = self.workloads.find(mod)
        for group in self._groups(known, mod, None, target, chunk, layers=layers):
            is_empty = True
            for served in group:
                is_empty = False
                yield served
            if not is_empty:
                return

    def _groups(
        self,
        known: StoredWorkload | None,
        mod: Any,
        workload: Any,
        target: Any,
        chunk: int,
        *,
        layers: bool = True,
    ) -> Iterator[Iterator[ServedRecord]]:
        """Yield the records by group of targets, then store: own before layers, best first."""
        stored = None if target is None else self.targets.stored(target)
        for level in self.targets.levels:
            if known is not None:
                yield self._own.best(known, stored, level, chunk)
            if layers:
                own = workload if known is None else known.workload
                yield from self.layers.best(mod, own, target, level, chunk)
        if layers and self.prior is not None:
            own = workload if known is None else known.workload
            yield from self.prior.answers_of(mod, own, target)

    def size(self) -> int:
        """Return the number of records, failed ones included."""
        with self.lock:
            if self.targets.bound is None:
                return self.store.records.count()
            return self.store.records.count(self.targets.shown())

    def close(self) -> None:
        """Write the predictions of cost models, and close the store and its layers."""
        for model in list(self.models):
            model.flush()
        self.close_others()
        self.store.close()

    def close_others(self) -> None:
        """Close its layers and its prior; the next question opens them again."""
        self.layers.close()
        if self.prior is not None:
            self.prior.close()

    # ------------------------------------------------------------------ writing

    def session(self) -> Session:
        """Return the handle's session, which begins with its first commit."""
        if self._session is None:
            self._session = new_session(
                tvm=str(tvm.__version__),
                tvm_ffi=str(tvm_ffi.__version__),
                llvm=modules.llvm_version(),
                threads=inherited_threads().as_json(),
            )
        return self._session

    def use_session(self, session: Session) -> None:
        """Record under another session from now on, e.g. that of a remote device."""
        if self._session is not None:
            self._sequences[self._session.key] = self._sequence
        self._session = session
        self._sequence = self._sequences.get(session.key) or itertools.count()

    def program_of(self, mod: Any, target: Any, trace: Any) -> Program | None:
        """Return the stored form of a trace on a stored module; None if it has none."""
        with self.lock:
            known = self.workloads.commit(mod)
            try:
                encoded = trace_codec.encode(trace)
            except trace_codec.UnknownInstructionError:
                return None
            return Program(known.record, self.targets.stored(target), encoded)

    def _measured(self, candidate: Candidate, *, has_times: bool = True) -> Measurement | None:
        """Return the stored form of a candidate; None, with a warning, if it has none."""
        try:
            return self._measurement(candidate, has_times=has_times)
        except trace_codec.UnknownInstructionError as error:
            warnings.warn(f"record left out: {error}", RuntimeWarning, stacklevel=2)
            return None

    def _measurement(self, candidate: Candidate, *, has_times: bool = True) -> Measurement:
        """Return the stored form of a candidate; binds an unbound handle to its target."""
        known = self.workloads.resolve(candidate.workload, commit=True)
        if known is None:
            raise NotFoundError("cannot store a workload")
        target = self.targets.stored(candidate.target)
        if self.targets.bound is None and target != NO_TARGET:
            self.targets.bind(candidate.target)
        args = candidate.args_info
        status = status_of(candidate.run_secs) if candidate.failure is None else Status.FAILED
        run_secs = candidate.run_secs
        if candidate.is_cut_short:
            status = Status.CUT_SHORT
            run_secs = tuple(seconds for seconds in run_secs if seconds != NO_TIME)
        lineage = self.candidates.lineage_of(candidate.trace)
        return Measurement(
            program=Program(known.record, target, trace_codec.encode(candidate.trace)),
            run_secs=run_secs if has_times else None,
            status=status,
            measured_at=time.time_ns() // 1000,
            occurrence=next(self._sequence),
            session=self.session(),
            args_info=None if args is None else args_json(args),
            origin=Origin.UNKNOWN if lineage is None else lineage.origin,
            donor=None if lineage is None else lineage.donor,
            extra=None if lineage is None else lineage.extra(),
            failure=candidate.failure,
        )

    def _add(self, batch: list[Measurement], records: Sequence[Any] = ()) -> bool:
        """Store a batch; keep its live TVM objects, which then answer without being built."""
        try:
            ids, _ = self.store.batches.add(batch, self.source)
        except FormatError as error:
            self._quarantine_batch(batch, error)
            return False
        for id_, measurement, record in zip(ids, batch, records, strict=False):
            if measurement.is_valid:
                self.records.keep(id_, record)
        return True

    def _quarantine_batch(self, batch: list[Measurement], error: FormatError) -> None:
        """Store a batch record by record, and quarantine those that cannot be stored."""
        if len(batch) > 1:
            for measurement in batch:
                self._add([measurement])
            return
        warnings.warn(f"record quarantined: {error}", RuntimeWarning, stacklevel=2)
        instructions, decisions = join_trace(batch[0].program.trace)
        data = [[instructions, decisions], [repr(t) for t in batch[0].run_secs or ()]]
        self.store.quarantine.add(
            [
                Quarantined(
                    f"session {self.session().key}",
                    batch[0].occurrence,
                    str(error),
                    canonical_json(data),
                )
            ],
            self.source,
        )
