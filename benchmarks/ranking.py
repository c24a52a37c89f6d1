"""How well feature sets rank programs of workloads that the model has not seen.

DATA holds logs of measured random candidates, such as `measured.py` makes. They are imported,
replayed and extracted as `tunedb extract` does it; then XGBoost learns from all workloads but one
and ranks that one (`folds.py`), for each of them and each feature set. Besides, the rows of
`tunedb.scheduled` are compared to those of the lowered program on random schedules for CUDA.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import Row, run
from folds import Figures, Floats, Pool, interval, leave_one_out, random_figures

from tunedb.features.base import StepFeatures, feature_set
from tunedb.logs.find import find_logs
from tunedb.logs.importer import import_log
from tunedb.records import Status
from tunedb.store import Store

OURS = "tunedb.scheduled"
BASELINE = "ansor.per_store/tvm"
SETS = (OURS, BASELINE, "ansor.per_store/ansor", "steps")

#: Where the lower 95 % bound of the paired difference in pairwise accuracy must lie above.
MARGIN = -0.02
#: Share of candidates for CUDA that must have as many rows as the lowered program.
SAME_ROWS = 0.95
#: Share of programs that may be left out, because some feature set has no rows of them.
LEFT_OUT = 0.01

#: Programs that a workload must have for its figures to mean something.
FEWEST = 10

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

#: Mean run times of the programs of a workload on a target, by program.
Times = dict[int, float]


def measured(store: Store) -> dict[tuple[int, int], Times]:
    """Return what ran, by workload and target; several measurements of a program are averaged."""
    found: dict[tuple[int, int], dict[bytes, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in store.query.iterate():
        if record.measurement.status == Status.OK and record.mean is not None:
            digest = record.measurement.program.digest
            found[record.workload_id, record.target_id][digest].append(record.mean)
    return {
        key: {
            id_: float(np.mean(means))
            for id_, means in zip(store.query.program_ids(times), times.values(), strict=True)
            if id_ is not None
        }
        for key, times in found.items()
    }


def extract(store: Store, ids: Sequence[int], threads: int) -> dict[str, list[Any]]:
    """Return for each feature set the rows of programs of one target, or why there are none."""
    from tunedb.plugins.metaschedule.features import rows_of
    from tunedb.plugins.metaschedule.replay import Replayer

    programs = store.query.programs(ids)
    replayer = Replayer(store)
    modules = [replayer.module(program) for program in programs]
    target = replayer.target(programs[0])
    found = {}
    for name in SETS:
        chosen: Any = feature_set(name)
        if isinstance(chosen, StepFeatures):
            found[name] = chosen.rows(programs)
        else:
            found[name] = rows_of(modules, target, chosen, threads)
    return found


def read_pools(store: Store, threads: int) -> tuple[dict[str, list[Pool]], int]:
    """Return the workloads with the rows of each feature set, and how many programs lack some."""
    pools: dict[str, list[Pool]] = {name: [] for name in SETS}
    left_out = 0
    for times in measured(store).values():
        rows = extract(store, list(times), threads)
        good = [
            not any(isinstance(one, Exception) for one in of)
            for of in zip(*rows.values(), strict=True)
        ]
        left_out += len(good) - sum(good)
        seconds = np.array(list(times.values()))[good]
        for key, found in rows.items():
            kept = [one.astype(np.float32) for one, ok in zip(found, good, strict=True) if ok]
            pools[key].append(Pool(seconds, kept))
    return pools, left_out


def column(results: Sequence[Figures], name: str) -> Floats:
    return np.array([getattr(one, name) for one in results])


def ranking_rows(pools: dict[str, list[Pool]], *, weighted: bool) -> list[Row]:
    """Return the table's lines about accuracy, and about its paired differences."""
    chance = [random_figures(pool.seconds) for pool in pools[BASELINE]]
    results = {name: leave_one_out(pools[name], weighted=weighted) for name in SETS}
    rows = [
        Row(
            f"{name}: {title}",
            "share",
            float(column(results[name], field).mean()),
            float(column(chance, field).mean()),
        )
        for field, title in (
            ("pairwise", "pairs in order"),
            ("top1", "best time / that of the first"),
            ("top5", "best time / best of the first 5"),
        )
        for name in SETS
    ]
    return rows + [row for name in SETS if name != BASELINE for row in differences(name, results)]


def differences(name: str, results: dict[str, list[Figures]]) -> list[Row]:
    """Return the table's lines about a feature set and the baseline on the same workloads."""
    paired = column(results[name], "pairwise") - column(results[BASELINE], "pairwise")
    low, high = interval(paired)
    title = f"{name} - {BASELINE}: pairs in order"
    bar: dict[str, Any] = {"bar": f"> {MARGIN}", "ok": low > MARGIN} if name == OURS else {}
    return [
        Row(title, "share", float(paired.mean())),
        Row(f"{title}, lower 95 % bound", "share", low, **bar),
        Row(f"{title}, upper 95 % bound", "share", high),
    ]


def cuda_rows(number: int, threads: int) -> list[Row]:
    """Return the table's lines about schedules for CUDA."""
    import tvm
    from candidates import make_module, random_candidates

    from tunedb.plugins.metaschedule.features import rows_of

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
    with tempfile.TemporaryDirectory() as scratch, Store(Path(scratch) / "ranking.db") as store:
        for file in find_logs([options.data]):
            report = import_log(store, file, source=file.name)
            if report.refused:
                raise SystemExit(f"{file.name}: {report.refused}")
        pools, left_out = read_pools(store, options.threads)
    sizes = [len(pool.seconds) for pool in pools[BASELINE]]
    if len(sizes) < 2 or min(sizes) < FEWEST:
        raise SystemExit(
            f"{options.data}: two workloads with {FEWEST} measured programs each are the least; "
            f"the workloads there have {', '.join(map(str, sizes)) or 'none'}"
        )
    programs = sum(sizes)
    rest = left_out / (programs + left_out)
    title = f"{len(sizes)} workloads, {programs:,} programs; left out"
    bar = f"<= {LEFT_OUT}"
    rows = [Row(title, "share", rest, None, bar, rest <= LEFT_OUT)]
    rows += ranking_rows(pools, weighted=options.weighted)
    if options.cuda:
        rows += cuda_rows(options.cuda, options.threads)
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="directory with measured logs")
    parser.add_argument("--threads", type=int, default=1, help="for the features (default 1)")
    parser.add_argument(
        "--weighted", action="store_true", help="weight programs by throughput, as Ansor's model"
    )
    parser.add_argument(
        "--cuda", type=int, default=16, metavar="N", help="schedules per workload; 0: none"
    )


if __name__ == "__main__":
    run("Ranking of unseen workloads", "random", measure, add_options)
