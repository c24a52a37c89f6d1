"""The speed-up of another block: run times compared inside slices.

Labels have a direction and no distance. Here the logarithm of a run time, less the mean of its
slice, is a weighted sum of columns that are known before a launch (:mod:`.geometry`), so the
prediction for an untried block is a sum of differences. A few kernels can teach another one only a
handful of weights: on those of ``benchmarks/block_size.py``, machines with all counters do worse on
a held-out kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import FormatError
from ..labels import DECREASE, INCREASE, NO_CHANGE, NONE, Codes, Floats, balanced_accuracy, by_slice
from ..observations import Observation
from . import geometry
from .preprocessing import numbers
from .regret import one_step
from .splits import by_group, families, family_weight, slice_numbers

#: Candidate sets of columns, from few to many: each has a reason, and held-out kernels decide which
#: of them hold for all kernels.
COLUMN_SETS = (
    ("log2 threads",),
    ("log2 threads", "log2 threads squared"),
    ("occupancy",),
    ("occupancy", "unused lanes"),
    ("occupancy", "log2 width"),
    ("occupancy", "log2 width within a warp"),
    ("log2 threads", "unused lanes", "log2 width within a warp"),
    ("log2 threads", "log2 threads squared", "unused lanes", "occupancy"),
    ("log2 threads", "log2 threads squared", "unused lanes", "log2 occupancy"),
    ("log2 threads", "unused lanes", "occupancy", "log2 width"),
    ("log2 threads", "log2 threads squared", "unused lanes", "occupancy", "log2 width"),
    ("log2 threads", "log2 threads squared", "unused lanes", "log2 occupancy", "log2 width"),
    (
        "log2 threads",
        "log2 threads squared",
        "unused lanes",
        "occupancy",
        "log2 width within a warp",
    ),
    ("below 64 threads", "above 64 threads", "above 256 threads", "unused lanes", "occupancy"),
    (
        "below 64 threads",
        "above 64 threads",
        "above 256 threads",
        "unused lanes",
        "occupancy",
        "log2 width",
    ),
)

#: Savings below these count as none (in the logarithm: about as much in per cent).
TOLERANCES = (0.02, 0.05)

#: Ridge, relative to columns of unit variance: it keeps sets with correlated columns solvable.
_RIDGE = 0.01

_NEVER = -1e3


@dataclass(frozen=True, slots=True, eq=False)
class Gain:
    """A weighted sum of launch columns that predicts log run time up to a slice's constant.

    Parameters
    ----------
    columns : tuple of str
        Of :data:`tunedb.advisor.learn.geometry.NAMES`.
    weights : ndarray, shape (k,), float64
        Change of log run time for a change of the column by one.
    tolerance : float
        Logarithm of the time ratio below which a block is as good as the best.
    """

    columns: tuple[str, ...]
    weights: Floats
    tolerance: float

    def predict(self, launch_columns: Floats) -> Floats:
        """Return log run times up to a constant of each slice.

        Parameters
        ----------
        launch_columns : ndarray, shape (n, len(NAMES)), float64
        """
        at = [geometry.NAMES.index(name) for name in self.columns]
        return np.asarray(launch_columns[:, at] @ self.weights)

    def scores(self, observations: Sequence[Observation]) -> Floats:
        """Return the savings of each label, as logarithms of time ratios.

        The blocks of a slice are the candidates of each of its launches; run times do not matter.
        The savings of a direction are the mean of those of one step and those of the best block
        there: a programmer takes one step, but should not stop before a hill worth crossing.

        Returns
        -------
        ndarray, shape (n, 3), float64
            For no change the tolerance, or half of the savings of another shape with as many
            threads if that is more; very low without a block in a direction. 0 for all labels of a
            launch whose columns are unknown.
        """
        launch = geometry.columns(observations)
        return self._scores(observations, self.predict(launch), one_step(observations))

    def _scores(
        self,
        observations: Sequence[Observation],
        predicted: Floats,
        after: np.ndarray[Any, np.dtype[np.int64]],
    ) -> Floats:
        threads = np.array([one.threads for one in observations])
        found = np.full((len(observations), 3), _NEVER)
        for positions in by_slice(observations):
            rows = np.array(positions)
            order = np.argsort(threads[rows], kind="stable")
            sizes, first = np.unique(threads[rows][order], return_index=True)
            best = np.minimum.reduceat(predicted[rows][order], first)
            below = np.r_[np.inf, np.minimum.accumulate(best)[:-1]]
            above = np.r_[np.minimum.accumulate(best[::-1])[::-1][1:], np.inf]
            at, now = np.searchsorted(sizes, threads[rows]), predicted[rows]
            for code, ahead in ((DECREASE, below), (INCREASE, above)):
                step = now - predicted[after[rows, code]]
                found[rows, code] = (now - ahead[at] + step) / 2
            found[rows, NO_CHANGE] = np.maximum((now - best[at]) / 2, self.tolerance)
        found[np.isnan(found).any(axis=1)] = 0.0
        return np.asarray(np.maximum(found, _NEVER))

    def contributions(self, now: Floats, then: Floats) -> Floats:
        """Return the savings of each column between launches, as logarithms of time ratios.

        Parameters
        ----------
        now, then : ndarray, shape (n, len(NAMES)), float64

        Returns
        -------
        ndarray, shape (n, k), float64
        """
        at = [geometry.NAMES.index(name) for name in self.columns]
        return np.asarray((now - then)[:, at] * self.weights)

    def to_json(self) -> dict[str, Any]:
        """Return the model as JSON values."""
        return {
            "columns": list(self.columns),
            "weights": self.weights.tolist(),
            "tolerance": self.tolerance,
        }

    @classmethod
    def from_json(cls, values: Any, columns: int = 0) -> Gain:
        """Return the model of :meth:`to_json`; FormatError for anything else."""
        names = tuple(map(str, values["columns"]))
        if not set(names) <= set(geometry.NAMES):
            raise FormatError("the model reads launch columns that this tunedb does not know")
        weights = numbers(values["weights"], (len(names),))
        return cls(names, weights, float(numbers(values["tolerance"], ())))


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Run times compared inside slices: the inputs of :func:`fit`, computed once.

    Parameters
    ----------
    launch : ndarray, shape (n, len(NAMES)), float64
        Launch columns.
    centred : ndarray, shape (n, len(NAMES)), float64
        The same, less the mean of their slices.
    target : ndarray, shape (n,), float64
        Logarithms of run times, less the mean of their slices.
    weight : ndarray, shape (n,), float64
        Families count equally (:func:`.splits.family_weight`), and so do slices inside a family.
    family : ndarray, shape (n,), int64
        A number for each: names of templates are long, and many fits compare them.
    """

    launch: Floats
    centred: Floats
    target: Floats
    weight: Floats
    family: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def from_observations(cls, observations: Sequence[Observation]) -> Comparison:
        """Return the comparison of observations."""
        launch, number = geometry.columns(observations), slice_numbers(observations)
        seconds = np.log(np.array([one.seconds for one in observations], np.float64))
        groups = np.unique(families(observations), return_inverse=True)[1].astype(np.int64)
        size = np.bincount(number)
        weight = 1 / size[number]
        for _, rows in by_group(groups):
            weight[rows] *= family_weight(int(rows.sum())) / weight[rows].sum()
        return cls(
            launch,
            _centred(launch, number, size),
            _centred(seconds[:, None], number, size)[:, 0],
            weight,
            groups,
        )


def fit(
    comparison: Comparison,
    rows: np.ndarray[Any, np.dtype[np.bool_]],
    columns: Sequence[str],
    *,
    scaled: bool,
) -> Floats:
    """Return the weights that explain the run times of some rows best, by weighted ridge.

    Parameters
    ----------
    comparison : Comparison
    rows : ndarray, shape (n,), bool
        Training rows: whole slices.
    columns : sequence of str
    scaled : bool
        Whether the run times of each family are brought to one variance, so that a kernel where
        little is at stake counts as much as one where much is.
    """
    at = [geometry.NAMES.index(name) for name in columns]
    rows = rows & ~np.isnan(comparison.centred[:, at]).any(axis=1)
    x, y = comparison.centred[rows][:, at], comparison.target[rows].copy()
    weight = comparison.weight[rows]
    if scaled:
        for _, those in by_group(comparison.family[rows]):
            variance = (weight[those] * y[those] ** 2).sum() / weight[those].sum()
            y[those] /= np.sqrt(variance) if variance > 0 else 1.0
    weight = weight / weight.sum()
    size = np.sqrt((weight[:, None] * x**2).sum(axis=0))
    z = x / np.where(size > 0, size, 1.0)
    normal = (z * weight[:, None]).T @ z + _RIDGE * np.eye(len(at))
    found = np.linalg.solve(normal, (z * weight[:, None]).T @ y)
    return np.where(size > 0, found / np.where(size > 0, size, 1.0), 0.0)


def choose(observations: Sequence[Observation], truth: Codes) -> Gain:
    """Return the model whose columns do best on kernels that they were not fitted to.

    Each family is held out in turn, and the mean over families of the balanced accuracy decides
    (:func:`.splits.family_weight`); the first of equal sets wins. With one family the first set is
    taken.

    Parameters
    ----------
    observations : sequence of Observation
        Training rows, whole slices.
    truth : ndarray, shape (n,), int8
        Their labels.
    """
    comparison = Comparison.from_observations(observations)
    known = truth != NONE
    parts = [
        _Part.from_rows(observations, rows)
        for _, rows in by_group(comparison.family)
        if (rows & known).any()
    ]
    shares = [family_weight(int((part.rows & known).sum())) for part in parts]
    choices = [(names, scaled) for names in COLUMN_SETS for scaled in (False, True)]
    best, chosen = -np.inf, (choices[0], TOLERANCES[0])
    for names, scaled in choices if len(parts) > 1 else ():
        marks = []
        for part in parts:
            weights = fit(comparison, ~part.rows, names, scaled=scaled)
            model = Gain(names, weights, 0.0)
            predicted = model.predict(comparison.launch[part.rows])
            scores = model._scores(part.observations, predicted, part.after)
            marks.append([_mark(scores, truth[part.rows], one) for one in TOLERANCES])
        for tolerance, mark in zip(
            TOLERANCES, np.average(marks, axis=0, weights=shares), strict=True
        ):
            if mark > best + 1e-12:
                best, chosen = mark, ((names, scaled), tolerance)
    (names, scaled), tolerance = chosen
    everything = np.ones(len(observations), bool)
    return Gain(names, fit(comparison, everything, names, scaled=scaled), tolerance)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A family that is held out while columns are chosen."""

    rows: np.ndarray[Any, np.dtype[np.bool_]]
    observations: list[Observation]
    after: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def from_rows(
        cls, observations: Sequence[Observation], rows: np.ndarray[Any, np.dtype[np.bool_]]
    ) -> _Part:
        inside = [one for one, held in zip(observations, rows, strict=True) if held]
        return cls(rows, inside, one_step(inside))


def _mark(scores: Floats, truth: Codes, tolerance: float) -> float:
    adjusted = scores.copy()
    adjusted[:, NO_CHANGE] = np.maximum(adjusted[:, NO_CHANGE], tolerance)
    advice = adjusted.argmax(axis=1).astype(np.int8)
    advice[truth == NONE] = NONE
    return balanced_accuracy(truth, advice)


def _centred(values: Floats, number: np.ndarray[Any, Any], size: np.ndarray[Any, Any]) -> Floats:
    sums = np.zeros((len(size), values.shape[1]))
    np.add.at(sums, number, values)
    return np.asarray(values - (sums / size[:, None])[number])
