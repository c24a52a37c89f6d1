"""The CPUs that this process may use, even if TVM's thread pool has pinned the calling thread.

The first parallel loop that a thread runs, and the first compilation, start TVM's thread pool for
that thread. By default the pool pins the thread to one CPU (``SetAffinity`` in TVM's
``src/runtime/threading_backend.cc``; with a pool of one thread to CPU 0), and every thread and
process that it starts later inherits that: builders, runners and XGBoost would share one CPU.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

_CAN_PIN = hasattr(os, "sched_setaffinity")


def _at_import() -> frozenset[int]:
    """Return the CPUs of the calling thread; if it has one CPU only, of the other threads."""
    if not _CAN_PIN:
        return frozenset(range(os.cpu_count() or 1))
    cpus = os.sched_getaffinity(0)
    if len(cpus) > 1:
        return frozenset(cpus)
    # TVM may have run already; NumPy's threads, for example, are older than its pool.
    others: set[int] = set()
    for thread in Path("/proc/self/task").glob("*"):
        if int(thread.name) != threading.get_native_id():
            with contextlib.suppress(OSError):  # it has ended
                others |= os.sched_getaffinity(int(thread.name))
    return frozenset(others or cpus)


#: Read once: later TVM may have pinned threads, even outside of these CPUs.
_ALLOWED = _at_import()


def allowed_cpus() -> frozenset[int]:
    """Return the numbers of the CPUs that this process may use."""
    return _ALLOWED


def release_thread(cpus: frozenset[int] | None = None) -> None:
    """Let the calling thread run on all CPUs that its process may use.

    Parameters
    ----------
    cpus : frozenset of int, optional
        The CPUs; by default :func:`allowed_cpus`.
    """
    if not _CAN_PIN:
        return
    wanted = allowed_cpus() if cpus is None else cpus
    if os.sched_getaffinity(0) != wanted:
        try:
            os.sched_setaffinity(0, wanted)
        except OSError:  # the system has taken CPUs away since
            return
