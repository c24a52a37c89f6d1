"""Lookup of rows by the words of a user: names, ids, digests, attributes of targets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import orjson
from sqlalchemy import ColumnElement, select

from .. import identity, limits
from ..errors import NotFoundError, UsageError
from ..records import Target, Trust, WorkloadFormat
from ..system.one_line import printable, tensors
from . import schema
from .database import Database
from .loader import Loader
from .names import Names

Kind = Literal["workload", "target", "source"]

_HEX = frozenset("0123456789abcdef")

#: Shortest beginning of a digest, in hexadecimal digits.
_MIN_DIGITS = 4

#: Longest id in decimal digits: ids have 64 bits.
_MAX_ID_DIGITS = 18

#: Rows that a message lists.
_MAX_LISTED = 8

#: Labels, and characters of one, among which the nearest are searched for a message.
_MAX_LABELS, _MAX_LABEL_CHARS = 1_000, 200

_m, _w, _t = schema.measurement.c, schema.workload.c, schema.target.c
_s, _x = schema.source.c, schema.session.c


class Matcher:
    """Rows of one kind that match words; rows are added one by one and not kept.

    For each word the first of these rules that matches a row decides: the id of a row; a whole
    label, or the attributes of a target; a part of a workload's name, the last parts of a source's
    path, or the beginning of a digest. So ``matmul`` is the workload of that name and not
    ``batch_matmul``.

    Parameters
    ----------
    kind : str
        ``workload``, ``target`` or ``source``.
    words : iterable of str
        Words of the user. For a target, JSON such as ``{"num-cores": 2}`` matches attributes.
    ids : bool
        Ids count; false for a database of strangers, whose ids the user does not know.

    Raises
    ------
    UsageError
        A word for a target begins as JSON and is none.
    """

    def __init__(self, kind: Kind, words: Iterable[str], *, ids: bool) -> None:
        self._kind = kind
        self._ids = ids
        #: Matching rows by word and rule.
        self._rows: dict[str, tuple[list[int], list[int], list[int]]] = {
            word: ([], [], []) for word in words
        }
        self._attributes = {
            word: _attributes(word)
            for word in self._rows
            if kind == "target" and word.lstrip().startswith("{")
        }
        self._labels: set[str] = set()
        self._listed: dict[str, None] = {}
        self._count = 0

    def add(
        self,
        id_: int,
        labels: Sequence[str],
        digest: bytes | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Match one row.

        Parameters
        ----------
        id_ : int
            Id of the row.
        labels : sequence of str
            Its names, the one for messages first.
        digest : bytes or None
            Its digest, if users know it.
        attributes : mapping or None
            Attributes of a target.
        """
        self._note(id_, labels)
        digits = "" if digest is None else digest.hex()
        for word, rules in self._rows.items():
            rule = self._rule(word, str(id_), labels, digits, attributes or {})
            if rule is not None:
                rules[rule].append(id_)

    def _rule(
        self,
        word: str,
        id_: str,
        labels: Sequence[str],
        digits: str,
        attributes: Mapping[str, Any],
    ) -> int | None:
        """Return the number of the first rule by which a row matches, or None."""
        if word in self._attributes:
            expected = self._attributes[word].items()
            return 1 if all(attributes.get(key) == value for key, value in expected) else None
        if self._ids and word == id_:
            return 0
        if word in labels:
            return 1
        is_part = (self._kind == "workload" and any(word in label for label in labels)) or (
            self._kind == "source" and any(label.endswith(f"/{word}") for label in labels if word)
        )
        is_digest = len(word) >= _MIN_DIGITS and digits.startswith(word.lower())
        return 2 if is_part or is_digest else None

    def _note(self, id_: int, labels: Sequence[str]) -> None:
        """Keep labels for messages."""
        self._count += 1
        if len(self._labels) < _MAX_LABELS:
            self._labels.update(label for label in labels if len(label) <= _MAX_LABEL_CHARS)
        if labels and len(self._listed) <= _MAX_LISTED:
            label = printable(labels[0])
            self._listed[f"{id_} ({label})" if self._ids else label] = None

    def find(self, word: str) -> list[int]:
        """Return the ids of the rows that match a word, in the order in which they were added."""
        return next(filter(None, self._rows[word]), [])

    def require(self, word: str) -> list[int]:
        """Return the ids of the rows that match a word.

        Raises
        ------
        NotFoundError
            There is none; the message has the nearest labels and lists some rows.
        """
        return self.find(word) or self._fail(word)

    def all(self) -> set[int]:
        """Return the ids of the rows that match one of the words; raises as :meth:`require`."""
        return {id_ for word in self._rows for id_ in self.require(word)}

    def _fail(self, word: str) -> list[int]:
        from difflib import get_close_matches

        near = get_close_matches(word, sorted(self._labels), n=3, cutoff=0.5)
        nearest = f"nearest: {', '.join(map(printable, near))}; " if near else ""
        listed = _listed(self._listed, self._count if self._ids else None)
        there = f"there are: {listed}" if listed else "there is none"
        # A list of the command line is of the user's own database.
        where, see = ("", f"; see: tunedb {self._kind}s") if self._ids else (" there", "")
        raise NotFoundError(f"no {self._kind} {word!r}{where}; {nearest}{there}{see}")


def _attributes(word: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = orjson.loads(word)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"target {word!r} is not JSON ({error})") from None
    return value


def _listed(items: Iterable[str], count: int | None) -> str:
    """Return the first items of a list, and how many of `count` (None if unknown) remain."""
    values = list(islice(items, _MAX_LISTED + 1))
    shown = ", ".join(values[:_MAX_LISTED])
    if len(values) <= _MAX_LISTED:
        return shown
    return f"{shown} and more" if count is None else f"{shown} and {count - _MAX_LISTED} more"


def target_labels(kind: Any, config: Any) -> tuple[list[str], dict[str, Any] | None]:
    """Return the labels of a target, the longest first, and its attributes.

    Parameters
    ----------
    kind, config : object
        Columns of a target's row, which may hold anything in a database of strangers. What cannot
        be read has fewer labels and no attributes.
    """
    if not isinstance(kind, str):
        return [], None
    if not isinstance(config, str) or len(config) > limits.MAX_TARGET_CHARS:
        return [kind], None
    try:
        target = Target(kind, config.encode())
        attributes = target.attributes
        if not isinstance(attributes, dict):
            return [kind], None
        return list(dict.fromkeys((target.full_label, target.label, kind))), attributes
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return [kind], None


class Lookup:
    """``store.lookup``, for packages that take a user's words for rows."""

    def __init__(self, db: Database, loader: Loader, names: Names) -> None:
        self._db = db
        self._loader = loader
        self._names = names

    # ------------------------------------------------------------------ any number of rows

    def workloads(self, text: str = "", family: str | None = None) -> list[int]:
        """Return the ids of the workloads with this id, name, part of a name or digest."""
        return self._workloads(text, family).find(text)

    def targets(self, text: str | None = None) -> list[int]:
        """Return the ids of the targets with this id, kind, label or attributes; None for all."""
        if text is None:
            return [row.id for row in self._db.select(select(_t.id).order_by(_t.id))]
        return self._targets(text).find(text)

    def sessions(self, text: str) -> list[int]:
        """Return the ids of the sessions with this key, id or digest."""
        return (
            self._ids(_x.id, _x.key == text)
            or self._ids(_x.id, _x.id == _number(text))
            or self._by_digest(_x.id, _x.digest, text)
        )

    def records(self, text: str, limit: int = _MAX_LISTED + 1) -> list[int]:
        """Return the ids of the records with this id or digest."""
        return self._ids(_m.id, _m.id == _number(text)) or self._by_digest(
            _m.id, _m.digest, text, limit
        )

    # ------------------------------------------------------------------ one row

    def workload(self, text: str) -> list[int]:
        """Return the ids of one workload and its equivalents.

        Raises
        ------
        NotFoundError
            No workload matches.
        UsageError
            Workloads match that are different computations.
        """
        matches = self._workloads(text).require(text)
        groups = {tuple(self._names.equivalent(id_)) for id_ in matches}
        if len(groups) > 1:
            # The first match of each group, described by its arguments: the name may be the same.
            firsts = sorted(min(set(group) & set(matches)) for group in groups)
            listed = _listed((f"{id_} ({self._arguments(id_)})" for id_ in firsts), len(firsts))
            raise UsageError(
                f"{text!r} matches {len(groups)} workloads; give an id: {listed}; "
                "see: tunedb workloads"
            )
        return list(groups.pop())

    def require_workloads(self, text: str) -> list[int]:
        """Return the ids of all matching workloads.

        Raises
        ------
        NotFoundError
            No workload matches.
        """
        return self._workloads(text).require(text)

    def require_targets(self, text: str) -> list[int]:
        """Return the ids of all matching targets.

        Raises
        ------
        NotFoundError
            No target matches.
        UsageError
            The text begins as JSON and is none.
        """
        return self._targets(text).require(text)

    def source(self, text: str) -> int:
        """Return the id of the source with this id, name, last parts of a path or digest.

        Raises
        ------
        NotFoundError
            No source matches.
        UsageError
            Several match: sources of two databases may have the same name.
        """
        matcher = Matcher("source", [text], ids=True)
        columns = select(_s.id, _s.name, _s.digest, _s.trust)
        rows = {row.id: row for row in self._db.select(columns.order_by(_s.id))}
        for id_, row in rows.items():
            matcher.add(id_, [row.name], bytes(row.digest))
        matches = matcher.require(text)
        if len(matches) > 1:
            shown = (
                f"{id_} ({printable(rows[id_].name)}, {Trust(rows[id_].trust).name.lower()})"
                for id_ in matches
            )
            listed = _listed(shown, len(matches))
            raise UsageError(
                f"{text!r} matches {len(matches)} sources; give an id: {listed}; "
                "see: tunedb sources"
            )
        return matches[0]

    def session(self, text: str) -> int:
        """Return the id of the session with this key, id or digest.

        Raises
        ------
        NotFoundError
            No session matches.
        UsageError
            Several match.
        """
        return _only(
            self.sessions(text),
            f"no session {text!r}; give a key or id of tunedb sessions --json or "
            "tunedb show list them",
            f"{text!r} matches several sessions; give an id",
        )

    def record(self, text: str) -> int:
        """Return the id of the record with this id or digest.

        Raises
        ------
        NotFoundError
            No record matches.
        UsageError
            Several match.
        """
        return _only(
            self.records(text),
            f"no record {text!r}; give an id or four and more digits of a digest, "
            "as tunedb top lists them",
            f"{text!r} matches several records; give more digits, or an id",
        )

    # ------------------------------------------------------------------ rows

    def _workloads(self, text: str, family: str | None = None) -> Matcher:
        matcher = Matcher("workload", [text], ids=True)
        signature = () if family is None else (_w.function, _w.arguments, _w.family, _w.flops)
        columns = select(_w.id, _w.name, _w.digest, _w.format, *signature)
        for row in self._db.select(columns.order_by(_w.id)):
            if family is None or self._loader.signature(row).family == family:
                # A FAIR T1 input has the name of the kernel that it describes.
                labels = [] if text and row.format == WorkloadFormat.T1 else [row.name]
                matcher.add(row.id, labels, bytes(row.digest))
        return matcher

    def _targets(self, text: str) -> Matcher:
        matcher = Matcher("target", [text], ids=True)
        for row in self._db.select(select(_t.id, _t.kind, _t.config).order_by(_t.id)):
            labels, attributes = target_labels(row.kind, row.config)
            matcher.add(row.id, labels, attributes=attributes)
        return matcher

    def _arguments(self, id_: int) -> str:
        """Return a workload's arguments as text, or its name if they are unknown."""
        workload, signature = self._loader.workload_with_signature(id_)
        return printable(tensors(signature.arguments or ()) or workload.name)

    def _ids(self, column: Any, condition: ColumnElement[bool]) -> list[int]:
        return [row[0] for row in self._db.select(select(column).where(condition))]

    def _by_digest(
        self, column: Any, digest: Any, text: str, limit: int | None = None
    ) -> list[int]:
        """Return the sorted ids of rows whose digest begins with `text`."""
        digits = 2 * identity.DIGEST_BYTES
        if not _MIN_DIGITS <= len(text) <= digits or not set(text.lower()) <= _HEX:
            return []
        # For measurements this reads a whole index: none begins with the digest.
        low, high = (bytes.fromhex(text.ljust(digits, filler)) for filler in "0f")
        statement = select(column).where(digest.between(low, high)).limit(limit)
        return sorted(row[0] for row in self._db.select(statement))


def _number(text: str) -> int:
    """Return a text as an id; 0, which no row has, if it is none."""
    is_id = text.isascii() and text.isdecimal() and len(text) <= _MAX_ID_DIGITS
    return int(text) if is_id else 0


def _only(ids: Collection[int], none: str, several: str) -> int:
    """Return the one id, or raise an error with one of these messages."""
    if not ids:
        raise NotFoundError(none)
    if len(ids) > 1:
        raise UsageError(f"{several}: {_listed(map(str, ids), len(ids))}")
    return next(iter(ids))
