"""Regret of following advice: the time after one step, beside the best and beside doing nothing.

Accuracy counts all mistakes equally; most of them cost nothing, because most blocks of a kernel are
about equally fast. Regret weighs mistakes by their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..labels import DECREASE, INCREASE, NO_CHANGE, NONE, Codes, Floats, by_slice
from ..observations import Observation
from .findings import Interval

# ---- Steps: the next block of a slice in each direction ------------------------------------------


def one_step(observations: Sequence[Observation]) -> npt.NDArray[np.int64]:
    """Return the position of the observation after one step, per label.

    One step is the next number of threads that the slice has; of several shapes with as many
    threads the one nearest in the logarithms of its extents, then the widest along x. Run times do
    not matter.

    Returns
    -------
    ndarray, shape (n, 3), int64
        The row itself for no change, and without a further block in that direction.
    """
    after = np.repeat(np.arange(len(observations))[:, None], 3, axis=1)
    shapes = np.log2(np.array([one.extents for one in observations], np.float64)).reshape(-1, 3)
    for positions in by_slice(observations):
        rows = np.array(positions)
        threads = np.array([observations[i].threads for i in positions])
        sizes = np.unique(threads)
        for row, size in zip(rows, np.searchsorted(sizes, threads), strict=True):
            for code, other in ((DECREASE, size - 1), (INCREASE, size + 1)):
                if 0 <= other < len(sizes):
                    after[row, code] = _nearest(shapes, row, rows[threads == sizes[other]])
    return after


def _nearest(shapes: Floats, row: int, candidates: npt.NDArray[np.int64]) -> int:
    apart = np.abs(shapes[candidates] - shapes[row]).sum(axis=1)
    ranked = zip(np.round(apart, 9), -shapes[candidates, 0], candidates, strict=True)
    return int(min(ranked)[2])


# ---- Regret --------------------------------------------------------------------------------------

#: Draws of the bootstrap: the ends of a 95 % interval move by less than a tenth of its width.
DRAWS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class StepOutcomes:
    """The step of each label inside the slices of some observations.

    Parameters
    ----------
    after : ndarray, shape (n, 3), int64
        Position of the observation after one step, per label; the row itself where there is no
        further block in that direction.
    seconds : ndarray, shape (n,), float64
        Time of each row.
    best : ndarray, shape (n,), float64
        Best time of each row's slice.
    slice : ndarray, shape (n,), int64
        Number of each row's slice.
    """

    after: npt.NDArray[np.int64]
    seconds: Floats
    best: Floats
    slice: npt.NDArray[np.int64]

    @classmethod
    def from_observations(cls, observations: Sequence[Observation]) -> StepOutcomes:
        """Return the outcomes of steps from observations (:func:`.stepping.one_step`)."""
        seconds = np.array([one.seconds for one in observations], np.float64)
        best, number = seconds.copy(), np.zeros(len(observations), np.int64)
        for n, positions in enumerate(by_slice(observations)):
            number[positions], best[positions] = n, seconds[positions].min()
        return cls(one_step(observations), seconds, best, number)

    def part(self, rows: npt.NDArray[np.bool_]) -> StepOutcomes:
        """Return the outcomes of some rows: whole slices."""
        position = np.cumsum(rows) - 1
        return StepOutcomes(
            position[self.after[rows]], self.seconds[rows], self.best[rows], self.slice[rows]
        )

    def savings(self, advice: Codes) -> Floats:
        """Return the logarithm of the time before over the time after each advice."""
        return np.asarray(np.log(self.seconds / self.times(advice)))

    def times(self, advice: Codes) -> Floats:
        """Return the times after one step; rows without advice keep their time."""
        codes = np.where(advice == NONE, NO_CHANGE, advice)
        chosen: Floats = self.seconds[self.after[np.arange(len(codes)), codes]]
        return chosen

    def regret(self, advice: Codes, rows: npt.NDArray[np.bool_] | None = None) -> Interval | None:
        """Return the geometric mean of time after the advice / best time of the slice.

        Parameters
        ----------
        advice : ndarray, shape (n,), int8
        rows : ndarray, shape (n,), bool, optional
            Mask of the rows that count.

        Returns
        -------
        Interval or None
            None without rows.
        """
        return self._mean(np.log(self.times(advice) / self.best), rows)

    def against_nothing(
        self, advice: Codes, rows: npt.NDArray[np.bool_] | None = None
    ) -> Interval | None:
        """Return the geometric mean of time after the advice / time before; see :meth:`regret`."""
        return self._mean(np.log(self.times(advice) / self.seconds), rows)

    def _mean(self, logs: Floats, rows: npt.NDArray[np.bool_] | None) -> Interval | None:
        counted = np.ones(len(logs), bool) if rows is None else rows
        if not counted.any():
            return None
        _, number = np.unique(self.slice[counted], return_inverse=True)
        sums, sizes = np.bincount(number, logs[counted]), np.bincount(number)
        value = float(np.exp(sums.sum() / sizes.sum()))
        drawn = np.random.default_rng(0).integers(len(sizes), size=(DRAWS, len(sizes)))
        means = np.exp(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
        low, high = np.quantile(means, (0.025, 0.975))
        return Interval(value, min(float(low), value), max(float(high), value))
