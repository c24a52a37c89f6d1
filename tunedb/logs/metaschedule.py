"""MetaSchedule's ``JSONDatabase`` of TVM 0.8 to 0.27: a work directory with two files.

``database_workload.json``
    A line ``["<structural hash>", "<base64>"]`` for each workload
    (:mod:`tunedb.logs.graph_lines`).
``database_tuning_record.json``
    A line ``[workload, [trace, run_secs, target, args_info]]`` for each record; ``workload`` is
    the number of its line in the other file, from 0.

(``src/s_tir/meta_schedule/database/json_database.cc``, apache/tvm 0.27; TVM's testing scripts call
them ``<task>_workload.json`` and ``<task>_candidates.json``.) Lines are read without TVM and one by
one, so that a bad one costs only itself. Traces are kept as they are written
(:mod:`tunedb.upgrades` makes today's of them).

Workload lines may also stand before the records in one stream (``cat workload.json
record.json``): each run of them is the list that the records after it refer to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from .. import limits
from ..compression import compress, decompress
from ..errors import FormatError
from ..identity import canonical_json, canonical_numbers
from ..records import Measurement, Program, Quarantined, Target, Workload, WorkloadFormat
from ..results import Record
from ..times import mean_of, status_of
from ..traces import check_trace, join_trace, split_trace
from ..values import check_value, parse_json
from .base import Item, LogFile
from .graph_lines import (
    is_workload_line,
    parse_workload,
    workload_line,
)
from .lines import Line, read_lines
from .streams import open_log

__all__ = [
    "RECORDS",
    "WORKLOADS",
    "MetaScheduleFormat",
    "Records",
    "companion_of",
    "parse_workload",
    "record_fields",
    "workload_line",
]

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"

#: What record files are called, and what to put there for the workload file's name.
_RECORD_NAME = re.compile(r"(.*)(?:tuning_record|candidates)(.*)", re.DOTALL)

#: How a workload line begins; also in the middle, where a line before it was cut off.
_WORKLOAD_BEGIN = re.compile(rb'\["-?\d+(?:$|"\s*(?:$|,\s*(?:$|")))')

_PACKED = ("", ".gz", ".xz", ".bz2", ".zst")

_FIELDS = 4

_TOO_MANY = "too many workloads to hold in memory (limits.MAX_WORKLOADS_BYTES); split the file"

#: What an entry of a list of workloads takes besides its module, which also counts.
_ENTRY_BYTES = 200

#: Targets that a reader remembers; a work directory has one or two.
_MAX_TARGETS = 256


class MetaScheduleFormat:
    """Lines of MetaSchedule's work directories (see :class:`tunedb.logs.base.LineFormat`)."""

    name = "metaschedule"

    def matches(self, value: Any) -> bool:
        """Tell whether a value is a workload or a number with a record."""
        return is_workload_line(value) or (
            isinstance(value, list)
            and len(value) == 2
            and type(value[0]) is int
            and isinstance(value[1], list)
        )

    def companions(self, path: Path) -> list[Path]:
        """Return the workload file of a record file, judged by their names."""
        found = companion_of(path, ".json")
        return [] if found is None else [found]

    def reader(self, file: LogFile) -> _Reader:
        """Return a reader of one file's lines."""
        return _Reader(file)


def companion_of(path: Path, suffix: str) -> Path | None:
    """Return the workload file beside a record file, or None; either may be compressed.

    Parameters
    ----------
    path : Path
        The record file.
    suffix : str
        How the names of both end: ``.json``.
    """
    packed = next((end for end in _PACKED[1:] if path.name.endswith(end)), "")
    match = _RECORD_NAME.fullmatch(path.name.removesuffix(packed))
    if match is None or not match[2].endswith(suffix):
        return None
    plain = f"{match[1]}workload{match[2]}"
    candidates = [path.with_name(plain + end) for end in (packed, *_PACKED)]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


class _Reader:
    """Reads the lines of one file (see :class:`tunedb.logs.base.LineReader`)."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._records = Records()
        # Line of the first workload of the run that is being read.
        self._run: int | None = None
        self._has_companion = False
        # Whether a line that may have been a workload was lost since the last run began, and
        # whether one was before that run.
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

    def lose_line(self, data: bytes) -> None:
        """Hear of a line that nobody understood: inside of a run its number is still taken."""
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
                "a workload before it may be lost, so its number may mean another one; "
                "import the two files, not one stream"
            )
        return self._records.parse(value)


def _value_of(line: Line) -> Any:
    if line.too_long:
        raise FormatError(f"longer than {limits.MAX_LINE_BYTES} bytes")
    return parse_json(line.data)


def _quarantined(path: Path, line: Line, reason: str) -> Quarantined:
    if not line.is_whole and not line.too_long:
        reason += " (the line is cut off: its writer was killed)"
    return Quarantined(str(path), line.number, reason, line.data[: limits.MAX_QUARANTINE_BYTES])


class _Packed(NamedTuple):
    """A workload as it is kept until its records come."""

    format: str
    body: bytes
    name: str
    tvm_version: str | None

    @classmethod
    def of(cls, workload: Workload) -> _Packed:
        """Return a workload packed."""
        return cls(workload.format, compress(workload.body), workload.name, workload.tvm_version)

    def unpack(self) -> Workload:
        """Return the workload."""
        return Workload(self.format, decompress(self.body), self.name, self.tvm_version)


class Records:
    """Parses records that refer to workloads by number; remembers what records share."""

    def __init__(self) -> None:
        # A workload, or what is wrong with it; None where there is no list of workloads.
        self._workloads: list[_Packed | str] | None = None
        self._bytes = 0
        # Records of one workload stand together, so few have to be unpacked again.
        self._unpack = lru_cache(maxsize=8)(_Packed.unpack)
        self._targets: dict[bytes, Target] = {}

    def begin_workloads(self) -> None:
        """Begin a new list of workloads."""
        self._workloads = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the list takes as much memory as it may."""
        return self._bytes > limits.MAX_WORKLOADS_BYTES

    def add_workload(self, index: int, value: Any) -> Workload:
        """Put a workload into the list.

        Parameters
        ----------
        index : int
            Its number; never below those that were added before.
        value : object
            The workload line as JSON.

        Raises
        ------
        FormatError
            It cannot be understood; records that refer to it cannot be either.
        """
        try:
            if self.is_full:
                raise FormatError(_TOO_MANY)
            workload = parse_workload(value)
            packed = _Packed.of(workload)
            self._bytes += len(packed.body)
        except FormatError as error:
            self.add_bad(index, str(error))
            raise
        self._put(index, packed)
        return workload

    def add_bad(self, index: int, reason: str) -> None:
        """Note why the workload with this number is not in the list."""
        self._put(index, reason)

    def _put(self, index: int, item: _Packed | str) -> None:
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
            It cannot be understood.
        """
        if not (isinstance(value, list) and len(value) == 2 and isinstance(value[1], list)):
            raise FormatError("a record is [workload, [trace, run_secs, target, args_info]]")
        index, fields = value
        if len(fields) != _FIELDS:
            raise FormatError(f"a record has {_FIELDS} fields, not {len(fields)}")
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
            raise FormatError(f"a record's workload is a line number, not {str(index)[:80]!r}")
        if self._workloads is None:
            # All that is known of it: the same number with other arguments is another one.
            body = canonical_json([index, canonical_numbers(args_info)])
            return Workload(WorkloadFormat.ARGUMENTS, body, name=_first_block(instructions))
        if index >= len(self._workloads):
            raise FormatError(f"its workload {index} is not in the workload file")
        workload = self._workloads[index]
        if isinstance(workload, str):
            raise FormatError(f"its workload (line {index + 1}) was not understood: {workload}")
        return self._unpack(workload)

    def _target(self, config: Any) -> Target:
        if config is not None and not (
            isinstance(config, dict) and isinstance(config.get("kind"), str)
        ):
            raise FormatError("a target is a configuration with a kind, or null")
        if config is not None and "\0" in config["kind"]:
            raise FormatError("a target's kind holds NUL, which PostgreSQL could not keep")
        check_value(config, "a target")
        key = canonical_json(config)
        known = self._targets.get(key)
        if known is None:
            if len(key) > limits.MAX_TARGET_CHARS:
                raise FormatError(f"a target of {len(key)} bytes is over {limits.MAX_TARGET_CHARS}")
            if len(self._targets) >= _MAX_TARGETS:
                self._targets.clear()
            known = self._targets[key] = Target.from_config(config)
        return known


def _first_block(instructions: list[Any]) -> str:
    """Return the first block that a trace asks for by name, which tells people most."""
    names = (attrs[0] for kind, _, attrs, _ in instructions if kind in ("GetSBlock", "GetBlock"))
    return next((name for name in names if isinstance(name, str) and name != "root"), "main")


def _run_secs(value: Any) -> tuple[float, ...] | None:
    """Return run times in seconds, or raise FormatError for what no clock gives."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > limits.MAX_RUN_SECS:
        raise FormatError("run_secs is a list of numbers, or null")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int | float):
            raise FormatError(f"run_secs holds {str(item)[:80]!r}, which is no number")
        if not math.isfinite(item) or item < 0 or float(item) != item:
            raise FormatError(f"run_secs holds {item!r}, which is no time")
    times = tuple(float(item) for item in value)
    if times and not math.isfinite(mean_of(times)):
        raise FormatError("run_secs has a mean that is not finite")
    return times


def _args_info(value: Any) -> bytes:
    if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
        raise FormatError("args_info is a list of argument descriptions, or null")
    check_value(value, "args_info")
    return canonical_json(canonical_numbers(value))


def record_fields(record: Record) -> list[Any]:
    """Return ``[trace, run_secs, target, args_info]`` of a record, as they were read.

    Raises
    ------
    FormatError
        Its stored trace is damaged.
    """
    measurement = record.measurement
    args = measurement.args_info
    return [
        list(join_trace(measurement.program.trace)),
        None if measurement.run_secs is None else list(measurement.run_secs),
        measurement.program.target.attributes,
        None if args is None else parse_json(args),
    ]
