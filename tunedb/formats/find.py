"""Finding logs: files, directories, patterns and standard input."""

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

#: Names standard input, as in other tools.
STDIN = "-"

#: What makes a path a pattern.
_MAGIC = frozenset("*?[")

#: What tells two files apart, however many names they have: device and inode.
_Identity = tuple[int, int]


def find_logs(
    paths: Iterable[str | os.PathLike[str]], on_skipped: Callable[[str, str], None] | None = None
) -> list[LogFile]:
    """Return the files that paths name, each once, in the order of the paths and then by name.

    A file that is named itself is returned whatever it is; the importer says what is wrong with
    it. A directory is searched to its bottom: links are followed, but each directory is visited
    once, so that loops do no harm. Hidden and empty files are passed over, and what is no regular
    file is left alone (reading a pipe would wait for ever). Files that a format reads together
    with another one that was found are left out (a workload file, with its record file).

    Parameters
    ----------
    paths : iterable of str or path
        A file, a directory, a pattern that the shell left alone (``**`` too), or ``-`` for
        standard input. A path that exists is no pattern, whatever characters it has.
    on_skipped : callable or None
        Called with the name of what a search could not look at, and with the reason.

    Returns
    -------
    list of LogFile

    Raises
    ------
    NotFoundError
        A path does not exist, a pattern matches nothing, or there is no file in any directory.
    """
    search = _Search(on_skipped)
    given = [os.fspath(path) for path in paths]
    for name in given:
        if name == STDIN:
            search.found.setdefault(None, LogFile(None, STDIN_NAME))
        elif os.path.lexists(name):
            search.add_named(name)
        else:
            search.add_pattern(name)
    if given and not search.found:
        raise NotFoundError(f"{', '.join(given)}: found no file to import")
    companions = _companions(search.found.values())
    return [file for key, file in search.found.items() if key not in companions]


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _companions(files: Iterable[LogFile]) -> set[_Identity | None]:
    """Return which files are read together with one of `files`."""
    known = [known for known in formats().values() if isinstance(known, HasCompanions)]
    paths = [file.path for file in files if file.path is not None]
    found: set[_Identity | None] = set()
    for companion in (c for path in paths for one in known for c in one.companions(path)):
        with suppress(OSError):  # it vanished meanwhile
            found.add(_identity(companion.stat()))
    return found


class _Search:
    """What was found so far, and which directories were visited."""

    def __init__(self, on_skipped: Callable[[str, str], None] | None) -> None:
        #: By identity; None is standard input.
        self.found: dict[_Identity | None, LogFile] = {}
        self._visited: set[_Identity] = set()
        self._on_skipped = on_skipped

    def add_named(self, name: str) -> None:
        """Add a file whatever it is, or all that is below a directory."""
        path = Path(name)
        try:
            status = path.stat()
        except OSError as error:
            raise NotFoundError(f"{name}: cannot be followed ({error.strerror})") from None
        if stat.S_ISDIR(status.st_mode):
            self._add_below(path)
        else:
            self.found.setdefault(_identity(status), LogFile(path, name))

    def add_pattern(self, pattern: str) -> None:
        """Add what a pattern matches; directories are searched."""
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
            self.found.setdefault(_identity(status), LogFile(path, str(path)))
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
        """Return what a directory holds, sorted, without hidden files."""
        try:
            return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        except OSError as error:
            self._skip(folder, f"cannot be read ({error.strerror})")
            return []

    def _walk(
        self, top: Path, visited: set[_Identity]
    ) -> Iterator[tuple[Path, list[tuple[Path, os.stat_result]]]]:
        """Yield directories, `top` first, that were not visited, each with its visible files."""
        pending = [top]
        while pending:
            folder = pending.pop()
            own = self._stat(folder)
            if own is None or not stat.S_ISDIR(own.st_mode) or _identity(own) in visited:
                continue
            visited.add(_identity(own))
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
        """Return what a pattern matches, one part of the path after another.

        :mod:`glob` follows links in loops for ``**``, and several loops multiply.
        """
        path = Path(pattern)
        found = [Path(path.anchor)]
        for part in path.parts[1 if path.anchor else 0 :]:
            if part == "**":
                visited: set[_Identity] = set()
                found = [folder for base in found for folder, _ in self._walk(base, visited)]
            elif _MAGIC.intersection(part):
                fits = re.compile(translate(part)).match
                found = [
                    inside
                    for base in found
                    if self._is_folder(base)
                    for inside in self._visible(base)
                    if fits(inside.name) or inside.name == part
                ]
            else:
                found = [base / part for base in found if os.path.lexists(base / part)]
        if pattern.endswith("/"):
            found = [path for path in found if self._is_folder(path)]
        return found
