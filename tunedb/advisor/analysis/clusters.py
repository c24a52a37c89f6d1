"""Clusters of launches: k-means on standardised inputs, and ellipses around the clusters."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..scikit_learn import import_sklearn

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Largest number of clusters in the search.
MOST_CLUSTERS = 10

#: Largest number of rows whose silhouette is exact: it compares all pairs.
SILHOUETTE_ROWS = 5_000

#: 95 % quantile of the chi-squared distribution with two degrees of freedom.
_QUANTILE = 5.991

#: Silhouette up to which there is no structure (Kaufman and Rousseeuw, Finding Groups in Data,
#: 1990, table 2.4).
NO_STRUCTURE = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """A partition of launches.

    Parameters
    ----------
    assignment : ndarray, shape (m,), int64
        Number of the cluster of each launch, from 0, the largest first.
    silhouettes : dict of int to float
        Number of clusters → mean silhouette, in [-1, 1]; the highest won.
    """

    assignment: Integers
    silhouettes: dict[int, float]

    @property
    def count(self) -> int:
        """Number of clusters."""
        return int(self.assignment.max()) + 1

    @property
    def silhouette(self) -> float:
        """Mean silhouette of this partition."""
        return self.silhouettes[self.count]


def cluster(values: Floats, *, seed: int = 0) -> Clusters | None:
    """Partition launches into the number of clusters with the highest silhouette.

    Parameters
    ----------
    values : ndarray, shape (m, p), float64
        Standardised inputs.
    seed : int
        Of the starts of k-means and of the sample for the silhouette.

    Returns
    -------
    Clusters or None
        None for fewer than three launches, or if all are equal.

    Raises
    ------
    PluginError
        scikit-learn is not installed.
    """
    distinct = len(np.unique(values, axis=0)) if values.size else 0
    most = min(MOST_CLUSTERS, len(values) - 1, distinct)
    if most < 2:
        return None
    kmeans = import_sklearn("sklearn.cluster").KMeans
    silhouette = import_sklearn("sklearn.metrics").silhouette_score
    sample = SILHOUETTE_ROWS if len(values) > SILHOUETTE_ROWS else None
    assignments: dict[int, Integers] = {}
    scores: dict[int, float] = {}
    for k in range(2, most + 1):
        with warnings.catch_warnings():
            # Nearly equal rows may leave fewer clusters than k.
            warnings.simplefilter("ignore")
            assignment = kmeans(k, n_init=10, random_state=seed).fit_predict(values)
        if not 2 <= len(np.unique(assignment)) < len(values):
            continue
        assignments[k] = assignment.astype(np.int64)
        # A sample may miss a small cluster: this number of clusters has no silhouette then.
        try:
            score = silhouette(values, assignment, sample_size=sample, random_state=seed)
        except ValueError:
            continue
        scores[k] = float(score)
    if not scores:
        return None
    best = max(scores, key=lambda k: (scores[k], -k))
    return Clusters(_by_size(assignments[best]), scores)


def _by_size(assignment: Integers) -> Integers:
    """Return the clusters numbered by size, and equal ones by their first member."""
    names, first, counts = np.unique(assignment, return_index=True, return_counts=True)
    order = np.lexsort((first, -counts))
    number = dict(zip(names[order].tolist(), range(len(names)), strict=True))
    return np.array([number[name] for name in assignment.tolist()], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Ellipse:
    """Ellipse with 95 % of the points of a cluster, if they are normally distributed.

    Parameters
    ----------
    x, y : float
        Centre.
    long, short : float
        Half axes.
    angle : float
        Of the long axis, in radians.
    """

    x: float
    y: float
    long: float
    short: float
    angle: float

    def outline(self, points: int = 48) -> Floats:
        """Return points on it, shape (points, 2)."""
        turns = np.linspace(0, 2 * np.pi, points, endpoint=False)
        along, across = self.long * np.cos(turns), self.short * np.sin(turns)
        cosine, sine = np.cos(self.angle), np.sin(self.angle)
        return np.column_stack(
            [
                self.x + along * cosine - across * sine,
                self.y + along * sine + across * cosine,
            ]
        )


def ellipse(points: Floats) -> Ellipse | None:
    """Return the ellipse of points in the plane.

    Half axes are √(λ · 5.991) with the eigenvalues λ of their covariance.

    Parameters
    ----------
    points : ndarray, shape (n, 2), float64
        Positions.

    Returns
    -------
    Ellipse or None
        None for fewer than three points and for points on one line.
    """
    if len(points) < 3:
        return None
    values, vectors = np.linalg.eigh(np.cov(points.T))
    if not values[0] > 1e-9 * values[1]:
        return None
    short, long = np.sqrt(values * _QUANTILE)
    x, y = points.mean(axis=0)
    axis = vectors[:, 1] * (1 if vectors[0, 1] >= 0 else -1)
    angle = float(np.arctan2(axis[1], axis[0]))
    return Ellipse(float(x), float(y), float(long), float(short), angle)
