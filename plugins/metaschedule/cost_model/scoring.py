"""A model in use, and how it does on trials that it has not learnt from."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ....models.aggregation import AGGREGATED
from ....models.metrics import pairwise_accuracy
from ..features.candidate_features import stacked

if TYPE_CHECKING:
    from .ledger import Scorer

# ---- A correction of a model's scores for one workload, from the trials that the model has not ---
# seen
#
# A model of all workloads does not know what is particular about one. What it gets wrong there is
# learnt by a ridge regression of the throughput on its score and on the program's features: the
# score and a constant for free, the features at a price (the residual models of TenSet, section 6,
# are the same idea with trees). The penalty is the one of least leave-one-out error, which has a
# closed form. Trials weigh as the square of their throughput: a search asks for more of the good
# ones.
#
# Such a correction can as well do harm. So it is kept only where, on trials that were left out of
# it, it orders the better half of them better than the score alone, by more than chance explains.
# On 32 workloads of Roller's V100 logs, and models of other workloads, that was the best of the
# rules that were tried, and did no harm when there were few trials.

Floats = NDArray[np.float64]

#: Trials below which nothing is corrected.
LEAST = 32

#: Trials that are looked at, the last ones: the regression takes the cube of their number.
MOST = 256

#: Parts into which the trials are cut; each is predicted from the others.
_FOLDS = 5

#: Share of the pairs that must come into order, and how many of its standard errors.
_GAIN = 0.01
_ERRORS = 2.0

#: Throughputs below this weigh alike.
_FLOOR = 0.05

#: Penalties that are tried, as shares of the mean eigenvalue of the features' Gram matrix.
_PENALTIES = np.logspace(-2, 3, 11)


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """What is added to the scores of a workload's programs.

    Parameters
    ----------
    mean, scale : ndarray of float64, shape (p,)
        Of the features that it was fitted on.
    weights : ndarray of float64, shape (p,)
        Of the features, standardised.
    constant, slope : float
        Of the score.
    low, high : float
        Least and greatest correction that any of its trials needed: it does not extrapolate.
    """

    mean: Floats
    scale: Floats
    weights: Floats
    constant: float
    slope: float
    low: float
    high: float

    def corrected(self, features: NDArray[np.float32], scores: Floats) -> Floats:
        """Return scores with the correction.

        Parameters
        ----------
        features : ndarray, shape (n, p)
            One row for each program.
        scores : ndarray of float64, shape (n,)
            What the model says.
        """
        known = (features - self.mean) / self.scale @ self.weights
        wanted = self.constant + self.slope * scores + known
        return scores + np.clip(wanted - scores, self.low, self.high)


def fit(
    features: NDArray[np.float32], scores: Floats, throughput: Floats
) -> tuple[Residual | None, float]:
    """Return a correction where it helps.

    Parameters
    ----------
    features : ndarray, shape (n, p)
        One row for each trial, in the order of the trials.
    scores : ndarray of float64, shape (n,)
        What the model says of them, which must not have learnt from them.
    throughput : ndarray of float64, shape (n,)
        Best time of the workload / time; 0 where it failed.

    Returns
    -------
    residual : Residual or None
        None where there are too few trials, or it does not help.
    gain : float
        Share of the pairs among the better half of the trials that it brings into order, when it
        has not seen them; 0 where nothing was fitted.
    """
    features, scores, throughput = features[-MOST:], scores[-MOST:], throughput[-MOST:]
    if len(scores) < LEAST or throughput.min() == throughput.max():
        return None, 0.0
    held_out = np.empty(len(scores))
    for fold in range(_FOLDS):
        away = np.arange(len(scores)) % _FOLDS == fold
        part = _regress(features[~away], scores[~away], throughput[~away])
        held_out[away] = part.corrected(features[away], scores[away])
    good = throughput >= np.median(throughput)
    gains = _shares(held_out[good], throughput[good]) - _shares(scores[good], throughput[good])
    gain = float(gains.mean())
    if gain < max(_GAIN, _ERRORS * float(gains.std(ddof=1)) / np.sqrt(len(gains))):
        return None, gain
    return _regress(features, scores, throughput), gain


def _shares(scores: Floats, throughput: Floats) -> Floats:
    """Return for each program the share of the others that it is ordered with as measured."""
    told = np.sign(scores[:, None] - scores)
    true = np.sign(throughput[:, None] - throughput)
    differ = true != 0
    right = np.where(differ, (told * true + 1) / 2, 0).sum(axis=1)
    counted = differ.sum(axis=1)
    shares: Floats = np.where(counted > 0, right / np.maximum(counted, 1), 0.5)
    return shares


def _regress(features: NDArray[np.float32], scores: Floats, throughput: Floats) -> Residual:
    """Return the ridge regression of least leave-one-out error (Golub, Heath and Wahba, 1979)."""
    weights = np.maximum(throughput, _FLOOR) ** 2
    weights /= weights.mean()
    # Weighted least squares is plain least squares of rows times the root of their weight.
    root = np.sqrt(weights)
    mean = np.asarray(np.average(features, axis=0, weights=weights), np.float64)
    scale = np.sqrt(np.average((features - mean) ** 2, axis=0, weights=weights))
    # A column that does not vary says nothing, and must say nothing where it does.
    varies = scale > 1e-6 * (1 + np.abs(mean))
    scale = np.where(varies, scale, 1.0)
    x = np.where(varies, (features - mean) / scale, 0.0) * root[:, None]
    y = throughput * root
    # What a constant and the score explain is taken out first: they have no price.
    free = np.column_stack([np.ones(len(scores)), scores]) * root[:, None]
    basis = _orthogonal(free, varies=float(np.ptp(scores)) > 0)
    y_left, x_left = y - basis @ (basis.T @ y), x - basis @ (basis.T @ x)
    slopes = _ridge(x_left, y_left, taken=(basis**2).sum(axis=1))
    rest = np.linalg.lstsq(free, y - x @ slopes, rcond=None)[0]
    wanted = throughput - scores
    low, high = float(wanted.min()), float(wanted.max())
    return Residual(mean, scale, slopes, float(rest[0]), float(rest[1]), low, high)


def _orthogonal(free: Floats, *, varies: bool) -> Floats:
    """Return an orthonormal basis of what has no price; scores that are equal add nothing."""
    found: Floats = np.linalg.qr(free if varies else free[:, :1])[0]
    return found


def _ridge(x: Floats, y: Floats, taken: Floats) -> Floats:
    """Return slopes with the penalty of least leave-one-out error.

    Parameters
    ----------
    x, y : ndarray of float64, shape (n, p) and (n,)
        Without what was taken out of them.
    taken : ndarray of float64, shape (n,)
        Leverage of what was.
    """
    values, vectors = np.linalg.eigh(x @ x.T)
    values = np.maximum(values, 0)
    along = vectors.T @ y
    penalties = _PENALTIES * max(float(values.mean()), 1e-12)
    errors = []
    for penalty in penalties:
        shrunk = values / (values + penalty)
        leverage = taken + (vectors**2 * shrunk).sum(axis=1)
        left = (y - vectors @ (shrunk * along)) / np.maximum(1 - leverage, 1e-6)
        errors.append(float(left @ left))
    penalty = penalties[int(np.argmin(errors))]
    found: Floats = x.T @ (vectors @ (along / (values + penalty)))
    return found


# ---- Models in use -------------------------------------------------------------------------------

_log = logging.getLogger("tunedb")

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

    features: deque[Rows] = field(default_factory=lambda: deque(maxlen=MOST))
    outcomes: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST))
    count: int = 0
    correction: Residual | None = None


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
        fresh.correction, gain = fit(
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
