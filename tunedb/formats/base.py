"""What a format of tuning logs is, and which formats there are.

A format is one module with one class, registered under the entry point ``tunedb.logs``. There are
two kinds:

* a :class:`LineFormat` has one JSON value per line. Which format a line has is decided for each
  line by the shape of its value, so one file may mix them;
* a :class:`FileFormat` is recognised by the first bytes of a file and reads it as a whole.

A format that can be written back has a ``write_line`` besides (:class:`LineWriter`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, runtime_checkable

from .. import extensions, limits
from ..errors import PluginError
from ..launches import Launch
from ..records import Measurement, Quarantined, Target, Workload
from ..results import Record

# ---- Lines of text logs, one at a time and bounded -----------------------------------------------

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


# ---- Formats -------------------------------------------------------------------------------------

#: Entry points under which formats register.
GROUP = "tunedb.logs"

#: What a reader yields: a record, a workload without one, or bytes that were not understood.
Item = Measurement | Workload | Quarantined


@dataclass(frozen=True, slots=True)
class Remark:
    """What the user is to hear of a file that was read, in one line; it is stored nowhere."""

    text: str


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file to be imported.

    Parameters
    ----------
    path : Path or None
        Where it is; None for standard input.
    name : str
        For messages and quarantine: the path as given, or ``<stdin>``.
    kernel, device : str or None
        What the user says of a file that does not say it: its kernel and its device.
    trace : Path or None
        The GPU trace that belongs to counters of nvprof, where it is not found by name.
    """

    path: Path | None
    name: str
    kernel: str | None = None
    device: str | None = None
    trace: Path | None = None


class LineReader(Protocol):
    """Parses the lines of one file that have one format; it may remember what lines share."""

    def begin(self) -> Iterator[Item]:
        """Yield what is read before the first line: workloads of a companion file, for instance.

        Called once, when the first line of the format is met.
        """
        ...

    def parse(self, value: Any, line: Line) -> Item | None:
        """Return what a line holds, or None for one that says nothing (a comment).

        Parameters
        ----------
        value : object
            The line's JSON value, for which :meth:`LineFormat.matches` was true.
        line : Line
            The line itself, never too long.

        Raises
        ------
        FormatError
            The line cannot be understood; it is quarantined with this reason.
        """
        ...


@runtime_checkable
class TextReader(Protocol):
    """A :class:`LineReader` that understands most lines without their JSON being parsed."""

    def parse_text(self, data: bytes) -> Item | None:
        """Return what ``parse`` would return for the line's JSON; None to have it parsed."""
        ...


@runtime_checkable
class NumberedReader(Protocol):
    """A :class:`LineReader` to whom the place of a line among others means something."""

    def lose_line(self, data: bytes) -> None:
        """Hear of a line that no format understood, before the next one comes."""
        ...


@runtime_checkable
class LineFormat(Protocol):
    """A format with one JSON value per line.

    Attributes
    ----------
    name : str
        The format's name, as ``--format`` takes it.
    """

    name: str

    def matches(self, value: Any) -> bool:
        """Tell whether a line's value has this format's shape. Cheap; formats do not overlap."""
        ...

    def companions(self, path: Path) -> list[Path]:
        """Return existing files that :meth:`reader` of `path` reads besides, judged by name."""
        ...

    def reader(self, file: LogFile) -> LineReader:
        """Return a reader of one file's lines."""
        ...


@runtime_checkable
class LineWriter(Protocol):
    """A line format that can be written back."""

    def writes(self, workload: Workload) -> bool:
        """Tell whether records of this workload can be lines of the format."""
        ...

    def write_line(self, record: Record) -> bytes:
        """Return the record as a line, with its line break.

        Raises
        ------
        FormatError
            What is stored is damaged.
        """
        ...


@runtime_checkable
class DocumentWriter(Protocol):
    """A file format whose records are written as one document: of one workload and target."""

    def writes(self, workload: Workload) -> bool:
        """Tell whether records of this workload can be in a document of the format."""
        ...

    def begin(self, workload: Workload, target: Target) -> bytes:
        """Return what stands before the first record."""
        ...

    def result(self, measurement: Measurement, launches: list[Launch]) -> bytes:
        """Return a record; a comma and a line break follow before the next one.

        Raises
        ------
        FormatError
            What is stored is damaged, or cannot be said in the format.
        """
        ...

    def end(self) -> bytes:
        """Return what stands after the last record."""
        ...


@runtime_checkable
class FileFormat(Protocol):
    """A format that is read as a whole file.

    Attributes
    ----------
    name : str
        The format's name.
    """

    name: str

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Tell whether a file has this format, by its first 4,096 bytes (decompressed)."""
        ...

    def read_file(self, file: LogFile) -> Iterator[Item | Remark]:
        """Yield what the file holds, in its order. Never raises for a bad row."""
        ...


LogFormat = LineFormat | FileFormat


@runtime_checkable
class HasCompanions(Protocol):
    """A format of files that are read together with others: each :class:`LineFormat` is one."""

    def companions(self, path: Path) -> list[Path]:
        """Return existing files that reading `path` reads besides, judged by name."""
        ...


@cache
def load_formats() -> tuple[dict[str, LogFormat], dict[str, str]]:
    """Return all formats by name, and why others do not load.

    A format that fails to load is reported and left out. ``TUNEDB_PLUGINS=""`` leaves out those
    of other packages.
    """
    found, broken = extensions.load(GROUP, "log format", _checked)
    if not found:
        raise PluginError("no log format is registered; reinstall tunedb: pip install tunedb")
    return found, broken


def _checked(_: str, candidate: Any) -> LogFormat:
    """Return a format, or raise TypeError with what is wrong about it."""
    made = candidate()
    if not isinstance(made, LineFormat | FileFormat):
        raise TypeError("it is neither a LineFormat nor a FileFormat (tunedb.formats.base)")
    return made


def formats() -> dict[str, LogFormat]:
    """Return all formats that load, by name."""
    return load_formats()[0]
