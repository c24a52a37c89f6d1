"""Where candidates came from, on their way from the search to the measure callback.

TVM hands a candidate through builder and runner without a place for more, so what the search knows
of it waits here under the address of its trace.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from cachetools import FIFOCache

from ....identity import canonical_json
from ....records import Origin

__all__ = ["CROSSOVER", "Lineage", "announce", "forget", "of"]

#: Candidates that are remembered; a batch has 16 to 64, and each task of a run has one at a time.
_MOST = 4096

#: The operator with two parents.
CROSSOVER = "crossover"


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a candidate descends from.

    Parameters
    ----------
    origin : Origin
        How it was made last.
    donor : bytes or None
        Digest of the stored program that it descends from most directly; None if all of it was
        drawn.
    operators : tuple of str
        What was done to it since, oldest first.
    other : bytes or None
        The stored program that its second parent descends from, after a crossover.
    """

    origin: Origin
    donor: bytes | None = None
    operators: tuple[str, ...] = ()
    other: bytes | None = None

    def mutated(self, operator: str) -> Lineage:
        """Return the lineage of a mutant."""
        return Lineage(Origin.MUTATED, self.donor, (*self.operators, operator), self.other)

    def crossed(self, other: Lineage) -> Lineage:
        """Return the lineage of a child of two; the first parent is the one that it follows.

        A second parent that descends from no stored program leaves no digest.
        """
        donor, second = self.donor, other.donor
        return Lineage(
            Origin.CROSSED,
            second if donor is None else donor,
            (*self.operators, CROSSOVER),
            self.other if donor is None or second in (None, donor) else second,
        )

    @property
    def is_crossed(self) -> bool:
        """Whether a crossover is among the operators."""
        return CROSSOVER in self.operators

    def extra(self) -> bytes | None:
        """Return what is stored with the measurement beside origin and donor, or None.

        Returns
        -------
        bytes or None
            Canonical JSON ``{"search": {"operators": [...], "other": hex}}``.
        """
        said: dict[str, Any] = {}
        if self.operators:
            said["operators"] = list(self.operators)
        if self.other is not None:
            said["other"] = self.other.hex()
        return canonical_json({"search": said}) if said else None


_lock = threading.Lock()
#: Address of a trace → the trace, kept so that nothing else gets its address, and its lineage.
_known: FIFOCache[int, tuple[Any, Lineage]] = FIFOCache(_MOST)


def announce(trace: Any, lineage: Lineage) -> None:
    """Say where the candidate of a trace comes from, before it is measured."""
    with _lock:
        _known[trace.__chandle__()] = (trace, lineage)


def of(trace: Any) -> Lineage | None:
    """Return the lineage of the candidate of a trace; None if no search of ours made it."""
    with _lock:
        found = _known.get(trace.__chandle__())
    return None if found is None else found[1]


def forget(trace: Any) -> None:
    """Drop what is known of a trace, once its measurement is stored."""
    with _lock:
        _known.pop(trace.__chandle__(), None)
