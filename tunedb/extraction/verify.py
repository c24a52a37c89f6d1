"""Verification of foreign features: a sample is computed again from the programs.

Foreign rows cannot be checked by looking at them. Sets that need only a program's steps can be
computed again, without TVM and without trust in the source.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import identity
from ..features.base import StepFeatures, load_feature_sets
from .extract import rows_of_steps

if TYPE_CHECKING:
    from ..results import StoredProgram


def computing(name: str, version: int) -> StepFeatures | None:
    """Return the installed feature set that can compute these rows again, or None."""
    feature_set = load_feature_sets()[0].get(name)
    if isinstance(feature_set, StepFeatures) and feature_set.version == version:
        return feature_set
    return None


class Sample:
    """A deterministic sample of the offered programs, independent of their order.

    The digests and the key of the receiving database select the programs, so that the author of
    the rows cannot predict which ones are verified.

    Parameters
    ----------
    store_key : str
        Key of the receiving database.
    most : int
        Size of the sample, as :data:`tunedb.limits.FEATURE_SAMPLE`.
    """

    def __init__(self, store_key: str, most: int) -> None:
        self._key = store_key.encode()
        self._most = most
        #: Heap of the programs with the smallest ranks; the largest rank comes first.
        self._heap: list[tuple[int, bytes]] = []
        self._digests: set[bytes] = set()

    def offer(self, program: bytes) -> None:
        """Offer the program with a digest; idempotent."""
        place = -int.from_bytes(identity.digest("feature_sample", self._key, program))
        if len(self._heap) == self._most and place <= self._heap[0][0]:
            return
        if program in self._digests:
            return
        self._digests.add(program)
        heapq.heappush(self._heap, (place, program))
        if len(self._heap) > self._most:
            self._digests.discard(heapq.heappop(self._heap)[1])

    def __contains__(self, program: bytes) -> bool:
        return program in self._digests

    def __len__(self) -> int:
        return len(self._digests)


def differing(
    feature_set: StepFeatures, programs: Sequence[StoredProgram], rows: Iterable[NDArray[Any]]
) -> list[int]:
    """Return the positions of programs whose rows differ from the computed ones.

    Parameters
    ----------
    feature_set : StepFeatures
        The feature set, in the version of the rows.
    programs : sequence of StoredProgram
        Programs; at most some hundreds, because all are computed at once.
    rows : iterable of ndarray of float32, shape (n_rows, n_columns)
        Claimed rows of each program, in the same order.
    """
    outcomes = rows_of_steps(feature_set, programs)
    return [
        place
        for place, ((_, computed), claimed) in enumerate(zip(outcomes, rows, strict=True))
        if isinstance(computed, Exception)
        or not _is_same(np.asarray(computed, np.float32), claimed)
    ]


def _is_same(computed: NDArray[np.float32], claimed: NDArray[Any]) -> bool:
    """Return True for equal rows, within 2 ulp: C libraries round ``log2`` differently."""
    if computed.shape != claimed.shape:
        return False
    with np.errstate(invalid="ignore"):  # NaNs and infinities compare as different
        tolerance = 2 * np.spacing(np.abs(computed))
        return bool((np.abs(computed.astype(np.float64) - claimed) <= tolerance).all())
