"""Programs that need not be measured again, by their scheduled modules.

Two traces may schedule a workload alike, so the scheduled module, the input of a builder,
identifies a program. Stored programs are replayed once in a run to get their modules. Only the hash
of each is kept; when a candidate has the same hash, the module is built again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvm.s_tir.meta_schedule.tune_context import _normalize_mod

from ....records import Failure, FailureKind
from ....results import StoredProgram
from ....run_times import mean_of
from ....storage.programs import MeasuredProgram
from .. import modules
from ..database.handle import Handle
from ..database.workloads import StoredWorkload
from ..targets import first_line
from ..threads import usable_cpus
from ..workers.replay import Replayer

__all__ = ["ARTIFACT", "KNOWN_TO_FAIL", "Known", "KnownProgram", "is_served"]

_log = logging.getLogger("tunedb")

#: First words of the error message of a program that is known to fail.
KNOWN_TO_FAIL = "tunedb: known to fail"

#: Name of the file in place of the artifact of a program that is known to run.
ARTIFACT = "tunedb-known-program"

#: Failures that are not the program's fault: it is tried again.
_TRY_AGAIN = (FailureKind.INFRASTRUCTURE, FailureKind.UNKNOWN)

#: Programs to read and replay at a time.
_PAGE = 500


@dataclass(frozen=True, slots=True)
class KnownProgram:
    """A program that was measured before.

    Parameters
    ----------
    digest : bytes
        Digest of the program (:class:`tunedb.records.Program`).
    run_secs : tuple of float or None
        All repeats in seconds of the record by which the database ranks it; None if it failed.
    failure : Failure or None
        The cause of the failure, if known.
    """

    digest: bytes
    run_secs: tuple[float, ...] | None
    failure: Failure | None = None

    @property
    def failed(self) -> bool:
        """Whether it failed."""
        return self.run_secs is None

    @property
    def mean(self) -> float:
        """Mean of the run times in seconds; infinite for a failure."""
        return mean_of(self.run_secs) if self.run_secs else math.inf


@dataclass(slots=True, eq=False)
class _Entry:
    """A known program; its scheduled module is kept from the first comparison on."""

    known: KnownProgram
    program: StoredProgram
    mod: Any = None


@dataclass(slots=True, eq=False)
class _Task:
    """A workload for a target, and its known programs."""

    workload: StoredWorkload
    target: bytes
    #: The last measurements read: of all sessions, and of other sessions.
    last: int = 0
    last_of_others: int = 0
    #: By local number of the program; None for a program that does not replay.
    entries: dict[int, _Entry | None] = field(default_factory=dict)


def is_served(build: Any) -> bool:
    """Tell whether a ``BuilderResult`` is that of a known program, which was not built.

    Its times or its failure are stored already.
    """
    if build.artifact_path is not None:
        return Path(str(build.artifact_path)).name == ARTIFACT
    return build.error_msg is not None and str(build.error_msg).startswith(KNOWN_TO_FAIL)


class Known:
    """The programs of one handle that need not be measured again.

    Sessions of this session's class have measured them for the same target
    (:meth:`tunedb.storage.sessions.Runs.comparable`), and they either have times or failed by their
    own fault. Programs that do not replay are left out. Thread-safe.

    Parameters
    ----------
    handle : Handle
        Handle of the run's database.
    remeasure : bool
        Measure every program; no program is known then.
    threads : int or None
        Threads that replay; by default the number of logical processors.

    Attributes
    ----------
    remeasure : bool
        The parameter.
    served : int
        Candidates with reused results so far.

    Notes
    -----
    A search strategy proposes no program twice in a run, so only :meth:`prepare`, at the beginning
    of the next run, reads the measurements of the running session.
    """

    def __init__(
        self, handle: Handle, *, remeasure: bool = False, threads: int | None = None
    ) -> None:
        self.remeasure = remeasure
        self.served = 0
        self._handle = handle
        self._threads = threads or usable_cpus()
        # All schedules of a module have its anchor block, which cannot distinguish them.
        equality = handle.workloads.equality
        self._equality = "structural" if equality == "structural" else "ignore-tensor"
        self._replayer = Replayer(handle.store)
        self._tasks: dict[tuple[int, bytes], _Task] = {}
        self._by_hash: dict[tuple[bytes, int], list[_Entry]] = {}
        self._lock = handle.lock
        #: Newest measurement of another session at the last :meth:`refresh`.
        self._newest_of_others = 0

    def prepare(self, mod: Any, target: Any) -> int:
        """Find the known programs of a task; later calls read new measurements alone.

        Every program is replayed once, on threads.

        Parameters
        ----------
        mod : IRModule or PrimFunc
            The task's module.
        target : tvm Target
            The task's target.

        Returns
        -------
        int
            Number of known programs of the task.
        """
        if self.remeasure:
            return 0
        with self._lock:
            workload = self._handle.workloads.find(_normalize_mod(mod))
            if workload is None:
                return 0
            key = workload.id, self._handle.targets.stored(target).digest
            task = self._tasks.setdefault(key, _Task(workload, key[1]))
            task.last = self._read(task, task.last, own=True)
            return sum(entry is not None for entry in task.entries.values())

    def refresh(self) -> None:
        """Read new measurements of other sessions for the prepared tasks."""
        with self._lock:
            newest = self._handle.store.runs.newest_of_others(self._handle.session())
            if newest <= self._newest_of_others:
                return
            self._newest_of_others = newest
            for task in self._tasks.values():
                after = max(task.last, task.last_of_others)
                task.last_of_others = self._read(task, after, own=False)

    def find(self, scheduled_mod: Any, target: Any) -> KnownProgram | None:
        """Return the known program of a scheduled module; None if it must be measured.

        Parameters
        ----------
        scheduled_mod : IRModule
            Scheduled module with post-processing applied, as a builder gets it.
        target : tvm Target
            Target of the program.
        """
        if not self._by_hash:
            return None
        hash_ = self._hash(scheduled_mod)
        with self._lock:
            key = self._handle.targets.stored(target).digest, hash_
            for entry in sorted(self._by_hash.get(key, ()), key=lambda entry: entry.known.mean):
                if entry.mod is None:
                    entry.mod = self._replayer.module(entry.program)
                if modules.modules_equal(entry.mod, scheduled_mod, self._equality):
                    return entry.known
        return None

    # ------------------------------------------------------------------ reading

    def _read(self, task: _Task, after: int, *, own: bool) -> int:
        """Read the measurements with greater ids; return the greatest id.

        Parameters
        ----------
        own : bool
            Read measurements of the running session too.
        """
        store, session = self._handle.store, self._handle.session()
        target_id = store.targets.id_of(task.target)
        if target_id is None:
            return after
        sessions = store.runs.comparable(session, target_id)
        if not own:
            sessions = [id_ for id_ in sessions if store.sessions.get(id_) != session]
        equal = self._handle.workloads.equal_ids(task.workload)
        rows = store.programs.measured(equal, target_id, sessions, after)
        outcomes = _outcomes(rows)
        for program_id, outcome in outcomes.items():
            entry = task.entries.get(program_id)
            if entry is not None and outcome.mean < entry.known.mean:
                entry.known = outcome
        new = [program_id for program_id in outcomes if program_id not in task.entries]
        for start in range(0, len(new), _PAGE):
            programs = store.programs.get(new[start : start + _PAGE])
            for program, hash_ in zip(programs, self._hashes(programs), strict=True):
                entry = None if hash_ is None else _Entry(outcomes[program.id], program)
                task.entries[program.id] = entry
                if entry is not None and hash_ is not None:
                    self._by_hash.setdefault((task.target, hash_), []).append(entry)
        return rows[-1].id if rows else after

    def _hashes(self, programs: Sequence[StoredProgram]) -> list[int | None]:
        """Return the hash of each program's scheduled module; None if it does not replay."""
        # The first of each workload on this thread: the replayer then builds its module.
        first = {program.workload_id: program for program in reversed(programs)}
        done = {program.id: self._replayed(program) for program in first.values()}
        rest = [program for program in programs if program.id not in done]
        with ThreadPoolExecutor(self._threads, "tunedb-known") as pool:
            ids = [program.id for program in rest]
            done.update(zip(ids, pool.map(self._replayed, rest), strict=True))
        return [done[program.id] for program in programs]

    def _replayed(self, program: StoredProgram) -> int | None:
        try:
            return self._hash(self._replayer.module(program))
        except Exception as error:  # TVM raises any class for a trace that does not fit
            where = self._handle.store.location
            _log.debug("%s: program %d does not replay: %s", where, program.id, first_line(error))
            return None

    def _hash(self, mod: Any) -> int:
        return modules.structural_hash(mod, self._equality)


def _outcomes(rows: Iterable[MeasuredProgram]) -> dict[int, KnownProgram]:
    """Return the best record or the failure of each measured program, by its local number."""
    programs: dict[int, KnownProgram] = {}
    for row in rows:
        if row.failure is not None and row.failure.kind in _TRY_AGAIN:
            continue
        known = KnownProgram(row.digest, row.run_secs, row.failure)
        if row.program_id not in programs or known.mean < programs[row.program_id].mean:
            programs[row.program_id] = known
    return programs
