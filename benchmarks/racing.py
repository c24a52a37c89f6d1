"""What racing saves, and whether the named winner is the best program.

Races are replayed on DATA, pools of random candidates that were measured whole (`measured.py` makes
them), in several random orders. Then some workloads are tuned, and the best programs of each are
measured again in turn: the winner that the final named, and the one with the fastest single
measurement, beside the best of them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import Row, run

from tunedb.run_times import NO_TIME, mean_of

#: Least share of the running time that racing saves, and of the tasks whose winner is within 1 %.
SAVED, CLOSE, WITHIN = 1 / 3, 0.95, 1.01
#: Least seconds of a repeat, as tune() measures.
REPEAT_S = 0.03
#: Candidates of a task that are measured again, and rounds.
CANDIDATES, ROUNDS = 8, 20

WORKLOADS = (
    *("matmul_256_256_256", "matmul_32_768_768", "conv2d_1_28_28_64_64_3_1_1"),
    *("conv2d_1_56_56_64_64_1_1_0", "dep_1_28_28_128_3_1_1", "dense_relu_64_512_256"),
    *("softmax_256_256", "bmm_12_64_64_64"),
)

Repeats = Sequence[float]


# ---- races on stored pools -----------------------------------------------------------------------


def pools(data: Path) -> Iterator[list[Repeats]]:
    """Yield the repeats of all candidates of each workload."""
    for path in sorted(data.rglob("database_tuning_record.json")):
        by_workload: dict[int, list[Repeats]] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            workload, (_, run_secs, *_) = json.loads(line)
            if run_secs and NO_TIME not in run_secs and len(run_secs) >= 3:
                by_workload.setdefault(workload, []).append(run_secs)
        yield from by_workload.values()


def race(pool: Sequence[Repeats]) -> tuple[float, float, bool]:
    """Return the seconds of all measurements, of those in a race, and if it kept the fastest.

    The second repeat stands for the second look. TVM runs a program once before each evaluation.
    """
    from tunedb.plugins.metaschedule.measure.racing import FAR, LOOK, Race

    entrants = Race()
    entrants.begin(0)
    whole = raced = 0.0
    kept = []
    for run_secs in pool:
        first, second = run_secs[:2]
        seconds = [max(repeat, REPEAT_S) for repeat in run_secs]
        whole += first + sum(seconds)
        raced += first + seconds[0]
        bound = entrants.bound()
        is_slow = first > bound
        if is_slow and first <= FAR * bound:
            raced += first + max(second, LOOK * REPEAT_S)
            is_slow = second > bound
        if not is_slow:
            raced += first + sum(seconds[1:])
            entrants.add(run_secs)
            kept.append(mean_of(run_secs))
    return whole, raced, min(kept) == min(map(mean_of, pool))


def racing_rows(data: Path, orders: int) -> list[Row]:
    """Return what racing saves and loses on stored pools."""
    saved, kept = [], []
    for pool in pools(data):
        for seed in range(orders):
            order = random.Random(seed).sample(pool, len(pool))
            whole, raced, is_kept = race(order)
            saved.append(1 - raced / whole)
            kept.append(is_kept)
    if not saved:
        raise SystemExit(f"{data}: no candidates with three repeats; run: measured.py {data}")
    share = statistics.median(saved)
    lost = kept.count(False)
    return [
        Row(
            f"running time that racing saves, median of {len(saved)} races",
            *("share", share, None),
            *(f">= {SAVED:.2f}", share >= SAVED),
        ),
        Row("races that lose the fastest program", "races", lost, None, "= 0", lost == 0),
    ]


# ---- winners of tuning runs ----------------------------------------------------------------------


def measured_in_turn(candidates: Sequence[Any], target: Any, builder: Any) -> list[float]:
    """Return the median over rounds of each program's time / the best time of the round."""
    from measured import arguments
    from tvm.s_tir import meta_schedule as ms

    settings = ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=30)
    runner = ms.runner.LocalRunner(evaluator_config=settings)
    inputs = [ms.builder.BuilderInput(one.mod, target) for one in candidates]
    built = [str(result.artifact_path) for result in builder.build(inputs)]
    logs: list[list[float]] = [[] for _ in candidates]
    for number in range(ROUNDS):
        for place in sorted(range(len(built)), reverse=bool(number % 2)):
            about = arguments(candidates[place].mod)
            (future,) = runner.run([ms.runner.RunnerInput(built[place], "cpu", about)])
            repeats = [float(seconds) for seconds in future.result().run_secs]
            logs[place].append(math.log(statistics.median(repeats)))
    best = min(range(len(logs)), key=lambda place: statistics.fmean(logs[place]))
    return [
        math.exp(statistics.median(a - b for a, b in zip(own, logs[best], strict=True)))
        for own in logs
    ]


def winners(name: str, trials: int, folder: Path) -> tuple[float, float]:
    """Tune a workload; return the winner's time / the best one, with a final and without.

    Without a final the fastest single measurement of the same run names the winner.
    """
    from candidates import make_module
    from tvm.s_tir import Schedule

    from tunedb.plugins.metaschedule import WarmBuilder, tune
    from tunedb.records import Status

    result = tune(make_module(name), None, None, trials, database=folder / f"{name}.db", seed=1)
    with result.database as database, WarmBuilder() as builder:
        named = result.tasks[0].record
        # In order of insertion: a final comes after all trials.
        firsts: dict[bytes, Any] = {}
        for record in database.store.records.iterate():
            if record.measurement.status is Status.OK:
                firsts.setdefault(record.measurement.program.digest, record)
        ranked = sorted(firsts.values(), key=lambda record: record.mean)[:CANDIDATES]
        programs = [record.measurement.program.digest for record in ranked]
        schedules = []
        for record in ranked:
            live = database._handle.records.get(record.id)
            schedule = Schedule(live.workload.mod)
            live.trace.apply_to_schedule(schedule, remove_postproc=False)
            schedules.append(schedule)
        times = measured_in_turn(schedules, result.target, builder)
    return times[programs.index(named.measurement.program.digest)], times[0]


def final_rows(names: Sequence[str], trials: int) -> list[Row]:
    """Return how many named winners are the best program within 1 %."""
    with tempfile.TemporaryDirectory(prefix="tunedb-racing-") as folder:
        found = [winners(name, trials, Path(folder)) for name in names]
    ours, single = zip(*found, strict=True)
    share, baseline = (sum(ratio <= WITHIN for ratio in one) / len(one) for one in (ours, single))
    return [
        Row(
            f"winners within 1 % of the best of {CANDIDATES} programs, {len(names)} workloads",
            *("share", share, baseline, f">= {CLOSE}", share >= CLOSE),
        ),
        Row("winner's time / best, mean", "", statistics.fmean(ours), statistics.fmean(single)),
    ]


def measure(options: argparse.Namespace) -> list[Row]:
    return [
        *racing_rows(options.data, options.orders),
        *(final_rows(options.workloads, options.trials) if options.workloads else ()),
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="as measured.py makes it")
    parser.add_argument("--orders", type=int, default=3, help="random orders of each pool")
    parser.add_argument("--workloads", nargs="*", default=WORKLOADS, metavar="NAME")
    parser.add_argument("--trials", type=int, default=64, help="of each tuned workload")


if __name__ == "__main__":
    run(__doc__.splitlines()[0], "fastest measurement", measure, add_options)
