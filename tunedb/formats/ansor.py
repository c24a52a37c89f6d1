"""Logs of auto_scheduler (Ansor), versions v0.2 to v0.6, and the measurements of TenSet.

A line is ``{"i": [task, [[], steps]], "r": [costs, error_no, all_cost, timestamp], "v": "v0.6"}``
(``src/auto_scheduler/measure_record.cc``, apache/tvm v0.7 to v0.19). Which items a task has tells
the version better than ``v`` does: edited logs mix them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from reprlib import repr as shown  # bounded: JSON may be long and deep
from typing import Any, NamedTuple

import orjson

from .. import limits
from ..errors import FormatError
from ..identity import canonical_json, clean_text
from ..json_checks import INT64, check_depth
from ..programs.ansor import LAYOUT_REWRITES, join_steps, split_steps
from ..records import Measurement, Program, Target, Trace, Workload, WorkloadFormat
from ..results import Record
from ._ansor_line import cut_line
from .base import Item, Line, LogFile
from .error_numbers import failed_context, outcome_of
from .legacy_targets import parse_target

#: Items of a task in order; a line has the first 2 to 6 of them.
_ITEMS = (
    "workload_key",
    "target",
    "hardware_params",
    "target_host",
    "layout_rewrite_option",
    "task_input_names",
)

#: Items of the v0.5 that TVM wrote from 2020-12-23 (#7144) to 2020-12-28 (#7156), and could not
#: read itself.
_FIRST_V05 = (
    "workload_key",
    "target",
    "layout_rewrite_option",
    "hardware_params",
    "target_host",
)

#: Tasks that a reader remembers, and the longest one. A network has some 30.
_MAX_TASKS = 512
_MAX_TASK_BYTES = 16_384

_HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MAX_TIMESTAMP = INT64 // 1_000_000
_SHAPE = "a line is {i: [task, [[], steps]], r: [costs, error_no, all_cost, timestamp], v: version}"
_DAMAGED = "the record belongs to another log, or is damaged"


class _Task(NamedTuple):
    """What the lines of one task share."""

    workload: Workload
    target: Target
    layout_rewrite: int | None
    context: bytes


class AnsorFormat:
    """Lines of auto_scheduler (:class:`tunedb.formats.base.LineFormat` and ``LineWriter``)."""

    name = "ansor"

    def matches(self, value: Any) -> bool:
        """Tell whether a line is one of auto_scheduler: AutoTVM's ``v`` is a number."""
        return (
            isinstance(value, dict)
            and isinstance(value.get("v"), str)
            and "i" in value
            and "r" in value
            and "input" not in value
        )

    def companions(self, path: Path) -> list[Path]:
        """Return no file: every line says all."""
        return []

    def reader(self, file: LogFile) -> AnsorReader:
        """Return a reader of one file's lines."""
        return AnsorReader(file.path)

    def writes(self, workload: Workload) -> bool:
        """Tell whether the workload is one of auto_scheduler."""
        return workload.format == WorkloadFormat.ANSOR

    def write_line(self, record: Record) -> bytes:
        """Return the record as the line that it was, but for spaces and the order of keys.

        Raises
        ------
        FormatError
            What is stored is damaged, or is no record of such a log.
        """
        measurement = record.measurement
        if measurement.run_secs is None or measurement.all_cost is None:
            raise FormatError(_DAMAGED)
        context = _load(measurement.context, "context")
        extra = _load(measurement.extra, "extra") if measurement.extra is not None else {}
        steps, layout_rewrite = join_steps(measurement.program.trace)
        task = _write_task(measurement.program.workload, context, layout_rewrite)
        result = [
            measurement.run_secs,
            context.get("error_no", 0),
            measurement.all_cost,
            extra.get("timestamp", _timestamp(measurement.measured_at)),
        ]
        line = {
            **_dictionary(extra.get("keys", {})),
            "i": [task, [[], steps]],
            "r": result,
            "v": context.get("version"),
        }
        try:
            return orjson.dumps(line) + b"\n"
        except TypeError as error:  # nested deeper than orjson writes
            raise FormatError(f"{_DAMAGED}: {error}") from None


def _load(data: bytes | None, what: str) -> dict[str, Any]:
    """Return the object in a stored column."""
    try:
        return _dictionary(orjson.loads(data or b"null"))
    except orjson.JSONDecodeError as error:
        raise FormatError(f"the stored {what} is damaged: {error}") from None


def _dictionary(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(_DAMAGED)
    return value


def _write_task(
    workload: Workload, context: dict[str, Any], layout_rewrite: int | None
) -> list[Any]:
    """Return the task of a line."""
    try:
        values = {**context, "workload_key": workload.body.decode()}
    except UnicodeDecodeError as error:
        raise FormatError(f"the stored workload key is damaged: {error}") from None
    if layout_rewrite is not None:
        values["layout_rewrite_option"] = layout_rewrite
    order = _FIRST_V05 if values.get("order") == "first v0.5" else _ITEMS
    names = [name for name in order if name in values]
    if len(names) < 2 or tuple(names) != order[: len(names)] or values.get("log") != "ansor":
        raise FormatError(_DAMAGED)
    return [values[name] for name in names]


class AnsorReader:
    """Parses lines of one file (:class:`tunedb.formats.base.LineReader`).

    Parameters
    ----------
    path : Path or None
        The file. TenSet's ``measure_records/<model>/`` names the model of the processor, which
        joins a target that names none.
    """

    def __init__(self, path: Path | None) -> None:
        self._model = None if path is None else _model_of(path)
        self._tasks: dict[bytes, _Task] = {}
        # What parse() made of the texts that lines repeat (tunedb.formats._ansor_line).
        self._known_tasks: dict[tuple[bytes, bytes], _Task] = {}
        self._known_steps: dict[tuple[bytes, int | None], bytes] = {}

    def begin(self) -> Iterator[Item]:
        """Yield nothing."""
        return iter(())

    def parse(self, value: Any, line: Line) -> Measurement | None:
        """Return the measurement of a line; None where a space makes it a comment.

        Raises
        ------
        FormatError
            The line cannot be understood.
        """
        if line.data[:1] == b" ":
            return None
        try:
            task, (stages, steps) = value["i"]
            costs, error_no, all_cost, timestamp = value["r"]
        except (TypeError, ValueError):
            raise FormatError(_SHAPE) from None
        if stages != [] or type(task) is not list or type(costs) is not list:
            raise FormatError(_SHAPE)
        shared = self._task(task, value["v"])
        trace = split_steps(steps, shared.layout_rewrite)
        extra = None
        if len(value) != 3 or type(timestamp) is float:
            extra = _extra(value, _microseconds(timestamp))
        measurement = _measurement(shared, trace, costs, error_no, all_cost, timestamp, extra)
        self._learn(line.data, shared, trace)
        return measurement

    def parse_text(self, data: bytes) -> Measurement | None:
        """Return the measurement of a line that repeats what others said, else None.

        Five times faster than parsing its JSON, and what :meth:`parse` would return.
        """
        parts = cut_line(data) if len(data) <= _MAX_TASK_BYTES else None
        if parts is None:
            return None
        task, template, numbers, result, version = parts
        shared = self._known_tasks.get((task, version))
        sketch = shared and self._known_steps.get((template, shared.layout_rewrite))
        if shared is None or sketch is None:
            return None
        try:
            costs, error_no, all_cost, timestamp = orjson.loads(result)
            if type(timestamp) is not int or type(costs) is not list:
                return None
            # An integer beyond 64 bits is a float here.
            if max(all_cost, *costs) >= INT64:
                return None
            trace = Trace(sketch, None, numbers)
            return _measurement(shared, trace, costs, error_no, all_cost, timestamp, None)
        except (TypeError, ValueError, FormatError):
            return None

    def _learn(self, data: bytes, shared: _Task, trace: Trace) -> None:
        """Remember what the texts of a line mean."""
        parts = cut_line(data) if len(data) <= _MAX_TASK_BYTES else None
        # The packed numbers prove that both ways keep the same ones apart.
        if parts is None or parts[2] != trace.decisions:
            return
        for known in (self._known_tasks, self._known_steps):
            if len(known) >= _MAX_TASKS:
                known.clear()
        task, template, _, _, version = parts
        self._known_tasks[task, version] = shared
        self._known_steps[template, shared.layout_rewrite] = trace.sketch

    def _task(self, task: list[Any], version: str) -> _Task:
        """Return what lines with this task share."""
        try:
            # The key tells 1, 1.0 and true apart, so that a line is judged as if it stood alone.
            key = orjson.dumps((version, task))
        except TypeError as error:  # nested deeper than orjson writes
            raise FormatError(f"cannot store a task: {error}") from None
        known = self._tasks.get(key)
        if known is None:
            known = _read_task(task, version, self._model)
            if len(key) <= _MAX_TASK_BYTES:
                if len(self._tasks) >= _MAX_TASKS:
                    self._tasks.clear()
                self._tasks[key] = known
        return known


def _measurement(
    shared: _Task,
    trace: Trace,
    costs: list[Any],
    error_no: Any,
    all_cost: Any,
    timestamp: Any,
    extra: bytes | None,
) -> Measurement:
    """Return the measurement of a line's parts, or raise FormatError for a bad result."""
    times = _times(costs)
    status, failure = outcome_of(times, error_no)
    context = failed_context(shared.context, error_no) if error_no else shared.context
    return Measurement(
        Program(shared.workload, shared.target, trace),
        times,
        status,
        _microseconds(timestamp),
        all_cost=_seconds(all_cost, "all_cost"),
        context=context,
        extra=extra,
        failure=failure,
    )


def _model_of(path: Path) -> str | None:
    """Return the folder below ``measure_records`` in which a file lies."""
    folders = path.absolute().parent.parts
    for folder, model in pairwise(folders):
        if folder == "measure_records":
            return clean_text(model)
    return None


def _read_task(task: list[Any], version: str, model: str | None) -> _Task:
    """Return what is in the items of a task."""
    is_first_v05 = len(task) == len(_FIRST_V05) and type(task[2]) is int
    items = _FIRST_V05 if is_first_v05 else _ITEMS
    if not 2 <= len(task) <= len(items):
        raise FormatError(f"a task must have 2 to 6 items, not {len(task)}")
    values = dict(zip(items, task, strict=False))
    for name, value in values.items():
        if not _is_item(name, value):
            raise FormatError(f"a task's {name} cannot be {shown(value)}")
    if len(version) > limits.MAX_VERSION_CHARS:
        raise FormatError(f"a version of {len(version)} characters")
    workload = _workload(values.pop("workload_key"))
    target = _target(values["target"], model)
    layout_rewrite = values.pop("layout_rewrite_option", None)
    context = {"log": "ansor", "version": version, **values}
    if is_first_v05:
        context["order"] = "first v0.5"
    return _Task(workload, target, layout_rewrite, canonical_json(context))


def _is_item(name: str, value: Any) -> bool:
    """Tell whether the value of a task's item has its type."""
    if name == "hardware_params":
        return isinstance(value, list) and all(
            type(item) is int and -INT64 <= item < INT64 for item in value
        )
    if name == "layout_rewrite_option":
        return type(value) is int and 0 <= value < len(LAYOUT_REWRITES)
    if name == "task_input_names":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, str)


def _workload(key: str) -> Workload:
    """Return the workload of a key: JSON of a list whose head is a function's name or a hash."""
    try:
        value = orjson.loads(key)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"a workload key is not JSON: {error}") from None
    if not (isinstance(value, list) and value and isinstance(value[0], str)):
        raise FormatError("a workload key must be [name or hash, …]")
    check_depth(value, "a workload key")
    head = value[0]
    name = clean_text(head)
    if _HASH.fullmatch(head):
        # The extents are all that tells people such workloads apart.
        extents = [str(item) for item in value[1:] if type(item) is int]
        name = " ".join(filter(None, (head[:8], ",".join(extents))))
    name = name[: limits.MAX_NAME_CHARS]
    return Workload(WorkloadFormat.ANSOR, key.encode(), name)


def _target(text: str, model: str | None) -> Target:
    """Return the target of a text, with the model of TenSet's folder where it has none."""
    target = parse_target(text)
    attributes = target.attributes
    if model is None or attributes is None or "model" in attributes:
        return target
    return Target(target.kind, canonical_json({**attributes, "model": model}), text)


def _times(costs: list[Any]) -> tuple[float, ...]:
    """Return the costs of all repeats in seconds."""
    if len(costs) == 1:  # the speed of a reader is that of its every line
        return (_seconds(costs[0], "cost"),)
    if len(costs) > limits.MAX_RUN_SECS:
        raise FormatError(f"{len(costs)} costs are over the limit of {limits.MAX_RUN_SECS}")
    return tuple([_seconds(cost, "cost") for cost in costs])


def _seconds(value: Any, what: str) -> float:
    """Return a time in seconds that a clock can give."""
    if type(value) is float and 0.0 <= value < float("inf"):
        return value
    if type(value) is int and 0 <= value == float(value):
        return float(value)
    raise FormatError(f"{what} {shown(value)} is not a time in seconds")


def _microseconds(timestamp: Any) -> int:
    """Return a time since 1970 in microseconds."""
    if type(timestamp) is int and 0 <= timestamp < _MAX_TIMESTAMP:
        return timestamp * 1_000_000
    # Only edited logs have fractions: TVM casts to int.
    if type(timestamp) is float and 0.0 <= timestamp < _MAX_TIMESTAMP:
        return round(timestamp * 1e6)
    raise FormatError(f"timestamp {shown(timestamp)} is not a time in seconds since 1970")


def _timestamp(measured_at: int) -> float:
    """Return microseconds as seconds, whole ones as an integer."""
    seconds, rest = divmod(measured_at, 1_000_000)
    return measured_at / 1e6 if rest else seconds


def _extra(value: dict[str, Any], measured_at: int) -> bytes | None:
    """Return what only this line says: unknown keys, and a timestamp finer than microseconds."""
    extra: dict[str, Any] = {}
    keys = {key: item for key, item in value.items() if key not in ("i", "r", "v")}
    if keys:
        check_depth(keys, "unknown keys")
        extra["keys"] = keys
    timestamp = value["r"][3]
    if timestamp != _timestamp(measured_at):
        extra["timestamp"] = timestamp
    return canonical_json(extra) if extra else None
