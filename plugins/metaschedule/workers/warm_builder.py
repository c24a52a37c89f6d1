"""A builder with worker processes that outlive the batch.

TVM's ``LocalBuilder`` starts new workers for each batch, and each of them imports TVM (1.3 s)
and then TVM's tensor intrinsics (seconds of CPU time), which no build needs.
"""

from __future__ import annotations

import shutil
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

import cloudpickle
from tvm.s_tir.meta_schedule.builder.builder import BuilderResult, _PyBuilder

from ....errors import UsageError
from ....records import FailureKind
from ..compat import register_errors
from ..failures import headline, tidy
from ..threads import usable_cpus
from . import build_worker
from .worker_pool import RequeueError, Worker, WorkerPool

register_errors()

#: Builds of one worker before a fresh process takes its place. LocalBuilder restarts its workers
#: for each batch "because of a known memory leak issue". 600 builds and exports of a matmul with
#: 0.27 in one process left its memory at 229 MB, so this is a precaution; its cost is small:
#: 1.3 s of start-up for 500 builds of at least 0.04 s, most of it while the runner measures.
MAXIMUM_USES = 500


class WarmBuilder(_PyBuilder):
    """A builder for ``tune_tir``, ``tune_tasks`` and ``tune_relax`` with lasting workers.

    Workers start in the background and serve all batches of all tuning runs with this builder. A
    candidate that crashes its worker or exceeds its time limit ends that worker, which is
    replaced, and affects no other candidate.

    Parameters
    ----------
    max_workers : int or None
        Worker processes; by default one for each logical CPU that this process may use.
    timeout_sec : float
        Seconds for one candidate, without the start of its worker.
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

    Attributes
    ----------
    pool : WorkerPool
        The workers.
    prefetches : bool
        Whether builds prefetch large arguments (:mod:`..prefetch`): without an `f_build`.

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
        workers = usable_cpus() if max_workers is None else max_workers
        for name, value in (
            ("max_workers", workers),
            ("timeout_sec", timeout_sec),
            ("maximum_uses", maximum_uses),
        ):
            if not value > 0:
                raise UsageError(f"{name} must be positive, not {value!r}")
        setup = _pickle_setup(initializer, f_build, f_export)
        pool = WorkerPool(
            workers,
            build_worker.prepare,
            setup,
            kind="builder",
            label="WarmBuilder",
            maximum_uses=maximum_uses,
        )
        pool.start(workers)
        batches = _Batches(pool, timeout_sec)
        # The function holds the inner object and not `self`: a cycle through C++ is beyond the
        # garbage collector. TVM may keep the function longer than Python keeps `self`.
        super().__init__(batches.build)
        self._batches = batches
        self.pool: Final = pool
        self.timeout_sec: float = timeout_sec
        self.prefetches: Final = f_build is None

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        """Build a batch; one ``BuilderResult`` for each ``BuilderInput``, in their order."""
        return self._batches.build(build_inputs)

    def wait_until_ready(self) -> None:
        """Wait until one worker is ready, so that an unusable configuration fails early."""
        pool = self.pool
        pool.wait(lambda: bool(pool.pids()))

    def worker_pids(self) -> tuple[int, ...]:
        """Return the process ids of the workers that run now."""
        return self.pool.pids()

    def close(self) -> None:
        """Kill the workers and remove all artifacts; repeated calls do no harm."""
        self._batches.close()

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


class _Batches:
    """Builds batches for TVM. The pool has no reference to it, so that it can be collected."""

    def __init__(self, pool: WorkerPool, timeout: float) -> None:
        self.pool = pool
        # Also called at the end of the interpreter.
        self.close = weakref.finalize(self, pool.close)
        self._timeout = timeout
        self._numbers = count()

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        directory = self.pool.directory
        jobs = [
            _Build(item, directory / f"{next(self._numbers):06d}", self._timeout)
            for item in build_inputs
        ]
        futures = self.pool.submit(jobs)
        try:
            self.pool.wait(lambda: all(future.done() for future in futures))
        except BaseException:
            for job, future in zip(jobs, futures, strict=True):
                if not future.cancel():
                    future.add_done_callback(job.discard)
            raise
        return [BuilderResult(*future.result()) for future in futures]


class _Build:
    """The build of one candidate."""

    def __init__(self, item: Any, directory: Path, timeout: float) -> None:
        self._item = item
        self._directory = directory
        self._timeout = timeout
        self._is_retry = False  # whether an earlier worker died before the build began

    def __call__(self, worker: Worker) -> tuple[str | None, str | None]:
        """Return the artifact's path, or the error message."""
        artifact, error = self._outcome(worker)
        if artifact is None:
            began = self._directory.exists()
            self.discard()
            if not began and not self._is_retry and not worker.is_alive():
                self._is_retry = True
                raise RequeueError
        return artifact, error

    def discard(self, _: object = None) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _outcome(self, worker: Worker) -> tuple[str | None, str | None]:
        begin = time.monotonic()
        kind, detail = FailureKind.INFRASTRUCTURE, ""
        try:
            candidate = _pickle_candidate(self._item)
            begin = time.monotonic()
            good, text = worker.call(
                build_worker.build, candidate, str(self._directory), limit=self._timeout
            )
            if good:
                return text, None
            kind = FailureKind.COMPILE_ERROR
        except (TimeoutError, ChildProcessError) as error:
            text, detail = worker.last_words(), str(error)
            # The worker creates the directory: without one it did not begin with the candidate.
            if self._directory.exists():
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
