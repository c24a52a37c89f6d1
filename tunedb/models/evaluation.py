"""Evaluation of recipes on held-out programs, beside baselines, with confidence intervals.

All recipes and baselines train on each split and rank its held-out programs. Figures are computed
by pool and averaged over workloads: all pools of a workload, on several machines and by several
seeds, are averaged first, because they are not independent.
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
from .splits import POOLS, REGIMES, Regime, Split, SplitPlan, digest, pools
from .training import fit

if TYPE_CHECKING:
    from ..storage.training import TrainingRecords

# ---- Results: figures of each workload, means with intervals, differences ------------------------

#: Bootstrap samples of an interval.
RESAMPLES = 10_000

#: Minimum number of bootstrap samples, and the limit of samples · values above it.
_FEWEST_RESAMPLES = 1_000
_DRAWS = 400 * RESAMPLES


@dataclass(frozen=True, slots=True)
class FigureSummary:
    """The statistics of a figure over workloads; NaN if unknown.

    Parameters
    ----------
    mean : float
        Mean over workloads.
    low, high : float
        95 % bootstrap interval of the mean, workloads drawn with replacement; NaN for one workload.
    tenth : float
        The value that nine in ten workloads reach: 10th percentile (90th for numbers of trials).
    random : float
        Mean for a random order.
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
    """The paired difference of a figure between two models over workloads.

    Parameters
    ----------
    one, other : str
        Names of the models.
    figure : str
        Name of the figure.
    mean : float
        Mean of `one` - `other` over the workloads that both models ranked.
    low, high : float
        95 % bootstrap interval of the mean.
    workloads : int
        Number of these workloads.
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
    """The figures of a model in a regime, in pools of one kind.

    Parameters
    ----------
    regime, pool, model : str
        Names of the regime, the kind of pool, and the model.
    workloads : tuple of bytes
        Digests of the ranked workloads, ascending.
    values : ndarray of float64, shape (workloads, figures)
        Mean figures of each workload, in the order of :data:`tunedb.models.metrics.FIGURES`.
    random : ndarray of float64, shape (workloads, figures)
        Expected figures of a random order of the same pools.
    floor : ndarray of float64, shape (workloads, figures), or None
        Figures of an oracle that measures each program once; None if the noise is unknown.
    peak, random_peak : ndarray of float64, shape (workloads, 64)
        Peak-score curves (:func:`tunedb.models.metrics.peak_curve`).
    ranks : ndarray of float64, shape (BINS, BINS)
        Share of the programs by predicted and measured rank in their pool, the best first.
    pools, programs : int
        Numbers of ranked pools and programs over all splits.
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

    def summary(self, figure: str) -> FigureSummary:
        """Return the statistics of a figure over all workloads."""
        values = self.column(figure)
        random = float(self.random[:, FIGURES.index(figure)].mean())
        low, high = interval(values)
        mean = float(values.mean())
        tenth = np.quantile(values, 0.9 if figure in TRIALS else 0.1)
        skill = float(metrics.skill(np.array(mean), np.array(random)))
        return FigureSummary(mean, low, high, float(tenth), random, skill)


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The results of recipes and baselines.

    Parameters
    ----------
    results : tuple of Result
        Sorted by regime, pool and model.
    recipes : dict
        Name → recipe.
    baselines : tuple of str
        Names of the baselines.
    splits : dict
        Regime → number of splits, and a digest of their held-out programs.
    impossible : dict
        Regime, or a split of it → reason why it has no results.
    noise : float or None
        Relative error that two in three run times stay below; None without `floor`.
    examples : str
        Digest of the examples.
    seconds : float
        Wall time.
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
        """Return the result of a model, or None."""
        key = (regime, pool, model)
        matches = (
            result for result in self.results if (result.regime, result.pool, result.model) == key
        )
        return next(matches, None)

    def differences(self, regime: str, pool: str) -> list[Difference]:
        """Return the paired differences of each recipe to later recipes and to all baselines."""
        names = [*self.recipes, *self.baselines]
        results = {name: self.result(regime, pool, name) for name in names}
        return [
            compare(first_result, second_result, figure)
            for first, second in combinations(names, 2)
            if first in self.recipes
            and (first_result := results[first]) is not None
            and (second_result := results[second]) is not None
            for figure in FIGURES
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as JSON types; unknown numbers are None."""
        cells = {(result.regime, result.pool): None for result in self.results}
        return {
            "examples": self.examples,
            "recipes": {name: asdict(recipe) for name, recipe in self.recipes.items()},
            "baselines": list(self.baselines),
            "noise": self.noise,
            "splits": self.splits,
            "impossible": self.impossible,
            "seconds": self.seconds,
            "results": [_result_json(result) for result in self.results],
            "differences": [
                {"regime": regime, "pool": pool} | _plain(asdict(difference))
                for regime, pool in cells
                for difference in self.differences(regime, pool)
            ],
        }


def compare(first: Result, second: Result, figure: str) -> Difference:
    """Return the paired difference `first` - `second` over the workloads that both models ranked.

    The results may come from different evaluations, for example of two feature sets.
    """
    shared = sorted(set(first.workloads) & set(second.workloads))
    values = [
        dict(zip(result.workloads, result.column(figure), strict=True))
        for result in (first, second)
    ]
    paired = np.array([values[0][i] - values[1][i] for i in shared])
    low, high = interval(paired)
    mean = float(paired.mean()) if shared else float("nan")
    return Difference(first.model, second.model, figure, mean, low, high, len(shared))


def interval(values: Floats) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean of values; NaN for fewer than two."""
    n = len(values)
    if n < 2:
        return float("nan"), float("nan")
    low, high = np.quantile(_resamples(n) @ values / n, (0.025, 0.975))
    return float(low), float(high)


@lru_cache(maxsize=1)
def _resamples(n: int) -> Floats:
    """Return the count of each of n values in each bootstrap sample, shape (samples, n).

    With counts, the means of samples are a matrix product. Above 400 values there are fewer
    samples, at least a thousand, which bounds memory to 32 MB, or 8 KB per value.
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
    """Return values with Python floats, and None for numbers that JSON cannot represent."""
    return {key: _number(value) for key, value in values.items()}


def _number(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return float(value) if isfinite(value) else None
    return value


# ---- Evaluating recipes --------------------------------------------------------------------------

#: Bins of predicted and of measured ranks.
BINS = 20

#: Share of normal values within one standard deviation.
_USUAL = 0.683

#: Default baselines.
BASELINES: tuple[Baseline, ...] = (RandomOrder(), NearestNeighbour(), TVMModel())

#: Callback before each training; takes the number of finished trainings, of all, and a title.
OnStep = Callable[[int, int, str], None]


def evaluate(
    examples: Dataset,
    recipes: Mapping[str, Recipe],
    *,
    regimes: Sequence[str] = tuple(REGIMES),
    makers: Mapping[str, Regime] = REGIMES,
    pools: Sequence[str] = tuple(POOLS),
    seeds: int = 5,
    held_out: int | None = None,
    never: Iterable[int] = (),
    leave_one_out: bool = False,
    fewest: int = 10,
    baselines: Sequence[Baseline] = BASELINES,
    noise: Floats | None = None,
    threads: int | None = None,
    on_step: OnStep | None = None,
) -> Evaluation:
    """Evaluate recipes on held-out programs.

    Throughputs are relative to the best measured program of the group, held out or not. This
    leaks nothing about other workloads; in regime same-workload it leaks the distance of the best
    training program to the best of all, which is acceptable for an upper bound.

    Parameters
    ----------
    examples : Dataset
        All examples, with rows.
    recipes : mapping
        Name → recipe. All train on the examples' feature set and labels.
    regimes : sequence of str
        Keys of `makers`; regimes that the examples do not allow are left out, with a reason in
        :attr:`Evaluation.impossible`.
    makers : mapping
        Regimes by name; those of :class:`tunedb.models.transfer.Transfer` train on one database
        and test on another.
    pools : sequence of str
        Keys of :data:`tunedb.models.splits.POOLS`.
    seeds, held_out, never, leave_one_out, fewest
        See :class:`tunedb.models.splits.SplitPlan`.
    baselines : sequence of Baseline
        Baselines, which rank the same pools.
    noise : ndarray of float64, optional
        Deviations of run times (:func:`repeat_noise`), for the noise floor.
    threads : int, optional
        Threads of XGBoost.
    on_step : callable, optional
        Progress callback. An exception in it ends the evaluation.

    Raises
    ------
    UsageError
        No regime is possible, or a name is unknown or used twice.
    NotFoundError, PluginError
        A part of a recipe does not exist or load; XGBoost is not installed.
    """
    began = perf_counter()
    _check_names(regimes, makers, pools, recipes, baselines)
    plan = SplitPlan(seeds, held_out, frozenset(never), leave_one_out, fewest)
    splits_of_regime, impossible = _make_splits(
        examples, {name: makers[name] for name in regimes}, plan
    )
    evaluator = _Evaluator(examples, dict(recipes), tuple(baselines), tuple(pools), noise, threads)
    total = sum(map(len, splits_of_regime.values())) * evaluator.models
    step = on_step or (lambda done, of, text: None)
    for splits in splits_of_regime.values():
        evaluator.evaluate(splits, fewest, lambda text: step(evaluator.done, total, text))
    results = evaluator.results()
    trained = [
        regime
        for regime in splits_of_regime
        if not any(regime in split for split in evaluator.skipped)
    ]
    impossible |= evaluator.skipped | _without_pools(trained, pools, results, fewest)
    if not results:
        reasons = "; ".join(f"{name}: {why}" for name, why in impossible.items())
        raise UsageError(f"nothing can be evaluated ({reasons}); measure or import more")
    return Evaluation(
        results=results,
        recipes=dict(recipes),
        baselines=tuple(baseline.name for baseline in baselines),
        splits={
            regime: {"splits": len(splits), "digest": digest(examples, splits)}
            for regime, splits in splits_of_regime.items()
        },
        impossible=impossible,
        noise=None if noise is None else float(np.quantile(np.abs(noise), _USUAL)),
        examples=examples.digest.hex(),
        seconds=perf_counter() - began,
    )


def evaluate_splits(
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
    """Return the results of recipes and baselines on given splits.

    Parameters are those of :func:`evaluate`.

    Raises
    ------
    UsageError
        No split has both training data and pools to rank.
    """
    evaluator = _Evaluator(examples, dict(recipes), tuple(baselines), tuple(pools), noise, threads)
    evaluator.evaluate(splits, fewest, lambda text: None)
    results = evaluator.results()
    if not results:
        raise UsageError("; ".join(evaluator.skipped.values()) or "no pool can be ranked")
    return results


def repeat_noise(records: TrainingRecords) -> Floats | None:
    """Return the noise of run times, estimated from the repeats of each record.

    Parameters
    ----------
    records : TrainingRecords
        Measured records (:meth:`tunedb.storage.training.Training.records`).

    Returns
    -------
    ndarray of float64, or None
        Logarithm of each run time minus the mean of its record, times sqrt(k / (k - 1)) for k
        repeats, so that the variance is that of a single run. None if no record has two repeats.
        The noise between sessions is larger (``tunedb sessions``).
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
    deviations: Floats = (logs - means) * np.sqrt(size / (size - 1))
    return deviations


#: Boundaries of the values of a pool: figures and peak-score curve, the same of a random order,
#: figures of the noise floor.
_PARTS = np.cumsum([len(FIGURES), PEAK, len(FIGURES), PEAK])


@dataclass(slots=True)
class _Cell:
    """The values of a model in a regime and kind of pool, summed by workload."""

    sums: dict[int, Floats] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    ranks: Floats = field(default_factory=lambda: np.zeros((BINS, BINS)))
    programs: int = 0

    def add(self, workload: int, values: Floats) -> None:
        """Add a pool of a workload."""
        self.sums[workload] = self.sums.get(workload, 0.0) + values
        self.counts[workload] = self.counts.get(workload, 0) + 1

    def means(self, workloads: Sequence[int]) -> list[Floats]:
        """Return the means over the pools of each workload, split at the boundaries."""
        means = np.array([self.sums[i] / self.counts[i] for i in workloads])
        return np.split(means, _PARTS, axis=1)


class _Evaluator:
    """The training and ranking of splits, with their accumulated results."""

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
        #: Split → reason why it has no results.
        self.skipped: dict[str, str] = {}

    def evaluate(self, splits: Sequence[Split], fewest: int, step: Callable[[str], None]) -> None:
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
                self.skipped[f"{split.regime}, {split.name}"] = str(error)
                self.done = before + self.models
                continue
            for kind, pools_of_kind in ranked.items():
                for pool in pools_of_kind:
                    self._rank(split.regime, kind, pool, scores)

    def _scores(self, split: Split, step: Callable[[str], None]) -> dict[str, Floats]:
        """Return the scores of the held-out programs by each model; NaN for all others."""
        train, test = self._examples.take(split.train), self._examples.take(split.test)
        scores_by_model = {}
        for name, ranker in self._rankers():
            step(f"{split.regime}, {split.name}: {name}")
            scores = np.full(len(self._examples), np.nan)
            scores[split.test] = ranker(train, test)
            scores_by_model[name] = scores
            self.done += 1
        return scores_by_model

    def _rankers(self) -> Iterable[tuple[str, Callable[[Dataset, Dataset], Floats]]]:
        for name, recipe in self._recipes.items():

            def trained(train: Dataset, test: Dataset, recipe: Recipe = recipe) -> Floats:
                model = fit(train, recipe, threads=self._threads).model
                return model.scores(test.rows, test.starts)

            yield name, trained
        for baseline in self._baselines:

            def baseline_scores(
                train: Dataset, test: Dataset, baseline: Baseline = baseline
            ) -> Floats:
                return baseline.scores(train, test, self._threads)

            yield baseline.name, baseline_scores

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
        references = self._references(pool, throughput)
        for name, predicted in scores.items():
            cell = self._cells.setdefault((regime, kind, name), _Cell())
            figures = metrics.row(metrics.measure(throughput, predicted[pool]))
            peak = metrics.peak_curve(throughput, predicted[pool])
            cell.add(workload, np.concatenate((figures, peak, references)))
            cell.ranks += _joint_ranks(predicted[pool], throughput)
            cell.programs += len(pool)

    def _references(self, pool: NDArray[np.int64], throughput: Floats) -> Floats:
        """Return figures and curve of a random order, and the noise floor; cached by pool."""
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
        """Return the results of all models, in the order of evaluation."""
        return tuple(self._result(*key, cell) for key, cell in self._cells.items())

    def _result(self, regime: str, pool: str, model: str, cell: _Cell) -> Result:
        workloads = self._examples.workloads
        order = sorted(cell.sums, key=lambda i: workloads[i].digest)
        values, peak, random, random_peak, floor = cell.means(order)
        return Result(
            regime=regime,
            pool=pool,
            model=model,
            workloads=tuple(workloads[i].digest for i in order),
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
    shares: Floats = _in_bins(scores).T @ _in_bins(throughput) / len(scores)
    return shares


def _in_bins(values: Floats) -> Floats:
    """Return the share of each program's rank interval in each bin, the greatest value first.

    Rank r of n is the interval [(r - 1) / n, r / n]; equal values share their intervals.
    """
    n = len(values)
    _, inverse, counts = np.unique(-values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)[inverse, None] / n
    starts = ends - counts[inverse, None] / n
    edges = np.arange(BINS + 1) / BINS
    overlap = np.minimum(ends, edges[1:]) - np.maximum(starts, edges[:-1])
    shares: Floats = np.maximum(overlap, 0) / (ends - starts)
    return shares


def _make_splits(
    examples: Dataset, regimes: Mapping[str, Regime], plan: SplitPlan
) -> tuple[dict[str, list[Split]], dict[str, str]]:
    """Return the splits of each regime, and the reasons why other regimes have none."""
    splits: dict[str, list[Split]] = {}
    impossible: dict[str, str] = {}
    for regime, make in regimes.items():
        try:
            splits[regime] = list(make(examples, plan))
        except UsageError as error:
            impossible[regime] = str(error)
    return splits, impossible


def _without_pools(
    regimes: Sequence[str], kinds: Sequence[str], results: Sequence[Result], fewest: int
) -> dict[str, str]:
    """Return the regimes and kinds of pools without any rankable pool, with the reason."""
    ranked = {(result.regime, result.pool) for result in results}
    return {
        f"{regime}, {kind} pools": f"none has {fewest} held-out programs, one of them faster"
        for regime in regimes
        for kind in kinds
        if (regime, kind) not in ranked
    }


def _check_names(
    regimes: Sequence[str],
    makers: Mapping[str, Regime],
    kinds: Sequence[str],
    recipes: Mapping[str, Recipe],
    baselines: Sequence[Baseline],
) -> None:
    """Raise UsageError for unknown and for duplicate names."""
    for kind, names, known in (("regime", regimes, makers), ("pool", kinds, POOLS)):
        for name in names:
            if name not in known:
                raise UsageError(f"no {kind} {name!r}; there are: {', '.join(known)}")
    if not recipes:
        raise UsageError("give a recipe to evaluate")
    models = [*recipes, *(baseline.name for baseline in baselines)]
    for name in models:
        if models.count(name) > 1:
            raise UsageError(f"two models have the name {name!r}; rename one")
