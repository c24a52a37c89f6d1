"""Whether rows of features are what an installed feature set computes of their programs.

Rows from elsewhere are numbers that nobody can see through. Of a set that is computed of steps
alone a sample is computed again, without TVM and without believing anybody.
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
    """Return the installed feature set that can compute such rows again; None where none can."""
    found = load_feature_sets()[0].get(name)
    if isinstance(found, StepFeatures) and found.version == version:
        return found
    return None


class Sample:
    """Programs that are drawn from all that are offered, whatever their number and order.

    The same programs give the same sample. Which ones follows from their digests and the key of
    the database here, so that who makes the rows does not also choose those that are looked at.

    Parameters
    ----------
    store_key : str
        Key of the database here.
    most : int
        How many programs, as :data:`tunedb.limits.FEATURE_SAMPLE`.
    """

    def __init__(self, store_key: str, most: int) -> None:
        self._key = store_key.encode()
        self._most = most
        #: Those with the smallest places, the largest of them first.
        self._heap: list[tuple[int, bytes]] = []
        self._digests: set[bytes] = set()

    def offer(self, program: bytes) -> None:
        """Offer the program with a digest; once more changes nothing."""
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
    """Return the positions of the programs of which a feature set computes other rows, or none.

    Parameters
    ----------
    feature_set : StepFeatures
        Of the version that the rows are of.
    programs : sequence of StoredProgram
        Whose rows are looked at; some hundreds, because all are computed at once.
    rows : iterable of ndarray of float32
        What is said of each, in their order.
    """
    outcomes = rows_of_steps(feature_set, programs)
    return [
        place
        for place, ((_, computed), said) in enumerate(zip(outcomes, rows, strict=True))
        if isinstance(computed, Exception) or not _is_same(np.asarray(computed, np.float32), said)
    ]


def _is_same(computed: NDArray[np.float32], said: NDArray[Any]) -> bool:
    """Tell whether rows are the same but for the last places of logarithms.

    All else is exact; the C libraries of two machines round ``log2`` differently.
    """
    if computed.shape != said.shape:
        return False
    with np.errstate(invalid="ignore"):  # what is not finite is the same as nothing
        room = 2 * np.spacing(np.abs(computed))
        return bool((np.abs(computed.astype(np.float64) - said) <= room).all())
