"""Work in processes that are killed at random moments."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager


def in_child(work, moment=None):
    """Do work in a process of its own; return how it ended.

    It is killed `moment` seconds after it called the function that it is given, if at all; then its
    errors are not shown, because a process that it was just starting complains of its end.
    """
    opened, tell = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if moment is not None:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
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
    """Kill work several times, at most `longest` seconds after it began, and then let it end.

    `work` is as for :func:`in_child`; `tell` is called after each kill.
    """
    rng = random.Random(int(seed))
    for _ in range(int(kills)):
        status = in_child(work, rng.uniform(0, longest))
        assert killed_or_done(status), status
        tell()
    assert in_child(work) == 0


def output_of(worker, *arguments, timeout=300):
    """Return what a script prints, which must end well and have no errors to tell."""
    done = subprocess.run(
        [sys.executable, worker, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def lines_of(worker, *arguments):
    """Return the lines of numbers that a script prints."""
    lines = output_of(worker, *arguments).splitlines()
    return [tuple(map(int, line.split())) for line in lines]


def looks():
    """Yield once, print ``ready``, and yield until stdin closes and once after that."""
    closed = threading.Event()

    def wait():
        sys.stdin.read()
        closed.set()

    threading.Thread(target=wait, daemon=True).start()
    yield
    print("ready", flush=True)
    while not closed.is_set():
        yield
    yield


@contextmanager
def started(worker, *arguments):
    """Run a script; kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, worker, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def end_of(process):
    """Let a started script end well, without errors; return what it prints."""
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    return output
