"""The only way to XGBoost: imported late, with OpenMP threads that do not spin while they wait.

XGBoost's OpenMP threads wait for one another in a loop, hundreds of times in each round of
boosting. Where other processes hold the cores, the threads that wait burn the time which the one
they wait for needs: training takes 50 times as long. With ``OMP_WAIT_POLICY=PASSIVE`` they sleep.
GNU's runtime reads that once, when it is loaded; XGBoost's wheels bring a copy of their own, so the
import of ``xgboost`` is the moment. A policy that the user has set stays.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from ..errors import PluginError
from ..system.cpus import allowed_cpus, release_thread

_POLICY = "OMP_WAIT_POLICY"


@cache
def _spins() -> bool:
    """Set the policy if it is early enough; return whether threads spin all the same."""
    if "xgboost" not in sys.modules:
        os.environ.setdefault(_POLICY, "PASSIVE")
    return os.environ.get(_POLICY, "").upper() != "PASSIVE"


def import_xgboost(name: str = "xgboost") -> Any:
    """Return the module ``xgboost``, or one inside of it.

    Raises
    ------
    PluginError
        It is not installed.
    """
    _spins()
    try:
        return import_module(name)
    except ImportError as error:
        raise PluginError(
            f"XGBoost does not load ({error}); run: pip install 'tunedb[train]'"
        ) from None


@contextmanager
def interrupt_later() -> Iterator[list[Any]]:
    """Hold Ctrl-C back until the block ends; the list that is yielded has what came until then.

    XGBoost calls Python back while it puts rows into bins. An exception there cannot pass through
    it: ctypes prints and drops a KeyboardInterrupt, and XGBoost goes on with what it has, or ends
    the process ("double free"). Threads other than the main one get no signals.
    """
    caught: list[Any] = []
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield caught
        return
    signal.signal(signal.SIGINT, lambda *given: caught.append(given))
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[0])


def threads_to_use(threads: int | None = None) -> int:
    """Return how many threads XGBoost gets.

    Parameters
    ----------
    threads : int, optional
        What the user asks for. Without, all cores that this process may use, and no more than
        ``OMP_NUM_THREADS``; but one where somebody imported ``xgboost`` before tunedb without the
        policy, because then only one thread cannot stall.
    """
    if threads is not None:
        return max(1, threads)
    if _spins():
        return 1
    release_thread()  # XGBoost's threads inherit the affinity of the one that calls it
    cores = len(allowed_cpus())
    bound = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(cores, int(bound)) if bound.isdigit() and int(bound) else cores
