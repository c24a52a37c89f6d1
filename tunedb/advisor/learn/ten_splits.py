"""The document's protocol: ten random splits, the best of which is evaluated on a test set.

Random splits measure how well a model fills gaps of known kernels, not its answers for others: the
rows of a slice are on both sides. Reports show the figure beside those of held-out kernels, never
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..labels import Codes, accuracy
from ..observations import Inputs
from . import boosted, svm
from .preprocessing import Preparation
from .splits import Mask, stratified
from .training import MOST_ROWS, log_above, spread, tune

#: Splits, and the shares that are held out for the test set and for validation.
SPLITS, TEST, VALIDATION = 10, 0.2, 0.25


@dataclass(frozen=True, slots=True, eq=False)
class TenSplits:
    """Result of the protocol.

    Parameters
    ----------
    validation : tuple of float
        Accuracy of each split's model on its validation rows.
    test : ndarray, shape (n,), bool
        Rows that no split trained on.
    advice : ndarray, shape (test.sum(),), int8
        Advice of the model with the highest validation accuracy, the first of several.
    """

    validation: tuple[float, ...]
    test: Mask
    advice: Codes


def ten_splits(
    inputs: Inputs,
    truth: Codes,
    groups: np.ndarray[Any, Any],
    method: str,
    kind: str,
    *,
    splits: int = SPLITS,
) -> TenSplits:
    """Return the result of the protocol for labelled rows.

    Parameters
    ----------
    inputs : Inputs
        Rows with a label each.
    truth : ndarray, shape (n,), int8
    groups : ndarray, shape (n,), str
        Families, for the weights of trees.
    method : {"svm", "boosted"}
    kind : {"ratios", "raw"}
    splits : int
        Number of splits; the seeds are 0, 1, …
    """
    test = stratified(truth, TEST, np.random.default_rng(0))
    rest = np.flatnonzero(~test)
    kept: list[tuple[float, Codes]] = []
    for seed in range(splits):
        held = stratified(truth[rest], VALIDATION, np.random.default_rng(1 + seed))
        rows = rest[~held]
        rows = rows[spread(truth[rows], MOST_ROWS)]
        if len(np.unique(truth[rows])) < 2:
            continue
        model = _fit(inputs, truth, groups, rows, method, kind)
        judged = rest[held]
        right = accuracy(truth[judged], _advice(model, inputs, judged))
        kept.append((right if judged.size else 0.0, _advice(model, inputs, np.flatnonzero(test))))
    best = max(range(len(kept)), key=lambda i: kept[i][0])
    return TenSplits(tuple(one for one, _ in kept), test, kept[best][1])


_Model = tuple[Preparation, "svm.SVM | boosted.Boosted"]


def _fit(
    inputs: Inputs,
    truth: Codes,
    groups: np.ndarray[Any, Any],
    rows: np.ndarray[Any, Any],
    method: str,
    kind: str,
) -> _Model:
    above = log_above(kind)
    part = Inputs(inputs.names, inputs.values[rows])
    preparation = Preparation.fit(part, log_above=above)
    values = preparation(part)
    if method == "boosted":
        return preparation, boosted.fit(values, truth[rows], np.ones(len(rows)))
    tuned = tune(inputs.names, part.values, truth[rows], None, above)
    return preparation, svm.fit(values, truth[rows], **tuned)


def _advice(model: _Model, inputs: Inputs, rows: np.ndarray[Any, Any]) -> Codes:
    preparation, estimator = model
    values = preparation(Inputs(inputs.names, inputs.values[rows]))
    return np.asarray(estimator.scores(values).argmax(axis=1), np.int8)
