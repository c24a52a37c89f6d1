"""Temporary folders that are removed although their process was killed.

A folder holds a lock file for as long as its process lives. The kernel gives the lock back however
the process ends, so a folder without a holder is a left-over: the next process that makes a folder
in the same place removes it. A process id in the name would not do, because ids are used again.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from .. import limits

#: The file whose lock says that the folder is in use.
_LOCK = ".lock"

_NAME = re.compile(r"\.?tunedb-[a-z]+-[0-9a-f]{16}")

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

#: Folders that are tried where a sweeper is faster each time.
_ATTEMPTS = 100


class TemporaryFolder:
    """A folder of this process, removed with its content when it is closed or the process ends.

    Left-overs of killed processes of this user beside it are removed first. A fork that lives
    longer than its parent keeps the folder from being swept, and does not remove it.

    Parameters
    ----------
    kind : str
        Part of the name, in lower-case letters: what the folder is for.
    parent : Path or None
        Where it is made; the system's folder for temporary files where None.
    hidden : bool
        Begin the name with a dot, for a folder beside files of the user.

    Attributes
    ----------
    path : Path
        The folder. Its lock file is left alone.

    Raises
    ------
    OSError
        It cannot be made there.
    """

    def __init__(self, kind: str, parent: Path | None = None, *, hidden: bool = False) -> None:
        place = Path(tempfile.gettempdir()) if parent is None else parent.absolute()
        sweep(place)
        prefix = f"{'.' if hidden else ''}tunedb-{kind}-"
        self.path, lock = _make(place, prefix)
        # Also called at the end of the interpreter.
        self._close = weakref.finalize(self, _close, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove the folder. May be called again, and in a fork, where it does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _make(place: Path, prefix: str) -> tuple[Path, int]:
    """Return a new folder and the descriptor that holds its lock."""
    for _ in range(_ATTEMPTS):
        path = place / f"{prefix}{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            # Swept between the two calls, while it was empty.
            continue
        except OSError:
            with suppress(OSError):
                path.rmdir()
            raise
        if _is_kept(path / _LOCK, lock):
            return path, lock
        os.close(lock)
    raise FileExistsError(errno.EEXIST, "folders are removed at once", str(place))


def _is_kept(path: Path, lock: int) -> bool:
    """Take the lock of a new folder; tell whether no sweeper was faster."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks refuses them to sweepers, too.
        return True
    try:
        return os.path.samestat(path.lstat(), os.fstat(lock))
    except FileNotFoundError:
        return False


def _close(path: Path, lock: int, owner: int) -> None:
    """Remove a folder of this process, and give its lock back."""
    if os.getpid() != owner:
        return
    try:
        with _opened(path) as folder:
            _empty(folder)
        path.rmdir()
    except OSError:
        # What is left goes with the next sweep, unless its folder was removed by others.
        pass
    finally:
        os.close(lock)


# ---------------------------------------------------------------------- sweeping


def sweep(place: Path) -> int:
    """Remove the folders of dead processes of this user; return how many.

    It stops after :data:`tunedb.limits.SWEEP_S`, and the next sweep goes on. What cannot be read
    or removed is left.
    """
    removed = 0
    deadline = time.monotonic() + limits.SWEEP_S
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if time.monotonic() >= deadline:
                break
            if _NAME.fullmatch(entry.name):
                with suppress(OSError):
                    removed += _sweep_folder(Path(entry.path), deadline)
    return removed


def _sweep_folder(path: Path, deadline: float) -> bool:
    """Remove a folder if nobody holds it; tell whether that was so."""
    with _opened(path) as folder:
        if os.fstat(folder).st_uid != os.geteuid():
            return False
        try:
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            lock = os.open(_LOCK, flags, dir_fd=folder)
        except FileNotFoundError:
            # Its process ended before it made the lock, or is about to make it and tries again.
            path.rmdir()
            return True
        with os.fdopen(lock, "rb", buffering=0):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _empty(folder, deadline)
            path.rmdir()
    return True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Yield the descriptor of a folder, which a link is not."""
    folder = os.open(path, _DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)


def _empty(folder: int, deadline: float = math.inf) -> None:
    """Remove what a folder holds, its lock last: until then the next sweep can go on.

    All names are looked up in the folder that was opened, and links are not followed, so that
    nothing else is removed whatever takes the folder's place meanwhile.

    Raises
    ------
    OSError
        Something cannot be removed, and the rest is, except the lock; or it takes too long.
    """
    with os.scandir(folder) as found:
        entries = [entry for entry in found if entry.name != _LOCK]
    failed: OSError | None = None
    for entry in entries:
        if time.monotonic() >= deadline:
            raise TimeoutError
        try:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.name, dir_fd=folder)
            else:
                os.unlink(entry.name, dir_fd=folder)
        except OSError as error:
            failed = error
    if failed is not None:
        raise failed
    os.unlink(_LOCK, dir_fd=folder)
