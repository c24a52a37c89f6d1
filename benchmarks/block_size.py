"""The advisor for thread-block sizes: its advice for kernels that it has not seen.

The script evaluates three kernels that KTT profiled on an RTX 2080 Ti (9,305 launches in 362
slices). First the document's protocol: ten random splits, labels of Algorithm 1, raw counters. Then
each kernel is held out in turn, on the same splits for all methods, and everything is chosen on the
others: columns, parameters, tolerance, reach. Two further kernels, measured without counters by
Kernel Tuner, are training data too. Files of the evaluated kernels by other tools stay out.

    python benchmarks/block_size.py ../shared/data/gpu

Regret is the time after one step as advised, over the best time of the slice (geometric mean over
launches; those without advice keep their time).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import Row, run

from tunedb.advisor import labels
from tunedb.advisor.inputs import read_inputs
from tunedb.advisor.labels import NONE, accuracy, balanced_accuracy, to_codes
from tunedb.advisor.learn import baselines
from tunedb.advisor.learn.evaluation import evaluate
from tunedb.advisor.learn.findings import AdvisorFindings, Score
from tunedb.advisor.learn.splits import families
from tunedb.advisor.learn.ten_splits import ten_splits
from tunedb.advisor.loading import load
from tunedb.advisor.observations import Observation
from tunedb.formats.base import LogFile
from tunedb.formats.importer import import_log
from tunedb.storage.store import Store

PROFILED = (
    "ktt/coulomb_2080_full_search_space.json.gz",
    "ktt/KTConvolutionOutput_2080Ti.json.gz",
    "ktt/KTPnpolyOutput_2080Ti.json.gz",
)
OTHERS = (
    "kernel_tuner_cache/gemm__RTX_3060_laptop.json.gz",
    "kernel_tuner_cache/dedispersion_milo__MI250X.json.gz",
)

#: Figures of specs/block-size.md, section 5, and how far ours may be from them.
ANCHORS = {"random": 0.851, "majority": 0.464, "rule": 0.593}
TOLERANCE = 0.03

BESIDE = ("rule", "occupancy", "nothing")


def read(folder: Path, names: Sequence[str]) -> list[Observation]:
    """Return the launches of files, through a database."""
    with tempfile.TemporaryDirectory() as scratch, Store(Path(scratch) / "gpu.db") as store:
        for name in names:
            import_log(store, LogFile(folder / name, name), source=name)
        return load(store)


def near(name: str, found: float, anchor: float) -> Row:
    """Return a row whose bar is an anchor."""
    bar = f"{anchor} ± {TOLERANCE}"
    return Row(name, "share", found, anchor, bar, abs(found - anchor) <= TOLERANCE)


def random_rows(profiled: Sequence[Observation]) -> list[Row]:
    """Return the results of the document's protocol, as in the table of the specification."""
    truth = to_codes(labels.paper(profiled))
    rows = np.flatnonzero(truth != NONE)
    chosen, codes = [profiled[i] for i in rows], truth[rows]
    found = ten_splits(read_inputs("raw", chosen), codes, families(chosen), "svm", "raw")
    rule = baselines.rule(chosen)
    majority = np.full(len(codes), baselines.majority(codes), np.int8)
    test = accuracy(codes[found.test], found.advice)
    return [
        Row("launches", "number", len(profiled), 9305, "9305", len(profiled) == 9305),
        Row("launches without label", "number", len(truth) - len(rows), 676),
        near("ten random splits, SVM: accuracy", float(np.mean(found.validation)), 0.851),
        Row("the best of them, on its test set: accuracy", "share", test),
        near("majority: accuracy", accuracy(codes, majority), ANCHORS["majority"]),
        near("the rule: accuracy", accuracy(codes, rule), ANCHORS["rule"]),
        Row("the rule: balanced accuracy", "share", balanced_accuracy(codes, rule), 0.602),
    ]


def held_out_rows(found: AdvisorFindings) -> list[Row]:
    """Return the results of methods on held-out kernels; the baseline is the best other method."""
    together = {one.method: one for one in found.scores_of("kernel")}
    means = {name: mean_balanced(found, name) for name in together}
    rows = []
    for name, score in together.items():
        title = f"held-out kernels, {name}"
        assert score.regret is not None
        rows += [
            Row(f"{title}: balanced accuracy, mean over kernels", "share", means[name]),
            Row(f"{title}: balanced accuracy, all launches", "share", score.balanced),
            Row(f"{title}: regret", "times", score.regret.value),
            Row(f"{title}: regret, 95 % from", "times", score.regret.low),
            Row(f"{title}: regret, 95 % to", "times", score.regret.high),
            Row(f"{title}: with advice", "share", score.coverage),
        ]
    ours = together["gain"]
    for beside in BESIDE:
        other = together[beside]
        assert ours.regret is not None and other.regret is not None
        rows.append(
            Row(
                f"gain against {beside}: regret",
                "times",
                ours.regret.value,
                other.regret.value,
                "smaller",
                ours.regret.value < other.regret.value,
            )
        )
    for beside in ("rule", "occupancy"):
        # Three kernels cannot support a bar: the figure moves by as much from kernel to kernel.
        rows.append(Row(f"gain against {beside}: balanced", "share", means["gain"], means[beside]))
    covered = ours.coverage >= 0.5
    rows.append(Row("gain: launches with advice", "share", ours.coverage, 0.5, ">= 0.5", covered))
    rows += [_of_kernel(one) for one in found.scores if one.held_out and one.method == "gain"]
    return rows


def mean_balanced(found: AdvisorFindings, method: str) -> float:
    """Return the mean over held-out kernels of the balanced accuracy."""
    scores = [one for one in found.scores if one.held_out and one.method == method]
    return float(np.mean([one.balanced for one in scores]))


def _of_kernel(score: Score) -> Row:
    assert score.regret is not None and score.against_nothing is not None
    # Doing nothing has the regret of the time before.
    nothing = score.regret.value / score.against_nothing.value
    return Row(f"gain, {score.held_out} held out: regret", "times", score.regret.value, nothing)


def measure(options: argparse.Namespace) -> list[Row]:
    """Return the table."""
    profiled = [one for one in read(options.data, PROFILED) if one.counters]
    rows = random_rows(profiled)
    observations = profiled + read(options.data, OTHERS)
    methods = ("gain",) if options.quick else ("gain", "svm", "boosted")
    given = labels.slice_best(observations)
    found = evaluate(observations, given, splits=("kernel",), methods=methods)
    return rows + held_out_rows(found)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of profiles and caches")
    parser.add_argument("--quick", action="store_true", help="without SVM and trees held out")


if __name__ == "__main__":
    run("Thread-block advice on held-out kernels", "beside", measure, add_options)
