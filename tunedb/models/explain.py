"""Which columns a model looks at, and what each adds to the score of one program.

*Gain* is what the splits by a column took off the loss while the model was trained; it sees only
the training set, and prefers columns with many values. A *contribution* is a column's Shapley
value in one prediction (TreeSHAP; Lundberg et al., Nature Machine Intelligence 2020): those of a
row and its bias, which is the mean prediction of the trees, add up to what the trees say of it.
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
    """How much a model looks at a column, or at a group of them.

    Parameters
    ----------
    name : str
        The column or group.
    group : str
        The group that the column belongs to (:func:`group_of`).
    gain : float
        Share of what all splits took off the loss, in [0, 1].
    splits : int
        How many splits there are, in all trees.
    shap : float
        Mean over programs of the absolute contribution to their scores.
    """

    name: str
    group: str
    gain: float
    splits: int
    shap: float


@dataclass(frozen=True, slots=True, eq=False)
class Contributions:
    """What each column adds to a program's score.

    Parameters
    ----------
    columns : tuple of str
        Names of what the trees see.
    rows : ndarray of float64, shape (m, columns)
        Contributions of each row that the trees see: a statement, or the whole program where the
        row model makes one row of all.
    values : ndarray of float32, shape (m, columns)
        What the trees saw.
    bias : float
        What the trees say where they know nothing, for all rows together.
    score : float
        The program's score; contributions and bias add up to it but for float32's rounding.
    """

    columns: tuple[str, ...]
    rows: Floats
    values: NDArray[np.float32]
    bias: float
    score: float

    @property
    def by_column(self) -> Floats:
        """Contribution of each column over all rows, shape (columns,)."""
        found: Floats = self.rows.sum(axis=0)
        return found

    @property
    def by_row(self) -> Floats:
        """Contribution of each row without its bias, shape (m,)."""
        found: Floats = self.rows.sum(axis=1)
        return found


def group_of(column: str) -> str:
    """Return the group that a column belongs to.

    Ansor's columns have the groups of docs/features.md. Others are named ``group.what``; numbers
    at the end of the group count its members: ``spatial2.outer`` belongs to ``spatial``, but
    ``B2.lines`` to ``B2``, because buffers have an order.
    """
    for prefixes, group in _PREFIXES:
        if column.startswith(prefixes):
            return group
    group, _, _ = column.partition(".")
    return group if _BUFFER.fullmatch(group) else group.rstrip("0123456789") or group


def drawn(examples: Dataset, most: int = SAMPLE, seed: int = 0) -> Dataset:
    """Return some programs, drawn without replacement; all where there are no more than `most`."""
    if len(examples) <= most:
        return examples
    return examples.take(np.random.default_rng(seed).choice(len(examples), most, replace=False))


def importance(model: Model, examples: Dataset) -> list[Importance]:
    """Return how much a model looks at each column that it uses, the most important one first.

    Parameters
    ----------
    model : Model
        What is asked.
    examples : Dataset
        Programs whose contributions are averaged, with their rows: some of those that the model
        was trained on (:func:`drawn`).

    Returns
    -------
    list of Importance
        By mean absolute contribution.
    """
    rows, starts = model.row_model.rows(examples.rows, examples.starts)
    found, _ = _contributions(model, rows)
    shap = np.abs(segmented(np.add, found, starts)).mean(axis=0)
    gain, splits = _splits(model, found.shape[1])
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


def by_group(columns: Iterable[Importance]) -> list[Importance]:
    """Return the importance of groups: the sums over their columns, largest first.

    The sum of mean absolute contributions is an upper bound of the group's own: contributions of
    columns that say the same may cancel out.
    """
    groups: dict[str, list[Importance]] = {}
    for column in columns:
        groups.setdefault(column.group, []).append(column)
    summed = [
        Importance(
            name=group,
            group=group,
            gain=sum(one.gain for one in members),
            splits=sum(one.splits for one in members),
            shap=sum(one.shap for one in members),
        )
        for group, members in groups.items()
    ]
    return sorted(summed, key=lambda one: (-one.shap, -one.gain, one.name))


def contributions(model: Model, rows: NDArray[np.float32]) -> Contributions:
    """Return what each column adds to the score of a program.

    Parameters
    ----------
    model : Model
        What is asked.
    rows : ndarray of float32, shape (m, columns)
        The program's rows of the model's feature set.
    """
    starts = np.array([0, len(rows)], np.int64)
    score = float(model.scores(rows, starts)[0])
    seen, _ = model.row_model.rows(rows, starts)
    found, bias = _contributions(model, seen)
    return Contributions(model.tree_columns, found, seen, float(bias.sum()), score)


def _contributions(model: Model, rows: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Return the contributions of each row, mean over the members, and the biases of the rows."""
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
    """Return the gain and the number of splits of each column, over all members."""
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
