"""Measured programs of MetaSchedule as examples: what `ranking.py` and `cost_model.py` share."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from common import Row

from tunedb.extraction.extract import extract
from tunedb.features.base import StepFeatures, feature_set
from tunedb.formats.find import find_logs
from tunedb.formats.importer import import_log
from tunedb.models import dataset
from tunedb.models.baselines import Baseline, TVMModel
from tunedb.models.dataset import Dataset
from tunedb.models.evaluation import Result, compare, evaluate_splits
from tunedb.models.recipe import Recipe
from tunedb.models.splits import SplitPlan, new_workload
from tunedb.storage.store import Store

#: Programs that a workload must have for its figures to mean something.
FEWEST = 10

TVM_SET = "ansor.per_store/tvm"
SETS = ("tunedb.scheduled", "steps")
#: What the lower 95 % bound of the paired difference to TVM's model must exceed.
BAR = -0.01


def import_logs(store: Store, data: Path) -> None:
    """Import a folder of logs."""
    for file in find_logs([data]):
        report = import_log(store, file, source=file.name)
        if report.refused:
            raise SystemExit(f"{file.name}: {report.refused}")


def read_examples(store: Store, names: Sequence[str]) -> dict[str, Dataset]:
    """Extract feature sets as `tunedb extract` does; return the examples of each."""
    from tunedb.plugins.metaschedule.workers.replay_pool import ReplayPool

    found = {}
    for name in names:
        one = feature_set(name)
        if isinstance(one, StepFeatures):
            extract(store, one)
        else:
            with ReplayPool(store, name) as pool:
                extract(store, one, rebuilder=pool)
        found[name] = dataset.load(store, one)
    return found


def leave_one_out(
    examples: Dataset,
    recipes: dict[str, Recipe],
    threads: int,
    baselines: Sequence[Baseline] = (),
) -> dict[str, Result]:
    """Return what recipes and baselines reach on each workload, learnt from all others."""
    splits = list(new_workload(examples, SplitPlan(leave_one_out=True, fewest=FEWEST)))
    found = evaluate_splits(
        examples, splits, recipes, pools=("search",), baselines=baselines, threads=threads
    )
    return {one.model: one for one in found}


def metaschedule_rows(data: Path, recipe: Recipe, threads: int) -> list[Row]:
    """Return the lines of a recipe beside TVM's model on TVM's features."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "cpu.db") as store:
        import_logs(store, data)
        examples = read_examples(store, (TVM_SET, *SETS))
    theirs = leave_one_out(examples[TVM_SET], {}, threads, [TVMModel()])["tvm"]
    rows = []
    for name in SETS:
        ours = leave_one_out(examples[name], {name: recipe}, threads)[name]
        title = f"MetaSchedule, {len(ours.workloads)} unseen workloads, {name}"
        for figure, words in (("pairwise", "pairs in order"), ("top5", "best of the first 5")):
            told, beside = ours.summary(figure), theirs.summary(figure)
            line = f"{title}: {words} (random {told.random:.2f})"
            rows.append(Row(line, "share", told.mean, beside.mean))
        paired = compare(ours, theirs, "pairwise")
        rows.append(
            Row(
                f"{title}: difference in pairs, lower 95 % bound (mean {paired.mean:+.3f})",
                "share",
                paired.low,
                None,
                f"> {BAR}, aim > 0",
                paired.low > BAR,
            )
        )
    return rows
