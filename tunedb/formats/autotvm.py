"""Logs of AutoTVM: one JSON object per measured configuration, of two versions.

Version 0.1 (TVM 0.4 to 0.6) is ``{"i": [target, task, args, kwargs, workload, config],
"r": result, "v": 0.1}`` with ``config = {"i", "t", "c", "e"}``; version 0.2 (TVM 0.7 to 0.19) is
``{"input": [target, task, args, kwargs], "config": {"index", "code_hash", "entity"},
"result": result, "version": 0.2, "tvm_version": …}``. Both have ``result = [costs, error number,
seconds of the whole trial, time]`` (``encode`` of ``python/tvm/autotvm/record.py``). TopHub
packages and the logs of the graph tuner and of ``pick_best`` have the same lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

import orjson

from .. import limits
from ..errors import FormatError
from ..identity import canonical_json
from ..json_checks import check_value
from ..programs.autotvm import join_knobs, split_knobs
from ..records import (
    Failure,
    Measurement,
    Program,
    Status,
    Target,
    Trace,
    Workload,
    WorkloadFormat,
)
from ..results import Record
from .base import Item, Line, LogFile
from .error_numbers import failed_context, outcome_of
from .legacy_targets import parse_target

#: End of the year 9999 in seconds since 1970: later times are damage.
_MAX_TIME = 253_402_300_800


@dataclass(frozen=True, slots=True)
class _Layout:
    """Field names of a log version: of the line, of the configuration, of the knobs."""

    line: frozenset[str]
    template: dict[str, str]
    entity: str


_V1 = _Layout(
    frozenset({"i", "r", "v"}), {"i": "index", "t": "template_key", "c": "code_hash"}, "e"
)
_V2 = _Layout(
    frozenset({"input", "config", "result", "version", "tvm_version"}),
    {"index": "index", "code_hash": "code_hash"},
    "entity",
)

#: Size of a reader's cache of tasks, in bytes of JSON; a log of one model has some hundred tasks.
_CACHE_BYTES = 2 * 2**20

#: Parsed data that all lines of one task share: workload, target, context.
_AutoTVMTask = tuple[Workload, Target, bytes]


class AutoTVMFormat:
    """Logs of AutoTVM (:class:`tunedb.formats.base.LineFormat` and ``LineWriter``)."""

    name = "autotvm"

    def matches(self, value: Any) -> bool:
        """Return True for a line of AutoTVM; ``v`` is a number there, text in auto_scheduler."""
        if type(value) is not dict:
            return False
        is_v1 = "i" in value and "r" in value and type(value.get("v")) in (float, int)
        return is_v1 or _is_v2(value)

    def companions(self, path: Path) -> list[Path]:
        """Return no file: every line is self-contained."""
        return []

    def reader(self, file: LogFile) -> AutoTVMReader:
        """Return a reader of one file's lines."""
        return AutoTVMReader()

    def writes(self, workload: Workload) -> bool:
        """Return True for a task of AutoTVM."""
        return workload.format == WorkloadFormat.AUTOTVM

    def write_line(self, record: Record) -> bytes:
        """Return the record's original line, up to the order of its fields.

        Raises
        ------
        FormatError
            The record does not come from a log of AutoTVM, or is damaged.
        """
        measurement = record.measurement
        try:
            context = orjson.loads(measurement.context or b"{}")
            extra = orjson.loads(measurement.extra or b"{}")
            task = orjson.loads(measurement.program.workload.body)
            if context.get("log") != self.name or len(task) != 3:
                raise FormatError(f"record {record.id} does not come from a log of AutoTVM")
            line = _line_of(measurement, context, extra, task)
            return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(f"record {record.id} is damaged: {error!r}") from error


class AutoTVMReader:
    """Parser of one file's lines, with a cache of tasks."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[bytes, bytes], _AutoTVMTask] = {}
        self._cached_bytes = 0

    def begin(self) -> Iterator[Item]:
        """Yield nothing: the format has no companion files."""
        return iter(())

    def parse(self, value: Any, line: Line) -> Measurement:
        """Return the measurement of a line (:meth:`tunedb.formats.base.LineReader.parse`)."""
        if _is_v2(value):
            inputs, config, result = value["input"], value["config"], value["result"]
            version = {key: value[key] for key in ("version", "tvm_version") if key in value}
            layout, items = _V2, 4
        else:
            if type(value["i"]) is not list or len(value["i"]) != 6:
                raise FormatError("the input of a version 0.1 line must have 6 items")
            *inputs, config = value["i"]
            result, version = value["r"], {"version": value["v"]}
            layout, items = _V1, 5
        if type(inputs) is not list or len(inputs) != items:
            raise FormatError(
                "the input of a version 0.2 line must be [target, task, args, kwargs]"
            )
        workload, target, context = self._task(inputs, version)
        trace, extra = _read_config(config, layout)
        if not layout.line.issuperset(value):
            extra["line"] = _unknown_fields(value, layout.line)
        costs, status, failure, all_cost, measured_at = _read_result(result)
        if measured_at / 1e6 != result[3]:
            # time.time() has a resolution of a quarter of a microsecond.
            extra["timestamp"] = result[3]
        if result[1]:
            context = failed_context(context, result[1])
        return Measurement(
            Program(workload, target, trace),
            costs,
            status,
            measured_at,
            all_cost=all_cost,
            context=context,
            extra=canonical_json(extra) if extra else None,
            failure=failure,
        )

    def _task(self, inputs: Any, version: dict[str, Any]) -> _AutoTVMTask:
        """Return the cached or parsed task of a line."""
        try:
            key = orjson.dumps(inputs), orjson.dumps(version)
        except TypeError as error:
            raise FormatError(f"an input has no JSON form: {error}") from error
        task = self._tasks.get(key)
        if task is None:
            task = _read_task(inputs, version)
            size = len(key[0]) + len(key[1])
            self._cached_bytes += size
            if self._cached_bytes > _CACHE_BYTES:
                self._tasks.clear()
                self._cached_bytes = size
            # orjson (3.13) allocates 4 KB or more for every result; a copy has its exact size.
            self._tasks[bytes(memoryview(key[0])), bytes(memoryview(key[1]))] = task
        return task


def _is_v2(value: dict[str, Any]) -> bool:
    return "input" in value and "config" in value and "result" in value


def _read_config(config: Any, layout: _Layout) -> tuple[Trace, dict[str, Any]]:
    """Return the knobs of a configuration, and ``{"config": unknown fields}``."""
    if type(config) is not dict or layout.entity not in config:
        raise FormatError(f"a configuration must be an object with {layout.entity!r}, the knobs")
    template = {name: config[key] for key, name in layout.template.items() if key in config}
    trace = split_knobs(config[layout.entity], template)
    if len(config) == len(template) + 1:
        return trace, {}
    return trace, {"config": _unknown_fields(config, {*layout.template, layout.entity})}


def _unknown_fields(fields: dict[str, Any], known: Set[str]) -> dict[str, Any]:
    """Return the fields of an object that TVM does not write."""
    unknown = {key: value for key, value in fields.items() if key not in known}
    check_value(unknown, "the unknown fields of a line")
    return unknown


def _read_task(inputs: list[Any], version: dict[str, Any]) -> _AutoTVMTask:
    """Return workload, target and context of ``[target, task, args, kwargs(, workload)]``."""
    text, name, args, kwargs, *workload = inputs
    if type(text) is not str or type(name) is not str or "\0" in name:
        raise FormatError("the input of a line does not begin with the texts target and task")
    check_value([inputs, version], "the input of a line")
    number, tvm_version = version.get("version", 0), version.get("tvm_version")
    if type(number) not in (float, int):
        raise FormatError(f"the version of the log is {short(number)}")
    if tvm_version is not None and (type(tvm_version) is not str or "\0" in tvm_version):
        raise FormatError(f"tvm_version is {short(tvm_version)}")
    context = {"log": AutoTVMFormat.name, "target": text} | version
    if workload:
        context["workload"] = workload[0]
    body = canonical_json([name, args, kwargs])
    return (
        Workload(WorkloadFormat.AUTOTVM, body, name, tvm_version),
        parse_target(text),
        canonical_json(context),
    )


def _read_result(
    result: Any,
) -> tuple[tuple[float, ...], Status, Failure | None, float | None, int]:
    """Return costs, status, failure, all_cost and µs since 1970 of a result."""
    if type(result) is not list or len(result) != 4:
        raise FormatError("a result must be [costs, error number, seconds, time]")
    costs, error_no, all_cost, timestamp = result
    if type(costs) is not list or len(costs) > limits.MAX_RUN_SECS:
        raise FormatError(f"the costs must be a list of at most {limits.MAX_RUN_SECS} numbers")
    times = tuple([_seconds(cost, "a cost") for cost in costs])
    # The sum of finite numbers may be infinite, and records are ranked by their mean.
    _seconds(sum(times), "the sum of the costs")
    status, failure = outcome_of(times, error_no)
    if all_cost is not None:
        all_cost = _seconds(all_cost, "the time of the trial")
    seconds = _seconds(timestamp, "the timestamp")
    if seconds >= _MAX_TIME:
        raise FormatError(f"the timestamp {short(timestamp)} is beyond the year 9999")
    return times, status, failure, all_cost, round(seconds * 1e6)


def _seconds(value: Any, what: str) -> float:
    """Return a finite time of at least 0 seconds, or raise FormatError."""
    if type(value) is not float:
        if type(value) is not int or abs(value) > 2**53:
            raise FormatError(f"{what} is {short(value)}, which is not a number of seconds")
        value = float(value)
    seconds: float = value
    if not 0.0 <= seconds < math.inf:
        raise FormatError(f"{what} is {seconds!r}; a time must be finite and not negative")
    return seconds


def _line_of(
    measurement: Measurement, context: dict[str, Any], extra: dict[str, Any], task: list[Any]
) -> dict[str, Any]:
    """Return the JSON value of a stored line."""
    layout = _V1 if "workload" in context else _V2
    entity, template = join_knobs(measurement.program.trace)
    config = {key: template[name] for key, name in layout.template.items() if name in template}
    config |= {layout.entity: entity} | extra.get("config", {})
    result = [
        list(measurement.run_secs or ()),
        context.get("error_no", 0),
        measurement.all_cost,
        extra.get("timestamp", measurement.measured_at / 1e6),
    ]
    inputs = [context["target"], *task]
    unknown: dict[str, Any] = extra.get("line", {})
    if layout is _V1:
        line = {"i": [*inputs, context["workload"], config], "r": result, "v": context["version"]}
    else:
        line = {"input": inputs, "config": config, "result": result}
        line |= {key: context[key] for key in ("version", "tvm_version") if key in context}
    return line | unknown
