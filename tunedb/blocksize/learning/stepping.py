"""Where one step leads: the next block of a slice in each direction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..labels import by_slice
from ..observations import Observation
from .codes import DECREASE, INCREASE, Floats


def one_step(observations: Sequence[Observation]) -> npt.NDArray[np.int64]:
    """Return the position of the observation after one step, per label.

    One step is the next number of threads that the slice has; of several shapes with as many
    threads the one nearest in the logarithms of its extents, then the widest along x. Run times
    are not looked at.

    Returns
    -------
    ndarray, shape (n, 3), int64
        The row itself for no change, and where there is no further block in that direction.
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
