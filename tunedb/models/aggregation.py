"""How the rows of a program make its score.

Either the score is the sum over the program's statements, as in Ansor ("pack-sum"): trees see each
row, and what they say of a program's rows is added. Or the rows are made one first, which the trees
score: what is not a sum over statements can then be learnt, such as that the worst one decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .base import RowModel, part

#: Rows that are aggregated at a time, so that memory stays bounded.
_BLOCK = 1 << 16

#: Exponents beyond this count as this: 2**100 and sums of it are float32 numbers.
_MAX_EXPONENT = np.float32(100)

_MAX = np.finfo(np.float32).max


@dataclass(frozen=True, slots=True)
class PackSum:
    """The score of a program is the sum over its rows (Ansor, OSDI'20, section 5.2)."""

    name: str = "pack-sum"

    def rows(
        self, rows: NDArray[np.float32], starts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the rows as they are."""
        return rows, starts

    def columns(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns as they are."""
        return columns


@dataclass(frozen=True, slots=True)
class Aggregated:
    """One row for each program: of each column the sum, the maximum and the logarithmic sum.

    Columns of Ansor's are logarithms, so that their sum is a product: log2(1 + bytes) of two
    statements adds to the bytes of the one times those of the other. The logarithmic sum adds what
    the logarithms are of, L(Σ L⁻¹(x)) with L(v) = sign(v) · log2(1 + |v|), the scale of
    :mod:`tunedb.features.ansor`; it is defined for all numbers (those above 100 count as 100).
    The last column is the number of rows. A program without rows has zeros.
    """

    name: str = "aggregated"

    def rows(
        self, rows: NDArray[np.float32], starts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return one row for each program, shape (n, 3 · columns + 1)."""
        count, width = len(starts) - 1, rows.shape[1]
        made = np.empty((count, 3 * width + 1), np.float32)
        made[:, -1] = np.diff(starts)
        first = 0
        while first < count:
            # As many programs as have a block's rows, and at least one.
            end = int(np.searchsorted(starts, starts[first] + _BLOCK, side="right")) - 1
            end = min(max(end, first + 1), count)
            inside = starts[first : end + 1] - starts[first]
            block = rows[starts[first] : starts[end]]
            with np.errstate(over="ignore"):
                sums = segmented(np.add, block, inside)
            # XGBoost takes no infinity.
            made[first:end, :width] = np.clip(sums, -_MAX, _MAX)
            made[first:end, width : 2 * width] = segmented(np.maximum, block, inside)
            powers = segmented(np.add, _unscaled(block), inside)
            made[first:end, 2 * width : -1] = _scaled(powers)
            first = end
        return made, np.arange(count + 1, dtype=np.int64)

    def columns(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``NAME.sum`` of all columns, then ``NAME.max``, ``NAME.log_sum``, and ``rows``."""
        kinds = ("sum", "max", "log_sum")
        return (*(f"{name}.{kind}" for kind in kinds for name in columns), "rows")


def segmented(
    ufunc: np.ufunc, values: NDArray[np.floating], starts: NDArray[np.int64]
) -> NDArray[np.floating]:
    """Return ``ufunc.reduce`` of each segment of the first axis; zeros for empty segments.

    Parameters
    ----------
    ufunc : numpy.ufunc
        Of two numbers.
    values : ndarray, shape (m, ...)
        What is reduced.
    starts : ndarray of int64, shape (n + 1,)
        Segment i is ``values[starts[i]:starts[i + 1]]``.
    """
    begins, ends = starts[:-1], starts[1:]
    filled = begins < ends
    if filled.all() and len(begins):
        # reduceat goes on to the end of the array with the last segment.
        return np.asarray(ufunc.reduceat(values[: ends[-1]], begins, axis=0))
    made = np.zeros((len(begins), *values.shape[1:]), values.dtype)
    if filled.any():
        # To reduceat an empty segment is a segment of one.
        made[filled] = ufunc.reduceat(values[: ends[-1]], begins[filled], axis=0)
    return made


def row_model(choice: str, sizes: NDArray[np.int64]) -> RowModel:
    """Return the row model for a training set.

    Where each program has one row, as those of feature set ``steps``, there is nothing to
    aggregate: three copies of each column would only take three times as long.

    Parameters
    ----------
    choice : str
        Name of a row model.
    sizes : ndarray of int64, shape (n,)
        Rows of each program that is learnt from.

    Raises
    ------
    NotFoundError, PluginError
        There is none of this name, or it does not load.
    """
    found: RowModel = part("row model", choice)[0]
    if found == AGGREGATED and len(sizes) and bool((sizes == 1).all()):
        return PACK_SUM
    return found


def _unscaled(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return L⁻¹(x) = sign(x) · (2^|x| - 1)."""
    powers = np.minimum(np.abs(rows), _MAX_EXPONENT)
    np.exp2(powers, out=powers)
    powers -= 1
    return np.copysign(powers, rows, out=powers)


def _scaled(sums: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return L(v) = sign(v) · log2(1 + |v|)."""
    return np.asarray(np.copysign(np.log1p(np.abs(sums)) / np.log(2), sums))


PACK_SUM = PackSum()
AGGREGATED = Aggregated()
