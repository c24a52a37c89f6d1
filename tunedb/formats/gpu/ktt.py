"""Results of KTT 2.x as JSON: ``{"Metadata": {…}, "Results": [{…}, …], "UserData": {…}}``.

A full space with counters takes about 50 MB, so the reader parses one result at a time: memory is
bounded by one result, and a truncated file keeps the results before its end.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from reprlib import repr as short
from typing import Any, BinaryIO

from ... import limits
from ...errors import FormatError
from ...identity import canonical_json
from ...json_checks import check_value
from ...launches import CounterSet, Extents, Launch
from ...programs.kernel import split_parameters
from ...records import (
    Failure,
    FailureKind,
    Measurement,
    Phase,
    Program,
    Quarantined,
    Status,
    Target,
    Workload,
)
from ..base import Item, LogFile
from ..streams import open_log
from .kernels import gpu_target, kernel_workload

# ---- Results of KTT, from JSON or XML ------------------------------------------------------------
#
# KTT 2.x writes the same tree as JSON and as XML (``Source/Output/JsonConverters.cpp`` and
# ``XmlConverters.cpp`` of HiPerCoRe/KTT). Both readers convert their files to the tree below, so
# that equal results give equal records.
#
# A *result* is one run of a kernel's configuration; its *computations* are the kernel functions
# that it launched, several where the kernel is a composite one. A configuration that was run with
# and without a profiler has two results, which stay two measurements: their times differ.

#: ``TimeUnit`` -> units per second. A quotient is the double nearest to the decimal number; a
#: product with 1e-6 is not always.
PER_SECOND = {"Nanoseconds": 1e9, "Microseconds": 1e6, "Milliseconds": 1e3, "Seconds": 1.0}

#: ``ComputeApi`` -> TVM's target kind.
_KINDS = {"CUDA": "cuda", "OpenCL": "opencl", "Vulkan": "vulkan"}

#: ``Status`` -> failure. The message is KTT's status: KTT writes no other message.
_FAILURES = {
    "ComputationFailed": Failure(FailureKind.RUNTIME_ERROR, Phase.RUN, "ComputationFailed"),
    "ValidationFailed": Failure(FailureKind.WRONG_RESULT, Phase.RUN, "ValidationFailed"),
    "CompilationFailed": Failure(FailureKind.COMPILE_ERROR, Phase.BUILD, "CompilationFailed"),
    "DeviceLimitsExceeded": Failure(FailureKind.RUNTIME_ERROR, Phase.RUN, "DeviceLimitsExceeded"),
}

#: Type of a counter -> unit; counters of other types have none, or one in their names.
_UNITS = {"Percent": "%", "Throughput": "byte/s", "UtilizationLevel": "level"}

#: Fields of a result that the record has fields for; the others are kept in ``extra``.
_RESULT = {"KernelName", "Status", "TotalDuration", "Configuration", "ComputationResults"}

#: The same of a computation, and of its compilation data.
_COMPUTATION = {
    "KernelFunction",
    "Duration",
    "GlobalSize",
    "LocalSize",
    "CompilationData",
    "ProfilingData",
}
_COMPILED = {"LocalMemorySize", "RegistersCount"}

#: Ends of the names of fields with real numbers.
_REAL = ("Duration", "Overhead", "EnergyConsumption")

#: ``2022-06-01 13:55:7 UTC``: its parts have no leading zeros.
_TIMESTAMP = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2}) (\d{1,2}):(\d{1,2}):(\d{1,2}) UTC")

#: NUL and lone surrogates, which names must not contain.
_UNFIT = re.compile("[\0\ud800-\udfff]")

#: Bound of extents and sizes: CUDA's are 32-bit integers.
_MAX_EXTENT = 2**31


class ResultReader:
    """Parser of one file's results.

    Parameters
    ----------
    metadata : mapping
        The file's ``Metadata``.
    file : LogFile
        The file, with the user's kernel and device for files that do not name them.

    Raises
    ------
    FormatError
        The metadata have an unknown unit of time or an unknown type of global size.
    """

    def __init__(self, metadata: Any, file: LogFile) -> None:
        if not isinstance(metadata, Mapping):
            raise FormatError("KTT's Metadata is not an object")
        unit = metadata.get("TimeUnit")
        if type(unit) is not str or unit not in PER_SECOND:
            raise FormatError(f"TimeUnit is {short(unit)}; KTT has {', '.join(PER_SECOND)}")
        self._per_second = PER_SECOND[unit]
        # Early versions lack it; each API counts in its own way.
        counts = metadata.get("GlobalSizeType", metadata.get("ComputeApi"))
        if type(counts) is not str or counts not in _KINDS:
            raise FormatError(f"GlobalSizeType is {short(counts)}; KTT has {', '.join(_KINDS)}")
        self._in_threads = counts == "OpenCL"
        self._on_cuda = metadata.get("ComputeApi") == "CUDA"
        self._measured_at = _timestamp(metadata.get("Timestamp"))
        self._kernel = file.kernel
        self._target = target_of(metadata, file)
        self._context = _json({"log": "ktt", "metadata": dict(metadata)})
        self._workloads: dict[str, Workload] = {}
        self._sets: dict[tuple[tuple[str, str], ...], CounterSet] = {}

    def read(self, result: Any) -> Measurement:
        """Return the measurement of a result.

        Parameters
        ----------
        result : object
            An item of ``Results`` as JSON has it.

        Raises
        ------
        FormatError
            The result cannot be parsed.
        """
        if not isinstance(result, Mapping):
            raise FormatError(f"a result of KTT is {short(result)}; expected an object")
        status = result.get("Status")
        failure = None if status == "Ok" else _FAILURES.get(str(status))
        if status != "Ok" and failure is None:
            raise FormatError(f"status {short(status)}; KTT has Ok, {', '.join(_FAILURES)}")
        trace = split_parameters(_configuration(result.get("Configuration")))
        computations = result.get("ComputationResults")
        if not isinstance(computations, list) or len(computations) > limits.MAX_LAUNCHES:
            raise FormatError(f"ComputationResults is not a list of at most {limits.MAX_LAUNCHES}")
        parsed = [
            self._computation(*item, timed=failure is None) for item in enumerate(computations)
        ]
        launches = [launch for launch, _ in parsed if launch is not None]
        extra = _extra(result, _RESULT)
        computation_extras = [fields for _, fields in parsed]
        if any(computation_extras):
            extra["ComputationResults"] = computation_extras
        if any(launch.counter_set is not None for launch in launches):
            # Keeps runs with and without a profiler apart, even with equal times.
            extra["profiled"] = True
        run_secs = None
        if failure is None:
            run_secs = (self._duration(result),)
        elif result.get("TotalDuration"):
            extra["TotalDuration"] = result["TotalDuration"]
        return Measurement(
            Program(self._workload(result), self._target, trace),
            run_secs,
            Status.OK if failure is None else Status.FAILED,
            self._measured_at,
            context=self._context,
            extra=_json(extra) if extra else None,
            failure=failure,
            launches=tuple(launches),
        )

    def _workload(self, result: Mapping[str, Any]) -> Workload:
        name = text_of(result.get("KernelName") or self._kernel, "the name of a kernel")
        workload = self._workloads.get(name)
        if workload is None:
            if len(self._workloads) >= limits.MAX_GROUPS:
                self._workloads.clear()
            workload = self._workloads[name] = kernel_workload(name)
        return workload

    def _duration(self, result: Mapping[str, Any]) -> float:
        seconds = duration(result.get("TotalDuration"), "TotalDuration") / self._per_second
        if seconds == 0.0:
            raise FormatError("a result that is Ok took no time; it was not measured")
        return seconds

    def _computation(
        self, number: int, computation: Any, *, timed: bool
    ) -> tuple[Launch | None, dict[str, Any]]:
        """Return a launch, None if its block is unknown, and the fields that it cannot hold."""
        if not isinstance(computation, Mapping):
            raise FormatError(f"a computation is {short(computation)}; expected an object")
        compiled = computation.get("CompilationData", {})
        profiled = computation.get("ProfilingData", {})
        if not isinstance(compiled, Mapping) or not isinstance(profiled, Mapping):
            raise FormatError("CompilationData and ProfilingData must be objects")
        extra = _extra(computation, _COMPUTATION)
        if compiled_extra := _extra(compiled, _COMPILED):
            extra["CompilationData"] = compiled_extra
        if profiled.get("RemainingProfilingRuns"):
            # Counters are complete after several runs; KTT itself reads none before.
            extra["RemainingProfilingRuns"] = profiled["RemainingProfilingRuns"]
            profiled = {}
        if "LocalSize" not in computation:  # KTT before 2.1
            return None, extra
        block = _extents(computation["LocalSize"], "LocalSize")
        if math.prod(block) > limits.MAX_BLOCK_THREADS:
            raise FormatError(f"a block of {math.prod(block)} threads")
        grid = _extents(computation.get("GlobalSize"), "GlobalSize")
        if self._in_threads:
            grid = _blocks(grid, block)
        counter_set, values = self._counters(profiled.get("Counters", []))
        seconds = duration(computation.get("Duration"), "Duration") / self._per_second
        launch = Launch(
            text_of(computation.get("KernelFunction"), "KernelFunction"),
            math.prod(block),
            block,
            grid,
            number,
            # OpenCL reports 0 registers for an unknown number.
            registers=_size(compiled, "RegistersCount") or None,
            static_shared=_size(compiled, "LocalMemorySize"),
            seconds=seconds if timed else None,
            counter_set=counter_set,
            values=values,
        )
        return launch, extra

    def _counters(self, counters: Any) -> tuple[CounterSet | None, tuple[float, ...]]:
        if not isinstance(counters, list) or len(counters) > limits.MAX_COUNTERS:
            raise FormatError(f"Counters is not a list of at most {limits.MAX_COUNTERS} counters")
        if not counters:
            return None, ()
        names: list[tuple[str, str]] = []
        values: list[float] = []
        for counter in counters:
            if not isinstance(counter, Mapping):
                raise FormatError(f"a counter is {short(counter)}; expected an object")
            name = text_of(counter.get("Name"), "the name of a counter", limits.MAX_COUNTER_CHARS)
            names.append((name, unit_of(name, counter.get("Type"))))
            values.append(counter_value(counter.get("Value"), name))
        key = tuple(names)
        counter_set = self._sets.get(key)
        if counter_set is None:
            if len({name for name, _ in key}) < len(key):
                raise FormatError("a counter occurs twice in one launch")
            if len(self._sets) >= limits.MAX_GROUPS:
                self._sets.clear()
            counter_set = CounterSet(tool_of(key, self._on_cuda), None, None, key)
            self._sets[key] = counter_set
        return counter_set, tuple(values)


def target_of(metadata: Mapping[str, Any], file: LogFile) -> Target:
    """Return the target of a file's metadata; its device defaults to the user's."""
    device = metadata.get("Device") or file.device or ""
    kind = _KINDS.get(str(metadata.get("ComputeApi")), "unknown")
    return gpu_target(kind, text_of(device, "Device") if device else "")


def _json(value: dict[str, Any]) -> bytes:
    """Return checked, canonical JSON."""
    check_value(value, "a result of KTT")
    try:
        return canonical_json(value)
    except TypeError as error:
        raise FormatError(f"a result of KTT has no JSON form: {error}") from error


def _extra(fields: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Return the fields that are not `known`; times as floats, as KTT writes them."""
    return {
        key: float(value) if type(value) is int and key.endswith(_REAL) else value
        for key, value in fields.items()
        if key not in known
    }


def text_of(value: Any, what: str, most: int = limits.MAX_KERNEL_CHARS) -> str:
    """Return a name, or raise FormatError if the value is not one."""
    if type(value) is not str or not value or _UNFIT.search(value):
        raise FormatError(f"{what} is {short(value)}; expected a text")
    if len(value) > most:
        raise FormatError(f"{what} has over {most} characters")
    return value


def unit_of(name: str, kind: Any) -> str:
    """Return the unit of a counter by its type and, for Nsight Compute, its name."""
    if type(kind) is str and kind in _UNITS:
        return _UNITS[kind]
    return "%" if name.endswith(".pct") or ".pct_of_" in name else ""


def tool_of(counters: tuple[tuple[str, str], ...], on_cuda: bool) -> str:
    """Return the profiler whose counter names these are.

    KTT reads counters through three libraries: CUPTI's metrics have nvprof's names, those of its
    later interface Nsight Compute's (``unit__counter.sum``); GPUPerfAPI reads AMD's GPUs.
    """
    if any("__" in name for name, _ in counters):
        return "ncu"
    return "nvprof" if on_cuda else "gpa"


def counter_value(value: Any, name: str) -> float:
    """Return a counter's value; NaN for null."""
    if value is None:
        return math.nan
    if type(value) not in (int, float) or math.isinf(value):
        raise FormatError(f"counter {short(name)} is {short(value)}; expected a number")
    return float(value)


def duration(value: Any, what: str) -> float:
    """Return a duration in the file's unit.

    Raises
    ------
    FormatError
        The duration is not a number, negative, or not finite.
    """
    if type(value) not in (int, float) or not 0.0 <= value < math.inf:
        raise FormatError(f"{what} is {short(value)}; a time must be finite and not negative")
    return float(value)


def _blocks(threads: Extents, block: Extents) -> Extents:
    """Return the blocks of an OpenCL range; the last ones may be partial (OpenCL 2.0)."""
    x, y, z = (-(-total // extent) for total, extent in zip(threads, block, strict=True))
    return x, y, z


def _extents(value: Any, what: str) -> Extents:
    if not isinstance(value, Mapping):
        raise FormatError(f"{what} is {short(value)}; expected an object with X, Y and Z")
    x, y, z = (value.get(axis) for axis in "XYZ")
    for extent in (x, y, z):
        if type(extent) is not int or not 0 < extent < _MAX_EXTENT:
            raise FormatError(f"{what} has the extent {short(extent)}")
    return x, y, z  # type: ignore[return-value]  # the loop above says so


def _size(fields: Mapping[str, Any], name: str) -> int | None:
    """Return a number of bytes or registers, None if the field is missing."""
    value = fields.get(name)
    if value is not None and (type(value) is not int or not 0 <= value < _MAX_EXTENT):
        raise FormatError(f"{name} is {short(value)}; expected a small number")
    return value


def _configuration(pairs: Any) -> dict[str, Any]:
    """Return parameter → value in the file's order."""
    if not isinstance(pairs, list) or len(pairs) > limits.MAX_INSTRUCTIONS:
        raise FormatError("Configuration is not a list of parameters")
    parameters: dict[str, Any] = {}
    for pair in pairs:
        if not isinstance(pair, Mapping) or "Value" not in pair:
            raise FormatError(f"a parameter is {short(pair)}; expected Name and Value")
        name = text_of(pair.get("Name"), "the name of a parameter")
        if name in parameters:
            raise FormatError(f"parameter {short(name)} occurs twice")
        value = pair["Value"]
        is_double = pair.get("ValueType") == "Double" or pair.get("IsDouble") is True
        parameters[name] = float(value) if is_double and type(value) is int else value
    return parameters


def _timestamp(text: Any) -> int:
    """Return µs since 1970; 0 if the field is missing."""
    if text is None:
        return 0
    match = _TIMESTAMP.fullmatch(text) if type(text) is str else None
    try:
        if match is None:
            raise ValueError
        year, month, day, hour, minute, second = map(int, match.groups())
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        raise FormatError(f"Timestamp is {short(text)}; KTT's are 2022-06-01 13:55:7 UTC") from None
    return max(0, round(moment.timestamp())) * 1_000_000


# ---- The format of KTT 2.x, as JSON --------------------------------------------------------------

#: Bytes per read: some tens of results.
_CHUNK_BYTES = 2**18

#: Length up to which a text cannot exceed the limit of values.
_FEW_CHARS = 2**20

#: JSON's white space.
_SPACE = " \t\r\n"


class KTTFormat:
    """Results of KTT as JSON (:class:`tunedb.formats.base.FileFormat`)."""

    name = "ktt"

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True for a file of KTT, whose writer sorts names: the metadata come first."""
        text = head.removeprefix(codecs.BOM_UTF8).lstrip()
        return text.startswith(b"{") and b'"Metadata"' in text and b'"KttVersion"' in text

    def read_file(self, file: LogFile) -> Iterator[Item]:
        """Yield a measurement per result; bad results are quarantined.

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
                    raise FormatError(f"{file.name}: KTT's Results come before its Metadata")
                else:
                    for number, result in enumerate(document.items(), 1):
                        yield _parse(reader, result, file, number)


def _parse(reader: ResultReader, result: Any, file: LogFile, number: int) -> Item:
    try:
        return reader.read(result)
    except FormatError as error:
        # ASCII: a text may hold lone surrogates, which UTF-8 cannot encode.
        data = json.dumps(result).encode()[: limits.MAX_QUARANTINE_BYTES]
        return Quarantined(file.name, number, str(error), data)


class _Document:
    """An incremental parser of a JSON object; `name` is the file's name in messages."""

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
                raise self._error("expected a name")
            name = self.value()
            self._expect(":")
            yield name
            if self._next() != ",":
                break
            self._at += 1
        self._expect("}")
        if self._next():
            raise self._error("text follows the document")

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
            # A number at the end of the text read so far may be incomplete.

    def _next(self) -> str:
        """Return the next character after white space without consuming it; empty at the end."""
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
            raise self._error(f"expected {character!r}")
        self._at += 1

    def _more(self) -> bool:
        """Read more text; False at the end. Doubling reads keep the total cost linear."""
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
