"""Gradient-boosted trees, as arrays that numpy alone evaluates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import FormatError
from ..labels import Codes, Floats
from ..scikit_learn import import_sklearn
from .preprocessing import numbers

ROUNDS, DEPTH, RATE = 60, 3, 0.1

_NEVER = -1e3
_LEAF = -1


@dataclass(frozen=True, slots=True, eq=False)
class Boosted:
    """Trees that add up to three scores.

    Parameters
    ----------
    start : ndarray, shape (3,), float64
        Scores before the first tree.
    code : ndarray, shape (t,), int64
        Score to which a tree adds.
    root : ndarray, shape (t,), int64
        First node of each tree.
    feature, left, right : ndarray, shape (m,), int64
        For each node the compared column, -1 for a leaf; the following nodes.
    threshold, value : ndarray, shape (m,), float64
        Rows go left if the column, as float32, is at most the threshold; value of the node as a
        leaf.
    columns : int
        Columns of the inputs.
    """

    start: Floats
    code: npt.NDArray[np.int64]
    root: npt.NDArray[np.int64]
    feature: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    threshold: Floats
    value: Floats
    columns: int

    def scores(self, values: Floats) -> Floats:
        """Return the scores of prepared inputs.

        Parameters
        ----------
        values : ndarray, shape (n, k), float64

        Returns
        -------
        ndarray, shape (n, 3), float64
        """
        return np.asarray(self.start + self.contributions(values).sum(axis=2))

    def contributions(self, values: Floats) -> Floats:
        """Return the contribution of each column to each score.

        Along the path of a row each comparison changes the value of the node; the change is the
        compared column's (A. Saabas, 2014). A tree's first value belongs to no column: it is the
        last entry.

        Returns
        -------
        ndarray, shape (n, 3, k + 1), float64
        """
        rows = np.arange(len(values))
        single = values.astype(np.float32).astype(np.float64)
        found = np.zeros((len(values), 3, self.columns + 1))
        for code, root in zip(self.code, self.root, strict=True):
            node = np.full(len(values), root)
            found[:, code, -1] += self.value[root]
            inside = self.feature[node] != _LEAF
            while inside.any():
                at, column = node[inside], self.feature[node[inside]]
                low = single[rows[inside], column] <= self.threshold[at]
                node[inside] = np.where(low, self.left[at], self.right[at])
                change = self.value[node[inside]] - self.value[at]
                np.add.at(found, (rows[inside], code, column), change)
                inside = self.feature[node] != _LEAF
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the trees as JSON values."""
        names = ("start", "code", "root", "feature", "left", "right", "threshold", "value")
        return {name: getattr(self, name).tolist() for name in names}

    @classmethod
    def from_json(cls, values: Any, columns: int) -> Boosted:
        """Return the trees of :meth:`to_json`.

        Raises
        ------
        FormatError
            The values are no trees, or nodes are out of order (a walk would not end).
        """
        feature = numbers(values["feature"], (None,)).astype(np.int64)
        m = len(feature)
        whole = {name: numbers(values[name], (m,)).astype(np.int64) for name in ("left", "right")}
        root = numbers(values["root"], (None,)).astype(np.int64)
        code = numbers(values["code"], (len(root),)).astype(np.int64)
        inner = feature != _LEAF
        after = np.arange(m)[inner]
        sound = (
            np.isin(code, range(3)).all()
            and ((root >= 0) & (root < m)).all()
            and ((feature >= _LEAF) & (feature < columns)).all()
            and all((one[inner] > after).all() and (one[inner] < m).all() for one in whole.values())
        )
        if not sound:
            raise FormatError("the model's trees are damaged")
        return cls(
            numbers(values["start"], (3,)),
            code,
            root,
            feature,
            whole["left"],
            whole["right"],
            numbers(values["threshold"], (m,)),
            numbers(values["value"], (m,)),
            columns,
        )


def fit(values: Floats, truth: Codes, weights: Floats) -> Boosted:
    """Return trees trained on prepared rows with at least two classes, by scikit-learn."""
    return extract(learner().fit(values, truth, sample_weight=weights), values.shape[1])


def learner() -> Any:
    """Return the untrained learner of scikit-learn."""
    return import_sklearn("sklearn.ensemble").GradientBoostingClassifier(
        n_estimators=ROUNDS,
        learning_rate=RATE,
        max_depth=DEPTH,
        subsample=0.7,
        max_features="sqrt",
        min_samples_leaf=10,
        random_state=0,
    )


def extract(fitted: Any, columns: int) -> Boosted:
    """Return the arrays of a trained ``GradientBoostingClassifier`` whose classes are codes."""
    classes = [int(code) for code in fitted.classes_]
    prior = np.asarray(fitted.init_.class_prior_, np.float64)
    start = np.full(3, _NEVER)
    parts: dict[str, list[Any]] = {name: [] for name in _TREE}
    code, root, size = [], [], 0
    # With two classes one score is trained, the log odds of the second; the first stays at 0.
    if len(classes) == 2:
        start[classes] = 0.0, np.log(prior[1] / prior[0])
        classes = classes[1:]
    else:
        # scikit-learn's start for several classes: logarithms of the shares, centred.
        start[classes] = np.log(prior) - np.log(prior).mean()
    for trees in fitted.estimators_:
        for which, one in zip(classes, trees, strict=True):
            tree = one.tree_
            leaf = tree.children_left < 0
            parts["feature"].append(np.where(leaf, _LEAF, tree.feature))
            parts["left"].append(np.where(leaf, 0, tree.children_left + size))
            parts["right"].append(np.where(leaf, 0, tree.children_right + size))
            parts["threshold"].append(np.where(leaf, 0.0, tree.threshold))
            parts["value"].append(fitted.learning_rate * _node_values(tree))
            code.append(which)
            root.append(size)
            size += tree.node_count
    joined = {name: np.concatenate(values) for name, values in parts.items()}
    whole = {n: v.astype(np.int64) for n, v in joined.items() if n in ("feature", "left", "right")}
    return Boosted(
        start,
        np.array(code),
        np.array(root),
        threshold=joined["threshold"],
        value=joined["value"],
        columns=columns,
        **whole,
    )


_TREE = ("feature", "left", "right", "threshold", "value")


def _node_values(tree: Any) -> Floats:
    """Return the values of nodes: a leaf's own, and above it the mean by training rows.

    Boosting replaces the values of leaves alone (by a Newton step), so those above are stale.
    """
    value: Floats = tree.value[:, 0, 0].astype(np.float64)
    weight = tree.weighted_n_node_samples
    for node in range(tree.node_count - 1, -1, -1):
        left, right = tree.children_left[node], tree.children_right[node]
        if left >= 0:
            below = weight[left] + weight[right]
            value[node] = (weight[left] * value[left] + weight[right] * value[right]) / below
    return value
