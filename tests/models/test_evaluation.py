import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from judged_data import WORKLOADS, judged
from learnable import quick

from tunedb.errors import NotFoundError, UsageError
from tunedb.models import evaluation as module
from tunedb.models import metrics, splits
from tunedb.models.baselines import NearestNeighbour, RandomOrder
from tunedb.models.evaluation import (
    BINS,
    Result,
    compare,
    evaluate,
    evaluate_splits,
    interval,
    repeat_noise,
)
from tunedb.models.metrics import FIGURES, PEAK

EXAMPLES = judged(machines=2)


class Oracle:
    """A baseline that scores by the true throughput, and records its arguments."""

    name = "oracle"

    def __init__(self, sign=1.0):
        self.asked = []
        self._sign = sign

    def scores(self, train, test, threads):
        self.asked.append((train, test))
        return self._sign * test.throughput


def evaluated(examples=EXAMPLES, recipes=None, **options):
    options.setdefault("baselines", (RandomOrder(),))
    recipes = {"plain": quick(rounds=3)} if recipes is None else recipes
    return evaluate(examples, recipes, threads=1, **options)


def result_of(values, model="m", workloads=None):
    """Return a result with given pairwise accuracies, and 0.5 for everything else."""
    n = len(values)
    table = np.full((n, len(FIGURES)), 0.5)
    table[:, 0] = values
    return Result(
        regime="new-workload",
        pool="random",
        model=model,
        workloads=tuple(b"%d" % i for i in workloads or range(n)),
        values=table,
        random=np.full((n, len(FIGURES)), 0.5),
        floor=None,
        peak=np.ones((n, PEAK)),
        random_peak=np.ones((n, PEAK)),
        ranks=np.eye(BINS) / BINS,
        pools=n,
        programs=10 * n,
    )


def test_evaluate_returns_results_of_all_regimes_pools_and_models():
    found = evaluated(seeds=2, recipes={"a": quick(rounds=3), "b": quick(rounds=3, loss="squared")})
    regimes, pools, models = list(splits.REGIMES), list(splits.POOLS), ["a", "b", "random"]
    # A fifth of 20 programs is too few for a pool of 10.
    expected = [(r, p, m) for r in regimes[1:] for p in pools for m in models]
    assert [(one.regime, one.pool, one.model) for one in found.results] == expected
    assert [found.splits[regime]["splits"] for regime in regimes] == [2] * 4
    why = "none has 10 held-out programs, one of them faster"
    assert found.impossible == {f"same-workload, {pool} pools": why for pool in pools}
    assert found.examples == EXAMPLES.digest.hex()
    result = found.result("new-family", "search", "b")
    assert result.workloads == tuple(sorted(one.digest for one in WORKLOADS))
    assert (result.pools, result.programs) == (20, 400)
    assert found.result("new-family", "search", "c") is None


def test_random_baseline_has_the_figures_of_a_random_order():
    regimes = ["new-workload", "new-hardware"]
    models = {"recipes": {"m": quick(rounds=1)}, "baselines": (Oracle(), RandomOrder())}
    found = evaluated(seeds=2, regimes=regimes, **models)
    for cell in (("new-workload", "random"), ("new-hardware", "search")):
        perfect, random = found.result(*cell, "oracle"), found.result(*cell, "random")
        assert np.array_equal(random.values, perfect.random)
        assert np.array_equal(random.values, random.random)
        assert np.array_equal(random.peak, perfect.random_peak)
        assert random.summary("top5").skill == 0.0
        # Each place is equally likely for each program.
        assert np.allclose(random.ranks.sum(axis=0), 1 / BINS)


def test_perfect_model_has_perfect_figures():
    oracle = Oracle()
    made = list(splits.new_family(EXAMPLES, splits.SplitPlan()))
    (result,) = evaluate_splits(EXAMPLES, made, {}, baselines=(oracle,), pools=("search",))
    for table in (result.values, result.peak):
        assert table == pytest.approx(np.ones_like(table))
    assert np.trace(result.ranks) > 0.85
    assert result.ranks.sum() == pytest.approx(1.0)
    assert result.summary("trials90").skill == 1.0
    # It was called with both sides of each split.
    for train, test in oracle.asked:
        families = [{one.workloads[i].family for i in one.workload} for one in (train, test)]
        assert sorted(len(names) for names in families) == [1, 1]
        assert families[0] != families[1]


def test_pools_of_a_workload_are_averaged_into_one_value():
    """Seeds and machines do not count as further workloads: intervals would be too narrow."""
    made = list(splits.new_workload(EXAMPLES, splits.SplitPlan(seeds=6, held_out=4)))
    oracle = Oracle(-1.0)
    (result,) = evaluate_splits(EXAMPLES, made, {}, baselines=(oracle,), pools=("search",))
    held_out = [set(EXAMPLES.workload[one.test].tolist()) for one in made]
    assert len(result.workloads) == len(set().union(*held_out)) <= 10
    assert result.pools == 2 * sum(map(len, held_out)) == 48
    assert len(result.values) == len(result.workloads)
    # Machines differ; the same machine in another seed is the same pool again.
    for number, digest in enumerate(result.workloads):
        workload = [one.digest for one in EXAMPLES.workloads].index(digest)
        groups = [g for g, one in enumerate(EXAMPLES.groups) if one.workload == workload]
        throughput = [EXAMPLES.throughput[EXAMPLES.group == g] for g in groups]
        plain = np.mean([metrics.row(metrics.measure(y, -y)) for y in throughput], axis=0)
        assert result.values[number] == pytest.approx(plain)


def test_recipes_train_on_the_training_side_of_each_split(monkeypatch):
    seen = []

    def fit(examples, recipe, threads):
        seen.append((set(examples.workload.tolist()), recipe.loss, threads))
        scores = lambda rows, starts: np.arange(len(starts) - 1.0)  # noqa: E731
        return SimpleNamespace(model=SimpleNamespace(scores=scores))

    monkeypatch.setattr(module, "fit", fit)
    made = list(splits.new_workload(EXAMPLES, splits.SplitPlan(seeds=3)))
    evaluated(seeds=3, regimes=["new-workload"], recipes={"x": quick(loss="log")})
    assert [one[0] for one in seen] == [set(EXAMPLES.workload[s.train].tolist()) for s in made]
    assert {one[1:] for one in seen} == {("log", 1)}


def test_evaluation_json_has_all_results_and_no_nan_and_is_reproducible():
    options = {"regimes": ["new-workload"], "seeds": 1, "pools": ["search"]}
    told, again = (evaluated(judged(WORKLOADS[:2]), **options).to_json() for _ in range(2))
    told["seconds"] = again["seconds"] = 0
    text = json.dumps(told, allow_nan=False)
    assert json.dumps(again) == text
    told = json.loads(text)
    (first, random) = told["results"]
    assert (first["model"], random["model"]) == ("plain", "random")
    # One workload has a mean and no interval.
    top5 = first["figures"]["top5"]
    assert top5["mean"] is not None and top5["low"] is None
    assert [set(one) for one in first["workloads"]] == [{"digest", *FIGURES}]
    assert len(first["peak"]) == PEAK
    assert told["recipes"]["plain"]["rounds"] == 3
    assert (told["baselines"], told["differences"][0]["one"]) == (["random"], "plain")
    assert told["noise"] is None and first["noise_floor"] is None


def test_evaluate_reports_progress_and_can_be_interrupted():
    told = []
    evaluated(seeds=2, regimes=["new-workload"], on_step=lambda *args: told.append(args))
    assert [one[:2] for one in told] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert told[1][2] == "new-workload, seed 1: random"

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluated(on_step=stop)


def test_impossible_regimes_are_reported_and_the_others_evaluated():
    found = evaluated(judged(WORKLOADS[:5]), seeds=1)
    assert {one.regime for one in found.results} == {"new-workload"}
    assert list(found.impossible)[:2] == ["new-family", "new-hardware"]
    assert "two families are needed; there is matmul" in found.impossible["new-family"]
    with pytest.raises(UsageError, match=r"nothing can be evaluated \(new-family: workloads of tw"):
        evaluated(judged(WORKLOADS[:1]), regimes=["new-family", "new-hardware"])


def test_split_with_nothing_to_learn_is_reported_and_the_others_evaluated():
    """One family has a single workload, all programs of which failed but one."""
    examples = judged()
    failing = [i for i, one in enumerate(examples.workloads) if one.family == "conv2d"]
    few = examples.take(~np.isin(examples.workload, failing[1:]))
    throughput = few.throughput.copy()
    only = few.workload == failing[0]
    throughput[only] = np.where(few.trials[only] == 3, 1.0, 0.0)
    few = replace(few, throughput=throughput, failures=(throughput == 0).astype(np.int8))
    recipe = quick(rounds=2, training_set="first:2")
    found = evaluated(few, regimes=["new-family"], recipes={"m": recipe}, pools=["search"])
    assert list(found.impossible) == ["new-family, matmul"]
    assert "nothing to learn from" in found.impossible["new-family, matmul"]
    assert [len(one.workloads) for one in found.results] == [1, 1]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"regimes": ["new-moon"]}, "no regime 'new-moon'; there are: same-workload"),
        ({"pools": ["deep"]}, "no pool 'deep'; there are: random, search"),
        ({"recipes": {}}, "give a recipe to evaluate"),
        ({"recipes": {"random": quick()}}, "two models have the name 'random'"),
        ({"baselines": (RandomOrder(), RandomOrder())}, "two models have the name 'random'"),
    ],
)
def test_evaluate_rejects_unknown_missing_and_duplicate_names(options, why):
    with pytest.raises(UsageError, match=why):
        evaluated(**options)
    with pytest.raises(NotFoundError, match="no loss 'x'"):
        evaluated(recipes={"m": quick(loss="x")})


def test_evaluate_trains_nothing_for_splits_without_pools(monkeypatch):
    monkeypatch.setattr(module, "fit", lambda *_, **__: pytest.fail("in vain"))
    told = []
    with pytest.raises(UsageError, match="same-workload, search pools: none has 15 held-out"):
        evaluated(regimes=["same-workload"], fewest=15, on_step=lambda *args: told.append(args))
    assert told == []


def test_results_have_a_noise_floor():
    noise = np.log([0.8, 1.25])
    found = evaluated(regimes=["new-workload"], seeds=1, noise=noise)
    floor = found.result("new-workload", "search", "plain").floor.mean(axis=0)
    assert 0.6 < floor[FIGURES.index("pairwise")] < 1.0
    assert found.noise == pytest.approx(np.log(1.25))
    told = found.to_json()["results"][0]["noise_floor"]
    assert told["top1"] == pytest.approx(found.results[0].floor.mean(axis=0)[1])


def test_repeat_noise_returns_deviations_of_repeated_times():
    class Records(SimpleNamespace):
        def __len__(self):
            return len(self.n_times)

    def noise(times, failed=None):
        flat = np.array([t for one in times for t in one], float)
        sizes = np.array([len(one) for one in times], np.int64)
        failed = np.zeros(len(times), bool) if failed is None else np.array(failed, bool)
        return repeat_noise(Records(n_times=sizes, times=flat, failed=failed))

    # Two times 10 % apart: each deviates by log(1.1) / 2, scaled to the variance of one run.
    times = [(1.0, 1.1), (3.0,), (), (1e10,) * 2, (0.0, 2.0), (1e10, 2.0)]
    found = noise(times, [0, 0, 1, 1, 0, 0])
    half = np.log(1.1) / 2
    assert found == pytest.approx([-half * 2**0.5, half * 2**0.5])
    assert noise([(1.0,), (2.0,)]) is None
    assert noise([]) is None
    rng = np.random.default_rng(0)
    drawn = np.exp(0.03 * rng.standard_normal((4000, 3)))
    assert noise(drawn.tolist()).std() == pytest.approx(0.03, rel=0.02)


def test_interval_is_the_95_percent_confidence_interval_of_the_mean():
    rng = np.random.default_rng(0)
    values = rng.normal(0.7, 0.1, 400)
    # The standard error is 0.005.
    expected = values.mean() + 1.96 * 0.005 * np.array([-1, 1])
    assert interval(values) == pytest.approx(expected, abs=1e-3)
    assert interval(values) == interval(values)
    assert interval(np.full(9, 0.25)) == (0.25, 0.25)
    for few in ([], [0.5]):
        assert np.isnan(interval(np.array(few))).all()


def test_summary_has_mean_skill_interval_and_worst_tenth():
    result = result_of(np.arange(11) / 10)
    found = result.summary("pairwise")
    assert (found.mean, found.random, found.skill) == (0.5, 0.5, 0.0)
    assert found.tenth == pytest.approx(0.1)
    assert found.low < 0.5 < found.high
    assert found.half_width == pytest.approx((found.high - found.low) / 2)
    # For numbers of trials the worst tenth are the largest.
    trials = replace(result, values=result.values.copy())
    trials.values[:, FIGURES.index("trials90")] = np.arange(11)
    assert trials.summary("trials90").tenth == pytest.approx(9.0)


def test_compare_averages_differences_over_common_workloads():
    one = result_of([0.9, 0.5, 0.7], "one", [0, 1, 2])
    found = compare(one, result_of([0.4, 0.8, 0.1], "other", [1, 0, 9]), "pairwise")
    names = found.one, found.other, found.figure, found.workloads
    assert names == ("one", "other", "pairwise", 2)
    # 0.9 - 0.8 and 0.5 - 0.4: equal differences have an interval of width 0.
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    nothing = compare(one, result_of([0.5], "far", [77]), "pairwise")
    assert nothing.workloads == 0
    assert np.isnan([nothing.mean, nothing.low, nothing.high]).all()


def test_differences_pair_each_recipe_with_later_ones_and_baselines():
    names = ["a", "b", "random", "nearest"]
    found = module.Evaluation(
        results=tuple(result_of([0.5, 0.75], name) for name in names),
        recipes={"a": quick(), "b": quick()},
        baselines=("random", "nearest"),
        splits={},
        impossible={},
        noise=None,
        examples="",
        seconds=0.0,
    )
    pairs = {one.one + "-" + one.other for one in found.differences("new-workload", "random")}
    assert pairs == {"a-b", "a-random", "a-nearest", "b-random", "b-nearest"}
    assert found.differences("new-workload", "search") == []


def test_evaluate_splits_accepts_custom_splits():
    examples = judged()
    half = np.arange(len(examples)) % 2 == 0
    split = splits.Split("mine", "half", np.flatnonzero(half), np.flatnonzero(~half))
    options = {"baselines": (NearestNeighbour(),), "threads": 1}
    results = evaluate_splits(examples, [split], {"m": quick()}, **options)
    cells = [(one.regime, one.pool, one.model) for one in results[:2]]
    assert cells == [("mine", "random", "m"), ("mine", "random", "nearest")]
    assert results[0].summary("pairwise").mean > 0.6
    with pytest.raises(UsageError, match="no pool can be ranked"):
        evaluate_splits(examples, [split], {"m": quick()}, fewest=99, threads=1)
