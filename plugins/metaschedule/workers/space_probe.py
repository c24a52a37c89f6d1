"""Trial of design spaces in worker processes, before the tuning process generates them.

TVM's rules and postprocessors may crash (apache/tvm issue 18424) or hang the process on a function
that they do not support.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import cloudpickle
from tvm.s_tir import meta_schedule as ms

from .space_worker import try_space
from .warm_builder import WarmBuilder
from .worker_pool import RequeueError, Worker

__all__ = ["try_spaces"]


def try_spaces(
    builder: WarmBuilder, tasks: Iterable[tuple[Any, Any, Any]], seed: int
) -> Callable[[int], str | None]:
    """Try the design spaces of tasks in the workers of a builder.

    Parameters
    ----------
    builder : WarmBuilder
        Its workers try the spaces, each within the builder's time limit.
    tasks : iterable of (IRModule, Target, space)
        Space as ``TuneContext`` takes it. A task whose space cannot be pickled is not tried.
    seed : int
        Seed of the rules.

    Returns
    -------
    callable
        Takes the number of a task, waits for its trial, and returns how its space ended the worker,
        or None.
    """
    pool = builder.pool
    # All trials come before the first build, so none runs while a program is measured.
    trials = pool.submit(_Trial((*task, seed), builder.timeout_sec) for task in tasks)

    def problem(number: int) -> str | None:
        pool.wait(trials[number].done)
        reason: str | None = trials[number].result()
        return reason

    return problem


class _Trial:
    """The trial of one task, in a thread of the pool."""

    def __init__(self, task: tuple[Any, ...], timeout: float) -> None:
        self._task = task
        self._timeout = timeout
        self._is_retry = False

    def __call__(self, worker: Worker) -> str | None:
        if isinstance(self._task[2], ms.SpaceGenerator):
            return None
        try:
            pickled = cloudpickle.dumps(self._task)
        except Exception:  # a function of the user's
            return None
        try:
            worker.call(try_space, pickled, limit=self._timeout)
        except TimeoutError:
            return f"its design space hangs for more than {self._timeout:g} s"
        except ChildProcessError as error:
            if not self._is_retry:  # the system may have killed the worker for another reason
                self._is_retry = True
                raise RequeueError from None
            return f"its design space kills the process ({error})"
        return None
