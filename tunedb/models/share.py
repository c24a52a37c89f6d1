"""How near predictions come to the best: of models on held-out workloads, and of whole programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np
import orjson

from ..programs.workload_info.distance import distances
from ..records import Signature
from .base import Floats
from .dataset import Dataset, ExampleWorkload
from .model import Model
from .splits import pools, shape_class

#: Parts of the workloads; each is held out once.
FOLDS = 3

#: Least programs of a held-out workload.
FEWEST = 10

#: Least measured predictions of a family; below, those of all families count.
FEWEST_OF_FAMILY = 8

#: Predictions that were measured beside the best programs of the prior of this release.
MEASURED = Path(__file__).parents[1] / "prior" / "predictions.json"


@dataclass(frozen=True, slots=True)
class MeasuredPrediction:
    """A predicted program that was measured beside the best known one.

    Parameters
    ----------
    family : str
        Family of the workload.
    octaves : float
        Distance from the nearest workload that the model knew (:func:`nearest`).
    share : float
        Throughput / best throughput of the workload.
    """

    family: str
    octaves: float
    share: float


def expected_share(
    family: str | None, octaves: float, measured: Sequence[MeasuredPrediction] | None = None
) -> float | None:
    """Return the share of the best throughput that a predicted program is expected to reach.

    Parameters
    ----------
    family : str or None
        Family of the workload.
    octaves : float
        Distance from the nearest workload that the model knows (:func:`nearest`).
    measured : sequence of MeasuredPrediction, optional
        Those of :data:`MEASURED` by default.

    Returns
    -------
    float or None
        Mean share of the measured predictions of the family; None where all predictions were made
        from nearer workloads.
    """
    known = shipped() if measured is None else measured
    if octaves > max((each.octaves for each in known), default=-1.0):
        return None
    own = [each.share for each in known if each.family == family]
    return mean(own if len(own) >= FEWEST_OF_FAMILY else [each.share for each in known])


@cache
def shipped() -> tuple[MeasuredPrediction, ...]:
    """Return the measured predictions of this release."""
    return tuple(MeasuredPrediction(**row) for row in orjson.loads(MEASURED.read_bytes())["rows"])


def shares_of_first_choices(examples: Dataset, train: Callable[[Dataset], Model | None]) -> Floats:
    """Hold each workload out once, and rank its programs by a model of others.

    Parameters
    ----------
    examples : Dataset
        With rows.
    train : callable
        Returns a model of some examples, None if these are too few.

    Returns
    -------
    ndarray of float64, shape (n,)
        Throughput of the model's first choice / best throughput, of each held-out workload of a
        family that others have, too.
    """
    # Nearly equal shapes are on one side.
    classes = sorted({shape_class(each) for each in examples.workloads}, key=repr)
    fold_of = {shapes: number % FOLDS for number, shapes in enumerate(classes)}
    folds = np.array([fold_of[shape_class(each)] for each in examples.workloads])
    found: list[float] = []
    for fold in range(FOLDS):
        held = folds[examples.workload] == fold
        model = train(examples.take(~held))
        if model is None:
            continue
        others = [examples.workloads[number] for number in np.unique(examples.workload[~held])]
        for pool in pools(examples, held, FEWEST):
            one = examples.take(pool)
            if np.isfinite(nearest(one.workloads[one.workload[0]], others)):
                scores = model.scores(one.rows, one.starts)
                first = one.throughput[scores == scores.max()].mean()
                found.append(float(first / one.throughput.max()))
    return np.array(found, np.float64)


def nearest(workload: ExampleWorkload, others: Sequence[ExampleWorkload]) -> float:
    """Return the distance of the nearest workload of a family, in octaves; infinity without one."""
    signatures = [_signature(other) for other in others]
    return float(distances(_signature(workload), signatures).min(initial=np.inf))


def _signature(workload: ExampleWorkload) -> Signature:
    arguments = tuple((None, shape) for shape in workload.shapes)
    return Signature(family=workload.family, arguments=arguments or None)
