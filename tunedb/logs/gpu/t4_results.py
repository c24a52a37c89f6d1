"""Records of GPU kernels as results of FAIR T4, for :mod:`tunedb.logs.gpu.t4`.

A document is of one kernel on one device, which stand in its ``metadata``: the results themselves
have no place for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from ...errors import FormatError
from ...launches import Launch
from ...records import Failure, FailureKind, Measurement, Status, Target, Workload
from ...steps.parameters import join_parameters

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
        raise FormatError("it failed for a reason that T4 does not have")
    try:
        return orjson.dumps(_result(measurement, launches))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"a record that is damaged: {error!r}") from error


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
