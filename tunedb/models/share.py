"""Share of the best throughput that a predicted program is expected to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np
import orjson

from ..programs.workload_info.distance import distances
from ..records import Signature
from .dataset import ExampleWorkload

#: Least measured predictions of a family; below, those of all families count.
FEWEST_OF_FAMILY = 8

#: Distance beyond which predictions count apart, in octaves: nearer ones reached 0.88 of the best
#: throughput, farther ones 0.6. Apart, the mean error of a held-out share is 0.154, not 0.172.
FAR = 3.0

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
        Mean share of the measured predictions of the family that were as near as :data:`FAR`, or
        as far; None where all predictions were made from nearer workloads.
    """
    known = shipped() if measured is None else measured
    if octaves > max((each.octaves for each in known), default=-1.0):
        return None
    alike = [each for each in known if (each.octaves > FAR) == (octaves > FAR)]
    own = [each.share for each in alike if each.family == family]
    return mean(own if len(own) >= FEWEST_OF_FAMILY else [each.share for each in alike])


@cache
def shipped() -> tuple[MeasuredPrediction, ...]:
    """Return the measured predictions of this release."""
    return tuple(MeasuredPrediction(**row) for row in orjson.loads(MEASURED.read_bytes())["rows"])


def nearest(workload: ExampleWorkload, others: Sequence[ExampleWorkload]) -> float:
    """Return the distance of the nearest workload of a family, in octaves; infinity without one."""
    signatures = [_signature(other) for other in others]
    return float(distances(_signature(workload), signatures).min(initial=np.inf))


def _signature(workload: ExampleWorkload) -> Signature:
    arguments = tuple((None, shape) for shape in workload.shapes)
    return Signature(family=workload.family, arguments=arguments or None)
