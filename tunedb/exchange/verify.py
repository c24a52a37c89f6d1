"""Measurements of somebody else's, looked at before anything of them is believed.

Every digest is computed here, from what a row holds and from the digests of the rows that it
refers to; whoever states another is not taken. For a record that is known that is all, because
equal digests are equal records. One that is new is looked at in full (:func:`checked`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
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
from ..storage.columns import AT, IDENTITY, MEASUREMENT, Column, Form, names_of
from ..storage.exchanged import COLUMNS, ForeignSource
from ..storage.retractions import SUBJECTS, Retraction
from .payloads import Bodies

# ---- Rows of an exchange that others refer to, looked at one by one and known by their numbers ---

#: Called with the table, the number, the reason and how to count it.
Reject = Callable[[str, str], None]

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
    most : int or None
        How many may be remembered; None for :data:`tunedb.limits.MAX_SHARED_ROWS`.

    Attributes
    ----------
    digests : dict
        Table → number → digest, None for a row that was not taken.
    sources, sessions, targets, feature_sets, counter_sets : dict
        Number → what it stands for.
    """

    def __init__(self, reject: Reject, most: int | None = None) -> None:
        self._reject = reject
        self._most = limits.MAX_SHARED_ROWS if most is None else most
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
            if self._count > self._most:
                raise LimitError(
                    f"more than {self._most:,} workloads, sketches and similar rows in one "
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


def _types_of(column: Column) -> Iterator[type]:
    yield column.type
    if column.may_be_none:
        yield type(None)
    if column.form is Form.JSON:
        # A text of a foreign file that is no UTF-8.
        yield bytes


#: Column → types that its values may have.
_TYPES = {column.name: frozenset(_types_of(column)) for column in MEASUREMENT}

#: Columns that hold the number of a shared row.
_REFERENCES = names_of(Form.REFERENCE, Form.SHARED_JSON)

#: What a program consists of, besides its decisions.
_PROGRAM = ("workload", "target", "sketch", "tail")

#: Fields of a record, and where they stand in a row.
_PLAIN, _JSON, _SHARED_JSON = map(names_of, (Form.PLAIN, Form.JSON, Form.SHARED_JSON))
_plain_of = itemgetter(*(AT[name] for name in _PLAIN))

#: Origin in a row → what the digest covers.
_ORIGINS: dict[str | None, str] = {None: Origin.UNKNOWN.value, **{str(o): str(o) for o in Origin}}


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
        reasons: dict[int, str] = {}
        are_plain = _are_plain(rows)
        if not (are_plain and self._are_there(rows)):
            for at, row in enumerate(rows):
                reason = (None if are_plain else _complaint(row)) or self._missing(row)
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
                yield Digested(row, program, measurement)

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
        """Return what the digest covers of the values of a column, made when it is asked for."""
        name, body = column.name, self._shared.body
        if column.form is Form.SHARED_JSON:
            return (None if number is None else body(name, number) for number in values)
        if column.form is Form.REFERENCE:
            return map(self._shared.digests[name].get, values)
        if column.form is Form.JSON:
            return (value.encode() if type(value) is str else value for value in values)
        return map(_ORIGINS.__getitem__, values) if name == "origin" else values

    def _are_there(self, rows: Sequence[Row]) -> bool:
        """Tell whether all shared rows that plain rows refer to were taken."""
        of = self._shared.digests
        for name in _REFERENCES:
            at = AT[name]
            numbers = {row[at] for row in rows} - {None}
            if None in map(of[name].get, numbers):
                return False
        return True

    def _missing(self, row: Row) -> str | None:
        """Return what a row refers to that is not there, or None."""
        of = self._shared.digests
        for name in _REFERENCES:
            number = row[AT[name]]
            if number is not None and of[name].get(number) is None:
                if number in of[name]:
                    return f"its {name} was rejected"
                return f"it refers to a {name} that is missing"
        return None

    # ------------------------------------------------------------------ new rows

    def is_valid(self, row: Row) -> bool:
        """Tell whether a known record may be an answer; as ``Measurement.is_valid``."""
        sketch = self._shared.body("sketch", row[AT["sketch"]])
        return bool(row[AT["status"]] == Status.OK and sketch != b"[]")

    def trace(self, row: Row) -> Trace:
        """Return the trace of a record; FormatError where it holds what is not allowed."""
        sketch, tail = row[AT["sketch"]], row[AT["tail"]]
        trace = Trace(
            self._shared.body("sketch", sketch),
            None if tail is None else self._shared.body("tail", tail),
            row[AT["decisions"]],
        )
        allowlist.check_trace(trace, self._shared.format_of(row[AT["workload"]]))
        return trace

    def made(self, found: Digested) -> tuple[Measurement, int]:
        """Return a new measurement, and how many bytes it holds that no other one did.

        Raises
        ------
        FormatError
            It is not what tunedb would have stored itself, or its program holds what is not
            allowed (:mod:`tunedb.programs.allowlist`).
        """
        row, shared = found.row, self._shared
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
            if part is not None and key not in self._fresh:
                self._fresh.add(key)
                size += len(part)
        measurement = Measurement(
            Program(self._workloads[workload], shared.targets[row[AT["target"]]], trace),
            times,
            Status(row[AT["status"]]),
            session=None if session is None else shared.sessions[session],
            origin=Origin(_ORIGINS[row[AT["origin"]]]),
            **fields,
        )
        if measurement.digest != found.measurement:
            refuse(DIFFERENT)
        return measurement, size


# ---------------------------------------------------------------------- values of measurements


def _are_plain(rows: Sequence[Row]) -> bool:
    """Tell whether no value of a chunk needs a closer look; column by column, which is quick."""
    try:
        columns = list(zip(MEASUREMENT, zip(*rows, strict=True), strict=True))
    except (ValueError, TypeError):
        return False
    for column, values in columns:
        if not _TYPES[column.name].issuperset(map(type, values)):
            return False
        if column.check is not None or column.values is not None:
            there = [value for value in values if value is not None]
            if column.values is not None and not column.values.issuperset(there):
                return False
            if column.check is not None and not column.check(there):
                return False
    return True


def _complaint(row: Row) -> str | None:
    """Return why a row cannot be looked at further, or None."""
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
