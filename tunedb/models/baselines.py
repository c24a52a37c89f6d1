"""Baselines for the evaluation: random order, the nearest workload, and TVM's XGBoost model.

Each ranks the held-out programs of a split, and trains on the same programs as the recipes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import NotFoundError
from ..programs.workload_info.distance import log_extents, structure_of
from ._xgboost import import_xgboost, threads_to_use
from .aggregation import AGGREGATED, segmented
from .base import Floats, recipe_part
from .dataset import Dataset, ExampleWorkload, Group

if TYPE_CHECKING:
    from .base import TrainingSet

#: TVM's time of a program that failed, in seconds.
_NO_TIME = 1e10

#: Distances computed at a time; bounds memory.
_BLOCK = 1 << 22

#: Rounds that TVM passes to `xgb.train`.
_MOST_ROUNDS = 10_000


class Baseline(Protocol):
    """A ranker that recipes are compared with."""

    @property
    def name(self) -> str:
        """Name in tables."""

    def scores(self, train: Dataset, test: Dataset, threads: int | None) -> Floats:
        """Return the score of each program of `test`, after training on `train`, shape (n,)."""


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """Equal scores for all programs, so that figures are exactly those of a random order."""

    name: str = "random"

    def scores(self, train: Dataset, test: Dataset, threads: int | None) -> Floats:
        """Return zeros."""
        return np.zeros(len(test))


@dataclass(frozen=True, slots=True)
class NearestNeighbour:
    """Nearest-neighbour regression on the programs of the most similar workload.

    The most similar workload is the same workload, if it was measured elsewhere or in part. Else
    it is the workload of the same operator family with the nearest shapes, by the Euclidean
    distance of the base-2 logarithms of all extents. If the family has no workload of equal
    structure, the distance is that of the logarithms of the operations. Of several equally near
    workloads, those measured on the same hardware take precedence. The score of a program is the
    mean throughput of the `neighbours` programs of that workload nearest in features (one row for
    each program, as in ``aggregated``; each column in units of its standard deviation). Without a
    comparable workload all scores are 0.

    Parameters
    ----------
    neighbours : int
        Number of neighbours.
    training_set : str
        Training set (``tunedb.training_sets``).
    """

    neighbours: int = 5
    training_set: str = "all"
    name: str = "nearest"

    def scores(self, train: Dataset, test: Dataset, threads: int | None) -> Floats:
        """Return the score of each program, one group of `test` after another."""
        train = _chosen(train, self.training_set)
        train_rows, test_rows = _one_row_each(train), _one_row_each(test)
        groups = _TrainingGroups(train)
        scores = np.zeros(len(test))
        for number, index in enumerate(_members(test)):
            if not len(index):
                continue
            group = test.groups[number]
            similar = groups.nearest(group, test.workloads[group.workload])
            if len(similar):
                scores[index] = self._mean_throughput(
                    train_rows[similar], train.throughput[similar], test_rows[index]
                )
        return scores

    def _mean_throughput(
        self, train_rows: NDArray[np.float32], throughput: Floats, test_rows: NDArray[np.float32]
    ) -> Floats:
        """Return the mean throughput of the nearest training programs; ties share their places."""
        spread = train_rows.std(axis=0, dtype=np.float64)
        # A constant column has no distances.
        scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
        right = train_rows * scale
        length, count = (right**2).sum(axis=1), min(self.neighbours, len(train_rows))
        scores = np.empty(len(test_rows))
        step = max(1, _BLOCK // len(train_rows))
        for first in range(0, len(test_rows), step):
            left = test_rows[first : first + step] * scale
            squares = (left**2).sum(axis=1)[:, None] + length - 2 * left @ right.T
            edge = np.partition(squares, count - 1, axis=1)[:, count - 1, None]
            sure, tied = squares < edge, squares == edge
            places = (count - sure.sum(axis=1)) / tied.sum(axis=1)
            total = sure @ throughput + places * (tied @ throughput)
            scores[first : first + step] = total / count
        return scores


@dataclass(frozen=True, slots=True)
class TVMModel:
    """TVM's ``XGBModel`` with all its settings, on the rows of any feature set.

    As in TVM 0.27 (``tvm/s_tir/meta_schedule/cost_model/xgb_model.py``), including its defects
    (docs/models.md): float32 throughputs with 1e10 seconds for a failure, so that all programs of a
    group of failures are perfect; the squared error of the sum over a program's rows, weighted by
    throughput, with a Hessian of 1 for each row; a base score of 0.5 for each row; up to 10,000
    rounds, until the unweighted training error has not fallen for 50 rounds; all rounds kept.

    Parameters
    ----------
    training_set : str
        Training set (``tunedb.training_sets``).
    max_depth, gamma, min_child_weight, eta, seed
        Fields of TVM's ``XGBConfig``.
    early_stopping_rounds : int
        Rounds without a lower error after which boosting stops.
    """

    training_set: str = "all"
    max_depth: int = 10
    gamma: float = 0.001
    min_child_weight: float = 0.0
    eta: float = 0.2
    seed: int = 43
    early_stopping_rounds: int = 50
    name: str = "tvm"

    def scores(self, train: Dataset, test: Dataset, threads: int | None) -> Floats:
        """Return the score of each program; 0 for a program without rows."""
        train = _chosen(train, self.training_set)
        booster = self.train(train.rows, train.starts, tvm_labels(train), threads)
        predicted = booster.inplace_predict(test.rows).astype(np.float64)
        return np.asarray(segmented(np.add, predicted, test.starts), np.float64)

    def train(
        self,
        rows: NDArray[np.float32],
        starts: NDArray[np.int64],
        labels: NDArray[np.float32],
        threads: int | None = None,
    ) -> Any:
        """Return the booster that ``XGBModel._train`` would train on the same arrays.

        Parameters
        ----------
        rows : ndarray of float32, shape (m, columns)
            Rows of all programs.
        starts : ndarray of int64, shape (n + 1,)
            The rows of program i are ``rows[starts[i]:starts[i + 1]]``.
        labels : ndarray of float32, shape (n,)
            Throughputs.
        threads : int, optional
            Threads of XGBoost.

        Returns
        -------
        xgboost.Booster
        """
        xgboost = import_xgboost()
        owner = np.repeat(np.arange(len(labels)), np.diff(starts))
        of_row = labels[owner]
        # Weights affect the bins of `hist`; a custom objective does not see them.
        matrix = xgboost.DMatrix(rows, label=of_row, weight=of_row)
        ones = np.ones_like(of_row, np.float64)

        def objective(predicted: NDArray[np.float32], _: Any) -> tuple[Any, Any]:
            error = np.bincount(owner, predicted)[owner] - of_row
            return error * of_row, ones * of_row

        parameters = {
            "max_depth": self.max_depth,
            "gamma": self.gamma,
            "min_child_weight": self.min_child_weight,
            "eta": self.eta,
            "seed": self.seed,
            "nthread": threads_to_use(threads),
            "tree_method": "auto",
        }
        booster = xgboost.Booster(parameters, [matrix])
        best, best_round = float("inf"), 0
        for number in range(_MOST_ROUNDS):
            booster.update(matrix, number, objective)
            predicted = booster.predict(matrix, output_margin=True)
            error = np.sqrt(np.square(np.bincount(owner, predicted)[owner] - of_row).mean())
            # TVM compares the six digits that `eval_set` prints.
            error = float(f"{error:f}")
            if error < best:
                best, best_round = error, number
            elif number - best_round >= self.early_stopping_rounds:
                break
        return booster


#: All baselines by name; the first parameter is the training set.
BASELINES: dict[str, type[RandomOrder] | type[NearestNeighbour] | type[TVMModel]] = {
    "random": RandomOrder,
    "nearest": NearestNeighbour,
    "tvm": TVMModel,
}


def baseline(name: str, training_set: str = "all") -> Baseline:
    """Return the baseline of a name, with a training set.

    Raises
    ------
    NotFoundError
        No baseline has this name.
    """
    if name not in BASELINES:
        raise NotFoundError(f"no baseline {name!r}; there are: {', '.join(BASELINES)}")
    kind = BASELINES[name]
    return kind() if kind is RandomOrder else kind(training_set=training_set)  # type: ignore[call-arg]


def tvm_labels(examples: Dataset) -> NDArray[np.float32]:
    """Return throughputs as TVM computes them: least time of the group / time.

    Returns
    -------
    ndarray of float32, shape (n,)
        With 1e10 seconds for a failure.
    """
    seconds = np.where(examples.failed, _NO_TIME, examples.seconds).astype(np.float32)
    least = np.full(len(examples.groups), np.inf, np.float32)
    np.minimum.at(least, examples.group, seconds)
    throughput: NDArray[np.float32] = least[examples.group] / seconds
    return throughput


class _TrainingGroups:
    """The groups of the training programs, searched by similarity."""

    def __init__(self, train: Dataset) -> None:
        self._train = train
        self._members = _members(train)
        self._groups: dict[int, list[int]] = {}
        for number, members in enumerate(self._members):
            if len(members):
                self._groups.setdefault(train.groups[number].workload, []).append(number)
        families: dict[str, list[int]] = {}
        structures: dict[tuple[object, ...], list[int]] = {}
        for index in self._groups:
            workload = train.workloads[index]
            if workload.family is not None:
                families.setdefault(workload.family, []).append(index)
                structure = structure_of(workload.family, workload.shapes)
                structures.setdefault(structure, []).append(index)
        self._families = families
        self._shapes = {
            key: (
                indices,
                np.array([log_extents(train.workloads[index].shapes) for index in indices]),
            )
            for key, indices in structures.items()
        }
        self._flops = {index: _log_flops(train.workloads[index]) for index in self._groups}

    def nearest(self, group: Group, workload: ExampleWorkload) -> NDArray[np.int64]:
        """Return the programs of the groups most similar to a group, ascending."""
        numbers = [
            number for index in self._nearest(group, workload) for number in self._groups[index]
        ]
        here = (group.target, group.machine)
        groups = self._train.groups
        same_hardware = [
            number for number in numbers if (groups[number].target, groups[number].machine) == here
        ]
        members = [self._members[number] for number in same_hardware or numbers]
        return np.sort(np.concatenate(members)) if members else np.zeros(0, np.int64)

    def _nearest(self, group: Group, workload: ExampleWorkload) -> list[int]:
        """Return the workloads most similar to a workload; several if equally near."""
        if group.workload in self._groups:  # measured elsewhere or in part
            return [group.workload]
        structure = structure_of(workload.family, workload.shapes)
        if workload.shapes and structure in self._shapes:
            indices, extents = self._shapes[structure]
            distances = np.sqrt(np.square(extents - log_extents(workload.shapes)).sum(axis=1))
        else:
            indices = self._families.get(workload.family or "", [*self._groups])
            distances = np.abs(
                np.array([self._flops[index] for index in indices]) - _log_flops(workload)
            )
        # If no distance is known, all are NaN, which equals nothing.
        least = np.min(distances, initial=np.inf, where=~np.isnan(distances))
        return [indices[place] for place in np.flatnonzero(distances == least)]


def _members(examples: Dataset) -> list[NDArray[np.int64]]:
    """Return the numbers of the programs of each group, ascending."""
    counts = np.bincount(examples.group, minlength=len(examples.groups))
    return np.split(np.argsort(examples.group, kind="stable"), np.cumsum(counts)[:-1])


def _log_flops(workload: ExampleWorkload) -> float:
    """Return the base-2 logarithm of the operations of one run, or NaN."""
    return log2(workload.flops) if workload.flops else float("nan")


def _one_row_each(examples: Dataset) -> NDArray[np.float32]:
    """Return one row for each program."""
    if bool((examples.sizes == 1).all()):
        return examples.rows
    return AGGREGATED.rows(examples.rows, examples.starts)[0]


def _chosen(examples: Dataset, training_set: str) -> Dataset:
    """Return the programs of a training set."""
    policy: TrainingSet
    policy, argument = recipe_part("training set", training_set)
    return examples.take(policy.choose(examples, argument, 0))
