"""Live candidates of a tuning run, from the search that makes them until they are stored.

TVM hands a candidate through builder and runner without room for more, so this module keeps the
other facts about it under the address of its trace.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from cachetools import FIFOCache

from ....identity import canonical_json
from ....records import Measurement, Origin

#: Most live candidates; a batch has 16 to 64, and each task of a run has one batch at a time.
_MOST = 4096

_CROSSOVER = "crossover"


@dataclass(frozen=True, slots=True)
class Lineage:
    """Ancestors of a candidate.

    Parameters
    ----------
    origin : Origin
        Last step that made it.
    donor : bytes or None
        Digest of the stored program that it descends from most directly; None if all of it was
        drawn.
    operators : tuple of str
        Operators that changed it since, oldest first.
    other : bytes or None
        Digest of the stored program that its second parent descends from, after a crossover.
    """

    origin: Origin
    donor: bytes | None = None
    operators: tuple[str, ...] = ()
    other: bytes | None = None

    def child(self, operator: str, partner: Lineage | None = None) -> Lineage:
        """Return the lineage of a child.

        Parameters
        ----------
        operator : str
            Name of the operator that made the child.
        partner : Lineage, optional
            Lineage of the second parent. Without a stored ancestor it leaves no digest.
        """
        operators = (*self.operators, operator)
        if partner is None:
            return Lineage(Origin.MUTATED, self.donor, operators, self.other)
        donor, second = self.donor, partner.donor
        return Lineage(
            Origin.CROSSED,
            second if donor is None else donor,
            operators,
            self.other if donor is None or second in (None, donor) else second,
        )

    @property
    def is_crossed(self) -> bool:
        """Whether a crossover is among the operators."""
        return _CROSSOVER in self.operators

    def extra(self) -> bytes | None:
        """Return the operators and the other donor as the measurement stores them, or None.

        Returns
        -------
        bytes or None
            Canonical JSON ``{"search": {"operators": [...], "other": hex}}``.
        """
        fields: dict[str, Any] = {}
        if self.operators:
            fields["operators"] = list(self.operators)
        if self.other is not None:
            fields["other"] = self.other.hex()
        return canonical_json({"search": fields}) if fields else None


@dataclass(slots=True, eq=False)
class _LiveCandidate:
    """A candidate with its trace, which is kept so that no other trace gets its address."""

    trace: Any
    lineage: Lineage | None = None
    committed: Measurement | None = None
    is_recorded: bool = False


class CandidateRegistry:
    """Live candidates of a handle; it may be used from any thread.

    TVM's ``AddToDatabase`` and our ``MeasureCallback`` both get each measured candidate, in either
    order; the registry notes which candidates the first has stored, so that the second does not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: FIFOCache[int, _LiveCandidate] = FIFOCache(_MOST)

    def announce(self, trace: Any, lineage: Lineage) -> None:
        """Note the lineage of a candidate, before it is measured."""
        with self._lock:
            self._entry(trace).lineage = lineage

    def lineage_of(self, trace: Any) -> Lineage | None:
        """Return the lineage of a candidate; None if no search of ours made it."""
        with self._lock:
            live = self._live.get(trace.__chandle__())
            return None if live is None else live.lineage

    def forget(self, trace: Any) -> None:
        """Drop the lineage of a candidate, once its measurement is stored."""
        self._take(trace, "lineage", None)

    def commit(self, trace: Any, measurement: Measurement) -> None:
        """Note the measurement that ``AddToDatabase`` has stored for a candidate."""
        with self._lock:
            self._entry(trace).committed = measurement

    def take_committed(self, trace: Any) -> Measurement | None:
        """Return the measurement that ``AddToDatabase`` has stored, and forget it."""
        measurement: Measurement | None = self._take(trace, "committed", None)
        return measurement

    def record(self, trace: Any) -> None:
        """Note that ``MeasureCallback`` has recorded a candidate."""
        with self._lock:
            self._entry(trace).is_recorded = True

    def take_recorded(self, trace: Any) -> bool:
        """Return True if ``MeasureCallback`` has recorded a candidate, and forget that."""
        return bool(self._take(trace, "is_recorded", False))

    def begin_batch(self) -> None:
        """Forget the candidates that ``MeasureCallback`` has recorded."""
        self._take_all("is_recorded", False)

    def end_batch(self) -> None:
        """Forget the measurements that ``AddToDatabase`` has stored."""
        self._take_all("committed", None)

    def _take(self, trace: Any, name: str, empty: Any) -> Any:
        with self._lock:
            live = self._live.get(trace.__chandle__())
            return empty if live is None else self._taken(live, name, empty)

    def _take_all(self, name: str, empty: Any) -> None:
        with self._lock:
            for live in list(self._live.values()):
                self._taken(live, name, empty)

    def _taken(self, live: _LiveCandidate, name: str, empty: Any) -> Any:
        """Empty an attribute and return its value; remove a candidate that becomes empty."""
        value = getattr(live, name)
        setattr(live, name, empty)
        if live.lineage is None and live.committed is None and not live.is_recorded:
            del self._live[live.trace.__chandle__()]
        return value

    def _entry(self, trace: Any) -> _LiveCandidate:
        return self._live.setdefault(trace.__chandle__(), _LiveCandidate(trace))
