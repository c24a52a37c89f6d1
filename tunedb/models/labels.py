"""Label policies: the run time of a program from its repeats.

Noise on a shared machine only adds time, and sometimes much: the median is robust to single
outliers, the minimum to all of them, the mean (by which TVM ranks records) to none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .base import Floats

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TimeLabel:
    """A :class:`~tunedb.models.base.LabelPolicy` given by a reduction of each program's times.

    Parameters
    ----------
    name : str
        Name of the entry point.
    reduce : callable
        Reduction with the parameters of :meth:`seconds`.
    """

    name: str
    reduce: Callable[[Floats, Ints], Floats]

    def seconds(self, times: NDArray[np.float64], starts: NDArray[np.int64]) -> Floats:
        """Return the run time of each program in seconds.

        Parameters
        ----------
        times : ndarray of float64
            Run times of all programs in seconds, grouped by program, without sentinels.
        starts : ndarray of int64, shape (n + 1,)
            The times of program i are ``times[starts[i]:starts[i + 1]]``, at least one.

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        # reduceat rejects an empty list of indices.
        return self.reduce(times, starts) if len(starts) > 1 else np.zeros(0)


def _mean(times: Floats, starts: Ints) -> Floats:
    """Return the arithmetic mean of each segment."""
    total: Floats = np.add.reduceat(times, starts[:-1])
    return total / np.diff(starts)


def _minimum(times: Floats, starts: Ints) -> Floats:
    """Return the minimum of each segment."""
    smallest: Floats = np.minimum.reduceat(times, starts[:-1])
    return smallest


def _median(times: Floats, starts: Ints) -> Floats:
    """Return the median of each segment; for an even size, the mean of the two middle values."""
    sizes = np.diff(starts)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    ordered = times[np.lexsort((times, owner))]
    low = ordered[starts[:-1] + (sizes - 1) // 2]
    high = ordered[starts[:-1] + sizes // 2]
    middle: Floats = low + (high - low) / 2
    return middle


MEAN = TimeLabel("mean", _mean)
MEDIAN = TimeLabel("median", _median)
MINIMUM = TimeLabel("minimum", _minimum)
