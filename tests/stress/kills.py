"""Work in processes that are killed at random moments."""

import os
import signal
import time


def in_child(work, moment=None):
    """Do work in a process of its own, killed `moment` seconds after it began; return its end.

    Parameters
    ----------
    work : callable
        Called with a function to call when it begins.
    moment : float or None
        None lets it end.
    """
    opened, tell = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(lambda: os.write(tell, b"x"))
            status = 0
        finally:
            os._exit(status)
    os.close(tell)
    os.read(opened, 1)
    os.close(opened)
    if moment is not None:
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def killed_or_done(status):
    """Tell whether a process ended in one of the two ways that are meant."""
    return status in (0, signal.SIGKILL)
