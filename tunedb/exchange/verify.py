"""Verification of another database's rows before anything of them is used.

Every digest is computed here, from a row's content and the digests of the rows to which it refers;
rows that state a different one are rejected. That is enough for a known record, because equal
digests mean equal records. A new record is checked in full
(:meth:`MeasurementVerifier.measurement`).
"""

from __future__ import annotations

import math
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import IO, Any, NamedTuple, NoReturn

import orjson
from cachetools import LRUCache

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
from ..storage.columns import AT, IDENTITY, MEASUREMENT, Column, Form, names_of
from ..storage.exchange_types import COLUMNS, ForeignSource
from ..storage.retractions import SUBJECTS, Retraction

# ---- Shared rows, to which others refer by number ------------------------------------------------

#: Called with the reason and an example for each rejected row.
Reject = Callable[[str, str], None]

_FORMATS = frozenset(WorkloadFormat)
_KINDS = frozenset(SourceKind)
_MAX_KEY_CHARS = 64

DIFFERENT = "its digest does not match its contents"


#: Bytes of bodies held in memory; a million real records have less of sketches and tails.
_HELD_BYTES = 48 * 2**20


class Bodies:
    """Bodies of shared rows by table and number; the least recently used are moved to a file.

    Parameters
    ----------
    max_bytes : int
        Bytes held in memory.
    """

    def __init__(self, max_bytes: int = _HELD_BYTES) -> None:
        self._held = _SpillingCache(max_bytes, self._spill)
        self._file: IO[bytes] | None = None
        self._places: dict[tuple[str, int], tuple[int, int]] = {}

    def put(self, table: str, number: int, body: bytes) -> None:
        """Keep a body, replacing one with the same key."""
        self._held.pop((table, number), None)
        self._places.pop((table, number), None)
        self._hold((table, number), body)

    def get(self, table: str, number: int) -> bytes:
        """Return the body of a known key."""
        key = table, number
        try:
            return self._held[key]
        except KeyError:
            position, size = self._places[key]
        if self._file is None:
            raise KeyError(key)
        self._file.seek(position)
        body = self._file.read(size)
        self._hold(key, body)
        return body

    def _hold(self, key: tuple[str, int], body: bytes) -> None:
        if len(body) <= self._held.maxsize:
            self._held[key] = body
        else:
            self._spill(key, body)

    def _spill(self, key: tuple[str, int], body: bytes) -> None:
        """Write a body to the file, unless it is there."""
        if key not in self._places:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="tunedb-")  # noqa: SIM115 - see close
            self._places[key] = self._file.seek(0, os.SEEK_END), len(body)
            self._file.write(body)

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._held = _SpillingCache(0, self._spill)
        self._places.clear()


class _SpillingCache(LRUCache[tuple[str, int], bytes]):
    """A cache of limited bytes, which passes dropped values to a function."""

    def __init__(self, max_bytes: int, spill: Callable[[tuple[str, int], bytes], None]) -> None:
        super().__init__(max_bytes, getsizeof=len)
        self._spill = spill

    def popitem(self) -> tuple[tuple[str, int], bytes]:
        """Drop the least recently used body."""
        key, body = super().popitem()
        self._spill(key, body)
        return key, body


@dataclass(frozen=True, slots=True)
class SentFeatureSet:
    """Name, version and columns of a feature set."""

    name: str
    version: int
    columns: tuple[str, ...]


class SharedRows:
    """Verified shared rows by table and number.

    Parameters
    ----------
    reject : callable
        Called with the reason and an example for each rejected row.
    max_rows : int or None
        Maximum number of rows; None for :data:`tunedb.limits.MAX_SHARED_ROWS`.

    Attributes
    ----------
    digests : dict
        Digest of each row by table and number; None for a rejected row.
    sources, sessions, targets, feature_sets, counter_sets : dict
        Objects by number.
    """

    def __init__(self, reject: Reject, max_rows: int | None = None) -> None:
        self._reject = reject
        self._max_rows = limits.MAX_SHARED_ROWS if max_rows is None else max_rows
        self.digests: dict[str, dict[int, bytes | None]] = {
            table: {} for table, columns in COLUMNS.items() if columns[0] == "id"
        }
        self.sources: dict[int, ForeignSource] = {}
        self.sessions: dict[int, Session] = {}
        self.targets: dict[int, Target] = {}
        self.feature_sets: dict[int, SentFeatureSet] = {}
        self.counter_sets: dict[int, CounterSet] = {}
        self._workloads: dict[int, tuple[str, str, str | None]] = {}
        self._bodies = Bodies()
        self._count = 0
        self._bytes = 0
        self._handlers: dict[str, Callable[..., bytes]] = {
            "source": self._source,
            "session": self._session,
            "workload": self._workload,
            "target": self._target,
            "sketch": self._trace_part,
            "tail": self._trace_part,
            "args_info": self._json_text,
            "context": self._json_text,
            "feature_set": self._feature_set,
            "counter_set": self._counter_set,
        }

    def close(self) -> None:
        """Release memory and files."""
        self._bodies.close()

    def takes(self, table: str) -> bool:
        """Return true if :meth:`take` verifies rows of this table."""
        return table in self._handlers

    def take(self, table: str, rows: Iterable[tuple[Any, ...]]) -> int:
        """Verify rows of one table.

        Returns
        -------
        int
            Bytes of their values.

        Raises
        ------
        LimitError
            There are more rows than the maximum.
        """
        known, handler, size = self.digests[table], self._handlers[table], 0
        for row in rows:
            try:
                number = self._number(table, row)
            except FormatError as error:
                self._reject(f"{table}: {error}", table)
                continue
            self._count += 1
            if self._count > self._max_rows:
                raise LimitError(
                    f"more than {self._max_rows:,} workloads, sketches and similar rows in one "
                    "exchange; split it (--workload, --target, --since)"
                )
            try:
                digest = handler(table, *row)
                stated = row[1] if COLUMNS[table][1] == "digest" else None
                if stated is not None and stated != digest:
                    fail(DIFFERENT)
            except (TuneDBError, TypeError, ValueError, struct.error) as error:
                known[number] = None
                reason = str(error) if isinstance(error, TuneDBError) else "it has other types"
                self._reject(f"{table}: {reason}", f"{table} {number}")
                continue
            known[number] = digest
            size += sum(len(value) for value in row if isinstance(value, bytes | str))
        return size

    def _number(self, table: str, row: tuple[Any, ...]) -> int:
        """Return the number of a row, or raise FormatError."""
        if len(row) != len(COLUMNS[table]):
            fail("it has other columns")
        number = row[0]
        if type(number) is not int or not -INT64 <= number < INT64:
            fail("it has no number")
        if number in self.digests[table]:
            self.digests[table][number] = None
            fail("two rows have the same number")
        return number

    def body(self, table: str, number: int) -> bytes:
        """Return the body of a verified row."""
        return self._bodies.get(table, number)

    def workload(self, number: int) -> Workload:
        """Return a new object of a verified workload."""
        format_, name, version = self._workloads[number]
        return Workload(format_, self._bodies.get("workload", number), name, version)

    def format_of(self, number: int) -> str:
        """Return the format of a verified workload."""
        return self._workloads[number][0]

    # ------------------------------------------------------------------ one row of each table

    def _count_bytes(self, *values: bytes | str) -> None:
        """Count bytes that stay in memory; LimitError if there are too many."""
        self._bytes += sum(map(len, values))
        if self._bytes > limits.MAX_SHARED_BYTES:
            raise LimitError("too many long targets, sessions, sources and names in one exchange")

    def _source(self, _: str, number: int, _stated: Any, name: Any, kind: Any, store: Any) -> bytes:
        if kind not in _KINDS:
            fail("its kind is unknown")
        source = ForeignSource(
            text(name, "its name", limits.MAX_FOREIGN_LABEL_CHARS),
            SourceKind(kind),
            store_key(store),
        )
        self._count_bytes(source.name)
        self.sources[number] = source
        return source.digest

    def _session(
        self, _: str, number: int, _stated: Any, key: Any, started_at: Any, fingerprint: Any
    ) -> bytes:
        key = text(key, "its key", limits.MAX_FOREIGN_LABEL_CHARS)
        body, value = json_of(fingerprint, "its fingerprint", limits.MAX_FOREIGN_EXTRA_BYTES)
        if not isinstance(value, dict):
            fail("its fingerprint is not an object")
        session = Session(key, integer(started_at), body)
        self._count_bytes(key, body)
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
            fail("its format is unknown; a newer tunedb may read it")
        if type(body) is not bytes:
            fail("its body is missing or too large")
        if format_ == WorkloadFormat.ANSOR:
            # Verbatim, as auto_scheduler wrote it.
            if len(body) > limits.MAX_FOREIGN_PART_BYTES or b"\0" in body:
                fail("its key is too long, or has NUL")
            body.decode()
        else:
            if len(body) > limits.MAX_FOREIGN_BYTES:
                fail(f"a body of {len(body)} bytes is over {limits.MAX_FOREIGN_BYTES}")
            if canonical_json(parse_json(body)) != body:
                fail("its body is not in the canonical form")
        # Labels, which are not part of the identity.
        name = clean_text(str(name or ""))[: limits.MAX_NAME_CHARS]
        if version is not None:
            version = clean_text(str(version))[: limits.MAX_VERSION_CHARS]
        digest = identity.digest("workload", format_.encode(), body)
        self._count_bytes(name, version or "")
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
            text_ = None if label is None else clean_text(str(label))[: limits.MAX_TARGET_CHARS]
            target = Target(str(value.get("kind", "unknown")), body, text_)
        else:
            fail("its configuration is not an object")
        if kind != target.kind:
            fail("its kind differs from its configuration")
        text(kind, "its kind", limits.MAX_NAME_CHARS)
        self._count_bytes(body, target.text or "")
        self.targets[number] = target
        return target.digest

    def _trace_part(self, table: str, number: int, _stated: Any, body: Any) -> bytes:
        """Verify a sketch or tail; its content is checked with the first program."""
        if type(body) is not bytes or len(body) > limits.MAX_FOREIGN_PART_BYTES:
            fail("its body is missing or too large")
        self._bodies.put(table, number, body)
        return identity.shared_digest(table, body)

    def _json_text(self, table: str, number: int, _stated: Any, body: Any) -> bytes:
        encoded = canonical(body, "it", limits.MAX_FOREIGN_EXTRA_BYTES)
        self._bodies.put(table, number, encoded)
        return identity.shared_digest(table, encoded)

    def _feature_set(self, _: str, number: int, name: Any, version: Any, columns: Any) -> bytes:
        name = text(name, "its name", limits.MAX_NAME_CHARS)
        body = text(columns, "its columns", limits.MAX_FOREIGN_EXTRA_BYTES)
        names = parse_json(body.encode())
        if not isinstance(names, list) or not all(isinstance(column, str) for column in names):
            fail("its columns are not a list of names")
        self._count_bytes(body)
        _check_installed(name, integer(version), tuple(names))
        self.feature_sets[number] = SentFeatureSet(name, version, tuple(names))
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
        limit = limits.MAX_COUNTER_CHARS
        body = canonical(counters, "its counters", limits.MAX_COUNTER_SET_BYTES)
        counter_set = CounterSet(
            text(tool, "its tool", limit),
            None if version is None else text(version, "its tool's version", limit),
            None if capability is None else text(capability, "its compute capability", limit),
            counters_of(body),
        )
        if counter_set.body != body:
            fail("a name or unit has NUL or lone surrogates")
        self._count_bytes(body)
        self.counter_sets[number] = counter_set
        return counter_set.digest


def _check_installed(name: str, version: int, columns: tuple[str, ...]) -> None:
    """Raise FormatError for a feature set that is installed here with other columns."""
    from ..features.base import load_feature_sets

    # Stored first, it would keep the installed set from storing its own rows.
    installed = load_feature_sets()[0].get(name)
    if installed is not None and installed.version == version and installed.columns != columns:
        fail("the installed feature set of that name has other columns")


# ---------------------------------------------------------------------- values


def fail(reason: str) -> NoReturn:
    """Raise FormatError with this reason."""
    raise FormatError(reason)


def integer(value: Any) -> int:
    """Return a 64-bit integer, or raise FormatError."""
    if type(value) is not int or not -INT64 <= value < INT64:
        fail("a number that is not an integer of 64 bits")
    return value


def text(value: Any, what: str, limit: int) -> str:
    """Return text that both databases can store unchanged, or raise FormatError."""
    if type(value) is not str or not value:
        fail(f"{what} is not text")
    if len(value) > limit:
        fail(f"{what} is longer than {limit} characters")
    if clean_text(value) != value:
        fail(f"{what} has NUL or lone surrogates")
    return value


def store_key(value: Any) -> str:
    """Return the key of a database, or raise FormatError."""
    key = text(value, "the key of its database", _MAX_KEY_CHARS)
    if not (key.isascii() and key.isprintable()):
        fail("the key of its database has control characters")
    return key


def json_of(value: Any, what: str, limit: int) -> tuple[bytes, Any]:
    """Return the bytes and the value of JSON text, or raise FormatError."""
    if type(value) is str:
        value = value.encode()
    if type(value) is not bytes or len(value) > limit:
        fail(f"{what} is not text, or longer than {limit} bytes")
    parsed = parse_json(value)
    check_value(parsed, what)
    return value, parsed


def canonical(value: Any, what: str, limit: int) -> bytes:
    """Return the bytes of canonical JSON text, or raise FormatError."""
    body, parsed = json_of(value, what, limit)
    if canonical_json(parsed) != body:
        fail(f"{what} is not in the canonical form")
    return body


# ---- Measurements --------------------------------------------------------------------------------

Row = tuple[Any, ...]


def _types_of(column: Column) -> Iterator[type]:
    yield column.type
    if column.may_be_none:
        yield type(None)
    if column.form is Form.JSON:
        # Text of a foreign file that is not UTF-8.
        yield bytes


#: Valid types of each column's values.
_TYPES = {column.name: frozenset(_types_of(column)) for column in MEASUREMENT}

#: Columns with the number of a shared row.
_REFERENCES = names_of(Form.REFERENCE, Form.SHARED_JSON)

#: References that identify a program, besides its decisions.
_PROGRAM = ("workload", "target", "sketch", "tail")

#: Fields of a record by form, and their positions in a row.
_PLAIN, _JSON, _SHARED_JSON = map(names_of, (Form.PLAIN, Form.JSON, Form.SHARED_JSON))
_plain_of = itemgetter(*(AT[name] for name in _PLAIN))

#: Digested value of each origin in a row.
_ORIGINS: dict[str | None, str] = {None: Origin.UNKNOWN.value, **{str(o): str(o) for o in Origin}}


class DigestedRow(NamedTuple):
    """A row with its computed digests."""

    row: Row
    program: bytes
    measurement: bytes


class MeasurementVerifier:
    """Verifies chunks of measurements.

    Parameters
    ----------
    shared : SharedRows
        Rows to which they refer.
    """

    def __init__(self, shared: SharedRows) -> None:
        self._shared = shared
        self._workloads: dict[int, Workload] = {}
        self._counted_parts: set[tuple[str, int]] = set()

    def forget(self) -> None:
        """Release objects of created measurements."""
        self._workloads.clear()
        self._counted_parts.clear()

    # ------------------------------------------------------------------ every row

    def digested(self, rows: Sequence[Row]) -> Iterator[DigestedRow | tuple[Row, str]]:
        """Yield each row with its digests, or with the reason for its rejection."""
        reasons: dict[int, str] = {}
        are_plain = _are_plain(rows)
        if not (are_plain and self._have_references(rows)):
            for at, row in enumerate(rows):
                reason = (None if are_plain else _objection(row)) or self._missing(row)
                if reason is not None:
                    reasons[at] = reason
        digests = self._digests([row for at, row in enumerate(rows) if at not in reasons])
        for at, row in enumerate(rows):
            if at in reasons:
                yield row, reasons[at]
                continue
            program, measurement = next(digests)
            stated, stated_program = row[1:3]
            if (stated is not None and stated != measurement) or (
                stated_program is not None and stated_program != program
            ):
                yield row, DIFFERENT
            else:
                yield DigestedRow(row, program, measurement)

    def _digests(self, rows: Sequence[Row]) -> Iterator[tuple[bytes, bytes]]:
        """Return the digests of the program and of the measurement of each row."""
        if not rows:
            return iter(())
        columns = dict(zip(AT, zip(*rows, strict=True), strict=True))
        shared = self._shared.digests
        parts = [map(shared[name].get, columns[name]) for name in _PROGRAM]
        programs = [*map(identity.program_digest, *parts, columns["decisions"])]
        covered = [self._covered(column, columns[column.name]) for column in IDENTITY]
        return zip(programs, map(identity.measurement_digest, programs, *covered), strict=True)

    def _covered(self, column: Column, values: Sequence[Any]) -> Iterable[Any]:
        """Return the digested values of a column, lazily."""
        name, body = column.name, self._shared.body
        if column.form is Form.SHARED_JSON:
            return (None if number is None else body(name, number) for number in values)
        if column.form is Form.REFERENCE:
            return map(self._shared.digests[name].get, values)
        if column.form is Form.JSON:
            return (value.encode() if type(value) is str else value for value in values)
        return map(_ORIGINS.__getitem__, values) if name == "origin" else values

    def _have_references(self, rows: Sequence[Row]) -> bool:
        """Return true if all shared rows to which plain rows refer were accepted."""
        digests = self._shared.digests
        for name in _REFERENCES:
            at = AT[name]
            numbers = {row[at] for row in rows} - {None}
            if None in map(digests[name].get, numbers):
                return False
        return True

    def _missing(self, row: Row) -> str | None:
        """Return the missing reference of a row as a reason, or None."""
        digests = self._shared.digests
        for name in _REFERENCES:
            number = row[AT[name]]
            if number is not None and digests[name].get(number) is None:
                if number in digests[name]:
                    return f"its {name} was rejected"
                return f"it refers to a {name} that is missing"
        return None

    # ------------------------------------------------------------------ new rows

    def is_valid(self, row: Row) -> bool:
        """Return ``Measurement.is_valid`` of a known record."""
        sketch = self._shared.body("sketch", row[AT["sketch"]])
        return bool(row[AT["status"]] == Status.OK and sketch != b"[]")

    def trace(self, row: Row) -> Trace:
        """Return the trace of a record; FormatError for content that is not allowed."""
        sketch, tail = row[AT["sketch"]], row[AT["tail"]]
        trace = Trace(
            self._shared.body("sketch", sketch),
            None if tail is None else self._shared.body("tail", tail),
            row[AT["decisions"]],
        )
        allowlist.check_trace(trace, self._shared.format_of(row[AT["workload"]]))
        return trace

    def measurement(self, item: DigestedRow) -> tuple[Measurement, int]:
        """Return a new measurement, and its bytes as far as they are not shared.

        Raises
        ------
        FormatError
            tunedb would not have stored it itself, or its program has content that is not allowed
            (:mod:`tunedb.programs.allowlist`).
        """
        row, shared = item.row, self._shared
        workload, size = row[AT["workload"]], len(row[AT["decisions"]])
        sketch, tail, session = row[AT["sketch"]], row[AT["tail"]], row[AT["session"]]
        trace = self.trace(row)
        _check_decisions(trace.decisions, shared.format_of(workload))
        times = _times(row[AT["run_secs"]], row[AT["status"]])
        fields = dict(zip(_PLAIN, _plain_of(row), strict=True))
        for name in _JSON:
            value = row[AT[name]]
            if value is not None:
                fields[name] = canonical(value, f"its {name}", limits.MAX_FOREIGN_EXTRA_BYTES)
                size += len(fields[name])
        for name in _SHARED_JSON:
            number = row[AT[name]]
            fields[name] = None if number is None else shared.body(name, number)
        if workload not in self._workloads:
            self._workloads[workload] = shared.workload(workload)
            size += len(self._workloads[workload].body)
        for key, part in ((("sketch", sketch), trace.sketch), (("tail", tail or 0), trace.tail)):
            if part is not None and key not in self._counted_parts:
                self._counted_parts.add(key)
                size += len(part)
        measurement = Measurement(
            Program(self._workloads[workload], shared.targets[row[AT["target"]]], trace),
            times,
            Status(row[AT["status"]]),
            session=None if session is None else shared.sessions[session],
            origin=Origin(_ORIGINS[row[AT["origin"]]]),
            **fields,
        )
        if measurement.digest != item.measurement:
            fail(DIFFERENT)
        return measurement, size


# ---------------------------------------------------------------------- values of measurements


def _are_plain(rows: Sequence[Row]) -> bool:
    """Return true if a chunk is valid; checks column by column, which is fast."""
    try:
        columns = list(zip(MEASUREMENT, zip(*rows, strict=True), strict=True))
    except (ValueError, TypeError):
        return False
    for column, values in columns:
        if not _TYPES[column.name].issuperset(map(type, values)):
            return False
        if column.check is not None or column.values is not None:
            present = [value for value in values if value is not None]
            if column.values is not None and not column.values.issuperset(present):
                return False
            if column.check is not None and not column.check(present):
                return False
    return True


def _objection(row: Row) -> str | None:
    """Return the reason for which a row is not valid, or None."""
    if len(row) != len(MEASUREMENT):
        return "it has other columns"
    for name, types in _TYPES.items():
        if type(row[AT[name]]) not in types:
            return f"its {name} has another type"
    for column, value in zip(MEASUREMENT, row, strict=True):
        if column.values is not None and value is not None and value not in column.values:
            return f"its {column.name} is unknown"
    if _are_plain([row]):
        return None
    return "its numbers or the lengths of its values are out of bounds"


def _times(packed: bytes | None, status: int) -> tuple[float, ...] | None:
    """Return run times, or raise FormatError if a record cannot have them."""
    times = None if packed is None else identity.unpack_floats(packed)
    if times and not (math.isfinite(mean_of(times)) and min(times) >= 0):
        if not all(map(math.isfinite, times)):
            fail("a run time is not finite")
        fail("a run time is negative" if min(times) < 0 else "the mean time is not finite")
    if status in (Status.OK, Status.CUT_SHORT) and status_of(times) is not Status.OK:
        fail("it counts as measured but has no time")
    return times


def _check_decisions(decisions: bytes, format_: str) -> None:
    """Raise FormatError for decisions that are not canonical JSON."""
    if format_ != WorkloadFormat.ANSOR and (
        identity.canonical_json(orjson.loads(decisions)) != decisions
    ):
        fail("its decisions are not in the canonical form")


# ---------------------------------------------------------------------- rows of other tables


def failure_from_row(row: Row) -> Failure:
    """Return the failure of a row, or raise FormatError; its digest is checked elsewhere."""
    kind, phase, message, seconds = row[5:9]
    if kind not in frozenset(FailureKind) or phase not in frozenset(Phase):
        fail("its kind or phase is unknown")
    if message != "":
        text(message, "its message", limits.MAX_MESSAGE_CHARS)
    if seconds is not None and not (type(seconds) is float and math.isfinite(seconds)):
        fail("its duration is not a finite number")
    return Failure(FailureKind(kind), Phase(phase), message, seconds)


def launch_from_row(row: Row, counter_sets: Mapping[int, CounterSet]) -> Launch:
    """Return the launch of a row, or raise FormatError; its digest is checked elsewhere."""
    number, kernel, threads, *extents = row[5:14]
    registers, static, dynamic, seconds, set_number, packed = row[14:20]
    if kernel != "":
        text(kernel, "its kernel", limits.MAX_KERNEL_CHARS)
    if seconds is not None and not (type(seconds) is float and math.isfinite(seconds)):
        fail("its time is not a finite number")
    if packed is not None and type(packed) is not bytes:
        fail("its counters are not numbers")
    if set_number is not None and set_number not in counter_sets:
        fail("its set of counters was rejected or is missing")
    block, grid = (None if e == [None] * 3 else e for e in (extents[:3], extents[3:]))
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
        None if set_number is None else counter_sets[set_number],
        values_of(packed),
    )


def retraction_from_row(row: Row) -> Retraction:
    """Return the retraction of a row, or raise FormatError."""
    digest, store, subject, reason = row
    if type(digest) is not bytes or len(digest) != identity.DIGEST_BYTES:
        fail("it has no digest")
    if subject not in SUBJECTS:
        fail("its kind of subject is unknown")
    if type(reason) is not str:
        fail("its reason is not text")
    # A label, which has no meaning for the database.
    reason = identity.clean_text(reason)[: limits.MAX_FOREIGN_LABEL_CHARS]
    return Retraction(digest, store_key(store), subject, reason)


def features_from_row(row: Row) -> Any:
    """Return the array of a row of features, shape (rows, columns), or raise TuneDBError."""
    from ..features import blobs

    _, _, n_rows, n_columns, data = row
    if type(data) is not bytes:
        fail("it has no rows")
    return blobs.unpack(integer(n_rows), integer(n_columns), data)
