"""Drift of models: predicted against measured ranks of the programs of tuning runs.

Each prediction of the ledger precedes the measurement of its program, so the ledger is an unbiased
test, and the only one on the programs that a search selects. Predictions of the same model,
workload and target form a pool, because scores of other models or workloads have other scales.
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

#: Minimum number of trials for a drift alarm: for 16 programs in random order, one pairwise
#: accuracy in ten is below 0.38.
FEWEST = 16


@dataclass(frozen=True, slots=True)
class Drift:
    """The ranking accuracy of a model on the programs of a workload and target.

    Parameters
    ----------
    model_id, workload_id, target_id : int
        Local numbers.
    trials : int
        Programs with a prediction and a measurement.
    failed : int
        Programs that failed; they rank below all others.
    pairwise : float or None
        Pairwise accuracy; None if no program was faster than another.
    threshold : float or None
        Alarm threshold of the card: 5th percentile over held-out workloads; None for a model
        without an evaluation.
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
        """True if the accuracy is below the threshold; None if trials or threshold are missing."""
        if self.pairwise is None or self.threshold is None or self.trials < FEWEST:
            return None
        return self.pairwise < self.threshold


def drift(store: Store, model_id: int | None = None) -> list[Drift]:
    """Return the drift of a model, or of all models with predictions.

    Parameters
    ----------
    store : Store
        Store of the database.
    model_id : int or None
        Local number of the model; None for all.

    Returns
    -------
    list of Drift
        Sorted by model, workload and target.
    """
    thresholds = {
        model.id: model.card.get("drift", {}).get("pairwise_p5") for model in store.models.all()
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
    # Failed trials have no time, or 0.
    throughput = np.array([1 / trial.mean if trial.mean else 0.0 for trial in pool])
    scores = np.array([trial.score for trial in pool])
    pairwise = pairwise_accuracy(throughput, scores) if is_rankable(throughput) else None
    failed = int(np.count_nonzero(throughput == 0))
    return Drift(model_id, workload_id, target_id, len(pool), failed, pairwise, threshold)


def ranks(trials: Iterable[Trial]) -> list[tuple[Trial, int, int | None]]:
    """Return each trial with its rank by score and by time in its pool, both from 1.

    Failed programs have no rank by time. Equal scores are in the order of measurement.
    """
    ranked = []
    for _, members in groupby(sorted(trials, key=_pool), key=_pool):
        pool = list(members)
        by_score = sorted(range(len(pool)), key=lambda i: -pool[i].score)
        worked = [i for i, trial in enumerate(pool) if trial.mean]
        by_time = sorted(worked, key=lambda i: pool[i].mean or 0.0)
        predicted = {i: place for place, i in enumerate(by_score, start=1)}
        measured = {i: place for place, i in enumerate(by_time, start=1)}
        ranked += [(trial, predicted[i], measured.get(i)) for i, trial in enumerate(pool)]
    return ranked
