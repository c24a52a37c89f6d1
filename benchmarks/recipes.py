"""The table that decided the defaults of `tunedb train`: losses, training sets, members.

Measured on the development workloads of `roller.py`, which no line of `cost_model.py` holds out,
by cross-validation over workloads in both machines' random pools. Intervals are over workloads.
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

from tunedb.models.evaluation import judge
from tunedb.models.findings import Result
from tunedb.models.recipe import Recipe
from tunedb.models.splits import NEW_WORKLOAD, Split, shape_classes
from tunedb.store import Store

FOLDS = 5
DEFAULT = Recipe(features="steps")
#: Each differs from the default in what it names.
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
    "colsample_bytree 1": replace(DEFAULT, colsample_bytree=1.0),
}
FIGURES = ("pairwise", "top1", "top5", "trials90")


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


def lines(name: str, result: Result, default: Result) -> Iterator[Row]:
    for figure in FIGURES:
        told, beside = result.summary(figure), default.summary(figure)
        yield Row(
            f"{name}: {figure} (± {told.half_width:.3f}, random {told.random:.2f})",
            "",
            told.mean,
            beside.mean,
        )


def measure(options: argparse.Namespace) -> list[Row]:
    """Return the table."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "roller.db") as store:
        roller.import_archives(store, options.data)
        data = roller.read(store)
    found = judge(
        data.examples, list(folds(data)), RECIPES, pools=("random",), threads=options.threads
    )
    default = next(one for one in found if one.model == "default")
    return [row for one in found for row in lines(one.model, one, default)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of public logs")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of XGBoost")


if __name__ == "__main__":
    run(__doc__.splitlines()[0], "default", measure, add_options)
