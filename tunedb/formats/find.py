"""Search for logs: files, directories, patterns and standard input."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fnmatch import translate
from pathlib import Path

from ..errors import NotFoundError
from .base import HasCompanions, LogFile, formats
from .streams import STDIN_NAME

#: Path that stands for standard input, as in other tools.
STDIN = "-"

#: Characters that make a path a pattern.
_MAGIC = frozenset("*?[")

#: Device and inode: equal for all names of one file.
_Identity = tuple[int, int]


def find_logs(
    paths: Iterable[str | os.PathLike[str]], on_skipped: Callable[[str, str], None] | None = None
) -> list[LogFile]:
    """Return the log files that paths name, each once, in the order of the paths and then by name.

    A file given by its path is returned even if it is not a log: the importer reports why.
    Directories are searched recursively. The search follows links and visits each directory once,
    so loops are harmless. It skips hidden and empty files, and files that are not regular (reading
    a pipe would block). Companion files are left out, such as the workload file beside a record
    file.

    Parameters
    ----------
    paths : iterable of str or path
        Files, directories, patterns that the shell did not expand (``**`` too), or ``-`` for
        standard input. An existing path is never taken as a pattern.
    on_skipped : callable or None
        Called with the name of each path that the search could not read, and with the reason.

    Returns
    -------
    list of LogFile

    Raises
    ------
    NotFoundError
        A path does not exist, a pattern matches nothing, or there is no file in any directory.
    """
    search = _Search(on_skipped)
    names = [os.fspath(path) for path in paths]
    for name in names:
        if name == STDIN:
            search.files.setdefault(None, LogFile(None, STDIN_NAME))
        elif os.path.lexists(name):
            search.add_named(name)
        else:
            search.add_pattern(name)
    if names and not search.files:
        raise NotFoundError(f"{', '.join(names)}: found no file to import")
    companions = _companions(search.files.values())
    return [file for key, file in search.files.items() if key not in companions]


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _companions(files: Iterable[LogFile]) -> set[_Identity | None]:
    """Return the identities of files that a format reads together with one of `files`."""
    readers = [item for item in formats().values() if isinstance(item, HasCompanions)]
    paths = [file.path for file in files if file.path is not None]
    identities: set[_Identity | None] = set()
    for companion in (c for path in paths for reader in readers for c in reader.companions(path)):
        with suppress(OSError):  # deleted meanwhile
            identities.add(_identity(companion.stat()))
    return identities


class _Search:
    """Files and visited directories of one search."""

    def __init__(self, on_skipped: Callable[[str, str], None] | None) -> None:
        #: By identity; None is standard input.
        self.files: dict[_Identity | None, LogFile] = {}
        self._visited: set[_Identity] = set()
        self._on_skipped = on_skipped

    def add_named(self, name: str) -> None:
        """Add a file of any type, or all files below a directory."""
        path = Path(name)
        try:
            status = path.stat()
        except OSError as error:
            raise NotFoundError(f"{name}: cannot be followed ({error.strerror})") from None
        if stat.S_ISDIR(status.st_mode):
            self._add_below(path)
        else:
            self.files.setdefault(_identity(status), LogFile(path, name))

    def add_pattern(self, pattern: str) -> None:
        """Add the files that match a pattern, and all files below matching directories."""
        matches = self._matches(pattern) if _MAGIC.intersection(pattern) else []
        if not matches:
            raise NotFoundError(f"{pattern}: no such file or directory")
        for path in matches:
            status = self._stat(path)
            if status is None:
                continue
            if stat.S_ISDIR(status.st_mode):
                self._add_below(path)
            else:
                self._add_regular(path, status)

    def _add_below(self, top: Path) -> None:
        for _, files in self._walk(top, self._visited):
            for path, status in files:
                if status.st_size or not stat.S_ISREG(status.st_mode):
                    self._add_regular(path, status)

    def _add_regular(self, path: Path, status: os.stat_result) -> None:
        if stat.S_ISREG(status.st_mode):
            self.files.setdefault(_identity(status), LogFile(path, str(path)))
        else:
            self._skip(path, "no regular file")

    def _skip(self, path: Path, reason: str) -> None:
        if self._on_skipped is not None:
            self._on_skipped(str(path), reason)

    def _stat(self, path: Path) -> os.stat_result | None:
        try:
            return path.stat()
        except OSError as error:
            self._skip(path, f"cannot be followed ({error.strerror})")
            return None

    def _is_folder(self, path: Path) -> bool:
        status = self._stat(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def _visible(self, folder: Path) -> list[Path]:
        """Return the entries of a directory, sorted, without hidden ones."""
        try:
            return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        except OSError as error:
            self._skip(folder, f"cannot be read ({error.strerror})")
            return []

    def _walk(
        self, top: Path, visited: set[_Identity]
    ) -> Iterator[tuple[Path, list[tuple[Path, os.stat_result]]]]:
        """Yield unvisited directories, `top` first, each with its visible files."""
        pending = [top]
        while pending:
            folder = pending.pop()
            entry = self._stat(folder)
            if entry is None or not stat.S_ISDIR(entry.st_mode) or _identity(entry) in visited:
                continue
            visited.add(_identity(entry))
            folders, files = [], []
            for path in self._visible(folder):
                status = self._stat(path)
                if status is not None and stat.S_ISDIR(status.st_mode):
                    folders.append(path)
                elif status is not None:
                    files.append((path, status))
            yield folder, files
            pending.extend(reversed(folders))

    def _matches(self, pattern: str) -> list[Path]:
        """Return the paths that match a pattern, component by component.

        For ``**``, :mod:`glob` follows links in loops, and several loops multiply.
        """
        path = Path(pattern)
        matches = [Path(path.anchor)]
        for part in path.parts[1 if path.anchor else 0 :]:
            if part == "**":
                visited: set[_Identity] = set()
                matches = [folder for base in matches for folder, _ in self._walk(base, visited)]
            elif _MAGIC.intersection(part):
                fits = re.compile(translate(part)).match
                matches = [
                    entry
                    for base in matches
                    if self._is_folder(base)
                    for entry in self._visible(base)
                    if fits(entry.name) or entry.name == part
                ]
            else:
                matches = [base / part for base in matches if os.path.lexists(base / part)]
        if pattern.endswith("/"):
            matches = [path for path in matches if self._is_folder(path)]
        return matches
