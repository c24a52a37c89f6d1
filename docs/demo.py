"""The main job from beginning to end: tune, ask, compile, tune again and others, export, import.

Run it with ``make demo``. Everything it writes goes to ``demo/`` in the working directory.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# XGBoost's threads spin while they wait, which stalls everything on few cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import tvm
from rich.console import Console
from tvm import te
from tvm.s_tir import meta_schedule as ms

import tunedb
from tunedb.plugins.metaschedule import Database, WarmBuilder, tune
from tunedb.plugins.metaschedule.threads import use_threads
from tunedb.plugins.metaschedule.tune.defaults import host_target
from tunedb.records import Status
from tunedb.results import WorkloadSummary
from tunedb.storage.store import Store

FOLDER = Path("demo")
TRIALS = 32
PER_BATCH = 16
EVALUATOR = {"number": 1, "repeat": 3, "min_repeat_ms": 10}

console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)


def matmul(name: str, n: int, m: int, depth: int) -> Any:
    """Return a matmul of n by `depth` and `depth` by m."""
    a = te.placeholder((n, depth), name="A")
    b = te.placeholder((depth, m), name="B")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    return te.create_prim_func([a, b, c]).with_attr("global_symbol", name)


def conv2d() -> Any:
    """Return a 3 by 3 convolution, NHWC, 28 by 28 pixels, 32 channels to 32, no padding."""
    x = te.placeholder((1, 30, 30, 32), name="x")
    w = te.placeholder((3, 3, 32, 32), name="w")
    r, s, c = (te.reduce_axis((0, e), name=n) for e, n in ((3, "r"), (3, "s"), (32, "c")))
    y = te.compute(
        (1, 28, 28, 32),
        lambda n, h, v, k: te.sum(x[n, h + r, v + s, c] * w[r, s, c, k], axis=[r, s, c]),
        name="conv2d",
    )
    return te.create_prim_func([x, w, y]).with_attr("global_symbol", "conv2d")


def reference(name: str, inputs: list[np.ndarray]) -> np.ndarray:
    """Return what NumPy computes."""
    if name == "matmul":
        return inputs[0] @ inputs[1]
    x, w = inputs
    result = np.zeros((1, 28, 28, 32), "float32")
    for r in range(3):
        for s in range(3):
            result += np.einsum("nhvc,ck->nhvk", x[:, r : r + 28, s : s + 28], w[r, s])
    return result


def run_tune(func: Any, database: Database, builder: Any, trials: int, seed: int) -> Any:
    """Tune an operator, and tell what came of it."""
    result = tune(
        func,
        max_trials_global=trials,
        num_trials_per_iter=PER_BATCH,
        database=database,
        builder=builder,
        evaluator=ms.runner.EvaluatorConfig(**EVALUATOR),
        seed=seed,
    )
    (task,) = result.tasks
    known = f", {result.served} of them known" if result.served else ""
    console.print(
        f"{task.name}: {result.trials} trials{known}, in {result.seconds:.0f} s; best "
        f"{task.seconds * 1e6:,.1f} µs ({task.origin})"
    )
    return task


def compare(name: str, func: Any, schedule: Any, target: Any) -> tuple[float, float]:
    """Return the times of the untuned and the best program in seconds; check the result."""
    times = []
    for module in (tvm.IRModule({"main": func}), schedule.mod):
        compiled = tvm.compile(module, target=target)
        rng = np.random.default_rng(0)
        shapes = [tuple(int(e) for e in p.ty.shape) for p in func.params]
        inputs = [rng.random(shape, dtype="float32") for shape in shapes[:-1]]
        arrays = [tvm.runtime.tensor(x) for x in (*inputs, np.zeros(shapes[-1], "float32"))]
        timer = compiled.mod.time_evaluator("main", tvm.cpu(), number=3, repeat=5, min_repeat_ms=20)
        times.append(statistics.median(timer(*arrays).results))
        np.testing.assert_allclose(arrays[-1].numpy(), reference(name, inputs), rtol=1e-3)
    return times[0], times[1]


def command(*arguments: str) -> None:
    """Show and run a command of tunedb."""
    console.print(f"\n$ tunedb {' '.join(arguments)}", style="bold", markup=False)
    sys.stdout.flush()
    program = shutil.which("tunedb", path=str(Path(sys.executable).parent)) or "tunedb"
    subprocess.run([program, *arguments], check=True)


def first_batches(
    store: tunedb.storage.store.Store, workload: tunedb.results.WorkloadSummary
) -> list[list[float]]:
    """Return the mean times of the first batch of each session, best first, in seconds."""
    sessions: dict[bytes, list[float]] = {}
    for record in store.records.iterate(workload):
        session = record.measurement.session
        if session is not None and record.mean is not None and record.measurement.is_valid:
            sessions.setdefault(session.digest, []).append(record.mean)
    return [sorted(means[:PER_BATCH]) for means in sessions.values()]


def facts(path: Path) -> list[tuple[bytes, tuple[float, ...] | None, bytes | None]]:
    """Return what MetaSchedule's JSON can hold of every exported record, sorted."""
    with tunedb.open(str(path), create=False, read_only=True) as store:
        return sorted(
            (r.measurement.program.digest, r.measurement.run_secs, r.measurement.args_info)
            for r in store.records.iterate()
            if r.measurement.status is not Status.CUT_SHORT and not r.retracted
        )


def main() -> None:
    """Run the demo."""
    began = time.perf_counter()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    path, second = FOLDER / "tune.db", FOLDER / "second.db"
    target, threads = host_target(), use_threads()
    funcs = {"matmul": matmul("matmul", 128, 128, 128), "conv2d": conv2d()}
    console.rule("tunedb: tune, ask, compile")
    console.print(
        f"target {target.kind.name} -mcpu={target.attrs['mcpu']}, {threads.count} threads; "
        f"{TRIALS} trials per operator in batches of {PER_BATCH}; evaluator {EVALUATOR}"
    )
    with WarmBuilder() as builder:
        database = Database(path, target=target)
        for func in funcs.values():
            run_tune(func, database, builder, TRIALS, seed=1)
        database.close()
        report(path, funcs, target)
        # A new handle, as a new process would have.
        database = Database(path, target=target)
        for func in funcs.values():
            run_tune(func, database, builder, TRIALS, seed=2)
        compare_runs(path, list(funcs))
        other_shape(path, database, builder)
        database.close()
    round_trip(path, second)
    console.rule(f"done in {time.perf_counter() - began:.0f} s")


def other_shape(path: Path, database: Database, builder: Any) -> None:
    """Tune a matmul that the database does not have, from those that it has."""
    console.rule("tune another shape: the search starts from its neighbour")
    task = run_tune(matmul("taller", 192, 128, 96), database, builder, PER_BATCH, seed=1)
    command("show", str(task.record.id), "--db", str(path))


def _best(store: Store, workload: WorkloadSummary) -> float:
    best = store.records.best(workload)
    return float("nan") if best is None or best.mean is None else best.mean


def report(path: Path, funcs: dict[str, Any], target: Any) -> None:
    """Show the best programs and what they gain over the untuned ones."""
    for name in funcs:
        command("top", name, "-k", "5", "--db", str(path))
    database = Database(path, target=target, read_only=True)
    for name, func in funcs.items():
        schedule = database.query_schedule(ms.tune_context._normalize_mod(func), target, "main")
        untuned, best = compare(name, func, schedule, target)
        console.print(
            f"{name}: untuned {untuned * 1e6:,.0f} µs, best stored program {best * 1e6:,.0f} µs: "
            f"{untuned / best:.1f} times faster; equal to NumPy"
        )
    database.close()
    console.rule("tune again: the second run starts from what is stored")


def compare_runs(path: Path, names: list[str]) -> None:
    """Show that the second run began where the first had ended."""
    with tunedb.open(str(path), create=False, read_only=True) as store:
        for name in names:
            (workload,) = store.workloads.find(name)
            first, again = first_batches(store, workload)
            medians = [statistics.median(times) * 1e6 for times in (first, again)]
            console.print(
                f"{name}: median of the first {PER_BATCH} trials {medians[0]:,.0f} µs in the first "
                f"run, {medians[1]:,.0f} µs in the second; best of all "
                f"{_best(store, workload) * 1e6:,.1f} µs"
            )


def round_trip(path: Path, second: Path) -> None:
    """Export, import into a second database, and compare."""
    console.rule("export as MetaSchedule JSON, import into a second database")
    command("export", str(FOLDER / "json"), "--db", str(path))
    command("import", "logs", str(FOLDER / "json"), "--db", str(second))
    before, after = facts(path), facts(second)
    if before != after:
        raise SystemExit("the second database differs")
    console.print(
        f"\n{len(after)} records: programs, times and arguments equal in both databases "
        "(the JSON format cannot hold sessions, causes of failure and trials that were cut short)"
    )


if __name__ == "__main__":
    main()
