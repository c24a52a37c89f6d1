"""Feature rows of stored programs, which are replayed in worker processes.

A program that crashes or hangs TVM ends its process, which is replaced, and affects no other
program.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ....errors import PluginError, StorageError, UsageError
from ....extraction.extract import RowError
from ....results import StoredProgram
from ....storage.engine import sqlite_path
from ....storage.store import Store
from ..failures import tidy
from ..intrinsics import load_intrinsics, needs_intrinsics
from ..threads import usable_cpus
from . import replay_worker
from .worker_pool import Job, Worker, WorkerPool

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Outcome = tuple[StoredProgram, NDArray[Any] | Exception]

#: Programs of one call: a call takes 0.2 ms, a program 1 to 10 ms.
CHUNK = 64

#: Programs of one process before a fresh one replaces it, because TVM leaks memory.
MAXIMUM_PROGRAMS = 50_000


class ReplayPool:
    """Computes a feature set on stored programs, for :func:`tunedb.extraction.extract`.

    Parameters
    ----------
    store : Store
        The database; not a :memory: one, because other processes open it.
    name : str
        Name of the feature set.
    workers : int or None
        Processes; by default the number of logical processors.
    timeout_sec : float
        Seconds for one program, and for each chunk of programs; a chunk that takes longer is
        replayed program by program.

    Raises
    ------
    UsageError
        A number is out of range, or the database is in memory.
    ApprovalError
        The user has not approved the database.

    Notes
    -----
    The processes end with :meth:`close`, and with this process, however it ends.
    """

    def __init__(
        self, store: Store, name: str, *, workers: int | None = None, timeout_sec: float = 30.0
    ) -> None:
        self.workers: int = usable_cpus() if workers is None else workers
        if self.workers < 1 or not timeout_sec > 0:
            raise UsageError("workers and timeout_sec must be positive")
        if store.url.get_backend_name() == "sqlite" and sqlite_path(store.url) is None:
            raise UsageError("a database in memory cannot be opened by worker processes")
        store.require_approved()
        path = sqlite_path(store.url)
        self._pool = WorkerPool(
            self.workers,
            replay_worker.prepare,
            str(path or store.url.render_as_string(hide_password=False)),
            name,
            kind="pool",
            label="ReplayPool",
            maximum_uses=MAXIMUM_PROGRAMS // CHUNK,
        )
        self._timeout = timeout_sec

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the processes; repeated calls do no harm."""
        self._pool.close()

    def rows(self, programs: Iterable[StoredProgram]) -> Generator[Outcome, None, None]:
        """Yield each program with its rows or its error, in their order.

        Raises
        ------
        PluginError
            No process can be started, or none can load the feature set.
        """
        for chunk, rows in self._pool.stream(programs, CHUNK, self._job):
            yield from zip(chunk, rows, strict=True)

    def pids(self) -> tuple[int, ...]:
        """Return the ids of the running processes."""
        return self._pool.pids()

    def _job(self, programs: list[StoredProgram]) -> Job:
        return partial(_rows, programs=programs, limit=self._timeout)


# ---- In the threads of the pool ------------------------------------------------------------------


def _rows(
    worker: Worker, programs: Sequence[StoredProgram], limit: float
) -> list[NDArray[Any] | Exception] | None:
    """Return the outcome of each program; None if one of several ended the process."""
    try:
        if any(needs_intrinsics(program.trace) for program in programs):
            worker.call_once(load_intrinsics)
        answers: list[replay_worker.Answer] | str = worker.call(
            replay_worker.rows, [program.id for program in programs], limit=limit
        )
    except (TimeoutError, ChildProcessError) as error:
        return [_lost(error, worker.last_words(), limit)] if len(programs) == 1 else None
    if isinstance(answers, str):
        raise StorageError(answers)
    if len(answers) != len(programs):
        raise PluginError(f"{len(programs) - len(answers)} programs are no longer in the database")
    return [_outcome(answer) for answer in answers]


def _outcome(answer: replay_worker.Answer) -> NDArray[Any] | Exception:
    """Return rows, or the reason for none."""
    match answer:
        case (str() as reason, str() as text):
            return RowError(reason, text)
        case (int() as n_rows, int() as n_columns, bytes() as data):
            return np.frombuffer(data, np.float32).reshape(n_rows, n_columns)
    return RowError(f"unexpected answer: {answer!r}"[:300])


def _lost(error: Exception, words: str, limit: float) -> RowError:
    """Return the failure of a program that ended its process."""
    if isinstance(error, TimeoutError):
        reason = f"replaying it took longer than {limit:g} s"
    else:
        reason = f"replaying it crashed TVM ({error})"
    return RowError(reason, tidy(f"{reason}\n{words}".rstrip()))
