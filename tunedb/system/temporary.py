"""Temporary folders that are removed even if their process was killed.

A folder has a lock file, locked while its process lives. The kernel releases the lock however the
process ends, so an unlocked folder is a left-over: the next process that creates a folder in the
same place removes it. A process id in the name would not suffice, because the system reuses ids.
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

#: The file whose lock marks a folder in use.
_LOCK = ".lock"

_NAME = re.compile(r"\.?tunedb-[a-z]+-[0-9a-f]{16}")

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

#: Attempts to create a folder before a sweeper removes it.
_ATTEMPTS = 100


class TemporaryFolder:
    """A folder of this process, removed with its content on :meth:`close` or at the process's end.

    Its creation removes left-overs of killed processes of this user beside it. A fork that outlives
    its parent protects the folder from sweeps, and does not remove it.

    Parameters
    ----------
    kind : str
        Part of the name, in lower-case letters: the purpose of the folder.
    parent : Path or None
        Parent folder; None for the system's folder for temporary files.
    hidden : bool
        Begin the name with a dot, for a folder beside files of the user.

    Attributes
    ----------
    path : Path
        The folder. Its lock file is left alone.

    Raises
    ------
    OSError
        The folder cannot be created there.
    """

    def __init__(self, kind: str, parent: Path | None = None, *, hidden: bool = False) -> None:
        place = Path(tempfile.gettempdir()) if parent is None else parent.absolute()
        sweep(place)
        prefix = f"{'.' if hidden else ''}tunedb-{kind}-"
        self.path: Path
        self.path, lock = _make(place, prefix)
        # Also called at the end of the interpreter.
        self._close = weakref.finalize(self, _close, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove the folder; repeated calls, and calls in a fork, do nothing."""
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
            # A sweep removed the empty folder between the two calls.
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
    """Lock a new folder; return False if a sweeper was faster."""
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
    """Remove a folder of this process, and release its lock."""
    if os.getpid() != owner:
        return
    try:
        with _opened(path) as folder:
            _empty(folder)
        path.rmdir()
    except OSError:
        # The next sweep removes the rest, unless others removed the folder.
        pass
    finally:
        os.close(lock)


# ---------------------------------------------------------------------- sweeping


def sweep(place: Path) -> int:
    """Remove the folders of dead processes of this user; return their number.

    It stops after :data:`tunedb.limits.SWEEP_S`, and the next sweep continues. Folders that cannot
    be read or removed stay.
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
    """Remove a folder if no process locks it; return whether it was removed."""
    with _opened(path) as folder:
        if os.fstat(folder).st_uid != os.geteuid():
            return False
        try:
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            lock = os.open(_LOCK, flags, dir_fd=folder)
        except FileNotFoundError:
            # Its process ended before it created the lock, or is about to do so and tries again.
            path.rmdir()
            return True
        with os.fdopen(lock, "rb", buffering=0):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _empty(folder, deadline)
            path.rmdir()
    return True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Yield the descriptor of a folder; a link raises an error."""
    folder = os.open(path, _DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)


def _empty(folder: int, deadline: float = math.inf) -> None:
    """Remove the contents of a folder, its lock last: until then the next sweep can continue.

    All names are looked up in the opened folder, and links are not followed, so that nothing else
    is removed, even if another folder takes its place meanwhile.

    Raises
    ------
    OSError
        An entry cannot be removed (the others are, except the lock), or it takes too long.
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
