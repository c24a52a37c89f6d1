"""Loss functions of rankers.

Squared losses have the factor 1/2 of XGBoost's ``reg:squarederror``, so that weights are Hessians,
and ``reg_lambda`` and ``min_child_weight`` have their usual meaning.

Labels of squared losses are 0 for failed programs and grow with the throughput, so that a program
without rows has the score of a failed program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from .base import Floats
from .pairs import Pairs

if TYPE_CHECKING:
    from .dataset import Dataset

#: Default weight of a failed program in ``throughput``: that of a program with a tenth of the best
#: throughput. Ansor's formula weighs it by its label, 0, so that failing regions have no effect.
FAILED_WEIGHT = 0.1

#: Constant added to the throughput in the weights of ``relative``.
LEAST_WEIGHT = 0.2

#: Default floor of ``log``; throughputs below it are equal.
LEAST_THROUGHPUT = 0.01

#: Default number of programs that each program is compared with in ``rank``.
PARTNERS = 32

#: Lower bound of the Hessian of a pair divided by its weight: the value at a score difference of 4.
#: Without a bound the step for a misordered pair grows exponentially with the difference.
LEAST_CURVATURE = 1 / 64


@dataclass(frozen=True, slots=True)
class Squares:
    """Half the weighted sum of squared differences between scores and labels."""

    labels: Floats
    weights: Floats

    def base(self, sizes: NDArray[np.int64]) -> float:
        """Return Σ w y / Σ w k, which gives scores the weighted mean of the labels.

        If all programs have one row, it is the constant that minimises the loss.
        """
        rows = float(self.weights @ sizes)
        return float(self.weights @ self.labels) / rows if rows > 0 else 0.0

    def derivatives(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return w (s - y) and w."""
        return self.weights * (scores - self.labels), self.weights

    def value(self, scores: Floats) -> float:
        """Return Σ w (s - y)² / 2."""
        return float(self.weights @ np.square(scores - self.labels)) / 2


@dataclass(frozen=True, slots=True)
class Differences:
    """Half the weighted sum of squared errors of the differences between programs of a group.

    With errors e and weights w of sum W in a group, this is Σ w (e - ē)² / 2 with the weighted mean
    ē of the group, which equals Σ w_i w_j (e_i - e_j)² / 2W over its pairs. An offset common to a
    group has no loss.

    Parameters
    ----------
    labels, weights : ndarray of float64, shape (n,)
        As in :class:`tunedb.models.base.Objective`.
    group : ndarray of int32, shape (n,)
        Group of each program.
    """

    labels: Floats
    weights: Floats
    group: NDArray[np.int32]

    def base(self, sizes: NDArray[np.int64]) -> float:
        """Return 0: a constant changes no difference."""
        return 0.0

    def derivatives(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return w (e - ē), and w, an upper bound of the Hessian's diagonal w (1 - w / W)."""
        return self.weights * self._errors(scores), self.weights

    def value(self, scores: Floats) -> float:
        """Return Σ w (e - ē)² / 2."""
        return float(self.weights @ np.square(self._errors(scores))) / 2

    def _errors(self, scores: Floats) -> Floats:
        errors = scores - self.labels
        return errors - _mean_of_groups(errors, self.weights, self.group)


@dataclass(frozen=True, slots=True)
class PairwiseLogistic:
    """Weighted log(1 + e^(s_worse - s_better)) over pairs of programs.

    RankNet's loss (Burges et al., ICML'05).

    Parameters
    ----------
    labels, weights : ndarray of float64, shape (n,)
        As in :class:`tunedb.models.base.Objective`.
    pairs : Pairs
        Pairs of compared programs.
    pair_weights : ndarray of float64, shape (steps, n)
        Weight of each pair.
    """

    labels: Floats
    weights: Floats
    pairs: Pairs
    pair_weights: Floats = field(repr=False)

    def base(self, sizes: NDArray[np.int64]) -> float:
        """Return 0: a constant changes no difference."""
        return 0.0

    def derivatives(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return gradient and Hessian diagonal; each pair's Hessian has a lower bound."""
        pairs, around = self.pairs, scores[self.pairs.order]
        gradient, hessian = np.zeros((2, len(scores)))
        steps = zip(pairs.ahead, pairs.behind, pairs.signs, self.pair_weights, strict=True)
        for ahead, behind, sign, weight in steps:
            # Modelled probability that each pair is misordered.
            wrong = 1 / (1 + np.exp(np.minimum((around - around[ahead]) * sign, 500)))
            pull = wrong * weight * sign
            gradient += pull[behind] - pull
            bend = np.maximum(wrong * (1 - wrong), LEAST_CURVATURE) * weight
            hessian += bend[behind] + bend
        return _unsorted(gradient, pairs.order), _unsorted(hessian, pairs.order)

    def value(self, scores: Floats) -> float:
        """Return the sum of the loss over all pairs."""
        pairs, around = self.pairs, scores[self.pairs.order]
        total = 0.0
        for ahead, sign, weight in zip(pairs.ahead, pairs.signs, self.pair_weights, strict=True):
            total += float(weight @ np.logaddexp(0, (around[ahead] - around) * sign))
        return total


@dataclass(frozen=True, slots=True)
class Throughput:
    """Squared error weighted by the throughput (Ansor, OSDI'20, section 5.2): label y, weight y.

    ``throughput:0.1`` gives every program a weight of at least 0.1; ``throughput:0`` is Ansor's
    formula. Without an argument it is Ansor's formula for programs that ran, and
    :data:`FAILED_WEIGHT` for failed ones.
    """

    name: str = "throughput"

    def objective(self, examples: Dataset, argument: str, seed: int) -> Squares:
        """Return the loss over the programs of a dataset."""
        labels = examples.throughput
        if argument:
            floor = _number(self.name, argument, 0.1, 0, 1)
            return Squares(labels, np.maximum(labels, floor))
        return Squares(labels, np.where(examples.failed, FAILED_WEIGHT, labels))


@dataclass(frozen=True, slots=True)
class Squared:
    """Squared error with equal weights; the label is the throughput to a power, 1 by default.

    ``squared:0.5`` spreads the labels of slow programs and compresses those of fast ones.
    """

    name: str = "squared"

    def objective(self, examples: Dataset, argument: str, seed: int) -> Squares:
        """Return the loss over the programs of a dataset."""
        power = _number(self.name, argument or "1", 0.5, 0.01, 1)
        return Squares(examples.throughput**power, np.ones(len(examples)))


@dataclass(frozen=True, slots=True)
class Log:
    """Squared error of log2(max(throughput, floor) / floor): 0 for failed and slow programs.

    ``log:0.05`` has the floor 0.05; the default is :data:`LEAST_THROUGHPUT`.
    """

    name: str = "log"

    def objective(self, examples: Dataset, argument: str, seed: int) -> Squares:
        """Return the loss over the programs of a dataset."""
        floor = _number(self.name, argument, 0.05, 1e-6, 0.5) if argument else LEAST_THROUGHPUT
        labels = np.log2(np.maximum(examples.throughput, floor) / floor)
        return Squares(labels, np.ones(len(examples)))


@dataclass(frozen=True, slots=True)
class Relative:
    """Squared error of differences within a group: label y^0.3, weight y + 0.2.

    Programs of each group weigh 1 on average. ``relative:0.5`` has the label y^0.5.
    """

    name: str = "relative"

    def objective(self, examples: Dataset, argument: str, seed: int) -> Differences:
        """Return the loss over the programs of a dataset."""
        power = _number(self.name, argument or "0.3", 0.5, 0.01, 1)
        weights, group = examples.throughput + LEAST_WEIGHT, examples.group
        weights /= _mean_of_groups(weights, np.ones(len(weights)), group)
        return Differences(examples.throughput**power, weights, group)


@dataclass(frozen=True, slots=True)
class Rank:
    """Pairwise logistic loss within groups; scores have no scale.

    The weight of a pair is the square root of the difference of its throughputs, because the order
    of near-equal programs is noise. Programs of each group weigh 1 on average. Failed programs rank
    below all others. ``rank:16`` compares each program with 16 of its group; the default is
    :data:`PARTNERS`.
    """

    name: str = "rank"

    def objective(self, examples: Dataset, argument: str, seed: int) -> PairwiseLogistic:
        """Return the loss over the programs of a dataset."""
        partners = int(_number(self.name, argument, 16, 1, 10_000)) if argument else PARTNERS
        labels = examples.throughput
        pairs = Pairs.from_labels(labels, examples.group, partners, seed)
        around = labels[pairs.order]
        weights = np.sqrt(np.abs(around - around[pairs.ahead]) * np.abs(pairs.signs))
        # Each pair counts for both of its programs.
        totals = 2 * np.bincount(pairs.group, weights.sum(axis=0))
        counts = np.bincount(pairs.group)
        weights *= (counts / np.where(totals > 0, totals, 1))[pairs.group]
        return PairwiseLogistic(labels, np.ones(len(labels)), pairs, weights)


def _mean_of_groups(values: Floats, weights: Floats, group: NDArray[np.int32]) -> Floats:
    """Return the weighted mean over the group of each program, shape (n,)."""
    totals = np.bincount(group, weights)
    means = np.bincount(group, weights * values) / np.where(totals > 0, totals, 1)
    return np.asarray(means[group])


def _unsorted(values: Floats, order: NDArray[np.int64]) -> Floats:
    """Return values at places in `order` by the numbers of their programs."""
    by_program = np.empty_like(values)
    by_program[order] = values
    return by_program


def _number(loss: str, argument: str, example: float, low: float, high: float) -> float:
    """Return an argument as a number, or raise UsageError."""
    try:
        number = float(argument)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise UsageError(
            f"loss {loss}:{argument} is invalid; write {loss}, or {loss}:{example} with a number "
            f"from {low} to {high:,}"
        )
    return number


THROUGHPUT = Throughput()
SQUARED = Squared()
LOG = Log()
RANK = Rank()
RELATIVE = Relative()
