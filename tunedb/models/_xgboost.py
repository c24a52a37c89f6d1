"""The late import of XGBoost, with OpenMP threads that sleep while they wait.

XGBoost's OpenMP threads wait for each other in a busy loop, hundreds of times in each round of
boosting. Where other processes hold the cores, waiting threads burn the time of the thread that
they wait for: training takes 50 times as long. With ``OMP_WAIT_POLICY=PASSIVE`` they sleep. GNU's
runtime reads the variable once, at load time; XGBoost's wheels bundle their own copy, so the
variable must be set before the import of ``xgboost``. A policy set by the user stays.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any

from ..errors import PluginError
from ..system.cpus import allowed_cpus, release_thread

_POLICY = "OMP_WAIT_POLICY"

#: Distributions that own the module ``xgboost``.
_DISTRIBUTIONS = ("xgboost", "xgboost-cpu")


#: Whether XGBoost may not import scikit-learn.
_without_sklearn = False


def leave_out_sklearn() -> None:
    """Let XGBoost believe that scikit-learn is not installed, for a process of ours.

    Where it is installed, XGBoost spends seconds on its import, for wrapper classes that tunedb
    does not use. In a user's process they stay.
    """
    global _without_sklearn  # noqa: PLW0603 - a fact of the process
    _without_sklearn = True


@contextmanager
def _hidden_sklearn() -> Iterator[None]:
    """Hide scikit-learn until the block, the first import of XGBoost, ends."""
    if not _without_sklearn or not sys.modules.keys().isdisjoint(("xgboost", "sklearn")):
        yield
        return
    sys.modules["sklearn"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop("sklearn", None)  # another thread may have been here


@cache
def _spins() -> bool:
    """Set the policy if XGBoost is not imported yet; return whether threads spin."""
    if "xgboost" not in sys.modules:
        os.environ.setdefault(_POLICY, "PASSIVE")
    return os.environ.get(_POLICY, "").upper() != "PASSIVE"


def installed() -> str | None:
    """Return the installed distribution of XGBoost; None without one.

    Raises
    ------
    PluginError
        Both are installed.
    """
    from importlib import metadata  # half of the time of this module's import

    found = []
    for name in _DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            metadata.version(name)
            found.append(name)
    if len(found) > 1:
        raise PluginError(
            "xgboost and xgboost-cpu are both installed, and overwrite each other's files; run: "
            "pip uninstall -y xgboost xgboost-cpu && pip install 'tunedb[train]'"
        )
    return found[0] if found else None


def import_xgboost(name: str = "xgboost") -> Any:
    """Return the module ``xgboost`` or one of its submodules.

    Raises
    ------
    PluginError
        XGBoost is not installed, or both of its distributions are.
    """
    if "xgboost" not in sys.modules:
        installed()
    _spins()
    try:
        with _hidden_sklearn():
            return import_module(name)
    except ImportError as error:
        raise PluginError(
            f"XGBoost does not load ({error}); run: pip install 'tunedb[train]'"
        ) from None


def import_in_thread() -> threading.Thread:
    """Start to import XGBoost, which takes a second or more; a failure is silent."""

    def run() -> None:
        with suppress(Exception):  # who needs it imports it again, and tells
            import_xgboost()

    thread = threading.Thread(target=run, name="tunedb-xgboost", daemon=True)
    thread.start()
    return thread


@contextmanager
def interrupt_later() -> Iterator[list[Any]]:
    """Delay Ctrl-C until the block ends; yield the list of delayed signals.

    XGBoost calls back into Python while it puts rows into bins. An exception cannot pass through
    it: ctypes prints and drops a KeyboardInterrupt, and XGBoost continues with incomplete data or
    ends the process ("double free"). Only the main thread gets signals.
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
    """Return the number of threads for XGBoost.

    Parameters
    ----------
    threads : int, optional
        Number requested by the user. By default all cores that this process may use, at most
        ``OMP_NUM_THREADS``; but 1 if ``xgboost`` was imported before tunedb without the policy,
        because several spinning threads may stall.
    """
    if threads is not None:
        return max(1, threads)
    if _spins():
        return 1
    release_thread()  # XGBoost's threads inherit the affinity of the calling thread
    cores = len(allowed_cpus())
    bound = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(cores, int(bound)) if bound.isdigit() and int(bound) else cores
