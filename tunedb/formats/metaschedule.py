"""MetaSchedule's ``JSONDatabase`` of TVM 0.8 to 0.27: a work directory with two files.

``database_workload.json``
    A line ``["<structural hash>", "<base64>"]`` for each workload
    (:mod:`tunedb.formats.metaschedule`).
``database_tuning_record.json``
    A line ``[workload, [trace, run_secs, target, args_info]]`` for each record; ``workload`` is
    the number of its line in the other file, from 0.

(``src/s_tir/meta_schedule/database/json_database.cc``, apache/tvm 0.27; TVM's testing scripts call
them ``<task>_workload.json`` and ``<task>_candidates.json``.) The reader needs no TVM. It parses
each line on its own, so a bad line loses no others. Traces are stored unchanged
(:mod:`tunedb.programs.metaschedule.upgrade` converts them to today's instructions).

Workload lines may also precede the records in one stream (``cat workload.json record.json``): each
run of workload lines is the list that the following records refer to.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from .. import limits
from ..errors import FormatError
from ..identity import canonical_json, canonical_numbers
from ..json_checks import check_value, parse_json
from ..programs.metaschedule.graph_text import stored_text, text_of_tvm
from ..programs.metaschedule.index_maps import release_of
from ..programs.metaschedule.trace import check_trace, join_trace, split_trace
from ..programs.metaschedule.upgrade import as_of
from ..records import (
    Measurement,
    Program,
    Quarantined,
    Status,
    Target,
    Workload,
    WorkloadFormat,
)
from ..results import Record
from ..run_times import mean_of, status_of
from ..system.compression import compress, decompress
from .base import Item, Line, LogFile, read_lines
from .streams import open_log

# ---- Lines of MetaSchedule's workload file: ``["<structural hash>", "<base64>"]`` ----------------
#
# The base64 holds 8 bytes of little-endian length and the JSON text of an IRModule, in one of two
# encodings: tvm-ffi's object graph (TVM >= 0.22, ``root_index`` and ``nodes``) or the node list of
# earlier releases (``root`` and ``nodes``, every attribute as text). The hash is not stored: it
# depends on the release that computed it, and TVM has ignored it on reading since 0.12.

_LENGTH = struct.Struct("<q")

#: Key of the object that holds the TVM version, by encoding.
_VERSION_KEYS = {WorkloadFormat.GRAPH: "metadata", WorkloadFormat.NODES: "attrs"}
_VERSION = "tvm_version"


def is_workload_line(value: Any) -> bool:
    """Return True if a JSON value has the shape of a workload line."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], str)
        and value[0].isascii()
        and value[0].isdecimal()
    )


def parse_workload(value: Any) -> Workload:
    """Return the workload of a line's value.

    Raises
    ------
    FormatError
        The value is not a workload.
    """
    if not is_workload_line(value):
        raise FormatError("a workload must be [hash, base64]")
    try:
        raw = base64.b64decode(value[1], validate=True)
    except ValueError as error:  # binascii.Error, or text that is not ASCII
        raise FormatError(f"a workload's base64 is damaged: {error}") from None
    if len(raw) < _LENGTH.size or _LENGTH.unpack_from(raw)[0] != len(raw) - _LENGTH.size:
        raise FormatError("a workload's length does not match its text")
    text = stored_text(raw[_LENGTH.size :])
    graph = parse_json(text)
    if not isinstance(graph, dict):
        raise FormatError("a workload's text is not a graph")
    check_value(graph, "a workload's graph")
    encoding = _encoding_of(graph)
    version = _pop_version(graph, _VERSION_KEYS[encoding])
    name = _graph_name(graph["nodes"]) if encoding is WorkloadFormat.GRAPH else _list_name(graph)
    return Workload(encoding, canonical_json(graph), name=name, tvm_version=version)


def workload_line(workload: Workload) -> bytes:
    """Return the line of a workload, with its line break; its hash is 0.

    Raises
    ------
    FormatError
        The workload is not an IRModule, or is damaged.
    """
    try:
        key = _VERSION_KEYS[WorkloadFormat(workload.format)]
        graph = orjson.loads(workload.body)
        if workload.tvm_version is not None:
            graph[key] = {**graph.get(key, {}), _VERSION: workload.tvm_version}
    except (KeyError, ValueError, TypeError, AttributeError):
        raise FormatError(f"workload {workload.name!r} is not an IRModule, or damaged") from None
    text = text_of_tvm(orjson.dumps(graph))
    body = base64.b64encode(_LENGTH.pack(len(text)) + text).decode()
    return orjson.dumps(["0", body]) + b"\n"


def _encoding_of(graph: dict[str, Any]) -> WorkloadFormat:
    """Return the encoding of a module."""
    if isinstance(graph.get("nodes"), list):
        if type(graph.get("root_index")) is int:
            return WorkloadFormat.GRAPH
        if type(graph.get("root")) is int:
            return WorkloadFormat.NODES
    raise FormatError("a workload's graph has no root_index (or root) and nodes")


def _pop_version(graph: dict[str, Any], key: str) -> str | None:
    """Remove the TVM version from a graph and return it; other metadata stay."""
    metadata = graph.get(key)
    if not isinstance(metadata, dict):
        return None
    version = metadata.get(_VERSION)
    if isinstance(version, str):
        del metadata[_VERSION]
    if not metadata:
        del graph[key]
    return version if isinstance(version, str) else None


def _graph_name(nodes: list[Any]) -> str:
    """Return a readable name, as the plugin names live workloads: see :func:`_name_of`."""
    blocks = []
    for node in nodes:
        if not isinstance(node, dict) or not str(node.get("type", "")).endswith(".SBlock"):
            continue
        data = node.get("data")
        if isinstance(data, dict):
            name = _field(nodes, data.get("name_hint"), "data")
            blocks.append((name, _field(nodes, data.get("init"), "data") is not None))
    return _name_of(blocks)


def _list_name(graph: dict[str, Any]) -> str:
    """Return the name of a module in the old encoding, as :func:`_graph_name` does."""
    nodes, blocks = graph["nodes"], []
    for node in nodes:
        if not isinstance(node, dict) or node.get("type_key") != "tir.Block":
            continue
        attrs = node.get("attrs")
        if isinstance(attrs, dict):
            name = _field(nodes, _index(attrs.get("name_hint")), "repr_str")
            # Node 0 is null.
            blocks.append((name, attrs.get("init", "0") != "0"))
    return _name_of(blocks)


def _name_of(blocks: list[tuple[Any, bool]]) -> str:
    """Return the name of the first block that reduces, or of the last one."""
    named = [(name, reduces) for name, reduces in blocks if isinstance(name, str)]
    named = [(name, reduces) for name, reduces in named if name != "root"]
    if not named:
        return "main"
    return next((name for name, reduces in named if reduces), named[-1][0])


def _index(text: Any) -> int | None:
    """Return the node number in an attribute of the old encoding, which is text; or None."""
    if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    return None


def _field(nodes: list[Any], index: Any, field: str) -> Any:
    """Return a field of the node that an index refers to, or None."""
    if type(index) is not int or not 0 <= index < len(nodes) or not isinstance(nodes[index], dict):
        return None
    return nodes[index].get(field)


# ---- The format ----------------------------------------------------------------------------------

__all__ = [
    "RECORDS",
    "WORKLOADS",
    "MetaScheduleFormat",
    "RecordParser",
    "companion_of",
    "parse_workload",
    "record_fields",
    "workload_line",
]

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"

#: Names of record files; ``workload`` in place of the middle gives the workload file's name.
_RECORD_NAME = re.compile(r"(.*)(?:tuning_record|candidates)(.*)", re.DOTALL)

#: Beginning of a workload line, which may follow a truncated line on the same line.
_WORKLOAD_BEGIN = re.compile(rb'\["-?\d+(?:$|"\s*(?:$|,\s*(?:$|")))')
#: Beginning of a record line, and of one of which nobody can tell what it was.
_RECORD_BEGIN = re.compile(rb"\s*\[\s*(?:\d|$)")

_PACKED = ("", ".gz", ".xz", ".bz2", ".zst")

_FIELDS = 4

_TOO_MANY = "too many workloads to hold in memory (limits.MAX_WORKLOADS_BYTES); split the file"

#: Bytes of an entry in the list of workloads, without its module.
_ENTRY_BYTES = 200

#: Size of a reader's cache of targets; a work directory has one or two.
_MAX_TARGETS = 256


class MetaScheduleFormat:
    """Lines of MetaSchedule's work directories (see :class:`tunedb.formats.base.LineFormat`)."""

    name = "metaschedule"

    def matches(self, value: Any) -> bool:
        """Return True for a workload line, or for a number with a record."""
        return is_workload_line(value) or (
            isinstance(value, list)
            and len(value) == 2
            and type(value[0]) is int
            and isinstance(value[1], list)
        )

    def companions(self, path: Path) -> list[Path]:
        """Return the workload file of a record file, matched by name."""
        companion = companion_of(path, ".json")
        return [] if companion is None else [companion]

    def reader(self, file: LogFile) -> _MetaScheduleReader:
        """Return a reader of one file's lines."""
        return _MetaScheduleReader(file)


def companion_of(path: Path, suffix: str) -> Path | None:
    """Return the workload file beside a record file, or None; either may be compressed.

    Parameters
    ----------
    path : Path
        The record file.
    suffix : str
        Suffix of both names: ``.json``.
    """
    packed = next((end for end in _PACKED[1:] if path.name.endswith(end)), "")
    match = _RECORD_NAME.fullmatch(path.name.removesuffix(packed))
    if match is None or not match[2].endswith(suffix):
        return None
    plain = f"{match[1]}workload{match[2]}"
    candidates = [path.with_name(plain + end) for end in (packed, *_PACKED)]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


class _MetaScheduleReader:
    """Parser of one file's lines (see :class:`tunedb.formats.base.LineReader`)."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._records = RecordParser()
        # Line number of the first workload in the current run of workload lines.
        self._run: int | None = None
        self._has_companion = False
        # True if an unrecognised line that may be a workload came after the start of the last run,
        # and if one came before that run.
        self._lost = self._is_uncertain = False

    def begin(self) -> Iterator[Item]:
        """Yield the workloads of the companion file, and its bad lines as quarantined."""
        path = None if self._file.path is None else companion_of(self._file.path, ".json")
        if path is None:
            return
        self._has_companion = True
        self._records.begin_workloads()
        try:
            with open_log(path) as (stream, position):
                for line in read_lines(stream, position):
                    if self._records.is_full:
                        raise FormatError(_TOO_MANY)
                    yield from self._read_workload(path, line)
        except FormatError as error:  # an archive, or compressed data that is damaged
            yield Quarantined(str(path), 0, str(error), b"")

    def _read_workload(self, path: Path, line: Line) -> Iterator[Item]:
        if not line.data.strip():
            self._records.add_bad(line.number - 1, "a blank line")
            return
        try:
            yield self._records.add_workload(line.number - 1, _value_of(line))
        except FormatError as error:
            self._records.add_bad(line.number - 1, str(error))
            yield _quarantined(path, line, str(error))

    def skip_unrecognised(self, data: bytes) -> None:
        """Note a line that may be a lost workload; inside of a run it keeps its number.

        A truncated record ends a run.
        """
        if _RECORD_BEGIN.match(data) is not None:
            self._lost |= self._run is not None and data.strip() == b"["
            self._run = None
        if self._run is None and _WORKLOAD_BEGIN.search(data) is not None:
            self._lost = True

    def parse(self, value: Any, line: Line) -> Item:
        """Return the workload or measurement of a line (FormatError: it is neither)."""
        if is_workload_line(value):
            if self._run is None:
                self._run = line.number
                self._is_uncertain, self._lost = self._lost, False
                self._records.begin_workloads()
            return self._records.add_workload(line.number - self._run, value)
        self._run = None
        if not self._has_companion and (self._lost or self._is_uncertain):
            raise FormatError(
                "an earlier workload may be missing, so its number may be another one's; "
                "import the two files, not one stream"
            )
        return self._records.parse(value)


def _value_of(line: Line) -> Any:
    if line.too_long:
        raise FormatError(f"longer than {limits.MAX_LINE_BYTES} bytes")
    return parse_json(line.data)


def _quarantined(path: Path, line: Line, reason: str) -> Quarantined:
    if not line.is_whole and not line.too_long:
        reason += " (the line is truncated: its writer was killed)"
    return Quarantined(str(path), line.number, reason, line.data[: limits.MAX_QUARANTINE_BYTES])


class _PackedWorkload(NamedTuple):
    """A workload, compressed until its records are read."""

    format: str
    body: bytes
    name: str
    tvm_version: str | None

    @classmethod
    def from_workload(cls, workload: Workload) -> _PackedWorkload:
        """Compress a workload."""
        return cls(workload.format, compress(workload.body), workload.name, workload.tvm_version)

    def unpack(self) -> Workload:
        """Return the workload."""
        return Workload(self.format, decompress(self.body), self.name, self.tvm_version)


class RecordParser:
    """Parser of records that refer to workloads by number; caches workloads and targets."""

    def __init__(self) -> None:
        # Each a workload, or the reason why it is quarantined; None without a list of workloads.
        self._workloads: list[_PackedWorkload | str] | None = None
        self._bytes = 0
        # Records of one workload are adjacent, so a small cache suffices.
        self._unpack = lru_cache(maxsize=8)(_PackedWorkload.unpack)
        self._targets: dict[bytes, Target] = {}

    def begin_workloads(self) -> None:
        """Start a new list of workloads."""
        self._workloads = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """True if the list of workloads has reached its memory limit."""
        return self._bytes > limits.MAX_WORKLOADS_BYTES

    def add_workload(self, index: int, value: Any) -> Workload:
        """Add a workload to the list.

        Parameters
        ----------
        index : int
            Number of the workload; numbers must increase from call to call.
        value : object
            JSON value of the workload line.

        Raises
        ------
        FormatError
            The workload cannot be parsed; records that refer to it will raise too.
        """
        try:
            if self.is_full:
                raise FormatError(_TOO_MANY)
            workload = parse_workload(value)
            packed = _PackedWorkload.from_workload(workload)
            self._bytes += len(packed.body)
        except FormatError as error:
            self.add_bad(index, str(error))
            raise
        self._put(index, packed)
        return workload

    def add_bad(self, index: int, reason: str) -> None:
        """Record why the workload with this number is not in the list."""
        self._put(index, reason)

    def _put(self, index: int, item: _PackedWorkload | str) -> None:
        if self._workloads is None:
            self._workloads = []
        missing = index - len(self._workloads)
        if missing >= 0:
            self._workloads.extend(["no workload line"] * missing)
            self._workloads.append(item)
            self._bytes += _ENTRY_BYTES * (missing + 1) + len(item if isinstance(item, str) else "")

    def parse(self, value: Any) -> Measurement:
        """Return the measurement of ``[workload, [trace, run_secs, target, args_info]]``.

        Raises
        ------
        FormatError
            The record cannot be parsed.
        """
        if not (isinstance(value, list) and len(value) == 2 and isinstance(value[1], list)):
            raise FormatError("a record must be [workload, [trace, run_secs, target, args_info]]")
        index, fields = value
        if len(fields) != _FIELDS:
            raise FormatError(f"a record must have {_FIELDS} fields, not {len(fields)}")
        trace, run_secs, target, args_info = fields
        args = None if args_info is None else _args_info(args_info)
        instructions, decisions = check_trace(trace)
        program = Program(
            self._workload(index, args_info, instructions),
            self._target(target),
            split_trace(instructions, decisions),
        )
        times = _run_secs(run_secs)
        return Measurement(program, times, status_of(times), args_info=args)

    def _workload(self, index: Any, args_info: Any, instructions: list[Any]) -> Workload:
        if type(index) is not int or index < 0:
            raise FormatError(f"a record's workload must be a line number, not {str(index)[:80]!r}")
        if self._workloads is None:
            # Identified by number and arguments, as the module is unknown.
            body = canonical_json([index, canonical_numbers(args_info)])
            return Workload(WorkloadFormat.ARGUMENTS, body, name=_first_block(instructions))
        if index >= len(self._workloads):
            raise FormatError(f"its workload {index} is not in the workload file")
        workload = self._workloads[index]
        if isinstance(workload, str):
            raise FormatError(f"its workload (line {index + 1}) is quarantined: {workload}")
        return self._unpack(workload)

    def _target(self, config: Any) -> Target:
        if config is not None and not (
            isinstance(config, dict) and isinstance(config.get("kind"), str)
        ):
            raise FormatError("a target must be a configuration with a kind, or null")
        if config is not None and "\0" in config["kind"]:
            raise FormatError("a target's kind holds NUL, which PostgreSQL could not keep")
        check_value(config, "a target")
        key = canonical_json(config)
        parsed = self._targets.get(key)
        if parsed is None:
            if len(key) > limits.MAX_TARGET_CHARS:
                raise FormatError(f"a target of {len(key)} bytes is over {limits.MAX_TARGET_CHARS}")
            if len(self._targets) >= _MAX_TARGETS:
                self._targets.clear()
            parsed = self._targets[key] = Target.from_config(config)
        return parsed


def _first_block(instructions: list[Any]) -> str:
    """Return the name of the first block in a trace, the most readable name without a module."""
    names = (attrs[0] for kind, _, attrs, _ in instructions if kind in ("GetSBlock", "GetBlock"))
    return next((name for name in names if isinstance(name, str) and name != "root"), "main")


def _run_secs(value: Any) -> tuple[float, ...] | None:
    """Return finite run times of at least 0 seconds, or raise FormatError."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > limits.MAX_RUN_SECS:
        raise FormatError("run_secs must be a list of numbers, or null")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int | float):
            raise FormatError(f"run_secs holds {str(item)[:80]!r}, which is not a number")
        if not math.isfinite(item) or item < 0 or float(item) != item:
            raise FormatError(f"run_secs holds {item!r}, which is not a time")
    times = tuple(float(item) for item in value)
    if times and not math.isfinite(mean_of(times)):
        raise FormatError("run_secs has a mean that is not finite")
    return times


def _args_info(value: Any) -> bytes:
    if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
        raise FormatError("args_info must be a list of argument descriptions, or null")
    check_value(value, "args_info")
    return canonical_json(canonical_numbers(value))


def record_fields(record: Record) -> list[Any]:
    """Return ``[trace, run_secs, target, args_info]`` of a record, for the TVM of its workload.

    Raises
    ------
    FormatError
        The stored trace is damaged, or the measurement was cut short, which the format cannot tell.
    """
    measurement = record.measurement
    if measurement.status is Status.CUT_SHORT:
        raise FormatError("its measurement was cut short")
    args, program = measurement.args_info, measurement.program
    instructions, decisions = join_trace(program.trace)
    return [
        [as_of(release_of(program.workload.tvm_version), instructions), decisions],
        None if measurement.run_secs is None else list(measurement.run_secs),
        program.target.attributes,
        None if args is None else parse_json(args),
    ]
