"""Judging recipes: what they reach on what they have not seen, beside baselines, with intervals.

Each split is trained and ranked by all recipes and baselines. Figures are those of a pool; what
is averaged are workloads: all pools of a workload, of several machines and seeds, make one value
of it first, because they are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import combinations
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..run_times import NO_TIME
from . import metrics
from .base import Floats
from .baselines import Baseline, NearestNeighbour, RandomOrder, TVMModel
from .dataset import Dataset
from .metrics import FIGURES, PEAK, TRIALS
from .recipe import Recipe
from .splits import POOLS, REGIMES, Plan, Split, digest, pools
from .training import fit

if TYPE_CHECKING:
    from ..storage.training import TrainingRecords

# ---- What an evaluation found: figures of each workload, their means with intervals, -------------
# differences

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


# ---- Evaluating recipes --------------------------------------------------------------------------

#: Bins of predicted and of measured ranks.
BINS = 20

#: Two in three normal values are within their standard deviation.
_USUAL = 0.683

#: What stands beside recipes unless told otherwise.
BASELINES: tuple[Baseline, ...] = (RandomOrder(), NearestNeighbour(), TVMModel())

#: Called before each training with the number that are done, that of all, and what comes.
OnStep = Callable[[int, int, str], None]


def evaluate(
    examples: Dataset,
    recipes: Mapping[str, Recipe],
    *,
    regimes: Sequence[str] = tuple(REGIMES),
    pools: Sequence[str] = tuple(POOLS),
    seeds: int = 5,
    held_out: int | None = None,
    never: Iterable[int] = (),
    one_by_one: bool = False,
    fewest: int = 10,
    baselines: Sequence[Baseline] = BASELINES,
    noise: Floats | None = None,
    threads: int | None = None,
    on_step: OnStep | None = None,
) -> Evaluation:
    """Judge recipes on what they have not seen.

    Throughputs are shares of the best of a group over all that was measured of it, held out or
    not. That tells a recipe nothing of other workloads; in regime same-workload it tells how far
    the best program that it sees is from the best of all, which an upper bound may know.

    Parameters
    ----------
    examples : Dataset
        All that is known.
    recipes : mapping
        Name → recipe. All are trained on the examples' feature set and labels.
    regimes : sequence of str
        Keys of :data:`tunedb.models.splits.REGIMES`; those that the examples do not allow are left
        out, and the reason is told.
    pools : sequence of str
        Keys of :data:`tunedb.models.splits.POOLS`.
    seeds, held_out, never, one_by_one, fewest
        See :class:`tunedb.models.splits.Plan`.
    baselines : sequence of Baseline
        What else ranks the same pools.
    noise : ndarray of float64, optional
        Deviations of run times (:func:`repeat_noise`), for the noise floor.
    threads : int, optional
        Of XGBoost.
    on_step : callable, optional
        For progress. What it raises ends the evaluation.

    Raises
    ------
    UsageError
        No regime is possible, or names are wrong.
    NotFoundError, PluginError
        A part of a recipe does not exist or load; XGBoost is not installed.
    """
    began = perf_counter()
    _check_names(regimes, pools, recipes, baselines)
    plan = Plan(seeds, held_out, frozenset(never), one_by_one, fewest)
    made, impossible = _make_splits(examples, regimes, plan)
    work = _Work(examples, dict(recipes), tuple(baselines), tuple(pools), noise, threads)
    total = sum(map(len, made.values())) * work.models
    step = on_step or (lambda done, of, text: None)
    for splits in made.values():
        work.judge(splits, fewest, lambda text: step(work.done, total, text))
    results = work.results()
    judged = [regime for regime in made if not any(regime in split for split in work.refused)]
    impossible |= work.refused | _without_pools(judged, pools, results, fewest)
    if not results:
        reasons = "; ".join(f"{name}: {why}" for name, why in impossible.items())
        raise UsageError(f"nothing can be evaluated ({reasons}); measure or import more")
    return Evaluation(
        results=results,
        recipes=dict(recipes),
        baselines=tuple(one.name for one in baselines),
        splits={
            regime: {"splits": len(splits), "digest": digest(examples, splits)}
            for regime, splits in made.items()
        },
        impossible=impossible,
        noise=None if noise is None else float(np.quantile(np.abs(noise), _USUAL)),
        examples=examples.digest.hex(),
        seconds=perf_counter() - began,
    )


def judge(
    examples: Dataset,
    splits: Sequence[Split],
    recipes: Mapping[str, Recipe],
    *,
    pools: Sequence[str] = tuple(POOLS),
    baselines: Sequence[Baseline] = (),
    fewest: int = 10,
    noise: Floats | None = None,
    threads: int | None = None,
) -> tuple[Result, ...]:
    """Return what recipes and baselines reach on splits of one's own.

    Raises
    ------
    UsageError
        There is nothing to learn from, or to rank, in any of them.
    """
    work = _Work(examples, dict(recipes), tuple(baselines), tuple(pools), noise, threads)
    work.judge(splits, fewest, lambda text: None)
    found = work.results()
    if not found:
        raise UsageError("; ".join(work.refused.values()) or "no pool can be ranked")
    return found


def repeat_noise(records: TrainingRecords) -> Floats | None:
    """Return how far run times are off, as the repeats inside records show it.

    Parameters
    ----------
    records : TrainingRecords
        What was measured (:meth:`tunedb.storage.training.Training.records`).

    Returns
    -------
    ndarray of float64, or None
        Logarithm of each run time less the mean of its record's, times sqrt(k / (k - 1)) for k
        times: so their variance is that of a run time. None where no record has two. Sessions
        differ by more than that (``tunedb sessions``).
    """
    owner = np.repeat(np.arange(len(records)), records.n_times)
    repeated = ((records.n_times > 1) & ~records.failed)[owner]
    repeated &= (records.times > 0) & (records.times != NO_TIME)
    owner, logs = owner[repeated], np.log(records.times[repeated])
    counts = np.bincount(owner, minlength=len(records)).astype(np.float64)
    kept = counts[owner] > 1
    owner, logs = owner[kept], logs[kept]
    if not len(logs):
        return None
    size = counts[owner]
    means = (np.bincount(owner, logs, len(records))[owner]) / size
    found: Floats = (logs - means) * np.sqrt(size / (size - 1))
    return found


#: Where one part of what is known of a pool ends and the next begins: figures and peak-score curve,
#: the same of a random order, figures of the noise floor.
_PARTS = np.cumsum([len(FIGURES), PEAK, len(FIGURES), PEAK])


@dataclass(slots=True)
class _Cell:
    """What is known of one model in one regime and kind of pool, summed by workload."""

    sums: dict[int, Floats] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    ranks: Floats = field(default_factory=lambda: np.zeros((BINS, BINS)))
    programs: int = 0

    def add(self, workload: int, values: Floats) -> None:
        """Add a pool of a workload."""
        self.sums[workload] = self.sums.get(workload, 0.0) + values
        self.counts[workload] = self.counts.get(workload, 0) + 1

    def means(self, workloads: Sequence[int]) -> list[Floats]:
        """Return the means over the pools of each workload, in parts."""
        found = np.array([self.sums[i] / self.counts[i] for i in workloads])
        return np.split(found, _PARTS, axis=1)


class _Work:
    """Trains and ranks one split after another."""

    def __init__(
        self,
        examples: Dataset,
        recipes: dict[str, Recipe],
        baselines: tuple[Baseline, ...],
        kinds: tuple[str, ...],
        noise: Floats | None,
        threads: int | None,
    ) -> None:
        self._examples = examples
        self._recipes = recipes
        self._baselines = baselines
        self._chosen = {kind: POOLS[kind](examples) for kind in kinds}
        self._noise = noise
        self._threads = threads
        self._cells: dict[tuple[str, str, str], _Cell] = {}
        self._known: dict[bytes, Floats] = {}
        self.models = len(recipes) + len(baselines)
        self.done = 0
        #: Split → why it was not judged.
        self.refused: dict[str, str] = {}

    def judge(self, splits: Sequence[Split], fewest: int, step: Callable[[str], None]) -> None:
        """Train and rank the splits of one regime."""
        for split in splits:
            before = self.done
            ranked = {kind: self._pools(split, kind, fewest) for kind in self._chosen}
            if not any(ranked.values()):
                self.done += self.models
                continue
            try:
                scores = self._scores(split, step)
            except UsageError as error:
                self.refused[f"{split.regime}, {split.name}"] = str(error)
                self.done = before + self.models
                continue
            for kind, found in ranked.items():
                for pool in found:
                    self._rank(split.regime, kind, pool, scores)

    def _scores(self, split: Split, step: Callable[[str], None]) -> dict[str, Floats]:
        """Return the scores of the held-out programs by each model, NaN for all others."""
        train, test = self._examples.take(split.train), self._examples.take(split.test)
        found = {}
        for name, ranker in self._rankers():
            step(f"{split.regime}, {split.name}: {name}")
            scores = np.full(len(self._examples), np.nan)
            scores[split.test] = ranker(train, test)
            found[name] = scores
            self.done += 1
        return found

    def _rankers(self) -> Iterable[tuple[str, Callable[[Dataset, Dataset], Floats]]]:
        for name, recipe in self._recipes.items():

            def trained(train: Dataset, test: Dataset, recipe: Recipe = recipe) -> Floats:
                model = fit(train, recipe, threads=self._threads).model
                return model.scores(test.rows, test.starts)

            yield name, trained
        for one in self._baselines:

            def asked(train: Dataset, test: Dataset, one: Baseline = one) -> Floats:
                return one.scores(train, test, self._threads)

            yield one.name, asked

    def _pools(self, split: Split, kind: str, fewest: int) -> list[NDArray[np.int64]]:
        """Return the held-out pools of one kind."""
        held_out = np.zeros(len(self._examples), bool)
        held_out[split.test] = True
        return list(pools(self._examples, self._chosen[kind] & held_out, fewest))

    def _rank(
        self, regime: str, kind: str, pool: NDArray[np.int64], scores: dict[str, Floats]
    ) -> None:
        """Add the figures of all models in one pool."""
        throughput = self._examples.throughput[pool]
        workload = int(self._examples.workload[pool[0]])
        beside = self._beside(pool, throughput)
        for name, told in scores.items():
            cell = self._cells.setdefault((regime, kind, name), _Cell())
            figures = metrics.row(metrics.measure(throughput, told[pool]))
            peak = metrics.peak_curve(throughput, told[pool])
            cell.add(workload, np.concatenate((figures, peak, beside)))
            cell.ranks += _joint_ranks(told[pool], throughput)
            cell.programs += len(pool)

    def _beside(self, pool: NDArray[np.int64], throughput: Floats) -> Floats:
        """Return figures and curve of a random order, and the noise floor; kept by pool."""
        key = pool.tobytes()
        if key not in self._known:
            floor = np.full(len(FIGURES), np.nan)
            if self._noise is not None:
                floor = metrics.row(metrics.noise_floor(throughput, self._noise))
            chance = metrics.row(metrics.chance(throughput))
            curve = metrics.peak_curve(throughput, np.zeros(len(pool)))
            self._known[key] = np.concatenate((chance, curve, floor))
        return self._known[key]

    def results(self) -> tuple[Result, ...]:
        """Return what all models reach, in the order in which they were asked for."""
        return tuple(self._result(*key, cell) for key, cell in self._cells.items())

    def _result(self, regime: str, pool: str, model: str, cell: _Cell) -> Result:
        of = self._examples.workloads
        order = sorted(cell.sums, key=lambda i: of[i].digest)
        values, peak, random, random_peak, floor = cell.means(order)
        return Result(
            regime=regime,
            pool=pool,
            model=model,
            workloads=tuple(of[i].digest for i in order),
            values=values,
            random=random,
            floor=None if self._noise is None else floor,
            peak=peak,
            random_peak=random_peak,
            ranks=cell.ranks / cell.ranks.sum(),
            pools=sum(cell.counts.values()),
            programs=cell.programs,
        )


def _joint_ranks(scores: Floats, throughput: Floats) -> Floats:
    """Return the share of a pool's programs by bins of predicted and measured rank."""
    found: Floats = _in_bins(scores).T @ _in_bins(throughput) / len(scores)
    return found


def _in_bins(values: Floats) -> Floats:
    """Return how much of each program's rank, the greatest value first, falls into each bin.

    Equal values share their ranks; n ranks are n equal stretches, so that any number fits.
    """
    n = len(values)
    _, inverse, counts = np.unique(-values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)[inverse, None] / n
    starts = ends - counts[inverse, None] / n
    edges = np.arange(BINS + 1) / BINS
    overlap = np.minimum(ends, edges[1:]) - np.maximum(starts, edges[:-1])
    found: Floats = np.maximum(overlap, 0) / (ends - starts)
    return found


def _make_splits(
    examples: Dataset, regimes: Sequence[str], plan: Plan
) -> tuple[dict[str, list[Split]], dict[str, str]]:
    """Return the splits of each regime, and why others have none."""
    made: dict[str, list[Split]] = {}
    impossible: dict[str, str] = {}
    for regime in regimes:
        try:
            made[regime] = list(REGIMES[regime](examples, plan))
        except UsageError as error:
            impossible[regime] = str(error)
    return made, impossible


def _without_pools(
    regimes: Sequence[str], kinds: Sequence[str], results: Sequence[Result], fewest: int
) -> dict[str, str]:
    """Return the kinds of pools that no split of a regime had, with the reason."""
    known = {(one.regime, one.pool) for one in results}
    return {
        f"{regime}, {kind} pools": f"none has {fewest} held-out programs, one of them faster"
        for regime in regimes
        for kind in kinds
        if (regime, kind) not in known
    }


def _check_names(
    regimes: Sequence[str],
    kinds: Sequence[str],
    recipes: Mapping[str, Recipe],
    baselines: Sequence[Baseline],
) -> None:
    """Raise UsageError for names that nothing has, or that two things have."""
    for what, names, known in (("regime", regimes, REGIMES), ("pool", kinds, POOLS)):
        for name in names:
            if name not in known:
                raise UsageError(f"no {what} {name!r}; there are: {', '.join(known)}")
    if not recipes:
        raise UsageError("give a recipe to evaluate")
    models = [*recipes, *(one.name for one in baselines)]
    for name in models:
        if models.count(name) > 1:
            raise UsageError(f"two models have the name {name!r}; rename one")
