"""Which of a program's run times counts.

Noise on a shared machine only ever adds time, and now and then much of it: the median forgets
single outliers, the minimum all of them, the mean (which TVM ranks records by) none.
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
    """A :class:`~tunedb.models.base.Label` that reduces each program's times to one.

    Parameters
    ----------
    name : str
        Name of its entry point.
    reduce : callable
        Takes all times and where each program's begin, as :meth:`seconds` does.
    """

    name: str
    reduce: Callable[[Floats, Ints], Floats]

    def seconds(self, times: NDArray[np.float64], starts: NDArray[np.int64]) -> Floats:
        """Return one time for each program.

        Parameters
        ----------
        times : ndarray of float64
            Run times of all programs in seconds, one program after another, in any order inside
            one. No sentinels: what is no time has been taken out.
        starts : ndarray of int64, shape (n + 1,)
            The times of program i are ``times[starts[i]:starts[i + 1]]``, one at least.

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        # reduceat takes no empty list of places.
        return self.reduce(times, starts) if len(starts) > 1 else np.zeros(0)


def _mean(times: Floats, starts: Ints) -> Floats:
    """Return the arithmetic mean of each stretch."""
    total: Floats = np.add.reduceat(times, starts[:-1])
    return total / np.diff(starts)


def _minimum(times: Floats, starts: Ints) -> Floats:
    """Return the smallest of each stretch."""
    smallest: Floats = np.minimum.reduceat(times, starts[:-1])
    return smallest


def _median(times: Floats, starts: Ints) -> Floats:
    """Return the median of each stretch; of an even number the mean of the two in the middle."""
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
