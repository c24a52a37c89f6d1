"""Regression of a workload's own programs around the scores of boosted trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from .base import Floats

#: Loss in whose units the scores are, and its exponent of the throughput.
LOSS, _POWER = "relative", 0.3
#: Length scale of the kernel in standard deviations of a column, and variance of the noise in units
#: of the kernel's. Of length scales 0.5, 1 and 2 and noises 0.1, 0.3 and 1 these ordered most pairs
#: of programs, with 16 to 40 own ones, beside trees of other workloads and without
#: (`benchmarks/drafts.py --prior`).
_LENGTH = 0.5
_NOISE = 0.3
#: Most standard deviations of a column: programs outside of what was measured are not trusted far.
_FARTHEST = 5.0
#: Most programs that a regression learns from, the last ones: it takes the cube of their number.
MOST_OWN = 256
#: Examples of other workloads that say as much as one of the workload itself, and the least share
#: of the trees.
_OTHERS, _LEAST_SHARE = 8, 0.5
#: Least deviation of a column that varies, relative to its size.
_VARIES = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class KernelRegression:
    """Posterior mean of a Gaussian process around the scores of boosted trees.

    The model is equation 2.38 of Rasmussen and Williams, *Gaussian Processes for Machine Learning*
    (2006), with a squared-exponential kernel. It predicts the throughput to the power of 0.3, as
    the loss ``relative`` does; its mean function is a share of the trees' score, plus a constant.

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
        Constant of the mean function.
    share : float
        Share of the trees' score in the mean function (:func:`share_of_trees`).
    """

    columns: NDArray[np.int64]
    mean: Floats
    scale: Floats
    points: Floats
    weights: Floats
    level: float
    share: float

    @classmethod
    def fit(
        cls, rows: NDArray[np.float32], throughput: Floats, trees: Floats, share: float
    ) -> Self:
        """Return the regression of programs.

        Parameters
        ----------
        rows : ndarray of float32, shape (n, columns)
            One row for each program.
        throughput : ndarray of float64, shape (n,)
            Throughput relative to the best, 0 for a failure.
        trees : ndarray of float64, shape (n,)
            Scores of the trees.
        share : float
            Share of these in the mean function.
        """
        values = rows.astype(np.float64)
        mean, scale = values.mean(axis=0), values.std(axis=0)
        columns = np.flatnonzero(scale > _VARIES * (1 + np.abs(mean)))
        mean, scale = mean[columns], scale[columns]
        points = (values[:, columns] - mean) / scale
        differences = throughput**_POWER - share * trees
        level = float(differences.mean())
        covariance = _kernel(points, points) + _NOISE * np.eye(len(points))
        weights: Floats = np.linalg.solve(covariance, differences - level).astype(np.float64)
        return cls(columns, mean, scale, points, weights, level, share)

    def scores(self, rows: NDArray[np.float32], trees: Floats) -> Floats:
        """Return a score for each row, given those of the trees."""
        values = (rows[:, self.columns].astype(np.float64) - self.mean) / self.scale
        asked = np.clip(values, -_FARTHEST, _FARTHEST)
        scores: Floats = (
            self.share * trees + self.level + _kernel(asked, self.points) @ self.weights
        )
        return scores


def share_of_trees(own: int, others: int) -> float:
    """Return the share of the trees' scores in the mean function of a regression.

    Trees that have learnt nearly all from the workload's own programs predict these too well: the
    regression would have nothing to learn.

    Parameters
    ----------
    own, others : int
        Number of examples of the workload, and of all others that the trees have learnt from.
    """
    return max(1 - own / (own + others / _OTHERS), _LEAST_SHARE)


def _kernel(one: Floats, other: Floats) -> Floats:
    """Return exp(-d²/2l²) of all pairs, d² being the mean over columns."""
    count = max(1, one.shape[1])
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * one @ other.T
    covariance: Floats = np.exp(-np.maximum(squares, 0) / (2 * count * _LENGTH**2))
    return covariance
