"""Finals: the best programs of a task are measured again, in turn, before one is named.

The fastest of many noisy times is often a lucky one. The times of a final are stored as further
measurements of its programs. Those of the programs that lost supersede their earlier records
(:mod:`tunedb.storage.superseded`), so that the winner ranks first. Earlier times may be of another
evaluator (:mod:`~..measure.cold_weights`): then finals go on until no such record ranks first.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import BuilderInput
from tvm.s_tir.meta_schedule.runner import RunnerInput

from ....results import Record
from ....run_times import mean_of
from ....search.paired import standing
from ....system.host import machine_class, session_class
from ..database.handle import Handle
from ..measure.measure_callback import run_secs_of
from ..targets import device_of, first_line

__all__ = ["Finals"]

_log = logging.getLogger("tunedb")

#: Records of a task that are read at a time; a program has one of each final that it was in.
_PAGE = 16
#: Most programs of a final, and most finals of a task.
_FINALISTS, _FINALS = 6, 8
#: Ratio to the best time within which a program may be the fastest: while the spread of repeats is
#: unknown, at least, and at most.
_REACH, _LEAST_REACH, _MOST_REACH = 1.1, 1.05, 1.5
#: Most rounds, each of one measurement of each program.
_ROUNDS = 12


@dataclass(slots=True, eq=False)
class _Finalist:
    """A program of a final."""

    record: Record
    tuning_record: Any
    #: Whether its record is of this evaluator.
    is_own: bool
    artifact: str = ""
    #: All repeats of each round.
    rounds: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def digest(self) -> bytes:
        return self.record.measurement.program.digest

    @property
    def times(self) -> tuple[float, ...]:
        return tuple(seconds for run in self.rounds for seconds in run)

    @property
    def mean(self) -> float:
        return mean_of(self.times)


@dataclass(frozen=True, slots=True, eq=False)
class Finals:
    """Finals of the tasks of a run.

    Parameters
    ----------
    handle : Handle
        Handle of the database, with the session of the run.
    target : tvm.target.Target
        Target of the run.
    builder : tvm Builder
        Builder of the programs.
    runner : tvm Runner
        Runner of whole measurements.
    """

    handle: Handle
    target: Any
    builder: Any
    runner: Any

    def decide(
        self, mod: Any, spread: float | None = None, until: float = math.inf
    ) -> Record | None:
        """Measure the best programs of a task in turn, and let the fastest one rank first.

        Only programs take part that sessions of this machine measured. Their times are within
        reach of the best one of this evaluator, or rank before it. At most six are measured in at
        most twelve rounds, until the fastest one is decided
        (:func:`tunedb.search.paired.standing`). A program that fails leaves the final and keeps its
        rank. While times of another evaluator rank before the winner, it meets their programs in
        further finals, eight in all.

        Parameters
        ----------
        mod : IRModule
            Module of the task.
        spread : float, optional
            Ratio within which repeats say nothing (:meth:`~..measure.racing.Race.spread`); it is
            the reach, between 1.05 and 1.5. Without it the reach is 1.1.
        until : float
            Time of ``time.perf_counter`` at which no further final begins.

        Returns
        -------
        Record or None
            The record that brought the fastest program into the last final; None if fewer than two
            programs can be built and run.

        Raises
        ------
        StorageError
            The measurements cannot be stored.
        """
        winner: _Finalist | None = None
        met, failed, is_crowded = set[bytes](), set[bytes](), False
        for _ in range(_FINALS):
            finalists = self._finalists(mod, spread, failed)
            if len(finalists) < 2 or (finalists[0].digest in met and not is_crowded):
                break
            ran = self._held(finalists)
            failed |= {each.digest for each in finalists} - {each.digest for each in ran}
            if len(ran) > 1:
                winner = ran[0]
                met |= {each.digest for each in ran}
                # The others took the places of programs within reach of the winner.
                others = sum(not each.is_own for each in finalists)
                is_crowded = winner.is_own and others >= _FINALISTS - 1
            if time.perf_counter() > until:
                break
        return winner.record if winner else None

    def _held(self, given: Sequence[_Finalist]) -> list[_Finalist]:
        """Hold a final and store it; return the programs that ran, the winner first."""
        finalists = self._built(given)
        try:
            ran = self._race(finalists)
        finally:
            for finalist in finalists:
                shutil.rmtree(Path(finalist.artifact).parent, ignore_errors=True)
        if len(ran) > 1:
            self.handle.record_final(
                [(finalist.record.measurement, finalist.times) for finalist in ran]
            )
        return ran

    def _ranked(self, mod: Any) -> Iterator[Record]:
        """Yield the records of a task, best first."""
        stored = self.handle.stored_task(mod, self.target)
        done, most = 0, _PAGE
        while stored.equal_ids and stored.target_ids:
            records = self.handle.store.records.top_k(stored.equal_ids, stored.target_ids, most)
            yield from records[done:]
            if len(records) < most:
                return
            done, most = most, 4 * most

    def _finalists(
        self, mod: Any, spread: float | None, failed: Collection[bytes]
    ) -> list[_Finalist]:
        """Return the programs of a final, in the order of their ranks.

        The best one of this evaluator takes the last place if as many others rank before it.
        """
        reach = min(max(spread or _REACH, _LEAST_REACH), _MOST_REACH)
        running = self.handle.session()
        machine, own = machine_class(running), session_class(running)
        finalists: dict[bytes, _Finalist] = {}
        farthest = None
        for record in self._ranked(mod):
            session, mean = record.measurement.session, record.mean or 0.0
            if session is None or machine_class(session) != machine:
                break
            is_own = session_class(session) == own
            is_best = is_own and farthest is None
            if is_best:
                farthest = reach * mean
            is_full = len(finalists) == _FINALISTS
            if farthest is not None and not is_best and (mean > farthest or is_full):
                break
            digest = record.measurement.program.digest
            if digest in failed or digest in finalists or (is_full and not is_best):
                continue
            with self.handle.lock:
                tuning_record = self.handle.records.get(record.id)
            if tuning_record is None:
                continue
            if is_full:
                finalists.popitem()
            finalists[digest] = _Finalist(record, tuning_record, is_own)
        return list(finalists.values())

    def _built(self, finalists: Sequence[_Finalist]) -> list[_Finalist]:
        """Return the programs that could be built."""
        replayed, inputs = [], []
        for finalist in finalists:
            schedule = Schedule(finalist.tuning_record.workload.mod)
            try:
                finalist.tuning_record.trace.apply_to_schedule(schedule, remove_postproc=False)
            except Exception as error:  # TVM raises any class for a trace that does not fit
                _log.debug("record %d has no final: %s", finalist.record.id, first_line(error))
                continue
            replayed.append(finalist)
            inputs.append(BuilderInput(schedule.mod, self.target))
        with ms.Profiler.timeit("SendToBuilder"):
            built = list(self.builder.build(inputs)) if inputs else []
        for finalist, result in zip(replayed, built, strict=True):
            finalist.artifact = "" if result.error_msg is not None else str(result.artifact_path)
        return [finalist for finalist in replayed if finalist.artifact]

    def _race(self, finalists: Sequence[_Finalist]) -> list[_Finalist]:
        """Measure programs in turn; return those that ran, the winner first."""
        left = list(finalists)
        if len(left) < 2:
            return left
        for number in range(_ROUNDS):
            # Each other round goes backwards, so that no program always runs after the same one.
            # All run in all rounds, so that a drift of the machine is in the times of all.
            for finalist in left[:: -1 if number % 2 else 1]:
                run_secs = self._run(finalist)
                if run_secs is None:
                    left.remove(finalist)
                else:
                    finalist.rounds.append(run_secs)
            if len(left) < 2:
                return left
            medians = [[median(run) for run in finalist.rounds] for finalist in left]
            now = standing([*zip(*medians, strict=True)])
            if not now.rivals:
                break
        winner, fastest = left[now.leader], min(left, key=lambda finalist: finalist.mean)
        # The database ranks by means, on which a disturbed repeat tells more than on medians.
        if min(winner.record.mean or math.inf, winner.mean) > fastest.mean:
            winner = fastest
        return sorted(left, key=lambda finalist: finalist is not winner)

    def _run(self, finalist: _Finalist) -> tuple[float, ...] | None:
        """Return the repeats of one run of a program; None if it fails."""
        device = str(device_of(self.target).type)
        item = RunnerInput(finalist.artifact, device, finalist.tuning_record.args_info)
        with ms.Profiler.timeit("SendToRunner"):
            (future,) = self.runner.run([item])
            result = future.result()
        return None if result.error_msg is not None else run_secs_of(result)
