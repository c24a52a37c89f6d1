"""Principal components of launches: the inputs that vary together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..observations import Inputs

# ---- Varimax rotation: axes that each input loads either strongly or hardly at all ---------------

Floats = npt.NDArray[np.float64]

#: Largest number of iterations; real loadings take twenty.
_MAX_ITERATIONS = 1_000


def varimax(
    loadings: Floats, *, normalise: bool = True, tolerance: float = 1e-10
) -> tuple[Floats, Floats]:
    """Rotate loadings so that the variance of their squares is largest.

    As ``varimax`` of R's package ``stats``: rows are scaled to length 1 (Kaiser's normalisation),
    then R ← UVᵀ of the singular value decomposition UΣVᵀ = Lᵀ(Λ³ - Λ diag(ΣΛ²)/p) with Λ = LR until
    ΣΣ no longer grows (Kaiser, Psychometrika 23, 1958). A row of zeros stays one.

    Parameters
    ----------
    loadings : ndarray, shape (p, k), float64
        Loadings of p inputs on k components.
    normalise : bool
        Scale rows to length 1 for the rotation.
    tolerance : float
        Relative growth below which the iteration ends.

    Returns
    -------
    rotated : ndarray, shape (p, k), float64
        ``loadings @ rotation``: the length of each row is unchanged.
    rotation : ndarray, shape (k, k), float64
        Orthogonal.
    """
    p, k = loadings.shape
    rotation: Floats = np.eye(k)
    if k < 2 or p < 2:
        return loadings.copy(), rotation
    lengths = np.sqrt((loadings**2).sum(axis=1, keepdims=True))
    scaled = loadings / np.where(lengths > 0, lengths, 1.0) if normalise else loadings
    before = 0.0
    for _ in range(_MAX_ITERATIONS):
        turned = scaled @ rotation
        target = turned**3 - turned * ((turned**2).sum(axis=0) / p)
        left, singular, right = np.linalg.svd(scaled.T @ target)
        rotation = left @ right
        after = float(singular.sum())
        if after < before * (1 + tolerance):
            break
        before = after
    return loadings @ rotation, rotation


# ---- Principal components ------------------------------------------------------------------------


#: Largest number of rotated and drawn components; components with an eigenvalue of the correlation
#: matrix above 1 explain more than one input does (Kaiser's criterion).
MOST_ROTATED = 6

#: Largest value from which an input counts as spread over orders of magnitude. Percentages and
#: ratios stay below; counts of instructions and bytes do not.
_COUNTS_FROM = 1_000.0

#: Smallest share of inputs of a launch: without counters it would lie amid all others.
_LEAST_KNOWN = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Standardised:
    """Inputs of mean 0 and variance 1.

    Parameters
    ----------
    names : tuple of str
        Inputs that vary.
    values : ndarray, shape (m, len(names)), float64
        A row for each launch with enough of them.
    rows : ndarray, shape (m,), int64
        Positions of those launches.
    logarithmic : tuple of str
        Inputs of which log(1 + x) was taken.
    """

    names: tuple[str, ...]
    values: Floats
    rows: npt.NDArray[np.int64]
    logarithmic: tuple[str, ...]


def standardise(inputs: Inputs) -> Standardised:
    """Scale inputs to mean 0 and variance 1.

    Infinite numbers count as not measured. Launches with less than half of the inputs are left
    out; the missing inputs of the others become the median. Inputs that are never negative and
    exceed 1,000 are counts: they become log(1 + x), because launches of different problems differ
    by orders of magnitude. Constant inputs are left out.

    Parameters
    ----------
    inputs : Inputs
        The launches as numbers.

    Returns
    -------
    Standardised
        Without rows if no launch has enough inputs.
    """
    values = np.where(np.isfinite(inputs.values), inputs.values, np.nan)
    known = ~np.isnan(values)
    measured = known.any(axis=0)
    share = known[:, measured].mean(axis=1) if measured.any() else np.zeros(len(values))
    rows = np.flatnonzero(share >= _LEAST_KNOWN)
    names, columns, logarithmic = [], [], []
    for name, column in zip(inputs.names, values[rows].T, strict=True):
        if np.isnan(column).all():
            continue
        column = np.where(np.isnan(column), np.nanmedian(column), column)  # noqa: PLW2901
        if column.min() >= 0 and column.max() > _COUNTS_FROM:
            column = np.log1p(column)  # noqa: PLW2901
            logarithmic.append(name)
        deviation = column.std()
        # A constant varies by rounding alone.
        if deviation > 1e-12 * max(1.0, float(np.abs(column).max())):
            names.append(name)
            columns.append((column - column.mean()) / deviation)
    scaled = np.column_stack(columns) if columns else np.zeros((len(rows), 0))
    kept = set(names)
    counts = tuple(name for name in logarithmic if name in kept)
    return Standardised(tuple(names), scaled, rows.astype(np.int64), counts)


@dataclass(frozen=True, slots=True, eq=False)
class Components:
    """Principal components of standardised inputs.

    Parameters
    ----------
    names : tuple of str
        Inputs.
    scores : ndarray, shape (m, k), float64
        Coordinates of the launches.
    loadings : ndarray, shape (len(names), k), float64
        Correlation of each input with each component.
    shares : ndarray, shape (k,), float64
        Of the variance, descending.
    rotated : ndarray, shape (len(names), r), float64
        Loadings after a varimax rotation of the first `r` components, by descending variance.
    rotated_shares : ndarray, shape (r,), float64
        Their shares of the variance.
    """

    names: tuple[str, ...]
    scores: Floats
    loadings: Floats
    shares: Floats
    rotated: Floats
    rotated_shares: Floats


def principal_components(
    standardised: Standardised, *, rotate: int | None = None
) -> Components | None:
    """Return the principal components, and some of them rotated.

    The loadings are right singular vectors times the standard deviations of the components. The
    largest loading of a component is positive.

    Parameters
    ----------
    standardised : Standardised
        Inputs of mean 0 and variance 1.
    rotate : int or None
        Number of components to rotate; None takes those with a variance above that of one input,
        at least two and at most :data:`MOST_ROTATED`.

    Returns
    -------
    Components or None
        None with fewer than three launches or two inputs.
    """
    values = standardised.values
    count, width = values.shape
    if count < 3 or width < 2:
        return None
    left, singular, right = np.linalg.svd(values, full_matrices=False)
    rank = max(1, int((singular > singular[0] * 1e-10).sum()))
    k = max(rank, 2) if min(values.shape) > 1 else rank
    deviations = singular[:k] / np.sqrt(count)
    loadings = right[:k].T * deviations
    signs = signs_of(loadings)
    variances = deviations**2
    wanted = int((variances > 1).sum()) if rotate is None else rotate
    r = min(max(wanted, 2), MOST_ROTATED, rank)
    rotated, _ = varimax(loadings[:, :r] * signs[:r])
    rotated_variances = (rotated**2).sum(axis=0)
    order = np.argsort(-rotated_variances, kind="stable")
    rotated = rotated[:, order]
    return Components(
        names=standardised.names,
        scores=left[:, :k] * singular[:k] * signs,
        loadings=loadings * signs,
        shares=variances / width,
        rotated=rotated * signs_of(rotated),
        rotated_shares=rotated_variances[order] / width,
    )


def signs_of(loadings: Floats) -> Floats:
    """Return the sign of the largest loading of each column."""
    largest = np.abs(loadings).argmax(axis=0)
    return np.where(loadings[largest, np.arange(loadings.shape[1])] < 0, -1.0, 1.0)
