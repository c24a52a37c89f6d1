"""Reports of a search: its rounds, the drafts of each operator, and the best program."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..database.candidates import Lineage


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the search, as ``on_round`` gets it.

    Parameters
    ----------
    task : str
        Name of the task.
    number : int
        Number of the round, from 1.
    programs : int
        Programs that were compared.
    replayed : int
        Drafts that TVM replayed for it.
    illegal : int
        Those among them that are no programs.
    proposed : int
        Programs that are measured next.
    """

    task: str
    number: int
    programs: int
    replayed: int
    illegal: int
    proposed: int


@dataclass(slots=True)
class OperatorCounts:
    """Counts of the drafts of a task by operator, with ``random`` and ``warm`` beside them.

    Parameters
    ----------
    offspring : Counter
        Drafts that were replayed.
    illegal : Counter
        Replayed drafts that do not apply, or that a postprocessor rejects.
    """

    offspring: Counter[str] = field(default_factory=Counter)
    illegal: Counter[str] = field(default_factory=Counter)

    def add(self, operator: str, *, is_legal: bool) -> None:
        """Count a replayed draft."""
        self.offspring[operator] += 1
        self.illegal[operator] += not is_legal


@dataclass(slots=True)
class TaskReport:
    """Results of a task so far.

    Parameters
    ----------
    task : str
        Name of the task.
    trials : int
        Programs that were proposed.
    proposals : Counter
        Proposed programs by origin.
    counts : OperatorCounts
        Drafts by operator.
    best_seconds : float or None
        Mean time of the best program that was measured.
    best : bytes or None
        Digest of that program.
    lineages : dict
        Lineage of each program that was measured, by digest.
    """

    task: str
    trials: int = 0
    proposals: Counter[str] = field(default_factory=Counter)
    counts: OperatorCounts = field(default_factory=OperatorCounts)
    best_seconds: float | None = None
    best: bytes | None = None
    lineages: dict[bytes, Lineage] = field(default_factory=dict)

    def add(self, digest: bytes, lineage: Lineage, seconds: float | None) -> None:
        """Add a measured program; `seconds` is None for a failure."""
        self.lineages[digest] = lineage
        if seconds is not None and (self.best_seconds is None or seconds < self.best_seconds):
            self.best_seconds, self.best = seconds, digest

    def descent(self) -> list[Lineage]:
        """Return the lineage of the best program, of its donor, and so on, in this run."""
        descent: list[Lineage] = []
        digest, visited = self.best, set[bytes]()
        while digest is not None and digest not in visited and digest in self.lineages:
            visited.add(digest)
            descent.append(self.lineages[digest])
            digest = descent[-1].donor
        return descent

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        descent = self.descent()
        return {
            "trials": self.trials,
            "proposals": dict(self.proposals),
            "offspring": dict(self.counts.offspring),
            "illegal": {name: self.counts.illegal[name] for name in self.counts.offspring},
            "best_seconds": self.best_seconds,
            "best": None if self.best is None else self.best.hex(),
            "descent": [
                {
                    "origin": lineage.origin.value,
                    "operators": list(lineage.operators),
                    "donor": None if lineage.donor is None else lineage.donor.hex(),
                    "other": None if lineage.other is None else lineage.other.hex(),
                }
                for lineage in descent
            ],
            "best_is_crossed": any(lineage.is_crossed for lineage in descent),
        }
