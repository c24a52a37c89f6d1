"""Bins of columns, as values that stand for them.

XGBoost finds the bounds of bins itself wherever it trains on several machines, from sketches that
depend on who has which rows. Of a column with no more values than bins, though, sketches are exact:
the least value is in the first bin, and each further one is the bound that begins the next. So
values that are first rounded down to the bound that begins their bin are put into the same bins by
any number of machines, and split at the same bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._xgboost import import_xgboost, interrupt_later


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """The bins of some columns.

    Parameters
    ----------
    least : tuple of ndarray of float32
        For each column the least value in each bin, ascending: the bounds between bins, and before
        them the least value of all.
    """

    least: tuple[NDArray[np.float32], ...]

    @classmethod
    def of(cls, rows: NDArray[np.float32], most: int, *, threads: int) -> Bins:
        """Return the bins that XGBoost puts rows into on one machine.

        Parameters
        ----------
        rows : ndarray of float32, shape (n, columns)
            One at least; finite.
        most : int
            Bins of a column (``max_bin``).
        threads : int
            Of XGBoost; they change nothing.
        """
        with interrupt_later():
            matrix = import_xgboost().QuantileDMatrix(rows, max_bin=most, nthread=threads)
        begins, values = matrix.get_quantile_cut()
        # Of each column something below its values, the bounds, and something above its values.
        bounds = (
            values[first + 1 : end - 1]
            for first, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)
        )
        lowest = rows.min(axis=0)
        return cls(
            tuple(np.append(one, inside) for one, inside in zip(lowest, bounds, strict=True))
        )

    def round_down(self, rows: NDArray[np.float32]) -> None:
        """Put the least value of its bin in the place of each value.

        A value below all that the bins were made of is rounded up, to the least of these.

        Parameters
        ----------
        rows : ndarray of float32, shape (n, columns)
            What is changed; rounding it again changes nothing.
        """
        for number, least in enumerate(self.least):
            column = rows[:, number]
            # XGBoost: the first bin whose upper bound is above the value, or the last one.
            column[:] = least[np.searchsorted(least[1:], column, side="right")]
