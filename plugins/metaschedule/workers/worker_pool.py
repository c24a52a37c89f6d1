"""Worker processes behind pipes: watched, limited in time, and replaced when they end.

TVM's ``PopenWorker`` reports neither the process id nor the cause of an end, and a thread of the
worker keeps its time limit, which does not run in a stopped process or while the GIL is held.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from tvm.support.popen_pool import PopenWorker, kill_child_processes

from ....errors import PluginError
from ....system.cpus import allowed_cpus
from ....system.temporary import TemporaryFolder
from .worker_entry import enter

#: Seconds that a process may take to start (import of TVM, preparation), or to load more of TVM.
START_TIMEOUT_SEC = 120.0

_START_ATTEMPTS = 3

_TAIL_BYTES = 2_000  # of a dead worker's stderr


class RequeueError(Exception):
    """A job must be served again, before the others."""


class Worker(PopenWorker):
    """A process and its replacements; any thread can kill it, and it reports how it ended.

    All methods except :meth:`kill_now` belong to the thread that serves the process.

    Parameters
    ----------
    log : file
        File for the process's stderr; opened for appending and reading, unbuffered.
    """

    def __init__(self, log: IO[bytes]) -> None:
        #: Process id, from its report until the process is known to be dead.
        self.pid: int | None = None
        #: Readiness for jobs, and number of served jobs; the pool sets both.
        self.ready: bool = False
        self.uses: int = 0
        self._log = log
        self._limited = False
        self._expired = False
        self._ending = "no answer"
        self._called: set[Callable[..., Any]] = set()
        # Re-entrant: the garbage collector may end a pool inside of any of these methods.
        self._lock = threading.RLock()
        super().__init__(stderr=log)

    def start(self) -> None:
        """Start a new process and get its id, which PopenWorker does not report."""
        self.kill()
        self.ready, self.uses = False, 0
        self._called.clear()
        self.send(enter, (os.getpid(), tuple(allowed_cpus())))
        self.pid = self.recv()

    def call(self, function: Callable[..., Any], *args: Any, limit: float) -> Any:
        """Return the function's result.

        Raises
        ------
        TimeoutError
            No result came within `limit` seconds; the process is dead.
        ChildProcessError
            The process died; the message has the cause.
        """
        self._log.truncate(0)
        self._expired, self._ending = False, "no answer"
        self._limited = True
        timer = threading.Timer(limit, self._expire)
        timer.daemon = True
        timer.start()
        try:
            self.send(function, args)
            return self.recv()
        except Exception as error:  # a dying process may leave half an answer
            self.kill()
            if self._expired:
                raise TimeoutError from error
            unusual = "" if isinstance(error, ChildProcessError) else f"; {error!r}"
            raise ChildProcessError(self._ending + unusual) from error
        finally:
            timer.cancel()
            with self._lock:
                self._limited = False

    def call_once(self, function: Callable[[], Any]) -> None:
        """Call a function once in this process, within the time limit of a start."""
        if function not in self._called:
            self.call(function, limit=START_TIMEOUT_SEC)
            self._called.add(function)

    def kill(self) -> None:
        """Kill the process if it lives. `recv` calls this too, before it reports a death."""
        with self._lock:
            pid, self.pid = self.pid, None
        if pid is not None and self._limited:
            self._ending = _ending(pid)
        super().kill()

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        with self._lock:  # after a wait the system may reuse the process id
            alive = bool(super().is_alive())
            if not alive:
                self.pid = None
            return alive

    def kill_now(self) -> None:
        """Kill the process from another thread; its own thread reads EOF and cleans up."""
        with self._lock:
            if self.pid is not None:
                kill_child_processes(self.pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)

    def last_words(self) -> str:
        """Return the end of the process's stderr, e.g. LLVM's reason to abort."""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip()

    def _expire(self) -> None:
        with self._lock:
            if self._limited:
                self._expired = True
                self.kill_now()


def _ending(pid: int) -> str:
    """Return how our child ended, leaving its status to PopenWorker, which waits for it."""
    # An interpreter that exits closes its pipe first, and takes seconds on a busy machine.
    deadline = time.monotonic() + 5.0
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


#: Runs in a thread of the pool, and calls functions in the worker's process.
Job = Callable[[Worker], Any]
T = TypeVar("T")


class Retried:
    """A job that runs once more if its process dies: the system may have killed that one.

    Parameters
    ----------
    job : callable
        The job; its ChildProcessError is raised after the second death.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._is_retry = False

    def __call__(self, worker: Worker) -> Any:
        """Return the result of the job."""
        try:
            return self._job(worker)
        except ChildProcessError:
            if self._is_retry:
                raise
            self._is_retry = True
            raise RequeueError from None


class WorkerPool:
    """Worker processes that serve jobs. One thread serves one process, and its replacements.

    A job that ends its process affects no other job. The threads refer to the pool, which lives
    until it is closed; processes also end with this one, however it ends.

    Parameters
    ----------
    workers : int
        Maximum number of processes.
    prepare : callable
        The first call of each process; returns the problem in one line, or None.
    *setup
        Arguments of `prepare`.
    kind : str
        Name of the pool, a word of lower-case letters.
    label : str
        Beginning of error messages.
    maximum_uses : int
        Jobs of one process before a fresh one replaces it.

    Attributes
    ----------
    directory : Path
        A folder that the pool removes at its end.
    """

    def __init__(
        self,
        workers: int,
        prepare: Callable[..., str | None],
        *setup: Any,
        kind: str,
        label: str,
        maximum_uses: int,
    ) -> None:
        self._folder = TemporaryFolder(kind)
        self.directory: Path = self._folder.path
        self._setup = (prepare, *setup)
        self._kind = kind
        self._label = label
        self._maximum_uses = maximum_uses
        self._owner = os.getpid()
        self._changed = threading.Condition()  # re-entrant, as in Worker
        self._queue: deque[tuple[Future[Any], Job]] = deque()
        self._workers_at_most = self._unstarted = workers
        self._busy = 0
        self._threads: dict[threading.Thread, float] = {}  # with the time when its start began
        self._workers: dict[threading.Thread, Worker] = {}
        self._problem: str | None = None

    def start(self, number: int) -> None:
        """Start more processes; :meth:`submit` starts those that jobs wait for."""
        with self._changed:
            for _ in range(min(number, self._unstarted)):
                self._unstarted -= 1
                thread = threading.Thread(
                    target=self._serve, name=f"tunedb-{self._kind}", daemon=True
                )
                self._threads[thread] = time.monotonic()
                thread.start()

    def pids(self) -> tuple[int, ...]:
        """Return the ids of ready and busy processes."""
        with self._changed:
            ready = [worker.pid for worker in self._workers.values() if worker.ready]
            return tuple(pid for pid in ready if pid is not None)

    def submit(self, jobs: Iterable[Job]) -> list[Future[Any]]:
        """Queue jobs; :meth:`wait` returns after their results are there."""
        self._require_owner()
        queued: list[tuple[Future[Any], Job]] = [(Future(), job) for job in jobs]
        with self._changed:
            self._require_open()
            self._queue.extend(queued)
            self.start(len(self._queue) + self._busy - len(self._threads))
            self._changed.notify_all()
        return [future for future, _ in queued]

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, which the end of a job or a ready process may change.

        Raises
        ------
        PluginError
            The condition cannot come true: the pool is closed, or no process can be started or
            prepared.
        """
        self._require_owner()
        with self._changed:
            while not condition():
                if self._problem is None and self._is_stuck():
                    self._problem = f"no worker was ready within {START_TIMEOUT_SEC:.0f} s"
                self._require_open()
                self._changed.wait(1.0)

    def stream(
        self, items: Iterable[T], size: int, job: Callable[[list[T]], Job]
    ) -> Generator[tuple[list[T], Any], None, None]:
        """Yield chunks of items with the results of their jobs, in the order of the items.

        Two jobs for each process are queued. The result None says that one of several items ended
        its process: run one by one, only that one fails again.

        Parameters
        ----------
        items : iterable
            Items; read as jobs end.
        size : int
            Most items of a job.
        job : callable
            Returns the job of some items. Its result for one item is not None.

        Raises
        ------
        PluginError
            As for :meth:`wait`.
        """
        source = iter(items)
        waiting: deque[tuple[list[T], Future[Any]]] = deque()
        try:
            while True:
                while len(waiting) < 2 * self._workers_at_most:
                    chunk = list(islice(source, size))
                    if not chunk:
                        break
                    (queued,) = self.submit([job(chunk)])
                    waiting.append((chunk, queued))
                if not waiting:
                    return
                chunk, future = waiting.popleft()
                result = self._result(future)
                if result is not None:
                    yield chunk, result
                    continue
                singles = self.submit([job([item]) for item in chunk])
                for item, single in zip(chunk, singles, strict=True):
                    yield [item], self._result(single)
        finally:
            for _, future in waiting:
                future.cancel()

    def _result(self, future: Future[Any]) -> Any:
        self.wait(future.done)
        return future.result()

    def close(self) -> None:
        """Kill the processes and remove the folder; any thread may call it, repeatedly."""
        if os.getpid() != self._owner:  # a fork inherits the finalizer
            return
        self._fail(f"the {self._kind} is closed")
        with self._changed:
            workers, threads = list(self._workers.values()), list(self._threads)
        for worker in workers:
            worker.kill_now()
        # The thread of a process kills it if it has not reported its id yet.
        deadline = time.monotonic() + 10.0
        for thread in threads:
            if thread is not threading.current_thread():  # the garbage collector runs anywhere
                thread.join(max(0.0, deadline - time.monotonic()))
        self._folder.close()

    def _require_owner(self) -> None:
        if os.getpid() != self._owner:
            raise PluginError(f"{self._label} works only in the process that made it")

    def _require_open(self) -> None:
        if self._problem is not None:
            raise PluginError(f"{self._label}: {self._problem}")

    def _is_stuck(self) -> bool:
        late = time.monotonic() - START_TIMEOUT_SEC
        return not self.pids() and all(since < late for since in self._threads.values())

    def _fail(self, problem: str) -> None:
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()

    # ------------------------------------------------------------------ in the threads

    def _serve(self) -> None:
        """Serve one worker until the pool is closed."""
        reason = ""
        try:
            with tempfile.TemporaryFile("a+b", buffering=0, dir=self.directory) as log:
                worker = Worker(log)
                with self._changed:
                    self._workers[threading.current_thread()] = worker
                try:
                    self._start(worker)
                    while self._serve_next(worker):
                        pass
                finally:
                    with self._changed:
                        del self._workers[threading.current_thread()]
                    worker.kill()
        except Exception as error:  # nothing else would report it
            reason = " ".join(str(error).split())
        with self._changed:
            del self._threads[threading.current_thread()]
            # The other workers continue. Without any, false failures would fill the database.
            if not self._threads:
                self._fail(f"cannot start a worker: {reason}")

    def _start(self, worker: Worker) -> None:
        """Replace the worker's process by a new one."""
        self._threads[threading.current_thread()] = time.monotonic()
        reason = ""
        for _ in range(_START_ATTEMPTS):
            try:
                worker.start()
                self._require_open()  # after it reported its id: until then `close` cannot kill it
                problem = worker.call(*self._setup, limit=START_TIMEOUT_SEC)
            except Exception as error:
                self._require_open()
                worker.kill()
                reason = (worker.last_words().splitlines() or [str(error)])[-1]
                continue
            if problem is not None:
                self._fail(problem)
                self._require_open()
            with self._changed:
                worker.ready = True
                self._changed.notify_all()
            return
        raise ChildProcessError(reason)

    def _serve_next(self, worker: Worker) -> bool:
        """Serve the next job; return whether the pool is open."""
        with self._changed:
            self._changed.wait_for(lambda: self._problem is not None or self._queue)
            if self._problem is not None:
                return False
            future, job = self._queue.popleft()
            self._busy += 1
        try:
            self._run(worker, future, job)
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()
        worker.uses += 1
        if worker.uses >= self._maximum_uses or not worker.is_alive():
            self._start(worker)
        return True

    def _run(self, worker: Worker, future: Future[Any], job: Job) -> None:
        if not worker.is_alive():  # it died idle
            try:
                self._start(worker)
            except BaseException:
                self._queue.appendleft((future, job))
                raise
        if not (future.running() or future.set_running_or_notify_cancel()):
            return
        try:
            result = job(worker)
            self._require_open()  # the outcome of a killed worker is no result
        except RequeueError:
            self._queue.appendleft((future, job))
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
