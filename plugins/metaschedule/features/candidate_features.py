"""Rows of features of the candidates that a search asks about."""

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

    from ....records import Target, Workload

    Rows = NDArray[np.float32]

#: Candidates that are remembered. A remembered trace keeps what its instructions name: 70 KB each.
_MOST = 1024

#: Candidates of one prediction that are remembered, those of highest score: a search measures 64
#: of some 2,500 by default, and nearly all of these are the best of their generation.
_BEST = 256


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What the candidates of one tuning context have in common.

    Parameters
    ----------
    context : tvm TuneContext
        Its module, target and number of threads.
    target : Target
        The stored form of its target.
    workload : callable
        Returns the stored form of its module.
    threads : int
        How many threads compute rows.
    """

    context: Any
    target: Target
    workload: Callable[[], Workload]
    threads: int


@dataclass(slots=True, eq=False)
class Remembered:
    """A candidate that was asked about: its rows, and what was said.

    Parameters
    ----------
    trace : tvm Trace
        Kept so that nothing else gets its address.
    rows : ndarray of float32, shape (k, columns), or None
        Its rows.
    error : Exception or None
        Why it has none.
    score : float
        What a model said; NaN where none did.
    scorer : Scorer or None
        The model that said it.
    """

    trace: Any
    rows: Rows | None
    error: Exception | None = None
    score: float = float("nan")
    scorer: Any = None


class CandidateRows:
    """Computes rows of candidates, and remembers the ones that a search may measure.

    A candidate is known by the address of its trace: TVM measures the very schedules about which
    it has asked, and to hash a module takes longer than to extract its features.

    Parameters
    ----------
    feature_set : FeatureSet
        What is computed.

    Raises
    ------
    UsageError
        Its number of columns depends on the program.
    """

    def __init__(self, feature_set: FeatureSet) -> None:
        if not feature_set.columns:
            raise UsageError(
                f"{feature_set.name} has a varying number of columns; a cost model "
                "needs another feature set: tunedb features"
            )
        self.feature_set = feature_set
        #: Programs whose rows were computed so far.
        self.computed = 0
        self._known: OrderedDict[int, Remembered] = OrderedDict()

    def recall(self, candidate: Any) -> Remembered | None:
        """Return what is remembered of a candidate, or None."""
        return self._known.get(candidate.sch.trace.__chandle__())

    def of(self, task: Task, candidates: Sequence[Any]) -> list[Remembered]:
        """Return the rows of candidates, in their order; they are not remembered by that alone."""
        found = [self.recall(candidate) for candidate in candidates]
        missing = [c for c, known in zip(candidates, found, strict=True) if known is None]
        computed = iter(self._compute(task, missing) if missing else [])
        return [next(computed) if known is None else known for known in found]

    def remember(self, asked: Sequence[Remembered], order: NDArray[np.float64]) -> None:
        """Remember the candidates of a prediction that come first by their scores."""
        # The best last, because the first are forgotten first.
        for at in np.argsort(-order, kind="stable")[:_BEST][::-1]:
            one = asked[at]
            address = one.trace.__chandle__()
            self._known[address] = one
            self._known.move_to_end(address)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    def release(self, measured: Sequence[Remembered]) -> None:
        """Keep candidates that were measured until others are remembered, and need their room.

        A measure callback that comes after the cost model stores their rows.
        """
        for one in measured:
            address = one.trace.__chandle__()
            self._known[address] = one
            self._known.move_to_end(address, last=False)

    def _compute(self, task: Task, candidates: Sequence[Any]) -> list[Remembered]:
        self.computed += len(candidates)
        raw: Sequence[Any]
        if isinstance(self.feature_set, StepFeatures):
            raw = self._of_steps(self.feature_set, task, candidates)
        elif isinstance(self.feature_set, NestFeatures):
            from .rows import rows_of

            modules = [candidate.sch.mod for candidate in candidates]
            raw = rows_of(modules, task.context.target, self.feature_set, task.threads)
        else:
            raise UsageError(f"{self.feature_set.name} is neither StepFeatures nor NestFeatures")
        traces = [candidate.sch.trace for candidate in candidates]
        return [self._checked(trace, rows) for trace, rows in zip(traces, raw, strict=True)]

    def _checked(self, trace: Any, rows: Any) -> Remembered:
        """Return rows as they are stored, so that a model sees what it was trained on."""
        if isinstance(rows, Exception):
            return Remembered(trace, None, rows)
        try:
            return Remembered(trace, checked(self.feature_set, rows))
        except TuneDBError as error:
            return Remembered(trace, None, error)

    @staticmethod
    def _of_steps(
        feature_set: StepFeatures, task: Task, candidates: Sequence[Any]
    ) -> list[Rows | Exception]:
        """Return rows that need no module, of the traces in their stored form."""
        workload = task.workload()
        signature = signature_of(workload)
        made: list[Rows | Exception] = []
        programs = []
        for candidate in candidates:
            try:
                trace = trace_codec.encode(candidate.sch.trace)
            except TuneDBError as error:
                made.append(error)
                continue
            # Nothing is looked up by its numbers.
            stored = StoredProgram(0, 0, workload, signature, 0, task.target, 0, None, trace)
            programs.append((len(made), stored))
            made.append(UsageError("not computed"))
        rows = feature_set.rows([program for _, program in programs])
        for (at, _), found in zip(programs, rows, strict=True):
            made[at] = found
        return made


def stacked(rows: Sequence[Rows], columns: int) -> tuple[Rows, NDArray[np.int64]]:
    """Return the rows of programs one after another, and where each program's begin.

    Returns
    -------
    rows : ndarray of float32, shape (m, columns)
    starts : ndarray of int64, shape (n + 1,)
    """
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(one) for one in rows], out=starts[1:])
    return np.concatenate([np.empty((0, columns), np.float32), *rows]), starts
