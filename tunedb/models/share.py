"""Expected share of the best: what a model's first choice reached on held-out workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..programs.workload_info.distance import distances
from ..records import Signature
from .base import Floats
from .dataset import Dataset, ExampleWorkload
from .model import Model
from .splits import pools, shape_class

#: Parts of the workloads; each is held out once.
FOLDS = 3

#: Least programs of a held-out workload, and the held-out workloads that one figure is the mean of.
FEWEST, WORKLOADS = 10, 8


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedShare:
    """Share of the best throughput that a model's first choice of a workload's programs reaches.

    Parameters
    ----------
    workloads : tuple of ExampleWorkload
        Workloads of the training set.
    distances : ndarray of float64, shape (n,)
        Distance of each held-out workload from the nearest of its training set, in octaves.
    shares : ndarray of float64, shape (n,)
        Throughput of the first choice / best throughput of that workload.
    """

    workloads: tuple[ExampleWorkload, ...]
    distances: Floats
    shares: Floats

    def of(self, workload: ExampleWorkload) -> float | None:
        """Return the mean share of the held-out workloads that are as far away as a workload.

        None where too few could be held out, or all of them were nearer.
        """
        far = nearest(workload, self.workloads)
        if len(self.shares) < WORKLOADS or far > self.distances.max():
            return None
        alike = np.argsort(np.abs(self.distances - far), kind="stable")[:WORKLOADS]
        return float(self.shares[alike].mean())


def expected_share(examples: Dataset, train: Callable[[Dataset], Model | None]) -> ExpectedShare:
    """Hold each workload out once, and rank its programs by a model of others.

    Parameters
    ----------
    examples : Dataset
        With rows.
    train : callable
        Returns a model of some examples, None if these are too few.
    """
    # Nearly equal shapes are on one side.
    classes = sorted({shape_class(each) for each in examples.workloads}, key=repr)
    fold_of = {shapes: number % FOLDS for number, shapes in enumerate(classes)}
    folds = np.array([fold_of[shape_class(each)] for each in examples.workloads])
    found: list[tuple[float, float]] = []
    for fold in range(FOLDS):
        held = folds[examples.workload] == fold
        model = train(examples.take(~held))
        if model is None:
            continue
        others = [examples.workloads[number] for number in np.unique(examples.workload[~held])]
        for pool in pools(examples, held, FEWEST):
            one = examples.take(pool)
            far = nearest(one.workloads[one.workload[0]], others)
            if np.isfinite(far):
                scores = model.scores(one.rows, one.starts)
                first = one.throughput[scores == scores.max()].mean()
                found.append((far, float(first / one.throughput.max())))
    columns = np.array(found, np.float64).reshape(-1, 2)
    return ExpectedShare(examples.workloads, columns[:, 0], columns[:, 1])


def nearest(workload: ExampleWorkload, others: Sequence[ExampleWorkload]) -> float:
    """Return the distance of the nearest workload of a family, in octaves; infinity without one."""
    signatures = [_signature(other) for other in others]
    return float(distances(_signature(workload), signatures).min(initial=np.inf))


def _signature(workload: ExampleWorkload) -> Signature:
    arguments = tuple((None, shape) for shape in workload.shapes)
    return Signature(family=workload.family, arguments=arguments or None)
