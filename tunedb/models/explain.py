"""Feature importance of a model, and the contributions of columns to the score of a program.

*Gain* is the reduction of the training loss by the splits on a column; it is biased towards
columns with many values. A *contribution* is a column's Shapley value in a prediction (TreeSHAP;
Lundberg et al., Nature Machine Intelligence 2020): the contributions of a row and its bias, the
mean prediction of the trees, add up to the prediction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ._xgboost import import_xgboost, threads_to_use
from .aggregation import segmented
from .base import Floats

if TYPE_CHECKING:
    from .dataset import Dataset
    from .model import Model

#: Programs whose contributions are averaged: TreeSHAP walks every path of every tree.
SAMPLE = 1_000

#: Beginning of a column's name → its group, for the 164 columns of Ansor (docs/features.md).
_PREFIXES = (
    (("float_", "int_", "bool_op", "select_op"), "operations"),
    (("vec_",), "vectorized loops"),
    (("unroll_", "auto_unroll_"), "unrolled loops"),
    (("parallel_",), "parallel loops"),
    (("is_gpu", "blockIdx_", "threadIdx_", "vthread_"), "threads"),
    (("arith_intensity_",), "arithmetic intensity"),
    (("alloc_",), "allocation"),
    (("outer_prod", "num_loops"), "loops around"),
)
#: A buffer of a statement; buffers have an order, so each is a group.
_BUFFER = re.compile(r"B\d+")


@dataclass(frozen=True, slots=True)
class Importance:
    """The importance of a column, or of a group of columns.

    Parameters
    ----------
    name : str
        Name of the column or group.
    group : str
        Group of the column (:func:`group_of`).
    gain : float
        Share of the total gain of all splits, in [0, 1].
    splits : int
        Number of splits in all trees.
    shap : float
        Mean absolute contribution to the scores of programs.
    """

    name: str
    group: str
    gain: float
    splits: int
    shap: float


@dataclass(frozen=True, slots=True, eq=False)
class Contributions:
    """The contribution of each column to the score of a program.

    Parameters
    ----------
    columns : tuple of str
        Names of the columns of the trees.
    rows : ndarray of float64, shape (m, columns)
        Contributions of each row of the trees: a statement, or the whole program if the row model
        aggregates.
    values : ndarray of float32, shape (m, columns)
        Feature values of these rows.
    bias : float
        Sum of the biases of all rows.
    score : float
        Score of the program; contributions and bias add up to it, up to float32 rounding.
    """

    columns: tuple[str, ...]
    rows: Floats
    values: NDArray[np.float32]
    bias: float
    score: float

    @property
    def by_column(self) -> Floats:
        """Contribution of each column over all rows, shape (columns,)."""
        sums: Floats = self.rows.sum(axis=0)
        return sums

    @property
    def by_row(self) -> Floats:
        """Contribution of each row, without its bias, shape (m,)."""
        sums: Floats = self.rows.sum(axis=1)
        return sums


def group_of(column: str) -> str:
    """Return the group of a column.

    Ansor's columns have the groups of docs/features.md. Other names have the form ``group.field``;
    a number at the end of the group counts its members: ``spatial2.outer`` belongs to ``spatial``,
    but ``B2.lines`` to ``B2``, because buffers have an order.
    """
    for prefixes, group in _PREFIXES:
        if column.startswith(prefixes):
            return group
    group, _, _ = column.partition(".")
    return group if _BUFFER.fullmatch(group) else group.rstrip("0123456789") or group


def drawn(examples: Dataset, most: int = SAMPLE, seed: int = 0) -> Dataset:
    """Return at most `most` programs, drawn without replacement."""
    if len(examples) <= most:
        return examples
    return examples.take(np.random.default_rng(seed).choice(len(examples), most, replace=False))


def importance(model: Model, examples: Dataset) -> list[Importance]:
    """Return the importance of each column that a model uses, the most important first.

    Parameters
    ----------
    model : Model
        Model to explain.
    examples : Dataset
        Programs whose contributions are averaged, with rows: a sample (:func:`drawn`) of the
        training programs.

    Returns
    -------
    list of Importance
        Sorted by mean absolute contribution.
    """
    rows, starts = model.row_model.rows(examples.rows, examples.starts)
    row_contributions, _ = _contributions(model, rows)
    shap = np.abs(segmented(np.add, row_contributions, starts)).mean(axis=0)
    gain, splits = _splits(model, row_contributions.shape[1])
    total = gain.sum() or 1.0
    names = model.tree_columns
    order = np.lexsort((np.arange(len(names)), -gain, -shap))
    return [
        Importance(
            name=names[i],
            group=group_of(names[i]),
            gain=float(gain[i] / total),
            splits=int(splits[i]),
            shap=float(shap[i]),
        )
        for i in order
        if splits[i]
    ]


def gains(model: Model) -> list[tuple[str, float]]:
    """Return the columns of a model with their shares of the gain of all splits, largest first."""
    gain, _ = _splits(model, len(model.tree_columns))
    shares = (gain / (gain.sum() or 1.0)).tolist()
    named = zip(model.tree_columns, shares, strict=True)
    return sorted(named, key=lambda column: (-column[1], column[0]))


def by_group(columns: Iterable[Importance]) -> list[Importance]:
    """Return the importance of groups, summed over their columns, largest first.

    The sum of mean absolute contributions is an upper bound of the group's mean absolute
    contribution: contributions of correlated columns may cancel out.
    """
    groups: dict[str, list[Importance]] = {}
    for column in columns:
        groups.setdefault(column.group, []).append(column)
    summed = [
        Importance(
            name=group,
            group=group,
            gain=sum(column.gain for column in members),
            splits=sum(column.splits for column in members),
            shap=sum(column.shap for column in members),
        )
        for group, members in groups.items()
    ]
    return sorted(summed, key=lambda column: (-column.shap, -column.gain, column.name))


def contributions(model: Model, rows: NDArray[np.float32]) -> Contributions:
    """Return the contribution of each column to the score of a program.

    Parameters
    ----------
    model : Model
        Model to explain.
    rows : ndarray of float32, shape (m, columns)
        Rows of the program in the model's feature set.
    """
    starts = np.array([0, len(rows)], np.int64)
    score = float(model.scores(rows, starts)[0])
    seen, _ = model.row_model.rows(rows, starts)
    row_contributions, bias = _contributions(model, seen)
    return Contributions(model.tree_columns, row_contributions, seen, float(bias.sum()), score)


def _contributions(model: Model, rows: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Return contributions and bias of each row, averaged over the boosters."""
    xgboost = import_xgboost()
    n_columns = len(model.tree_columns)
    total = np.zeros((len(rows), n_columns + 1))
    if len(rows):
        matrix = xgboost.DMatrix(rows, nthread=threads_to_use())
        for booster in model.boosters:
            total += booster.predict(matrix, pred_contribs=True)
    total /= len(model.boosters)
    return total[:, :-1], total[:, -1]


def _splits(model: Model, n_columns: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return the gain and the number of splits of each column, over all boosters."""
    gain = np.zeros(n_columns)
    splits = np.zeros(n_columns, np.int64)
    for booster in model.boosters:
        for kind, sums in (("total_gain", gain), ("weight", splits)):
            for name, value in booster.get_score(importance_type=kind).items():
                sums[_number_of(booster, name)] += int(value) if kind == "weight" else value
    return gain, splits


def _number_of(booster: Any, name: str) -> int:
    names: Sequence[str] | None = booster.feature_names
    return int(name[1:]) if names is None else names.index(name)
