"""The fastest records of each workload and target, and an even choice of the others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..identity import DIGEST_BYTES
from ..records import Status

Ids = NDArray[np.int64]


class Ranks:
    """Records in few bytes each (37, and about as many while they are sorted)."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, int], int] = {}
        self._parts: dict[str, list[NDArray[np.generic]]] = {
            name: [] for name in ("id", "group", "failed", "mean", "high", "low")
        }

    def add(
        self,
        ids: Sequence[int],
        groups: Sequence[tuple[int, int]],
        statuses: Sequence[int],
        means: Sequence[float | None],
        digests: Sequence[bytes],
    ) -> None:
        """Note records.

        Parameters
        ----------
        ids : sequence of int
            Their numbers.
        groups : sequence of tuple
            Numbers of workload and target.
        statuses : sequence of int
            Values of :class:`tunedb.records.Status`.
        means : sequence of float or None
            Seconds.
        digests : sequence of bytes
            Of 16 bytes each; they order what is equal otherwise, so that all machines choose the
            same records.

        Raises
        ------
        ValueError
            A digest has another length.
        """
        known = self._groups
        codes = [known.setdefault(group, len(known)) for group in groups]
        failed = np.array(statuses, np.int64) != Status.OK
        mean = np.array(means, np.float64)
        mean[np.isnan(mean)] = math.inf
        # Failed ones are one more stretch of the order.
        mean[failed] = 0.0
        if any(len(digest) != DIGEST_BYTES for digest in digests):
            raise ValueError("a digest of another length")
        halves = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2).astype(np.uint64)
        for name, values in (
            ("id", np.array(ids, np.int64)),
            ("group", np.array(codes, np.int32)),
            ("failed", failed),
            ("mean", mean),
            ("high", halves[:, 0].copy()),
            ("low", halves[:, 1].copy()),
        ):
            self._parts[name].append(values)

    def chosen(self, best: int, rest: float) -> Ids:
        """Return the numbers of the best records and of the rest, in order; only to be asked once.

        Parameters
        ----------
        best : int
            How many of the fastest of each group.
        rest : float
            How many others, as a share of `best`.
        """
        if not self._parts["id"]:
            return np.empty(0, np.int64)
        # Joined one by one, and the parts given back at once.
        columns = {name: np.concatenate(self._parts.pop(name)) for name in list(self._parts)}
        ids = columns.pop("id")
        keys = ("low", "high", "mean", "failed", "group")
        order = np.lexsort([columns[name] for name in keys])
        group, failed = columns["group"][order], columns["failed"][order]
        del columns
        starts = np.flatnonzero(np.diff(group, prepend=np.int32(-1)))
        ends = np.append(starts[1:], len(order))
        # Below what arrays hold: people may ask for any number.
        share = math.floor(min(min(best, 2**62) * rest, len(ids)) + 0.5)
        taken = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            valid = int(np.count_nonzero(~failed[start:end]))
            taken.append(start + _spread(end - start, valid, best, share))
        numbers = ids[order[np.concatenate(taken)]]
        numbers.sort()
        return numbers


def _spread(size: int, valid: int, best: int, share: int) -> Ids:
    """Return which of the ranks of a group are chosen.

    Parameters
    ----------
    size, valid : int
        Records of the group, and how many of them are no failures: those come first.
    best, share : int
        How many of the first, and how many of all others: the middles of as many equal stretches.
    """
    first = min(best, valid)
    left = size - first
    count = min(share, left)
    # 2 i + 1 is below 2 count, so that the product stays below 2 left count.
    middles = (2 * np.arange(count, dtype=np.int64) + 1) * left // (2 * count or 1)
    return np.concatenate([np.arange(first, dtype=np.int64), first + middles])
