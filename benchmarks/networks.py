"""Networks from an empty database: MetaSchedule as it is, and tunedb with both task schedulers.

Each arm tunes a small network in a process of its own, with the same trials and threads. The
compiled networks are then timed in turn, and their outputs compared with those of the untuned one.
The area is that under the curve of the sum of the operators' best times over wall time, up to the
end of the longer of both runs of tunedb: an operator without a program counts as untuned.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import Row, approve, run

#: Bars of the issue: latency and wall time against ``tune_relax``, area against TVM's scheduler.
LATENCY, WALL, AREA = 0.65, 0.4, 0.8
_ARMS = ("tvm", "gradient", "tunedb")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--network", default="mobilenet_v2", help="see onnx_networks.py")
    parser.add_argument("--size", default="quick", choices=("quick", "full"))
    parser.add_argument("--trials", type=int, default=16, help="trials of each task")
    parser.add_argument("--total", type=int, help="trials of all tasks, instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arms", default=",".join(_ARMS), help="of " + ", ".join(_ARMS))
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)


def load(options: argparse.Namespace) -> Any:
    """Return the network as a Relax program."""
    from onnx_networks import NETWORKS
    from tvm.relax.frontend.onnx import from_onnx

    return from_onnx(NETWORKS[options.network][options.size]())


def lowered_by_tvm(mod: Any, target: Any, *more: Any) -> Any:
    """Return a network after the passes that TVM's own pipeline runs before it tunes, and more."""
    import tvm
    from tvm import relax

    with target, tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(
            [
                relax.transform.DecomposeOpsForInference(),
                relax.transform.CanonicalizeBindings(),
                relax.get_pipeline("zero"),
                *more,
            ]
        )(mod)


def tune_arm(options: argparse.Namespace) -> None:
    """Tune in this process; write the curve of (second, task, best seconds)."""
    from tunedb.plugins.metaschedule import Database, tune
    from tunedb.plugins.metaschedule.tune.defaults import host_target

    mod, target, curve = load(options), host_target(), []
    started = time.perf_counter()
    folder = options.folder / options.arm
    folder.mkdir()
    if options.arm == "tvm":
        from tvm.s_tir import meta_schedule as ms

        lowered = lowered_by_tvm(mod, target)
        tasks = ms.relax_integration.extract_tasks(lowered, target)
        trials = options.total or options.trials * len(tasks)
        ms.relax_integration.tune_relax(
            lowered,
            {},
            target,
            str(folder),
            max_trials_global=trials,
            max_trials_per_task=None if options.total else options.trials,
            num_trials_per_iter=min(16, options.trials),
            seed=options.seed,
        )
        weights = {}
    else:
        with Database(folder / "tune.db", target=target) as database:
            result = tune(
                mod,
                target,
                database=database,
                max_trials_global=options.total,
                max_trials_per_task=None if options.total else options.trials,
                num_trials_per_iter=16,
                task_scheduler=options.arm,
                seed=options.seed,
                on_progress=lambda progress: curve.append(
                    (
                        time.perf_counter() - started,
                        progress.task.name,
                        progress.task.best_seconds,
                    )
                ),
            )
            weights = {task.name: task.calls for task in result.tasks}
            trials = result.trials
    content = {
        "seconds": time.perf_counter() - started,
        "curve": curve,
        "weights": weights,
        "trials": trials,
    }
    (options.folder / f"{options.arm}.json").write_text(json.dumps(content))


def compiled(options: argparse.Namespace, arm: str | None) -> Any:
    """Return the virtual machine of a network that an arm tuned; None: untuned."""
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    from tunedb.plugins.metaschedule import Database, compile
    from tunedb.plugins.metaschedule.tune.defaults import host_target

    mod, target = load(options), host_target()
    if arm is None:
        executable = tvm.compile(mod, target=target)
    elif arm == "tvm":
        folder = options.folder / "tvm"
        database = ms.database.JSONDatabase(
            str(folder / "database_workload.json"), str(folder / "database_tuning_record.json")
        )
        with target, database:
            lowered = lowered_by_tvm(mod, target, relax.transform.MetaScheduleApplyDatabase())
        executable = tvm.compile(lowered, target=target)
    else:
        with Database(approve(options.folder / arm / "tune.db"), target=target) as store:
            executable = compile(mod, store, target).executable
    return relax.VirtualMachine(executable, tvm.cpu())


def latencies(options: argparse.Namespace, arms: list[str]) -> tuple[dict[str, float], float]:
    """Return the median seconds of the networks, timed in turn, and the largest error."""
    import numpy as np
    import tvm

    mod = load(options)
    shapes = [[int(extent) for extent in param.ty.shape] for param in mod["main"].params]
    rng = np.random.default_rng(0)
    inputs = [tvm.runtime.tensor(rng.normal(size=shape).astype("float32")) for shape in shapes]
    machines = {"untuned": compiled(options, None)} | {arm: compiled(options, arm) for arm in arms}
    outputs = {arm: machine["main"](*inputs).numpy() for arm, machine in machines.items()}
    scale = float(np.abs(outputs["untuned"]).max())
    error = max(float(np.abs(one - outputs["untuned"]).max()) / scale for one in outputs.values())
    times: dict[str, list[float]] = {arm: [] for arm in machines}
    for _ in range(9):
        for arm, machine in machines.items():
            calls, started = 0, time.perf_counter()
            while time.perf_counter() - started < 0.2:
                machine["main"](*inputs)
                calls += 1
            times[arm].append((time.perf_counter() - started) / calls)
    return {arm: median(seconds) for arm, seconds in times.items()}, error


def area(content: dict[str, Any], untuned: float, end: float) -> float:
    """Return the mean of the sum of the operators' best times from 0 to `end`."""
    weights = content["weights"]
    # An equal share of the untuned network for each call of an operator without a program.
    share = untuned / sum(weights.values())
    best = dict.fromkeys(weights, share)
    total, last = 0.0, 0.0
    for second, name, seconds in content["curve"]:
        current = sum(weights[task] * value for task, value in best.items())
        total, last = total + current * (second - last), second
        if seconds is not None:
            best[name] = min(best[name], seconds)
    current = sum(weights[task] * value for task, value in best.items())
    return (total + current * (end - last)) / end


def measure(options: argparse.Namespace) -> list[Row]:
    """Run the arms, one after the other, and compare them."""
    if options.arm:
        tune_arm(options)
        raise SystemExit(0)
    arms = options.arms.split(",")
    with tempfile.TemporaryDirectory(prefix="tunedb-networks-") as folder:
        options.folder = Path(folder)
        arguments = [
            value
            for name in ("network", "size", "trials", "total", "seed")
            if getattr(options, name) is not None
            for value in (f"--{name}", str(getattr(options, name)))
        ]
        for arm in arms:
            command = [sys.executable, __file__, *arguments, "--arm", arm, "--folder", folder]
            subprocess.run(command, check=True)
        contents = {arm: json.loads((Path(folder) / f"{arm}.json").read_text()) for arm in arms}
        times, error = latencies(options, arms)
    name = f"{options.network} ({options.size})"
    rows = []
    if "tunedb" in times:
        ours_ms, untuned_ms = 1e3 * times["tunedb"], 1e3 * times["untuned"]
        rows.append(Row(f"{name}: latency, untuned against tunedb", "ms", ours_ms, untuned_ms))
    rows.append(Row("largest error against untuned", "", error, None, "≤ 1e-4", error <= 1e-4))
    ours = contents.get("tunedb")
    for arm, bar, wall in (("tvm", LATENCY, WALL), ("gradient", None, None)):
        if arm not in times or ours is None:
            continue
        theirs = contents[arm]
        ratio, seconds = times["tunedb"] / times[arm], ours["seconds"] / theirs["seconds"]
        rows.append(
            Row(
                f"latency against {arm}, {ours['trials']} and {theirs['trials']} trials",
                "ms",
                1e3 * times["tunedb"],
                1e3 * times[arm],
                "" if bar is None else f"≤ {bar} of tvm's",
                None if bar is None else ratio <= bar,
            )
        )
        rows.append(
            Row(
                f"wall time against {arm}",
                "s",
                ours["seconds"],
                theirs["seconds"],
                "" if wall is None else f"≤ {wall} of tvm's",
                None if wall is None else seconds <= wall,
            )
        )
    if ours is not None and "gradient" in contents:
        end = max(ours["seconds"], contents["gradient"]["seconds"])
        areas = {
            arm: 1e3 * area(contents[arm], times["untuned"], end) for arm in ("tunedb", "gradient")
        }
        rows.append(
            Row(
                "mean of the curve against gradient",
                "ms",
                areas["tunedb"],
                areas["gradient"],
                f"≤ {AREA} of gradient's",
                areas["tunedb"] <= AREA * areas["gradient"],
            )
        )
    return rows


if __name__ == "__main__":
    run("Networks from an empty database", "baseline", measure, _options)
