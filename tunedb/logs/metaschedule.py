"""MetaSchedule's ``JSONDatabase``: a work directory with two files.

``database_workload.json``
    A line ``["<structural hash>", "<base64>"]`` for each workload; the base64 holds 8 bytes of
    little-endian length and the JSON text of the ffi object graph.
``database_tuning_record.json``
    A line ``[workload, [trace, run_secs, target, args_info]]`` for each record; ``workload`` is
    the number of its line in the other file, from 0.

(``src/s_tir/meta_schedule/database/json_database.cc``, apache/tvm 0.27.) Lines are read without
TVM and one by one, so that a bad one costs only itself.
"""

from __future__ import annotations

import base64
import math
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from .. import limits
from ..errors import FormatError
from ..identity import canonical_json, canonical_numbers
from ..records import Measurement, Program, Quarantined, Target, Trace, Workload
from ..times import mean_of, status_of
from ..traces import MAX_DEPTH, check_trace, split_trace
from .base import Parsed
from .lines import Line, read_lines

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"

#: ``Workload.format`` of the ffi object graph of an IRModule (TVM >= 0.22).
GRAPH = "tvm-graph"

_LENGTH = struct.Struct("<q")


class MetaScheduleFormat:
    """Work directories of TVM MetaSchedule (see :class:`tunedb.logs.base.LogFormat`)."""

    name = "metaschedule"

    def matches(self, path: Path) -> bool:
        """Tell whether `path` is a work directory or its record file."""
        if path.is_dir():
            return (path / RECORDS).is_file()
        return path.name == RECORDS and path.is_file()

    def files(self, path: Path) -> list[Path]:
        """Return the two files of the work directory."""
        folder = path if path.is_dir() else path.parent
        return [file for file in (folder / WORKLOADS, folder / RECORDS) if file.is_file()]

    def read(self, path: Path) -> Iterator[Parsed]:
        """Yield the records of a work directory, and its bad lines as quarantined."""
        folder = path if path.is_dir() else path.parent
        workloads: list[Workload | str] = []
        position = 0
        if (folder / WORKLOADS).is_file():
            for line in read_lines(folder / WORKLOADS):
                position = line.position
                try:
                    workloads.append(parse_workload(line.data))
                except FormatError as error:
                    workloads.append(str(error))
                    yield _quarantined(folder / WORKLOADS, line, str(error), position)
        yield from self._read_records(folder / RECORDS, workloads, position)

    def _read_records(
        self, file: Path, workloads: list[Workload | str], offset: int
    ) -> Iterator[Parsed]:
        """Yield the records of one file, given the workloads or what is wrong with them."""
        reader = _RecordReader(workloads)
        for line in read_lines(file):
            if not line.data.strip():
                continue
            position = offset + line.position
            try:
                yield Parsed(reader.parse(line), position)
            except FormatError as error:
                yield _quarantined(file, line, str(error), position)


def _quarantined(file: Path, line: Line, reason: str, position: int) -> Parsed:
    if not line.is_whole and not line.too_long:
        reason += " (the line is cut off: its writer was killed)"
    data = line.data[: limits.MAX_QUARANTINE_BYTES]
    return Parsed(Quarantined(str(file), line.number, reason, data), position)


def _parse_json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error}") from None


def _check_depth(value: Any, depth: int) -> None:
    """Raise FormatError for lists and dictionaries nested too deep to be walked and written."""
    if depth == 0:
        raise FormatError("nested too deep")
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, list | dict):
            _check_depth(item, depth - 1)


def parse_workload(data: bytes) -> Workload:
    """Return the workload of a line.

    Raises
    ------
    FormatError
        It is no workload, or one of a TVM before 0.22, whose graph nothing of today reads.
    """
    value = _parse_json(data)
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[1], str)):
        raise FormatError("a workload is [hash, base64]")
    try:
        raw = base64.b64decode(value[1], validate=True)
    except ValueError as error:  # binascii.Error, or text that is not ASCII
        raise FormatError(f"a workload's base64 is damaged: {error}") from None
    if len(raw) < _LENGTH.size or _LENGTH.unpack_from(raw)[0] != len(raw) - _LENGTH.size:
        raise FormatError("a workload's length does not fit its text")
    graph = _parse_json(raw[_LENGTH.size :])
    if not isinstance(graph, dict):
        raise FormatError("a workload's text is no graph")
    if "root" in graph:
        attrs = graph.get("attrs")
        version = attrs.get("tvm_version", "before 0.22") if isinstance(attrs, dict) else "?"
        raise FormatError(f"a graph of TVM {version}; tunedb reads those since 0.22")
    if "root_index" not in graph or not isinstance(graph.get("nodes"), list):
        raise FormatError("a workload's graph has no root_index or nodes")
    _check_depth(graph, MAX_DEPTH)
    metadata = graph.pop("metadata", None) or {}
    version = metadata.get("tvm_version") if isinstance(metadata, dict) else None
    return Workload(
        GRAPH,
        canonical_json(graph),
        name=_graph_name(graph["nodes"]),
        tvm_version=version if isinstance(version, str) else None,
    )


def _graph_name(nodes: list[Any]) -> str:
    """Return a name for people: the block that reduces, or the last one.

    As the plugin names live workloads, as far as that can be told without TVM.
    """
    name = "main"
    for node in nodes:
        if not isinstance(node, dict) or not str(node.get("type", "")).endswith(".SBlock"):
            continue
        data = node.get("data")
        if not isinstance(data, dict):
            continue
        text = _referred(nodes, data.get("name_hint"))
        if not isinstance(text, str) or text == "root":
            continue
        name = text
        if _referred(nodes, data.get("init")) is not None:
            return name
    return name


def _referred(nodes: list[Any], index: Any) -> Any:
    """Return the data of the node that a field refers to, or None."""
    if type(index) is not int or not 0 <= index < len(nodes) or not isinstance(nodes[index], dict):
        return None
    return nodes[index].get("data")


class _RecordReader:
    """Parses record lines of one file; remembers what lines share."""

    def __init__(self, workloads: list[Workload | str]) -> None:
        self._workloads = workloads
        self._targets: dict[bytes, Target] = {}
        self._seen: Counter[bytes] = Counter()

    def parse(self, line: Line) -> Measurement:
        """Return the measurement of a line, or raise FormatError."""
        if line.too_long:
            raise FormatError(f"longer than {limits.MAX_LINE_BYTES} bytes")
        value = _parse_json(line.data)
        if not (isinstance(value, list) and len(value) == 2 and isinstance(value[1], list)):
            raise FormatError("a record is [workload, [trace, run_secs, target, args_info]]")
        index, fields = value
        if len(fields) != 4:
            raise FormatError(f"a record has 4 fields, not {len(fields)}")
        trace, run_secs, target, args_info = fields
        program = Program(self._workload(index), self._target(target), _trace(trace))
        times = _run_secs(run_secs)
        args = None if args_info is None else _args_info(args_info)
        measurement = Measurement(program, times, status_of(times), args_info=args)
        # Equal lines of one file are as many measurements; the same file read again is none.
        occurrence = self._seen[measurement.digest]
        self._seen[measurement.digest] += 1
        if not occurrence:
            return measurement
        return Measurement(
            program, times, measurement.status, occurrence=occurrence, args_info=args
        )

    def _workload(self, index: Any) -> Workload:
        if type(index) is not int or not 0 <= index < len(self._workloads):
            raise FormatError(f"its workload {index!r} is not in {WORKLOADS}")
        workload = self._workloads[index]
        if isinstance(workload, str):
            raise FormatError(f"its workload (line {index + 1}) was not understood: {workload}")
        return workload

    def _target(self, config: Any) -> Target:
        if config is not None and not (
            isinstance(config, dict) and isinstance(config.get("kind"), str)
        ):
            raise FormatError("a target is a configuration with a kind, or null")
        if config is not None and "\0" in config["kind"]:
            raise FormatError("a target's kind holds NUL, which PostgreSQL could not keep")
        _check_depth(config or {}, MAX_DEPTH)
        key = canonical_json(config)
        if key not in self._targets:
            self._targets[key] = Target.from_config(config)
        return self._targets[key]


def _trace(value: Any) -> Trace:
    instructions, decisions = check_trace(value)
    return split_trace(instructions, decisions)


def _run_secs(value: Any) -> tuple[float, ...] | None:
    """Return run times, or raise FormatError for what no clock gives."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > limits.MAX_RUN_SECS:
        raise FormatError("run_secs is a list of numbers, or null")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int | float):
            raise FormatError(f"run_secs holds {item!r}, which is no number")
        if not math.isfinite(item):
            raise FormatError(f"run_secs holds {item!r}, which is not finite")
    times = tuple(float(item) for item in value)
    if times and not math.isfinite(mean_of(times)):
        raise FormatError("run_secs has a mean that is not finite")
    return times


def _args_info(value: Any) -> bytes:
    if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
        raise FormatError("args_info is a list of argument descriptions, or null")
    _check_depth(value, MAX_DEPTH)
    return canonical_json(canonical_numbers(value))
