"""What an old log of another GPU saves on this one: CUDA operators, tuned in turn by each arm.

DATA is a folder with public logs. Roller's artifact (OSDI 2022, MIT licence) has Ansor's log of a
V100; `convert` makes programs of today of its best records. They never answer for this machine's
GPU, so they are donors and training data alone. Arms: `tune_tir` of MetaSchedule and tunedb from an
empty database; tunedb with the programs of other operators of that log (those below left out), and
with all of them. At the end the best programs of all arms run in alternation on equal inputs, and
their results are compared.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import tvm
from common import Row, approve, run
from search_runs import metaschedule, tunedb

from tunedb.plugins.metaschedule.convert import operators
from tunedb.plugins.metaschedule.convert.convert import convert
from tunedb.plugins.metaschedule.convert.workloads import DefinedWorkload
from tunedb.plugins.metaschedule.targets import device_of
from tunedb.plugins.metaschedule.tuning.defaults import target_of

#: Operators as the log names them, and their definitions.
OPERATORS = {
    "3x3": (operators.conv2d, ["conv2d_layer", 128, 256, 14, 14, 256, 3, 3, 1, "SAME"]),
    "1x1": (operators.conv2d, ["conv2d_layer", 128, 1024, 14, 14, 256, 1, 1, 1, "SAME"]),
    "depthwise": (
        operators.depthwise_conv2d,
        ["depthwise_conv2d_layer", 128, 168, 42, 42, 5, 5, 1, "SAME"],
    ),
    "matmul": (operators.matmul, ["matmul_layer", 128, 2048, 1000]),
    "strided": (operators.conv2d, ["conv2d_layer", 128, 128, 58, 58, 128, 3, 3, 2, "VALID"]),
    "large matmul": (operators.matmul, ["matmul_layer", 65536, 1024, 1024]),
}
LOG = "costmodel/roller_ansor/v100.jsonl.xz"
#: Programs of each workload that are converted.
BEST = 64
#: Trials without and with the log.
MANY, FEW = 64, 16
TUNE_TIR, ALONE, OTHERS, ALL = "tune_tir", "empty", "other operators", "all operators"


def fill(path: Path, log: Path, left_out: Iterable[bytes]) -> None:
    """Import the log without some workloads, and convert its best programs."""
    from tunedb.formats.find import find_logs
    from tunedb.formats.importer import import_log
    from tunedb.storage.store import Store

    forbidden = {orjson.dumps(orjson.loads(key)) for key in left_out}
    with Store(path) as store:
        import_log(store, *find_logs([log]), source="V100")
        for found in store.workloads.find():
            if orjson.dumps(orjson.loads(store.workloads.get(found.id).body)) in forbidden:
                records = [record.id for record in store.records.iterate(found.id)]
                store.trust.retract(records, "an operator of the benchmark")
        report = convert(store, best=BEST)
    print(path.stem, report.total("replayed"), "programs", flush=True)


def compare(
    winners: dict[str, Any], target: Any, shapes: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Run programs in alternation; return the medians of their times, in seconds.

    Raises
    ------
    SystemExit
        Two results differ.
    """
    device = device_of(target)
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(shape).astype("float32") for shape in shapes]
    timers, results = {}, {}
    for name, program in winners.items():
        arguments = [tvm.runtime.tensor(one, device) for one in inputs]
        built = tvm.compile(program, target=target)
        built["main"](*arguments)
        results[name] = arguments[-1].numpy()
        timer = built.mod.time_evaluator("main", device, number=10, min_repeat_ms=30)
        timers[name] = (timer, arguments)
    first, *others = results.items()
    for name, result in others:
        if not np.allclose(result, first[1], rtol=1e-3, atol=1e-2):
            raise SystemExit(f"results of {first[0]} and {name} differ")
    times: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(5):
        for name, (timer, arguments) in timers.items():
            times[name].append(float(timer(*arguments).mean))
    return {name: float(statistics.median(found)) for name, found in times.items()}


def measure(options: argparse.Namespace) -> list[Row]:
    target = target_of(options.target, is_remote=False)
    chosen = {name: OPERATORS[name] for name in options.operators.split(",")}
    rows = []
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="tunedb-gpu-") as name:
        folder = Path(name)
        keys = [orjson.dumps(key) for _, key in OPERATORS.values()]
        fill(folder / f"{OTHERS}.db", options.data / LOG, keys)
        fill(folder / f"{ALL}.db", options.data / LOG, [])
        for number, (operator, (definition, key)) in enumerate(chosen.items()):
            defined = DefinedWorkload.from_tensors(definition(*key[1:]))
            mod = defined.mod
            runs = {
                TUNE_TIR: metaschedule(
                    mod, folder / f"tvm-{number}", MANY, options.seed,
                    warm_builder=False, target=target,
                ),
                ALONE: tunedb(
                    mod, folder / f"{number}.db", MANY, options.seed, target=target
                ),
            }  # fmt: skip
            for arm in (OTHERS, ALL):
                copy = approve(shutil.copy(folder / f"{arm}.db", folder / f"{arm}-{number}.db"))
                runs[arm] = tunedb(mod, copy, FEW, options.seed, target=target)
            curves = {arm: run.curve for arm, run in runs.items() if run.curve.best(None)}
            winners = {arm: curve.winner(None) for arm, curve in curves.items()}
            winners[f"{ALONE}, {FEW} trials"] = curves[ALONE].winner(FEW)
            times = compare(winners, target, defined.shapes)
            for arm, seconds in times.items():
                ratio = times[TUNE_TIR] / seconds
                ratios.setdefault(arm, []).append(ratio)
                took = f", {curves[arm].at[-1]:.0f} s" if arm in curves else ""
                rows.append(
                    Row(f"{operator}: {arm}{took}", "ms", seconds * 1e3, times[TUNE_TIR] * 1e3)
                )
                print(rows[-1].name, f"{seconds * 1e3:.3f} ms, ratio {ratio:.2f}", flush=True)
    rows += [
        Row(f"geometric mean: {arm}", "ratio", statistics.geometric_mean(found))
        for arm, found in ratios.items()
    ]
    few = [one / two for one, two in zip(ratios[ALL], ratios[ALONE], strict=True)]
    middle = statistics.median(few)
    rows.append(
        Row(
            f"{FEW} trials with the log / {MANY} without it",
            *("ratio", middle, None, ">= 1", middle >= 1),
        )
    )
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="folder with public logs")
    parser.add_argument("--target", type=orjson.loads, default={"kind": "cuda"})
    parser.add_argument("--operators", default=",".join(OPERATORS), help="some of them, by name")
    parser.add_argument("--seed", type=int, default=0)


if __name__ == "__main__":
    run(__doc__.splitlines()[0], "tune_tir", measure, add_options)
