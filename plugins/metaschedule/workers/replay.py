"""Scheduled modules of stored programs, by replaying traces in this process.

TVM's C++ may end the process that replays (a damaged graph, a primitive that overflows the stack);
:mod:`.replay_pool` replays in separate processes.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule

from ....errors import IntegrityError, PluginError
from ....programs.allowlist import check_trace
from ....programs.metaschedule.upgrade import upgrade
from ....records import Program
from ....results import StoredProgram
from ....storage.store import Store
from .. import trace_codec
from ..database.workloads import WorkloadTable
from ..intrinsics import load_intrinsics, needs_intrinsics
from ..targets import TargetTable
from ..trace_codec import TraceBuilder


class Replayer:
    """Builds the scheduled modules of a store's programs.

    Modules of workloads, targets, and the instructions of sketches are built once.

    Parameters
    ----------
    store : Store
        Store of the programs; it is only read.

    Examples
    --------
    >>> replayer = Replayer(store)
    >>> for program in store.programs.get(ids):
    ...     mod = replayer.module(program)
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._workloads = WorkloadTable(store, "structural")
        self._targets = TargetTable(store, "exact")
        self._builder = TraceBuilder()

    def module(self, program: StoredProgram) -> Any:
        """Return the scheduled IRModule of a program.

        Parameters
        ----------
        program : StoredProgram
            A program of the store.

        Raises
        ------
        PluginError
            It comes from foreign sources alone, which TVM never gets, or TVM cannot build a module
            of its workload.
        IntegrityError
            Its digest does not match its stored parts.
        FormatError
            No own source has it, and it fails the allow-list of foreign programs.
        Exception
            TVM raises any class for a trace that does not fit, with the module rendered at the
            place (``tvm.s_tir.ScheduleError``).
        """
        if not self._store.provenance.is_trusted_program(program.id):
            raise PluginError(
                f"program {program.id} comes only from foreign sources; TVM never gets it"
            )
        digest = Program(program.workload, program.target, program.trace).digest
        if self._store.programs.ids([digest]) != [program.id]:
            raise IntegrityError(f"program {program.id}: its digest does not match its steps")
        if not self._store.provenance.is_own_program(program.id):
            check_trace(program.trace, program.workload.format)
        known = self._workloads.get(program.workload_id)
        if known is None:
            raise PluginError(
                f"TVM cannot load the module of workload {program.workload_id}: "
                f"{self._workloads.why_lost(program.workload_id)}"
            )
        trace = upgrade(program.trace)
        if needs_intrinsics(trace):
            load_intrinsics()
        # TVM draws missing decisions; with a fixed seed equal programs get equal ones.
        schedule = Schedule(known.workload.mod, seed=1, debug_mask="none")
        try:
            made = self._builder.build(trace)
        except trace_codec.UnknownInstructionError:
            made = trace_codec.replay(trace, known.workload.mod)
        made.apply_to_schedule(schedule, remove_postproc=False)
        return schedule.mod

    def target(self, program: StoredProgram) -> Any:
        """Return the TVM target of a program; None if its record has no target.

        Raises
        ------
        TargetError
            TVM does not know the target.
        """
        return self._targets.object_of(program.target_id)
