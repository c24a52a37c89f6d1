"""Local descent: the last trials of a task go to the neighbours of its best program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....search.operators import neighbours
from .population import Child, Individual

if TYPE_CHECKING:
    from .drafts import Drafts

#: Share of a task's trials, the last ones, in which a search always descends.
_LAST = 0.25
#: Batches without a gain after which a search descends.
_IDLE = 2
#: Share of a batch for the neighbours; the model may be wrong about them all.
_SHARE = 0.5


class Descent:
    """Decides when a search descends."""

    def __init__(self) -> None:
        self._best = math.inf
        self._idle = 0

    def add(self, times: Sequence[float]) -> None:
        """Add the mean seconds of a batch's whole measurements."""
        best = min(times, default=math.inf)
        self._idle = 0 if best < self._best else self._idle + 1
        self._best = min(self._best, best)

    def places(self, batch: int, left: int, total: int) -> int:
        """Return how many programs of a batch are neighbours of the best one.

        Parameters
        ----------
        batch : int
            Programs of the batch.
        left, total : int
            Remaining trials of the task, and all.
        """
        is_due = left <= _LAST * total or self._idle >= _IDLE
        return round(_SHARE * batch) if is_due else 0


def children(best: Individual, drafts: Drafts, most_parallel: int | None) -> list[Child]:
    """Return the neighbours of a program."""
    found = neighbours(best.draft, drafts.extents(best.draft), most=most_parallel)
    return [Child(draft, best.lineage.child(name), name) for name, draft in found]
