"""Lines of text logs, one at a time and bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from .. import limits

#: Bytes of a line that is too long which are passed over at a time.
_PIECE = 2**20


class Line(NamedTuple):
    """A line of a log.

    Parameters
    ----------
    number : int
        From 1.
    data : bytes
        Without its end; only the first bytes where `too_long`.
    position : int
        How many bytes of the file (compressed, where it is) were read when the line was.
    is_whole : bool
        Whether it ends in a line break; a killed writer leaves a last line without.
    too_long : bool
        Whether it is over the limit.
    """

    number: int
    data: bytes
    position: int
    is_whole: bool = True
    too_long: bool = False


def read_lines(stream: BinaryIO, position: Callable[[], int]) -> Iterator[Line]:
    """Yield the lines of a stream; memory is bounded by one line of the longest allowed length.

    Parameters
    ----------
    stream : binary file
        What to read, decompressed.
    position : callable
        Returns how many bytes of the file behind it were read so far.
    """
    most = limits.MAX_LINE_BYTES
    number = 0
    while data := stream.readline(most + 1):
        number += 1
        too_long = len(data) > most
        kept = data[: limits.MAX_QUARANTINE_BYTES] if too_long else data.rstrip(b"\r\n")
        while too_long and data and not data.endswith(b"\n"):
            data = stream.readline(_PIECE)
        yield Line(number, kept, position(), data.endswith(b"\n"), too_long)
