"""Selection of inputs: drop constant inputs, and inputs correlated with others.

The document drops events that are zero for all programs, then those whose correlation with another
one is above 0.9. It leaves open which one of a pair to drop, and whether the sign counts: here the
first in alphabetical order stays, and the sign does not count by default.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .observations import Inputs

#: Differences from the mean that are rounding, relative to the largest value: summing n numbers
#: loses about √n · 2⁻⁵², and a column of 1e12 ± 1e-4 is constant.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class LaunchSelection:
    """Kept columns, and the others by reason.

    Parameters
    ----------
    kept : tuple of str
        In alphabetical order.
    zero : tuple of str
        Zero wherever they were measured.
    constant : tuple of str
        Equal wherever they were measured (their correlation is not defined), or measured nowhere.
    correlated : tuple of (str, str, float)
        Dropped column, the first kept column that it follows, and their correlation.
    """

    kept: tuple[str, ...]
    zero: tuple[str, ...]
    constant: tuple[str, ...]
    correlated: tuple[tuple[str, str, float], ...]


def select(inputs: Inputs, *, threshold: float = 0.9, signed: bool = False) -> LaunchSelection:
    """Select columns.

    In alphabetical order, a zero or constant column is dropped, and so is a column whose Pearson
    correlation with a column kept before is above the threshold.

    Parameters
    ----------
    inputs : Inputs
        NaN for values that were not measured; a correlation uses the rows with both values.
    threshold : float
        Correlations above it drop the later column.
    signed : bool
        Whether only positive correlations count, as in the document's formula to the letter; by
        default their absolute value does.

    Raises
    ------
    ValueError
        The threshold is not between 0 and 1.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"a threshold of {threshold}; expected a number from 0 to 1")
    names, zero, constant = sorted(inputs.names), [], []
    column = {name: inputs.values[:, i] for i, name in enumerate(inputs.names)}
    varying = []
    for name in names:
        known = column[name][np.isfinite(column[name])]
        if known.size and not known.any():
            zero.append(name)
        elif _is_constant(known):
            constant.append(name)
        else:
            varying.append(name)
    table = correlations(np.column_stack([column[name] for name in varying]) if varying else None)
    strength = table if signed else np.abs(table)
    kept: list[int] = []
    correlated = []
    for i, name in enumerate(varying):
        before = next((j for j in kept if strength[i, j] > threshold), None)
        if before is None:
            kept.append(i)
        else:
            correlated.append((name, varying[before], float(table[i, before])))
    return LaunchSelection(
        tuple(varying[i] for i in kept), tuple(zero), tuple(constant), tuple(correlated)
    )


def correlations(values: npt.NDArray[np.float64] | None) -> npt.NDArray[np.float64]:
    """Return Pearson's r of every pair of columns.

    ``r = Σ(X-X̄)(Y-Ȳ) / √(Σ(X-X̄)² Σ(Y-Ȳ)²)``

    Parameters
    ----------
    values : ndarray, shape (n, m), float64, or None
        NaN for values that were not measured; r uses the rows with both values.

    Returns
    -------
    ndarray, shape (m, m), float64
        NaN if a column is constant in those rows. Infinite values count as not measured.
    """
    if values is None or not values.shape[1]:
        return np.empty((0, 0))
    known = np.isfinite(values)
    if known.all():
        return _pearson(values)
    width = values.shape[1]
    table = np.full((width, width), np.nan)
    for i in range(width):
        for j in range(i + 1):
            rows = known[:, i] & known[:, j]
            if rows.sum() > 1:
                table[i, j] = table[j, i] = _pearson(values[rows][:, [i, j]])[0, 1]
    return table


def _pearson(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # Division by the largest value keeps squares of counts up to 1e300 finite.
    scale = np.abs(values).max(axis=0, initial=0.0)
    scaled = values / np.where(scale > 0, scale, 1.0)
    centred = scaled - scaled.mean(axis=0)
    centred[:, np.abs(centred).max(axis=0, initial=0.0) <= _ROUNDING] = 0.0
    norms = np.sqrt((centred**2).sum(axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        table = (centred.T @ centred) / np.outer(norms, norms)
    return np.asarray(np.clip(table, -1.0, 1.0))


def _is_constant(known: npt.NDArray[np.float64]) -> bool:
    if known.size < 2:
        return True
    largest = np.abs(known).max()
    return bool(np.ptp(known) <= _ROUNDING * largest)
