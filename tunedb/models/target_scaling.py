"""Calibration of a classifier of failures on one target, by the first trials there.

How often programs fail depends on a target's compiler, driver and time limits, so a classifier that
has not seen the target orders its programs better than it counts their failures. Platt's scaling of
the training (:class:`~tunedb.models.failures.Scaling`) is therefore the mean of a normal prior, and
each trial on the target moves it: Bayesian logistic regression by Laplace's approximation (Bishop,
Pattern Recognition and Machine Learning, 4.5). The spread that is left gives intervals. There are
two priors, of a target like those of the training and of any other; the evidence of the trials
weighs them (3.4 there).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Self

import numpy as np

from .base import Floats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .failures import Scaling

__all__ = ["CalibrationBin", "TargetScaling", "calibration_bins", "calibration_error", "sigmoid"]

#: Standard deviations of the slope, a factor, and of the shift, in log odds: of a target like those
#: of the training, and of any other. A shift of 2 makes rare failures seven times as frequent, or
#: as rare.
_ALIKE, _OTHER = (0.25, 0.5), (0.5, 2.0)
#: Probability of the first before any trial: on a target of the training, and on another.
_TRAINED, _NEW = 0.9, 0.5

#: Share of the posterior that an interval holds.
INTERVAL = 0.8

#: Most steps of Newton's method, and the length of a step that ends it.
_NEWTON, _NEAR = 50, 1e-8


@dataclass(frozen=True, slots=True)
class TargetScaling:
    """Scaling of margins to probabilities on a target, with its uncertainty.

    The log odds of a failure are ``pivot + shift + slope · (trained - pivot)``, where ``trained``
    are those by the scaling of the training.

    Parameters
    ----------
    trained : Scaling
        Scaling of the training.
    pivot : float
        Log odds of the failure rate of the training.
    parts : tuple of Posterior
        What the trials say under each prior.
    trials : int
        Trials on the target.
    """

    trained: Scaling
    pivot: float
    parts: tuple[Posterior, ...]
    trials: int

    @classmethod
    def fitted(
        cls,
        trained: Scaling,
        rate: float,
        margins: Floats,
        failed: NDArray[np.bool_],
        *,
        is_trained: bool,
    ) -> Self:
        """Return the scaling after some trials on a target; the priors without any.

        Parameters
        ----------
        trained : Scaling
            Scaling of the training.
        rate : float
            Failure rate of the training, in (0, 1).
        margins : ndarray of float64, shape (n,)
            Margins of the programs that were tried.
        failed : ndarray of bool, shape (n,)
            Their outcomes.
        is_trained : bool
            Whether the classifier was trained on the target.
        """
        pivot = float(np.log(rate / (1 - rate)))
        distance = trained.log_odds(margins) - pivot
        parts = [Posterior.found(pivot, distance, failed, prior) for prior in (_ALIKE, _OTHER)]
        alike = _TRAINED if is_trained else _NEW
        odds = np.log((alike, 1 - alike)) + [each.weight for each in parts]
        weights = np.exp(odds - np.logaddexp.reduce(odds)).tolist()
        weighed = (
            replace(each, weight=weight) for each, weight in zip(parts, weights, strict=True)
        )
        return cls(trained, pivot, tuple(weighed), len(margins))

    def log_odds(self, margins: Floats) -> tuple[Floats, Floats]:
        """Return mean and variance of the log odds of programs, each of the shape of `margins`."""
        distance = self.trained.log_odds(margins) - self.pivot
        found = [each.moments(distance) for each in self.parts]
        weights = np.array([each.weight for each in self.parts])
        centers, variances = (np.array(moments) for moments in zip(*found, strict=True))
        mean: Floats = weights @ centers
        spread: Floats = weights @ (variances + (centers - mean) ** 2)
        return self.pivot + mean, spread

    def __call__(self, margins: Floats) -> Floats:
        """Return expected probabilities (MacKay, The evidence framework, 1992, section 4)."""
        mean, variance = self.log_odds(margins)
        return sigmoid(mean / np.sqrt(1 + np.pi / 8 * variance))

    def interval(self, margins: Floats, share: float = INTERVAL) -> tuple[Floats, Floats]:
        """Return the lower and the upper end of an interval that holds a share of the posterior."""
        mean, variance = self.log_odds(margins)
        half = NormalDist().inv_cdf(0.5 + share / 2) * np.sqrt(variance)
        return sigmoid(mean - half), sigmoid(mean + half)


@dataclass(frozen=True, slots=True)
class Posterior:
    """The posterior of slope and shift under a prior.

    Parameters
    ----------
    slope, shift : float
        The most probable ones.
    covariance : tuple of float
        Variance of the slope, covariance, and variance of the shift.
    weight : float
        Probability of the prior; of :meth:`found` the logarithm of its evidence.
    """

    slope: float
    shift: float
    covariance: tuple[float, float, float]
    weight: float

    @classmethod
    def found(
        cls,
        pivot: float,
        distance: Floats,
        failed: NDArray[np.bool_],
        deviations: tuple[float, float],
    ) -> Self:
        """Return the posterior by Newton's method.

        Parameters
        ----------
        pivot : float
            Log odds of a program at distance 0.
        distance : ndarray of float64, shape (n,)
            Log odds of the programs by the training, without the pivot.
        failed : ndarray of bool, shape (n,)
            Their outcomes.
        deviations : tuple of float
            Standard deviations of slope and shift.
        """
        precision, prior = np.diag(np.array(deviations) ** -2.0), np.array([1.0, 0.0])
        inputs = np.stack((distance, np.ones(len(distance))))
        signs = np.where(failed, -1.0, 1.0)

        def logarithm(weights: Floats) -> float:
            far = weights - prior
            likelihood = -np.logaddexp(0, signs * (pivot + weights @ inputs)).sum()
            return float(likelihood - far @ precision @ far / 2)

        weights, hessian, value = prior, precision, logarithm(prior)
        for _ in range(_NEWTON):
            predicted = sigmoid(pivot + weights @ inputs)
            gradient = inputs @ (failed - predicted) - precision @ (weights - prior)
            hessian = (inputs * (predicted * (1 - predicted))) @ inputs.T + precision
            step = np.linalg.solve(hessian, gradient)
            # Far from the maximum the curvature vanishes, and a whole step is too long.
            while (reached := logarithm(weights + step)) < value and np.abs(step).max() > _NEAR:
                step = step / 2
            if np.abs(step).max() <= _NEAR:
                break
            weights, value = weights + step, reached
        # Bishop's (4.137); the powers of 2π of prior and posterior cancel.
        flatter = np.linalg.slogdet(precision)[1] - np.linalg.slogdet(hessian)[1]
        evidence = float(value + flatter / 2)
        (slopes, both), (_, shifts) = np.linalg.inv(hessian).tolist()
        slope, shift = weights.tolist()
        if slope < 0:
            # It would reverse the order that the classifier has learnt, so all programs are alike.
            flat = cls.found(pivot, 0 * distance, failed, deviations)
            slope, shift, (slopes, both, shifts) = 0.0, flat.shift, (0.0, 0.0, flat.covariance[2])
        return cls(slope, shift, (slopes, both, shifts), evidence)

    def moments(self, distance: Floats) -> tuple[Floats, Floats]:
        """Return mean and variance of the log odds without the pivot."""
        slopes, both, shifts = self.covariance
        mean = self.shift + self.slope * distance
        return mean, slopes * distance**2 + 2 * both * distance + shifts


def sigmoid(odds: Floats) -> Floats:
    """Return the probabilities of log odds; tanh, because exp overflows for those below -700."""
    probabilities: Floats = 0.5 + 0.5 * np.tanh(0.5 * odds)
    return probabilities


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Programs of similar predicted probability: their number, mean prediction, failure rate."""

    programs: int
    predicted: float
    failed: float


def calibration_bins(
    predicted: Floats, failed: NDArray[np.bool_], most: int = 10
) -> tuple[CalibrationBin, ...]:
    """Return bins of equally many programs in order of their predictions.

    Parameters
    ----------
    predicted : ndarray of float64, shape (n,)
        Predicted probabilities.
    failed : ndarray of bool, shape (n,)
        Outcomes.
    most : int
        Largest number of bins.
    """
    order = np.argsort(predicted, kind="stable")
    return tuple(
        CalibrationBin(len(part), float(predicted[part].mean()), float(failed[part].mean()))
        for part in np.array_split(order, min(most, len(order)))
        if len(part)
    )


def calibration_error(bins: tuple[CalibrationBin, ...]) -> float:
    """Return the expected calibration error (Guo et al., ICML 2017, equation 3)."""
    total = sum(each.programs for each in bins)
    return sum(each.programs * abs(each.predicted - each.failed) for each in bins) / total
