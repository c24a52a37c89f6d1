"""Regression of few programs of one workload, where boosted trees have too little to split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from .base import Floats

#: Loss in whose units the scores are, and its exponent of the throughput.
LOSS, _POWER = "relative", 0.3
#: Length scale of the kernel in standard deviations of a column, and variance of the noise. Of
#: length scales 1, 2, 4 and those of the greatest likelihood, 2 found the best programs among the
#: first 8 of 16 to 64 random programs of 23 CPU workloads (docs/search.md).
_LENGTH = 2.0
_NOISE = 0.1
#: Most standard deviations of a column: programs outside of what was measured are not trusted far.
_FARTHEST = 5.0
#: Least programs of a workload, and most: of more, trees learn as well.
_LEAST, _MOST = 16, 256
#: Examples of other workloads that say as much as one of the workload itself, and the greatest
#: weight beside boosted trees. With 16 to 64 own programs and few of other workloads the regression
#: finds better programs than the trees; with thousands of others it does not.
_OTHERS, _MOST_WEIGHT = 8, 0.5
#: Least deviation of a column that varies, relative to its size.
_VARIES = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class KernelRegression:
    """Posterior mean of a Gaussian process with a squared-exponential kernel.

    The model is equation 2.25 of Rasmussen and Williams, *Gaussian Processes for Machine Learning*
    (2006). It predicts the throughput to the power of 0.3, as the loss ``relative`` does.

    Parameters
    ----------
    columns : ndarray of int64, shape (k,)
        Columns that vary among the programs.
    mean, scale : ndarray of float64, shape (k,)
        Mean and standard deviation of these columns.
    points : ndarray of float64, shape (n, k)
        The programs, standardised.
    weights : ndarray of float64, shape (n,)
        Weights of the kernel around each program.
    level : float
        Mean of the predicted quantity.
    """

    columns: NDArray[np.int64]
    mean: Floats
    scale: Floats
    points: Floats
    weights: Floats
    level: float

    @classmethod
    def fit(cls, rows: NDArray[np.float32], throughput: Floats) -> Self:
        """Return the regression of programs.

        Parameters
        ----------
        rows : ndarray of float32, shape (n, columns)
            One row for each program.
        throughput : ndarray of float64, shape (n,)
            Throughput relative to the best, 0 for a failure.
        """
        values = rows.astype(np.float64)
        mean, scale = values.mean(axis=0), values.std(axis=0)
        columns = np.flatnonzero(scale > _VARIES * (1 + np.abs(mean)))
        mean, scale = mean[columns], scale[columns]
        points = (values[:, columns] - mean) / scale
        quality = throughput**_POWER
        level = float(quality.mean())
        covariance = _kernel(points, points) + _NOISE * np.eye(len(points))
        weights: Floats = np.linalg.solve(covariance, quality - level).astype(np.float64)
        return cls(columns, mean, scale, points, weights, level)

    def scores(self, rows: NDArray[np.float32]) -> Floats:
        """Return a score for each row; the higher, the faster."""
        values = (rows[:, self.columns].astype(np.float64) - self.mean) / self.scale
        asked = np.clip(values, -_FARTHEST, _FARTHEST)
        scores: Floats = _kernel(asked, self.points) @ self.weights + self.level
        return scores


def weight_beside_trees(own: int, others: int) -> float:
    """Return the weight of a regression of own programs beside 1 minus it for boosted trees.

    Parameters
    ----------
    own, others : int
        Number of examples of the workload, and of all others that the trees have learnt from.
    """
    if not _LEAST <= own <= _MOST:
        return 0.0
    return min(own / (own + others / _OTHERS), _MOST_WEIGHT)


def _kernel(one: Floats, other: Floats) -> Floats:
    """Return exp(-d²/2l²) of all pairs, d² being the mean over columns."""
    count = max(1, one.shape[1])
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * one @ other.T
    covariance: Floats = np.exp(-np.maximum(squares, 0) / (2 * count * _LENGTH**2))
    return covariance
