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

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ._xgboost import import_xgboost, interrupt_later
from .base import Floats, Objective
from .recipe import Recipe
from .row_models import segmented

#: Bins of each column; XGBoost's own choice.
BINS = 256

#: Rows that the bounds of the bins are taken from: 64 for each bin.
_SAMPLE_ROWS = 64 * BINS


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
    def of(
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


class Boosting:
    """One booster, and the loss that it descends.

    Parameters
    ----------
    matrix : Matrix
        The programs that are learnt from.
    objective : Objective
        Their loss.
    settings : dict
        Of :func:`parameters`.
    hessian_power : float
        The Hessian of a program with k rows is multiplied by k to this power. 1 is stable, 0 is
        what TVM and Ansor have.
    counts : ndarray of float64, shape (n,), optional
        How often each program counts: of bootstrap samples, or 0 for those that are held out.
    """

    def __init__(
        self,
        matrix: Matrix,
        objective: Objective,
        settings: dict[str, Any],
        *,
        hessian_power: float = 1.0,
        counts: Floats | None = None,
    ) -> None:
        self._matrix = matrix
        self._objective = objective
        sizes = matrix.sizes
        self._curvature = sizes.astype(np.float64) ** hessian_power
        self._counts = np.ones(len(sizes)) if counts is None else counts
        self._round = 0
        xgboost = import_xgboost()
        base = objective.base(sizes)
        try:
            self.booster = xgboost.Booster(settings | {"base_score": base}, [matrix.data])
        except xgboost.core.XGBoostError as error:
            raise _refused(error) from None

    def scores(self) -> Floats:
        """Return the scores of all programs, also of those that count 0."""
        # XGBoost keeps what it predicted for a matrix, and adds one tree to it in each round.
        margins = self.booster.predict(self._matrix.data, output_margin=True, training=True)
        return self._matrix.sums(margins)

    def step(self) -> None:
        """Add one tree.

        Raises
        ------
        UsageError
            XGBoost refuses a parameter.
        """
        xgboost, matrix = import_xgboost(), self._matrix
        try:
            gradient, hessian = self._objective.derivatives(self.scores())
            self.booster.boost(
                matrix.data,
                self._round,
                grad=matrix.to_rows(_summable(gradient * self._counts)),
                hess=matrix.to_rows(_summable(hessian * self._counts * self._curvature)),
            )
        except xgboost.core.XGBoostError as error:
            raise _refused(error) from None
        self._round += 1


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
