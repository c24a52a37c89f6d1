"""Whether models still rank what is measured as well as they did: predicted against measured.

Each prediction of the ledger was made before its program was measured, so the ledger is an honest
test, and the only one on the programs that a search chooses. Those of one model, workload and
target are ranked against each other, because scores of other models or workloads have other scales.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from .metrics import is_rankable, pairwise_accuracy

if TYPE_CHECKING:
    from ..storage.store import Store
    from ..storage.training import Trial

#: Trials below which no drift is told: among 16 programs in random order, one pairwise accuracy in
#: ten is below 0.38.
FEWEST = 16


@dataclass(frozen=True, slots=True)
class Drift:
    """How a model ranked the programs of a workload on a target.

    Parameters
    ----------
    model_id, workload_id, target_id : int
        Local numbers.
    trials : int
        Programs that were predicted and measured.
    failed : int
        Those of them that never worked; they count as slower than all others.
    pairwise : float or None
        Pairwise accuracy; None where no program was faster than another.
    threshold : float or None
        The card's alarm: 5th percentile over held-out workloads; None for a model that was not
        judged.
    """

    model_id: int
    workload_id: int
    target_id: int
    trials: int
    failed: int
    pairwise: float | None
    threshold: float | None

    @property
    def drifted(self) -> bool | None:
        """Whether the model ranks worse than its card promises; None where nobody can tell."""
        if self.pairwise is None or self.threshold is None or self.trials < FEWEST:
            return None
        return self.pairwise < self.threshold


def drift(store: Store, model_id: int | None = None) -> list[Drift]:
    """Return the drift of a model, or of all that predicted something.

    Parameters
    ----------
    store : Store
        Reads the database.
    model_id : int or None
        Local number of the model.

    Returns
    -------
    list of Drift
        By model, then workload and target.
    """
    thresholds = {
        one.id: one.card.get("drift", {}).get("pairwise_p5") for one in store.models.all()
    }
    trials = sorted(store.training.trials(model_id), key=_pool)
    return [
        _drift(*key, list(pool), thresholds[key[0]]) for key, pool in groupby(trials, key=_pool)
    ]


def _pool(trial: Trial) -> tuple[int, int, int]:
    return trial.model_id, trial.workload_id, trial.target_id


def _drift(
    model_id: int, workload_id: int, target_id: int, pool: list[Trial], threshold: float | None
) -> Drift:
    # A time of 0 is no time.
    throughput = np.array([1 / one.mean if one.mean else 0.0 for one in pool])
    scores = np.array([one.score for one in pool])
    pairwise = pairwise_accuracy(throughput, scores) if is_rankable(throughput) else None
    failed = int(np.count_nonzero(throughput == 0))
    return Drift(model_id, workload_id, target_id, len(pool), failed, pairwise, threshold)


def ranks(trials: Iterable[Trial]) -> list[tuple[Trial, int, int | None]]:
    """Return each trial with its place by score and by time in its pool, both from 1.

    Failed programs have no place by time. Equal scores are in the order of measurement.
    """
    found = []
    for _, members in groupby(sorted(trials, key=_pool), key=_pool):
        pool = list(members)
        by_score = sorted(range(len(pool)), key=lambda i: -pool[i].score)
        worked = [i for i, one in enumerate(pool) if one.mean]
        by_time = sorted(worked, key=lambda i: pool[i].mean or 0.0)
        predicted = {i: place for place, i in enumerate(by_score, start=1)}
        measured = {i: place for place, i in enumerate(by_time, start=1)}
        found += [(one, predicted[i], measured.get(i)) for i, one in enumerate(pool)]
    return found
