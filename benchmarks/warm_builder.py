"""Tune one matmul with TVM's LocalBuilder and with tunedb's WarmBuilder and compare the times.

Each run is a fresh process: what TVM imports once per process is in every run. One run: matmul
128x128x128, 64 trials in 4 batches of 16, evolutionary search with a population of 64 and 2
generations, LocalRunner with number=1, repeat=3, min_repeat_ms=10, a random cost model and TVM's
MemoryDatabase, the same seed for both builders. The time is that of making the builder and the
runner, `tune_tir` and the end of the workers; the import of TVM before that is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

BUILDERS = ("local", "warm")
TRIALS = 64
BATCH = 16
SEED = 1
#: `--check` fails above this ratio of the times with WarmBuilder and with LocalBuilder.
LIMIT = 0.6


def measure(rounds: int = 1) -> dict[str, Any]:
    """Time both builders alternately.

    Parameters
    ----------
    rounds : int
        Runs of each builder; the order alternates from round to round.

    Returns
    -------
    dict
        ``seconds``, ``cpu_seconds``, ``best_us`` and ``built``, each a list for every builder,
        ``ratio`` (of the medians, warm to local), and what was run where.
    """
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in BUILDERS}
    for number in range(rounds):
        for name in BUILDERS if number % 2 == 0 else reversed(BUILDERS):
            runs[name].append(_run_in_fresh_process(name))
    columns = ("seconds", "cpu_seconds", "best_us", "built")
    result: dict[str, Any] = {
        column: {name: [run[column] for run in runs[name]] for name in BUILDERS}
        for column in columns
    }
    seconds = {name: median(values) for name, values in result["seconds"].items()}
    result["ratio"] = seconds["warm"] / seconds["local"]
    result["setting"] = {
        "workload": "matmul 128x128x128 float32",
        "trials": TRIALS,
        "batch": BATCH,
        "cost_model": "random",
        "seed": SEED,
        "rounds": rounds,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    return result


def _run_in_fresh_process(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory, "answer.json")
        command = [sys.executable, __file__, "--run", name, "--json", str(answer)]
        # TVM's tuner prints a table after every batch.
        done = subprocess.run(
            command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        if done.returncode != 0:
            raise RuntimeError(f"the {name} run failed:\n{done.stderr.decode(errors='replace')}")
        run: dict[str, Any] = json.loads(answer.read_text())
        return run


def _tune(name: str) -> dict[str, Any]:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from tunedb.plugins.metaschedule.threads import use_threads

    use_threads()
    mod = _matmul(128)
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": cpu})
    begin, cpu_begin = time.perf_counter(), _cpu_seconds()
    builder = _builder(name)
    config = ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=10)
    with tempfile.TemporaryDirectory() as work_dir:
        database = ms.tune_tir(
            mod,
            target,
            work_dir,
            TRIALS,
            num_trials_per_iter=BATCH,
            builder=builder,
            runner=ms.runner.LocalRunner(evaluator_config=config),
            database=ms.database.MemoryDatabase(),
            cost_model="random",
            strategy=ms.search_strategy.EvolutionarySearch(population_size=64, genetic_num_iters=2),
            num_tuning_cores=1,
            seed=SEED,
        )
    if name == "warm":
        builder.close()
    seconds, cpu_seconds = time.perf_counter() - begin, _cpu_seconds() - cpu_begin
    means = [
        sum(map(float, record.run_secs)) / len(record.run_secs)
        for record in database.get_all_tuning_records()
    ]
    good = [mean for mean in means if mean < 1e9]  # TVM stores a failure as 1e10
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "best_us": min(good, default=float("nan")) * 1e6,
        "built": len(good),
    }


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of the children that have ended."""
    return sum(os.times()[:4])


def _builder(name: str) -> Any:
    if name == "warm":
        from tunedb.plugins.metaschedule.workers.warm_builder import WarmBuilder

        return WarmBuilder()
    from common import local_builder

    return local_builder()


def _matmul(n: int) -> Any:
    import tvm
    from tvm import te

    a, b = (te.placeholder((n, n), "float32", name=name) for name in "AB")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="matmul 128x128x128, 64 trials in 4 batches, random cost model")
    for title in ("builder", "seconds", "CPU seconds", "best, µs", "trials measured"):
        table.add_column(title, justify="left" if title == "builder" else "right")
    for name in BUILDERS:
        table.add_row(
            {"local": "LocalBuilder (TVM)", "warm": "WarmBuilder (tunedb)"}[name],
            " ".join(f"{value:.1f}" for value in result["seconds"][name]),
            " ".join(f"{value:.1f}" for value in result["cpu_seconds"][name]),
            " ".join(f"{value:.1f}" for value in result["best_us"][name]),
            " ".join(f"{value}/{TRIALS}" for value in result["built"][name]),
        )
    console = Console()
    console.print(table)
    console.print(f"ratio warm/local: {result['ratio']:.2f}")


def main() -> int:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="runs of each builder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--check", action="store_true", help=f"fail above a ratio of {LIMIT}")
    parser.add_argument("--run", choices=BUILDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    result = _tune(arguments.run) if arguments.run else measure(arguments.rounds)
    if not arguments.run:
        _print(result)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    if arguments.check and result["ratio"] > LIMIT:
        print(f"ratio {result['ratio']:.2f} is above {LIMIT}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
