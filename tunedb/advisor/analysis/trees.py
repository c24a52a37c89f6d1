"""A decision tree of a few questions: easy to read, and no better than that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..observations import LABELS, Inputs, Label, Labels
from .clusters import sklearn

#: Questions from the root to a leaf, at most.
DEEPEST = 4

#: Least share of the launches in a leaf: fewer are chance.
_LEAST_LEAF = 0.005


@dataclass(frozen=True, slots=True)
class Node:
    """A question or, without `yes` and `no`, a leaf.

    Parameters
    ----------
    counts : tuple of int
        Launches of each label, in the order of :data:`tunedb.advisor.observations.LABELS`.
    label : Label
        The most frequent one, where a launch weighs the less the more there are of its label in
        all.
    name : str or None
        Input that is asked for.
    threshold : float
        The question: is it at most this?
    yes, no : Node or None
        Where the answers lead.
    unknown : bool or None
        Which answer a launch takes that lacks the input; None where none lacks it.
    """

    counts: tuple[int, ...]
    label: Label
    name: str | None = None
    threshold: float = float("nan")
    yes: Node | None = None
    no: Node | None = None
    unknown: bool | None = None

    @property
    def total(self) -> int:
        """How many launches are here."""
        return sum(self.counts)

    def leaves(self) -> Iterator[Node]:
        """Yield the leaves from the first to the last answer."""
        if self.yes is None or self.no is None:
            yield self
        else:
            yield from self.yes.leaves()
            yield from self.no.leaves()

    def depth(self) -> int:
        """Return how many questions lead to the farthest leaf."""
        if self.yes is None or self.no is None:
            return 0
        return 1 + max(self.yes.depth(), self.no.depth())


def grow(inputs: Inputs, labels: Labels, *, deepest: int = DEEPEST) -> Node | None:
    """Grow a tree on the launches that have a label.

    Classes weigh the same, whatever their number: otherwise "no change" would be all that a small
    tree says. A leaf has at least 0.5 % of the launches. A launch without the input that is asked
    for goes where such launches went when it was grown.

    Parameters
    ----------
    inputs : Inputs
        The launches as numbers.
    labels : sequence of Label or None
        One for each.
    deepest : int
        Questions to a leaf, at most.

    Returns
    -------
    Node or None
        The root; None where the launches have fewer than two different labels, or no inputs.

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
    tree = sklearn("tree").DecisionTreeClassifier(
        max_depth=deepest, min_samples_leaf=leaf, class_weight="balanced", random_state=0
    )
    tree.fit(values, classes)
    names = [inputs.names[column] for column in used]
    lacking = np.asarray(np.isnan(values).any(axis=0))
    grown = _Grown(tree.tree_, values, np.array(classes), names, lacking)
    return _prune(_node(grown, 0, np.arange(len(rows))))


@dataclass(frozen=True, slots=True, eq=False)
class _Grown:
    """A tree of scikit-learn, and what it was grown on."""

    tree: Any
    values: npt.NDArray[np.float64]
    classes: npt.NDArray[np.int64]
    names: Sequence[str]
    lacking: npt.NDArray[np.bool_]


def _node(grown: _Grown, number: int, rows: npt.NDArray[np.int64]) -> Node:
    """Return a node of scikit-learn's tree with what it holds."""
    tree, everything = grown.tree, np.bincount(grown.classes, minlength=len(LABELS))
    found = np.bincount(grown.classes[rows], minlength=len(LABELS))
    label = LABELS[int((found / np.maximum(everything, 1)).argmax())]
    counts = tuple(int(one) for one in found)
    left, right = int(tree.children_left[number]), int(tree.children_right[number])
    if left < 0:
        return Node(counts, label)
    column, threshold = int(tree.feature[number]), float(tree.threshold[number])
    unknown = bool(tree.missing_go_to_left[number]) if grown.lacking[column] else None
    held = grown.values[rows, column]
    # Compared as scikit-learn does, or a launch at a threshold could end in another leaf.
    goes = np.where(np.isnan(held), bool(unknown), held.astype(np.float32) <= threshold)
    yes, no = _node(grown, left, rows[goes]), _node(grown, right, rows[~goes])
    return Node(counts, label, grown.names[column], threshold, yes, no, unknown)


def _prune(node: Node) -> Node:
    """Take out questions whose answers all come to the same label."""
    if node.yes is None or node.no is None:
        return node
    yes, no = _prune(node.yes), _prune(node.no)
    if yes.yes is None and no.yes is None and yes.label == no.label:
        return Node(node.counts, node.label)
    return Node(node.counts, node.label, node.name, node.threshold, yes, no, node.unknown)
