"""Scheduled modules of stored programs, from traces replayed in this process.

A replay may crash the process (a damaged graph, a primitive that overflows the stack);
:mod:`.replay_pool` replays in separate processes.
"""

from __future__ import annotations

from typing import Any

from ....errors import IntegrityError, PluginError
from ....programs.allowlist import check_trace
from ....records import Program
from ....results import StoredProgram
from ....storage.store import Store
from ..database.workloads import WorkloadTable
from ..targets import TargetTable
from ..trace_codec import TraceBuilder


class Replayer:
    """Builds the scheduled modules of a store's programs.

    Modules, targets, and the instructions of sketches are built once.

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
            Only foreign sources have the program, or TVM cannot load the module of its workload.
        IntegrityError
            Its digest does not match its stored parts.
        FormatError
            No own source has the program, and it fails the allow-list of foreign programs.
        Exception
            The trace does not fit the module; TVM raises any class.
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
        trace = self._workloads.fitted(program.trace, known)
        return self._builder.scheduled(known.workload.mod, trace)

    def target(self, program: StoredProgram) -> Any:
        """Return the TVM target of a program; None if its record has no target.

        Raises
        ------
        TargetError
            TVM does not know the target.
        """
        return self._targets.object_of(program.target_id)
