"""Logs of auto_scheduler (Ansor), versions v0.2 to v0.6, and the measurements of TenSet.

A line is ``{"i": [task, [[], steps]], "r": [costs, error_no, all_cost, timestamp], "v": "v0.6"}``
(``src/auto_scheduler/measure_record.cc``, apache/tvm v0.7 to v0.19). The items of a task determine
its version more reliably than ``v``: edited logs mix versions.
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

#: Items of a task, in order; a line has the first 2 to 6 of them.
_ITEMS = (
    "workload_key",
    "target",
    "hardware_params",
    "target_host",
    "layout_rewrite_option",
    "task_input_names",
)

#: Items of a task in the v0.5 that TVM wrote from 2020-12-23 (#7144) to 2020-12-28 (#7156). TVM
#: itself could not read these lines.
_FIRST_V05 = (
    "workload_key",
    "target",
    "layout_rewrite_option",
    "hardware_params",
    "target_host",
)

#: Cache limits of a reader: tasks, and bytes of one task. A network has about 30 tasks.
_MAX_TASKS = 512
_MAX_TASK_BYTES = 16_384

_HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MAX_TIMESTAMP = INT64 // 1_000_000
_SHAPE = "a line is {i: [task, [[], steps]], r: [costs, error_no, all_cost, timestamp], v: version}"
_DAMAGED = "the record belongs to another log, or is damaged"


class _AnsorTask(NamedTuple):
    """The parsed data that all lines of one task share."""

    workload: Workload
    target: Target
    layout_rewrite: int | None
    context: bytes


class AnsorFormat:
    """Lines of auto_scheduler (:class:`tunedb.formats.base.LineFormat` and ``LineWriter``)."""

    name = "ansor"

    def matches(self, value: Any) -> bool:
        """Return True for a line of auto_scheduler; ``v`` is text there, a number in AutoTVM."""
        return (
            isinstance(value, dict)
            and isinstance(value.get("v"), str)
            and "i" in value
            and "r" in value
            and "input" not in value
        )

    def companions(self, path: Path) -> list[Path]:
        """Return no file: every line is self-contained."""
        return []

    def reader(self, file: LogFile) -> AnsorReader:
        """Return a reader of one file's lines."""
        return AnsorReader(file.path)

    def writes(self, workload: Workload) -> bool:
        """Return True for a workload of auto_scheduler."""
        return workload.format == WorkloadFormat.ANSOR

    def write_line(self, record: Record) -> bytes:
        """Return the record's original line, up to spaces and the order of keys.

        Raises
        ------
        FormatError
            The stored record is damaged, or does not come from an Ansor log.
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
    """Return the JSON object in a stored column."""
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
    """Return the task of a line as a JSON list."""
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
    """Parser of one file's lines (:class:`tunedb.formats.base.LineReader`).

    Parameters
    ----------
    path : Path or None
        The file. A folder of TenSet, ``measure_records/<model>/``, names the processor model. The
        reader adds it to targets without a model.
    """

    def __init__(self, path: Path | None) -> None:
        self._model = None if path is None else _model_of(path)
        self._tasks: dict[bytes, _AnsorTask] = {}
        # Results of parse() by repeated text of lines (tunedb.formats._ansor_line).
        self._cached_tasks: dict[tuple[bytes, bytes], _AnsorTask] = {}
        self._cached_steps: dict[tuple[bytes, int | None], bytes] = {}

    def begin(self) -> Iterator[Item]:
        """Yield nothing."""
        return iter(())

    def parse(self, value: Any, line: Line) -> Measurement | None:
        """Return the measurement of a line; None for a comment, which begins with a space.

        Raises
        ------
        FormatError
            The line cannot be parsed.
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
        self._cache(line.data, shared, trace)
        return measurement

    def parse_text(self, data: bytes) -> Measurement | None:
        """Return the measurement of a line whose task and sketch are cached, else None.

        Equal to the result of :meth:`parse`, and five times faster than parsing JSON.
        """
        parts = cut_line(data) if len(data) <= _MAX_TASK_BYTES else None
        if parts is None:
            return None
        task, template, numbers, result, version = parts
        shared = self._cached_tasks.get((task, version))
        sketch = shared and self._cached_steps.get((template, shared.layout_rewrite))
        if shared is None or sketch is None:
            return None
        try:
            costs, error_no, all_cost, timestamp = orjson.loads(result)
            if type(timestamp) is not int or type(costs) is not list:
                return None
            # orjson parses an integer beyond 64 bits as a float.
            if max(all_cost, *costs) >= INT64:
                return None
            trace = Trace(sketch, None, numbers)
            return _measurement(shared, trace, costs, error_no, all_cost, timestamp, None)
        except (TypeError, ValueError, FormatError):
            return None

    def _cache(self, data: bytes, shared: _AnsorTask, trace: Trace) -> None:
        """Cache the parsed task and sketch of a line for :meth:`parse_text`."""
        parts = cut_line(data) if len(data) <= _MAX_TASK_BYTES else None
        # Equal packed numbers prove that both parsers separate the same numbers.
        if parts is None or parts[2] != trace.decisions:
            return
        for cache in (self._cached_tasks, self._cached_steps):
            if len(cache) >= _MAX_TASKS:
                cache.clear()
        task, template, _, _, version = parts
        self._cached_tasks[task, version] = shared
        self._cached_steps[template, shared.layout_rewrite] = trace.sketch

    def _task(self, task: list[Any], version: str) -> _AnsorTask:
        """Return the cached or parsed task."""
        try:
            # The key distinguishes 1, 1.0 and true: the cache must not change a line's result.
            key = orjson.dumps((version, task))
        except TypeError as error:  # nested deeper than orjson writes
            raise FormatError(f"cannot store a task: {error}") from None
        parsed = self._tasks.get(key)
        if parsed is None:
            parsed = _read_task(task, version, self._model)
            if len(key) <= _MAX_TASK_BYTES:
                if len(self._tasks) >= _MAX_TASKS:
                    self._tasks.clear()
                self._tasks[key] = parsed
        return parsed


def _measurement(
    shared: _AnsorTask,
    trace: Trace,
    costs: list[Any],
    error_no: Any,
    all_cost: Any,
    timestamp: Any,
    extra: bytes | None,
) -> Measurement:
    """Return the measurement of a line, or raise FormatError for a bad result."""
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
    """Return the name of the folder below ``measure_records`` that contains a file."""
    folders = path.absolute().parent.parts
    for folder, model in pairwise(folders):
        if folder == "measure_records":
            return clean_text(model)
    return None


def _read_task(task: list[Any], version: str, model: str | None) -> _AnsorTask:
    """Return the parsed items of a task."""
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
    return _AnsorTask(workload, target, layout_rewrite, canonical_json(context))


def _is_item(name: str, value: Any) -> bool:
    """Return True if the value of a task's item has the expected type."""
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
        # Users can distinguish such workloads by their extents only.
        extents = [str(item) for item in value[1:] if type(item) is int]
        name = " ".join(filter(None, (head[:8], ",".join(extents))))
    name = name[: limits.MAX_NAME_CHARS]
    return Workload(WorkloadFormat.ANSOR, key.encode(), name)


def _target(text: str, model: str | None) -> Target:
    """Return the target of a text, with the model of TenSet's folder if the text has none."""
    target = parse_target(text)
    attributes = target.attributes
    if model is None or attributes is None or "model" in attributes:
        return target
    return Target(target.kind, canonical_json({**attributes, "model": model}), text)


def _times(costs: list[Any]) -> tuple[float, ...]:
    """Return the costs of all repeats in seconds."""
    if len(costs) == 1:  # the common case, on the hot path of every line
        return (_seconds(costs[0], "cost"),)
    if len(costs) > limits.MAX_RUN_SECS:
        raise FormatError(f"{len(costs)} costs are over the limit of {limits.MAX_RUN_SECS}")
    return tuple([_seconds(cost, "cost") for cost in costs])


def _seconds(value: Any, what: str) -> float:
    """Return a finite time of at least 0 seconds, or raise FormatError."""
    if type(value) is float and 0.0 <= value < float("inf"):
        return value
    if type(value) is int and 0 <= value == float(value):
        return float(value)
    raise FormatError(f"{what} {shown(value)} is not a time in seconds")


def _microseconds(timestamp: Any) -> int:
    """Return a time since 1970 in microseconds."""
    if type(timestamp) is int and 0 <= timestamp < _MAX_TIMESTAMP:
        return timestamp * 1_000_000
    # TVM casts to int: only edited logs have fractions.
    if type(timestamp) is float and 0.0 <= timestamp < _MAX_TIMESTAMP:
        return round(timestamp * 1e6)
    raise FormatError(f"timestamp {shown(timestamp)} is not a time in seconds since 1970")


def _timestamp(measured_at: int) -> float:
    """Return microseconds as seconds, whole ones as an integer."""
    seconds, rest = divmod(measured_at, 1_000_000)
    return measured_at / 1e6 if rest else seconds


def _extra(value: dict[str, Any], measured_at: int) -> bytes | None:
    """Return data with no field of its own: unknown keys, timestamps finer than microseconds."""
    extra: dict[str, Any] = {}
    keys = {key: item for key, item in value.items() if key not in ("i", "r", "v")}
    if keys:
        check_depth(keys, "unknown keys")
        extra["keys"] = keys
    timestamp = value["r"][3]
    if timestamp != _timestamp(measured_at):
        extra["timestamp"] = timestamp
    return canonical_json(extra) if extra else None
