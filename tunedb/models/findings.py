"""What an evaluation found: figures of each workload, their means with intervals, differences."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations
from math import isfinite
from typing import Any

import numpy as np

from . import metrics
from .base import Floats
from .metrics import FIGURES, TRIALS
from .recipe import Recipe

#: Bootstrap samples of an interval.
RESAMPLES = 10_000

#: Least number of them, and how many times how many values may be where there are more.
_FEWEST_RESAMPLES = 1_000
_DRAWS = 400 * RESAMPLES


@dataclass(frozen=True, slots=True)
class Summary:
    """A figure over workloads; NaN where it is not known.

    Parameters
    ----------
    mean : float
        Over workloads.
    low, high : float
        95 % bootstrap interval of the mean, workloads drawn with replacement; NaN for one.
    tenth : float
        What nine in ten workloads reach: the 10th percentile, of trials the 90th.
    random : float
        The same mean for a random order.
    skill : float
        (mean - random) / (1 - random).
    """

    mean: float
    low: float
    high: float
    tenth: float
    random: float
    skill: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Difference:
    """How much more one model reaches than another, workload by workload.

    Parameters
    ----------
    one, other : str
        Names of the models.
    figure : str
        Which figure.
    mean : float
        Mean of `one` - `other` over the workloads that both ranked.
    low, high : float
        Its 95 % bootstrap interval.
    workloads : int
        How many.
    """

    one: str
    other: str
    figure: str
    mean: float
    low: float
    high: float
    workloads: int


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What one model reaches in one regime, in pools of one kind.

    Parameters
    ----------
    regime, pool, model : str
        Which.
    workloads : tuple of bytes
        Digests of those that were ranked, ascending.
    values : ndarray of float64, shape (workloads, figures)
        Mean figures of each, in the order of :data:`tunedb.models.metrics.FIGURES`.
    random : ndarray of float64, shape (workloads, figures)
        What a random order of the same pools is expected to reach.
    floor : ndarray of float64, shape (workloads, figures), or None
        What an oracle reaches that measures each program once; None where the noise is not known.
    peak, random_peak : ndarray of float64, shape (workloads, 64)
        Peak-score curves (:func:`tunedb.models.metrics.peak_curve`).
    ranks : ndarray of float64, shape (BINS, BINS)
        Share of the programs by predicted and measured rank in their pool, the best first.
    pools, programs : int
        How many were ranked, all splits together.
    """

    regime: str
    pool: str
    model: str
    workloads: tuple[bytes, ...]
    values: Floats
    random: Floats
    floor: Floats | None
    peak: Floats
    random_peak: Floats
    ranks: Floats
    pools: int
    programs: int

    def column(self, figure: str) -> Floats:
        """Return a figure of each workload, shape (workloads,)."""
        return self.values[:, FIGURES.index(figure)]

    def summary(self, figure: str) -> Summary:
        """Return a figure over all workloads."""
        values = self.column(figure)
        random = float(self.random[:, FIGURES.index(figure)].mean())
        low, high = interval(values)
        mean = float(values.mean())
        tenth = np.quantile(values, 0.9 if figure in TRIALS else 0.1)
        skill = float(metrics.skill(np.array(mean), np.array(random)))
        return Summary(mean, low, high, float(tenth), random, skill)


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What recipes and baselines reach.

    Parameters
    ----------
    results : tuple of Result
        By regime, pool and model, in this order.
    recipes : dict
        Name → recipe.
    baselines : tuple of str
        Names.
    splits : dict
        Regime → number of splits, and an identity of what they hold out.
    impossible : dict
        Regime, or a split of one → why it could not be judged.
    noise : float or None
        What two in three run times are off by, relative, where `floor` was computed.
    examples : str
        Digest of what was read.
    seconds : float
        Wall time of it all.
    """

    results: tuple[Result, ...]
    recipes: dict[str, Recipe]
    baselines: tuple[str, ...]
    splits: dict[str, dict[str, Any]]
    impossible: dict[str, str]
    noise: float | None
    examples: str
    seconds: float

    def result(self, regime: str, pool: str, model: str) -> Result | None:
        """Return what a model reaches; None where that was not judged."""
        key = (regime, pool, model)
        found = (one for one in self.results if (one.regime, one.pool, one.model) == key)
        return next(found, None)

    def differences(self, regime: str, pool: str) -> list[Difference]:
        """Return the paired differences of each recipe to those after it, and to all baselines."""
        names = [*self.recipes, *self.baselines]
        found = {name: self.result(regime, pool, name) for name in names}
        return [
            compare(one, other, figure)
            for first, second in combinations(names, 2)
            if first in self.recipes
            and (one := found[first]) is not None
            and (other := found[second]) is not None
            for figure in FIGURES
        ]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON's types; unknown numbers are None."""
        cells = {(one.regime, one.pool): None for one in self.results}
        return {
            "examples": self.examples,
            "recipes": {name: asdict(recipe) for name, recipe in self.recipes.items()},
            "baselines": list(self.baselines),
            "noise": self.noise,
            "splits": self.splits,
            "impossible": self.impossible,
            "seconds": self.seconds,
            "results": [_result_json(one) for one in self.results],
            "differences": [
                {"regime": regime, "pool": pool} | _plain(asdict(one))
                for regime, pool in cells
                for one in self.differences(regime, pool)
            ],
        }


def compare(one: Result, other: Result, figure: str) -> Difference:
    """Return how much more one model reaches than another on the workloads that both ranked.

    They may come of different evaluations, of two feature sets, say.
    """
    shared = sorted(set(one.workloads) & set(other.workloads))
    values = [
        dict(zip(result.workloads, result.column(figure), strict=True)) for result in (one, other)
    ]
    paired = np.array([values[0][i] - values[1][i] for i in shared])
    low, high = interval(paired)
    mean = float(paired.mean()) if shared else float("nan")
    return Difference(one.model, other.model, figure, mean, low, high, len(shared))


def interval(values: Floats) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean of some values; NaN for fewer than two."""
    n = len(values)
    if n < 2:
        return float("nan"), float("nan")
    low, high = np.quantile(_resamples(n) @ values / n, (0.025, 0.975))
    return float(low), float(high)


@lru_cache(maxsize=1)
def _resamples(n: int) -> Floats:
    """Return how often each of n values is in each bootstrap sample, shape (samples, n).

    The same as which ones are drawn, and the mean of a sample is a product. Of more than 400
    values there are fewer samples, a thousand at least: 32 MB at first, and later 8 KB for each
    value. All figures of a table share them.
    """
    samples = min(RESAMPLES, max(_FEWEST_RESAMPLES, _DRAWS // n))
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), samples)
    return drawn.astype(np.float64)


def _result_json(result: Result) -> dict[str, Any]:
    floor = None if result.floor is None else result.floor.mean(axis=0)
    return {
        "regime": result.regime,
        "pool": result.pool,
        "model": result.model,
        "pools": result.pools,
        "programs": result.programs,
        "figures": {name: _plain(asdict(result.summary(name))) for name in FIGURES},
        "noise_floor": None if floor is None else _plain(dict(zip(FIGURES, floor, strict=True))),
        "peak": result.peak.mean(axis=0).tolist(),
        "random_peak": result.random_peak.mean(axis=0).tolist(),
        "ranks": result.ranks.tolist(),
        "workloads": [
            {"digest": key.hex()} | _plain(dict(zip(FIGURES, values, strict=True)))
            for key, values in zip(result.workloads, result.values, strict=True)
        ],
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with Python's floats, and None for what JSON has no number for."""
    return {key: _number(value) for key, value in values.items()}


def _number(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return float(value) if isfinite(value) else None
    return value
