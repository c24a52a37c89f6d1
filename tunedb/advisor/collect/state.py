"""Finished steps of a run, so that the next one continues where it was stopped.

The file has one JSON value a line, appended when a step is finished and forced to the disk. A line
that a kill cut off is skipped when the file is read, and its step is done again.
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


class CollectState:
    """Finished steps in a work folder: key → result."""

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
        """Return the result of a step, or None for an unfinished one."""
        return self._done.get(key)

    def finish(self, key: str, value: dict[str, Any]) -> None:
        """Write the result of a step."""
        row = {"key": key, **value}
        try:
            with self._path.open("ab+") as file:
                # A line that was cut off must not swallow this one.
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
        """Forget failed steps, so that they are tried again."""
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
