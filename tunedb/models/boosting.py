"""Gradient boosting of the scores of programs with XGBoost, one round at a time.

The loss is a function of programs' scores, but trees score rows. Each round therefore sums the
predictions for the rows of each program, computes the derivatives of the loss by these sums, and
gives them to each row. XGBoost then takes a Newton step in each leaf with the diagonal of the
Hessian. If k rows of a program fall into one leaf, its score moves k times as far as each row, and
the curvature along that step is k² times that of the score, of which a diagonal of h for each row
counts only k: boosting diverges for k · eta ≥ 2. With k · h for each row the step is exact in that
case, and shorter than exact if the rows fall into several leaves, so it is stable for every k.
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

# ---- Early stopping, by the accuracy on held-out workloads ---------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class EarlyStopping:
    """Early stopping by the pairwise accuracy on held-out workloads.

    Parameters
    ----------
    pairs : Pairs
        Pairs of held-out programs.
    unseen : ndarray of bool, shape (n,)
        True for each program of the pairs.
    patience : int
        Patience of the recipe, above 0.
    """

    pairs: Pairs
    unseen: NDArray[np.bool_]
    patience: int

    def accuracy(self, scores: Floats) -> float:
        """Return the pairwise accuracy on held-out workloads, given the scores of all programs."""
        return self.pairs.accuracy(scores[self.unseen])

    def stops(self, history: Sequence[float]) -> bool:
        """Return whether the best round is at least `patience` rounds old."""
        return len(history) - best_round(history, self.patience) >= self.patience


def best_round(history: Sequence[float], patience: int) -> int:
    """Return the round, from 1, with the best moving average of the accuracy.

    The average is over the last `patience` rounds, or over all rounds so far: the accuracy of a
    single round may exceed its neighbours' by chance.

    Parameters
    ----------
    history : sequence of float
        Accuracy after each round; not empty.
    patience : int
        Patience of the recipe, above 0.
    """
    sums = np.concatenate((np.zeros(1), np.cumsum(history)))
    rounds = np.arange(1, len(sums))
    spans = np.minimum(rounds, patience)
    # Rounded, because the first of equal means wins.
    means = np.round((sums[rounds] - sums[rounds - spans]) / spans, 12)
    return int(np.argmax(means)) + 1


# ---- Boosting ------------------------------------------------------------------------------------

#: Bins of each column; XGBoost's default.
BINS = 256

#: Rows sampled for the bounds of the bins: 64 for each bin.
_SAMPLE_ROWS = 64 * BINS

#: Callback after each round; takes the accuracy on held-out workloads, or None without any.
OnFigure = Callable[[float | None], None]


class TrainingMatrix(Protocol):
    """The rows of the training programs, in memory, on disk or on a cluster."""

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
            Gradients of the loss.
        settings : dict
            Parameters of XGBoost (:func:`parameters`).
        rounds : int
            Maximum number of trees.
        stopping : EarlyStopping, optional
            Early stopping.
        on_figure : callable, optional
            Progress callback; not called for training on a cluster.

        Returns
        -------
        tuple of xgboost.Booster and list of float
            The booster, and the held-out accuracy after each round (empty without `stopping`).

        Raises
        ------
        UsageError
            XGBoost rejects a parameter.
        """


def sample(count: int, seed: int) -> NDArray[np.int64]:
    """Return the numbers of the rows, of `count`, sampled for the bounds of the bins, ascending."""
    if count <= _SAMPLE_ROWS:
        return np.arange(count)
    drawn = np.random.default_rng(seed).choice(count, _SAMPLE_ROWS, replace=False)
    return np.sort(drawn.astype(np.int64))


def parameters(recipe: Recipe, *, seed: int, threads: int, device: str = "cpu") -> dict[str, Any]:
    """Return the parameters of XGBoost except ``base_score``.

    ``tree_method`` is fixed to ``hist``, because other methods give other models. The objective
    only makes the prediction the plain sum over trees; gradients come from the recipe's loss.

    Parameters
    ----------
    recipe : Recipe
        Recipe of the model.
    seed : int
        Seed of the samples of columns and rows.
    threads : int
        Value of ``nthread``.
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
    """Raise UsageError if XGBoost rejects a parameter; checked on a matrix of one row."""
    xgboost = import_xgboost()
    matrix = xgboost.DMatrix(np.zeros((1, 1), np.float32), nthread=1)
    try:
        booster = xgboost.Booster(settings | {"nthread": 1}, [matrix])
        booster.boost(matrix, 0, grad=np.zeros(1, np.float32), hess=np.ones(1, np.float32))
    except xgboost.core.XGBoostError as error:
        raise _rejection(error) from None


class ObjectiveGradients:
    """The gradients of a loss, with the multiplicity of each program.

    Parameters
    ----------
    objective : Objective
        Loss of the programs.
    sizes : ndarray of int64, shape (n,)
        Rows of each program.
    hessian_power : float
        The Hessian of a program with k rows is multiplied by k to this power. 1 is stable; TVM and
        Ansor use 0.
    counts : ndarray of float64, shape (n,), optional
        Multiplicity of each program: its count in a bootstrap sample, or 0 if held out.
    """

    def __init__(
        self,
        objective: Objective,
        sizes: NDArray[np.int64],
        *,
        hessian_power: float = 1.0,
        counts: Floats | None = None,
    ) -> None:
        #: Base score of each row.
        self.base: float = objective.base(sizes)
        self._objective = objective
        self._curvature = sizes.astype(np.float64) ** hessian_power
        self._counts = np.ones(len(sizes)) if counts is None else counts

    def derivatives(self, scores: Floats) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the gradient and Hessian for each row of a program, each of shape (n,)."""
        gradient, hessian = self._objective.derivatives(scores)
        return (
            _summable(gradient * self._counts),
            _summable(hessian * self._counts * self._curvature),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Binned rows in XGBoost's memory, or paged from disk.

    Parameters
    ----------
    data : xgboost.DMatrix
        Matrix of all rows.
    starts : ndarray of int64, shape (n + 1,)
        The rows of program i are those from ``starts[i]`` to ``starts[i + 1]``.
    """

    data: Any
    starts: NDArray[np.int64]

    @classmethod
    def from_rows(
        cls, rows: NDArray[np.float32], starts: NDArray[np.int64], *, threads: int, seed: int
    ) -> Matrix:
        """Return the matrix of rows in memory.

        The bounds of the bins are quantiles of a :func:`sample`: quantiles of all rows would take
        longer than the binning itself.
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
        """Return the score of each program, given the prediction for each row."""
        return np.asarray(segmented(np.add, margins.astype(np.float64), self.starts), np.float64)

    def scores(self, booster: Any) -> Floats:
        """Return the score of each program by a booster trained on this matrix."""
        # XGBoost caches the predictions for a matrix, and adds one tree to them in each round.
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
    """The training of one booster, a round at a time.

    Parameters
    ----------
    matrix : Matrix
        Rows of the training programs.
    gradients : ObjectiveGradients
        Gradients of the loss.
    settings : dict
        Parameters of XGBoost (:func:`parameters`).
    """

    def __init__(
        self, matrix: Matrix, gradients: ObjectiveGradients, settings: dict[str, Any]
    ) -> None:
        self._matrix = matrix
        self._gradients = gradients
        self._round = 0
        #: Scores by all trees so far, once computed.
        self._scores: Floats | None = None
        xgboost = import_xgboost()
        try:
            self.booster: Any = xgboost.Booster(
                settings | {"base_score": gradients.base}, [matrix.data]
            )
        except xgboost.core.XGBoostError as error:
            raise _rejection(error) from None

    def scores(self) -> Floats:
        """Return the scores of all programs, held-out ones too."""
        if self._scores is None:
            self._scores = self._matrix.scores(self.booster)
        return self._scores

    def step(self) -> None:
        """Add one tree.

        Raises
        ------
        UsageError
            XGBoost rejects a parameter.
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
            raise _rejection(error) from None
        self._round += 1
        self._scores = None


def _summable(values: Floats) -> NDArray[np.float32]:
    """Return values rounded to multiples of a number from 2^-24 to 2^-23 of the largest.

    XGBoost sums them in double precision, in an order that depends on its threads. Sums of up to
    2^29 such multiples are exact, and so independent of the order.
    """
    largest = float(np.abs(values).max(initial=0))
    if not 0 < largest < np.inf:
        return values.astype(np.float32)
    unit = np.ldexp(1.0, int(np.frexp(largest)[1]) - 24)
    return np.asarray(np.rint(values / unit) * unit, np.float32)


def _rejection(error: Exception) -> UsageError:
    """Return the first line of XGBoost's error, which carries a stack trace, as a UsageError."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return UsageError(f"XGBoost rejects the recipe: {lines[0] if lines else error}")
