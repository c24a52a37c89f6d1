"""Principal components of launches: which of their numbers go together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..observations import Inputs

# ---- The varimax rotation: axes that each input loads either strongly or hardly at all -----------

Floats = npt.NDArray[np.float64]

#: Rounds; real loadings take twenty.
_ROUNDS = 1_000


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
        Whether rows are scaled to length 1 while they are rotated.
    tolerance : float
        Relative growth below which it ends.

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
    for _ in range(_ROUNDS):
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


#: Most components that are rotated and drawn; those with an eigenvalue above 1 of the correlation
#: matrix say more than one input does (Kaiser's criterion).
MOST_ROTATED = 6

#: Largest value from which an input counts as spread over orders of magnitude. Percentages and
#: ratios stay below; counts of instructions and bytes do not.
_COUNTS_FROM = 1_000.0

#: Share of the inputs that a launch must have to take part: one without counters would lie in the
#: middle of everything.
_LEAST_KNOWN = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Standardised:
    """Inputs that can be compared: each of mean 0 and variance 1.

    Parameters
    ----------
    names : tuple of str
        Inputs that vary.
    values : ndarray, shape (m, len(names)), float64
        A row for each launch that has enough of them.
    rows : ndarray, shape (m,), int64
        Which launches those are.
    logarithmic : tuple of str
        Inputs of which log(1 + x) was taken.
    """

    names: tuple[str, ...]
    values: Floats
    rows: npt.NDArray[np.int64]
    logarithmic: tuple[str, ...]


def standardise(inputs: Inputs) -> Standardised:
    """Return inputs of mean 0 and variance 1.

    Infinite numbers count as not measured. Of a launch that has at least half of the inputs,
    those that are missing become the median. Inputs that are never negative and exceed 1,000 are
    counts: log(1 + x) stands for them, because launches of different problems differ by orders of
    magnitude. Constant inputs are left out.

    Parameters
    ----------
    inputs : Inputs
        The launches as numbers.

    Returns
    -------
    Standardised
        Without any row where no launch has enough inputs.
    """
    values = np.where(np.isfinite(inputs.values), inputs.values, np.nan)
    known = ~np.isnan(values)
    some = known.any(axis=0)
    share = known[:, some].mean(axis=1) if some.any() else np.zeros(len(values))
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
        # What is left of a constant by rounding is no variation.
        if deviation > 1e-12 * max(1.0, float(np.abs(column).max())):
            names.append(name)
            columns.append((column - column.mean()) / deviation)
    made = np.column_stack(columns) if columns else np.zeros((len(rows), 0))
    kept = set(names)
    counts = tuple(name for name in logarithmic if name in kept)
    return Standardised(tuple(names), made, rows.astype(np.int64), counts)


@dataclass(frozen=True, slots=True, eq=False)
class Components:
    """Principal components of standardised inputs.

    Parameters
    ----------
    names : tuple of str
        Inputs.
    scores : ndarray, shape (m, k), float64
        Where the launches lie.
    loadings : ndarray, shape (len(names), k), float64
        Correlation of each input with each component.
    shares : ndarray, shape (k,), float64
        Of the variance, descending.
    rotated : ndarray, shape (len(names), r), float64
        Loadings after a varimax rotation of the first `r` components, by the variance they stand
        for.
    rotated_shares : ndarray, shape (r,), float64
        Their shares of the variance.
    """

    names: tuple[str, ...]
    scores: Floats
    loadings: Floats
    shares: Floats
    rotated: Floats
    rotated_shares: Floats


def components(standardised: Standardised, *, rotate: int | None = None) -> Components | None:
    """Return the principal components, and some of them rotated.

    By singular values: the loadings are right singular vectors times the components' standard
    deviations. The sign of a component is that its largest loading is positive.

    Parameters
    ----------
    standardised : Standardised
        Inputs of mean 0 and variance 1.
    rotate : int or None
        How many components are rotated; None takes those with a variance above that of one input,
        at least two and at most :data:`MOST_ROTATED`.

    Returns
    -------
    Components or None
        None where there are fewer than three launches or two inputs.
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
    parts = (rotated**2).sum(axis=0)
    order = np.argsort(-parts, kind="stable")
    rotated = rotated[:, order]
    return Components(
        names=standardised.names,
        scores=left[:, :k] * singular[:k] * signs,
        loadings=loadings * signs,
        shares=variances / width,
        rotated=rotated * signs_of(rotated),
        rotated_shares=parts[order] / width,
    )


def signs_of(loadings: Floats) -> Floats:
    """Return ±1 for each column, so that its largest loading becomes positive."""
    largest = np.abs(loadings).argmax(axis=0)
    return np.where(loadings[largest, np.arange(loadings.shape[1])] < 0, -1.0, 1.0)
