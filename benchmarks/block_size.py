"""The advisor for thread-block sizes: its advice for kernels and devices that it has not seen.

First the document's protocol on three kernels that KTT profiled on an RTX 2080 Ti (9,305 launches
in 362 slices): ten random splits, labels of Algorithm 1, raw counters. Then each kernel and each
device of the data is held out in turn, and everything is chosen on the others: columns, margins,
sources. A set is a kernel on a device.

    python benchmarks/block_size.py ../shared/data/gpu

Regret is the time after one step as advised, over the best time of the slice (geometric mean over
launches; those without advice keep their time). Means are over sets.
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
#: Folders of caches and results, with at most one file of a kernel per device and tool.
FOLDERS = ("ktt", "kernel_tuner_cache", "kernel_tuner_t4")

#: Figures of specs/block-size.md, section 5, and how far ours may be from them.
ANCHORS = {"random": 0.851, "majority": 0.464, "rule": 0.593}
TOLERANCE = 0.03

BESIDE = ("nothing", "rule", "occupancy")

#: Largest mean regret above 1, as a share of the best baseline's; largest loss on a set.
MEAN, WORST = 0.9, 1.01


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


def held_out_rows(found: AdvisorFindings, split: str) -> list[Row]:
    """Return the results on the held-out sets of a split; the baseline is doing nothing."""
    sets: dict[tuple[str, str], dict[str, Score]] = {}
    for score in found.scores:
        if score.split == split and score.held_out:
            sets.setdefault((score.held_out, score.device), {})[score.method] = score
    rows = []
    for (kernel, device), scores in sets.items():
        ours, nothing = scores["gain"], regret(scores["nothing"])
        title = f"{split} held out, {kernel} on {device}"
        told = f"{ours.right} right, {ours.advised - ours.right} wrong, "
        told += f"{ours.rows - ours.advised} unsure"
        holds = regret(ours) <= WORST * nothing
        rows.append(Row(f"{title} ({told})", "times", regret(ours), nothing, "<= +1 %", holds))
        rows += [Row(f"{title}: {name}", "times", regret(scores[name])) for name in BESIDE[1:]]
    means = {
        name: float(np.mean([regret(scores[name]) for scores in sets.values()]))
        for name in ("gain", *BESIDE)
    }
    best = min(means[name] for name in BESIDE)
    ours = means["gain"]
    bar = "10 % less above 1"
    title = f"{split} held out, mean over {len(sets)} sets"
    rows.append(Row(f"{title}: regret", "times", ours, best, bar, ours - 1 <= MEAN * (best - 1)))
    rows += [Row(f"{title}: {name}", "times", means[name]) for name in BESIDE]
    together = next(one for one in found.scores_of(split) if one.method == "gain")
    share = together.measured / together.rows
    rows.append(Row(f"{split} held out: launches with advice", "share", together.coverage))
    rows.append(Row(f"{split} held out: advice by measurements", "share", share))
    return rows


def regret(score: Score) -> float:
    """Return the regret of a score with rows."""
    assert score.regret is not None
    return score.regret.value


def measure(options: argparse.Namespace) -> list[Row]:
    """Return the table."""
    rows = random_rows([one for one in read(options.data, PROFILED) if one.counters])
    files = sorted(path for folder in FOLDERS for path in (options.data / folder).glob("*.json.gz"))
    observations = read(options.data, [str(path.relative_to(options.data)) for path in files])
    given = labels.slice_best(observations)
    found = evaluate(observations, given, splits=("device", "kernel"), methods=("gain",))
    return rows + held_out_rows(found, "device") + held_out_rows(found, "kernel")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of profiles and caches")


if __name__ == "__main__":
    run("Thread-block advice on held-out kernels and devices", "beside", measure, add_options)
