"""A model in use, and how it does on trials that it has not learnt from."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...models.metrics import pairwise_accuracy
from ...models.row_models import AGGREGATED
from . import residual
from .candidate_rows import stacked

if TYPE_CHECKING:
    from .ledger import Scorer

_log = logging.getLogger("tunedb")

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]

#: Trials of a workload over which drift is seen, the last ones, and the fewest that show any.
_WINDOW = 64
_LEAST = 32

#: Pairwise accuracy that a model without an evaluation must keep up: that of a random order, and
#: what chance may add to it over 64 trials (its standard error is 0.04).
_NO_CARD = 0.55

#: Losses whose scores grow from 0, a failure.
_FROM_ZERO = frozenset({"throughput", "squared", "log"})

#: Others only compare: score differences in which throughput grows e-fold, 1 where nothing is said.
#: ``relative`` has differences of throughput^0.3, which near the best are 0.3 times those of the
#: logarithm.
_E_FOLD = {"relative": 0.3}


@dataclass(slots=True, eq=False)
class _Fresh:
    """The trials of a workload that the model has not learnt from, the last ones.

    Parameters
    ----------
    features : deque of ndarray
        One row for each.
    outcomes : deque of (float, float)
        The model's score, and seconds; infinite where it failed.
    count : int
        How many there were, also those that are forgotten.
    correction : Residual or None
        What is added to scores of this workload.
    """

    features: deque[Rows] = field(default_factory=lambda: deque(maxlen=residual.MOST))
    outcomes: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=residual.MOST)
    )
    count: int = 0
    correction: residual.Residual | None = None


class Scoring:
    """Scores of one model.

    Parameters
    ----------
    scorer : Scorer
        The model.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._fresh: dict[bytes, _Fresh] = {}

    def unseen(self, workload: bytes | None = None) -> int:
        """Return how many trials of a workload, or all, the model has not learnt from."""
        if workload is None:
            return sum(fresh.count for fresh in self._fresh.values())
        return self._fresh[workload].count if workload in self._fresh else 0

    def scores(self, rows: Sequence[Rows], threads: int) -> Floats:
        """Return what the model says of programs, given the rows of each."""
        model = self.scorer.model
        model.use_threads(threads)
        return model.scores(*stacked(rows, len(model.columns)))

    def for_search(self, workload: bytes, rows: Sequence[Rows], scores: Floats) -> Floats:
        """Return the model's scores as a search wants them: corrected, and 0 for the worst."""
        found = positive(scores, self.scorer.model.recipe.loss)
        fresh = self._fresh.get(workload)
        if fresh is None or fresh.correction is None:
            return found
        return fresh.correction.corrected(_features(rows), found)

    def compare(
        self, workload: bytes, rows: Sequence[Rows], scores: Floats, seconds: Floats
    ) -> None:
        """Take in trials of a workload: the model's own scores, and what came out."""
        fresh = self._fresh.setdefault(workload, _Fresh())
        fresh.features.extend(_features(rows))
        fresh.outcomes.extend(zip(scores.tolist(), seconds.tolist(), strict=True))
        fresh.count += len(scores)

    def accuracy(self, workload: bytes) -> float:
        """Return the pairwise accuracy over a workload's last trials; NaN where they are few."""
        fresh = self._fresh.get(workload)
        if fresh is None or len(fresh.outcomes) < _LEAST:
            return float("nan")
        scores, seconds = np.array(fresh.outcomes)[-_WINDOW:].T
        return pairwise_accuracy(1 / seconds, scores)

    def has_drifted(self, workload: bytes) -> bool:
        """Tell whether the model orders a workload's trials worse than its card promises."""
        least = self.scorer.least
        return self.accuracy(workload) < (_NO_CARD if least is None else least)

    def correct(self, workload: bytes, best: float) -> None:
        """Correct the scores of a workload from now on where that helps, or no longer.

        Parameters
        ----------
        workload : bytes
            Digest of the workload.
        best : float
            Its shortest time in seconds.
        """
        fresh = self._fresh.get(workload)
        if fresh is None or not np.isfinite(best):
            return
        scores, seconds = np.array(fresh.outcomes).T
        fresh.correction, gain = residual.fit(
            np.stack(fresh.features),
            positive(scores, self.scorer.model.recipe.loss),
            best / seconds,
        )
        _log.debug("residual of workload %s: %+.3f pairs in order", workload.hex(), gain)


def positive(scores: Floats, loss: str) -> Floats:
    """Return scores of which 0 is the worst, in the same order.

    TVM draws parents in proportion to them. Of losses that only compare programs, whose scores mean
    the same with any constant added, the exponential has the same proportions then; of pairwise
    logistic scores it is the strength of Bradley and Terry's model (Biometrika 39, 1952).
    """
    name = loss.partition(":")[0]
    if name in _FROM_ZERO:
        return scores
    found: Floats = np.exp(np.clip(scores / _E_FOLD.get(name, 1.0), -50, 50))
    return found


def _features(rows: Sequence[Rows]) -> Rows:
    """Return one row for each program; there is one at least."""
    return AGGREGATED.rows(*stacked(rows, rows[0].shape[1]))[0]
