"""Gradient boosting of programs' scores through XGBoost, one round at a time.

The loss is one of programs, the trees are of rows. So each round sums what the trees say of the
rows of a program, asks the loss for its derivatives by those sums, and hands them to each row.
XGBoost then takes a Newton step in each leaf with the diagonal of the Hessian. Where k rows of a
program fall into one leaf, its score moves k times as far as each of them, and the curvature along
that move is k² times that of the score, of which a diagonal of h for each row sees only k: boosting
diverges from k · eta ≥ 2 on. With k · h for each row the step is exact there, and shorter than
exact where the rows fall into several leaves, so it is stable for every k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ._xgboost import import_xgboost, interrupt_later
from .aggregation import segmented
from .base import Floats, Objective
from .pairs import Pairs
from .recipe import Recipe

# ---- When boosting stops: after how many rounds it no longer gains on workloads it has not seen --


@dataclass(frozen=True, slots=True, eq=False)
class EarlyStopping:
    """What is looked at after each round.

    Parameters
    ----------
    pairs : Pairs
        Of the held-out programs.
    unseen : ndarray of bool, shape (n,)
        Which of all programs those are.
    patience : int
        The recipe's, above 0.
    """

    pairs: Pairs
    unseen: NDArray[np.bool_]
    patience: int

    def accuracy(self, scores: Floats) -> float:
        """Return the pairwise accuracy on held-out workloads, by the scores of all programs."""
        return self.pairs.accuracy(scores[self.unseen])

    def stops(self, history: Sequence[float]) -> bool:
        """Return whether the best round is so long ago that there will be no better one."""
        return len(history) - best_round(history, self.patience) >= self.patience


def best_round(history: Sequence[float], patience: int) -> int:
    """Return the round, from 1, whose figure and those of the rounds before are best.

    That is the greatest mean over `patience` rounds, or over all until then: the figure of one
    round is above its neighbours' by chance.

    Parameters
    ----------
    history : sequence of float
        Accuracy after each round, of one at least.
    patience : int
        The recipe's, above 0.
    """
    sums = np.concatenate((np.zeros(1), np.cumsum(history)))
    rounds = np.arange(1, len(sums))
    spans = np.minimum(rounds, patience)
    # Rounded, because the first of equal means counts.
    means = np.round((sums[rounds] - sums[rounds - spans]) / spans, 12)
    return int(np.argmax(means)) + 1


# ---- Boosting ------------------------------------------------------------------------------------

#: Bins of each column; XGBoost's own choice.
BINS = 256

#: Rows that the bounds of the bins are taken from: 64 for each bin.
_SAMPLE_ROWS = 64 * BINS

#: Called after each round with the accuracy on held-out workloads, None where none are held out.
OnFigure = Callable[[float | None], None]


class TrainingMatrix(Protocol):
    """The rows of the programs that are learnt from, wherever they are."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each program, shape (n,)."""

    def boost(
        self,
        gradients: ObjectiveGradients,
        settings: dict[str, Any],
        rounds: int,
        *,
        stopping: EarlyStopping | None = None,
        on_figure: OnFigure | None = None,
    ) -> tuple[Any, list[float]]:
        """Train a booster.

        Parameters
        ----------
        gradients : ObjectiveGradients
            Of the programs.
        settings : dict
            Of :func:`parameters`.
        rounds : int
            Trees at most.
        stopping : EarlyStopping, optional
            Says what is noted after each round, and when to stop.
        on_figure : callable, optional
            For progress, where the rounds are here.

        Returns
        -------
        tuple of xgboost.Booster and list of float
            The booster, and what was noted after each round.

        Raises
        ------
        UsageError
            XGBoost refuses a parameter.
        """


def sample(count: int, seed: int) -> NDArray[np.int64]:
    """Return which of `count` rows the bounds of the bins are taken from, ascending."""
    if count <= _SAMPLE_ROWS:
        return np.arange(count)
    drawn = np.random.default_rng(seed).choice(count, _SAMPLE_ROWS, replace=False)
    return np.sort(drawn.astype(np.int64))


def parameters(recipe: Recipe, *, seed: int, threads: int, device: str = "cpu") -> dict[str, Any]:
    """Return XGBoost's parameters but for ``base_score``.

    ``hist`` is pinned, because models of another method would not be equal. The objective only
    says that a score is the sum over the trees as it stands.

    Parameters
    ----------
    recipe : Recipe
        All choices.
    seed : int
        Of the samples of columns and rows.
    threads : int
        For ``nthread``.
    device : str
        ``cpu`` or ``cuda``.
    """
    return {
        "tree_method": "hist",
        "objective": "reg:squarederror",
        "device": device,
        "nthread": threads,
        "max_bin": BINS,
        "seed": seed,
        "seed_per_iteration": True,
        "max_depth": recipe.max_depth,
        "eta": recipe.eta,
        "min_child_weight": recipe.min_child_weight,
        "reg_lambda": recipe.reg_lambda,
        "gamma": recipe.gamma,
        "subsample": recipe.subsample,
        "colsample_bytree": recipe.colsample_bytree,
    }


def check_parameters(settings: dict[str, Any]) -> None:
    """Raise UsageError where XGBoost refuses some :func:`parameters`, before there are rows."""
    xgboost = import_xgboost()
    one = xgboost.DMatrix(np.zeros((1, 1), np.float32), nthread=1)
    try:
        booster = xgboost.Booster(settings | {"nthread": 1}, [one])
        booster.boost(one, 0, grad=np.zeros(1, np.float32), hess=np.ones(1, np.float32))
    except xgboost.core.XGBoostError as error:
        raise _refused(error) from None


class ObjectiveGradients:
    """The loss that a booster descends, and how much each program is in it.

    Parameters
    ----------
    objective : Objective
        The loss of the programs.
    sizes : ndarray of int64, shape (n,)
        Rows of each program.
    hessian_power : float
        The Hessian of a program with k rows is multiplied by k to this power. 1 is stable, 0 is
        what TVM and Ansor have.
    counts : ndarray of float64, shape (n,), optional
        How often each program counts: of bootstrap samples, or 0 for those that are held out.
    """

    def __init__(
        self,
        objective: Objective,
        sizes: NDArray[np.int64],
        *,
        hessian_power: float = 1.0,
        counts: Floats | None = None,
    ) -> None:
        #: What each row scores before any tree.
        self.base = objective.base(sizes)
        self._objective = objective
        self._curvature = sizes.astype(np.float64) ** hessian_power
        self._counts = np.ones(len(sizes)) if counts is None else counts

    def derivatives(self, scores: Floats) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return what each row of a program is given: gradient and Hessian, each of shape (n,)."""
        gradient, hessian = self._objective.derivatives(scores)
        return (
            _summable(gradient * self._counts),
            _summable(hessian * self._counts * self._curvature),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Rows as XGBoost holds them, in bins.

    Parameters
    ----------
    data : xgboost.DMatrix
        Its matrix.
    starts : ndarray of int64, shape (n + 1,)
        The rows of program i are those from ``starts[i]`` to ``starts[i + 1]``.
    """

    data: Any
    starts: NDArray[np.int64]

    @classmethod
    def from_rows(
        cls, rows: NDArray[np.float32], starts: NDArray[np.int64], *, threads: int, seed: int
    ) -> Matrix:
        """Return the matrix of some rows.

        The bounds of the bins are quantiles of a :func:`sample`: to find those of all rows takes
        longer than to put the rows into bins.
        """
        xgboost = import_xgboost()
        some, bins = sample(len(rows), seed), None
        with interrupt_later():
            if len(some) < len(rows):
                bins = xgboost.QuantileDMatrix(rows[some], max_bin=BINS, nthread=threads)
            data = xgboost.QuantileDMatrix(rows, max_bin=BINS, nthread=threads, ref=bins)
        return cls(data, starts)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each program, shape (n,)."""
        return np.diff(self.starts)

    def to_rows(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the value of its program for each row."""
        return values if bool((self.sizes == 1).all()) else np.repeat(values, self.sizes)

    def sums(self, margins: NDArray[np.float32]) -> Floats:
        """Return the score of each program, given what trees say of each row."""
        return np.asarray(segmented(np.add, margins.astype(np.float64), self.starts), np.float64)

    def scores(self, booster: Any) -> Floats:
        """Return the score of each program by a booster that is trained on this matrix."""
        # XGBoost keeps what it predicted for a matrix, and adds one tree to it in each round.
        return self.sums(booster.predict(self.data, output_margin=True, training=True))

    def boost(
        self,
        gradients: ObjectiveGradients,
        settings: dict[str, Any],
        rounds: int,
        *,
        stopping: EarlyStopping | None = None,
        on_figure: OnFigure | None = None,
    ) -> tuple[Any, list[float]]:
        """Train a booster (:meth:`TrainingMatrix.boost`)."""
        boosting = Boosting(self, gradients, settings)
        history: list[float] = []
        for _ in range(rounds):
            boosting.step()
            if stopping is not None:
                history.append(stopping.accuracy(boosting.scores()))
            if on_figure is not None:
                on_figure(history[-1] if history else None)
            if stopping is not None and stopping.stops(history):
                break
        return boosting.booster, history


class Boosting:
    """One booster, a round at a time.

    Parameters
    ----------
    matrix : Matrix
        The programs that are learnt from.
    gradients : ObjectiveGradients
        Their loss.
    settings : dict
        Of :func:`parameters`.
    """

    def __init__(
        self, matrix: Matrix, gradients: ObjectiveGradients, settings: dict[str, Any]
    ) -> None:
        self._matrix = matrix
        self._gradients = gradients
        self._round = 0
        #: Of the trees that there are, once they have been asked for.
        self._scores: Floats | None = None
        xgboost = import_xgboost()
        try:
            self.booster = xgboost.Booster(settings | {"base_score": gradients.base}, [matrix.data])
        except xgboost.core.XGBoostError as error:
            raise _refused(error) from None

    def scores(self) -> Floats:
        """Return the scores of all programs, also of those that count 0."""
        if self._scores is None:
            self._scores = self._matrix.scores(self.booster)
        return self._scores

    def step(self) -> None:
        """Add one tree.

        Raises
        ------
        UsageError
            XGBoost refuses a parameter.
        """
        xgboost, matrix = import_xgboost(), self._matrix
        try:
            gradient, hessian = self._gradients.derivatives(self.scores())
            self.booster.boost(
                matrix.data,
                self._round,
                grad=matrix.to_rows(gradient),
                hess=matrix.to_rows(hessian),
            )
        except xgboost.core.XGBoostError as error:
            raise _refused(error) from None
        self._round += 1
        self._scores = None


def _summable(values: Floats) -> NDArray[np.float32]:
    """Return values rounded to multiples of a number from 2^-24 to 2^-23 of the largest.

    XGBoost adds them in double precision, in an order that depends on its threads. Sums of up to
    2^29 such multiples are exact, and so the same in every order.
    """
    largest = float(np.abs(values).max(initial=0))
    if not 0 < largest < np.inf:
        return values.astype(np.float32)
    unit = np.ldexp(1.0, int(np.frexp(largest)[1]) - 24)
    return np.asarray(np.rint(values / unit) * unit, np.float32)


def _refused(error: Exception) -> UsageError:
    """Return XGBoost's complaint, which has a stack trace, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return UsageError(f"XGBoost refuses the recipe: {lines[0] if lines else error}")
