"""Baselines of the advisor: methods without training, and the majority."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..labels import DECREASE, INCREASE, NO_CHANGE, NONE, Codes, by_slice
from ..observations import Observation
from .geometry import occupancies

#: The simple rule: above so many threads a block should shrink, below so many it should grow.
SHRINK_ABOVE, GROW_BELOW = 256, 128


def nothing(observations: Sequence[Observation]) -> Codes:
    """Return the advice to keep every block."""
    return np.full(len(observations), NO_CHANGE, np.int8)


def rule(observations: Sequence[Observation]) -> Codes:
    """Return the advice of the simple rule."""
    threads = np.array([one.threads for one in observations])
    codes = np.where(
        threads > SHRINK_ABOVE, DECREASE, np.where(threads < GROW_BELOW, INCREASE, NO_CHANGE)
    )
    return codes.astype(np.int8)


def occupancy(observations: Sequence[Observation]) -> Codes:
    """Return the advice to go to the block of maximum occupancy.

    Of the blocks of the slice with maximum occupancy it is the one with the nearest number of
    threads; a block with maximum occupancy stays. The other blocks have their own compiled
    registers and shared memory, which favours this baseline.
    """
    fraction = occupancies(observations)
    threads = np.array([one.threads for one in observations])
    codes = nothing(observations)
    for positions in by_slice(observations):
        rows = np.array(positions)
        full = fraction[rows] >= fraction[rows].max() - 1e-9
        reached = threads[rows[full]]
        for row in rows[~full]:
            nearest = reached[np.argmin(np.abs(reached - threads[row]))]
            codes[row] = np.sign(nearest - threads[row]) + NO_CHANGE
    return codes


def majority(truth: Codes) -> int:
    """Return the most frequent label of the training rows; no change without rows."""
    known = truth[truth != NONE]
    return int(np.bincount(known, minlength=3).argmax()) if len(known) else NO_CHANGE


#: Baselines that need no training, by name.
UNTRAINED: dict[str, Callable[[Sequence[Observation]], Codes]] = {
    "rule": rule,
    "occupancy": occupancy,
    "nothing": nothing,
}
