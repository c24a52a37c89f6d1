"""Where candidates come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....identity import canonical_json
from ....records import Origin

__all__ = ["CROSSOVER", "Lineage"]

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
