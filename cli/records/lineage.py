"""Where a record's program came from: donors, their donors, and what was done on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import text

if TYPE_CHECKING:
    from ...records import Measurement
    from ...results import Record
    from ...storage.store import Store

#: How many donors of donors are told.
_MOST = 16

_OFTEN = {1: "", 2: " twice"}


@dataclass(frozen=True, slots=True)
class Donor:
    """A program that another one was made from.

    Parameters
    ----------
    digest : str
        Of the program, in hexadecimal digits.
    record : int or None
        Its first record that says where it came from, or its first one; None where the database
        has none.
    workload_id : int or None
        The workload of that record.
    """

    digest: str
    record: int | None = None
    workload_id: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """How one program of a chain was made.

    Parameters
    ----------
    record : int
        Its record.
    workload_id : int
        That record's workload.
    origin : str
        ``random``, ``mutated``, ``crossed``, ``warm``, ``measured`` or ``unknown``.
    operators : tuple of str
        What was done to the donor, oldest first.
    donor, other : Donor or None
        What it was made from, the second one by a crossover.
    """

    record: int
    workload_id: int
    origin: str
    operators: tuple[str, ...]
    donor: Donor | None
    other: Donor | None


def lineage_of(store: Store, record: Record) -> list[Step]:
    """Return how a record's program was made, then how its donor was, and so on.

    Parameters
    ----------
    store : Store
        The database.
    record : Record
        One of its records.

    Returns
    -------
    list of Step
        The record's own first. It ends with a program that has no donor, or one that is not
        stored.
    """
    return _Chain(store).steps(record)


class _Chain:
    def __init__(self, store: Store) -> None:
        self._store = store
        #: The first telling record of each program, of the workloads and targets that were read.
        self._first: dict[tuple[int, int], dict[bytes, Record]] = {}

    def steps(self, record: Record) -> list[Step]:
        steps: list[Step] = []
        met: set[bytes] = set()
        found: Record | None = record
        while found is not None and len(steps) < _MOST:
            measurement = found.measurement
            if measurement.program.digest in met:
                break
            met.add(measurement.program.digest)
            operators, other = _said(measurement)
            steps.append(
                Step(
                    found.id,
                    found.workload_id,
                    measurement.origin.value,
                    operators,
                    self._donor(measurement.donor),
                    self._donor(other),
                )
            )
            found = None if measurement.donor is None else self._find(measurement.donor)
        return steps

    def _donor(self, digest: bytes | None) -> Donor | None:
        if digest is None:
            return None
        found = self._find(digest)
        if found is None:
            return Donor(digest.hex())
        return Donor(digest.hex(), found.id, found.workload_id)

    def _find(self, digest: bytes) -> Record | None:
        """Return the first record of a program that tells of its origin, or its first one."""
        (number,) = self._store.programs.ids([digest])
        programs = [] if number is None else self._store.programs.get([number])
        if not programs:
            return None
        place = programs[0].workload_id, programs[0].target_id
        if place not in self._first:
            self._first[place] = self._read(*place)
        return self._first[place].get(digest)

    def _read(self, workload_id: int, target_id: int) -> dict[bytes, Record]:
        from ...records import Origin

        silent = (Origin.UNKNOWN, Origin.MEASURED)
        first: dict[bytes, Record] = {}
        for record in self._store.records.iterate(workload_id, [target_id]):
            digest = record.measurement.program.digest
            known = first.get(digest)
            if known is None or (
                known.measurement.origin in silent and record.measurement.origin not in silent
            ):
                first[digest] = record
        return first


def _said(measurement: Measurement) -> tuple[tuple[str, ...], bytes | None]:
    """Return the operators and the second donor that the search has noted."""
    import orjson

    extra = orjson.loads(measurement.extra or b"null")
    said = extra.get("search") if isinstance(extra, dict) else None
    if not isinstance(said, dict):
        return (), None
    operators, other = said.get("operators"), said.get("other")
    names = tuple(map(str, operators)) if isinstance(operators, list) else ()
    try:
        return names, bytes.fromhex(other) if isinstance(other, str) else None
    except ValueError:  # extra is what a log said, too
        return names, None


def row_of(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Return a chain for JSON."""
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


def _donor_row(donor: Donor | None) -> dict[str, Any] | None:
    if donor is None:
        return None
    return {"program": donor.digest, "record": donor.record, "workload_id": donor.workload_id}


def told(steps: Sequence[Step]) -> list[str]:
    """Return a chain in words, a line for each program.

    Examples
    --------
    >>> told(steps)  # doctest: +SKIP
    ['mutated twice (tile_size, unroll) from record 12,',
     'which was warm-started from record 5 of workload 3']
    """
    lines = [_words(step) for step in steps]
    # What an imported program is made of is not known: its record was named already.
    if len(steps) > 1 and steps[-1].origin == "unknown":
        lines.pop()
    return [
        ("which was " if number else "") + line + ("," if number < len(lines) - 1 else "")
        for number, line in enumerate(lines)
    ]


def _words(step: Step) -> str:
    where = _named(step.donor, step.workload_id) or "a random program"
    other = _named(step.other, step.workload_id)
    beside = f", crossed with {other}" if other else ""
    named = ", ".join(step.operators)
    # That it was crossed is said already.
    done = f" ({text.clean(named)})" if named not in ("", "crossover") else ""
    match step.origin:
        case "mutated":
            often = _OFTEN.get(max(len(step.operators), 1), f" {len(step.operators)} times")
            return f"mutated{often}{done} from {where}{beside}"
        case "crossed":
            return f"crossed{done} from {where}" + (f" with {other}" if other else "")
        case "warm":
            return f"warm-started from {where}"
        case "random":
            return "drawn at random"
        case "measured":
            before = "" if step.donor is None else f": {where}"
            return f"measured again{before}"
    return step.origin


def _named(donor: Donor | None, workload_id: int) -> str | None:
    """Return a donor in words, with its workload where that is another one."""
    if donor is None:
        return None
    if donor.record is None:
        return f"program {donor.digest}, which is not stored here"
    elsewhere = f" of workload {donor.workload_id}" if donor.workload_id != workload_id else ""
    return f"record {donor.record}{elsewhere}"
