"""What a search did and came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..database.candidates import Lineage


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the search, as ``on_round`` is told of it.

    Parameters
    ----------
    task : str
        Name of the task.
    number : int
        The first is 1.
    programs : int
        Legal programs that were compared.
    proposed : int
        Programs that are measured next.
    """

    task: str
    number: int
    programs: int
    proposed: int


@dataclass(slots=True)
class Tally:
    """What became of the drafts of a task, by operator (``random`` and ``warm`` beside them).

    Parameters
    ----------
    offspring : Counter
        Drafts that were replayed.
    illegal : Counter
        Those of them that do not apply, or that a postprocessor refuses.
    """

    offspring: Counter[str] = field(default_factory=Counter)
    illegal: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Outcome:
    """What a task came to so far.

    Parameters
    ----------
    task : str
        Its name.
    trials : int
        Programs that were proposed.
    proposals : Counter
        Them by origin.
    tally : Tally
        Offspring by operator.
    best_seconds : float or None
        Mean time of the best program that was measured.
    best : bytes or None
        Its digest.
    lineages : dict
        Of each program that was measured, by digest.
    """

    task: str
    trials: int = 0
    proposals: Counter[str] = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)
    best_seconds: float | None = None
    best: bytes | None = None
    lineages: dict[bytes, Lineage] = field(default_factory=dict)

    def note(self, digest: bytes, descent: Lineage, seconds: float | None) -> None:
        """Take in a program that was measured; `seconds` is None for one that failed."""
        self.lineages[digest] = descent
        if seconds is not None and (self.best_seconds is None or seconds < self.best_seconds):
            self.best_seconds, self.best = seconds, digest

    def descent(self) -> list[Lineage]:
        """Return the lineage of the best program, of its donor, and so on, in this run."""
        found: list[Lineage] = []
        digest, met = self.best, set[bytes]()
        while digest is not None and digest not in met and digest in self.lineages:
            met.add(digest)
            found.append(self.lineages[digest])
            digest = found[-1].donor
        return found

    def report(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        descent = self.descent()
        return {
            "trials": self.trials,
            "proposals": dict(self.proposals),
            "offspring": dict(self.tally.offspring),
            "illegal": {name: self.tally.illegal[name] for name in self.tally.offspring},
            "best_seconds": self.best_seconds,
            "best": None if self.best is None else self.best.hex(),
            "descent": [
                {
                    "origin": one.origin.value,
                    "operators": list(one.operators),
                    "donor": None if one.donor is None else one.donor.hex(),
                    "other": None if one.other is None else one.other.hex(),
                }
                for one in descent
            ],
            "best_is_crossed": any(one.is_crossed for one in descent),
        }
