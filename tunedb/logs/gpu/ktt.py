"""Results of KTT 2.x as JSON: ``{"Metadata": {…}, "Results": [{…}, …], "UserData": {…}}``.

A full space with counters takes some 50 MB, so results are read one at a time: memory is bounded
by one of them, and where a file is cut off, what stands before is kept.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ... import limits
from ...errors import FormatError
from ...records import Quarantined
from ..base import Item, LogFile
from ..streams import open_log
from .ktt_results import ResultReader

#: Bytes that are read at a time: some tens of results.
_CHUNK_BYTES = 2**18

#: Text of this length has too few values to count them.
_FEW_CHARS = 2**20

#: What stands between values.
_SPACE = " \t\r\n"


class KTTFormat:
    """Results of KTT as JSON (:class:`tunedb.logs.base.FileFormat`)."""

    name = "ktt"

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Tell whether a file is KTT's. Its writer sorts names: the metadata come first."""
        text = head.removeprefix(codecs.BOM_UTF8).lstrip()
        return text.startswith(b"{") and b'"Metadata"' in text and b'"KttVersion"' in text

    def read_file(self, file: LogFile) -> Iterator[Item]:
        """Yield a measurement for each result; a result that is not understood is quarantined.

        Raises
        ------
        FormatError
            The file is damaged from some point on, or its metadata are not KTT's.
        """
        with open_log(file.path) as (stream, _):
            document = _Document(stream, file.name)
            reader: ResultReader | None = None
            for name in document.members():
                if name == "Metadata":
                    reader = ResultReader(document.value(), file)
                elif name != "Results":
                    document.value()
                elif reader is None:
                    raise FormatError(f"{file.name}: KTT's Metadata are due before its Results")
                else:
                    for number, result in enumerate(document.items(), 1):
                        yield _read(reader, result, file, number)


def _read(reader: ResultReader, result: Any, file: LogFile, number: int) -> Item:
    try:
        return reader.read(result)
    except FormatError as error:
        # ASCII: a text may hold halves of characters, which UTF-8 cannot.
        data = json.dumps(result).encode()[: limits.MAX_QUARANTINE_BYTES]
        return Quarantined(file.name, number, str(error), data)


class _Document:
    """A JSON object that is read value by value.

    Parameters
    ----------
    stream : binary file
        What to read, unpacked.
    name : str
        The file's, for messages.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._scan = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._passed = 0
        self._ended = False

    def members(self) -> Iterator[str]:
        """Yield the names of the object's members; the caller reads the value of each."""
        self._expect("{")
        if self._next() == "}":
            return
        while True:
            if self._next() != '"':
                raise self._error("a name is due")
            name = self.value()
            self._expect(":")
            yield name
            if self._next() != ",":
                break
            self._at += 1
        self._expect("}")
        if self._next():
            raise self._error("nothing may follow the document")

    def items(self) -> Iterator[Any]:
        """Yield the values of a list."""
        self._expect("[")
        if self._next() == "]":
            self._at += 1
            return
        while True:
            yield self.value()
            if self._next() != ",":
                break
            self._at += 1
        self._expect("]")

    def value(self) -> Any:
        """Return the next value."""
        self._next()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._more():
                    self._at = min(error.pos, len(self._text))
                    raise self._error(error.msg) from None
                continue
            except (ValueError, RecursionError) as error:
                raise self._error(str(error)) from None
            if end < len(self._text) or not self._more():
                self._at = end
                return value
            # A number at the end of what was read may go on.

    def _next(self) -> str:
        """Return the next character that is no space, without passing it; empty at the end."""
        while True:
            text, at = self._text, self._at
            while at < len(text) and text[at] in _SPACE:
                at += 1
            self._at = at
            if at < len(text):
                return text[at]
            if not self._more():
                return ""

    def _expect(self, character: str) -> None:
        if self._next() != character:
            raise self._error(f"{character!r} is due")
        self._at += 1

    def _more(self) -> bool:
        """Read on; False at the end. Each step doubles what is held, so that none is long."""
        rest = self._text[self._at :]
        if len(rest) > limits.MAX_LINE_BYTES:
            raise self._error(f"a value of more than {limits.MAX_LINE_BYTES} characters")
        if len(rest) > _FEW_CHARS and sum(map(rest.count, ",[{")) > limits.MAX_VALUES:
            raise self._error(f"more than {limits.MAX_VALUES} values in one")
        if self._ended:
            return False
        data = self._stream.read(max(_CHUNK_BYTES, len(rest)))
        self._ended = not data
        self._passed += self._at
        try:
            self._text, self._at = rest + self._decode(data, final=self._ended), 0
        except UnicodeDecodeError as error:
            raise self._error(f"no UTF-8, {error.reason}") from None
        return True

    def _error(self, reason: str) -> FormatError:
        what = "ends too early" if self._at >= len(self._text) and self._ended else reason
        place = self._passed + self._at + 1
        return FormatError(
            f"{self._name}: not JSON at character {place} ({what}); the results before it were read"
        )
