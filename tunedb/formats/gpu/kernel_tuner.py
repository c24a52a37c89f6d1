"""Caches of Kernel Tuner: one JSON object with all configurations that were tried.

``{"device_name", "kernel_name", "problem_size", "tune_params_keys", "tune_params", "objective",
"cache": {key: entry}}`` of Kernel Tuner 1.x, and the same with ``"schema_version": "1.0.0"``
of its branch ``cache_files``. An entry has the parameters, ``time`` (the mean of ``times`` in
milliseconds, or the name of an error class), times of building and running, and the values of
metrics and observers. The reader ignores its key, the values joined by commas: a value may hold a
comma.

A killed run leaves a file without its closing brackets. The reader accepts it and never writes to
it. Kernel Tuner itself closes such a file on opening, which breaks a run that is still writing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple

from ... import limits
from ...errors import FormatError
from ...identity import clean_text
from ...json_checks import check_value
from ...launches import CounterSet, Launch
from ...programs.kernel import split_parameters
from ...programs.thread_blocks import block_of
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
from ..base import Item, LogFile, Remark
from .file_metadata import device_of_name
from .json_documents import (
    SECONDS,
    all_seconds,
    microseconds,
    packed,
    parse_document,
    quarantined,
    read_document,
    seconds,
)
from .kernels import gpu_target, kernel_workload

_SHAPE = re.compile(rb'"tune_params_keys"\s*:\s*\[')

#: Error classes of Kernel Tuner (``kernel_tuner/util.py``) as causes.
_FAILURES = {
    "CompilationFailedConfig": (FailureKind.COMPILE_ERROR, Phase.BUILD),
    "RuntimeFailedConfig": (FailureKind.RUNTIME_ERROR, Phase.RUN),
    "InvalidConfig": (FailureKind.UNKNOWN, Phase.UNKNOWN),
    "ErrorConfig": (FailureKind.UNKNOWN, Phase.UNKNOWN),
}

#: Fields of an entry besides its parameters and the values of observers and metrics.
_ENTRY_FIELDS = frozenset({"time", "times", "timestamp", "__error__"})

#: Costs in milliseconds: of the trial, whose sum is ``all_cost``, and of the tuner.
_COSTS = ("compile_time", "verification_time", "benchmark_time")
_OVERHEADS = ("strategy_time", "framework_time")

#: Units of the values of Kernel Tuner's own observers (``kernel_tuner/observers``).
_UNITS = {
    **dict.fromkeys(("nvml_energy", "ps_energy", "pmt_energy", "energy"), "J"),
    **dict.fromkeys(("nvml_power", "ps_power", "pmt_power", "power_readings"), "W"),
    **dict.fromkeys(("core_freq", "mem_freq", "nvml_gr_clock", "nvml_mem_clock"), "MHz"),
    **dict.fromkeys(("temperature", "nvml_temperature"), "C"),
}

#: Closing brackets that a file may lack: of cache and document, or of the document alone.
_CLOSINGS = (b"}\n}", b"\n}")

_MS = SECONDS["ms"]

#: ``time`` of failed configurations before there were error classes
#: (``params.update({"time": 1e20})`` in ``kernel_tuner/runners/sequential.py``).
_NO_TIME = 1e20


class _Space(NamedTuple):
    """The parsed data that all entries of a cache share."""

    workload: Workload
    target: Target
    context: bytes
    kernel: str
    keys: list[str]


class KernelTunerFormat:
    """Caches of Kernel Tuner (:class:`tunedb.formats.base.FileFormat`)."""

    name = "kernel-tuner"

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True for the head of a cache, False for that of its JSON schema."""
        return _SHAPE.search(head) is not None and b'"$schema"' not in head

    def read_file(self, file: LogFile) -> Iterator[Item | Remark]:
        """Yield the measurements of a cache, and its bad entries as quarantined.

        Raises
        ------
        FormatError
            The file is not a cache, or has more damage than a missing end.
        """
        document, remark = _read(read_document(file))
        space = _space(document, file)
        if remark is not None:
            yield remark
        counters: dict[tuple[str, ...], CounterSet] = {}
        for number, (key, entry) in enumerate(document["cache"].items(), 1):
            try:
                yield _measurement(entry, space, counters)
            except FormatError as error:
                yield Quarantined(file.name, number, str(error), quarantined({key: entry}))


def _read(data: bytes) -> tuple[dict[str, Any], Remark | None]:
    """Return a cache, and a remark if its end is missing."""
    try:
        return _checked(parse_document(data)), None
    except FormatError as error:
        reason = error
    text = data.rstrip()
    # Each entry has its own line, so only the last line can be truncated.
    whole, _, _ = text.rpartition(b"\n")
    for entries, lost in ((text, ""), (whole.rstrip(), ", without the truncated last entry")):
        for closing in _CLOSINGS:
            try:
                document = _checked(parse_document(entries.removesuffix(b",") + closing))
            except FormatError:
                continue
            return document, Remark(
                f"its run did not end: its entries were read{lost}; the file is left as it is"
            )
    raise reason


def _checked(document: Any) -> dict[str, Any]:
    if type(document) is not dict or type(document.get("cache")) is not dict:
        raise FormatError("expected an object with a cache")
    version = document.get("schema_version", "1")
    if type(version) is not str or version.split(".")[0] != "1":
        raise FormatError(
            f"a cache of version {short(version)}; tunedb knows 1.x and those without"
        )
    return document


def _space(document: Mapping[str, Any], file: LogFile) -> _Space:
    """Return the data that all entries share, or raise FormatError."""
    kernel, device = document.get("kernel_name"), document.get("device_name", "")
    keys, problem = document.get("tune_params_keys"), document.get("problem_size")
    if type(kernel) is not str or type(device) is not str or "\0" in kernel + device:
        raise FormatError("kernel_name and device_name of a cache must be texts")
    if type(keys) is not list or not keys or not all(type(key) is str for key in keys):
        raise FormatError("tune_params_keys of a cache must be a list of names")
    check_value(problem, "the problem size")
    kernel = kernel or file.kernel or ""
    # Files from AMD devices have an empty device name; they must not merge into one device.
    device = device or file.device or device_of_name(file.path) or ""
    context: dict[str, Any] = {"log": KernelTunerFormat.name}
    if "objective" in document:
        context["objective"] = document["objective"]
    space = {"space": document.get("tune_params")}
    if space["space"] and len(packed(space, "the space") or b"") <= limits.MAX_SPACE_BYTES:
        context |= space
    return _Space(
        kernel_workload(clean_text(kernel)[: limits.MAX_NAME_CHARS], problem),
        gpu_target("unknown", device[: limits.MAX_NAME_CHARS]),
        packed(context, "what a cache says of its run") or b"{}",
        kernel,
        keys,
    )


def _measurement(
    entry: Any, space: _Space, counters: dict[tuple[str, ...], CounterSet]
) -> Measurement:
    """Return the measurement of an entry, or raise FormatError."""
    if type(entry) is not dict:
        raise FormatError("an entry of the cache is not an object")
    try:
        parameters = {key: entry[key] for key in space.keys}
    except KeyError as error:
        raise FormatError(f"an entry without the parameter {error}") from None
    trace = split_parameters(parameters)
    times, failure = _outcome(entry)
    # A configuration that failed to build was not launched.
    block = block_of(parameters) if failure is None or failure.phase is Phase.RUN else None
    observed, extra = _observations(entry, parameters, has_launch=block is not None)
    launches: tuple[Launch, ...] = ()
    if block is not None:
        names = tuple(observed)
        if names and names not in counters:
            units = tuple((name, _UNITS.get(name, "")) for name in names)
            counters[names] = CounterSet("kernel_tuner", None, None, units)
        launches = (
            Launch(
                space.kernel,
                math.prod(block),
                block,
                counter_set=counters[names] if names else None,
                values=tuple(observed.values()),
            ),
        )
    return Measurement(
        Program(space.workload, space.target, trace),
        times,
        Status.OK if failure is None else Status.FAILED,
        microseconds(entry.get("timestamp")),
        all_cost=_all_cost(entry),
        context=space.context,
        extra=packed(extra, "what an entry says besides"),
        failure=failure,
        launches=launches,
    )


def _outcome(entry: Mapping[str, Any]) -> tuple[tuple[float, ...] | None, Failure | None]:
    """Return the run times in seconds, or the failure."""
    time, error = entry.get("time"), entry.get("__error__")
    if error is None and isinstance(time, str):
        error = time
    if error is not None:
        if type(error) is not str:
            raise FormatError(f"the error of an entry is {short(error)}, which is not text")
        kind, phase = _FAILURES.get(error, (FailureKind.UNKNOWN, Phase.UNKNOWN))
        return None, Failure(kind, phase, error[: limits.MAX_MESSAGE_CHARS])
    if isinstance(time, int | float) and not time < _NO_TIME:
        # Infinity or NaN, and 1e20 of early versions: the configuration has no time.
        return None, Failure(FailureKind.UNKNOWN, Phase.UNKNOWN, f"time is {time!r}")
    if entry.get("times"):
        return all_seconds(entry["times"], _MS, "the times"), None
    return (seconds(time, _MS, "the time"),), None


def _all_cost(entry: Mapping[str, Any]) -> float | None:
    """Return the seconds of building, checking and running, or None."""
    costs = [entry[name] for name in _COSTS if name in entry]
    if not costs or not all(type(cost) in (int, float) and 0 <= cost < math.inf for cost in costs):
        return None
    total = sum(costs)
    return total / 1000 if math.isfinite(total) else None


def _observations(
    entry: Mapping[str, Any], parameters: Mapping[str, Any], *, has_launch: bool
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return counters of metrics and observers, which need a launch, and the other fields."""
    counters: dict[str, float] = {}
    extra: dict[str, Any] = {}
    for name, value in entry.items():
        if name in parameters or name in _ENTRY_FIELDS:
            continue
        is_number = type(value) in (int, float)
        if is_number and has_launch and name not in _COSTS and name not in _OVERHEADS:
            counters[name] = float(value)
        else:
            extra[name] = value
    # The time and times of an entry that also has an error.
    if isinstance(entry.get("time"), int | float) and "__error__" in entry:
        extra["time"] = entry["time"]
    if isinstance(error := entry.get("__error__", entry.get("time")), str):
        extra["error"] = error
        if "times" in entry:
            extra["times"] = entry["times"]
    if "timestamp" in entry and not microseconds(entry["timestamp"]):
        extra["timestamp"] = entry["timestamp"]
    return counters, extra
