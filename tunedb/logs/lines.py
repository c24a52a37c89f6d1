"""Lines of text logs, one at a time and bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import limits
from ..errors import StorageError


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file.

    Parameters
    ----------
    number : int
        From 1.
    data : bytes
        Without its end; only the first bytes where `too_long`.
    position : int
        Offset of the line's end in the file.
    is_whole : bool
        Whether it ends in a line break; a killed writer leaves a last line without.
    too_long : bool
        Whether it is over the limit.
    """

    number: int
    data: bytes
    position: int
    is_whole: bool
    too_long: bool


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file; memory is bounded by one line of the longest allowed length.

    Raises
    ------
    StorageError
        The file cannot be read.
    """
    most = limits.MAX_LINE_BYTES
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(most + 1):
                number += 1
                too_long = len(data) > most
                kept = data[: limits.MAX_QUARANTINE_BYTES] if too_long else data.rstrip(b"\r\n")
                while too_long and data and not data.endswith(b"\n"):
                    data = file.readline(most)
                yield Line(number, kept, file.tell(), data.endswith(b"\n"), too_long)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from None
