"""Revalidation: the best programs are measured again, and their results compared.

The program of a foreign source is code of others. It is replayed, built and run in worker
processes only, and only on the caller's request; a program that fails the allow-list
(:mod:`tunedb.programs.allowlist`) never is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import orjson
import tvm
from tvm.s_tir import meta_schedule as ms

from ....errors import FormatError, NotFoundError, UsageError
from ....identity import canonical_json
from ....programs.allowlist import check_trace
from ....records import (
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Source,
    SourceKind,
    Status,
    Target,
    Trust,
)
from ....results import Record
from ....run_times import NO_TIME, mean_of
from ....storage.retractions import Retraction
from ....storage.store import Store
from ....system.host import threads_of
from ....system.temporary import TemporaryFolder
from .. import modules
from ..database.handle import Handle
from ..database.workloads import StoredWorkload
from ..targets import as_target
from . import numerics
from .apply import tasks_of
from .build_and_run import BuildAndRun, Job
from .network import DEFAULT, Lowering

# ---- Foreign programs that must not be replayed --------------------------------------------------

#: Greatest ratio of the values in a record's arguments to those in the module's: weights in a
#: layout of their own are padded to whole tiles.
_PADDING = 4


def rejection_of(record: Record, mod: Any) -> str | None:
    """Return the reason why a foreign program must not be replayed, or None.

    Parameters
    ----------
    record : Record
        A record of the program.
    mod : tvm.IRModule
        The user's own module that it would be applied to.
    """
    measurement = record.measurement
    program = measurement.program
    try:
        check_trace(program.trace, program.workload.format)
        if measurement.args_info is not None:
            _check_arguments(orjson.loads(measurement.args_info), mod)
    except FormatError as error:
        return f"not allowed: {error}"
    return None


def _check_arguments(described: Any, mod: Any) -> None:
    """Raise FormatError unless arguments have the types of the module's, and about their size."""
    # Memory is allocated for them; a vector type could be as large as a long shape.
    own = [info.as_json() for info in ms.arg_info.ArgInfo.from_entry_func(mod)]
    types = {str(dtype) for _, dtype, _ in own}
    most = _PADDING * sum(math.prod(map(int, shape)) for _, _, shape in own)
    total = 0
    try:
        for kind, dtype, shape in described:
            is_shape = type(shape) is list and all(type(n) is int and n >= 0 for n in shape)
            if kind != "TENSOR" or dtype not in types or not is_shape:
                raise FormatError("the types of its arguments differ from the module's")
            total += math.prod(shape)
    except (TypeError, ValueError):
        raise FormatError("its arguments are not a list of tensors") from None
    if total > most:
        raise FormatError(f"its arguments have {total:.3g} values, over {most:,} for this module")


# ---- Best programs of a workload, each with its best record --------------------------------------

#: Records that are read at a time, until there are enough programs.
_CHUNK = 32


def served_programs(
    store: Store, workload_ids: Sequence[int], target_id: int, k: int
) -> list[Record]:
    """Return the best record of each of the k best programs that are served.

    Parameters
    ----------
    store : Store
        Store of the database.
    workload_ids : sequence of int
        Workloads that count as one.
    target_id : int
        Local number of the target.
    k : int
        Most programs to return.
    """
    return _first_of_each(_served(store, workload_ids, target_id), k)


def foreign_programs(
    store: Store, workload_ids: Sequence[int], target_id: int, k: int
) -> list[Record]:
    """Return the best record of each of the k best programs that only foreign sources have.

    A program with a record that this database retracted is left out, because it was wrong. A
    retraction by others concerns their own records only. The parameters are those of
    :func:`served_programs`; all records of the workloads are read.
    """
    return _first_of_each(_foreign(store, workload_ids, target_id), k)


def converted_programs(
    store: Store, workload_ids: Sequence[int], target_id: int, k: int
) -> list[Record]:
    """Return the best record of each of the k best programs that ``tunedb convert`` made.

    The parameters are those of :func:`served_programs`.
    """
    served = _served(store, workload_ids, target_id)
    converted = (each for each in served if each.measurement.origin is Origin.REPLAYED)
    return _first_of_each(converted, k)


def _first_of_each(records: Iterable[Record], k: int) -> list[Record]:
    by_program: dict[bytes, Record] = {}
    for record in records:
        by_program.setdefault(record.measurement.program.digest, record)
        if len(by_program) == k:
            break
    return list(by_program.values())


def _served(store: Store, workload_ids: Sequence[int], target_id: int) -> Iterator[Record]:
    seen, most = 0, _CHUNK
    while True:
        ids = store.answers.best_ids(workload_ids, [target_id], most)
        yield from map(store.records.get, ids[seen:])
        if len(ids) < most:
            return
        seen, most = most, 2 * most


def _foreign(store: Store, workload_ids: Sequence[int], target_id: int) -> Iterator[Record]:
    best: list[tuple[float, int]] = []
    excluded: set[bytes] = set()
    for id_ in workload_ids:
        for record in store.records.iterate(id_, [target_id]):
            if record.source.trust >= Trust.VERIFIED or _is_retracted_here(store, record):
                excluded.add(record.measurement.program.digest)
            elif record.retracted:
                continue
            elif record.measurement.is_valid and record.mean is not None:
                best.append((record.mean, record.id))
    for _, number in sorted(best):
        record = store.records.get(number)
        if record.measurement.program.digest not in excluded:
            yield record


def _is_retracted_here(store: Store, record: Record) -> bool:
    """Tell whether this database itself has retracted a record."""
    if not record.retracted:
        return False
    retraction = Retraction(record.measurement.digest, store.key, "measurement", "")
    return bool(store.exchange.known_retractions([retraction]))


def is_named(store: Store, mod: Any, equality: str) -> bool:
    """Tell whether a module is stored, or a name of it by any source.

    Parameters
    ----------
    store : Store
        Store of the database.
    mod : tvm.IRModule
        A module.
    equality : str
        One of :data:`~tunedb.plugins.metaschedule.modules.EQUALITIES`.
    """
    record = modules.to_workload(mod)
    if store.workloads.id_of(record.digest) is not None:
        return True
    names = [modules.alias(mod, equality), modules.script_alias(record.script or "")]
    return bool(store.names.workloads(names))


# ---- Revalidation --------------------------------------------------------------------------------

__all__ = ["Revalidation", "Verdict"]

VerdictOutcome = Literal["passed", "wrong", "failed", "unchecked", "refused"]

#: Sources of the measurements. A foreign program that passes is verified; one that does not stays
#: foreign, because a measurement of a trusted source would let TVM have it.
OWN = Source("revalidation", SourceKind.LIVE)
VERIFIED = Source("foreign programs that passed revalidation", SourceKind.LIVE, Trust.VERIFIED)
REJECTED = Source("foreign programs that failed revalidation", SourceKind.LIVE, Trust.FOREIGN)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the revalidation of one program.

    Parameters
    ----------
    record : Record
        Best record of the program before the revalidation.
    outcome : {"passed", "wrong", "failed", "unchecked", "refused"}
        ``wrong``: its results differ. ``failed``: it cannot be built or run. ``unchecked``: the
        untuned program cannot, so nothing was measured. ``refused``: it fails the allow-list of
        foreign programs and was not replayed.
    deviation : float or None
        Largest deviation from the untuned results, as a share of the largest value.
    mean : float or None
        Mean of the new times in seconds.
    failure : Failure or None
        Reason why it did not pass.
    retracted : tuple of int
        Records that are no longer served.
    threads : int or None
        Threads of TVM's runtime that the new times were measured with.
    """

    record: Record
    outcome: VerdictOutcome
    deviation: float | None = None
    mean: float | None = None
    failure: Failure | None = None
    retracted: tuple[int, ...] = ()
    threads: int | None = None

    @property
    def reason(self) -> str | None:
        """Reason why it did not pass, in one line."""
        if self.failure is None:
            return None
        if self.outcome == "refused":
            return self.failure.message
        reason = _headline(self.failure)
        if self.outcome == "unchecked":
            return f"the untuned program does not run: {reason}"
        return reason


@dataclass(slots=True)
class _PendingVerdict:
    """One program while it is revalidated."""

    record: Record
    known: StoredWorkload
    deviation: float | None = None
    times: tuple[float, ...] | None = None
    failure: Failure | None = None
    outcome: VerdictOutcome = field(default="unchecked")
    #: Target of the new measurement; None for that of the record.
    target: Target | None = None

    @property
    def mod(self) -> Any:
        """The untuned module."""
        return self.known.workload.mod


class Revalidation:
    """New measurements of stored programs, whose results are compared.

    Parameters
    ----------
    store : Store
        Store of the programs, which gets the measurements under a session of their own.
    repeat : int
        Number of measurements; each is the mean over at least three runs and 100 ms.
    draws : int
        Lists of random arguments to compare with (:func:`.numerics.allocate`).
    seed : int
        Seed of the arguments.
    timeout_sec : float
        Time limit of one build and of one run.
    max_workers : int or None
        Processes that build; one for each processor by default.

    Raises
    ------
    UsageError
        A number is out of range.

    Notes
    -----
    A program with wrong results gets a failed measurement of kind ``wrong_result``, and its records
    are retracted: they stay stored and are never served again, also if they are imported once more.
    A program that fails or crashes gets a failed measurement with its cause; its records stay,
    because another machine may run it.

    Examples
    --------
    >>> with Revalidation(store) as revalidation:  # doctest: +SKIP
    ...     for verdict in revalidation.run([1], 1, k=5):
    ...         print(verdict.record.id, verdict.outcome)
    """

    def __init__(
        self,
        store: Store,
        *,
        repeat: int = 5,
        draws: int = 2,
        seed: int = 0,
        timeout_sec: float = 120.0,
        max_workers: int | None = None,
    ) -> None:
        if repeat < 1 or draws < 1 or seed < 0:
            raise UsageError("repeat and draws must be positive, seed not negative")
        self._store = store
        self._handle = Handle(store)
        self._occurrence = 0
        self._folder = TemporaryFolder("revalidation")
        self._references: dict[int, tuple[Path, Failure | None]] = {}
        self._runs = BuildAndRun(
            repeat=repeat,
            draws=draws,
            seed=seed,
            timeout_sec=timeout_sec,
            max_workers=max_workers,
        )

    def close(self) -> None:
        """End the workers and remove their files."""
        self._runs.close()
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ selection

    def workloads_of(
        self, mod: Any, target: Any, *, foreign: bool = False, lowering: Lowering = DEFAULT
    ) -> list[list[int]]:
        """Return the stored workloads of each function of a module.

        Parameters
        ----------
        mod : tvm.IRModule
            PrimFuncs, or a Relax program, whose fused functions count.
        target : tvm.target.Target or dict
            Target of the module.
        foreign : bool
            Whether workloads of foreign sources alone count. This module then becomes an own one,
            which TVM may read.
        lowering : Lowering
            Lowering of a Relax program.

        Returns
        -------
        list of list of int
            Equal workloads together; functions that are not stored are left out.
        """
        workloads, groups = self._handle.workloads, []
        for task in tasks_of(mod, target, lowering).values():
            known = workloads.find(task)
            # TVM must not read the module of a foreign workload: the user's own module is stored
            # in its place.
            is_foreign = known is not None and not known.is_exact
            if is_foreign or (foreign and is_named(self._store, task, workloads.equality)):
                known = workloads.commit(task)
            if known is not None:
                equal = workloads.proposing_ids if foreign else workloads.equal_ids
                groups.append(sorted({known.id, *equal(known)}))
        return groups

    # ------------------------------------------------------------------ measurement

    def run(
        self,
        workload_ids: Sequence[int],
        target_id: int,
        k: int = 5,
        *,
        foreign: bool = False,
        converted_for: Any = None,
    ) -> list[Verdict]:
        """Measure the k best programs again and compare their results.

        Parameters
        ----------
        workload_ids : sequence of int
            Workloads that count as one.
        target_id : int
            Local number of the target, whose device must be in this machine unless `converted_for`
            is given.
        k : int
            Most programs to measure.
        foreign : bool
            Take programs of foreign sources instead of served ones. Those that pass are verified:
            their new record is served, the foreign source's still is not.
        converted_for : tvm.target.Target, optional
            Take programs that ``tunedb convert`` made of records for the target `target_id`, and
            measure them for this target, whose device is in this machine. Their new records answer
            for it.

        Returns
        -------
        list of Verdict
            In order of the records' means.

        Raises
        ------
        NotFoundError
            There is no such program, or TVM cannot read the workload.
        StorageError
            The measurements cannot be stored.
        """
        find, kind = served_programs, ""
        if converted_for is not None:
            find, kind = converted_programs, "converted "
        elif foreign:
            find, kind = foreign_programs, "foreign "
        records = find(self._store, workload_ids, target_id, k)
        if not records:
            raise NotFoundError(
                f"{self._store.location}: no {kind}program of workload {workload_ids[0]} for "
                f"target {target_id}"
            )
        target = converted_for or as_target(self._store.targets.get(target_id).attributes)
        pending = [
            _PendingVerdict(record, self._known(record.workload_id, foreign=foreign))
            for record in records
        ]
        for program in pending:
            self._reject(program)
        allowed = [program for program in pending if program.outcome != "refused"]
        checked = [program for program in allowed if self._has_reference(program)]
        self._check(checked, target)
        self._measure([program for program in checked if program.outcome == "passed"], target)
        if converted_for is not None:
            here = modules.to_target(converted_for)
            for program in pending:
                program.target = here
        return [self._store_verdict(program, foreign=foreign) for program in pending]

    def _reject(self, program: _PendingVerdict) -> None:
        """Set the outcome of a program that must not be replayed."""
        answer = self._store.answers.get(program.record.id)
        reason = None
        if not self._store.answers.is_whole(answer):
            reason = "its digest does not match its contents; see: tunedb db check"
        elif not answer.is_own:
            reason = rejection_of(program.record, program.mod)
        if reason is not None:
            program.outcome = "refused"
            program.failure = Failure(FailureKind.UNKNOWN, Phase.UNKNOWN, reason)

    def _known(self, workload_id: int, *, foreign: bool) -> StoredWorkload:
        """Return a workload with its module, which is never that of a foreign source."""
        store = self._store
        known = None
        if store.names.aliases(workload_id) or store.answers.targets([workload_id]):
            known = self._handle.workloads.get(workload_id, foreign=foreign)
        if known is None:
            raise NotFoundError(
                f"{self._store.location}: no module of workload {workload_id} that TVM may read; "
                "give it: tunedb revalidate --module MODULE"
            )
        return known

    def _has_reference(self, program: _PendingVerdict) -> bool:
        """Run the untuned program on this machine's processor, once for each workload."""
        id_ = program.record.workload_id
        if id_ not in self._references:
            path = self._folder.path / f"{id_}.npz"
            job = Job(program.mod, numerics.order_of(None, keep_preproc=True))
            run = partial(numerics.run_reference, path=str(path))
            (outcome,) = self._runs.outcomes([job], tvm.target.Target("llvm"), run)
            self._references[id_] = (path, outcome.failure)
        program.failure = self._references[id_][1]
        return program.failure is None

    def _check(self, programs: Sequence[_PendingVerdict], target: Any) -> None:
        """Compare results with those of the untuned program."""
        for id_ in dict.fromkeys(program.record.workload_id for program in programs):
            own = [program for program in programs if program.record.workload_id == id_]
            run = partial(numerics.run_compared, path=str(self._references[id_][0]))
            jobs = [self._job(program, keep_preproc=True) for program in own]
            for program, result in zip(own, self._runs.outcomes(jobs, target, run), strict=True):
                program.outcome, program.failure = "failed", result.failure
                if result.failure is None:
                    program.deviation = max(result.costs[::2])
                    program.failure = _wrong_result(result.costs)
                    program.outcome = "passed" if program.failure is None else "wrong"

    def _measure(self, programs: Sequence[_PendingVerdict], target: Any) -> None:
        """Measure the programs as a tuner does."""
        jobs = [self._job(program, keep_preproc=False) for program in programs]
        for program, result in zip(programs, self._runs.outcomes(jobs, target), strict=True):
            program.failure = result.failure
            if result.failure is None:
                program.times = result.costs
            else:
                program.outcome = "failed"

    def _job(self, program: _PendingVerdict, *, keep_preproc: bool) -> Job:
        """Return the job for a program."""
        measurement = program.record.measurement
        trace = self._handle.workloads.fitted(measurement.program.trace, program.known)
        body, args = measurement.args_info, None
        if body is not None and not keep_preproc:
            # A tuned program may take weights in a layout of its own.
            args = [ms.arg_info.ArgInfo.from_json(info) for info in orjson.loads(body)]
        return Job(program.mod, numerics.order_of(trace, keep_preproc=keep_preproc), args)

    # ------------------------------------------------------------------ storing

    def _store_verdict(self, program: _PendingVerdict, *, foreign: bool) -> Verdict:
        """Store the measurement, retractions and names that follow from an outcome."""
        record, outcome = program.record, program.outcome
        retracted: tuple[int, ...] = ()
        if outcome not in ("unchecked", "refused"):
            # A record of an own source would vouch for the body of its workload.
            is_own = not foreign and self._store.provenance.is_own_workload(record.workload_id)
            source = OWN if is_own else VERIFIED if outcome == "passed" else REJECTED
            self._store.batches.add([self._measurement(program)], source)
            if foreign and outcome == "passed":
                # Until now only foreign sources gave the workload these names.
                script = str(program.mod.script(show_meta=True))
                names = modules.aliases(program.mod, script)
                self._store.names.add(record.workload_id, names, source)
        if outcome == "wrong" and program.failure is not None:
            retracted = tuple(self._records_of(record))
            self._store.trust.retract(retracted, f"revalidation: {_headline(program.failure)}")
        mean = threads = None
        if program.times is not None:
            mean, threads = mean_of(program.times), threads_of(self._handle.session())
        return Verdict(
            record, outcome, program.deviation, mean, program.failure, retracted, threads
        )

    def _measurement(self, program: _PendingVerdict) -> Measurement:
        before = program.record.measurement
        extra = {"deviation": program.deviation, "record": before.digest.hex()}
        number, self._occurrence = self._occurrence, self._occurrence + 1
        target = program.target or before.program.target
        return Measurement(
            program=replace(before.program, target=target),
            run_secs=program.times or (NO_TIME,),
            status=Status.OK if program.times else Status.FAILED,
            measured_at=time.time_ns() // 1000,
            occurrence=number,
            session=self._handle.session(),
            args_info=before.args_info,
            origin=Origin.MEASURED,
            extra=canonical_json({"revalidation": extra}),
            failure=program.failure,
        )

    def _records_of(self, record: Record) -> Iterator[int]:
        """Yield the records of a program that worked."""
        digest = record.measurement.program.digest
        for other in self._store.records.iterate(record.workload_id, [record.target_id]):
            measurement = other.measurement
            if measurement.program.digest == digest and measurement.status is Status.OK:
                yield other.id


def _wrong_result(costs: Sequence[float]) -> Failure | None:
    """Return the failure of results with deviations of :func:`.numerics.run_compared`, or None."""
    difference = numerics.difference_of(costs)
    if difference is None:
        return None
    return Failure(FailureKind.WRONG_RESULT, Phase.RUN, f"wrong result: {difference}")


def _headline(failure: Failure) -> str:
    """Return the line of a message that names the error."""
    lines = [line.strip() for line in failure.message.splitlines() if line.strip()] or ["unknown"]
    return ([line for line in lines if "Error:" in line] or lines)[-1][:300]
