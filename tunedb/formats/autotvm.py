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
    """Names in the lines of a version: of the whole line, of a template's fields, of the knobs."""

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

#: Bytes of inputs that one reader remembers; a log of one model has some hundred of them.
_MEMORY = 2 * 2**20

#: What the lines of one task share: workload, target, context.
_Shared = tuple[Workload, Target, bytes]


class AutoTVMFormat:
    """Logs of AutoTVM (:class:`tunedb.formats.base.LineFormat` and ``LineWriter``)."""

    name = "autotvm"

    def matches(self, value: Any) -> bool:
        """Tell whether a line is of AutoTVM: auto_scheduler's ``v`` is text, AutoTVM's a number."""
        if type(value) is not dict:
            return False
        is_v1 = "i" in value and "r" in value and type(value.get("v")) in (float, int)
        return is_v1 or _is_v2(value)

    def companions(self, path: Path) -> list[Path]:
        """Return no files: a line says everything."""
        return []

    def reader(self, file: LogFile) -> AutoTVMReader:
        """Return a reader of one file's lines."""
        return AutoTVMReader()

    def writes(self, workload: Workload) -> bool:
        """Tell whether a workload is a task of AutoTVM."""
        return workload.format == WorkloadFormat.AUTOTVM

    def write_line(self, record: Record) -> bytes:
        """Return a record as the line that it was read from, up to the order of its fields.

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
    """Parses the lines of one file; remembers the tasks that it has seen."""

    def __init__(self) -> None:
        self._seen: dict[tuple[bytes, bytes], _Shared] = {}
        self._memory = 0

    def begin(self) -> Iterator[Item]:
        """Yield nothing: there is no companion file."""
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
        workload, target, context = self._shared(inputs, version)
        trace, extra = _read_config(config, layout)
        if not layout.line.issuperset(value):
            extra["line"] = _others(value, layout.line)
        costs, status, failure, all_cost, measured_at = _read_result(result)
        if measured_at / 1e6 != result[3]:
            # time.time() counts in steps of a quarter of a microsecond.
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

    def _shared(self, inputs: Any, version: dict[str, Any]) -> _Shared:
        """Return what the line shares with others of its task."""
        try:
            key = orjson.dumps(inputs), orjson.dumps(version)
        except TypeError as error:
            raise FormatError(f"an input has no JSON form: {error}") from error
        shared = self._seen.get(key)
        if shared is None:
            shared = _read_shared(inputs, version)
            size = len(key[0]) + len(key[1])
            self._memory += size
            if self._memory > _MEMORY:
                self._seen.clear()
                self._memory = size
            # orjson (3.13) gives every result a buffer of 4 KB or more; a copy has its own size.
            self._seen[bytes(memoryview(key[0])), bytes(memoryview(key[1]))] = shared
        return shared


def _is_v2(value: dict[str, Any]) -> bool:
    return "input" in value and "config" in value and "result" in value


def _read_config(config: Any, layout: _Layout) -> tuple[Trace, dict[str, Any]]:
    """Return the knobs of a configuration, and ``{"config": fields that nobody knows}``."""
    if type(config) is not dict or layout.entity not in config:
        raise FormatError(f"a configuration must be an object with {layout.entity!r}, the knobs")
    template = {name: config[key] for key, name in layout.template.items() if key in config}
    trace = split_knobs(config[layout.entity], template)
    if len(config) == len(template) + 1:
        return trace, {}
    return trace, {"config": _others(config, {*layout.template, layout.entity})}


def _others(fields: dict[str, Any], known: Set[str]) -> dict[str, Any]:
    """Return the fields of an object that TVM does not write."""
    others = {key: value for key, value in fields.items() if key not in known}
    check_value(others, "the unknown fields of a line")
    return others


def _read_shared(inputs: list[Any], version: dict[str, Any]) -> _Shared:
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
    # Finite numbers may have a sum that is not, and the mean ranks a record.
    _seconds(sum(times), "the sum of the costs")
    status, failure = outcome_of(times, error_no)
    if all_cost is not None:
        all_cost = _seconds(all_cost, "the time of the trial")
    seconds = _seconds(timestamp, "the timestamp")
    if seconds >= _MAX_TIME:
        raise FormatError(f"the timestamp {short(timestamp)} is beyond the year 9999")
    return times, status, failure, all_cost, round(seconds * 1e6)


def _seconds(value: Any, what: str) -> float:
    """Return a time in seconds as a float, or raise FormatError for what no clock gives."""
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
    """Return the JSON value of a line from what is stored of it."""
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
    others: dict[str, Any] = extra.get("line", {})
    if layout is _V1:
        line = {"i": [*inputs, context["workload"], config], "r": result, "v": context["version"]}
    else:
        line = {"input": inputs, "config": config, "result": result}
        line |= {key: context[key] for key in ("version", "tvm_version") if key in context}
    return line | others
