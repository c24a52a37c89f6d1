"""Rows of an exchange that others refer to, looked at one by one and known by their numbers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from .. import identity, limits
from ..errors import FormatError, LimitError, TuneDBError
from ..identity import canonical_json, clean_text
from ..launches import CounterSet, counters_of
from ..records import NO_TARGET, Session, SourceKind, Target, Workload, WorkloadFormat
from ..values import INT64, check_value, parse_json
from .bodies import Bodies
from .incoming import ForeignSource
from .wire import COLUMNS

#: Called with the table, the number, the reason and how to count it.
Reject = Callable[[str, str], None]

#: Tables whose bodies may be many or large.
_BODIED = frozenset({"workload", "sketch", "tail", "args_info", "context"})

_FORMATS = frozenset(WorkloadFormat)
_KINDS = frozenset(SourceKind)
_MAX_KEY_CHARS = 64

DIFFERENT = "its digest does not fit what it holds"


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
                    f"more than {limits.MAX_SHARED_ROWS:,} workloads, sketches and the like in one "
                    "exchange; give it in parts (--workload, --target, --since)"
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
            refuse("two rows have one number")
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
            refuse("its fingerprint is no object")
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
            refuse("its format is unknown; a newer tunedb may know it")
        if type(body) is not bytes:
            refuse("it has no body, or too large a one")
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
            refuse("its configuration is no object")
        if kind != target.kind:
            refuse("its kind is not that of its configuration")
        text(kind, "its kind", limits.MAX_NAME_CHARS)
        self._held(body, target.text or "")
        self.targets[number] = target
        return target.digest

    def _part(self, table: str, number: int, _stated: Any, body: Any) -> bytes:
        """Look at a sketch or tail; what it holds is looked at with the first program."""
        if type(body) is not bytes or len(body) > limits.MAX_FOREIGN_PART_BYTES:
            refuse("it has no body, or too large a one")
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
            refuse("its columns are no list of names")
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
        refuse("a number that is no integer of 64 bits")
    return value


def text(value: Any, what: str, most: int) -> str:
    """Return a text that both databases can hold as it is, or raise FormatError."""
    if type(value) is not str or not value:
        refuse(f"{what} is no text")
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
        refuse(f"{what} is no text, or longer than {most} bytes")
    found = parse_json(value)
    check_value(found, what)
    return value, found


def canonical(value: Any, what: str, most: int) -> bytes:
    """Return the bytes of a text that is canonical JSON, or raise FormatError."""
    body, found = json_of(value, what, most)
    if canonical_json(found) != body:
        refuse(f"{what} is not in the canonical form")
    return body
