"""A builder whose worker processes outlive the batch.

TVM's ``LocalBuilder`` starts its workers anew for each batch, and each of them imports TVM (1.3 s)
and then TVM's tensor intrinsics (seconds of CPU time), which no build needs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import IO, Any, Self

import cloudpickle
from tvm.s_tir.meta_schedule.builder.builder import BuilderResult, _PyBuilder
from tvm.s_tir.meta_schedule.utils import cpu_count

from ....errors import PluginError, UsageError
from ....records import FailureKind
from ....system.temporary import TemporaryFolder
from ..compat import register_errors
from ..failures import headline, tidy
from . import build_worker
from .worker_process import WorkerProcess

register_errors()

#: Builds of one worker before a fresh process takes its place. LocalBuilder restarts its workers
#: for each batch "because of a known memory leak issue". 600 builds and exports of a matmul with
#: 0.27 in one process left its memory at 229 MB, so this is a precaution, and its price is small:
#: 1.3 s of start-up for 500 builds of at least 0.04 s, most of it while the runner measures.
MAXIMUM_USES = 500

#: Seconds that a worker may take to start (import of TVM, initializer).
START_TIMEOUT_SEC = 120.0

_START_ATTEMPTS = 3


class WarmBuilder(_PyBuilder):
    """A builder for ``tune_tir``, ``tune_tasks`` and ``tune_relax`` with lasting workers.

    Workers start in the background when the builder is made and serve every batch of every tuning
    run that gets it. A candidate that crashes its worker or exceeds its time costs that worker,
    which is replaced, and no other candidate.

    Parameters
    ----------
    max_workers : int or None
        Worker processes; by default the number of logical processors, like ``LocalBuilder``.
    timeout_sec : float
        Seconds for one candidate, from when a worker begins with it. The start of the worker does
        not count.
    f_build, f_export : None, str or callable
        As for ``LocalBuilder``: a function of ``(mod, target, params)`` that returns a module, and
        one of that module that returns the artifact's absolute path, in a directory of its own
        (``tempfile.mkdtemp()`` will do). A string names a function that is registered in the
        worker. Functions travel through cloudpickle.
    initializer : callable or None
        Runs once in each worker process.
    maximum_uses : int
        Builds of one worker before a fresh process takes its place (see :data:`MAXIMUM_USES`).

    Raises
    ------
    UsageError
        An argument is out of range, or a function cannot be pickled.
    PluginError
        From :meth:`build` and :meth:`wait_until_ready`: no worker can be started, the initializer
        failed, or a named function is not registered. It keeps its type in a tuning run.

    Notes
    -----
    Artifacts lie in a temporary directory of the builder, which :meth:`close` removes.
    ``RemoveBuildArtifact`` removes each one earlier. Workers end with the builder: on
    :meth:`close`, when it is garbage-collected, and when the process ends, however it ends.

    Examples
    --------
    >>> with WarmBuilder() as builder:  # doctest: +SKIP
    ...     for mod in modules:
    ...         ms.tune_tir(mod, target, work_dir, 64, builder=builder)
    """

    # Objects of tvm-ffi have no instance dictionary of their own.
    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self,
        *,
        max_workers: int | None = None,
        timeout_sec: float = 30.0,
        f_build: str | Callable[..., Any] | None = None,
        f_export: str | Callable[..., Any] | None = None,
        initializer: Callable[[], None] | None = None,
        maximum_uses: int = MAXIMUM_USES,
    ) -> None:
        workers = cpu_count(logical=True) if max_workers is None else max_workers
        for name, value in (
            ("max_workers", workers),
            ("timeout_sec", timeout_sec),
            ("maximum_uses", maximum_uses),
        ):
            if not value > 0:
                raise UsageError(f"{name} must be positive, not {value!r}")
        setup = _pickle_setup(initializer, f_build, f_export)
        pool = _Pool(workers, timeout_sec, maximum_uses, setup)
        # The function holds the inner object and not `self`: a cycle through C++ is beyond the
        # garbage collector. TVM may keep the function longer than Python keeps `self`.
        super().__init__(pool.build)
        self._pool = pool

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        """Build a batch; one ``BuilderResult`` for each ``BuilderInput``, in their order."""
        return self._pool.build(build_inputs)

    def wait_until_ready(self) -> None:
        """Wait until one worker is ready, so that an unusable configuration is known early."""
        self._pool.shared.wait(lambda: bool(self._pool.shared.pids()))

    def worker_pids(self) -> tuple[int, ...]:
        """Return the process ids of the workers that run now."""
        return self._pool.shared.pids()

    def close(self) -> None:
        """Kill the workers and remove all artifacts. May be called again."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _pickle_setup(initializer: Any, f_build: Any, f_export: Any) -> bytes:
    pickled = []
    for name, value in (("initializer", initializer), ("f_build", f_build), ("f_export", f_export)):
        named = isinstance(value, str) and name != "initializer"
        if not (value is None or callable(value) or named):
            raise UsageError(f"{name} must be a function, not {value!r}")
        try:
            pickled.append(cloudpickle.dumps(value))
        except Exception as error:
            raise UsageError(f"{name} cannot be sent to a worker process: {error}") from error
    return cloudpickle.dumps(tuple(pickled))  # type: ignore[no-any-return]


class _Pool:
    """What a builder owns. Its threads know only `shared`, so that this can be collected."""

    def __init__(self, workers: int, timeout: float, maximum_uses: int, setup: bytes) -> None:
        self.shared = _Shared(timeout, maximum_uses, setup)
        for _ in range(workers):
            self.shared.add_worker()
        # Also called at the end of the interpreter.
        self.close = weakref.finalize(self, self.shared.close)

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        jobs = [_Job(item) for item in build_inputs]
        self.shared.run(jobs)
        return [BuilderResult(job.artifact, job.error) for job in jobs]


class _Job:
    """One candidate on its way."""

    def __init__(self, item: Any) -> None:
        self.item = item  # None when it is done
        self.artifact: str | None = None
        self.error: str | None = None
        self.done = False
        self.abandoned = False
        self.again = False  # it had a worker that died before it began


class _Shared:
    """What the threads of a builder share. One thread serves one worker process."""

    def __init__(self, timeout: float, maximum_uses: int, setup: bytes) -> None:
        self.timeout = timeout
        self.maximum_uses = maximum_uses
        self.setup = setup
        self._folder = TemporaryFolder("builder")
        self.directory = self._folder.path
        self._owner = os.getpid()
        self._changed = threading.Condition()  # re-entrant, as in WorkerProcess
        self._jobs: deque[_Job] = deque()
        self._numbers = count()
        self._threads: dict[threading.Thread, float] = {}  # with the time when its start began
        self._processes: dict[threading.Thread, WorkerProcess] = {}
        self._problem: str | None = None

    def add_worker(self) -> None:
        thread = threading.Thread(target=self._serve, name="tunedb-builder", daemon=True)
        self._threads[thread] = time.monotonic()
        thread.start()

    def pids(self) -> tuple[int, ...]:
        with self._changed:
            ready = [process for process in self._processes.values() if process.ready]
            return tuple(process.pid for process in ready if process.pid is not None)

    def run(self, jobs: list[_Job]) -> None:
        with self._changed:
            self._jobs.extend(jobs)
            self._changed.notify_all()
        try:
            self.wait(lambda: all(job.done for job in jobs))
        except BaseException:
            with self._changed:
                for job in jobs:
                    job.abandoned = True
                self._jobs = deque(job for job in self._jobs if not job.abandoned)
            raise

    def wait(self, condition: Callable[[], bool]) -> None:
        if os.getpid() != self._owner:
            raise PluginError("a WarmBuilder works only in the process that created it")
        with self._changed:
            while not condition():
                if self._problem is None and self._is_stuck():
                    self._problem = f"no worker was ready within {START_TIMEOUT_SEC:.0f} s"
                if self._problem is not None:
                    raise PluginError(f"WarmBuilder: {self._problem}")
                self._changed.wait(1.0)

    def close(self) -> None:
        if os.getpid() != self._owner:  # a fork inherits the finalizer
            return
        self._fail("the builder is closed")
        with self._changed:
            processes, threads = list(self._processes.values()), list(self._threads)
        for process in processes:
            process.kill_now()
        # A process that has not told its id yet is killed by its thread when it has.
        deadline = time.monotonic() + 10.0
        for thread in threads:
            if thread is not threading.current_thread():  # the garbage collector runs anywhere
                thread.join(max(0.0, deadline - time.monotonic()))
        self._folder.close()

    def _is_stuck(self) -> bool:
        late = time.monotonic() - START_TIMEOUT_SEC
        return not self.pids() and all(since < late for since in self._threads.values())

    def _fail(self, problem: str) -> None:
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()

    def _take(self) -> _Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._problem is not None or self._jobs)
            return self._jobs.popleft() if self._problem is None else None

    def _serve(self) -> None:
        """Serve one worker, and its replacements, until the builder is closed."""
        reason = ""
        try:
            with tempfile.TemporaryFile("a+b", buffering=0, dir=self.directory) as log:
                try:
                    self._serve_with(log)
                finally:
                    self._dispose()
        except Exception as error:  # nobody else would hear of it
            reason = " ".join(str(error).split())
        with self._changed:
            del self._threads[threading.current_thread()]
            # Fewer workers can go on. Without any, false failures would fill the database.
            if not self._threads:
                self._fail(f"cannot start a worker: {reason}")

    def _serve_with(self, log: IO[bytes]) -> None:
        process = self._start(log)
        while (job := self._take()) is not None:
            if not process.is_alive():  # it died idle
                try:
                    process = self._start(log)
                except BaseException:
                    self._put_back(job)
                    raise
            self._build(process, job)
            process.uses += 1
            if process.uses >= self.maximum_uses or not process.is_alive():
                process = self._start(log)

    def _start(self, log: IO[bytes]) -> WorkerProcess:
        """Return a new process for this thread, in place of the one that it has."""
        me = threading.current_thread()
        self._threads[me] = time.monotonic()
        reason = ""
        for _ in range(_START_ATTEMPTS):
            self._dispose()
            process = WorkerProcess(log)
            with self._changed:
                self._processes[me] = process
            try:
                process.start()
                self._require_open()  # after it told its id: until then `close` cannot kill it
                problem = process.call(build_worker.prepare, self.setup, limit=START_TIMEOUT_SEC)
            except Exception as error:
                self._require_open()
                process.kill()
                reason = (process.last_words().splitlines() or [str(error)])[-1]
                continue
            if problem is not None:
                self._fail(problem)
                self._require_open()
            with self._changed:
                process.ready = True
                self._changed.notify_all()
            return process
        raise ChildProcessError(reason)

    def _require_open(self) -> None:
        if self._problem is not None:
            raise PluginError(self._problem)

    def _dispose(self) -> None:
        with self._changed:
            process = self._processes.pop(threading.current_thread(), None)
        if process is not None:
            process.kill()

    def _put_back(self, job: _Job) -> None:
        with self._changed:
            if not job.abandoned:
                self._jobs.appendleft(job)
            self._changed.notify_all()

    def _build(self, process: WorkerProcess, job: _Job) -> None:
        directory = self.directory / f"{next(self._numbers):06d}"
        artifact, error = self._outcome(process, job, directory)
        if artifact is None:
            began = directory.exists()
            shutil.rmtree(directory, ignore_errors=True)
            if not began and not job.again and not process.is_alive():
                job.again = True
                self._put_back(job)
                return
        with self._changed:
            # If the builder was closed meanwhile, that is what became of the job, and `wait` tells.
            job.done = artifact is not None or self._problem is None
            job.artifact, job.error = artifact, error
            job.item = None
            self._changed.notify_all()
            abandoned = job.abandoned
        if abandoned:
            shutil.rmtree(directory, ignore_errors=True)

    def _outcome(
        self, process: WorkerProcess, job: _Job, directory: Path
    ) -> tuple[str | None, str | None]:
        """Return the artifact's path or the error message."""
        begin = time.monotonic()
        kind, detail = FailureKind.INFRASTRUCTURE, ""
        try:
            candidate = _pickle_candidate(job.item)
            begin = time.monotonic()
            good, text = process.call(
                build_worker.build, candidate, str(directory), limit=self.timeout
            )
            if good:
                return text, None
            kind = FailureKind.COMPILE_ERROR
        except (TimeoutError, ChildProcessError) as error:
            text, detail = process.last_words(), str(error)
            # The worker makes the directory: without one it never began with the candidate.
            if directory.exists():
                timeout = isinstance(error, TimeoutError)
                kind = FailureKind.TIMEOUT if timeout else FailureKind.CRASH
        except Exception as error:
            text = repr(error)
        return None, tidy(f"{headline(kind, time.monotonic() - begin, detail)}\n{text}".rstrip())


def _pickle_candidate(item: Any) -> bytes:
    """Return what a worker needs; objects of TVM pickle as their JSON graph."""
    params = item.params
    if params is not None:
        from tvm.runtime import save_param_dict

        params = bytes(save_param_dict(params))
    return cloudpickle.dumps((item.mod, item.target, params))  # type: ignore[no-any-return]
