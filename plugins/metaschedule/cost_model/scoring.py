"""Scoring: a model in use, its accuracy on trials that it was not trained on, and a correction."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ....models.aggregation import AGGREGATED, stacked
from ....models.metrics import pairwise_accuracy

if TYPE_CHECKING:
    from .ledger import Scorer

# ---- Residuals -----------------------------------------------------------------------------------
#
# A model of all workloads misses the peculiarities of one. A residual corrects its scores there: a
# ridge regression of the throughput on the score and on the program's features, fitted on trials
# that the model was not trained on. The score and a constant are free, the features penalised (the
# residual models of TenSet, section 6, are the same idea with trees). The penalty is the one of
# least leave-one-out error, which has a closed form. Trials weigh as the square of their
# throughput, because a search asks for more of the good ones.
#
# Such a correction can do harm. So it is kept only if, on trials that were left out of it, it
# orders the better half of them better than the score alone, by more than chance explains. On 32
# workloads of Roller's V100 logs, and models of other workloads, that was the best of the rules
# that were tried, and did no harm when there were few trials.

Floats = NDArray[np.float64]

#: Least trials for a correction.
LEAST = 32

#: Last trials that a correction is fitted on: the regression takes the cube of their number.
MOST = 256

#: Folds of the trials; each is predicted from the others.
_FOLDS = 5

#: Least share of the pairs that must come into order, and the number of its standard errors.
_GAIN = 0.01
_ERRORS = 2.0

#: Throughputs below this weigh alike.
_FLOOR = 0.05

#: Candidate penalties, as shares of the mean eigenvalue of the features' Gram matrix.
_PENALTIES = np.logspace(-2, 3, 11)


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """A correction of the scores of a workload's programs.

    Parameters
    ----------
    mean, scale : ndarray of float64, shape (p,)
        Mean and standard deviation of the features that it was fitted on.
    weights : ndarray of float64, shape (p,)
        Weights of the standardised features.
    constant, slope : float
        Constant, and weight of the score.
    low, high : float
        Least and greatest correction of its own trials: it does not extrapolate.
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
            Scores of the model.

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        by_features = (features - self.mean) / self.scale @ self.weights
        regressed = self.constant + self.slope * scores + by_features
        return scores + np.clip(regressed - scores, self.low, self.high)


def fit_residual(
    features: NDArray[np.float32], scores: Floats, throughput: Floats
) -> tuple[Residual | None, float]:
    """Return a correction if it helps.

    Parameters
    ----------
    features : ndarray, shape (n, p)
        One row for each trial, in the order of the trials.
    scores : ndarray of float64, shape (n,)
        Scores of a model that was not trained on these trials.
    throughput : ndarray of float64, shape (n,)
        Best time of the workload / time; 0 where it failed.

    Returns
    -------
    residual : Residual or None
        None if there are too few trials, or it does not help.
    gain : float
        Share of the pairs among the better half of held-out trials that it brings into order; 0
        without a fit.
    """
    features, scores, throughput = features[-MOST:], scores[-MOST:], throughput[-MOST:]
    if len(scores) < LEAST or throughput.min() == throughput.max():
        return None, 0.0
    held_out = np.empty(len(scores))
    for fold in range(_FOLDS):
        in_fold = np.arange(len(scores)) % _FOLDS == fold
        residual = _regress(features[~in_fold], scores[~in_fold], throughput[~in_fold])
        held_out[in_fold] = residual.corrected(features[in_fold], scores[in_fold])
    good = throughput >= np.median(throughput)
    gains = _shares(held_out[good], throughput[good]) - _shares(scores[good], throughput[good])
    gain = float(gains.mean())
    if gain < max(_GAIN, _ERRORS * float(gains.std(ddof=1)) / np.sqrt(len(gains))):
        return None, gain
    return _regress(features, scores, throughput), gain


def _shares(scores: Floats, throughput: Floats) -> Floats:
    """Return for each program the share of the others that it is ordered with as measured."""
    predicted = np.sign(scores[:, None] - scores)
    measured = np.sign(throughput[:, None] - throughput)
    differ = measured != 0
    right = np.where(differ, (predicted * measured + 1) / 2, 0).sum(axis=1)
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
    # A column that is constant here gets weight 0, also for programs where it varies.
    varies = scale > 1e-6 * (1 + np.abs(mean))
    scale = np.where(varies, scale, 1.0)
    x = np.where(varies, (features - mean) / scale, 0.0) * root[:, None]
    y = throughput * root
    # A constant and the score have no penalty: their part is projected out first.
    free = np.column_stack([np.ones(len(scores)), scores]) * root[:, None]
    basis = _orthogonal(free, varies=float(np.ptp(scores)) > 0)
    y_rest, x_rest = y - basis @ (basis.T @ y), x - basis @ (basis.T @ x)
    slopes = _ridge(x_rest, y_rest, basis_leverage=(basis**2).sum(axis=1))
    unpenalised = np.linalg.lstsq(free, y - x @ slopes, rcond=None)[0]
    corrections = throughput - scores
    low, high = float(corrections.min()), float(corrections.max())
    return Residual(mean, scale, slopes, float(unpenalised[0]), float(unpenalised[1]), low, high)


def _orthogonal(free: Floats, *, varies: bool) -> Floats:
    """Return an orthonormal basis of the unpenalised columns; equal scores add nothing."""
    basis: Floats = np.linalg.qr(free if varies else free[:, :1])[0]
    return basis


def _ridge(x: Floats, y: Floats, basis_leverage: Floats) -> Floats:
    """Return slopes with the penalty of least leave-one-out error, given residuals of a basis."""
    values, vectors = np.linalg.eigh(x @ x.T)
    values = np.maximum(values, 0)
    along = vectors.T @ y
    penalties = _PENALTIES * max(float(values.mean()), 1e-12)
    errors = []
    for penalty in penalties:
        shrunk = values / (values + penalty)
        leverage = basis_leverage + (vectors**2 * shrunk).sum(axis=1)
        left_out = (y - vectors @ (shrunk * along)) / np.maximum(1 - leverage, 1e-6)
        errors.append(float(left_out @ left_out))
    penalty = penalties[int(np.argmin(errors))]
    slopes: Floats = x.T @ (vectors @ (along / (values + penalty)))
    return slopes


# ---- Models in use -------------------------------------------------------------------------------

_log = logging.getLogger("tunedb")

Rows = NDArray[np.float32]

#: Last trials of a workload that drift is computed over, and their least number.
_WINDOW = 64
_LEAST = 32

#: Least pairwise accuracy of a model without an evaluation: that of a random order, plus what
#: chance may add over 64 trials (its standard error is 0.04).
_NO_CARD = 0.55

#: Losses whose scores grow from 0, a failure.
_FROM_ZERO = frozenset({"throughput", "squared", "log"})

#: Others only compare: score difference of an e-fold throughput, 1 by default. ``relative`` has
#: differences of throughput^0.3, which near the best are 0.3 times those of the logarithm.
_E_FOLD = {"relative": 0.3}


@dataclass(slots=True, eq=False)
class _UnseenTrials:
    """Last trials of a workload that are not in the model's training set."""

    #: One row for each trial.
    features: deque[Rows] = field(default_factory=lambda: deque(maxlen=MOST))
    #: Score of the model and seconds, which are infinite for a failure.
    outcomes: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST))
    #: Number of all such trials, also forgotten ones.
    count: int = 0
    correction: Residual | None = None


class Scoring:
    """Scores of one model, with the trials that show how accurate they are.

    Parameters
    ----------
    scorer : Scorer
        The model.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._unseen: dict[bytes, _UnseenTrials] = {}

    def unseen(self, workload: bytes | None = None) -> int:
        """Return the number of trials of a workload, or of all, outside the training set."""
        if workload is None:
            return sum(trials.count for trials in self._unseen.values())
        return self._unseen[workload].count if workload in self._unseen else 0

    def scores(self, rows: Sequence[Rows], threads: int) -> Floats:
        """Return the model's scores of programs, given the rows of each."""
        model = self.scorer.model
        model.use_threads(threads)
        return model.scores(*stacked(rows, len(model.columns)))

    def for_search(self, workload: bytes, rows: Sequence[Rows], scores: Floats) -> Floats:
        """Return the model's scores in the form for a search: corrected, and 0 for the worst."""
        own = positive(scores, self.scorer.model.recipe.loss)
        trials = self._unseen.get(workload)
        if trials is None or trials.correction is None:
            return own
        return trials.correction.corrected(_features(rows), own)

    def compare(
        self, workload: bytes, rows: Sequence[Rows], scores: Floats, seconds: Floats
    ) -> None:
        """Add trials of a workload: the model's own scores, and the measured times."""
        trials = self._unseen.setdefault(workload, _UnseenTrials())
        trials.features.extend(_features(rows))
        trials.outcomes.extend(zip(scores.tolist(), seconds.tolist(), strict=True))
        trials.count += len(scores)

    def accuracy(self, workload: bytes) -> float:
        """Return the pairwise accuracy over a workload's last trials; NaN if they are few."""
        trials = self._unseen.get(workload)
        if trials is None or len(trials.outcomes) < _LEAST:
            return float("nan")
        scores, seconds = np.array(trials.outcomes)[-_WINDOW:].T
        return pairwise_accuracy(1 / seconds, scores)

    def has_drifted(self, workload: bytes) -> bool:
        """Tell whether the model orders a workload's trials worse than its card promises."""
        least = self.scorer.least
        return self.accuracy(workload) < (_NO_CARD if least is None else least)

    def correct(self, workload: bytes, best: float) -> None:
        """Fit the correction of a workload's scores again, and keep it if it helps.

        Parameters
        ----------
        workload : bytes
            Digest of the workload.
        best : float
            Shortest time of the workload in seconds.
        """
        trials = self._unseen.get(workload)
        if trials is None or not np.isfinite(best):
            return
        scores, seconds = np.array(trials.outcomes).T
        trials.correction, gain = fit_residual(
            np.stack(trials.features),
            positive(scores, self.scorer.model.recipe.loss),
            best / seconds,
        )
        _log.debug("residual of workload %s: %+.3f pairs in order", workload.hex(), gain)


def positive(scores: Floats, loss: str) -> Floats:
    """Return scores of which 0 is the worst, in the same order.

    TVM draws parents in proportion to them. Losses that only compare programs leave a constant
    free; the exponential of their scores has the same proportions for any constant. For pairwise
    logistic scores it is the strength of Bradley and Terry's model (Biometrika 39, 1952).

    Parameters
    ----------
    scores : ndarray of float64, shape (n,)
        Scores of a model.
    loss : str
        Loss of its recipe.

    Returns
    -------
    ndarray of float64, shape (n,)
    """
    name = loss.partition(":")[0]
    if name in _FROM_ZERO:
        return scores
    strengths: Floats = np.exp(np.clip(scores / _E_FOLD.get(name, 1.0), -50, 50))
    return strengths


def _features(rows: Sequence[Rows]) -> Rows:
    """Return one row for each program, of which there is at least one."""
    return AGGREGATED.rows(*stacked(rows, rows[0].shape[1]))[0]
