"""Feature rows of the candidates that a search scores."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import TuneDBError, UsageError
from ....features.base import FeatureSet, NestFeatures, StepFeatures
from ....features.blobs import checked
from ....programs.workload_info import signature_of
from ....results import StoredProgram
from .. import trace_codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ....records import Signature, Target, Trace, Workload

    Rows = NDArray[np.float32]

#: Most cached candidates. Each keeps the objects of its trace alive: 70 KB.
_MOST = 1024

#: Cached candidates of one prediction, those of highest score: a search measures 64 of some 2,500
#: by default, and nearly all of these are the best of their generation.
_BEST = 256


@dataclass(frozen=True, slots=True, eq=False)
class CandidateTask:
    """Module, target and threads of the candidates of one tuning context.

    Parameters
    ----------
    context : tvm TuneContext
        The tuning context.
    target : Target
        Stored form of its target.
    workload : callable
        Returns the stored form of its module.
    threads : int
        Threads that compute rows.
    """

    context: Any
    target: Target
    workload: Callable[[], Workload]
    threads: int


@dataclass(slots=True, eq=False)
class ScoredCandidate:
    """A candidate with its feature rows and its score.

    Parameters
    ----------
    trace : tvm Trace
        Kept so that no other trace gets its address.
    rows : ndarray of float32, shape (k, columns), or None
        Feature rows.
    error : Exception or None
        Reason why there are no rows.
    score : float
        Score of a model; NaN if it is not scored.
    scorer : Scorer or None
        The model that scored it.
    """

    trace: Any
    rows: Rows | None
    error: Exception | None = None
    score: float = float("nan")
    scorer: Any = None


class CandidateRows:
    """Feature rows of candidates; those that a search may measure are cached.

    A candidate is identified by the address of its trace: TVM measures the same schedule objects
    that it has scored, and hashing a module takes longer than extracting its features.

    Parameters
    ----------
    feature_set : FeatureSet
        Feature set of the rows.

    Raises
    ------
    UsageError
        The number of columns of the feature set depends on the program.
    """

    def __init__(self, feature_set: FeatureSet) -> None:
        if not feature_set.columns:
            raise UsageError(
                f"{feature_set.name} has a varying number of columns; a cost model "
                "needs another feature set: tunedb features"
            )
        self.feature_set = feature_set
        #: Programs whose rows were computed so far.
        self.computed: int = 0
        # Not a cachetools cache: released candidates go first.
        self._known: OrderedDict[int, ScoredCandidate] = OrderedDict()

    def recall(self, candidate: Any) -> ScoredCandidate | None:
        """Return a remembered candidate, or None."""
        return self._known.get(candidate.sch.trace.__chandle__())

    def scored(self, task: CandidateTask, candidates: Sequence[Any]) -> list[ScoredCandidate]:
        """Return candidates with their rows, remembered or computed, in their order.

        Computed ones are not remembered by that alone (:meth:`remember`).
        """
        recalled = [self.recall(candidate) for candidate in candidates]
        missing = [c for c, known in zip(candidates, recalled, strict=True) if known is None]
        computed = iter(self._compute(task, missing) if missing else [])
        return [next(computed) if known is None else known for known in recalled]

    def checked(self, trace: Any, rows: Any) -> ScoredCandidate:
        """Return a candidate with rows in their stored form, or with their error."""
        if isinstance(rows, Exception):
            return ScoredCandidate(trace, None, rows)
        try:
            return ScoredCandidate(trace, checked(self.feature_set, rows))
        except TuneDBError as error:
            return ScoredCandidate(trace, None, error)

    def remember(self, candidates: Sequence[ScoredCandidate], scores: NDArray[np.float64]) -> None:
        """Remember the candidates of a prediction that have the highest scores."""
        # The best last, because the first are forgotten first.
        for place in np.argsort(-scores, kind="stable")[:_BEST][::-1]:
            candidate = candidates[place]
            address = candidate.trace.__chandle__()
            self._known[address] = candidate
            self._known.move_to_end(address)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    def release(self, measured: Sequence[ScoredCandidate]) -> None:
        """Keep measured candidates only until others need their room.

        A measure callback that comes after the cost model stores their rows.
        """
        for candidate in measured:
            address = candidate.trace.__chandle__()
            self._known[address] = candidate
            self._known.move_to_end(address, last=False)

    def _compute(self, task: CandidateTask, candidates: Sequence[Any]) -> list[ScoredCandidate]:
        self.computed += len(candidates)
        raw: Sequence[Any]
        if isinstance(self.feature_set, StepFeatures):
            raw = self._step_rows(self.feature_set, task, candidates)
        elif isinstance(self.feature_set, NestFeatures):
            from .rows import rows_of

            modules = [candidate.sch.mod for candidate in candidates]
            raw = rows_of(modules, task.context.target, self.feature_set, task.threads)
        else:
            raise UsageError(f"{self.feature_set.name} is neither StepFeatures nor NestFeatures")
        traces = [candidate.sch.trace for candidate in candidates]
        return [self.checked(trace, rows) for trace, rows in zip(traces, raw, strict=True)]

    @staticmethod
    def _step_rows(
        feature_set: StepFeatures, task: CandidateTask, candidates: Sequence[Any]
    ) -> list[Rows | Exception]:
        """Return rows that need no module, from the traces in their stored form."""
        workload = task.workload()
        signature = signature_of(workload)
        outcomes: list[Rows | Exception] = []
        programs = []
        for candidate in candidates:
            try:
                trace = trace_codec.encode(candidate.sch.trace)
            except TuneDBError as error:
                outcomes.append(error)
                continue
            stored = unstored_program(workload, signature, task.target, trace)
            programs.append((len(outcomes), stored))
            outcomes.append(UsageError("not computed"))
        rows = feature_set.rows([program for _, program in programs])
        for (place, _), own_rows in zip(programs, rows, strict=True):
            outcomes[place] = own_rows
        return outcomes


def unstored_program(
    workload: Workload, signature: Signature, target: Target, trace: Trace
) -> StoredProgram:
    """Return a program that is not stored, for the features of its steps."""
    # Nothing looks the numbers up.
    return StoredProgram(0, 0, workload, signature, 0, target, 0, None, trace)
