"""Results of KTT 2.x as XML: the tree of its JSON with attributes.

``<TuningData><Metadata …/><Results><KernelResult KernelName="…" …><Configuration><Pair …/>…
<ComputationResults><ComputationResult …><GlobalSize X="…" …/>…`` (``Source/Output/
XmlConverters.cpp`` of HiPerCoRe/KTT). Each result is converted to its JSON form and parsed as such.

The file is foreign: the reader rejects document types, and so all entities; memory is bounded by
one result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as short
from typing import Any
from xml.parsers import expat

import orjson

from ... import limits
from ...errors import FormatError
from ...records import Quarantined
from ..base import Item, LogFile
from ..streams import open_log
from .ktt import ResultReader

#: Bytes per parser call.
_CHUNK_BYTES = 2**18

#: Paths of results and metadata.
_RESULT = ("TuningData", "Results", "KernelResult")
_METADATA = ("TuningData", "Metadata")

#: Attributes that are whole numbers, by name or end of name, and ends of those of real numbers.
_WHOLE = frozenset(("X", "Y", "Z", "RemainingProfilingRuns", "PowerUsage"))
_SIZES = ("MemorySize", "MaxWorkGroupSize", "RegistersCount")
_REAL = ("Duration", "Overhead", "EnergyConsumption")

#: Limit of nesting; KTT writes 7 levels.
_MAX_DEPTH = limits.MAX_DEPTH


@dataclass(slots=True)
class _Element:
    """An element of a result."""

    tag: str
    attributes: dict[str, str]
    children: list[_Element] = field(default_factory=list)

    def fields(self) -> dict[str, Any]:
        """Return its attributes, with numbers parsed."""
        return {name: _typed(name, text) for name, text in self.attributes.items()}


class KTTXMLFormat:
    """Results of KTT as XML (:class:`tunedb.formats.base.FileFormat`)."""

    name = "ktt-xml"

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True if a file's first element is KTT's."""
        return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") and b"<TuningData" in head

    def read_file(self, file: LogFile) -> Iterator[Item]:
        """Yield a measurement per result; bad results are quarantined.

        Raises
        ------
        FormatError
            The file is damaged from some point on, has a document type, or metadata of another
            tool.
        """
        with open_log(file.path) as (stream, _):
            parser = _Parser(file)
            number = 0
            while True:
                data = stream.read(_CHUNK_BYTES)
                error = parser.feed(data)
                for element in parser.pop_results():
                    number += 1
                    yield _parse(parser.reader, element, file, number)
                if error is not None:
                    raise FormatError(f"{file.name}: {error}; the results before it were read")
                if not data:
                    return


def _parse(reader: ResultReader | None, element: _Element, file: LogFile, number: int) -> Item:
    if reader is None:
        raise FormatError(f"{file.name}: KTT's Results come before its Metadata")
    try:
        return reader.read(_as_json(element))
    except FormatError as error:
        data = orjson.dumps(element)[: limits.MAX_QUARANTINE_BYTES]
        return Quarantined(file.name, number, str(error), data)


class _Parser:
    """Collector of complete results from the events of expat."""

    def __init__(self, file: LogFile) -> None:
        self.reader: ResultReader | None = None
        self._file = file
        self._results: list[_Element] = []
        self._path: list[str] = []
        self._open: list[_Element] = []
        self._elements = 0
        self._held = 0
        self._expat = expat.ParserCreate()
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.StartDoctypeDeclHandler = self._refuse

    def feed(self, data: bytes) -> str | None:
        """Parse more data, or the end for b""; return the reason of an error, or None."""
        self._held += len(data)
        try:
            self._expat.Parse(data, not data)
        except expat.ExpatError as error:
            return f"not XML ({error})"
        except FormatError as error:
            return str(error)
        if self._held > limits.MAX_LINE_BYTES:
            return f"an element of more than {limits.MAX_LINE_BYTES} bytes"
        return None

    def pop_results(self) -> list[_Element]:
        """Return and forget the complete results."""
        results, self._results = self._results, []
        return results

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._path.append(tag)
        if len(self._path) > _MAX_DEPTH:
            raise FormatError(f"elements nested deeper than {_MAX_DEPTH}")
        if tuple(self._path) == _METADATA:
            self.reader = ResultReader(attributes, self._file)
        if not self._open and tuple(self._path) != _RESULT:
            return
        self._elements += 1
        if self._elements > limits.MAX_INSTRUCTIONS:
            raise FormatError(f"a result of more than {limits.MAX_INSTRUCTIONS} elements")
        element = _Element(tag, attributes)
        if self._open:
            self._open[-1].children.append(element)
        self._open.append(element)

    def _end(self, tag: str) -> None:
        self._path.pop()
        if self._open:
            element = self._open.pop()
            if not self._open:
                self._results.append(element)
                self._elements = self._held = 0

    def _refuse(self, *_: Any) -> None:
        raise FormatError("KTT never writes a document type; it is rejected")


def _as_json(element: _Element) -> dict[str, Any]:
    """Return a result in its JSON form."""
    result = element.fields()
    for child in element.children:
        if child.tag == "Configuration":
            result["Configuration"] = [_pair(pair.attributes) for pair in child.children]
        elif child.tag == "ComputationResults":
            result["ComputationResults"] = [_computation(item) for item in child.children]
        else:
            result[child.tag] = child.fields()
    # An element without children stands for an empty list.
    return {"Configuration": [], "ComputationResults": []} | result


def _computation(element: _Element) -> dict[str, Any]:
    computation = element.fields()
    for child in element.children:
        computation[child.tag] = child.fields()
        if child.tag == "ProfilingData":
            counters = [counter for listed in child.children for counter in listed.children]
            computation[child.tag]["Counters"] = [_counter(item.attributes) for item in counters]
    return computation


def _pair(attributes: dict[str, str]) -> dict[str, Any]:
    kind = attributes.get("ValueType")
    if kind is None:  # before KTT 2.1
        kind = "Double" if attributes.get("IsDouble") == "true" else "UnsignedInt"
    convert = _TYPES.get(kind, str)
    return dict(attributes) | {"ValueType": kind, "Value": convert(attributes.get("Value", ""))}


def _counter(attributes: dict[str, str]) -> dict[str, Any]:
    convert = _TYPES.get(attributes.get("Type", ""), _real)
    return dict(attributes) | {"Value": convert(attributes.get("Value", ""))}


def _typed(name: str, text: str) -> Any:
    """Return the value of an attribute that KTT writes outside of parameters and counters."""
    if name in _WHOLE or name.endswith(_SIZES):
        return _whole(text)
    return _real(text) if name.endswith(_REAL) else text


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise FormatError(f"{short(text)} is not a whole number") from None


def _real(text: str) -> float | None:
    """Return a number; None for NaN, as in JSON."""
    try:
        value = float(text)
    except ValueError:
        raise FormatError(f"{short(text)} is not a number") from None
    return None if math.isnan(value) else value


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise FormatError(f"{short(text)} is not a truth value")
    return text == "true"


#: Type of a parameter or counter -> parser of its text.
_TYPES: dict[str, Callable[[str], Any]] = {
    "Int": _whole,
    "UnsignedInt": _whole,
    "Double": _real,
    "Bool": _truth,
    "String": str,
    "Percent": _real,
    "Throughput": _whole,
    "UtilizationLevel": _whole,
}
