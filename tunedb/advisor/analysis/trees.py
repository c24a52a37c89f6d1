"""A decision tree of a few questions: easy to read, not accurate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..observations import LABELS, Inputs, Label, Labels
from ..scikit_learn import import_sklearn

#: Largest number of questions from the root to a leaf.
DEEPEST = 4

#: Smallest share of the launches in a leaf: fewer are chance.
_LEAST_LEAF = 0.005


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A question or, without `yes` and `no`, a leaf.

    Parameters
    ----------
    counts : tuple of int
        Launches of each label, in the order of :data:`tunedb.advisor.observations.LABELS`.
    label : Label
        The most frequent label, with equal weights of all labels.
    name : str or None
        The compared input.
    threshold : float
        The answer is yes for values up to it.
    yes, no : TreeNode or None
        The nodes behind the answers.
    unknown : bool or None
        The answer for a launch without the input; None if all have it.
    """

    counts: tuple[int, ...]
    label: Label
    name: str | None = None
    threshold: float = float("nan")
    yes: TreeNode | None = None
    no: TreeNode | None = None
    unknown: bool | None = None

    @property
    def total(self) -> int:
        """Number of launches."""
        return sum(self.counts)

    def leaves(self) -> Iterator[TreeNode]:
        """Yield the leaves from the first to the last answer."""
        if self.yes is None or self.no is None:
            yield self
        else:
            yield from self.yes.leaves()
            yield from self.no.leaves()

    def depth(self) -> int:
        """Return the number of questions to the farthest leaf."""
        if self.yes is None or self.no is None:
            return 0
        return 1 + max(self.yes.depth(), self.no.depth())


def grow(inputs: Inputs, labels: Labels, *, deepest: int = DEEPEST) -> TreeNode | None:
    """Grow a tree on the launches that have a label.

    Classes have equal weights: otherwise "no change" would be the only answer of a small tree. A
    leaf has at least 0.5 % of the launches. A launch without the compared input takes the answer
    of those launches in training.

    Parameters
    ----------
    inputs : Inputs
        The launches as numbers.
    labels : sequence of Label or None
        One for each launch.
    deepest : int
        Largest number of questions to a leaf.

    Returns
    -------
    TreeNode or None
        The root; None if the launches have fewer than two different labels, or no inputs.

    Raises
    ------
    PluginError
        scikit-learn is not installed.
    """
    rows = [index for index, label in enumerate(labels) if label is not None]
    classes = [LABELS.index(label) for label in labels if label is not None]
    values = np.where(np.isfinite(inputs.values), inputs.values, np.nan)[rows]
    used = np.flatnonzero(~np.isnan(values).all(axis=0)) if rows else np.zeros(0, np.int64)
    if len(set(classes)) < 2 or not len(used):
        return None
    leaf = max(1, round(len(rows) * _LEAST_LEAF))
    # scikit-learn compares float32: beyond its range a count would be infinite.
    values = np.clip(values[:, used], -3e38, 3e38)
    tree = import_sklearn("sklearn.tree").DecisionTreeClassifier(
        max_depth=deepest, min_samples_leaf=leaf, class_weight="balanced", random_state=0
    )
    tree.fit(values, classes)
    names = [inputs.names[column] for column in used]
    missing = np.asarray(np.isnan(values).any(axis=0))
    grown = _GrownTree(tree.tree_, values, np.array(classes), names, missing)
    return _prune(_node(grown, 0, np.arange(len(rows))))


@dataclass(frozen=True, slots=True, eq=False)
class _GrownTree:
    """A tree of scikit-learn with its training data."""

    tree: Any
    values: npt.NDArray[np.float64]
    classes: npt.NDArray[np.int64]
    names: Sequence[str]
    missing: npt.NDArray[np.bool_]


def _node(grown: _GrownTree, number: int, rows: npt.NDArray[np.int64]) -> TreeNode:
    """Return a node of scikit-learn's tree with the counts of its labels."""
    tree, totals = grown.tree, np.bincount(grown.classes, minlength=len(LABELS))
    here = np.bincount(grown.classes[rows], minlength=len(LABELS))
    label = LABELS[int((here / np.maximum(totals, 1)).argmax())]
    counts = tuple(map(int, here))
    left, right = int(tree.children_left[number]), int(tree.children_right[number])
    if left < 0:
        return TreeNode(counts, label)
    column, threshold = int(tree.feature[number]), float(tree.threshold[number])
    unknown = bool(tree.missing_go_to_left[number]) if grown.missing[column] else None
    values = grown.values[rows, column]
    # Compared as scikit-learn does, or a launch at a threshold could end in another leaf.
    is_yes = np.where(np.isnan(values), bool(unknown), values.astype(np.float32) <= threshold)
    yes, no = _node(grown, left, rows[is_yes]), _node(grown, right, rows[~is_yes])
    return TreeNode(counts, label, grown.names[column], threshold, yes, no, unknown)


def _prune(node: TreeNode) -> TreeNode:
    """Remove questions whose answers all lead to the same label."""
    if node.yes is None or node.no is None:
        return node
    yes, no = _prune(node.yes), _prune(node.no)
    if yes.yes is None and no.yes is None and yes.label == no.label:
        return TreeNode(node.counts, node.label)
    return TreeNode(node.counts, node.label, node.name, node.threshold, yes, no, node.unknown)
