"""How far a launch is from all that a model has learnt from.

A model answers any question. Beyond what it knows its answers are worth nothing, so advice is
withheld from launches that are farther from the training rows than kernels usually are from one
another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..observations import Inputs
from .codes import Floats
from .preparing import Preparation, numbers
from .splits import by_group

#: Rows of a family that stand for it.
EXEMPLARS = 100

#: Share of the rows of held-out families that is within reach.
SHARE = 0.9

_BLOCK = 2_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Rows that stand for the training set, and how near is near.

    Parameters
    ----------
    preparation : Preparation
        How columns become comparable.
    exemplars : ndarray, shape (e, k), float64
        Standardised; NaN where a value was not measured.
    threshold : float or None
        Largest distance with advice; None where nothing could be held out to find it: all are
        near.
    """

    preparation: Preparation
    exemplars: Floats
    threshold: float | None

    @classmethod
    def fit(cls, inputs: Inputs, groups: np.ndarray[Any, np.dtype[np.str_]]) -> Reach:
        """Return the reach of training rows.

        The threshold is the distance within which :data:`SHARE` of a family's rows lie from the
        other families; of several families the largest such distance.
        """
        preparation = Preparation.fit(inputs)
        values = preparation.standardise(inputs)
        chosen = {name: _spread(values[rows]) for name, rows in by_group(groups)}
        reached = []
        for name, rows in by_group(groups):
            others = [one for other, one in chosen.items() if other != name]
            if others:
                apart = distances(_spread(values[rows], 1_000), np.concatenate(others))
                reached.append(float(np.quantile(apart, SHARE)))
        return cls(preparation, np.concatenate(list(chosen.values())), max(reached, default=None))

    def distance(self, inputs: Inputs) -> Floats:
        """Return the distance of each row from the nearest exemplar."""
        return distances(self.preparation.standardise(inputs), self.exemplars)

    def near(self, inputs: Inputs) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which rows are within reach."""
        if self.threshold is None:
            return np.ones(len(inputs.values), bool)
        return np.asarray(self.distance(inputs) <= self.threshold + 1e-12)

    def to_json(self) -> dict[str, Any]:
        """Return everything as what ``json`` writes; None stands for NaN."""
        rows = [[None if np.isnan(x) else float(x) for x in row] for row in self.exemplars]
        return {
            "preparation": self.preparation.to_json(),
            "exemplars": rows,
            "threshold": self.threshold,
        }

    @classmethod
    def from_json(cls, values: Any) -> Reach:
        """Return the reach of :meth:`to_json`; FormatError for anything else."""
        preparation = Preparation.from_json(values["preparation"])
        given = values["exemplars"]
        known = [[x is not None for x in row] for row in given]
        filled = [[0.0 if x is None else x for x in row] for row in given]
        exemplars = numbers(filled, (None, len(preparation.names)))
        threshold = values["threshold"]
        return cls(
            preparation,
            np.where(np.array(known, bool).reshape(exemplars.shape), exemplars, np.nan),
            None if threshold is None else float(numbers(threshold, ())),
        )


def distances(values: Floats, exemplars: Floats) -> Floats:
    """Return each row's distance from the nearest exemplar.

    The root of the mean squared difference over the columns that both have; infinite where they
    have none in common with any.

    Parameters
    ----------
    values : ndarray, shape (n, k), float64
    exemplars : ndarray, shape (e, k), float64

    Returns
    -------
    ndarray, shape (n,), float64
    """
    if not len(exemplars):
        return np.full(len(values), np.inf)
    known, filled = ~np.isnan(exemplars), np.nan_to_num(exemplars)
    found = []
    step = max(1, _BLOCK // max(1, exemplars.size))
    for at in range(0, len(values), step):
        part = values[at : at + step]
        have, full = (~np.isnan(part)).astype(np.float64), np.nan_to_num(part)
        # Σ (x - e)² over the columns that both have, as three products.
        shared = have @ known.T
        square = (full**2) @ known.T - 2 * full @ filled.T + have @ (filled**2).T
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(shared > 0, np.maximum(square, 0.0) / shared, np.inf)
        found.append(np.sqrt(mean.min(axis=1)))
    return np.concatenate(found) if found else np.zeros(0)


def _spread(values: Floats, number: int = EXEMPLARS) -> Floats:
    """Return so many rows at equal steps."""
    if len(values) <= number:
        return values
    return np.asarray(values[np.linspace(0, len(values) - 1, number).round().astype(int)])
