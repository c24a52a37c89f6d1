"""Pairs of programs that are compared with each other: those of a group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .base import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """All pairs of small groups, and of larger ones so many that each program has its share.

    The programs of each group stand in a circle in random order, and each is paired with the next
    ones, step by step. So no pair comes twice, each program is in as many pairs as the others, and
    sums over the pairs of a program are gathers, which take a tenth of the time of scattering.

    Parameters
    ----------
    order : ndarray of int64, shape (n,)
        The programs, circle after circle; a *place* is an index into this.
    group : ndarray of int32, shape (n,)
        Group of the program at each place.
    ahead, behind : ndarray of int32, shape (steps, n)
        The place that the program at each place is paired with, and the one that is paired with it.
    signs : ndarray of int8, shape (steps, n)
        1 where the program at a place has a greater label than the one ahead, -1 where a smaller
        one; 0 where labels are equal, or all pairs of the circle have had their turn.
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
        """Return the pairs of some programs.

        Parameters
        ----------
        labels : ndarray of float64, shape (n,)
            What orders the programs of a group.
        group : ndarray of int32, shape (n,)
            Which group each program is of.
        partners : int
            Programs that each is paired with, at most; an odd number counts as the next even one.
        seed : int
            Of the order.
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
            # Half way round, both ends of a pair would find it.
            first = (2 * step < sizes) | ((2 * step == sizes) & (place < step))
            signs[row] = np.where(first, np.sign(around - around[ahead[row]]), 0)
        return cls(order, group[order], ahead, behind, signs)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.signs))

    @property
    def compared(self) -> NDArray[np.int64]:
        """Programs that are paired with another one ahead of them."""
        return self.order[self.signs.any(axis=0)]

    def accuracy(self, scores: Floats) -> float:
        """Return the mean over groups of the share of pairs that scores have in the right order.

        A pair with equal scores is half right. Groups without pairs are left out.
        """
        around = scores[self.order]
        right, count = np.zeros((2, len(around)))
        for ahead, sign in zip(self.ahead, self.signs, strict=True):
            right += (1 + np.sign(around - around[ahead]) * sign) / 2 * np.abs(sign)
            count += np.abs(sign)
        rights, counts = np.bincount(self.group, right), np.bincount(self.group, count)
        return float((rights[counts > 0] / counts[counts > 0]).mean())
