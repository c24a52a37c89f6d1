"""The varimax rotation: axes that each input loads either strongly or hardly at all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
