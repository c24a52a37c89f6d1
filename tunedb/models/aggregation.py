"""Row models: the score of a program from its feature rows.

``pack-sum``, as in Ansor: the trees score each row (a statement), and the score of the program is
the sum. ``aggregated``: all rows of a program become one row, which the trees score; a model can
then learn that the slowest statement decides, which no sum over statements expresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .base import RowModel, recipe_part

#: Rows aggregated at a time; bounds memory.
_BLOCK = 1 << 16

#: Greatest exponent; 2**100 and sums of it are float32 numbers.
_MAX_EXPONENT = np.float32(100)

_MAX = np.finfo(np.float32).max


@dataclass(frozen=True, slots=True)
class PackSum:
    """The score of a program is the sum over its rows (Ansor, OSDI'20, section 5.2)."""

    name: str = "pack-sum"

    def rows(
        self, rows: NDArray[np.float32], starts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the rows unchanged."""
        return rows, starts

    def columns(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns unchanged."""
        return columns


@dataclass(frozen=True, slots=True)
class Aggregated:
    """One row for each program: of each column the sum, the maximum and the logarithmic sum.

    Columns of Ansor's are logarithms, so that their sum is the logarithm of a product: the bytes of
    two statements, as log2(1 + bytes), would be multiplied. The logarithmic sum adds the numbers
    themselves, L(Σ L⁻¹(x)) with L(v) = sign(v) · log2(1 + |v|), the scale of
    :mod:`tunedb.features.ansor`; it is defined for all numbers (those above 100 count as 100).
    The last column is the number of rows. A program without rows has zeros.
    """

    name: str = "aggregated"

    def rows(
        self, rows: NDArray[np.float32], starts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return one row for each program, shape (n, 3 · columns + 1)."""
        count, width = len(starts) - 1, rows.shape[1]
        aggregated = np.empty((count, 3 * width + 1), np.float32)
        aggregated[:, -1] = np.diff(starts)
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
            aggregated[first:end, :width] = np.clip(sums, -_MAX, _MAX)
            aggregated[first:end, width : 2 * width] = segmented(np.maximum, block, inside)
            powers = segmented(np.add, _unscaled(block), inside)
            aggregated[first:end, 2 * width : -1] = _scaled(powers)
            first = end
        return aggregated, np.arange(count + 1, dtype=np.int64)

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
        Function of two numbers.
    values : ndarray, shape (m, ...)
        Values of all segments.
    starts : ndarray of int64, shape (n + 1,)
        Segment i is ``values[starts[i]:starts[i + 1]]``.

    Returns
    -------
    ndarray, shape (n, ...)
    """
    begins, ends = starts[:-1], starts[1:]
    filled = begins < ends
    if filled.all() and len(begins):
        # reduceat extends the last segment to the end of the array.
        return np.asarray(ufunc.reduceat(values[: ends[-1]], begins, axis=0))
    reduced = np.zeros((len(begins), *values.shape[1:]), values.dtype)
    if filled.any():
        # To reduceat an empty segment is a segment of one.
        reduced[filled] = ufunc.reduceat(values[: ends[-1]], begins[filled], axis=0)
    return reduced


def stacked(
    rows: Sequence[NDArray[np.float32]], columns: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the concatenated rows of programs, and the start of each program.

    Parameters
    ----------
    rows : sequence of ndarray, shape (any, columns)
        Rows of each program.
    columns : int
        Number of columns; needed if there are no programs.

    Returns
    -------
    rows : ndarray of float32, shape (m, columns)
    starts : ndarray of int64, shape (n + 1,)
    """
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(own) for own in rows], out=starts[1:])
    none = np.empty((0, columns), np.float32)
    return np.concatenate([none, *rows], dtype=np.float32), starts


def row_model(choice: str, sizes: NDArray[np.int64]) -> RowModel:
    """Return the row model for a training set.

    If each program has one row, as in feature set ``steps``, there is nothing to aggregate, and
    ``aggregated`` becomes ``pack-sum``: three copies of each column would take three times as long.

    Parameters
    ----------
    choice : str
        Name of a row model.
    sizes : ndarray of int64, shape (n,)
        Number of rows of each program in the training set.

    Raises
    ------
    NotFoundError, PluginError
        The row model is unknown, or does not load.
    """
    model: RowModel = recipe_part("row model", choice)[0]
    if model == AGGREGATED and len(sizes) and bool((sizes == 1).all()):
        return PACK_SUM
    return model


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
