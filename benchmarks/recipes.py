"""The table behind the defaults of `tunedb train`: losses, training sets, members.

Measured on the development workloads of `roller.py`, which no line of `cost_model.py` holds out,
in both machines' random pools: by cross-validation over workloads, and trained on all tasks of the
other machine. Intervals are over workloads.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import roller
from common import Row, run
from roller import Roller

from tunedb.models.evaluation import Result, evaluate_splits
from tunedb.models.recipe import Recipe
from tunedb.models.splits import NEW_HARDWARE, NEW_WORKLOAD, Split, shape_classes
from tunedb.storage.store import Store

FOLDS = 5
DEFAULT = Recipe(features="steps")
#: Each name lists the differences from the default.
RECIPES: dict[str, Recipe] = {
    "default": DEFAULT,
    **{
        f"loss {loss}": replace(DEFAULT, loss=loss)
        for loss in ("throughput", "throughput:0.1", "squared", "squared:0.5", "log:0.01", "rank")
    },
    **{
        f"training set {chosen}": replace(DEFAULT, training_set=chosen)
        for chosen in ("first:64", "first:256", "diverse:2000", "diverse:4000", "all")
    },
    "the document's": replace(DEFAULT, loss="throughput", training_set="all"),
    "5 members": replace(DEFAULT, members=5),
    "120 rounds, none held out": replace(DEFAULT, rounds=120, patience=0),
    "min_child_weight 1": replace(DEFAULT, min_child_weight=1.0),
    "120 rounds, colsample_bytree 0.3": replace(
        DEFAULT, rounds=120, patience=0, colsample_bytree=0.3
    ),
    **{
        f"colsample_bytree {share}": replace(DEFAULT, colsample_bytree=share)
        for share in (0.3, 0.5, 0.7)
    },
    "reg_lambda 4": replace(DEFAULT, reg_lambda=4.0),
}
#: Regime → prefix of its lines, and figures.
FIGURES = {
    NEW_WORKLOAD: ("", ("pairwise", "top1", "top5", "trials90")),
    NEW_HARDWARE: ("other machine, ", ("pairwise", "top5", "trials90")),
}


def folds(data: Roller) -> Iterator[Split]:
    """Yield the development workloads in parts, equal shapes together; each machine alone."""
    numbers = sorted(data.development, key=lambda i: data.examples.workloads[i].digest)
    classes = shape_classes([data.examples.workloads[i] for i in numbers])
    order = np.random.default_rng(0).permutation(len(classes))
    inside = np.isin(data.examples.workload, numbers)
    for name, told in data.machine.items():
        for fold in range(FOLDS):
            held = [numbers[i] for one in order[fold::FOLDS] for i in classes[one]]
            tested = np.isin(data.examples.workload, held)
            yield Split(
                NEW_WORKLOAD,
                f"{name} fold {fold}",
                np.flatnonzero(inside & told & ~tested),
                np.flatnonzero(inside & told & tested),
            )


def other_machine(data: Roller) -> Iterator[Split]:
    """Yield the development workloads on each machine, learnt from all tasks on the other."""
    held = np.isin(data.examples.workload, sorted(data.development))
    for name, told in data.machine.items():
        known, tested = np.flatnonzero(~told), np.flatnonzero(told & held)
        yield Split(NEW_HARDWARE, f"to {name}", known, tested)


def lines(result: Result, default: Result) -> Iterator[Row]:
    """Yield a line for each figure of a recipe in one regime."""
    title, figures = FIGURES[result.regime]
    for figure in figures:
        told, beside = result.summary(figure), default.summary(figure)
        yield Row(
            f"{result.model}: {title}{figure} (± {told.half_width:.3f}, random {told.random:.2f})",
            "",
            told.mean,
            beside.mean,
        )


def measure(options: argparse.Namespace) -> list[Row]:
    """Return the table."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "roller.db") as store:
        roller.import_archives(store, options.data)
        data = roller.read(store)
    splits = [*folds(data), *other_machine(data)]
    found = evaluate_splits(
        data.examples, splits, RECIPES, pools=("random",), threads=options.threads
    )
    default = {one.regime: one for one in found if one.model == "default"}
    order = list(RECIPES)
    return [
        row
        for one in sorted(found, key=lambda one: order.index(one.model))
        for row in lines(one, default[one.regime])
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of public logs")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of XGBoost")


if __name__ == "__main__":
    run(__doc__.splitlines()[0], "default", measure, add_options)
