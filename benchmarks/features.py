"""Extracting features: time per program, beside TVM's ``PerStoreFeature`` on the same candidates.

Candidates are random schedules of TVM's test workloads for a CPU and a GPU (scheduling needs no
GPU). Each is timed alone on one thread, TVM's extractor and ours in turn: several rounds of a few
calls of each in a row, of which the best counts. "2 threads" is a generation, all candidates
repeated, in one call. The output tensor is included.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from candidates import make_module
from common import Row, run
from tvm.s_tir import meta_schedule as ms

from tunedb.features.itervar import ITERVAR
from tunedb.features.steps import STEPS
from tunedb.formats.base import LogFile
from tunedb.formats.importer import import_log
from tunedb.plugins.metaschedule import FeatureExtractor, PerStoreFeature
from tunedb.plugins.metaschedule.features.rows import rows_of
from tunedb.storage.store import Store

US = 1e6
ROUNDS = 5
CALLS = 3
BATCH_ROUNDS = 3
REPEATED = 8
CPU = {"kind": "llvm", "num-cores": 2, "mcpu": tvm.target.codegen.llvm_get_system_cpu()}
GPU = "nvidia/geforce-rtx-3090"
PROGRAMS = {
    "matmul": ("matmul_128_128_128", CPU),
    "conv2d": ("conv2d_1_56_56_64_64_3_1_1", CPU),
    "softmax": ("softmax_256_256", CPU),
    "fused": ("cbr_1_56_56_64_64_3_1_1", CPU),
    "matmul CUDA": ("matmul_512_512_512", GPU),
    "conv2d CUDA": ("conv2d_1_56_56_64_64_3_1_1", GPU),
}
#: Smallest ratio to TVM's extractor on any program, and in the median.
BARS = {"ansor.per_store/tvm": (1.0, 1.2), "tunedb.scheduled": (20.0, 50.0)}
STEPS_PER_SECOND = 20_000
ARCHIVE = "v100.jsonl.xz"
PER_QUERY = 1000


@dataclass(frozen=True)
class Timed:
    """Seconds of one program: TVM's extractor, and each of ours by name."""

    tvm: float
    ours: dict[str, float]


def best(work: Callable[[], Any], rounds: int) -> float:
    """Return the shortest of several runs in seconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def context(name: str, target: Any, number: int) -> tuple[Any, list[Any]]:
    """Return a tuning context and random candidates of a workload."""
    made = ms.TuneContext(
        make_module(name),
        target=tvm.target.Target(target),
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        num_threads=1,
        rand_state=1,
    )
    made.pre_tuning(number, number, made.generate_design_space())
    found = list(made.generate_measure_candidates() or ())
    made.post_tuning()
    return made, found


def extractors() -> dict[str, Callable[[Any, list[Any]], Any]]:
    """Return what is timed, by the name of its feature set."""
    own = {
        "ansor.per_store/tvm": PerStoreFeature(),
        "ansor.per_store/ansor": FeatureExtractor("ansor.per_store/ansor"),
        "tunedb.scheduled": FeatureExtractor("tunedb.scheduled"),
    }
    found = {name: one.extract_from for name, one in own.items()}
    found["autotvm.itervar"] = lambda made, batch: rows_of(
        [one.sch.mod for one in batch], made.target, ITERVAR, int(made.num_threads)
    )
    return found


def time_programs(made: Any, batch: list[Any]) -> list[Timed]:
    """Time each program alone, all extractors in turn."""
    theirs, ours = ms.feature_extractor.PerStoreFeature(), extractors()
    found = []
    for one in batch:
        seconds: dict[str, list[float]] = {"tvm": [], **{name: [] for name in ours}}
        for _ in range(ROUNDS):
            seconds["tvm"].append(best(lambda one=one: theirs.extract_from(made, [one]), CALLS))
            for name, extract in ours.items():
                seconds[name].append(best(lambda f=extract, one=one: f(made, [one]), CALLS))
        shortest = {name: min(times) for name, times in seconds.items()}
        found.append(Timed(shortest.pop("tvm"), shortest))
    return found


def two_threads(made: Any, batch: list[Any], title: str) -> list[Row]:
    """Time a whole batch on two threads."""
    theirs = ms.feature_extractor.PerStoreFeature()
    batch = REPEATED * batch
    made = ms.TuneContext(made.mod, target=made.target, num_threads=2)
    work = {name: extractors()[name] for name in BARS}
    seconds: dict[str, list[float]] = {"tvm": [], **{name: [] for name in work}}
    for _ in range(BATCH_ROUNDS):
        seconds["tvm"].append(best(lambda: theirs.extract_from(made, batch), 1))
        for name, extract in work.items():
            seconds[name].append(best(lambda f=extract: f(made, batch), 1))
    each = {name: min(times) / len(batch) * US for name, times in seconds.items()}
    return [Row(f"{title}, 2 threads, {name}", "us", each[name], each["tvm"]) for name in work]


def rows_of_program(title: str, timed: list[Timed]) -> list[Row]:
    """Return the median times of a workload's programs."""
    baseline = statistics.median(one.tvm for one in timed) * US
    names = timed[0].ours
    medians = {name: statistics.median(one.ours[name] for one in timed) * US for name in names}
    return [Row(f"{title}, {name}", "us", value, baseline) for name, value in medians.items()]


def rows_of_bars(timed: list[Timed]) -> list[Row]:
    """Return the ratios over all programs, with their bars."""
    found = []
    for name, (least, median) in BARS.items():
        ratios = [one.tvm / one.ours[name] for one in timed]
        low, middle = min(ratios), statistics.median(ratios)
        title = f"{name}, {len(timed)} programs, TVM / tunedb"
        found += [
            Row(f"{title}: smallest", "times", low, None, f">= {least:g}", low >= least),
            Row(f"{title}: median", "times", middle, None, f">= {median:g}", middle >= median),
        ]
    return found


def time_steps(folder: Path) -> list[Row]:
    """Read programs from a database and compute ``steps``, one thread, nothing written."""
    with tempfile.TemporaryDirectory() as scratch, Store(Path(scratch) / "steps.db") as store:
        archive = folder / ARCHIVE
        import_log(store, LogFile(archive, str(archive)), source="steps")
        number = store.features.coverage(STEPS).programs
        raw, read, computed = (
            min(seconds) / number * US
            for seconds in zip(*(_pass(store) for _ in range(BATCH_ROUNDS)), strict=True)
        )
    rate = US / computed
    bar = f">= {STEPS_PER_SECOND:,}"
    name = f"{number:,} programs of the V100 archive"
    return [
        Row(f"steps, {name}", "1/s", rate, None, bar, rate >= STEPS_PER_SECOND),
        Row(f"reading them, {name}, beside their rows from sqlite3", "us", read, raw),
    ]


def _pass(store: Store) -> tuple[float, float, float]:
    """Return the seconds for all rows by sqlite3, for all programs, and with their features."""
    start = time.perf_counter()
    with closing(sqlite3.connect(store.location)) as connection:
        for _ in connection.execute("SELECT * FROM program ORDER BY id"):
            pass
    raw = time.perf_counter() - start
    read = computed = 0.0
    after, start = 0, time.perf_counter()
    while batch := store.programs.without_features(STEPS, after=after, limit=PER_QUERY):
        read += time.perf_counter() - start
        wrong = [rows for rows in STEPS.rows(batch) if isinstance(rows, Exception)]
        if wrong:
            raise wrong[0]
        computed += time.perf_counter() - start
        after, start = batch[-1].id, time.perf_counter()
    return raw, read, computed


def measure(options: argparse.Namespace) -> list[Row]:
    """Measure everything."""
    rows, everything = [], []
    for title, (name, target) in PROGRAMS.items():
        made, batch = context(name, target, options.candidates)
        timed = time_programs(made, batch)
        everything += timed
        rows += rows_of_program(title, timed)
        rows += two_threads(made, batch, title)
    rows += rows_of_bars(everything)
    if options.logs is not None:
        rows += time_steps(options.logs)
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this script's options."""
    parser.add_argument(
        "--logs", type=Path, metavar="DIR", help=f"folder with {ARCHIVE}, for the set 'steps'"
    )
    parser.add_argument("--candidates", type=int, default=16, help="programs of each workload")


if __name__ == "__main__":
    run("Features", "TVM", measure, add_options)
