"""One process behind a pipe: TVM's ``PopenWorker`` with what a lasting worker needs besides.

``PopenWorker`` tells neither the process id nor how a process ended, and its time limit is kept by
a thread of the worker, which a stopped process and one that holds the GIL do not run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from tvm.support.popen_pool import PopenWorker, kill_child_processes

from . import build_worker

_TAIL_BYTES = 2_000  # of what a worker wrote to stderr before it died


class WorkerProcess(PopenWorker):
    """A worker process that any thread can kill, and that tells how it ended.

    All methods except :meth:`kill_now` belong to the thread that serves the process.

    Parameters
    ----------
    log : file
        Takes what the process writes to stderr; opened for appending and reading, unbuffered.
    """

    def __init__(self, log: IO[bytes]) -> None:
        #: Its process id, from when it has told it until it is known to be dead.
        self.pid: int | None = None
        #: Whether it is ready for calls, and how many it has served. Kept by the user.
        self.ready = False
        self.uses = 0
        self._log = log
        self._limited = False
        self._expired = False
        self._ending = "no answer"
        # Re-entrant: the garbage collector may end a builder inside of any of these methods.
        self._lock = threading.RLock()
        super().__init__(stderr=log)

    def start(self) -> None:
        """Start it and learn its id, which PopenWorker does not tell."""
        self.send(build_worker.enter, (os.getpid(),))
        self.pid = self.recv()

    def call(self, function: Callable[..., Any], *args: Any, limit: float) -> Any:
        """Return the function's result.

        Raises
        ------
        TimeoutError
            There was none after `limit` seconds; the process is dead.
        ChildProcessError
            The process died; the message says how.
        """
        self._log.truncate(0)
        self._limited = True
        timer = threading.Timer(limit, self._expire)
        timer.daemon = True
        timer.start()
        try:
            self.send(function, args)
            return self.recv()
        except Exception as error:  # a process that dies may leave half an answer
            self.kill()
            if self._expired:
                raise TimeoutError from error
            unusual = "" if isinstance(error, ChildProcessError) else f"; {error!r}"
            raise ChildProcessError(self._ending + unusual) from error
        finally:
            timer.cancel()
            with self._lock:
                self._limited = False

    def kill(self) -> None:
        """Kill it if it lives. `recv` calls this too, before it reports that the process died."""
        with self._lock:
            pid, self.pid = self.pid, None
        if pid is not None and self._limited:
            self._ending = _ending(pid)
        super().kill()

    def is_alive(self) -> bool:
        """Whether the process runs."""
        with self._lock:  # a process that was waited for gives its id back to the system
            alive = bool(super().is_alive())
            if not alive:
                self.pid = None
            return alive

    def kill_now(self) -> None:
        """Kill it from another thread; the one that serves it reads EOF and cleans up."""
        with self._lock:
            if self.pid is not None:
                kill_child_processes(self.pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)

    def last_words(self) -> str:
        """Return the end of what it wrote to stderr, e.g. LLVM's reason to abort."""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip()

    def _expire(self) -> None:
        with self._lock:
            if self._limited:
                self._expired = True
                self.kill_now()


def _ending(pid: int) -> str:
    """Return how our child ended, without taking that from PopenWorker, which waits for it."""
    deadline = time.monotonic() + 1.0
    while hasattr(os, "waitid") and time.monotonic() < deadline:
        try:
            info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # the application ignores SIGCHLD
            break
        if info is None:
            time.sleep(0.002)
        elif info.si_code == os.CLD_EXITED:
            return f"exit status {info.si_status}"
        else:
            names = {number.value: number.name for number in signal.Signals}
            return f"signal {info.si_status}, {names.get(info.si_status, 'unknown')}"
    return "no answer"
