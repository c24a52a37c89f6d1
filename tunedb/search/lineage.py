"""Lineage of a record's program: its donors, their donors, and the operators between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..records import Origin
from ..system import text

if TYPE_CHECKING:
    from ..records import Measurement
    from ..results import Record
    from ..storage.store import Store

#: Largest length of a lineage.
_MAX_STEPS = 16

#: Origins that say nothing about the search.
_UNINFORMATIVE = (Origin.UNKNOWN.value, Origin.MEASURED.value)

_VERBS = {"warm": "warm-started", "replayed": "replayed"}

_TIMES = {1: "", 2: " twice"}


@dataclass(frozen=True, slots=True)
class LineageDonor:
    """A program from which the search derived another one.

    Parameters
    ----------
    digest : str
        The program's digest, in hexadecimal digits.
    record : int or None
        Its first record with a known origin, or else its first record; None if the database has
        none.
    workload_id : int or None
        The workload of that record.
    is_shipped : bool
        Whether record and workload are those of the prior, because the database has none.
    """

    digest: str
    record: int | None = None
    workload_id: int | None = None
    is_shipped: bool = False


@dataclass(frozen=True, slots=True)
class LineageStep:
    """Origin of one program of a lineage.

    Parameters
    ----------
    record : int
        The program's record.
    workload_id : int
        The record's workload.
    origin : str
        ``random``, ``mutated``, ``crossed``, ``warm``, ``measured``, ``replayed`` or ``unknown``.
    operators : tuple of str
        Operators that changed the donor, oldest first.
    donor, other : LineageDonor or None
        The parent programs; a crossover has two.
    """

    record: int
    workload_id: int
    origin: str
    operators: tuple[str, ...]
    donor: LineageDonor | None
    other: LineageDonor | None

    @property
    def has_unknown_donor(self) -> bool:
        """Whether a parent has no record."""
        return any(each is not None and each.record is None for each in (self.donor, self.other))


def lineage_of(store: Store, record: Record, prior: Store | None = None) -> list[LineageStep]:
    """Return the origin of a record's program, then that of its donor, and so on.

    Parameters
    ----------
    store : Store
        The database.
    record : Record
        A record of the database.
    prior : Store, optional
        Database of the prior, for donors that the database does not have.

    Returns
    -------
    list of LineageStep
        The record's own step first. The last program has no donor, or one that is not stored.
    """
    return _LineageReader(store, prior).steps(record)


class _LineageReader:
    def __init__(self, store: Store, prior: Store | None) -> None:
        self._store = store
        self._prior = None if prior is None else _LineageReader(prior, None)
        #: (workload, target) → program → its first record, preferably with a known origin.
        self._first: dict[tuple[int, int], dict[bytes, int]] = {}

    def steps(self, record: Record) -> list[LineageStep]:
        steps: list[LineageStep] = []
        seen: set[bytes] = set()
        current: Record | None = record
        while current is not None and len(steps) < _MAX_STEPS:
            measurement = current.measurement
            if measurement.program.digest in seen:
                break
            seen.add(measurement.program.digest)
            operators, other = _search_notes(measurement)
            steps.append(
                LineageStep(
                    current.id,
                    current.workload_id,
                    measurement.origin.value,
                    operators,
                    self._donor(measurement.donor),
                    self._donor(other),
                )
            )
            current = None if measurement.donor is None else self._find(measurement.donor)
        return steps

    def _donor(self, digest: bytes | None) -> LineageDonor | None:
        if digest is None:
            return None
        for reader in (self, self._prior):
            record = None if reader is None else reader._find(digest)
            if record is not None:
                is_shipped = reader is not self
                return LineageDonor(digest.hex(), record.id, record.workload_id, is_shipped)
        return LineageDonor(digest.hex())

    def _find(self, digest: bytes) -> Record | None:
        """Return a program's first record with a known origin, or else its first record."""
        (program_id,) = self._store.programs.ids([digest])
        programs = [] if program_id is None else self._store.programs.get([program_id])
        if not programs:
            return None
        key = programs[0].workload_id, programs[0].target_id
        if key not in self._first:
            self._first[key] = self._read(*key)
        record = self._first[key].get(digest)
        return None if record is None else self._store.records.get(record)

    def _read(self, workload_id: int, target_id: int) -> dict[bytes, int]:
        table = self._store.table("records", [workload_id], [target_id])
        columns = table.to_pydict("program", "record_id", "origin")
        first: dict[bytes, int] = {}
        informative = set()
        for program, record, origin in zip(*columns.values(), strict=True):
            digest = bytes.fromhex(program)
            if origin not in _UNINFORMATIVE and digest not in informative:
                informative.add(digest)
                first[digest] = record
            first.setdefault(digest, record)
        return first


def _search_notes(measurement: Measurement) -> tuple[tuple[str, ...], bytes | None]:
    """Return the operators and the second donor that the search recorded."""
    import orjson

    extra = orjson.loads(measurement.extra or b"null")
    notes = extra.get("search") if isinstance(extra, dict) else None
    if not isinstance(notes, dict):
        return (), None
    operators, other = notes.get("operators"), notes.get("other")
    names = tuple(map(str, operators)) if isinstance(operators, list) else ()
    try:
        return names, bytes.fromhex(other) if isinstance(other, str) else None
    except ValueError:  # an imported log may hold anything here
        return names, None


def lineage_rows(steps: Sequence[LineageStep]) -> list[dict[str, Any]]:
    """Return a lineage as JSON."""
    return [
        {
            "record": step.record,
            "workload_id": step.workload_id,
            "origin": step.origin,
            "operators": list(step.operators),
            "donor": _donor_row(step.donor),
            "other": _donor_row(step.other),
        }
        for step in steps
    ]


def _donor_row(donor: LineageDonor | None) -> dict[str, Any] | None:
    from ..exchange.prior import SHIPPED

    if donor is None:
        return None
    return {
        "program": donor.digest,
        "record": donor.record,
        "workload_id": donor.workload_id,
        "layer": SHIPPED if donor.is_shipped else None,
    }


def lineage_lines(steps: Sequence[LineageStep]) -> list[str]:
    """Return a lineage in words, a line for each program.

    Examples
    --------
    >>> lineage_lines(steps)  # doctest: +SKIP
    ['mutated twice (tile_size, unroll) from record 12,',
     'which was warm-started from record 5 of workload 3']
    """
    lines = [_words(step) for step in steps]
    # The previous line names the record of an imported program already.
    if len(steps) > 1 and steps[-1].origin == "unknown":
        lines.pop()
    return [
        ("which was " if number else "") + line + ("," if number < len(lines) - 1 else "")
        for number, line in enumerate(lines)
    ]


def _words(step: LineageStep) -> str:
    donor = _donor_words(step.donor, step.workload_id) or "a random program"
    other = _donor_words(step.other, step.workload_id)
    partner = f", crossed with {other}" if other else ""
    names = ", ".join(step.operators)
    # The verb says "crossed" already.
    operators = f" ({text.clean(names)})" if names not in ("", "crossover") else ""
    match step.origin:
        case "mutated":
            times = _TIMES.get(max(len(step.operators), 1), f" {len(step.operators)} times")
            return f"mutated{times}{operators} from {donor}{partner}"
        case "crossed":
            return f"crossed{operators} from {donor}" + (f" with {other}" if other else "")
        case "warm" | "replayed":
            return f"{_VERBS[step.origin]} from {donor}"
        case "random":
            return "drawn at random"
        case "measured":
            original = "" if step.donor is None else f": {donor}"
            return f"measured again{original}"
    return step.origin


def _donor_words(donor: LineageDonor | None, workload_id: int) -> str | None:
    """Return a donor in words, with its workload if that differs."""
    if donor is None:
        return None
    if donor.record is None:
        return f"program {donor.digest}, which is not in this database"
    if donor.is_shipped:
        return f"record {donor.record} of the prior"
    elsewhere = f" of workload {donor.workload_id}" if donor.workload_id != workload_id else ""
    return f"record {donor.record}{elsewhere}"
