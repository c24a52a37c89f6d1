"""Measurements of somebody else's, looked at before anything of them is believed.

Every digest is computed here, from what a row holds and from the digests of the rows that it
refers to; whoever states another is not taken. For a record that is known that is all, because
equal digests are equal records. One that is new is looked at in full (:func:`checked`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from .. import allowed, identity, limits
from ..launches import CounterSet, Launch, values_of
from ..records import (
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Status,
    Trace,
    Workload,
    WorkloadFormat,
)
from ..retractions import SUBJECTS, Retraction
from ..times import mean_of, status_of
from ..values import INT64
from .shared_rows import DIFFERENT, SharedRows, canonical, integer, refuse, store_key, text
from .wire import COLUMNS

Row = tuple[Any, ...]

_COLUMNS = COLUMNS["measurement"]
_AT = {name: position for position, name in enumerate(_COLUMNS)}

_NONE: type = type(None)
_INT = frozenset({int})
_INT_OR_NONE = frozenset({int, _NONE})
_BYTES = frozenset({bytes})
_BYTES_OR_NONE = frozenset({bytes, _NONE})
_TEXT_OR_NONE = frozenset({str, _NONE})
_REAL_OR_NONE = frozenset({float, _NONE})

#: Column → types that its values may have.
_TYPES: dict[str, frozenset[type]] = {
    **dict.fromkeys(("id", "workload", "target", "sketch", "source"), _INT),
    **dict.fromkeys(("status", "measured_at", "occurrence"), _INT),
    **dict.fromkeys(("tail", "session", "args_info", "context"), _INT_OR_NONE),
    **dict.fromkeys(("digest", "program_digest", "run_secs", "donor"), _BYTES_OR_NONE),
    "decisions": _BYTES,
    "origin": _TEXT_OR_NONE,
    "all_cost": _REAL_OR_NONE,
    "extra": frozenset({str, bytes, _NONE}),
}

_STATUSES = frozenset(int(status) for status in Status)
_ORIGINS = frozenset({None, *map(str, Origin)})
_FLOAT_BYTES = 8

#: What a measurement must refer to, and what it may.
_MUST = tuple((name, _AT[name]) for name in ("workload", "target", "sketch", "source"))
_MAY = tuple((name, _AT[name]) for name in ("tail", "session", "args_info", "context"))


class Digested(NamedTuple):
    """A row whose digests were computed."""

    row: Row
    program: bytes
    measurement: bytes


class Measurements:
    """Looks at chunks of measurements.

    Parameters
    ----------
    shared : SharedRows
        What they refer to.
    """

    def __init__(self, shared: SharedRows) -> None:
        self._shared = shared
        self._workloads: dict[int, Workload] = {}
        self._fresh: set[tuple[str, int]] = set()

    def forget(self) -> None:
        """Give back what was held for the measurements that were made."""
        self._workloads.clear()
        self._fresh.clear()

    # ------------------------------------------------------------------ every row

    def digested(self, rows: Sequence[Row]) -> Iterator[Digested | tuple[Row, str]]:
        """Yield each row with its digests, or with the reason why it is not taken."""
        reasons = None if _are_plain(rows) else map(_complaint, rows)
        digest_program, digest = identity.program_digest, identity.measurement_digest
        of, body = self._shared.digests, self._shared.body
        workloads, targets, sketches = of["workload"].get, of["target"].get, of["sketch"].get
        tails, sessions, sources = of["tail"].get, of["session"].get, of["source"].get
        infos, contexts = of["args_info"].get, of["context"].get
        for row in rows:
            if reasons is not None and (reason := next(reasons)) is not None:
                yield row, reason
                continue
            _, stated, stated_program, workload, target, sketch, tail, decisions = row[:8]
            status, run_secs, measured_at, occurrence, session, source = row[8:14]
            info, origin, donor, all_cost, context, extra = row[14:]
            of_workload, of_target = workloads(workload), targets(target)
            of_sketch = sketches(sketch)
            end = None if tail is None else tails(tail)
            run = None if session is None else sessions(session)
            if (
                of_workload is None
                or of_target is None
                or of_sketch is None
                or sources(source) is None
                or (end is None and tail is not None)
                or (run is None and session is not None)
                or (info is not None and infos(info) is None)
                or (context is not None and contexts(context) is None)
            ):
                yield row, self._missing(row)
                continue
            program = digest_program(of_workload, of_target, of_sketch, end, decisions)
            info_of = None if info is None else body("args_info", info)
            context_of = None if context is None else body("context", context)
            extra_of = extra.encode() if type(extra) is str else extra
            told = (info_of, origin or "unknown", donor, all_cost, context_of, extra_of)
            measurement = digest(program, status, run_secs, measured_at, occurrence, run, *told)
            if (stated is not None and stated != measurement) or (
                stated_program is not None and stated_program != program
            ):
                yield row, DIFFERENT
            else:
                yield Digested(row, program, measurement)

    def _missing(self, row: Row) -> str:
        """Return what a row refers to that is not there."""
        of = self._shared.digests
        for name, position in (*_MUST, *_MAY):
            number = row[position]
            if number is not None and of[name].get(number) is None:
                if number in of[name]:
                    return f"its {name} was not taken"
                return f"it refers to a {name} that did not come"
        return "it refers to a row that did not come"

    # ------------------------------------------------------------------ new rows

    def is_valid(self, row: Row) -> bool:
        """Tell whether a known record may be an answer; as ``Measurement.is_valid``."""
        sketch = self._shared.body("sketch", row[_AT["sketch"]])
        return bool(row[_AT["status"]] == Status.OK and sketch != b"[]")

    def trace(self, row: Row) -> Trace:
        """Return the trace of a record; FormatError where it holds what is not allowed."""
        sketch, tail = row[_AT["sketch"]], row[_AT["tail"]]
        trace = Trace(
            self._shared.body("sketch", sketch),
            None if tail is None else self._shared.body("tail", tail),
            row[_AT["decisions"]],
        )
        allowed.check_trace(trace, self._shared.format_of(row[_AT["workload"]]))
        return trace

    def made(self, found: Digested) -> tuple[Measurement, int]:
        """Return a new measurement, and how many bytes it holds that no other one did.

        Raises
        ------
        FormatError
            It is not what tunedb would have stored itself, or its program holds what is not
            allowed (:mod:`tunedb.allowed`).
        """
        row, shared, at = found.row, self._shared, _AT
        workload, size = row[at["workload"]], len(row[at["decisions"]])
        sketch, tail = row[at["sketch"]], row[at["tail"]]
        trace = self.trace(row)
        _check_decisions(trace.decisions, shared.format_of(workload))
        times = _times(row[at["run_secs"]], row[at["status"]])
        extra = row[at["extra"]]
        if extra is not None:
            extra = canonical(extra, "its extra", limits.MAX_FOREIGN_EXTRA_BYTES)
            size += len(extra)
        if workload not in self._workloads:
            self._workloads[workload] = shared.workload(workload)
            size += len(self._workloads[workload].body)
        for key, part in ((("sketch", sketch), trace.sketch), (("tail", tail or 0), trace.tail)):
            if part is not None and key not in self._fresh:
                self._fresh.add(key)
                size += len(part)
        target = shared.targets[row[at["target"]]]
        session, info, context = row[at["session"]], row[at["args_info"]], row[at["context"]]
        measurement = Measurement(
            Program(self._workloads[workload], target, trace),
            times,
            Status(row[at["status"]]),
            row[at["measured_at"]],
            row[at["occurrence"]],
            None if session is None else shared.sessions[session],
            None if info is None else shared.body("args_info", info),
            Origin(row[at["origin"]] or "unknown"),
            row[at["donor"]],
            row[at["all_cost"]],
            None if context is None else shared.body("context", context),
            extra,
        )
        if measurement.digest != found.measurement:
            refuse(DIFFERENT)
        return measurement, size


# ---------------------------------------------------------------------- values of measurements


def _are_plain(rows: Sequence[Row]) -> bool:
    """Tell whether no value of a chunk needs a closer look; column by column, which is quick."""
    try:
        columns = dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True))
    except (ValueError, TypeError):
        return False
    if not all(types.issuperset(map(type, columns[name])) for name, types in _TYPES.items()):
        return False
    lengths = {len(value) for value in columns["run_secs"] if value is not None}
    donors = {len(value) for value in columns["donor"] if value is not None}
    extras = {len(value) for value in columns["extra"] if value is not None}
    return (
        _STATUSES.issuperset(columns["status"])
        and _ORIGINS.issuperset(columns["origin"])
        and all(map(_is_int64, columns["measured_at"]))
        and all(map(_is_int64, columns["occurrence"]))
        and all(size % _FLOAT_BYTES == 0 for size in lengths)
        and max(lengths, default=0) <= limits.MAX_RUN_SECS * _FLOAT_BYTES
        and donors <= {identity.DIGEST_BYTES}
        and max(extras, default=0) <= limits.MAX_FOREIGN_EXTRA_BYTES
        and max(map(len, columns["decisions"])) <= limits.MAX_FOREIGN_DECISION_BYTES
        and all(math.isfinite(cost) for cost in columns["all_cost"] if cost is not None)
    )


def _is_int64(value: int) -> bool:
    return -INT64 <= value < INT64


def _complaint(row: Row) -> str | None:
    """Return why a row cannot be looked at further, or None."""
    if len(row) != len(_COLUMNS):
        return "it has other columns"
    for name, types in _TYPES.items():
        if type(row[_AT[name]]) not in types:
            return f"its {name} is of another type"
    for name, known in (("status", _STATUSES), ("origin", _ORIGINS)):
        if row[_AT[name]] not in known:
            return f"its {name} is unknown"
    if _are_plain([row]):
        return None
    return "its numbers or the lengths of its values are out of bounds"


def _times(packed: bytes | None, status: int) -> tuple[float, ...] | None:
    """Return run times, or raise FormatError where they cannot be those of a record."""
    times = None if packed is None else identity.unpack_floats(packed)
    if times and not (math.isfinite(mean_of(times)) and min(times) >= 0):
        if not all(map(math.isfinite, times)):
            refuse("a run time is not finite")
        refuse("a run time is negative" if min(times) < 0 else "the mean time is not finite")
    if status == Status.OK and status_of(times) is not Status.OK:
        refuse("it counts as measured and has no time")
    return times


def _check_decisions(decisions: bytes, format_: str) -> None:
    """Raise FormatError for decisions that say in other bytes what canonical ones say."""
    if format_ != WorkloadFormat.ANSOR and (
        identity.canonical_json(orjson.loads(decisions)) != decisions
    ):
        refuse("its decisions are not in the canonical form")


# ---------------------------------------------------------------------- what else comes


def failure_of(row: Row) -> Failure:
    """Return what a row of failures says, or raise FormatError; its digest covers more."""
    kind, phase, message, seconds = row[5:9]
    if kind not in frozenset(FailureKind) or phase not in frozenset(Phase):
        refuse("its kind or phase is unknown")
    if message != "":
        text(message, "its message", limits.MAX_MESSAGE_CHARS)
    if seconds is not None and not (type(seconds) is float and math.isfinite(seconds)):
        refuse("its duration is no finite number")
    return Failure(FailureKind(kind), Phase(phase), message, seconds)


def launch_of(row: Row, counter_sets: Mapping[int, CounterSet]) -> Launch:
    """Return what a row of launches says, or raise FormatError; its digest covers more.

    Parameters
    ----------
    row : tuple
        Values in the order of :data:`tunedb.sharing.wire.COLUMNS`.
    counter_sets : mapping
        Number → set of counters that was taken.
    """
    number, kernel, threads, *extents = row[5:14]
    registers, static, dynamic, seconds, of, packed = row[14:20]
    if kernel != "":
        text(kernel, "its kernel", limits.MAX_KERNEL_CHARS)
    if seconds is not None and not (type(seconds) is float and math.isfinite(seconds)):
        refuse("its time is no finite number")
    if packed is not None and type(packed) is not bytes:
        refuse("its counters are no numbers")
    if of is not None and of not in counter_sets:
        refuse("its set of counters was not taken or did not come")
    block, grid = (None if part == [None] * 3 else part for part in (extents[:3], extents[3:]))
    return Launch(
        kernel,
        threads,
        None if block is None else (block[0], block[1], block[2]),
        None if grid is None else (grid[0], grid[1], grid[2]),
        number,
        registers,
        static,
        dynamic,
        seconds,
        None if of is None else counter_sets[of],
        values_of(packed),
    )


def retraction_of(row: Row) -> Retraction:
    """Return what a row of retractions says, or raise FormatError."""
    digest, store, subject, reason = row
    if type(digest) is not bytes or len(digest) != identity.DIGEST_BYTES:
        refuse("it is of no digest")
    if subject not in SUBJECTS:
        refuse("what it is of is unknown")
    if type(reason) is not str:
        refuse("its reason is no text")
    # A label: no part of what it means.
    reason = identity.clean_text(reason)[: limits.MAX_FOREIGN_LABEL_CHARS]
    return Retraction(digest, store_key(store), subject, reason)


def features_of(row: Row) -> Any:
    """Return the matrix of a row of features, shape (rows, columns), or raise TuneDBError."""
    from ..features import blobs

    _, _, n_rows, n_columns, data = row
    if type(data) is not bytes:
        refuse("it has no rows")
    return blobs.unpack(integer(n_rows), integer(n_columns), data)
