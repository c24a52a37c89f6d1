"""Bodies that rows of an exchange refer to, in bounded memory."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from typing import IO

#: Bytes of bodies that are held; others lie in a temporary file. Sketches and tails of a million
#: real records have less.
_HELD = 48 * 2**20


class Bodies:
    """Bytes by a key, any number of them; those that were used longest ago lie in a file.

    Parameters
    ----------
    held : int
        Bytes that stay in memory.
    """

    def __init__(self, held: int = _HELD) -> None:
        self._most = held
        self._held: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._size = 0
        self._file: IO[bytes] | None = None
        self._places: dict[tuple[str, int], tuple[int, int]] = {}

    def put(self, table: str, number: int, body: bytes) -> None:
        """Keep a body under a key; it takes the place of what was there."""
        key = table, number
        self._size -= len(self._held.pop(key, b""))
        self._places.pop(key, None)
        self._held[key] = body
        self._size += len(body)
        self._shrink()

    def get(self, table: str, number: int) -> bytes:
        """Return the body of a key that was put."""
        key = table, number
        body = self._held.get(key)
        if body is None:
            body = self._read(key)
            self._held[key] = body
            self._size += len(body)
            self._shrink()
        else:
            self._held.move_to_end(key)
        return body

    def _shrink(self) -> None:
        # What was asked for last stays, however large it is.
        while self._size > self._most and len(self._held) > 1:
            key, body = self._held.popitem(last=False)
            self._size -= len(body)
            if key not in self._places:
                self._write(key, body)

    def _write(self, key: tuple[str, int], body: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="tunedb-")  # noqa: SIM115 - see close
        self._places[key] = self._file.seek(0, 2), len(body)
        self._file.write(body)

    def _read(self, key: tuple[str, int]) -> bytes:
        position, size = self._places[key]
        if self._file is None:
            raise KeyError(key)
        self._file.seek(position)
        return self._file.read(size)

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._held.clear()
        self._places.clear()
