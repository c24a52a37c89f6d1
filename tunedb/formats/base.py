"""Protocols of log formats, and the registry of the formats.

A format is one module with one class, registered under the entry point ``tunedb.logs``. There are
two kinds:

* a :class:`LineFormat` has one JSON value per line. The shape of each value selects the format of
  its line, so one file may mix formats;
* a :class:`FileFormat` is recognised by the first bytes of a file and reads the whole file.

A format that can be exported also implements :class:`LineWriter` or :class:`DocumentWriter`.
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

#: Bytes per read while the rest of an oversized line is skipped.
_PIECE = 2**20


class Line(NamedTuple):
    """A line of a log.

    Parameters
    ----------
    number : int
        Line number, from 1.
    data : bytes
        Content without the line break; only its first bytes if `too_long`.
    position : int
        Bytes of the file read up to this line; compressed bytes for a compressed file.
    is_whole : bool
        The line ends in a line break; a killed writer leaves a last line without one.
    too_long : bool
        The line exceeds :data:`tunedb.limits.MAX_LINE_BYTES`.
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
        Decompressed stream.
    position : callable
        Returns the number of bytes read so far from the underlying file.
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

#: Items that readers yield: a record, a workload without a record, or unparseable bytes.
Item = Measurement | Workload | Quarantined


@dataclass(frozen=True, slots=True)
class Remark:
    """A one-line message to the user about a file; it is printed, never stored."""

    text: str


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file to import.

    Parameters
    ----------
    path : Path or None
        Path of the file; None for standard input.
    name : str
        Name in messages and in quarantine: the path as given, or ``<stdin>``.
    kernel, device : str or None
        Kernel and device from the user, for files that do not name them.
    trace : Path or None
        GPU trace for nvprof's counters; None to look for it by name.
    """

    path: Path | None
    name: str
    kernel: str | None = None
    device: str | None = None
    trace: Path | None = None


class LineReader(Protocol):
    """Parser of one file's lines in one format; it may cache what lines share."""

    def begin(self) -> Iterator[Item]:
        """Yield items that precede the first line, such as workloads of a companion file.

        Called once, before the first line of the format is parsed.
        """
        ...

    def parse(self, value: Any, line: Line) -> Item | None:
        """Return the item of a line, or None for a comment.

        Parameters
        ----------
        value : object
            The line's JSON value, for which :meth:`LineFormat.matches` was true.
        line : Line
            The line itself, never too long.

        Raises
        ------
        FormatError
            The line cannot be parsed; it is quarantined with this reason.
        """
        ...


@runtime_checkable
class TextReader(Protocol):
    """A :class:`LineReader` with a fast path that parses most lines without a JSON parser."""

    def parse_text(self, data: bytes) -> Item | None:
        """Return the result of ``parse`` for a line; None to fall back to ``parse``."""
        ...


@runtime_checkable
class NumberedReader(Protocol):
    """A :class:`LineReader` whose records refer to other lines by their line numbers."""

    def skip_unrecognised(self, data: bytes) -> None:
        """Account for a line that no format recognises; called in file order."""
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
        """Return True if a line's value has this format's shape. Cheap; formats do not overlap."""
        ...

    def companions(self, path: Path) -> list[Path]:
        """Return existing files that :meth:`reader` reads with `path`, matched by name."""
        ...

    def reader(self, file: LogFile) -> LineReader:
        """Return a reader of one file's lines."""
        ...


@runtime_checkable
class LineWriter(Protocol):
    """A line format that can be exported."""

    def writes(self, workload: Workload) -> bool:
        """Return True if the format can hold records of this workload."""
        ...

    def write_line(self, record: Record) -> bytes:
        """Return the record as a line, with its line break.

        Raises
        ------
        FormatError
            The stored record is damaged.
        """
        ...


@runtime_checkable
class DocumentWriter(Protocol):
    """A file format that can be exported: one document holds one workload and target."""

    def writes(self, workload: Workload) -> bool:
        """Return True if the format can hold records of this workload."""
        ...

    def begin(self, workload: Workload, target: Target) -> bytes:
        """Return the document's text before the first record."""
        ...

    def result(self, measurement: Measurement, launches: list[Launch]) -> bytes:
        """Return one record; the caller separates records by a comma and a line break.

        Raises
        ------
        FormatError
            The stored record is damaged, or the format cannot express it.
        """
        ...

    def end(self) -> bytes:
        """Return the document's text after the last record."""
        ...


@runtime_checkable
class FileFormat(Protocol):
    """A format whose reader takes a whole file.

    Attributes
    ----------
    name : str
        The format's name.
    """

    name: str

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True if a file's first 4,096 bytes (decompressed) have this format."""
        ...

    def read_file(self, file: LogFile) -> Iterator[Item | Remark]:
        """Yield the file's items in order; bad rows come as ``Quarantined``."""
        ...


LogFormat = LineFormat | FileFormat


@runtime_checkable
class HasCompanions(Protocol):
    """A format that reads companion files; every :class:`LineFormat` is one."""

    def companions(self, path: Path) -> list[Path]:
        """Return existing files that are read with `path`, matched by name."""
        ...


@cache
def load_formats() -> tuple[dict[str, LogFormat], dict[str, str]]:
    """Return loaded formats, and error messages for the others, by name.

    ``TUNEDB_PLUGINS=""`` skips formats of other packages.
    """
    loaded, broken = extensions.load(GROUP, "log format", _checked)
    if not loaded:
        raise PluginError("no log format is registered; reinstall tunedb: pip install tunedb")
    return loaded, broken


def _checked(_: str, format_class: Any) -> LogFormat:
    """Return an instance of a format, or raise TypeError if it follows no protocol."""
    log_format = format_class()
    if not isinstance(log_format, LineFormat | FileFormat):
        raise TypeError("it is neither a LineFormat nor a FileFormat (tunedb.formats.base)")
    return log_format


def formats() -> dict[str, LogFormat]:
    """Return all formats that load, by name."""
    return load_formats()[0]
