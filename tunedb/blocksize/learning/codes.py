"""Labels as small numbers, which is how they are counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..observations import LABELS, Label, Labels

#: Code of a row without label, and of advice that is not given.
NONE = -1
DECREASE, NO_CHANGE, INCREASE = range(3)

Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]


def to_codes(labels: Labels) -> Codes:
    """Return labels as positions in :data:`LABELS`; :data:`NONE` for None."""
    position = {label: i for i, label in enumerate(LABELS)}
    found = [NONE if label is None else position[label] for label in labels]
    return np.asarray(found, np.int8)


def to_labels(codes: Sequence[int] | Codes) -> list[Label | None]:
    """Return the labels of codes."""
    return [None if code == NONE else LABELS[code] for code in codes]


def accuracy(truth: Codes, advice: Codes) -> float:
    """Return the share of advised rows (both codes are there) that are right; NaN without any."""
    told = (truth != NONE) & (advice != NONE)
    return float(np.mean(truth[told] == advice[told])) if told.any() else float("nan")


def balanced_accuracy(truth: Codes, advice: Codes) -> float:
    """Return the mean over the classes that occur of the share that is right; NaN without any."""
    told = (truth != NONE) & (advice != NONE)
    truth, advice = truth[told], advice[told]
    shares = [np.mean(advice[truth == code] == code) for code in np.unique(truth)]
    return float(np.mean(shares)) if shares else float("nan")


def confusion(truth: Codes, advice: Codes) -> npt.NDArray[np.int64]:
    """Return how often each advice was given for each true label.

    Returns
    -------
    ndarray, shape (3, 3), int64
        Rows are true labels and columns advice, in the order of ``LABELS``.
    """
    told = (truth != NONE) & (advice != NONE)
    table = np.zeros((len(LABELS), len(LABELS)), np.int64)
    np.add.at(table, (truth[told], advice[told]), 1)
    return table
