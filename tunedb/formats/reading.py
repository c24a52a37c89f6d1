"""Reader of log files: detects the format of a file, or of each of its lines, and parses it."""

from __future__ import annotations

import base64
import binascii
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, NoReturn

from .. import limits
from ..errors import FormatError
from ..json_checks import parse_json
from ..records import Measurement, Quarantined, Workload
from ..run_times import checked_mean
from .base import (
    FileFormat,
    Item,
    Line,
    LineFormat,
    LineReader,
    LogFile,
    NumberedReader,
    Remark,
    TextReader,
    formats,
    read_lines,
)
from .streams import HEAD_BYTES, open_log

# ---- Pickles, which are never loaded: unpickling runs code that their writer chooses -------------

# First bytes of pickled lists, dictionaries and objects. Protocols 2 to 5 begin with a byte that
# begins no UTF-8 text, and their number; 0 is text with a memo number (p0), 1 has a binary one (q).
_BEGIN = re.compile(
    rb"""
    \x80 [\x02-\x05]                # protocol 2 and later
  | \( [ld] p\d+ \n                 # 0: a list or dictionary
  | [\]}] q .                       # 1: likewise
  | \(? [ci] [A-Za-z_][\w.]* \n [A-Za-z_][\w.]* \n (p\d | q | \()   # module, class
    """,
    re.VERBOSE | re.DOTALL,
)

#: The last byte of every pickle, and the first one of a tuple of protocol 0.
_STOP, _MARK = b".", b"("

#: TABs in a line of AutoTVM's pickle protocol (TVM: python/tvm/autotvm/record.py, encode): target,
#: task, configuration and result; later two versions besides.
_TABS = (3, 5)

_PICKLED = slice(1, 4)

_HINTS = (
    (
        b"tvm.auto_scheduler.dataset",
        "it holds TenSet's features; import the folder measure_records they were made from",
    ),
    (
        b"SearchTask",
        "it holds tasks and no measurements; import the logs of these tasks",
    ),
)

_ELSE = "load it in the program that wrote it and write the records there as JSON lines"


def refusal(head: bytes) -> str | None:
    """Return the message that rejects a pickle; None for any other file.

    Parameters
    ----------
    head : bytes
        Its first bytes, 4,096 if it has them.

    Returns
    -------
    str or None
    """
    if not _BEGIN.match(head):
        return None
    hint = next((hint for word, hint in _HINTS if word in head), _ELSE)
    return f"a pickle, which is refused because unpickling runs code; {hint}"


def line_refusal(data: bytes) -> str | None:
    """Return the message that rejects a line in AutoTVM's pickle protocol; None for any other line.

    Parameters
    ----------
    data : bytes
        The line, with or without its end.

    Returns
    -------
    str or None
    """
    if data.count(b"\t") not in _TABS:
        return None
    if not all(_is_pickle(field) for field in data.split(b"\t")[_PICKLED]):
        return None
    return (
        "AutoTVM's pickle protocol, which is refused because unpickling runs code; in the TVM that "
        "wrote it, inp, res = autotvm.record.decode(line, 'pickle') and "
        "autotvm.record.encode(inp, res, 'json') give a line to import"
    )


def _is_pickle(field: bytes) -> bool:
    """Return True for a base64-encoded pickle."""
    try:
        pickled = base64.b64decode(field.strip(), validate=True)
    except binascii.Error:
        return False
    return pickled.endswith(_STOP) and bool(_BEGIN.match(pickled) or pickled.startswith(_MARK))


# ---- Files ---------------------------------------------------------------------------------------

_COMMENT = ord("#")


class ReadItem(NamedTuple):
    """An item of a log file, with its format and position.

    Parameters
    ----------
    format : str
        Name of the format; empty for a line that matches none.
    item : Measurement, Workload, Quarantined, Remark or None
        The item; None for a comment or a blank line.
    size : int
        Approximate size of its text, in bytes.
    line : int
        Its line number; 0 for an item that is not a line of this file.
    """

    format: str
    item: Item | Remark | None
    size: int = 0
    line: int = 0


def read_log(
    file: LogFile,
    on_position: Callable[[int], None] | None = None,
    *,
    accept: Callable[[Measurement], None] | None = None,
) -> Iterator[ReadItem]:
    """Yield the items of a file in order.

    Parameters
    ----------
    file : LogFile
        A file of any format, compressed or not, or standard input.
    on_position : callable or None
        Called from time to time with the number of bytes read so far.
    accept : callable or None
        Called with each measurement; the measurement is quarantined if it raises FormatError.

    Raises
    ------
    FormatError
        The file is not a log of a known format, is a pickle or an archive, or is damaged from some
        point on. Items before that point have been yielded and are valid.
    StorageError
        The file cannot be read.
    """
    with open_log(file.path) as (stream, position):
        head = _head(stream)
        reason = refusal(head)
        if reason is not None:
            raise FormatError(reason)
        file_format = _file_format(file, head)
        if file_format is not None:
            for item in file_format.read_file(file):
                if isinstance(item, Remark):
                    yield ReadItem(file_format.name, item)
                    continue
                yield ReadItem(file_format.name, _accepted(file, item, accept), _size(item))
            return
        yield from LogReader(file, on_position, accept=accept).read(stream, position)


def _head(stream: BinaryIO) -> bytes:
    peek: Any = getattr(stream, "peek", None)
    return b"" if peek is None else bytes(peek(HEAD_BYTES)[:HEAD_BYTES])


def _file_format(file: LogFile, head: bytes) -> FileFormat | None:
    """Return the format that reads the whole file, or None."""
    if file.path is None:
        return None
    for candidate in formats().values():
        if isinstance(candidate, FileFormat) and candidate.matches_file(head, file.path):
            return candidate
    return None


class LogReader:
    """Reader of one file's lines, each parsed by the reader of its format.

    Parameters
    ----------
    file : LogFile
        The file; formats look for its companions.
    on_position : callable or None
        See :func:`read_log`.
    is_log : bool
        Quarantine unrecognised lines at once. Otherwise they are held until a format recognises a
        line, and a file without such a line is rejected.
    accept : callable or None
        See :func:`read_log`.
    """

    def __init__(
        self,
        file: LogFile,
        on_position: Callable[[int], None] | None = None,
        *,
        is_log: bool = False,
        accept: Callable[[Measurement], None] | None = None,
    ) -> None:
        self._file = file
        self._accept = accept
        self._on_position = on_position
        self._formats = [f for f in formats().values() if isinstance(f, LineFormat)]
        self._readers: dict[str, LineReader] = {}
        self._held: list[Quarantined] | None = None if is_log else []
        self._held_bytes = 0
        # Format of the previous line, and its reader if that has a fast path (TextReader).
        self._last: tuple[str, TextReader | None] = ("", None)
        self._text_readers: dict[str, TextReader] = {}
        self._numbered: list[NumberedReader] = []

    def read(self, stream: BinaryIO, position: Callable[[], int]) -> Iterator[ReadItem]:
        """Yield the items of all lines."""
        for line in read_lines(stream, position):
            if self._on_position is not None and not line.number % limits.PROGRESS_LINES:
                self._on_position(line.position)
            if line.number == 1 and line.data.startswith(BOM_UTF8):
                line = line._replace(data=line.data.removeprefix(BOM_UTF8))  # noqa: PLW2901
            data = line.data
            if not data or data[0] == _COMMENT or data.isspace():
                yield ReadItem("", None)
            else:
                yield from self.read_line(line)
        if self._held is not None:
            self._refuse()

    def read_line(self, line: Line) -> Iterator[ReadItem]:
        """Yield the item of one line; items of the format's ``begin`` precede it."""
        name, text_reader = self._last
        if text_reader is not None and not line.too_long:
            try:
                item = self._storable(text_reader.parse_text(line.data))
            except FormatError:
                item = None  # reported below
            if item is not None:
                yield ReadItem(name, item, len(line.data), line.number)
                return
        try:
            value = _parse(line)
            line_format = self._format_of(value)
        except FormatError as error:
            for numbered in self._numbered:
                numbered.skip_unrecognised(line.data)
            yield from self._hold(self._quarantined(line, error))
            return
        name = line_format.name
        try:
            reader = self._readers.get(name)
            if reader is None:
                reader = self._readers[name] = line_format.reader(self._file)
                if isinstance(reader, TextReader):
                    self._text_readers[name] = reader
                if isinstance(reader, NumberedReader):
                    self._numbered.append(reader)
                    for bad in self._held or ():
                        reader.skip_unrecognised(bad.data)
                yield from self._release()
                for item in reader.begin():
                    yield ReadItem(name, item, _size(item))
            self._last = name, self._text_readers.get(name)
            item = self._storable(reader.parse(value, line))
        except FormatError as error:
            item = self._quarantined(line, error)
        yield ReadItem(name, item, len(line.data), line.number)

    def _format_of(self, value: Any) -> LineFormat:
        """Return the format of a line's value, or raise FormatError."""
        for number, candidate in enumerate(self._formats):
            if candidate.matches(value):
                if number:
                    # The next line is most likely of the same format.
                    self._formats.insert(0, self._formats.pop(number))
                return candidate
        raise FormatError("its JSON is not a record of a known format")

    def _storable(self, item: Item | None) -> Item | None:
        """Return an item, or raise FormatError if the store would reject its batch."""
        if isinstance(item, Measurement):
            if item.run_secs:
                checked_mean(item)
            if self._accept is not None:
                self._accept(item)
        return item

    def _quarantined(self, line: Line, error: FormatError) -> Quarantined:
        reason = str(error)
        if not line.is_whole and not line.too_long:
            reason += " (the line is truncated: its writer was killed)"
        data = line.data[: limits.MAX_QUARANTINE_BYTES]
        return Quarantined(self._file.name, line.number, reason, data)

    def _hold(self, bad: Quarantined) -> Iterator[ReadItem]:
        """Yield an unrecognised line, or hold it until the file is known to be a log."""
        if self._held is None:
            yield ReadItem("", bad, len(bad.data))
            return
        self._held.append(bad)
        self._held_bytes += len(bad.data)
        if len(self._held) >= limits.MAX_LEADING_LINES or self._held_bytes > limits.MAX_LINE_BYTES:
            self._refuse()

    def _refuse(self) -> NoReturn:
        """Raise FormatError for a file without a recognised line."""
        reason = "empty"
        if self._held:
            first = self._held[0]
            reason = f"line {first.line}: {first.reason}"
            if first.data.rstrip().endswith((b"{", b"[", b",")) and "unexpected end" in reason:
                reason = f"line {first.line}: its JSON, of several lines, has no known format"
        raise FormatError(f"no tuning log that tunedb knows ({reason})")

    def _release(self) -> Iterator[ReadItem]:
        """Yield the held lines."""
        held, self._held = self._held, None
        for item in held or ():
            yield ReadItem("", item, len(item.data))


def _size(item: Item) -> int:
    """Return the approximate bytes of an item that no other item shares."""
    if isinstance(item, Quarantined):
        return len(item.data)
    if isinstance(item, Workload):
        return len(item.body)
    return len(item.program.trace.sketch) + len(item.program.trace.decisions)


def _accepted(file: LogFile, item: Item, accept: Callable[[Measurement], None] | None) -> Item:
    """Return an item of a file format, quarantined if `accept` rejects it."""
    if accept is None or not isinstance(item, Measurement):
        return item
    try:
        accept(item)
    except FormatError as error:
        data = item.program.trace.sketch + item.program.trace.decisions
        return Quarantined(file.name, 0, str(error), data[: limits.MAX_QUARANTINE_BYTES])
    return item


def _parse(line: Line) -> Any:
    """Return a line's JSON value, or raise FormatError."""
    if line.too_long:
        raise FormatError(f"longer than {limits.MAX_LINE_BYTES} bytes")
    try:
        return parse_json(line.data)
    except FormatError as error:
        raise FormatError(line_refusal(line.data) or str(error)) from None
