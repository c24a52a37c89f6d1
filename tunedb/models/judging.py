"""A quick judgement of a recipe, for the card of the model that it makes.

It is ``tunedb evaluate`` in little: one regime, workloads that are held out, and few seeds. Each
seed takes about as long as the training itself. What a card promises is watched by
:mod:`tunedb.models.drift`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from ..errors import UsageError
from .base import Floats
from .baselines import NearestNeighbour, RandomOrder
from .evaluation import evaluate
from .examples import Examples
from .findings import Evaluation, Result
from .metrics import FIGURES
from .recipe import Recipe
from .splits import NEW_WORKLOAD, POOLS

#: Name of the model in the figures of a card.
MODEL = "model"

#: Name of the oracle that measures each program once.
FLOOR = "noise floor"

#: Which pool says how good a model is: candidates that no model has chosen yet.
FIRST = "random"

#: Seeds of the splits, and above how many rows there is but one.
_SEEDS, _FEW_ROWS = 3, 30_000


def judge(
    examples: Examples,
    recipe: Recipe,
    *,
    noise: Floats | None = None,
    threads: int | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Return how well a recipe ranks workloads that it has not seen.

    Parameters
    ----------
    examples : Examples
        All that the model is made from, with rows.
    recipe : Recipe
        The model's.
    noise : ndarray of float64 or None
        How far run times are off (:func:`tunedb.models.evaluation.repeat_noise`).
    threads : int or None
        Of XGBoost.
    on_step : callable or None
        Called with the number of trainings that are done, and of all.

    Returns
    -------
    dict
        For JSON: ``pools`` has for each kind of pool the number of ``workloads`` and ``figures``:
        model or baseline → figure → ``[mean, low, high]`` (95 % bootstrap interval over
        workloads), and as ``noise floor`` what an oracle reaches that measures each program once.
        ``pairwise`` is the model's mean in random pools, or in all trials where random ones are too
        few; ``pairwise_p5`` the 5th percentile over workloads, in the kind of pool where it is
        lower: what is below it is drift. Where nothing can be held out ``impossible`` says why,
        and the others are empty or None.
    """
    seeds = 1 if len(examples.rows) > _FEW_ROWS else _SEEDS
    try:
        found = evaluate(
            examples,
            {MODEL: recipe},
            regimes=(NEW_WORKLOAD,),
            seeds=seeds,
            baselines=(RandomOrder(), NearestNeighbour(training_set=recipe.training_set)),
            noise=noise,
            threads=threads,
            on_step=on_step and (lambda done, total, _: on_step(done, total)),
        )
    except UsageError as error:
        return not_judged(str(error))
    judged = [one for pool in POOLS if (one := found.result(NEW_WORKLOAD, pool, MODEL)) is not None]
    first = found.result(NEW_WORKLOAD, FIRST, MODEL) or judged[0]
    return {
        "regime": NEW_WORKLOAD,
        "seeds": seeds,
        "splits": found.splits[NEW_WORKLOAD]["digest"],
        "seconds": found.seconds,
        "pools": {one.pool: _pool(found, one.pool) for one in judged},
        "pairwise": first.summary("pairwise").mean,
        "pairwise_p5": min(float(np.quantile(one.column("pairwise"), 0.05)) for one in judged),
        "impossible": None,
    }


def not_judged(reason: str) -> dict[str, Any]:
    """Return what :func:`judge` returns where nothing can be judged."""
    return {
        "regime": NEW_WORKLOAD,
        "seeds": 0,
        "splits": None,
        "seconds": None,
        "pools": {},
        "pairwise": None,
        "pairwise_p5": None,
        "impossible": reason,
    }


def _pool(found: Evaluation, pool: str) -> dict[str, Any]:
    """Return the figures of all models in one kind of pool."""
    results = [one for one in found.results if one.pool == pool]
    figures = {one.model: _figures(one) for one in results}
    floor = results[0].floor
    if floor is not None:
        means = floor.mean(axis=0).tolist()
        figures[FLOOR] = {name: [x, None, None] for name, x in zip(FIGURES, means, strict=True)}
    return {"workloads": len(results[0].workloads), "figures": figures}


def _figures(result: Result) -> dict[str, list[float | None]]:
    """Return mean and interval of each figure; an interval of one workload is unknown."""
    summaries = {figure: result.summary(figure) for figure in FIGURES}
    return {
        figure: [x if isfinite(x) else None for x in (one.mean, one.low, one.high)]
        for figure, one in summaries.items()
    }
