"""Trial of design spaces in worker processes, before the tuning process generates them.

TVM's rules and postprocessors may crash (apache/tvm issue 18424) or hang the process on a function
that they do not support.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import cloudpickle
from tvm.s_tir import meta_schedule as ms

from .space_worker import try_space
from .warm_builder import WarmBuilder
from .worker_pool import Retried, Worker

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
    trials = pool.submit(
        Retried(partial(_try, (*task, seed), builder.timeout_sec)) for task in tasks
    )

    def problem(number: int) -> str | None:
        pool.wait(trials[number].done)
        try:
            trials[number].result()
        except TimeoutError:
            return f"its design space hangs for more than {builder.timeout_sec:g} s"
        except ChildProcessError as error:
            return f"its design space kills the process ({error})"
        return None

    return problem


def _try(task: tuple[Any, ...], timeout: float, worker: Worker) -> None:
    """Try the space of one task; run in a thread of the pool."""
    if isinstance(task[2], ms.SpaceGenerator):
        return
    try:
        pickled = cloudpickle.dumps(task)
    except Exception:  # a function of the user's
        return
    worker.call(try_space, pickled, limit=timeout)
