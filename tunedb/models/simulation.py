"""Simulation of a search on stored measurements, which take the place of the device.

A pool of measured programs is searched as a task is: in each round a model that has seen the trials
so far compares a part of the other programs, and the best of them and some random ones are
"measured", that is, looked up. So settings of a search are compared in seconds, on many workloads
and seeds, without hardware. Kernel Tuner tunes its own optimisers in this way (Willemsen et al.,
arXiv:2509.26300).

Only pools of randomly drawn programs are used: late programs of a search are all good, which
flatters every order. A pool holds too few neighbours of its best programs to breed new ones, so the
operators of the evolution have no part in a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import NotFoundError, UsageError
from .base import Floats
from .dataset import Dataset, throughput_of
from .evaluation import Difference, interval
from .kernel_regression import LOSS, MOST_OWN, KernelRegression, share_of_trees
from .model import joined_scores
from .recipe import Recipe
from .run_trials import join
from .splits import POOLS, pools
from .training import can_learn, fit, tuning_recipe

#: Least programs of a pool: with fewer, a few random trials find its best.
FEWEST = 48
#: Share of the best throughput of a pool at which a search has found it.
FOUND = 0.95

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Settings of a simulated search.

    Parameters
    ----------
    features : tuple of str
        Feature sets of the models. The first model chooses the finalists; if there is a second, the
        weighted sum of both standardised scores orders them.
    weight : float
        Weight of the second model's score beside 1 for the first.
    batch : int
        Trials of a round.
    population : int
        Most programs that a round compares.
    finalists : int
        Programs that the second model scores, for each trial of a round.
    random : float
        Share of random trials of a round (ε).
    stored : bool
        Whether the programs of other workloads train the models, too.
    regression : bool
        Whether a regression of the trials joins the first model while few others are known
        (:mod:`tunedb.models.kernel_regression`). That needs one row for each program, and the loss
        ``relative``, in whose units it predicts.

    Raises
    ------
    UsageError
        A setting is out of range.
    """

    features: tuple[str, ...] = ("steps",)
    weight: float = 0.25
    batch: int = 16
    population: int = 2_304
    finalists: int = 4
    random: float = 0.05
    stored: bool = False
    regression: bool = True

    def __post_init__(self) -> None:
        if not 1 <= len(self.features) <= 2:
            raise UsageError("a simulated search has one or two feature sets")
        if min(self.batch, self.population, self.finalists) < 1:
            raise UsageError("batch, population and finalists must be 1 or more")
        if not (0 <= self.random <= 1 and 0 <= self.weight < math.inf):
            raise UsageError("the share of random trials must be in 0 … 1, the weight 0 or more")


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """What searches with one setting found.

    Parameters
    ----------
    settings : SearchSettings
        Their settings.
    workloads : tuple of bytes
        Digests of the workloads, ascending.
    curves : ndarray of float64, shape (workloads, trials)
        Best throughput so far, relative to the best of the pool; the mean over seeds and pools.
    found : ndarray of float64, shape (workloads,)
        Trials until within 5 % of the best of the pool, the median over seeds and pools; one more
        than there were if it was not reached.
    """

    settings: SearchSettings
    workloads: tuple[bytes, ...]
    curves: Floats
    found: Floats

    @property
    def areas(self) -> Floats:
        """Mean of each curve, shape (workloads,): how good and how early."""
        areas: Floats = self.curves.mean(axis=1)
        return areas


def difference(one: Simulated, other: Simulated, name: str, beside: str) -> Difference:
    """Return the paired difference of the areas of two settings over workloads."""
    paired = one.areas - other.areas
    low, high = interval(paired)
    return Difference(name, beside, "area", float(paired.mean()), low, high, len(paired))


def simulate(
    examples: Mapping[str, Dataset],
    settings: Sequence[SearchSettings],
    *,
    recipe: Recipe,
    trials: int = 64,
    seeds: int = 5,
    threads: int | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> list[Simulated]:
    """Search all random pools with each of some settings.

    Parameters
    ----------
    examples : mapping of str to Dataset
        Examples of each feature set, of the same programs in the same order (:func:`in_common`).
    settings : sequence of SearchSettings
        Settings to compare.
    recipe : Recipe
        Recipe of the models; its feature set is replaced.
    trials : int
        Trials of each search; in a smaller pool, as many as it has programs.
    seeds : int
        Searches of each pool with each setting; all settings have the same seeds.
    threads : int, optional
        Threads of XGBoost; by default one for each core.
    on_step : callable, optional
        Called with the number of finished searches and of all.

    Returns
    -------
    list of Simulated
        In the order of `settings`.

    Raises
    ------
    NotFoundError
        No pool is large enough.
    """
    reference = next(iter(examples.values()))
    chosen = list(pools(reference, POOLS["random"](reference), FEWEST))
    if not chosen:
        raise NotFoundError(
            f"no workload has {FEWEST} random programs to search; measure some, for example with "
            "tunedb tune --strategy replay-trace"
        )
    total = len(settings) * len(chosen) * seeds
    done = 0
    found = []
    for one in settings:
        curves: dict[bytes, list[Floats]] = {}
        for number, pool in enumerate(chosen):
            search = _Search(examples, pool, one, recipe, threads)
            digest = reference.workloads[reference.workload[pool[0]]].digest
            for seed in range(seeds):
                curves.setdefault(digest, []).append(search.curve(trials, (seed, number)))
                done += 1
                if on_step is not None:
                    on_step(done, total)
        found.append(_summary(one, curves))
    return found


def in_common(examples: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Return the programs that all feature sets have, in the same order."""
    ids = [set(one.program_ids.tolist()) for one in examples.values()]
    shared = sorted(set.intersection(*ids))
    return {name: one.take(np.isin(one.program_ids, shared)) for name, one in examples.items()}


class _Search:
    """Searches of one pool."""

    def __init__(
        self,
        examples: Mapping[str, Dataset],
        pool: Indices,
        settings: SearchSettings,
        recipe: Recipe,
        threads: int | None,
    ) -> None:
        reference = next(iter(examples.values()))
        self._settings = settings
        self._threads = threads
        self._throughput = reference.throughput[pool]
        self._pools = [examples[name].take(pool) for name in settings.features]
        self._recipes = [replace(recipe, features=name) for name in settings.features]
        first = self._pools[0]
        self._has_regression = (
            settings.regression
            and recipe.loss.partition(":")[0] == LOSS
            and bool((first.sizes == 1).all())
        )
        own = reference.workload == reference.workload[pool[0]]
        self._others = [
            examples[name].take(~own) if settings.stored and not own.all() else None
            for name in settings.features
        ]

    def curve(self, trials: int, seed: tuple[int, int]) -> Floats:
        """Return the best throughput so far after each trial."""
        rng = np.random.default_rng(seed)
        settings = self._settings
        measured: list[int] = []
        while len(measured) < min(trials, len(self._throughput)):
            left = np.setdiff1d(np.arange(len(self._throughput)), measured)
            shuffled = rng.permutation(left)
            number = min(settings.batch, trials - len(measured), len(left))
            ranked = self._ranked(shuffled[: settings.population], measured, number)
            # As the search itself: the share of a batch is exact over many rounds.
            share = number * settings.random
            n_best = number - math.floor(share) - int(rng.random() < share % 1)
            picked = dict.fromkeys([*ranked[:n_best].tolist(), *rng.permutation(left).tolist()])
            measured += list(picked)[:number]
        best = np.maximum.accumulate(self._throughput[measured])
        return np.pad(best, (0, trials - len(best)), mode="edge")

    def _ranked(self, numbers: Indices, measured: Sequence[int], batch: int) -> Indices:
        """Return programs of the pool by the models' scores, the best first."""
        first = self._scores(0, numbers, measured)
        if first is None:
            return numbers
        order = np.argsort(-first, kind="stable")
        if len(self._pools) == 1:
            return numbers[order]
        finalists = order[: self._settings.finalists * batch]
        second = self._scores(1, numbers[finalists], measured)
        if second is None:
            return numbers[finalists]
        joined = np.array(joined_scores(first[finalists], second, self._settings.weight))
        return numbers[finalists[np.argsort(-joined, kind="stable")]]

    def _scores(self, model: int, numbers: Indices, measured: Sequence[int]) -> Floats | None:
        """Return a model's scores; None while there is too little to learn from."""
        pool, others = self._pools[model], self._others[model]
        own = pool.take(np.array(measured, np.int64))
        # Relative to the best trial so far, not to the best of the pool.
        own = replace(own, throughput=throughput_of(own.seconds, own.group))
        examples = own if others is None else join(others, own)
        if not can_learn(examples):
            return None
        recipe = tuning_recipe(self._recipes[model], int(examples.sizes.sum()))
        fitted = fit(examples, recipe, threads=self._threads).model
        # A subset is in the order of its numbers.
        asked = pool.take(numbers)
        scores = fitted.scores(asked.rows, asked.starts)
        if model == 0 and len(own) and self._has_regression:
            share = share_of_trees(len(own), len(examples) - len(own))
            last = own.take(np.isin(np.sort(measured), measured[-MOST_OWN:]))
            trees = fitted.scores(last.rows, last.starts)
            regression = KernelRegression.fit(last.rows, last.throughput, trees, share)
            scores = regression.scores(asked.rows, scores)
        return scores[np.argsort(np.argsort(numbers))]


def _summary(settings: SearchSettings, curves: Mapping[bytes, Sequence[Floats]]) -> Simulated:
    """Return the means of the curves of each workload."""
    digests = tuple(sorted(curves))
    means, found = [], []
    for digest in digests:
        each = np.stack(curves[digest])
        means.append(each.mean(axis=0))
        found.append(float(np.median((each < FOUND).sum(axis=1) + 1)))
    return Simulated(settings, digests, np.stack(means), np.array(found))
