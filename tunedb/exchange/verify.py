"""Measurements of somebody else's, looked at before anything of them is believed.

Every digest is computed here, from what a row holds and from the digests of the rows that it
refers to; whoever states another is not taken. For a record that is known that is all, because
equal digests are equal records. One that is new is looked at in full (:func:`checked`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import orjson

from .. import identity, limits
from ..errors import FormatError, LimitError, TuneDBError
from ..identity import canonical_json, clean_text
from ..json_checks import INT64, check_value, parse_json
from ..launches import CounterSet, Launch, counters_of, values_of
from ..programs import allowlist
from ..records import (
    NO_TARGET,
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Session,
    SourceKind,
    Status,
    Target,
    Trace,
    Workload,
    WorkloadFormat,
)
from ..run_times import mean_of, status_of
from ..storage.exchanged import COLUMNS, ForeignSource
from ..storage.retractions import SUBJECTS, Retraction
from .payloads import Bodies

# ---- Rows of an exchange that others refer to, looked at one by one and known by their numbers ---

#: Called with the table, the number, the reason and how to count it.
Reject = Callable[[str, str], None]

#: Tables whose bodies may be many or large.
_BODIED = frozenset({"workload", "sketch", "tail", "args_info", "context"})

_FORMATS = frozenset(WorkloadFormat)
_KINDS = frozenset(SourceKind)
_MAX_KEY_CHARS = 64

DIFFERENT = "its digest does not match its contents"


class FeatureSet:
    """A feature set by its name, version and columns."""

    __slots__ = ("columns", "name", "version")

    def __init__(self, name: str, version: int, columns: tuple[str, ...]) -> None:
        self.name, self.version, self.columns = name, version, columns


class SharedRows:
    """Verified rows of an exchange by table and number.

    Parameters
    ----------
    reject : callable
        Told the reason and an example for each row that is not taken.

    Attributes
    ----------
    digests : dict
        Table → number → digest, None for a row that was not taken.
    sources, sessions, targets, feature_sets, counter_sets : dict
        Number → what it stands for.
    """

    def __init__(self, reject: Reject) -> None:
        self._reject = reject
        self.digests: dict[str, dict[int, bytes | None]] = {
            table: {} for table, columns in COLUMNS.items() if columns[0] == "id"
        }
        self.sources: dict[int, ForeignSource] = {}
        self.sessions: dict[int, Session] = {}
        self.targets: dict[int, Target] = {}
        self.feature_sets: dict[int, FeatureSet] = {}
        self.counter_sets: dict[int, CounterSet] = {}
        self._workloads: dict[int, tuple[str, str, str | None]] = {}
        self._bodies = Bodies()
        self._count = 0
        self._bytes = 0
        self._takers: dict[str, Callable[..., bytes]] = {
            "source": self._source,
            "session": self._session,
            "workload": self._workload,
            "target": self._target,
            "sketch": self._part,
            "tail": self._part,
            "args_info": self._text,
            "context": self._text,
            "feature_set": self._feature_set,
            "counter_set": self._counter_set,
        }

    def close(self) -> None:
        """Give back the memory."""
        self._bodies.close()

    def takes(self, table: str) -> bool:
        """Tell whether rows of a table are for :meth:`take`."""
        return table in self._takers

    def take(self, table: str, rows: Iterable[tuple[Any, ...]]) -> int:
        """Look at rows of one table, and remember them by their numbers.

        Returns
        -------
        int
            Bytes of what they hold.

        Raises
        ------
        LimitError
            There are more than may be remembered.
        """
        known, taker, size = self.digests[table], self._takers[table], 0
        for row in rows:
            try:
                number = self._number(table, row)
            except FormatError as error:
                self._reject(f"{table}: {error}", table)
                continue
            self._count += 1
            if self._count > limits.MAX_SHARED_ROWS:
                raise LimitError(
                    f"more than {limits.MAX_SHARED_ROWS:,} workloads, "
                    "sketches and similar rows in one "
                    "exchange; split it (--workload, --target, --since)"
                )
            try:
                digest = taker(table, *row)
                # A feature set has no digest.
                stated = row[1] if COLUMNS[table][1] == "digest" else None
                if stated is not None and stated != digest:
                    refuse(DIFFERENT)
            except (TuneDBError, TypeError, ValueError, struct.error) as error:
                known[number] = None
                reason = str(error) if isinstance(error, TuneDBError) else "it has other types"
                self._reject(f"{table}: {reason}", f"{table} {number}")
                continue
            known[number] = digest
            size += sum(len(value) for value in row if isinstance(value, bytes | str))
        return size

    def _number(self, table: str, row: tuple[Any, ...]) -> int:
        """Return the number of a row that may be looked at."""
        if len(row) != len(COLUMNS[table]):
            refuse("it has other columns")
        number = row[0]
        if type(number) is not int or not -INT64 <= number < INT64:
            refuse("it has no number")
        if number in self.digests[table]:
            self.digests[table][number] = None
            refuse("two rows have the same number")
        return number

    def body(self, table: str, number: int) -> bytes:
        """Return the body of a row that was taken."""
        return self._bodies.get(table, number)

    def workload(self, number: int) -> Workload:
        """Return a workload that was taken; it is made anew each time."""
        format_, name, version = self._workloads[number]
        return Workload(format_, self._bodies.get("workload", number), name, version)

    def format_of(self, number: int) -> str:
        """Return the format of a workload that was taken."""
        return self._workloads[number][0]

    # ------------------------------------------------------------------ one row each

    def _held(self, *values: bytes | str) -> None:
        """Count what stays in memory."""
        self._bytes += sum(map(len, values))
        if self._bytes > limits.MAX_SHARED_BYTES:
            raise LimitError("too many long targets, sessions, sources and names in one exchange")

    def _source(self, _: str, number: int, _stated: Any, name: Any, kind: Any, store: Any) -> bytes:
        if kind not in _KINDS:
            refuse("its kind is unknown")
        source = ForeignSource(
            text(name, "its name", limits.MAX_FOREIGN_LABEL_CHARS),
            SourceKind(kind),
            store_key(store),
        )
        self._held(source.name)
        self.sources[number] = source
        return source.digest

    def _session(
        self, _: str, number: int, _stated: Any, key: Any, started_at: Any, fingerprint: Any
    ) -> bytes:
        key = text(key, "its key", limits.MAX_FOREIGN_LABEL_CHARS)
        body, value = json_of(fingerprint, "its fingerprint", limits.MAX_FOREIGN_EXTRA_BYTES)
        if not isinstance(value, dict):
            refuse("its fingerprint is not an object")
        session = Session(key, integer(started_at), body)
        self._held(key, body)
        self.sessions[number] = session
        return session.digest

    def _workload(
        self,
        table: str,
        number: int,
        _stated: Any,
        format_: Any,
        body: Any,
        name: Any,
        version: Any,
    ) -> bytes:
        if format_ not in _FORMATS:
            refuse("its format is unknown; a newer tunedb may read it")
        if type(body) is not bytes:
            refuse("its body is missing or too large")
        if format_ == WorkloadFormat.ANSOR:
            # Verbatim, as auto_scheduler wrote it.
            if len(body) > limits.MAX_FOREIGN_PART_BYTES or b"\0" in body:
                refuse("its key is too long, or has NUL")
            body.decode()
        else:
            if len(body) > limits.MAX_FOREIGN_BYTES:
                refuse(f"a body of {len(body)} bytes is over {limits.MAX_FOREIGN_BYTES}")
            if canonical_json(parse_json(body)) != body:
                refuse("its body is not in the canonical form")
        # Labels: no part of the identity.
        name = clean_text(str(name or ""))[: limits.MAX_NAME_CHARS]
        if version is not None:
            version = clean_text(str(version))[: limits.MAX_VERSION_CHARS]
        digest = identity.digest("workload", format_.encode(), body)
        self._held(name, version or "")
        self._workloads[number] = format_, name, version
        self._bodies.put(table, number, body)
        return digest

    def _target(
        self, _: str, number: int, _stated: Any, kind: Any, config: Any, label: Any
    ) -> bytes:
        body = canonical(config, "its configuration", limits.MAX_TARGET_CHARS)
        value = parse_json(body)
        if value is None:
            target = NO_TARGET
        elif isinstance(value, dict):
            given = None if label is None else clean_text(str(label))[: limits.MAX_TARGET_CHARS]
            target = Target(str(value.get("kind", "unknown")), body, given)
        else:
            refuse("its configuration is not an object")
        if kind != target.kind:
            refuse("its kind differs from its configuration")
        text(kind, "its kind", limits.MAX_NAME_CHARS)
        self._held(body, target.text or "")
        self.targets[number] = target
        return target.digest

    def _part(self, table: str, number: int, _stated: Any, body: Any) -> bytes:
        """Look at a sketch or tail; what it holds is looked at with the first program."""
        if type(body) is not bytes or len(body) > limits.MAX_FOREIGN_PART_BYTES:
            refuse("its body is missing or too large")
        self._bodies.put(table, number, body)
        return identity.shared_digest(table, body)

    def _text(self, table: str, number: int, _stated: Any, body: Any) -> bytes:
        encoded = canonical(body, "it", limits.MAX_FOREIGN_EXTRA_BYTES)
        self._bodies.put(table, number, encoded)
        return identity.shared_digest(table, encoded)

    def _feature_set(self, _: str, number: int, name: Any, version: Any, columns: Any) -> bytes:
        name = text(name, "its name", limits.MAX_NAME_CHARS)
        body = text(columns, "its columns", limits.MAX_FOREIGN_EXTRA_BYTES)
        names = parse_json(body.encode())
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            refuse("its columns are not a list of names")
        self._held(body)
        _check_installed(name, integer(version), tuple(names))
        self.feature_sets[number] = FeatureSet(name, version, tuple(names))
        return b"feature set"

    def _counter_set(
        self,
        _: str,
        number: int,
        _stated: Any,
        tool: Any,
        version: Any,
        capability: Any,
        counters: Any,
    ) -> bytes:
        most = limits.MAX_COUNTER_CHARS
        body = canonical(counters, "its counters", limits.MAX_COUNTER_SET_BYTES)
        found = CounterSet(
            text(tool, "its tool", most),
            None if version is None else text(version, "its tool's version", most),
            None if capability is None else text(capability, "its compute capability", most),
            counters_of(body),
        )
        if found.body != body:
            refuse("a name or unit has NUL or lone surrogates")
        self._held(body)
        self.counter_sets[number] = found
        return found.digest


def _check_installed(name: str, version: int, columns: tuple[str, ...]) -> None:
    """Raise FormatError for a feature set that is installed here with other columns.

    Stored first, it would keep the installed one from storing its own.
    """
    from ..features.base import load_feature_sets

    installed = load_feature_sets()[0].get(name)
    if installed is not None and installed.version == version and installed.columns != columns:
        refuse("the installed feature set of that name has other columns")


# ---------------------------------------------------------------------- values


def refuse(reason: str) -> NoReturn:
    """Raise FormatError."""
    raise FormatError(reason)


def integer(value: Any) -> int:
    """Return an integer of 64 bits, or raise FormatError."""
    if type(value) is not int or not -INT64 <= value < INT64:
        refuse("a number that is not an integer of 64 bits")
    return value


def text(value: Any, what: str, most: int) -> str:
    """Return a text that both databases can hold as it is, or raise FormatError."""
    if type(value) is not str or not value:
        refuse(f"{what} is not text")
    if len(value) > most:
        refuse(f"{what} is longer than {most} characters")
    if clean_text(value) != value:
        refuse(f"{what} has NUL or lone surrogates")
    return value


def store_key(value: Any) -> str:
    """Return the key of a database, or raise FormatError."""
    key = text(value, "the key of its database", _MAX_KEY_CHARS)
    if not (key.isascii() and key.isprintable()):
        refuse("the key of its database has control characters")
    return key


def json_of(value: Any, what: str, most: int) -> tuple[bytes, Any]:
    """Return the bytes of a text that is JSON, and what it says, or raise FormatError."""
    if type(value) is str:
        value = value.encode()
    if type(value) is not bytes or len(value) > most:
        refuse(f"{what} is not text, or longer than {most} bytes")
    found = parse_json(value)
    check_value(found, what)
    return value, found


def canonical(value: Any, what: str, most: int) -> bytes:
    """Return the bytes of a text that is canonical JSON, or raise FormatError."""
    body, found = json_of(value, what, most)
    if canonical_json(found) != body:
        refuse(f"{what} is not in the canonical form")
    return body


# ---- Measurements --------------------------------------------------------------------------------

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
                    return f"its {name} was rejected"
                return f"it refers to a {name} that is missing"
        return "it refers to a row that is missing"

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
        allowlist.check_trace(trace, self._shared.format_of(row[_AT["workload"]]))
        return trace

    def made(self, found: Digested) -> tuple[Measurement, int]:
        """Return a new measurement, and how many bytes it holds that no other one did.

        Raises
        ------
        FormatError
            It is not what tunedb would have stored itself, or its program holds what is not
            allowed (:mod:`tunedb.programs.allowlist`).
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
            return f"its {name} has another type"
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
        refuse("it counts as measured but has no time")
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
        refuse("its duration is not a finite number")
    return Failure(FailureKind(kind), Phase(phase), message, seconds)


def launch_of(row: Row, counter_sets: Mapping[int, CounterSet]) -> Launch:
    """Return what a row of launches says, or raise FormatError; its digest covers more.

    Parameters
    ----------
    row : tuple
        Values in the order of :data:`tunedb.storage.exchanged.COLUMNS`.
    counter_sets : mapping
        Number → set of counters that was taken.
    """
    number, kernel, threads, *extents = row[5:14]
    registers, static, dynamic, seconds, of, packed = row[14:20]
    if kernel != "":
        text(kernel, "its kernel", limits.MAX_KERNEL_CHARS)
    if seconds is not None and not (type(seconds) is float and math.isfinite(seconds)):
        refuse("its time is not a finite number")
    if packed is not None and type(packed) is not bytes:
        refuse("its counters are not numbers")
    if of is not None and of not in counter_sets:
        refuse("its set of counters was rejected or is missing")
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
        refuse("it has no digest")
    if subject not in SUBJECTS:
        refuse("its kind of subject is unknown")
    if type(reason) is not str:
        refuse("its reason is not text")
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
