"""How well feature sets rank programs of workloads that the model has not seen.

DATA holds logs of measured random candidates, such as `measured.py` makes. They are imported,
replayed and extracted as `tunedb extract` does it; then a model learns from all workloads but one
and ranks that one, for each of them and each feature set. Besides, the rows of `tunedb.scheduled`
are compared to those of the lowered program on random schedules for CUDA.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import Row, run
from metaschedule import FEWEST, import_logs, leave_one_out, read_examples

from tunedb.features.base import feature_set
from tunedb.models.dataset import Dataset
from tunedb.models.evaluation import Result, compare
from tunedb.models.recipe import Recipe
from tunedb.storage.store import Store

OURS = "tunedb.scheduled"
BASELINE = "ansor.per_store/tvm"
SETS = (OURS, BASELINE, "ansor.per_store/ansor", "steps")

#: Plain squared error of the sum over statements, so that sets are compared and nothing else.
RECIPE = Recipe(
    loss="squared",
    training_set="all",
    rounds=100,
    patience=0,
    min_child_weight=0,
    colsample_bytree=0.3,
)

#: Where the lower 95 % bound of the paired difference in pairwise accuracy must lie above.
MARGIN = -0.02
#: Share of candidates for CUDA that must have as many rows as the lowered program.
SAME_ROWS = 0.95
#: Share of programs that may be left out, because some feature set has no rows of them.
LEFT_OUT = 0.01

CUDA_TARGET = "nvidia/geforce-rtx-3090"
CUDA_WORKLOADS = (
    "matmul_512_512_512",
    "bmm_12_64_64_64",
    "dense_relu_128_256_128",
    "conv1d_1_256_64_128_3_2_1",
    "conv2d_1_56_56_64_64_3_1_1",
    "conv3d_1_16_14_14_64_64_3_1_1",
    "dep_1_28_28_128_3_1_1",
    "t2d_1_8_8_256_128_4_2_1",
    "cbr_1_28_28_128_128_3_1_1",
    "tbg_1_128_12_64",
    "norm_1_256_256",
    "softmax_512_512",
)
#: Columns that hold the extents of blocks and threads.
BOUND = ("blockIdx", "threadIdx", "vthread")

FIGURES = (
    ("pairwise", "pairs in order"),
    ("top1", "best time / that of the first"),
    ("top5", "best time / best of the first 5"),
)


def ranking_rows(results: dict[str, Result]) -> list[Row]:
    """Return the table's lines about accuracy, and about its paired differences."""
    rows = []
    for figure, title in FIGURES:
        for name in SETS:
            told = results[name].summary(figure)
            rows.append(Row(f"{name}: {title}", "share", told.mean, told.random))
    return rows + [row for name in SETS if name != BASELINE for row in differences(name, results)]


def differences(name: str, results: dict[str, Result]) -> list[Row]:
    """Return the table's lines about a feature set and the baseline on the same workloads."""
    paired = compare(results[name], results[BASELINE], "pairwise")
    title = f"{name} - {BASELINE}: pairs in order"
    bar: dict[str, Any] = {}
    if name == OURS:
        bar = {"bar": f"> {MARGIN}", "ok": paired.low > MARGIN}
    return [
        Row(title, "share", paired.mean),
        Row(f"{title}, lower 95 % bound", "share", paired.low, **bar),
        Row(f"{title}, upper 95 % bound", "share", paired.high),
    ]


def left_out(examples: Sequence[Dataset], programs: int) -> Row:
    """Return the line about programs that some feature set has no rows of."""
    share = 1 - min(len(one) for one in examples) / programs
    title = f"{len(examples[0].workloads)} workloads, {programs:,} programs; left out"
    return Row(title, "share", share, None, f"<= {LEFT_OUT}", share <= LEFT_OUT)


def cuda_rows(number: int, threads: int) -> list[Row]:
    """Return the table's lines about schedules for CUDA."""
    import tvm
    from candidates import make_module, random_candidates

    from tunedb.plugins.metaschedule.features.rows import rows_of

    target = tvm.target.Target(CUDA_TARGET)
    columns = [i for i, name in enumerate(feature_set(BASELINE).columns) if name.startswith(BOUND)]
    sets: list[Any] = [feature_set(name) for name in (OURS, BASELINE)]
    total = same = equal = 0
    for name in CUDA_WORKLOADS:
        schedules = random_candidates(make_module(name), target, number, seed=1)
        modules = [schedule.mod for schedule in schedules]
        found = [rows_of(modules, target, one, threads) for one in sets]
        total += len(modules)
        for ours, lowered in zip(*found, strict=True):
            if isinstance(ours, Exception) or isinstance(lowered, Exception):
                continue
            if len(ours) == len(lowered):
                same += 1
                equal += np.allclose(ours[:, columns], lowered[:, columns], rtol=1e-5, atol=1e-5)
    rows, extents = same / total, equal / max(same, 1)
    title = f"CUDA, {len(CUDA_WORKLOADS)} workloads, {total} schedules"
    bar = f">= {SAME_ROWS}"
    return [
        Row(f"{title}: {OURS} has as many rows", "share", rows, None, bar, rows >= SAME_ROWS),
        Row(f"{title}: its thread extents equal", "share", extents, None, "1", extents == 1),
    ]


def measure(options: argparse.Namespace) -> list[Row]:
    """Return the table."""
    with tempfile.TemporaryDirectory() as scratch, Store(Path(scratch) / "ranking.db") as store:
        import_logs(store, options.data)
        examples = read_examples(store, SETS)
        programs = store.counts().programs
    if min(np.bincount(examples[BASELINE].workload)) < FEWEST:
        raise SystemExit(f"{options.data}: each workload must have {FEWEST} measured programs")
    results = {
        name: leave_one_out(examples[name], {name: RECIPE}, options.threads)[name] for name in SETS
    }
    rows = [left_out(list(examples.values()), programs), *ranking_rows(results)]
    if options.cuda:
        rows += cuda_rows(options.cuda, options.threads)
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="directory with measured logs")
    parser.add_argument("--threads", type=int, default=1, help="of XGBoost (default 1)")
    parser.add_argument(
        "--cuda", type=int, default=16, metavar="N", help="schedules per workload; 0: none"
    )


if __name__ == "__main__":
    run("Ranking of unseen workloads", "random", measure, add_options)
