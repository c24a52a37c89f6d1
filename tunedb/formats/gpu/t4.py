"""FAIR T4 results: what a tuner measured, in the format that tuners share.

``{"schema_version": "1.0.0", "metadata": {"timeunit"}, "results": [{"timestamp", "configuration",
"objectives", "times", "invalidity", "correctness", "measurements": [{"name", "value", "unit"}]}]}``
(https://github.com/odgaard/TuningSchema), in three dialects: that of the schema and of KTT's
converter (``compilation_time``, counters among the measurements, microseconds), Kernel Tuner's
(``compilation`` and ``benchmark``), and that of the files of AutoTuningAssociation's benchmark hub.

The unit of a row is that of its time, else the one in ``metadata``; ``invalidity`` says whether it
failed, because ``correctness`` is 1 in Kernel Tuner's failed rows. Kernel and device stand beside
the file (:mod:`tunedb.formats.gpu.file_metadata`).

A row whose time is not the mean of its run times holds two measurements, and does not say which is
whose: a published file has KTT's times over Kernel Tuner's. Such a row is kept as failed, with both
beside it: it is neither a best time nor learnt from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple

import orjson

from ...errors import FormatError
from ...json_checks import check_value
from ...launches import CounterSet, Launch
from ...programs.kernel import join_parameters, split_parameters
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
    WorkloadFormat,
)
from ..base import Item, LogFile, Remark
from .file_metadata import place_of, require
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

# ---- Records of GPU kernels as results of FAIR T4, for :mod:`tunedb.formats.gpu.t4`
# -----------------
#
# A document is of one kernel on one device, which stand in its ``metadata``: the results themselves
# have no place for them.

_INVALIDITY = {
    FailureKind.TIMEOUT: "timeout",
    FailureKind.COMPILE_ERROR: "compile",
    FailureKind.WRONG_RESULT: "correctness",
}

_START = datetime(1970, 1, 1, tzinfo=UTC)


def begin(workload: Workload, target: Target) -> bytes:
    """Return the beginning of a document with records of one kernel on one device."""
    body = orjson.loads(workload.body)
    metadata = {
        "timeunit": "milliseconds",
        "kernel_name": body["kernel"],
        "device_name": (target.attributes or {}).get("model", ""),
        "target": target.kind,
        "problem_size": body["problem"],
    }
    head = orjson.dumps({"schema_version": "1.0.0", "metadata": metadata})
    return head[:-1] + b',"results":[\n'


def result(measurement: Measurement, launches: list[Launch]) -> bytes:
    """Return a record as one of the results.

    Raises
    ------
    FormatError
        What is stored is damaged, or its times contradicted each other when it was read.
    """
    failure = measurement.failure
    if failure is not None and failure.kind == FailureKind.INFRASTRUCTURE:
        raise FormatError("T4 has no name for its failure")
    try:
        return orjson.dumps(_result(measurement, launches))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"a record is damaged: {error!r}") from error


def _result(measurement: Measurement, launches: list[Launch]) -> dict[str, Any]:
    """Return the JSON value of a result."""
    extra = orjson.loads(measurement.extra or b"{}")
    result: dict[str, Any] = {}
    if measurement.measured_at:
        moment = _START + timedelta(microseconds=measurement.measured_at)
        result["timestamp"] = moment.isoformat(sep=" ")
    elif "timestamp" in extra:
        result["timestamp"] = str(extra["timestamp"])
    result["configuration"] = join_parameters(measurement.program.trace)
    runtimes = [_milliseconds(value) for value in measurement.run_secs or ()]
    cost = measurement.all_cost
    result["times"] = {"compilation_time": 0.0 if cost is None else _milliseconds(cost)}
    result["times"]["runtimes"] = runtimes
    is_ok = measurement.status is Status.OK
    failure = measurement.failure
    result["invalidity"] = "correct" if is_ok else _invalidity(failure, extra)
    result["correctness"] = int(is_ok)
    time: dict[str, Any] = {"name": "time", "unit": "milliseconds"}
    if is_ok and runtimes:
        time["value"] = sum(runtimes) / len(runtimes)
    else:
        message = failure.message if failure is not None else ""
        time["value"] = str(extra.get("error") or message or "ErrorConfig")
    result["measurements"] = [time, *_counters(launches)]
    result["objectives"] = ["time"]
    return result


def _invalidity(failure: Failure | None, extra: dict[str, Any]) -> str:
    """Return why a record failed, in T4's words; those of a T4 file, and of Kernel Tuner, first."""
    if extra.get("error") == "InvalidConfig":
        return "constraints"
    kind = FailureKind.UNKNOWN if failure is None else failure.kind
    return str(extra.get("invalidity") or _INVALIDITY.get(kind, "runtime"))


def _counters(launches: list[Launch]) -> Iterator[dict[str, Any]]:
    """Yield the counters of a record with one launch; those of several are of different kernels."""
    if len(launches) != 1 or launches[0].counter_set is None:
        return
    named = launches[0].counter_set.counters
    for (name, unit), value in zip(named, launches[0].values, strict=True):
        if math.isfinite(value):
            yield {"name": name, "value": value, "unit": unit}


def _milliseconds(value: float) -> float:
    """Return seconds as milliseconds, which are read as the same seconds if they were some before.

    One in forty other times (of tools that count in nanoseconds) has no such milliseconds in
    double precision, and changes in its last bit.
    """
    return value * 1000


# ---- The format ----------------------------------------------------------------------------------

_RESULTS = re.compile(rb'"results"\s*:\s*\[')

#: What ``invalidity`` says of a row that did not run as it should.
_FAILURES = {
    "timeout": (FailureKind.TIMEOUT, Phase.RUN),
    "compile": (FailureKind.COMPILE_ERROR, Phase.BUILD),
    "runtime": (FailureKind.RUNTIME_ERROR, Phase.RUN),
    "correctness": (FailureKind.WRONG_RESULT, Phase.RUN),
    "constraints": (FailureKind.UNKNOWN, Phase.UNKNOWN),
}

#: Names under which tools give the time of a row.
_TIMES = ("time", "TotalDuration")

#: Parts of a trial's time, by the dialects.
_COSTS = ("compilation", "compilation_time", "benchmark", "validation")

#: How far a time may be from the mean of its run times. Those of honest files agree to 1e-9.
_APART = 0.02


class _Shared(NamedTuple):
    """What the rows of a file have in common."""

    workload: Workload
    target: Target
    kernel: str
    unit: float | None
    sets: dict[tuple[tuple[str, str], ...], CounterSet]


class T4Format:
    """Results of FAIR T4 (:class:`tunedb.formats.base.FileFormat` and ``DocumentWriter``)."""

    name = "t4"

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Tell whether a file begins as results do; their schema does not."""
        if b'"$schema"' in head or _RESULTS.search(head) is None:
            return False
        return b'"configuration"' in head or b'"schema_version"' in head

    def read_file(self, file: LogFile) -> Iterator[Item | Remark]:
        """Yield the measurements of a file, and its bad rows as quarantined.

        Raises
        ------
        FormatError
            It holds no results, or nothing says its kernel and its device.
        """
        document = parse_document(read_document(file))
        rows = document.get("results") if type(document) is dict else None
        version = document.get("schema_version", "1") if type(document) is dict else None
        if type(rows) is not list or type(version) is not str or version.split(".")[0] != "1":
            raise FormatError("no results of FAIR T4, version 1")
        shared = _shared(document, file)
        apart = timed = 0
        for number, row in enumerate(rows, 1):
            try:
                found, is_apart = _measurement(row, shared)
            except FormatError as error:
                yield Quarantined(file.name, number, str(error), quarantined(row))
                continue
            apart += is_apart
            timed += is_apart or found.status is Status.OK
            yield found
        if apart:
            yield Remark(
                f"inconsistent: {apart:,} of {timed:,} rows have a time over {_APART:.0%} from the "
                "mean of their run times; they are kept as failed"
            )

    def writes(self, workload: Workload) -> bool:
        """Tell whether records of a workload can be results."""
        return workload.format == WorkloadFormat.KERNEL

    def begin(self, workload: Workload, target: Target) -> bytes:
        """Return the beginning of a document with records of one kernel on one device."""
        return begin(workload, target)

    def result(self, measurement: Measurement, launches: list[Launch]) -> bytes:
        """Return a record as one of the results.

        Raises
        ------
        FormatError
            What is stored is damaged, or its times contradicted each other when it was read.
        """
        return result(measurement, launches)

    def end(self) -> bytes:
        """Return the end of a document."""
        return b"\n]}\n"


def _shared(document: Mapping[str, Any], file: LogFile) -> _Shared:
    """Return what the rows have in common, or raise FormatError."""
    metadata = document.get("metadata")
    metadata = metadata if type(metadata) is dict else {}
    said = [metadata.get(name) for name in ("kernel_name", "device_name", "target")]
    kernel, device, kind = (word if type(word) is str and word else None for word in said)
    place = place_of(file)
    kernel, device = require(
        kernel=kernel or place.kernel,
        device=device or place.device,
    )
    problem = metadata.get("problem_size", place.problem)
    check_value(problem, "the problem size")
    return _Shared(
        kernel_workload(kernel, problem),
        gpu_target(kind or place.kind, device),
        kernel,
        _unit(metadata.get("timeunit")),
        {},
    )


def _unit(name: Any) -> float | None:
    return SECONDS.get(name.lower()) if type(name) is str else None


def _measurement(row: Any, shared: _Shared) -> tuple[Measurement, bool]:
    """Return the measurement of a row and whether its times contradict each other.

    Raises
    ------
    FormatError
        The row cannot be understood.
    """
    if type(row) is not dict or type(row.get("configuration")) is not dict:
        raise FormatError("a result must be an object with a configuration")
    parameters, times = row["configuration"], row.get("times", {})
    if type(times) is not dict:
        raise FormatError("the times of a result are not an object")
    time, others = _split(row)
    unit = _unit(time.get("unit")) or shared.unit
    failure, extra = _failure(row), _extra(row, times)
    run_secs, is_apart = None, False
    if failure is None:
        run_secs, contradiction = _run_secs(time.get("value"), times.get("runtimes"), unit)
        if contradiction is not None:
            failure, is_apart, run_secs = contradiction, True, None
            extra["time"] = time["value"]
    elif time:
        extra["time"] = time.get("value")
    if run_secs is None and "runtimes" in times:
        extra["runtimes"] = times["runtimes"]
    launches = _launches(parameters, others, shared, extra, failure)
    found = Measurement(
        Program(shared.workload, shared.target, split_parameters(parameters)),
        run_secs,
        Status.OK if failure is None else Status.FAILED,
        microseconds(row.get("timestamp")),
        all_cost=_all_cost(times, unit),
        context=b'{"log":"t4"}',
        extra=packed(extra, "what a result says besides"),
        failure=failure,
        launches=launches,
    )
    return found, is_apart


def _split(row: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the measurement that is the time, an empty one for none, and the others."""
    listed = row.get("measurements") or []
    if type(listed) is not list or not all(
        type(found) is dict and type(found.get("name")) is str for found in listed
    ):
        raise FormatError("the measurements of a result must be objects with a name")
    objectives = row.get("objectives")
    objectives = objectives if type(objectives) is list else []
    for number, found in enumerate(listed):
        is_aim = found["name"] in objectives and _unit(found.get("unit")) is not None
        if found["name"] in _TIMES or is_aim:
            return found, listed[:number] + listed[number + 1 :]
    return {}, listed


def _failure(row: Mapping[str, Any]) -> Failure | None:
    invalidity = row.get("invalidity")
    if invalidity == "correct":
        return None
    if type(invalidity) is not str or invalidity not in _FAILURES:
        raise FormatError(f"the invalidity of a result is {short(invalidity)}")
    return Failure(*_FAILURES[invalidity], invalidity)


def _extra(row: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row says that no other field holds."""
    extra: dict[str, Any] = {}
    if rest := {name: value for name, value in times.items() if name != "runtimes"}:
        extra["times"] = rest
    if row["invalidity"] != "correct":
        # A failure is no part of a record's identity, this is.
        extra["invalidity"] = row["invalidity"]
    if row.get("correctness", 1) != 1:
        extra["correctness"] = row["correctness"]
    if row.get("objectives", ["time"]) != ["time"]:
        extra["objectives"] = row["objectives"]
    if "timestamp" in row and not microseconds(row["timestamp"]):
        extra["timestamp"] = row["timestamp"]
    return extra


def _run_secs(
    value: Any, runtimes: Any, unit: float | None
) -> tuple[tuple[float, ...], Failure | None]:
    """Return the run times of a row that ran, and what is wrong with them.

    Raises
    ------
    FormatError
        They are none, or nothing says their unit.
    """
    if unit is None:
        raise FormatError("neither its time nor metadata.timeunit gives the unit of times")
    if not runtimes:
        return (seconds(value, unit, "the time"),), None
    times = all_seconds(runtimes, unit, "the runtimes")
    if value is None:
        return times, None
    mean = sum(times) / len(times)
    is_zero = type(value) in (int, float) and value == 0
    time = 0.0 if is_zero else seconds(value, unit, "the time")
    if abs(time - mean) <= _APART * mean:
        return times, None
    message = f"inconsistent: its time is {time:.6g} s, the mean of its run times {mean:.6g} s"
    return times, Failure(FailureKind.INFRASTRUCTURE, Phase.RUN, message)


def _all_cost(times: Mapping[str, Any], unit: float | None) -> float | None:
    """Return the seconds of building, checking and running, where the row has them."""
    costs = [times[name] for name in _COSTS if name in times]
    if unit is None or not costs:
        return None
    if not all(type(cost) in (int, float) and 0 <= cost < math.inf for cost in costs):
        return None
    total = float(sum(costs)) / round(1 / unit)
    return total if math.isfinite(total) else None


def _launches(
    parameters: Mapping[str, Any],
    others: list[dict[str, Any]],
    shared: _Shared,
    extra: dict[str, Any],
    failure: Failure | None,
) -> tuple[Launch, ...]:
    """Return the launch that the parameters stand for, with the counters; `extra` gets the rest.

    Without a launch there is nothing that counters could belong to.
    """
    is_run = failure is None or failure.phase is Phase.RUN
    block = block_of(parameters) if is_run else None
    counted: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for found in others:
        is_counter = block is not None and type(found.get("value")) in (int, float)
        (counted if is_counter else rest).append(found)
    if rest:
        extra["measurements"] = rest
    if block is None:
        return ()
    names = tuple((found["name"], str(found.get("unit") or "")) for found in counted)
    if len(dict(names)) < len(names):
        raise FormatError("a measurement occurs twice in one result")
    if names and names not in shared.sets:
        # Names of Nsight Compute are unit__counter.sum; others are of whoever wrote the file.
        tool = "ncu" if any("__" in name for name, _ in names) else "t4"
        shared.sets[names] = CounterSet(tool, None, None, names)
    counters = shared.sets[names] if names else None
    values = tuple(float(found["value"]) for found in counted)
    return (Launch(shared.kernel, math.prod(block), block, counter_set=counters, values=values),)
