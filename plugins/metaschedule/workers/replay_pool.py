"""Rows of features of stored programs, replayed in processes of their own.

A program that crashes or hangs TVM costs its process, which is replaced, and no other program.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from ....errors import PluginError, StorageError, UsageError
from ....extraction.extract import RowError
from ....results import StoredProgram
from ....storage.engine import sqlite_path
from ....storage.store import Store
from ..failures import tidy
from ..intrinsics import load_intrinsics, needs_intrinsics
from . import replay_worker
from .worker_process import WorkerProcess

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Outcome = tuple[StoredProgram, NDArray[Any] | Exception]

#: Programs of one call: a call costs 0.2 ms, a program 1 to 10.
CHUNK = 64

#: Programs of one process before a fresh one takes its place, against leaks of TVM's.
MAXIMUM_PROGRAMS = 50_000

#: Seconds that a process may take to start, or to import TVM's tensor intrinsics.
START_TIMEOUT_SEC = 120.0

_START_ATTEMPTS = 3


class ReplayPool:
    """Computes a feature set on stored programs; what :func:`tunedb.extraction.extract` calls.

    Parameters
    ----------
    store : Store
        The database, which is no :memory: one: other processes open it.
    name : str
        The feature set, by which they find it.
    workers : int or None
        Processes; by default the number of logical processors.
    timeout_sec : float
        Seconds for one program, and for each chunk of them: one whose time is up is replayed one
        by one.

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
        self.workers = (os.cpu_count() or 1) if workers is None else workers
        if self.workers < 1 or not timeout_sec > 0:
            raise UsageError("workers and timeout_sec must be positive")
        if store.url.get_backend_name() == "sqlite" and sqlite_path(store.url) is None:
            raise UsageError("a database in memory cannot be opened by worker processes")
        store.require_approved()
        path = sqlite_path(store.url)
        self._setup = (str(path or store.url.render_as_string(hide_password=False)), name)
        self._timeout = timeout_sec
        self._lock = threading.Lock()
        self._closed = False
        self._processes: dict[threading.Thread, _Process] = {}
        # One thread serves one process: on Linux a process ends with the thread that started it.
        self._threads = ThreadPoolExecutor(self.workers, "tunedb-replay")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the processes. May be called again."""
        with self._lock:
            self._closed = True
            processes = list(self._processes.values())
        for process in processes:
            process.kill_now()
        self._threads.shutdown(cancel_futures=True)
        for process in processes:
            process.close()
        self._processes.clear()

    def rows(self, programs: Iterable[StoredProgram]) -> Generator[Outcome, None, None]:
        """Yield each program with its rows, or with why there are none, in their order.

        Raises
        ------
        PluginError
            No process can be started, or none can load the feature set.
        """
        source = iter(programs)
        waiting: deque[tuple[list[StoredProgram], Future[list[Any]]]] = deque()
        try:
            while True:
                while len(waiting) < 2 * self.workers:
                    chunk = list(islice(source, CHUNK))
                    if not chunk:
                        break
                    waiting.append((chunk, self._threads.submit(self._serve, chunk)))
                if not waiting:
                    return
                chunk, future = waiting.popleft()
                yield from zip(chunk, future.result(), strict=True)
        finally:
            for _, future in waiting:
                future.cancel()

    def pids(self) -> tuple[int, ...]:
        """Return the ids of the processes that run now."""
        with self._lock:
            found = [process.pid for process in self._processes.values()]
        return tuple(pid for pid in found if pid is not None)

    # ------------------------------------------------------------------ in the threads

    def _serve(self, chunk: Sequence[StoredProgram]) -> list[Any]:
        """Return the outcome of each program of a chunk."""
        try:
            return self._call(chunk)
        except (TimeoutError, ChildProcessError) as error:
            if len(chunk) == 1:
                return [_lost(error, self._process().last_words(), self._timeout)]
        # One of them did it; each is replayed on its own, and only that one again fails.
        return [outcome for program in chunk for outcome in self._serve([program])]

    def _call(self, chunk: Sequence[StoredProgram]) -> list[Any]:
        process = self._process()
        process.require(self._setup)
        if any(needs_intrinsics(program.trace) for program in chunk):
            process.require_intrinsics()
        found = process.rows([program.id for program in chunk], self._timeout)
        if len(found) != len(chunk):
            raise PluginError(f"{len(chunk) - len(found)} programs are no longer in the database")
        return [_outcome(answer) for answer in found]

    def _process(self) -> _Process:
        me = threading.current_thread()
        with self._lock:
            if self._closed:
                raise PluginError("the pool is closed")
            if me not in self._processes:
                self._processes[me] = _Process()
            return self._processes[me]


class _Process:
    """The process of one thread, and its replacements."""

    def __init__(self) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115 - close
        self._worker = WorkerProcess(self._log)
        self._served = 0
        self._intrinsics = False
        self._killed = False

    @property
    def pid(self) -> int | None:
        return self._worker.pid

    def kill_now(self) -> None:
        self._killed = True
        self._worker.kill_now()

    def close(self) -> None:
        self._worker.kill()
        self._log.close()

    def last_words(self) -> str:
        return self._worker.last_words()

    def require(self, setup: tuple[str, str]) -> None:
        """Start the process unless it runs."""
        if self._worker.ready and self._worker.is_alive() and self._served < MAXIMUM_PROGRAMS:
            return
        reason = ""
        for _ in range(_START_ATTEMPTS):
            self._worker.kill()
            self._worker = WorkerProcess(self._log)
            self._served, self._intrinsics = 0, False
            try:
                self._worker.start()
                if self._killed:
                    break
                problem = self._worker.call(replay_worker.prepare, *setup, limit=START_TIMEOUT_SEC)
            except Exception as error:
                reason = (self.last_words().splitlines() or [str(error)])[-1]
                continue
            if problem is not None:
                raise PluginError(f"a worker process cannot start: {problem}")
            self._worker.ready = True
            return
        raise PluginError(f"cannot start a worker process: {reason or 'the pool is closed'}")

    def require_intrinsics(self) -> None:
        if not self._intrinsics:
            self._worker.call(load_intrinsics, limit=START_TIMEOUT_SEC)
            self._intrinsics = True

    def rows(self, ids: list[int], limit: float) -> list[replay_worker.Answer]:
        self._served += len(ids)
        found: list[replay_worker.Answer] | str
        found = self._worker.call(replay_worker.rows, ids, limit=limit)
        if isinstance(found, str):
            raise StorageError(found)
        return found


def _outcome(answer: replay_worker.Answer) -> NDArray[Any] | Exception:
    """Return rows, or why there are none."""
    match answer:
        case (str() as reason, str() as text):
            return RowError(reason, text)
        case (int() as n_rows, int() as n_columns, bytes() as data):
            return np.frombuffer(data, np.float32).reshape(n_rows, n_columns)
    return RowError(f"unexpected answer: {answer!r}"[:300])


def _lost(error: Exception, words: str, limit: float) -> RowError:
    """Return what is known of a program that ended its process."""
    if isinstance(error, TimeoutError):
        reason = f"replaying it took longer than {limit:g} s"
    else:
        reason = f"replaying it crashed TVM ({error})"
    return RowError(reason, tidy(f"{reason}\n{words}".rstrip()))
