"""How inputs go together: Pearson's coefficient of each pair."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..observations import Inputs

Floats = npt.NDArray[np.float64]


def correlation(inputs: Inputs, names: tuple[str, ...]) -> Floats:
    """Return the correlation matrix of some inputs.

    A pair is compared on the launches that have both.

    Parameters
    ----------
    inputs : Inputs
        The launches as numbers.
    names : tuple of str
        Which of them, in which order.

    Returns
    -------
    ndarray, shape (len(names), len(names)), float64
        1 on the diagonal; NaN for pairs that fewer than two launches have, or of which one does
        not vary on those.
    """
    columns = [inputs.names.index(name) for name in names]
    values = inputs.values[:, columns]
    known = np.isfinite(values)
    matrix = np.eye(len(names))
    for i in range(len(names)):
        for j in range(i):
            both = known[:, i] & known[:, j]
            matrix[i, j] = matrix[j, i] = _pearson(values[both, i], values[both, j])
    return matrix


def _pearson(one: Floats, other: Floats) -> float:
    if len(one) < 2:
        return float("nan")
    # Counts reach 1e12: their squares still fit, those of their sums would lose digits.
    one, other = one - one.mean(), other - other.mean()
    lengths = float(np.sqrt((one**2).sum()) * np.sqrt((other**2).sum()))
    if not lengths > 0:
        return float("nan")
    return float(np.clip((one * other).sum() / lengths, -1, 1))
