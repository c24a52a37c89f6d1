"""What :class:`Database` does, in plain Python; TVM calls it through function objects."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from ... import limits
from ...errors import (
    BusyError,
    FormatError,
    NotFoundError,
    StorageError,
    TargetError,
    UsageError,
)
from ...host import new_session
from ...identity import canonical_json
from ...records import (
    NO_TARGET,
    Answer,
    Failure,
    Measurement,
    Origin,
    Program,
    Quarantined,
    Session,
    Source,
    SourceKind,
    Status,
    Target,
    Trace,
)
from ...store import Store, status_of
from ...traces import join_trace
from . import modules, trace_codec
from .trace_codec import TraceBuilder
from .workloads import Known, WorkloadTable

_log = logging.getLogger("tunedb")

_arg_info_as_json = tvm_ffi.get_global_func("s_tir.meta_schedule.ArgInfoAsJSON")

FALLBACKS = ("exact", "compatible")

#: How many records a query takes at a time while it skips those that do not replay.
_CHUNK = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """One measured candidate, as a measure callback knows it."""

    workload: Any
    trace: Any
    target: Any
    args_info: Any
    run_secs: tuple[float, ...]
    failure: Failure | None = None
    origin: Origin = Origin.UNKNOWN


class Handle:
    """One tuning handle: a store seen through a target and a module equality.

    See :class:`tunedb.plugins.metaschedule.Database`, which documents the parameters.
    """

    def __init__(
        self,
        store: Store,
        *,
        target: Any = None,
        fallback: str = "exact",
        module_equality: str = "structural",
        live_records: int = 1024,
    ) -> None:
        if fallback not in FALLBACKS:
            raise UsageError(f"fallback must be one of {', '.join(FALLBACKS)}, not {fallback!r}")
        if module_equality not in modules.EQUALITIES:
            known = ", ".join(modules.EQUALITIES)
            raise UsageError(f"module_equality must be one of {known}, not {module_equality!r}")
        self.store = store
        self.lock = threading.RLock()
        self.workloads = WorkloadTable(store, module_equality)
        self.source = Source("tuning", SourceKind.LIVE)
        self._fallback = fallback
        self._target: Target | None = None
        if target is not None:
            self.bind(modules.to_target(as_target(target)))
        self._builder = TraceBuilder()
        self._live: OrderedDict[int, Any] = OrderedDict()
        self._live_records = live_records
        self._broken: set[int] = set()
        self._targets: dict[int, Any] = {}
        self._target_rows: dict[bytes, int] = {}
        self._stored_targets: dict[int, tuple[Any, Target]] = {}
        self._args: dict[bytes, Any] = {}
        self._session: Session | None = None
        self._sequence = itertools.count()
        # Traces of the batch that is being recorded: address → (trace, measurement). TVM's
        # AddToDatabase and our MeasureCallback both see each candidate; one of them records it.
        self._committed: OrderedDict[int, tuple[Any, Measurement]] = OrderedDict()
        self._announced: dict[int, Any] = {}

    # ------------------------------------------------------------------ target

    @property
    def target(self) -> Target | None:
        """The target that the handle is bound to."""
        return self._target

    def bind(self, target: Target) -> None:
        """Serve this target from now on."""
        self._target = target

    def _serving_targets(self, equal: Sequence[int]) -> list[list[int]]:
        """Return groups of target rows; a later group answers only where earlier ones cannot."""
        query = self.store.query
        if self._target is not None:
            return self._groups_of(self._target)
        ids = query.served_targets(equal)
        kinds = {query.target(id_).kind for id_ in ids} - {NO_TARGET.kind}
        if len(kinds) > 1:
            raise TargetError(
                f"{self.store.location}: it holds programs for {', '.join(sorted(kinds))} of this "
                "workload; say which with Database(..., target=...)"
            )
        if kinds:
            ids = [id_ for id_ in ids if query.target(id_).kind in kinds]
        return [ids]

    def _groups_of(self, target: Target) -> list[list[int]]:
        """Return the row of a target, and those of compatible ones where the user allowed it."""
        exact = self._target_rows.get(target.digest)
        if exact is None:
            exact = self.store.query.target_id(target.digest)
            if exact is not None:
                self._target_rows[target.digest] = exact
        groups = [] if exact is None else [[exact]]
        if self._fallback == "compatible":
            others = self.store.query.compatible_targets(target)
            groups.append([id_ for id_ in others if id_ != exact])
        return groups

    # ------------------------------------------------------------------ TVM's interface

    def has_workload(self, mod: Any) -> bool:
        """Tell whether a module equal to this one is stored."""
        with self.lock:
            return self.workloads.find(mod) is not None

    def commit_workload(self, mod: Any) -> Any:
        """Return the Workload of exactly this module, adding it where it is missing."""
        with self.lock:
            return self.workloads.commit(mod).workload

    def commit_tuning_record(self, record: Any) -> None:
        """Store one record, unless the measure callback has stored this candidate already."""
        with self.lock:
            if self._announced.pop(record.trace.__chandle__(), None) is not None:
                return
            times = record.run_secs
            candidate = Candidate(
                workload=record.workload,
                trace=record.trace,
                target=record.target,
                args_info=record.args_info,
                run_secs=() if times is None else tuple(float(value) for value in times),
            )
            measurement = self._measurement(candidate, has_times=times is not None)
            if self._add([measurement], [record]):
                self._committed[record.trace.__chandle__()] = (record.trace, measurement)
                if len(self._committed) > self._live_records:
                    self._committed.popitem(last=False)

    def record_batch(self, candidates: Iterable[Candidate]) -> None:
        """Store the candidates of one batch in one transaction.

        Those that TVM's ``AddToDatabase`` has committed before are not stored again, but their
        failures get their cause; those that it will commit after are passed over then.
        """
        with self.lock:
            self._announced.clear()
            learnt: list[tuple[Measurement, Failure]] = []
            new: list[tuple[Candidate, Measurement]] = []
            for candidate in candidates:
                committed = self._committed.pop(candidate.trace.__chandle__(), None)
                if committed is None:
                    new.append((candidate, self._measurement(candidate)))
                elif candidate.failure is not None:
                    learnt.append((committed[1], candidate.failure))
            self._committed.clear()
            if learnt:
                self.store.add_failures(learnt)
            if new:
                self._add([measurement for _, measurement in new])
            for candidate, _ in new:
                self._announced[candidate.trace.__chandle__()] = candidate.trace

    def get_top_k(self, workload: Any, top_k: int) -> list[Any]:
        """Return the best records of a workload for the handle's target, best first."""
        if top_k < 0:
            raise ValueError(f"top_k must not be negative, got {top_k}")
        with self.lock:
            known = self.workloads.resolve(workload) if top_k else None
            if known is None:
                return []
            equal = self.workloads.equal_ids(known)
            for targets in self._serving_targets(equal):
                found = list(itertools.islice(self._best(equal, targets, top_k), top_k))
                if found:
                    return found
            return []

    def _best(self, equal: Sequence[int], targets: Sequence[int], chunk: int) -> Iterator[Any]:
        """Yield the records of equal workloads, best first, without those that are broken."""
        seen, wanted = 0, chunk
        while True:
            ids = self.store.query.top_k_ids(equal, targets, wanted)
            for id_ in ids[seen:]:
                record = self._tuning_record(id_)
                if record is not None:
                    yield record
            if len(ids) < wanted:
                return
            seen, wanted = len(ids), wanted + max(chunk, _CHUNK)

    def get_all_tuning_records(self) -> list[Any]:
        """Return the records of the handle's target in order of insertion, failed ones included."""
        with self.lock:
            targets = self._all_targets()
            found = (
                self._live.get(answer.id) or self._build(answer)
                for answer in self.store.query.answers(targets)
            )
            return [record for record in found if record is not None]

    def _all_targets(self) -> list[int] | None:
        """Return the targets whose records this handle shows, or None for all."""
        targets = self.store.query.targets()
        if self._target is not None:
            return [t.id for t in targets if t.target.digest == self._target.digest]
        kinds = {t.target.kind for t in targets} - {NO_TARGET.kind}
        if len(kinds) > 1:
            raise TargetError(
                f"{self.store.location}: it holds programs for {', '.join(sorted(kinds))}; "
                "say which with Database(..., target=...)"
            )
        return None

    def query_tuning_record(self, mod: Any, target: Any, _name: str | None = None) -> Any:
        """Return the best record of a module for a target, or None."""
        with self.lock:
            return next(self._query(mod, target), None)

    def query_schedule(self, mod: Any, target: Any, _name: str | None = None) -> Any:
        """Return the best schedule of a module for a target, or None.

        A record that does not replay is quarantined and the next best one is tried.
        """
        with self.lock:
            for record in self._query(mod, target):
                schedule = Schedule(record.workload.mod)
                try:
                    record.trace.apply_to_schedule(schedule, remove_postproc=False)
                except Exception as error:  # TVM raises ScheduleError, InternalError, …
                    self._quarantine_live(record, error)
                    continue
                return schedule
            return None

    def query_ir_module(self, mod: Any, target: Any, name: str | None = None) -> Any:
        """Return the best scheduled module for a target, or None."""
        schedule = self.query_schedule(mod, target, name)
        return None if schedule is None else schedule.mod

    def _query(self, mod: Any, target: Any) -> Iterator[Any]:
        """Yield the records of a module for a target, best first."""
        stored = self._stored_target(target)
        bound = self._target
        known = self.workloads.find(mod)
        if known is None or (bound is not None and bound.kind != stored.kind):
            return
        equal = self.workloads.equal_ids(known)
        for targets in self._groups_of(stored):
            found = False
            for record in self._best(equal, targets, 1):
                found = True
                yield record
            if found:
                return

    def size(self) -> int:
        """Return the number of records, failed ones included."""
        with self.lock:
            return self.store.query.size(self._all_targets() if self._target else None)

    # ------------------------------------------------------------------ writing

    def session(self) -> Session:
        """Return the handle's session, which begins with its first commit."""
        if self._session is None:
            self._session = new_session(
                tvm=str(tvm.__version__),
                tvm_ffi=str(tvm_ffi.__version__),
                llvm=_llvm_version(),
            )
        return self._session

    def _stored_target(self, target: Any) -> Target:
        """Return the stored form of a TVM target; each object is exported once."""
        if target is None:
            return NO_TARGET
        met = self._stored_targets.get(target.__chandle__())
        if met is None:
            if len(self._stored_targets) > limits.BATCH_ROWS:
                self._stored_targets.clear()
            met = (target, modules.to_target(target))
            self._stored_targets[target.__chandle__()] = met
        return met[1]

    def _measurement(self, candidate: Candidate, *, has_times: bool = True) -> Measurement:
        """Return the stored form of a candidate; binds an unbound handle to its target."""
        known = self.workloads.resolve(candidate.workload, commit=True)
        if known is None:
            raise NotFoundError("a workload that cannot be stored")
        target = self._stored_target(candidate.target)
        if self._target is None and target != NO_TARGET:
            self.bind(target)
        args = candidate.args_info
        status = status_of(candidate.run_secs) if candidate.failure is None else Status.FAILED
        return Measurement(
            program=Program(known.record, target, trace_codec.encode(candidate.trace)),
            run_secs=candidate.run_secs if has_times else None,
            status=status,
            measured_at=time.time_ns() // 1000,
            occurrence=next(self._sequence),
            session=self.session(),
            args_info=None if args is None else _args_json(args),
            origin=candidate.origin,
            failure=candidate.failure,
        )

    def _add(self, batch: list[Measurement], records: Sequence[Any] = ()) -> bool:
        """Store a batch; records are the live objects, which then answer without being built."""
        try:
            ids, _ = self.store.add_batch(batch, self.source)
        except FormatError as error:
            self._quarantine_batch(batch, error)
            return False
        for id_, measurement, record in zip(ids, batch, records, strict=False):
            if measurement.is_valid:
                self._keep(id_, self._with_known_workload(record))
        return True

    def _with_known_workload(self, record: Any) -> Any:
        """Return the record with the one Workload object of its row: pruning groups by it."""
        known = self.workloads.resolve(record.workload)
        if known is None or known.workload.same_as(record.workload):
            return record
        return ms.database.TuningRecord(
            record.trace, known.workload, record.run_secs, record.target, record.args_info
        )

    def _quarantine_batch(self, batch: list[Measurement], error: FormatError) -> None:
        """Keep what cannot be stored, one record at a time; tuning goes on."""
        if len(batch) > 1:
            for measurement in batch:
                self._add([measurement])
            return
        warnings.warn(f"record quarantined: {error}", RuntimeWarning, stacklevel=2)
        instructions, decisions = join_trace(batch[0].program.trace)
        data = [[instructions, decisions], [repr(t) for t in batch[0].run_secs or ()]]
        self.store.quarantine(
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

    # ------------------------------------------------------------------ reading

    def _keep(self, id_: int, record: Any) -> None:
        self._live[id_] = record
        if len(self._live) > self._live_records:
            self._live.popitem(last=False)

    def _tuning_record(self, id_: int) -> Any:
        """Return the live TuningRecord of a row, or None for a broken one."""
        record = self._live.get(id_)
        if record is not None:
            self._live.move_to_end(id_)
            return record
        if id_ in self._broken:
            return None
        value = self._build(self.store.query.answer(id_))
        if value is not None:
            self._keep(id_, value)
        return value

    def _build(self, answer: Answer) -> Any:
        """Return the TuningRecord of a stored record, or None where it cannot be built."""
        try:
            known = self.workloads.known(answer.workload_id)
            return ms.database.TuningRecord(
                self._trace(answer.trace, known),
                known.workload,
                answer.run_secs,
                self._tvm_target(answer.target_id),
                self._args_info(answer.args_info),
            )
        except (StorageError, BusyError):
            raise
        except Exception as error:  # whatever TVM raises on what it does not understand
            self._quarantine_stored(answer, error)
            return None

    def _trace(self, trace: Trace, known: Known) -> Any:
        """Return TVM's trace, built without replaying it where every instruction is known."""
        try:
            return self._builder.build(trace)
        except trace_codec.UnknownInstructionError:
            return trace_codec.replay(trace, known.workload.mod)

    def _tvm_target(self, id_: int) -> Any:
        """Return the TVM target of a row, or None for records without target."""
        if id_ not in self._targets:
            attributes = self.store.query.target(id_).attributes
            self._targets[id_] = None if attributes is None else as_target(attributes)
        return self._targets[id_]

    def _args_info(self, body: bytes | None) -> Any:
        """Return TVM's argument descriptions, or None."""
        if body is None:
            return None
        if body not in self._args:
            if len(self._args) > limits.BATCH_ROWS:
                self._args.clear()
            self._args[body] = [ms.arg_info.ArgInfo.from_json(a) for a in orjson.loads(body)]
        return self._args[body]

    def _quarantine_stored(self, answer: Answer, error: Exception) -> None:
        """Note that a stored record is of no use to this TVM, and pass over it from now on."""
        self._broken.add(answer.id)
        reason = f"record {answer.id} cannot be rebuilt: {_first_line(error)}"
        _log.warning("%s: %s", self.store.location, reason)
        if self.store.read_only:
            return
        trace = answer.trace
        data = canonical_json([list(map(_text, (trace.sketch, trace.tail, trace.decisions)))])
        self.store.quarantine(
            [Quarantined(self.store.location, answer.id, reason, data)], self.source
        )

    def _quarantine_live(self, record: Any, error: Exception) -> None:
        """Do the same for a record that was handed out and does not replay."""
        for id_, live in list(self._live.items()):
            if live.same_as(record):
                self._live.pop(id_)
                self._quarantine_stored(self.store.query.answer(id_), error)
                return


def as_target(target: Any) -> Any:
    """Return a TVM target from one, or from a configuration.

    Raises
    ------
    TargetError
        TVM does not know it.
    """
    if isinstance(target, tvm.target.Target):
        return target
    try:
        return tvm.target.Target(target)
    except Exception as error:  # TVM raises ValueError, TypeError or InternalError
        raise TargetError(
            f"unknown target {target!r} ({_first_line(error)}); give one that "
            "tvm.target.Target accepts, e.g. {'kind': 'llvm', 'num-cores': 4}"
        ) from None


def _args_json(args: Any) -> bytes:
    """Return canonical JSON of argument descriptions."""
    # ArgInfo.as_json() converts the same tree in Python, 10 times slower.
    parts = [trace_codec.dumps(_arg_info_as_json(arg)) for arg in args]
    return b"[" + b",".join(parts) + b"]"


def _llvm_version() -> str | None:
    """Return the major version of TVM's LLVM, or None."""
    try:
        return str(tvm.target.codegen.llvm_version_major())
    except Exception:  # TVM built without LLVM
        return None


def _first_line(error: Exception) -> str:
    """Return the line of TVM's message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line]
    return (named or lines or [type(error).__name__])[-1][:300]


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()
