"""What the search costs, and how well drafts are ranked, without running a program.

Tasks of MobileNetV2 are searched for a CPU and for a GPU, with made-up run times: each way of the
search in turn, drafts that a model ranks and programs that are all replayed. With `--data`, models
of drafts, of programs and both together rank the measured programs of workloads that they have not
seen, or have seen 32 programs of. With `--prior`, the model of drafts ranks programs of the prior
with and without the regression of a workload's own programs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import Row, run
from metaschedule import import_logs, read_examples

from tunedb.models import dataset
from tunedb.models.dataset import Dataset
from tunedb.models.kernel_regression import KernelRegression, share_of_trees
from tunedb.models.metrics import pairwise_accuracy
from tunedb.models.model import Model, joined_scores
from tunedb.models.recipe import Recipe
from tunedb.models.training import fit, select, tuning_recipe
from tunedb.storage.store import Store

#: Batch → most seconds of search per trial on a CPU.
SECONDS = {4: 0.15, 16: 0.05}
#: Least drafts of a round, once there is a model; greatest share of rejected finalists.
DRAFTS, REJECTED = 10_000, 0.1
#: Rounds that are counted, after the first 16 trials; a model needs these.
ROUNDS, FIRST = 3, 16
GPU = "nvidia/geforce-rtx-3090"

SETS = ("steps", "tunedb.scheduled")
FOLDS = 6
#: Programs that a pool needs beside the first ones, and the most pools of a fold.
LEFT, POOLS = 14, 40


# ---- the search ----------------------------------------------------------------------------------


@dataclass
class Cost:
    """What the rounds of a task cost.

    Parameters
    ----------
    seconds, trials : float, int
        Time of the search, training included, and trials that it proposed.
    programs : list of int
        Programs that each round compared.
    replayed, illegal : int
        Replayed drafts, and those that TVM rejected.
    """

    seconds: float
    trials: int
    programs: list[int]
    replayed: int
    illegal: int


def tasks(target: Any, size: int) -> dict[str, Any]:
    """Return the tasks of MobileNetV2 for a target, by name."""
    from networks import lowered_by_tvm
    from onnx_networks import mobilenet_v2
    from tvm.relax.frontend.onnx import from_onnx
    from tvm.s_tir import meta_schedule as ms

    mod = lowered_by_tvm(from_onnx(mobilenet_v2(size)), target)
    found = ms.relax_integration.extract_tasks(mod, target, {}, module_equality="structural")
    return {str(task.task_name): task.dispatched[0] for task in found}


def search_cost(mod: Any, target: Any, batch: int, *, rank_drafts: bool) -> Cost:
    """Search one task with made-up times; return the cost of the rounds that have a model."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.runner import RunnerResult

    from tunedb.plugins.metaschedule import CostModel, Database, EvolutionarySearch

    rounds: list[Any] = []
    with closing(Database(":memory:", target=target)) as database:
        search = EvolutionarySearch(database, on_round=rounds.append, rank_drafts=rank_drafts)
        context = ms.TuneContext(
            mod,
            target=target,
            space_generator=ms.space_generator.PostOrderApply(),
            search_strategy=search.clone(),
            rand_state=1,
            num_threads=2,
        )
        model = CostModel(database)
        context.pre_tuning(1000, batch, None, database, model)
        seconds: list[float] = []
        trials: list[int] = []
        for _ in range(-(-FIRST // batch) + ROUNDS):
            begin = time.perf_counter()
            candidates = context.generate_measure_candidates()
            if candidates is None:
                break
            results = [RunnerResult([made_up(each)], None) for each in candidates]
            context.notify_runner_results(candidates, results)
            model.update(context, candidates, results)
            seconds.append(time.perf_counter() - begin)
            trials.append(len(candidates))
    used = rounds[-ROUNDS:]
    return Cost(
        sum(seconds[-ROUNDS:]),
        sum(trials[-ROUNDS:]),
        [each.programs for each in used],
        sum(each.replayed for each in rounds),
        sum(each.illegal for each in rounds),
    )


def made_up(candidate: Any) -> float:
    """Return a run time that follows from the tiles of a program."""
    from tunedb.plugins.metaschedule.search.schedule_queries import from_tvm

    tiles = from_tvm(candidate.sch.trace).tiles.values()
    return 1e-4 / (1 + sum(float(np.log2(tile[-1] * tile[-2] + 1)) for tile in tiles))


def search_rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the table's lines about the search."""
    import tvm
    from measured import this_machine

    cpu = this_machine()
    for batch, bar in SECONDS.items():
        ours, theirs = [], []
        for mod in some(tasks(cpu, options.size), options.tasks):
            ours.append(search_cost(mod, cpu, batch, rank_drafts=True))
            theirs.append(search_cost(mod, cpu, batch, rank_drafts=False))
        title = f"CPU, {len(ours)} tasks, batches of {batch}"
        per_trial = [
            sum(each.seconds for each in costs) / sum(each.trials for each in costs)
            for costs in (ours, theirs)
        ]
        name = f"{title}: search"
        yield Row(name, "s/trial", *per_trial, f"<= {bar}", per_trial[0] <= bar)
        yield drafts_row(title, ours, theirs)
        yield rejected_row(title, ours, theirs)
    gpu = tvm.target.Target(GPU)
    found = [
        search_cost(mod, gpu, 16, rank_drafts=True)
        for mod in some(tasks(gpu, options.size), options.tasks)
    ]
    yield rejected_row(f"CUDA, {len(found)} tasks, batches of 16", found, None)


def some(mods: dict[str, Any], number: int) -> list[Any]:
    """Return some tasks with the largest design spaces first: convolutions, spread over all."""
    names = sorted(mods, key=lambda name: ("conv" not in name, name))
    wide = [name for name in names if "conv" in name] or names
    places = np.linspace(0, len(wide) - 1, min(number, len(wide))).astype(int)
    return [mods[wide[place]] for place in dict.fromkeys(places.tolist())]


def drafts_row(title: str, ours: Sequence[Cost], theirs: Sequence[Cost]) -> Row:
    """Return the line about compared programs: the median of the rounds."""
    medians = [
        statistics.median(n for each in costs for n in each.programs) for costs in (ours, theirs)
    ]
    name = f"{title}: compared in a round"
    return Row(name, "programs", *medians, f">= {DRAFTS:,}", medians[0] >= DRAFTS)


def rejected_row(title: str, ours: Sequence[Cost], theirs: Sequence[Cost] | None) -> Row:
    """Return the line about replayed drafts that TVM rejects, of all rounds."""
    shares = [
        sum(each.illegal for each in costs) / sum(each.replayed for each in costs)
        for costs in (ours, *([] if theirs is None else [theirs]))
    ]
    name = f"{title}: rejected replays"
    return Row(
        name, "share", shares[0], *shares[1:], bar=f"<= {REJECTED}", ok=shares[0] <= REJECTED
    )


# ---- ranking -------------------------------------------------------------------------------------


def ranking_rows(data: Path, threads: int) -> Iterator[Row]:
    """Yield the table's lines about the order of measured programs."""
    from tunedb.plugins.metaschedule.search.draft_model import DraftFeatures

    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "cpu.db") as store:
        import_logs(store, data)
        examples = read_examples(store, SETS)
        examples["drafts"] = dataset.compute_rows(store, DraftFeatures(), examples["steps"])
    for own in (0, 32):
        found = order(examples, own, threads)
        seen = f"{own} own programs in training"
        base = found["tunedb.scheduled"]
        for name in ("drafts", "steps", "both"):
            title = f"{seen}, {name}"
            yield Row(f"{title}: pairs in order", "share", found[name][0], base[0])
            yield Row(f"{title}: best time / best of the first 4", "share", found[name][1], base[1])


def prior_rows(threads: int) -> Iterator[Row]:
    """Yield the lines about the regression of a workload's first programs, on those of the prior.

    Workloads are held out a sixth at a time. The first programs are drawn, not the first ones that
    were measured: those of a prior are the choice of a search.
    """
    from tunedb.exchange.prior import IN_WHEEL, unpacked
    from tunedb.plugins.metaschedule.cost_model.learner import BASE_PROGRAMS
    from tunedb.plugins.metaschedule.search.draft_model import DraftFeatures

    with Store(unpacked(IN_WHEEL), read_only=True) as store:
        features = DraftFeatures()
        diverse = Recipe(features=features.name, training_set=f"diverse:{BASE_PROGRAMS}")
        examples = dataset.load_computed(
            store, features, label=diverse.label, corrected=diverse.corrected
        )
        examples = dataset.compute_rows(store, features, examples)
    rng = np.random.default_rng(0)
    folds = rng.permutation(len(examples.workloads)) % FOLDS
    found = []
    for fold in range(FOLDS):
        is_test = (folds == fold)[examples.workload]
        others = select(examples.take(~is_test), diverse)
        trees = fit(others, _tuning(others), threads=threads).model
        pools = [
            np.flatnonzero((examples.group == group) & ~examples.failed)
            for group in np.unique(examples.group[is_test])
        ]
        pools = [pool for pool in pools if len(pool) >= FIRST + LEFT]
        for number in rng.permutation(len(pools))[:POOLS]:
            shuffled = rng.permutation(pools[number])
            found.append(first_scores(examples, shuffled, trees, len(others), threads))
    means = np.mean(found, axis=0)
    for trained, (ours, theirs) in zip(
        ("trees of others", "trees of these programs alone"), (means[:2], means[2:]), strict=True
    ):
        title = f"{FIRST} own programs, {trained} with the regression"
        yield Row(f"{title}: pairs in order", "share", ours[0], theirs[0])
        yield Row(f"{title}: mean of the first 8 / best", "share", ours[1], theirs[1])


def _tuning(examples: Dataset) -> Recipe:
    return tuning_recipe(Recipe(features=examples.feature_set), len(examples))


def first_scores(
    examples: Dataset, shuffled: Any, trees: Model, others: int, threads: int
) -> list[tuple[float, float]]:
    """Return pairs in order and the mean of the first 8 of four models of a pool.

    Trees of other workloads with the regression of the first programs and without, then trees of
    the first programs alone with it and without.
    """
    own, asked = examples.take(shuffled[:FIRST]), examples.take(shuffled[FIRST:])
    own = replace(own, throughput=dataset.throughput_of(own.seconds, own.group))
    best = asked.throughput.max()
    found = []
    for model, count in ((trees, others), (fit(own, _tuning(own), threads=threads).model, 0)):
        of_own = model.scores(own.rows, own.starts)
        share = share_of_trees(len(own), count)
        regression = KernelRegression.fit(own.rows, own.throughput, of_own, share)
        alone = model.scores(asked.rows, asked.starts)
        for scores in (regression.scores(asked.rows, alone), alone):
            first = asked.throughput[np.argsort(-scores)[:8]].mean()
            found.append((pairwise_accuracy(asked.throughput, scores), first / best))
    return found


def order(examples: dict[str, Dataset], own: int, threads: int) -> dict[str, Any]:
    """Return pairs in order and the best of the first 4, means over workloads, for each model."""
    from tunedb.plugins.metaschedule.search.task_search import COST_WEIGHT

    rng = np.random.default_rng(0)
    reference = examples["steps"]
    number = len(reference.workloads)
    folds = np.arange(number) % (number if own else FOLDS)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in (*examples, "both")}
    for fold in range(folds.max() + 1):
        is_test = (folds == fold)[reference.workload]
        if own:
            known = rng.choice(np.flatnonzero(is_test), own, replace=False)
            is_test[known] = False
        scores = {}
        for name, one in examples.items():
            recipe = Recipe(features=one.feature_set, training_set="all", patience=0, rounds=100)
            model = fit(one.take(~is_test), recipe, threads=threads).model
            tested = one.take(is_test)
            scores[name] = model.scores(tested.rows, tested.starts)
        tested = reference.take(is_test)
        for workload in np.unique(tested.workload):
            chosen = tested.workload == workload
            throughput = tested.throughput[chosen]
            own_scores = {name: each[chosen] for name, each in scores.items()}
            own_scores["both"] = np.array(
                joined_scores(own_scores["drafts"], own_scores["tunedb.scheduled"], COST_WEIGHT)
            )
            for name, each in own_scores.items():
                first = throughput[np.argsort(-each)[:4]].max()
                found[name].append((pairwise_accuracy(throughput, each), first))
    return {name: np.mean(each, axis=0).tolist() for name, each in found.items()}


def measure(options: argparse.Namespace) -> list[Row]:
    """Return the table."""
    rows = list(search_rows(options))
    if options.prior:
        rows += prior_rows(options.threads)
    if options.data:
        rows += ranking_rows(options.data, options.threads)
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", type=int, default=4, help="of MobileNetV2 (default 4)")
    parser.add_argument("--size", type=int, default=96, help="of its images (default 96)")
    parser.add_argument("--data", type=Path, help="directory with measured logs")
    parser.add_argument(
        "--prior", action="store_true", help="rank the programs of the package's prior, too"
    )
    parser.add_argument("--threads", type=int, default=2, help="of XGBoost (default 2)")


if __name__ == "__main__":
    run("Ranked drafts", "all replayed", measure, add_options)
