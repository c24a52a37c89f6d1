"""What a run has finished, so that it goes on where it was stopped.

One JSON value a line, appended when something is finished and forced to the disk. A line that was
cut off by a kill is left out when the file is read, and what it stood for is done again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from ...errors import BusyError, FormatError, StorageError
from ...json_checks import parse_json

_FILE = "state.jsonl"
_LOCK = "lock"


class State:
    """The finished steps in a work folder: key → what came of it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._done: dict[str, dict[str, Any]] = {}
        self._read()

    def _read(self) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror}") from error
        whole, _, _ = data.rpartition(b"\n")
        for line in whole.splitlines():
            try:
                value = parse_json(line)
            except FormatError:
                continue
            if isinstance(value, dict) and isinstance(value.get("key"), str):
                self._done[value["key"]] = value

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what came of a step, or None where it is not finished."""
        return self._done.get(key)

    def finish(self, key: str, value: dict[str, Any]) -> None:
        """Write that a step is finished."""
        row = {"key": key, **value}
        try:
            with self._path.open("ab+") as file:
                # What was cut off must not swallow this line.
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        file.write(b"\n")
                file.write(orjson.dumps(row) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror}") from error
        self._done[key] = row

    def forget_failures(self) -> None:
        """Let what failed be tried again."""
        self._done = {key: row for key, row in self._done.items() if not row.get("failure")}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a work folder for one run.

    Raises
    ------
    BusyError
        Another run holds it.
    StorageError
        The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _LOCK).open("a")
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BusyError(f"{folder}: another run uses it; wait, or give --work-dir") from None
        yield
