"""Files of the user: tunedb reads only regular ones, and new ones appear whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ..errors import StorageError
from .temporary import TemporaryFolder

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

_ADVICE = "copy its data to a file first"

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


# ---------------------------------------------------------------------- reading


def open_regular(path: str | Path, *, advice: str = _ADVICE, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading. Never waits for a pipe nor reads a device.

    Parameters
    ----------
    path : str or Path
        The file; links are followed.
    advice : str
        The end of the message about another kind of file: how to go on.
    buffering : int
        As for :func:`open`.

    Raises
    ------
    OSError
        The file cannot be opened, is missing, or is a directory.
    StorageError
        The file is a pipe, a socket or a device.
    """
    # Opening some devices does something (a tape rewinds), and a pipe's writer sees its reader go.
    require_regular(path, advice=advice)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        # Another file may have taken its place.
        _check(os.fstat(descriptor), path, advice)
        return os.fdopen(descriptor, "rb", buffering)
    except BaseException:
        os.close(descriptor)
        raise


def require_regular(path: str | Path, *, advice: str = _ADVICE) -> None:
    """Raise the errors of :func:`open_regular`, for a file that a library opens itself."""
    _check(Path(path).stat(), path, advice)


def _check(status: os.stat_result, path: str | Path, advice: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        kind = next((kind for test, kind in _KINDS if test(status.st_mode)), "no regular file")
        raise StorageError(f"{path}: {kind}, but tunedb reads only regular files; {advice}")


def require_regular_logs(path: Path) -> None:
    """Raise StorageError if a log of a SQLite file is a pipe or a device.

    SQLite opens any file with a log's name, and waits for a pipe's other end.
    """
    for suffix in ("-journal", "-wal", "-shm"):
        with suppress(FileNotFoundError, IsADirectoryError):
            require_regular(f"{path}{suffix}", advice=f"remove it, or copy {path.name} alone")


def read_regular(path: str | Path, most: int, *, advice: str = _ADVICE) -> bytes:
    """Return the first bytes of a regular file; raises as :func:`open_regular`."""
    with open_regular(path, advice=advice) as file:
        return file.read(most)


# ---------------------------------------------------------------------- writing


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Let a block write a file, which then appears under its name with all of its bytes.

    The block writes in a hidden folder beside the file's place. A killed process leaves that
    folder, and the next new file there removes it.

    Parameters
    ----------
    path : Path
        Path of the file.
    force : bool
        Replace an existing file.

    Yields
    ------
    Path
        Path that the block writes. Without a file there, none appears.

    Raises
    ------
    FileExistsError
        The file exists, perhaps since the start of the block, and `force` is false.
    OSError
        The storage failed.
    """
    if path.exists() and not force:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    if path.exists() and not path.is_file():
        # A device or a pipe, such as /dev/stdout, is never replaced.
        yield path
        return
    if path.is_symlink():
        path = path.resolve()
    with TemporaryFolder("new", path.parent, hidden=True) as folder:
        # The same name: the writer may choose the format by the extension.
        made = folder.path / path.name
        yield made
        if made.exists():
            _sync(made)
            _place(made, path, force=force)
            _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _place(made: Path, path: Path, *, force: bool) -> None:
    """Give a finished file its name, without losing a file that appeared there meanwhile."""
    if not force:
        try:
            os.link(made, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without links: a rename has a race.
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        else:
            return
    made.replace(path)


def write_whole(path: Path, data: str | bytes, *, force: bool = True) -> None:
    """Write a file, which appears with all of its bytes or not at all.

    Raises
    ------
    FileExistsError
        As :func:`new_file`.
    StorageError
        It cannot be written.
    """
    try:
        with new_file(path, force=force) as made:
            made.write_bytes(data.encode() if isinstance(data, str) else data)
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from None
