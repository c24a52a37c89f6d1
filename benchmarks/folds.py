"""Leave one workload out: the model, the figures of a ranking, and their uncertainty.

The model is that of Ansor (Zheng et al., OSDI 2020, section 5.2): the score of a program is the
sum of what XGBoost says of its rows, and what is fitted is the squared error of that sum against
the program's throughput, as a share of its workload's best. A feature set with one row for each
program is the case of one term.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = Sequence[NDArray[np.float32]]

#: Chosen on `ansor.per_store/tvm` alone, where no other depth (4, 8), number of rounds (300), share
#: of columns or regularisation was better by more than the noise. Columns are sampled so that seeds
#: differ.
PARAMETERS: dict[str, Any] = {
    "tree_method": "hist",
    "max_depth": 6,
    "eta": 0.1,
    "min_child_weight": 0,
    "colsample_bytree": 0.3,
    "nthread": 1,
}
ROUNDS = 100

#: A figure of a workload is the mean over models with these seeds.
SEEDS = (0, 1, 2)

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Pool:
    """The measured programs of one workload.

    Parameters
    ----------
    seconds : ndarray of float64, shape (n,)
        Mean run time of each program.
    rows : list of ndarray of float32, shape (k_i, columns)
        Its features.
    """

    seconds: Floats
    rows: Rows

    @property
    def throughput(self) -> Floats:
        """Best run time of the workload / run time, in (0, 1]."""
        share: Floats = self.seconds.min() / self.seconds
        return share


@dataclass(frozen=True, slots=True)
class Figures:
    """How well the programs of one workload are ranked; 1 is perfect.

    Parameters
    ----------
    pairwise : float
        Share of the pairs of programs that are ordered as they were measured. Pairs with equal
        run times are left out; a pair with equal scores counts one half.
    top1, top5 : float
        Best run time of all / best run time among the one or five programs of highest score.
    """

    pairwise: float
    top1: float
    top5: float


def owners(rows: Rows) -> NDArray[np.int64]:
    """Return for each row of all programs the number of its program."""
    return np.repeat(np.arange(len(rows)), [len(one) for one in rows])


def fit(pools: Sequence[Pool], seed: int, *, weighted: bool = False) -> xgboost.Booster:
    """Return a model of the programs of some workloads.

    Parameters
    ----------
    pools : sequence of Pool
        What to learn from. A program without rows says nothing.
    seed : int
        Of the columns' sample.
    weighted : bool
        Weight each program with its throughput, as Ansor does.
    """
    rows = [one for pool in pools for one in pool.rows]
    labels = np.concatenate([pool.throughput for pool in pools])
    owner, count = owners(rows), len(rows)
    sizes = np.bincount(owner, minlength=count)
    weights = labels if weighted else np.ones(count)
    # The rows of a program move together when they share a leaf. A Hessian without their number
    # makes the step too long by that factor; boosting then diverges from some ten rows on.
    hessian = (weights * sizes)[owner].astype(np.float32)

    def objective(prediction: Floats, _: xgboost.DMatrix) -> tuple[Any, Any]:
        error = weights * (np.bincount(owner, prediction, count) - labels)
        return error[owner].astype(np.float32), hessian

    base = (weights * labels).sum() / (weights * sizes).sum()
    return xgboost.train(
        {**PARAMETERS, "base_score": float(base), "seed": seed},
        xgboost.QuantileDMatrix(np.concatenate(rows), nthread=PARAMETERS["nthread"]),
        ROUNDS,
        obj=objective,
    )


def scores(model: xgboost.Booster, rows: Rows) -> Floats:
    """Return the score of each program; 0 where it has no rows."""
    predicted = model.inplace_predict(np.concatenate(rows))
    summed: Floats = np.bincount(owners(rows), predicted, len(rows))
    return summed


def figures(seconds: Floats, score: Floats) -> Figures:
    """Compare the scores of a workload's programs, the higher the better, to their run times."""
    left, right = np.triu_indices(len(seconds), 1)
    true = np.sign(seconds[right] - seconds[left])
    told = np.sign(score[left] - score[right])
    agreed = np.where(told == 0, 0.5, told == true)[true != 0]
    best = np.argsort(-score, kind="stable")
    top = [float(seconds.min() / seconds[best[:k]].min()) for k in (1, 5)]
    return Figures(float(agreed.mean()), *top)


def random_figures(seconds: Floats) -> Figures:
    """Return what a random order is expected to reach."""
    share = seconds.min() / np.sort(seconds)
    n = len(share)
    # The i-th best program is the best of k with probability C(n - 1 - i, k - 1) / C(n, k).
    top = [
        sum(comb(n - 1 - i, k - 1) * share[i] for i in range(n - k + 1)) / comb(n, k)
        for k in (1, 5)
    ]
    return Figures(0.5, *map(float, top))


def leave_one_out(pools: Sequence[Pool], *, weighted: bool = False) -> list[Figures]:
    """Return for each workload the figures of models that learned from all others."""

    def rank(held: Pool) -> Figures:
        others = [pool for pool in pools if pool is not held]
        models = [fit(others, seed, weighted=weighted) for seed in SEEDS]
        runs = [figures(held.seconds, scores(model, held.rows)) for model in models]
        columns = zip(*((run.pairwise, run.top1, run.top5) for run in runs), strict=True)
        return Figures(*(float(np.mean(column)) for column in columns))

    # XGBoost runs without the GIL; one thread for each model keeps models reproducible.
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        return list(executor.map(rank, pools))


def interval(differences: Floats, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a mean: the values are drawn with replacement."""
    random = np.random.default_rng(seed)
    drawn = random.choice(differences, (RESAMPLES, len(differences))).mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)
