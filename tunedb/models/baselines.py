"""What a model has to beat: random order, the nearest workload, and the model of TVM.

Each ranks the held-out programs of a split, and has seen no more of them than a recipe has.
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
from .base import Floats, part
from .dataset import Dataset, ExampleWorkload, Group

if TYPE_CHECKING:
    from .base import TrainingSet

#: TVM's time of a program that failed, in seconds.
_NO_TIME = 1e10

#: Distances that are computed at a time.
_BLOCK = 1 << 22

#: Rounds that `xgb.train` is asked for there.
_MOST_ROUNDS = 10_000


class Baseline(Protocol):
    """What ranks programs beside the models that are judged."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    def scores(self, train: Dataset, test: Dataset, threads: int | None) -> Floats:
        """Return a score for each program of `test`, learnt from `train`, shape (n,)."""


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """All programs are equal: the figures are then those of a random order, exactly."""

    name: str = "random"

    def scores(self, train: Dataset, test: Dataset, threads: int | None) -> Floats:
        """Return zeros."""
        return np.zeros(len(test))


@dataclass(frozen=True, slots=True)
class NearestNeighbour:
    """What is like the good programs of the most similar workload is good; nothing is trained.

    The most similar workload is the same one, where it was measured elsewhere or in part. Else it
    is one of the same operator family whose shapes are nearest: the Euclidean distance of the
    base-2 logarithms of all extents. Where the family has none of equal structure, or none at all,
    the logarithms of the operations count. If one of several equally near ones was measured on the
    same hardware, others do not count. The score of a program is the mean throughput of the
    `neighbours` programs there that are nearest in features (one row for each program, as
    ``aggregated`` makes it; each column in units of its standard deviation there).
    Where no workload is comparable all scores are 0.

    Parameters
    ----------
    neighbours : int
        Programs to ask.
    training_set : str
        What is learnt from (``tunedb.training_sets``).
    """

    neighbours: int = 5
    training_set: str = "all"
    name: str = "nearest"

    def scores(self, train: Dataset, test: Dataset, threads: int | None) -> Floats:
        """Return the score of each program, one group of `test` after another."""
        train = _chosen(train, self.training_set)
        known, asked = _one_row_each(train), _one_row_each(test)
        teachers = _Teachers(train)
        found = np.zeros(len(test))
        for number, index in enumerate(_members(test)):
            if not len(index):
                continue
            group = test.groups[number]
            some = teachers.of(group, test.workloads[group.workload])
            if len(some):
                found[index] = self._ask(known[some], train.throughput[some], asked[index])
        return found

    def _ask(
        self, known: NDArray[np.float32], throughput: Floats, asked: NDArray[np.float32]
    ) -> Floats:
        """Return the mean throughput of the nearest of some known programs.

        Of equally near ones, of which some are too many, each counts in part.
        """
        spread = known.std(axis=0, dtype=np.float64)
        # A column that is equal in all known programs says nothing of which of them is nearer.
        scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
        right = known * scale
        length, count = (right**2).sum(axis=1), min(self.neighbours, len(known))
        found = np.empty(len(asked))
        step = max(1, _BLOCK // len(known))
        for first in range(0, len(asked), step):
            left = asked[first : first + step] * scale
            squares = (left**2).sum(axis=1)[:, None] + length - 2 * left @ right.T
            edge = np.partition(squares, count - 1, axis=1)[:, count - 1, None]
            sure, tied = squares < edge, squares == edge
            places = (count - sure.sum(axis=1)) / tied.sum(axis=1)
            total = sure @ throughput + places * (tied @ throughput)
            found[first : first + step] = total / count
        return found


@dataclass(frozen=True, slots=True)
class TVMModel:
    """TVM's ``XGBModel`` with all its settings, on the rows of any feature set.

    As in TVM 0.27 (``tvm/s_tir/meta_schedule/cost_model/xgb_model.py``), defects included
    (docs/models.md): float32 throughputs with 1e10 seconds for a failure, so that all programs of a
    group of failures are perfect; the squared error of the sum over a program's rows, weighted by
    throughput, with a Hessian of 1 for each row; a base score of 0.5 for each row; up to 10,000
    rounds, until the unweighted error on the training set has not fallen for 50; all rounds kept.

    Parameters
    ----------
    training_set : str
        What is learnt from (``tunedb.training_sets``).
    max_depth, gamma, min_child_weight, eta, seed
        Fields of its ``XGBConfig``.
    early_stopping_rounds : int
        Rounds without a lower error after which it stops.
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
        """Return the score of each program; that of one without rows is 0."""
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
        """Return the booster that ``XGBModel._train`` makes of the same arrays.

        Parameters
        ----------
        rows : ndarray of float32, shape (m, columns)
            Rows of all programs.
        starts : ndarray of int64, shape (n + 1,)
            The rows of program i are ``rows[starts[i]:starts[i + 1]]``.
        labels : ndarray of float32, shape (n,)
            Throughputs.
        threads : int, optional
            Of XGBoost.

        Returns
        -------
        xgboost.Booster
        """
        xgboost = import_xgboost()
        owner = np.repeat(np.arange(len(labels)), np.diff(starts))
        of_row = labels[owner]
        # Weights do not reach a custom objective, but the bins of `hist`.
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
            # It compares what `eval_set` has printed with six digits.
            error = float(f"{error:f}")
            if error < best:
                best, best_round = error, number
            elif number - best_round >= self.early_stopping_rounds:
                break
        return booster


#: All baselines by name. What they learn from is the first parameter.
BASELINES: dict[str, type[RandomOrder] | type[NearestNeighbour] | type[TVMModel]] = {
    "random": RandomOrder,
    "nearest": NearestNeighbour,
    "tvm": TVMModel,
}


def baseline(name: str, training_set: str = "all") -> Baseline:
    """Return a baseline that learns from a training set.

    Raises
    ------
    NotFoundError
        There is none of this name.
    """
    if name not in BASELINES:
        raise NotFoundError(f"no baseline {name!r}; there are: {', '.join(BASELINES)}")
    kind = BASELINES[name]
    return kind() if kind is RandomOrder else kind(training_set=training_set)  # type: ignore[call-arg]


def tvm_labels(examples: Dataset) -> NDArray[np.float32]:
    """Return the throughputs that TVM computes, shape (n,): the least time of a group / the time.

    In float32, and with 1e10 seconds for a failure.
    """
    seconds = np.where(examples.failed, _NO_TIME, examples.seconds).astype(np.float32)
    least = np.full(len(examples.groups), np.inf, np.float32)
    np.minimum.at(least, examples.group, seconds)
    found: NDArray[np.float32] = least[examples.group] / seconds
    return found


class _Teachers:
    """The groups that are learnt from, and which of them are most like another one."""

    def __init__(self, train: Dataset) -> None:
        self._train = train
        self._members = _members(train)
        self._groups: dict[int, list[int]] = {}
        for number, members in enumerate(self._members):
            if len(members):
                self._groups.setdefault(train.groups[number].workload, []).append(number)
        families: dict[str, list[int]] = {}
        structures: dict[tuple[object, ...], list[int]] = {}
        for one in self._groups:
            workload = train.workloads[one]
            if workload.family is not None:
                families.setdefault(workload.family, []).append(one)
                structure = structure_of(workload.family, workload.shapes)
                structures.setdefault(structure, []).append(one)
        self._families = families
        self._shapes = {
            key: (some, np.array([log_extents(train.workloads[one].shapes) for one in some]))
            for key, some in structures.items()
        }
        self._flops = {one: _log_flops(train.workloads[one]) for one in self._groups}

    def of(self, group: Group, workload: ExampleWorkload) -> NDArray[np.int64]:
        """Return the programs of the groups that are most like a group, ascending."""
        found = [i for one in self._nearest(group, workload) for i in self._groups[one]]
        here = (group.target, group.machine)
        groups = self._train.groups
        same = [i for i in found if (groups[i].target, groups[i].machine) == here]
        members = [self._members[i] for i in same or found]
        return np.sort(np.concatenate(members)) if members else np.zeros(0, np.int64)

    def _nearest(self, group: Group, workload: ExampleWorkload) -> list[int]:
        """Return the workloads that are most like a workload, all of them equally."""
        if group.workload in self._groups:  # measured elsewhere, or in part
            return [group.workload]
        structure = structure_of(workload.family, workload.shapes)
        if workload.shapes and structure in self._shapes:
            some, extents = self._shapes[structure]
            distances = np.sqrt(np.square(extents - log_extents(workload.shapes)).sum(axis=1))
        else:
            some = self._families.get(workload.family or "", [*self._groups])
            distances = np.abs(np.array([self._flops[one] for one in some]) - _log_flops(workload))
        # Not known of any, distances are all NaN, which equals nothing.
        least = np.min(distances, initial=np.inf, where=~np.isnan(distances))
        return [some[i] for i in np.flatnonzero(distances == least)]


def _members(examples: Dataset) -> list[NDArray[np.int64]]:
    """Return the numbers of the programs of each group, ascending."""
    counts = np.bincount(examples.group, minlength=len(examples.groups))
    return np.split(np.argsort(examples.group, kind="stable"), np.cumsum(counts)[:-1])


def _log_flops(workload: ExampleWorkload) -> float:
    """Return the base-2 logarithm of the operations of one run, NaN where they are unknown."""
    return log2(workload.flops) if workload.flops else float("nan")


def _one_row_each(examples: Dataset) -> NDArray[np.float32]:
    """Return one row for each program."""
    if bool((examples.sizes == 1).all()):
        return examples.rows
    return AGGREGATED.rows(examples.rows, examples.starts)[0]


def _chosen(examples: Dataset, training_set: str) -> Dataset:
    """Return the programs of a training set."""
    policy: TrainingSet
    policy, argument = part("training set", training_set)
    return examples.take(policy.choose(examples, argument, 0))
