"""Work in processes that are killed at random moments."""

import os
import random
import signal
import subprocess
import sys
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
    """Return whether a process succeeded or was killed."""
    return status in (0, signal.SIGKILL)


def kill_and_end(work, tell, *, kills, seed, longest):
    """Kill work several times at random moments, then let it end; call `tell` after each kill.

    Parameters
    ----------
    work : callable
        As for :func:`in_child`.
    tell : callable
        Called after each kill.
    kills, seed : str
        Arguments of a script.
    longest : float
        Seconds after which it is killed at the latest.
    """
    rng = random.Random(int(seed))
    for _ in range(int(kills)):
        status = in_child(work, rng.uniform(0, longest))
        assert killed_or_done(status), status
        tell()
    assert in_child(work) == 0


def lines_of(worker, *arguments):
    """Return the lines of numbers that a script prints, which must end well."""
    done = subprocess.run(
        [sys.executable, worker, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
