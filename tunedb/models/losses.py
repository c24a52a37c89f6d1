"""What a model minimises.

The values of the losses of squares have the factor 1/2 of XGBoost's ``reg:squarederror``, so that
weights are Hessians, and ``reg_lambda`` and ``min_child_weight`` mean what they mean there.

Labels of squares are 0 where a program failed and grow with the throughput, so that the sum over no
rows is the score of a failed program.
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

#: Weight of a failed program by ``throughput``, where nothing else is said. The document's is its
#: label, 0, and so nobody learns that a region fails: it counts as a program does that reaches a
#: tenth of the best throughput.
FAILED_WEIGHT = 0.1

#: What the weight of a program is above its throughput by ``relative``.
LEAST_WEIGHT = 0.2

#: Throughputs below this are equal to ``log``.
LEAST_THROUGHPUT = 0.01

#: Programs that each one is compared with by ``rank``.
PARTNERS = 32

#: Least Hessian of a pair by weight, that of a difference of 4 between the scores. Without a bound
#: a step grows with e to the difference where a pair is in the wrong order.
LEAST_CURVATURE = 1 / 64


@dataclass(frozen=True, slots=True)
class Squares:
    """Half the weighted sum of squared differences between scores and labels."""

    labels: Floats
    weights: Floats

    def base(self, sizes: NDArray[np.int64]) -> float:
        """Return Σ w y / Σ w k: with it the weighted mean of scores is that of labels.

        Where all programs have one row it minimises the loss over constants.
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

    With errors e and weights w, of sum W in a group, that is Σ w (e - ē)² / 2 with the weighted
    mean ē of the group, which equals Σ w_i w_j (e_i - e_j)² / 2W over its pairs. What is common to
    a group need not be learnt.

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
        """Return w (e - ē), and w, which is a little above the Hessian's diagonal w (1 - w / W)."""
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
        Which programs are compared.
    pair_weights : ndarray of float64, shape (steps, n)
        How much each pair counts.
    """

    labels: Floats
    weights: Floats
    pairs: Pairs
    pair_weights: Floats = field(repr=False)

    def base(self, sizes: NDArray[np.int64]) -> float:
        """Return 0: a constant changes no difference."""
        return 0.0

    def derivatives(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return the gradient, and the Hessian's diagonal, of each pair not below a bound."""
        pairs, around = self.pairs, scores[self.pairs.order]
        gradient, hessian = np.zeros((2, len(scores)))
        steps = zip(pairs.ahead, pairs.behind, pairs.signs, self.pair_weights, strict=True)
        for ahead, behind, sign, weight in steps:
            # How wrong each pair is, from 0 to 1.
            wrong = 1 / (1 + np.exp(np.minimum((around - around[ahead]) * sign, 500)))
            pull = wrong * weight * sign
            gradient += pull[behind] - pull
            bend = np.maximum(wrong * (1 - wrong), LEAST_CURVATURE) * weight
            hessian += bend[behind] + bend
        return _placed(gradient, pairs.order), _placed(hessian, pairs.order)

    def value(self, scores: Floats) -> float:
        """Return the sum over all pairs."""
        pairs, around = self.pairs, scores[self.pairs.order]
        total = 0.0
        for ahead, sign, weight in zip(pairs.ahead, pairs.signs, self.pair_weights, strict=True):
            total += float(weight @ np.logaddexp(0, (around[ahead] - around) * sign))
        return total


@dataclass(frozen=True, slots=True)
class Throughput:
    """Squared error weighted by the throughput (Ansor, OSDI'20, section 5.2): label y, weight y.

    ``throughput:0.1`` weighs no program less than 0.1, ``throughput:0`` is the formula to the
    letter. Without an argument it is the formula for programs that ran, and failed ones weigh
    :data:`FAILED_WEIGHT`.
    """

    name: str = "throughput"

    def objective(self, examples: Dataset, argument: str, seed: int) -> Squares:
        """Return the loss over some programs."""
        labels = examples.throughput
        if argument:
            floor = _number(self.name, argument, 0.1, 0, 1)
            return Squares(labels, np.maximum(labels, floor))
        return Squares(labels, np.where(examples.failed, FAILED_WEIGHT, labels))


@dataclass(frozen=True, slots=True)
class Squared:
    """Squared error, all programs alike; the label is the throughput to a power, 1 by default.

    ``squared:0.5`` spreads slow programs apart and draws fast ones together.
    """

    name: str = "squared"

    def objective(self, examples: Dataset, argument: str, seed: int) -> Squares:
        """Return the loss over some programs."""
        power = _number(self.name, argument or "1", 0.5, 0.01, 1)
        return Squares(examples.throughput**power, np.ones(len(examples)))


@dataclass(frozen=True, slots=True)
class Log:
    """Squared error of log2(max(throughput, floor) / floor): 0 for failed and slow programs.

    ``log:0.05`` has the floor 0.05; without an argument it is :data:`LEAST_THROUGHPUT`.
    """

    name: str = "log"

    def objective(self, examples: Dataset, argument: str, seed: int) -> Squares:
        """Return the loss over some programs."""
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
        """Return the loss over some programs."""
        power = _number(self.name, argument or "0.3", 0.5, 0.01, 1)
        weights, group = examples.throughput + LEAST_WEIGHT, examples.group
        weights /= _mean_of_groups(weights, np.ones(len(weights)), group)
        return Differences(examples.throughput**power, weights, group)


@dataclass(frozen=True, slots=True)
class Rank:
    """Logistic loss of pairs within a group; scores have no scale.

    Pairs are weighted by the square root of how far their throughputs are apart, because the order
    of near-equal programs is noise. Programs of each group weigh 1 on average. Failed programs are
    worse than all others. ``rank:16`` compares each program with 16 of its group; without an
    argument with :data:`PARTNERS`.
    """

    name: str = "rank"

    def objective(self, examples: Dataset, argument: str, seed: int) -> PairwiseLogistic:
        """Return the loss over some programs."""
        partners = int(_number(self.name, argument, 16, 1, 10_000)) if argument else PARTNERS
        labels = examples.throughput
        pairs = Pairs.from_labels(labels, examples.group, partners, seed)
        around = labels[pairs.order]
        weights = np.sqrt(np.abs(around - around[pairs.ahead]) * np.abs(pairs.signs))
        # A pair weighs for both of its programs.
        totals = 2 * np.bincount(pairs.group, weights.sum(axis=0))
        counts = np.bincount(pairs.group)
        weights *= (counts / np.where(totals > 0, totals, 1))[pairs.group]
        return PairwiseLogistic(labels, np.ones(len(labels)), pairs, weights)


def _mean_of_groups(values: Floats, weights: Floats, group: NDArray[np.int32]) -> Floats:
    """Return for each program the weighted mean over its group, shape (n,)."""
    totals = np.bincount(group, weights)
    means = np.bincount(group, weights * values) / np.where(totals > 0, totals, 1)
    return np.asarray(means[group])


def _placed(values: Floats, order: NDArray[np.int64]) -> Floats:
    """Return values of places by the numbers of their programs."""
    found = np.empty_like(values)
    found[order] = values
    return found


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
