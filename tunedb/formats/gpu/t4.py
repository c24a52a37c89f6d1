"""FAIR T4 results: a tuner's measurements, in the format that tuners share.

``{"schema_version": "1.0.0", "metadata": {"timeunit"}, "results": [{"timestamp", "configuration",
"objectives", "times", "invalidity", "correctness", "measurements": [{"name", "value", "unit"}]}]}``
(https://github.com/odgaard/TuningSchema), in three dialects: that of the schema and of KTT's
converter (``compilation_time``, counters among the measurements, microseconds), Kernel Tuner's
(``compilation`` and ``benchmark``), and that of the files of AutoTuningAssociation's benchmark hub.

The unit of a row is that of its time, else the one in ``metadata``. ``invalidity`` decides whether
a row failed, because ``correctness`` is 1 in Kernel Tuner's failed rows. Kernel and device come
from file names and neighbouring files (:mod:`tunedb.formats.gpu.file_metadata`).

A row whose time is not the mean of its run times mixes two measurements: a published file has KTT's
times beside Kernel Tuner's. Such a row is stored as failed, with both times in ``extra``, so that
it is neither served nor used for training.
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
from .file_metadata import metadata_of, require_metadata
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

# ---- Export of records as FAIR T4 results --------------------------------------------------------
#
# A document holds one kernel on one device. Both are in its ``metadata``, because results have no
# fields for them.

_INVALIDITY = {
    FailureKind.TIMEOUT: "timeout",
    FailureKind.COMPILE_ERROR: "compile",
    FailureKind.WRONG_RESULT: "correctness",
}

_START = datetime(1970, 1, 1, tzinfo=UTC)


def begin(workload: Workload, target: Target) -> bytes:
    """Return the beginning of a document of one kernel on one device."""
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
    """Return a record as a result.

    Raises
    ------
    FormatError
        The stored record is damaged, or comes from a row with inconsistent times.
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
    """Return T4's ``invalidity`` of a failed record, from its source file if that had one."""
    if extra.get("error") == "InvalidConfig":
        return "constraints"
    kind = FailureKind.UNKNOWN if failure is None else failure.kind
    return str(extra.get("invalidity") or _INVALIDITY.get(kind, "runtime"))


def _counters(launches: list[Launch]) -> Iterator[dict[str, Any]]:
    """Yield the counters of a record with one launch; several launches are different kernels."""
    if len(launches) != 1 or launches[0].counter_set is None:
        return
    counters = launches[0].counter_set.counters
    for (name, unit), value in zip(counters, launches[0].values, strict=True):
        if math.isfinite(value):
            yield {"name": name, "value": value, "unit": unit}


def _milliseconds(value: float) -> float:
    """Return seconds as milliseconds.

    The round trip is exact for times that were milliseconds; one in forty others, of tools that
    count in nanoseconds, changes in its last bit.
    """
    return value * 1000


# ---- The format ----------------------------------------------------------------------------------

_RESULTS = re.compile(rb'"results"\s*:\s*\[')

#: ``invalidity`` of a failed row -> kind and phase of the failure.
_FAILURES = {
    "timeout": (FailureKind.TIMEOUT, Phase.RUN),
    "compile": (FailureKind.COMPILE_ERROR, Phase.BUILD),
    "runtime": (FailureKind.RUNTIME_ERROR, Phase.RUN),
    "correctness": (FailureKind.WRONG_RESULT, Phase.RUN),
    "constraints": (FailureKind.UNKNOWN, Phase.UNKNOWN),
}

#: Names of a row's time.
_TIMES = ("time", "TotalDuration")

#: Components of a trial's time, in all dialects.
_COSTS = ("compilation", "compilation_time", "benchmark", "validation")

#: Relative tolerance between a time and the mean of its run times; consistent files agree to 1e-9.
_TOLERANCE = 0.02


class _T4Document(NamedTuple):
    """The parsed data that all rows of a file share."""

    workload: Workload
    target: Target
    kernel: str
    unit: float | None
    sets: dict[tuple[tuple[str, str], ...], CounterSet]


class T4Format:
    """Results of FAIR T4 (:class:`tunedb.formats.base.FileFormat` and ``DocumentWriter``)."""

    name = "t4"

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True for the head of T4 results, False for that of their JSON schema."""
        if b'"$schema"' in head or _RESULTS.search(head) is None:
            return False
        return b'"configuration"' in head or b'"schema_version"' in head

    def read_file(self, file: LogFile) -> Iterator[Item | Remark]:
        """Yield the measurements of a file, and its bad rows as quarantined.

        Raises
        ------
        FormatError
            The file has no results, or its kernel or device is unknown.
        """
        document = parse_document(read_document(file))
        rows = document.get("results") if type(document) is dict else None
        version = document.get("schema_version", "1") if type(document) is dict else None
        if type(rows) is not list or type(version) is not str or version.split(".")[0] != "1":
            raise FormatError("no results of FAIR T4, version 1")
        shared = _document(document, file)
        inconsistent = timed = 0
        for number, row in enumerate(rows, 1):
            try:
                measurement, is_inconsistent = _measurement(row, shared)
            except FormatError as error:
                yield Quarantined(file.name, number, str(error), quarantined(row))
                continue
            inconsistent += is_inconsistent
            timed += is_inconsistent or measurement.status is Status.OK
            yield measurement
        if inconsistent:
            yield Remark(
                f"inconsistent: {inconsistent:,} of {timed:,} rows have a time over "
                f"{_TOLERANCE:.0%} from the mean of their run times; they are kept as failed"
            )

    def writes(self, workload: Workload) -> bool:
        """Return True for workloads of GPU kernels."""
        return workload.format == WorkloadFormat.KERNEL

    def begin(self, workload: Workload, target: Target) -> bytes:
        """Return the beginning of a document of one kernel on one device."""
        return begin(workload, target)

    def result(self, measurement: Measurement, launches: list[Launch]) -> bytes:
        """Return a record as a result.

        Raises
        ------
        FormatError
            The stored record is damaged, or comes from a row with inconsistent times.
        """
        return result(measurement, launches)

    def end(self) -> bytes:
        """Return the end of a document."""
        return b"\n]}\n"


def _document(document: Mapping[str, Any], file: LogFile) -> _T4Document:
    """Return the data that all rows share, or raise FormatError."""
    metadata = document.get("metadata")
    metadata = metadata if type(metadata) is dict else {}
    names = [metadata.get(name) for name in ("kernel_name", "device_name", "target")]
    kernel, device, kind = (name if type(name) is str and name else None for name in names)
    fallback = metadata_of(file)
    kernel, device = require_metadata(
        kernel=kernel or fallback.kernel,
        device=device or fallback.device,
    )
    problem = metadata.get("problem_size", fallback.problem)
    check_value(problem, "the problem size")
    return _T4Document(
        kernel_workload(kernel, problem),
        gpu_target(kind or fallback.kind, device),
        kernel,
        _unit(metadata.get("timeunit")),
        {},
    )


def _unit(name: Any) -> float | None:
    return SECONDS.get(name.lower()) if type(name) is str else None


def _measurement(row: Any, shared: _T4Document) -> tuple[Measurement, bool]:
    """Return the measurement of a row, and True if its times are inconsistent."""
    if type(row) is not dict or type(row.get("configuration")) is not dict:
        raise FormatError("a result must be an object with a configuration")
    parameters, times = row["configuration"], row.get("times", {})
    if type(times) is not dict:
        raise FormatError("the times of a result are not an object")
    time, others = _split(row)
    unit = _unit(time.get("unit")) or shared.unit
    failure, extra = _failure(row), _extra(row, times)
    run_secs, is_inconsistent = None, False
    if failure is None:
        run_secs, contradiction = _run_secs(time.get("value"), times.get("runtimes"), unit)
        if contradiction is not None:
            failure, is_inconsistent, run_secs = contradiction, True, None
            extra["time"] = time["value"]
    elif time:
        extra["time"] = time.get("value")
    if run_secs is None and "runtimes" in times:
        extra["runtimes"] = times["runtimes"]
    launches = _launches(parameters, others, shared, extra, failure)
    measurement = Measurement(
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
    return measurement, is_inconsistent


def _split(row: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the entry of ``measurements`` that is the time, or {}, and the other entries."""
    entries = row.get("measurements") or []
    if type(entries) is not list or not all(
        type(entry) is dict and type(entry.get("name")) is str for entry in entries
    ):
        raise FormatError("the measurements of a result must be objects with a name")
    objectives = row.get("objectives")
    objectives = objectives if type(objectives) is list else []
    for number, entry in enumerate(entries):
        is_objective = entry["name"] in objectives and _unit(entry.get("unit")) is not None
        if entry["name"] in _TIMES or is_objective:
            return entry, entries[:number] + entries[number + 1 :]
    return {}, entries


def _failure(row: Mapping[str, Any]) -> Failure | None:
    invalidity = row.get("invalidity")
    if invalidity == "correct":
        return None
    if type(invalidity) is not str or invalidity not in _FAILURES:
        raise FormatError(f"the invalidity of a result is {short(invalidity)}")
    return Failure(*_FAILURES[invalidity], invalidity)


def _extra(row: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a row that the record has no fields for."""
    extra: dict[str, Any] = {}
    if rest := {name: value for name, value in times.items() if name != "runtimes"}:
        extra["times"] = rest
    if row["invalidity"] != "correct":
        # The digest covers extra, but not the failure.
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
    """Return the run times of a row, with a failure if they are inconsistent."""
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
    if abs(time - mean) <= _TOLERANCE * mean:
        return times, None
    message = f"inconsistent: its time is {time:.6g} s, the mean of its run times {mean:.6g} s"
    return times, Failure(FailureKind.INFRASTRUCTURE, Phase.RUN, message)


def _all_cost(times: Mapping[str, Any], unit: float | None) -> float | None:
    """Return the seconds of building, checking and running, or None."""
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
    shared: _T4Document,
    extra: dict[str, Any],
    failure: Failure | None,
) -> tuple[Launch, ...]:
    """Return the launch of the parameters' block, with counters; `extra` gets the other entries."""
    is_run = failure is None or failure.phase is Phase.RUN
    block = block_of(parameters) if is_run else None
    counted: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for entry in others:
        is_counter = block is not None and type(entry.get("value")) in (int, float)
        (counted if is_counter else rest).append(entry)
    if rest:
        extra["measurements"] = rest
    if block is None:
        return ()
    names = tuple((entry["name"], str(entry.get("unit") or "")) for entry in counted)
    if len(dict(names)) < len(names):
        raise FormatError("a measurement occurs twice in one result")
    if names and names not in shared.sets:
        # Nsight Compute's names are unit__counter.sum; the tool of other names is unknown.
        tool = "ncu" if any("__" in name for name, _ in names) else "t4"
        shared.sets[names] = CounterSet(tool, None, None, names)
    counters = shared.sets[names] if names else None
    values = tuple(float(entry["value"]) for entry in counted)
    return (Launch(shared.kernel, math.prod(block), block, counter_set=counters, values=values),)
