"""The first call of every worker process; it imports nothing of TVM or tunedb."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def enter(parent: int, cpus: tuple[int, ...]) -> int:
    """Tie this process to its parent and return its own id.

    An idle worker ends when it reads EOF on its pipe. A busy worker does not read, and a fork of
    the parent may hold the pipe open, so Linux also signals the end of the parent.
    """
    # Ctrl-C reaches the whole process group; the parent ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "sched_setaffinity"):
        # TVM may have pinned the thread that started this process to one CPU.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)
    if sys.platform == "linux":
        import ctypes

        # It fires when the *thread* that started and serves this process ends.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the line above
            os._exit(0)
    return os.getpid()
