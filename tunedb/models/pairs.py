"""Pairs of programs of a group, for pairwise losses and accuracies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .base import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """All pairs of small groups, and a balanced sample of the pairs of larger groups.

    The programs of each group form a circle in random order, and each is paired with the next ones
    along the circle, at distances 1 to `steps`. So no pair occurs twice, each program is in equally
    many pairs, and sums over the pairs of a program are gathers, which take a tenth of the time of
    scattering.

    Parameters
    ----------
    order : ndarray of int64, shape (n,)
        Programs, circle by circle; a *place* is an index into this array.
    group : ndarray of int32, shape (n,)
        Group of the program at each place.
    ahead, behind : ndarray of int32, shape (steps, n)
        Places at each distance ahead and behind of each place.
    signs : ndarray of int8, shape (steps, n)
        1 if the program at a place has a greater label than the one ahead, -1 if a smaller label;
        0 if labels are equal, or if the pair has occurred at a smaller distance.
    """

    order: NDArray[np.int64]
    group: NDArray[np.int32]
    ahead: NDArray[np.int32]
    behind: NDArray[np.int32]
    signs: NDArray[np.int8]

    @classmethod
    def from_labels(
        cls, labels: Floats, group: NDArray[np.int32], partners: int, seed: int
    ) -> Pairs:
        """Return the pairs of programs, given their labels.

        Parameters
        ----------
        labels : ndarray of float64, shape (n,)
            Labels that order the programs of a group.
        group : ndarray of int32, shape (n,)
            Group of each program.
        partners : int
            Maximum number of partners of each program, rounded up to an even number.
        seed : int
            Seed of the random order.
        """
        order = np.lexsort((np.random.default_rng(seed).random(len(labels)), group))
        _, begin, count = np.unique(group[order], return_index=True, return_counts=True)
        begins, sizes = np.repeat(begin, count), np.repeat(count, count)
        place = np.arange(len(order)) - begins
        steps = min(-(-partners // 2), int(count.max(initial=0)) // 2)
        ahead, behind = np.empty((2, steps, len(order)), np.int32)
        signs = np.empty((steps, len(order)), np.int8)
        around = labels[order]
        for row, step in enumerate(range(1, steps + 1)):
            ahead[row] = begins + (place + step) % sizes
            behind[row] = begins + (place - step) % sizes
            # At half the circle, each pair would occur twice.
            first = (2 * step < sizes) | ((2 * step == sizes) & (place < step))
            signs[row] = np.where(first, np.sign(around - around[ahead[row]]), 0)
        return cls(order, group[order], ahead, behind, signs)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.signs))

    @property
    def compared(self) -> NDArray[np.int64]:
        """Programs with a partner ahead of them."""
        return self.order[self.signs.any(axis=0)]

    def accuracy(self, scores: Floats) -> float:
        """Return the pairwise accuracy of scores, averaged over groups.

        A pair with equal scores counts one half. Groups without pairs are left out.
        """
        around = scores[self.order]
        right, count = np.zeros((2, len(around)))
        for ahead, sign in zip(self.ahead, self.signs, strict=True):
            right += (1 + np.sign(around - around[ahead]) * sign) / 2 * np.abs(sign)
            count += np.abs(sign)
        rights, counts = np.bincount(self.group, right), np.bincount(self.group, count)
        return float((rights[counts > 0] / counts[counts > 0]).mean())
