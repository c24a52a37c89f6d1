"""When boosting stops: after how many rounds it no longer gains on workloads it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .base import Floats
from .pairs import Pairs


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """What is looked at after each round.

    Parameters
    ----------
    pairs : Pairs
        Of the held-out programs.
    unseen : ndarray of bool, shape (n,)
        Which of all programs those are.
    patience : int
        The recipe's, above 0.
    """

    pairs: Pairs
    unseen: NDArray[np.bool_]
    patience: int

    def accuracy(self, scores: Floats) -> float:
        """Return the pairwise accuracy on held-out workloads, by the scores of all programs."""
        return self.pairs.accuracy(scores[self.unseen])

    def stops(self, history: Sequence[float]) -> bool:
        """Return whether the best round is so long ago that there will be no better one."""
        return len(history) - best_round(history, self.patience) >= self.patience


def best_round(history: Sequence[float], patience: int) -> int:
    """Return the round, from 1, whose figure and those of the rounds before are best.

    That is the greatest mean over `patience` rounds, or over all until then: the figure of one
    round is above its neighbours' by chance.

    Parameters
    ----------
    history : sequence of float
        Accuracy after each round, of one at least.
    patience : int
        The recipe's, above 0.
    """
    sums = np.concatenate((np.zeros(1), np.cumsum(history)))
    rounds = np.arange(1, len(sums))
    spans = np.minimum(rounds, patience)
    # Rounded, because the first of equal means counts.
    means = np.round((sums[rounds] - sums[rounds - spans]) / spans, 12)
    return int(np.argmax(means)) + 1
