"""What XGBoost calls on the workers of a cluster, in each round.

XGBoost gives an objective the scores of the rows that a worker has. The loss is one of all programs
together, so workers add up what each knows of the programs' scores.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._xgboost import import_xgboost
from .base import Floats
from .boosting import Descent, Matrix, Watch

#: Attribute of a booster that says what was noted after each round.
_HISTORY = "tunedb.history"


@dataclass(frozen=True, slots=True, eq=False)
class Everywhere:
    """What every worker knows of a training.

    Parameters
    ----------
    descent : Descent
        The loss of all programs.
    watch : Watch or None
        What is noted after each round.
    starts : ndarray of int64, shape (n + 1,)
        Where the rows of all programs would begin, were they in one matrix.
    partitions : list of ndarray of int64
        The programs of each partition, in the order of their rows. Which partition a row is of is
        its label: XGBoost says nothing else of what a worker has, and in which order.
    """

    descent: Descent
    watch: Watch | None
    starts: NDArray[np.int64]
    partitions: list[NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class SharedMatrix(Matrix):
    """The rows of some programs, among others that know the rest.

    Parameters
    ----------
    data : xgboost.DMatrix
        The rows that are here.
    starts : ndarray of int64, shape (n + 1,)
        Where the rows of all programs would begin, were they in one matrix.
    here : ndarray of int64
        Numbers of the programs whose rows are here, in the order of the rows.
    """

    here: NDArray[np.int64]

    @classmethod
    def local(cls, data: Any, everywhere: Everywhere) -> SharedMatrix:
        """Return what a worker has."""
        labels = data.get_label().astype(np.int64)
        begins = np.flatnonzero(np.diff(labels, prepend=-1))
        here = [everywhere.partitions[number] for number in labels[begins].tolist()]
        return cls(data, everywhere.starts, np.concatenate(here))

    def to_rows(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the value of its program for each row that is here."""
        return np.repeat(values[self.here], self.sizes[self.here])

    def sums(self, margins: NDArray[np.float32]) -> Floats:
        """Return the scores of all programs, given what trees say of each row that is here."""
        starts = np.zeros(len(self.here) + 1, np.int64)
        np.cumsum(self.sizes[self.here], out=starts[1:])
        scores = np.zeros(len(self.starts) - 1)
        scores[self.here] = Matrix(self.data, starts).sums(margins)
        # Each program is on one worker and 0 on the others, so sums are exact in every order.
        collective = import_xgboost("xgboost.collective")
        return np.asarray(collective.allreduce(scores, collective.Op.SUM))


class Rounds:
    """The objective of a booster (``obj=``), and what is noted after each round.

    XGBoost pickles it for each worker together with its :meth:`callback`.

    Parameters
    ----------
    keys : dict
        Address of a worker → the key under which Dask keeps its :class:`Everywhere` there. It is
        not in here: Dask carries large objectives slowly, and warns.
    """

    def __init__(self, keys: dict[str, Any]) -> None:
        self._keys = keys
        #: Known from the first round on.
        self._here: tuple[Everywhere, SharedMatrix] | None = None
        self._history: list[float] = []

    def __call__(
        self, margins: NDArray[np.float32], data: Any
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return gradient and Hessian of each row that is here."""
        if self._here is None:
            self._here = self._find(data)
        everywhere, matrix = self._here
        gradient, hessian = everywhere.descent.derivatives(matrix.sums(margins))
        return matrix.to_rows(gradient), matrix.to_rows(hessian)

    def _find(self, data: Any) -> tuple[Everywhere, SharedMatrix]:
        from distributed import get_worker

        worker = get_worker()
        everywhere: Everywhere = worker.data[self._keys[worker.address]]  # type: ignore[assignment]
        return everywhere, SharedMatrix.local(data, everywhere)

    def after(self, booster: Any) -> bool:
        """Note how good the booster is after a round; return whether to stop."""
        if self._here is None or (watch := self._here[0].watch) is None:
            return False
        self._history.append(watch.accuracy(self._here[1].scores(booster)))
        return watch.stops(self._history)

    def callback(self) -> Any:
        """Return the callback that goes with the objective."""
        callbacks = import_xgboost("xgboost.callback")

        class AfterRounds(callbacks.TrainingCallback):  # type: ignore[misc, name-defined]
            """All workers note and decide alike."""

            def __init__(self, rounds: Rounds) -> None:
                super().__init__()
                self.rounds = rounds

            def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                return self.rounds.after(model)

            def after_training(self, model: Any) -> Any:
                # XGBoost's own log of a training has six digits.
                model.set_attr(**{_HISTORY: json.dumps(self.rounds._history)})
                return model

        return AfterRounds(self)


def take_history(booster: Any) -> list[float]:
    """Return what was noted after each round of a booster, which keeps nothing of it."""
    found: list[float] = json.loads(booster.attr(_HISTORY))
    booster.set_attr(**{_HISTORY: None})
    return found
