"""Networks from an empty database: MetaSchedule as it is, tunedb, and ONNX Runtime beside.

With `--arms prior,predicted` tunedb also tunes with a prior, and predicts with it in zero trials;
the prior then lacks all workloads with the family and shapes of one of the network's. With
`--arms winograd` it also tunes with Winograd's algorithm as a choice, in as many trials. With
`--arms others,also_equal` it tunes in a database that holds the records of `--others` networks,
without and with those of workloads that equal one of the network's. With `--arms warm` it also
tunes with weights that stay in the caches, as networks are tuned that fit there.

Each arm tunes a network in a process of its own, with the same trials and threads. The compiled
networks are then timed in turn, in processes of their own, and their outputs compared with those of
the untuned one. A curve is the sum of the operators' best times by their calls over wall time, the
start included. An operator without a program counts as untuned: with its time in the untuned
network, which tunedb measures, or with an equal share for each call.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from common import Row, approve, local_builder, onnx_session, run
from held_out import kind_of, kinds_of, use_models_of, write_without

from tunedb.exchange.prior import IN_WHEEL, unpacked

#: Bars of the issue: latency and wall time against ``tune_relax``, and the time until its final
#: latency, from an empty database and with records of other networks; area against TVM's scheduler;
#: latency against ONNX Runtime.
LATENCY, WALL, CATCH_UP, AREA, ONNX = 0.65, 0.4, {"tunedb": 1 / 6, "others": 1 / 10}, 0.8, 1.1
#: The same bar of a network of its own, and of Winograd's algorithm.
ONNX_OF, ONNX_WINOGRAD = {"resnet18": 1.0}, {"resnet18": 0.8}
#: Largest error of the outputs.
ERROR = 1e-4
#: Bars of the prior: latency with it, over that without; of zero trials, over those of
#: ``tune_relax`` and of the untuned network; seconds of a compilation in zero trials.
WITH_PRIOR, ZERO, ZERO_UNTUNED, ZERO_SECONDS = 1.02, 1.0, 0.2, 60.0
#: Processes in which each network is timed, blocks of runs in each, and seconds of a block.
ROUNDS, BLOCKS, BLOCK_S = 9, 3, 0.2
#: Networks of `--quick`, and trials of each operator. MetaSchedule takes 20 to 70 s for each of
#: their operators, whatever the trials.
QUICK, QUICK_TRIALS = ("resnet18_stage", "bert"), 4
#: Arms that tune in a database with the records of other networks.
_OTHERS = ("others", "also_equal")
#: tunedb is measured against each; all but the first three are tunedb, too.
_ARMS = ("tvm", "gradient", "onnxruntime", "prior", "predicted", "winograd", "warm", *_OTHERS)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--network", default="mobilenet_v2", help="names of onnx_networks.py, by commas"
    )
    parser.add_argument("--size", default="quick", choices=("quick", "full"))
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"small {', '.join(QUICK)}; {QUICK_TRIALS} trials",
    )
    parser.add_argument("--trials", type=int, default=16, help="trials of each task")
    parser.add_argument("--total", type=int, help="trials of all tasks, instead")
    parser.add_argument("--seed", default="0", help="seeds, by commas")
    parser.add_argument("--arms", default="tvm,gradient", help="of " + ", ".join(_ARMS))
    parser.add_argument("--prior", type=Path, default=IN_WHEEL, help="of the arms with a prior")
    parser.add_argument(
        "--others", default="resnet18,bert", help="networks tuned before for the arms with them"
    )
    parser.add_argument("--plot", type=Path, help="SVG or PNG of the curves; needs matplotlib")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--timed", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)


def load(options: argparse.Namespace, name: str | None = None) -> Any:
    """Return a network, by default that of the run, as a Relax program."""
    from onnx_networks import NETWORKS
    from tvm.relax.frontend.onnx import from_onnx

    return from_onnx(NETWORKS[name or options.network][options.size]())


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


def held_out(options: argparse.Namespace) -> Path:
    """Write the prior without the workloads of the network, and use it; return the file."""
    file: Path = options.folder / "held-out.bundle"
    if not file.exists():
        write_without(_kinds(options), unpacked(options.prior), file)
    use_models_of(file)
    return file


def with_others(options: argparse.Namespace, database: Path) -> None:
    """Make a database with the records of other networks, of equal workloads if the arm has them.

    The records of the others are made once, with as many trials for each operator.
    """
    from tunedb.plugins.metaschedule import Database, tune
    from tunedb.plugins.metaschedule.tuning.defaults import host_target
    from tunedb.storage.store import Store

    made, target = options.folder / "others.db", host_target()
    if not made.exists():
        with Database(made, target=target, prior="none") as others:
            for name in options.others.split(","):
                if name != options.network:
                    tune(
                        load(options, name),
                        target,
                        database=others,
                        max_trials_per_task=options.trials,
                        num_trials_per_iter=16,
                        seed=int(options.seed),
                    )
    # A copy of the file would lack what is still in SQLite's log.
    with closing(sqlite3.connect(made)) as source, closing(sqlite3.connect(database)) as copy:
        source.backup(copy)
    if options.arm == "also_equal":
        return
    equal = _kinds(options)
    with Store(approve(database)) as store:
        found = store.workloads.find()
        ids = [one.id for one in found if kind_of(one.signature) in equal]
        print(f"others: {len(ids)} of {len(found)} workloads left out")
        if ids:
            records = [record.id for record in store.records.iterate(ids)]
            store.trust.retract(records, "equal to a workload of the network")


def _kinds(options: argparse.Namespace) -> set[tuple[Any, ...]]:
    """Return the families and shapes of the network's workloads."""
    from tunedb.plugins.metaschedule.deploy.apply import tasks_of
    from tunedb.plugins.metaschedule.tuning.defaults import host_target

    return kinds_of(tasks_of(load(options), host_target()).values())


def predict_arm(options: argparse.Namespace) -> None:
    """Compile in zero trials with the prior alone; write the library."""
    from tunedb.plugins.metaschedule import Database, compile
    from tunedb.plugins.metaschedule.tuning.defaults import host_target

    prior = held_out(options)
    mod, target, started = load(options), host_target(), time.perf_counter()
    with Database(":memory:", target=target, prior=prior) as database:
        found = compile(mod, database, target, trials=0)
    kinds = Counter(use.kind for use in found.uses)
    found.executable.export_library(str(options.folder / "predicted.so"))
    content = {"seconds": time.perf_counter() - started, "kinds": dict(kinds)}
    (options.folder / "predicted.json").write_text(json.dumps(content))


def tune_arm(options: argparse.Namespace) -> None:
    """Tune in this process; write the curve of (second, task, best seconds)."""
    from tunedb.plugins.metaschedule import Database, tune
    from tunedb.plugins.metaschedule.tuning.defaults import host_target

    if options.arm == "warm":
        from tunedb.plugins.metaschedule.tuning import run as tuning_run

        tuning_run.last_cache = lambda: None
    prior = held_out(options) if options.arm == "prior" else "none"
    mod, target, curve = load(options), host_target(), []
    folder = options.folder / options.arm
    folder.mkdir()
    if options.arm in _OTHERS:
        with_others(options, folder / "tune.db")
    seed, started = int(options.seed), time.perf_counter()
    if options.arm == "tvm":
        from tvm.s_tir import meta_schedule as ms

        lowered = lowered_by_tvm(mod, target)
        tasks = ms.relax_integration.extract_tasks(lowered, target)
        weights = {str(task.task_name): int(task.weight) for task in tasks}
        untuned = {}
        trials = options.total or options.trials * len(tasks)
        ms.relax_integration.tune_relax(
            lowered,
            {},
            target,
            str(folder),
            max_trials_global=trials,
            max_trials_per_task=None if options.total else options.trials,
            num_trials_per_iter=min(16, options.trials),
            builder=local_builder(),
            measure_callbacks=[
                *ms.MeasureCallback.create("default"),
                _watch(list(weights), curve, started),
            ],
            seed=seed,
        )
        if not any(best for _, _, best in curve):
            raise SystemExit(f"tvm: no trial was measured; see {folder / 'logs'}")
    else:
        file = approve(folder / "tune.db") if options.arm in _OTHERS else folder / "tune.db"
        with Database(file, target=target, prior=prior) as database:
            result = tune(
                mod,
                target,
                database=database,
                max_trials_global=options.total,
                max_trials_per_task=None if options.total else options.trials,
                num_trials_per_iter=16,
                task_scheduler="gradient" if options.arm == "gradient" else "tunedb",
                algorithms=_algorithms(options.arm),
                seed=seed,
                on_progress=lambda progress: curve.append(
                    (
                        time.perf_counter() - started,
                        progress.task.name,
                        progress.task.best_seconds,
                    )
                ),
            )
            weights = {task.name: task.calls for task in result.tasks}
            untuned = {
                one.name: one.untuned / one.calls
                for one in result.networks[0].run.operators
                if one.calls
            }
            trials = result.trials
    content = {
        "seconds": time.perf_counter() - started,
        "curve": curve,
        "weights": weights,
        "untuned": untuned,
        "trials": trials,
    }
    (options.folder / f"{options.arm}.json").write_text(json.dumps(content))


def _algorithms(arm: str) -> Any:
    return "winograd" if arm == "winograd" else "exact"


def _watch(names: list[str], curve: list[tuple[float, str, float | None]], started: float) -> Any:
    """Return a callback of TVM's that notes the best time of each batch."""
    from tvm.s_tir.meta_schedule.measure_callback.measure_callback import _PyMeasureCallback

    def apply(_scheduler: Any, number: int, _candidates: Any, _builds: Any, runs: Any) -> None:
        times = [sum(map(float, one.run_secs)) / len(one.run_secs) for one in runs if one.run_secs]
        curve.append((time.perf_counter() - started, names[number], min(times, default=None)))

    return _PyMeasureCallback(apply)


def compiled(options: argparse.Namespace, arm: str | None) -> Any:
    """Return the virtual machine of a network that an arm tuned; None: untuned."""
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    from tunedb.plugins.metaschedule import Database, compile
    from tunedb.plugins.metaschedule.tuning.defaults import host_target

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
    elif arm == "predicted":
        executable = tvm.runtime.load_module(str(options.folder / "predicted.so"))
    else:
        # Answers of the prior count: a function without trials is compiled with them.
        prior = options.folder / "held-out.bundle" if arm == "prior" else "none"
        file = approve(options.folder / arm / "tune.db")
        with Database(file, target=target, prior=prior) as store:
            executable = compile(mod, store, target, algorithms=_algorithms(arm)).executable
    return relax.VirtualMachine(executable, tvm.cpu())


def onnx_runtime(options: argparse.Namespace) -> Callable[..., Any]:
    """Return a function that runs the network in ONNX Runtime, with the threads of TVM's."""
    from onnx_networks import NETWORKS

    session = onnx_session(NETWORKS[options.network][options.size]())
    names = [one.name for one in session.get_inputs()]

    def call(*inputs: Any) -> Any:
        return session.run(None, dict(zip(names, inputs, strict=True)))[0]

    return call


def timed(options: argparse.Namespace) -> None:
    """Time the network of an arm in this process; write the seconds of its runs and its output."""
    import numpy as np
    import tvm

    shapes = [[int(extent) for extent in p.ty.shape] for p in load(options)["main"].params]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype("float32") for shape in shapes]
    call: Callable[[], Any]
    if options.timed == "onnxruntime":
        call = partial(onnx_runtime(options), *arrays)
    else:
        arm = None if options.timed == "untuned" else options.timed
        inputs = [tvm.runtime.tensor(array) for array in arrays]
        call = partial(compiled(options, arm)["main"], *inputs)
    output = call()
    np.save(options.folder / f"{options.timed}.npy", getattr(output, "numpy", lambda: output)())
    times = []
    for _ in range(BLOCKS + 1):
        number, started = 0, time.perf_counter()
        while time.perf_counter() - started < BLOCK_S:
            call()
            number += 1
        times.append((time.perf_counter() - started) / number)
    # The first block warms up.
    (options.folder / "times.json").write_text(json.dumps(times[1:]))


def latencies(
    options: argparse.Namespace, arms: list[str], arguments: list[str]
) -> tuple[dict[str, float], float]:
    """Return the median seconds of the networks, timed in turn, and the largest error.

    Each is timed in processes of its own: a runtime whose threads wait for work by spinning slows
    another one down.
    """
    import numpy as np

    times: dict[str, list[float]] = {arm: [] for arm in ("untuned", *arms)}
    for _ in range(ROUNDS):
        for arm, seconds in times.items():
            command = [sys.executable, __file__, *arguments, "--timed", arm]
            subprocess.run([*command, "--folder", str(options.folder)], check=True)
            seconds.extend(json.loads((options.folder / "times.json").read_text()))
    outputs = {arm: np.load(options.folder / f"{arm}.npy") for arm in times}
    scale = float(np.abs(outputs["untuned"]).max())
    error = max(float(np.abs(one - outputs["untuned"]).max()) / scale for one in outputs.values())
    return {arm: median(seconds) for arm, seconds in times.items()}, error


def steps(content: dict[str, Any], untuned: float) -> list[tuple[float, float]]:
    """Return the curve of an arm: seconds of tuning, and the sum of the operators' best times."""
    weights = content["weights"]
    best = dict.fromkeys(weights, untuned / sum(weights.values()))
    best |= {name: time for name, time in content["untuned"].items() if name in weights}
    curve = [(0.0, untuned)]
    for second, name, seconds in content["curve"]:
        if seconds is not None:
            best[name] = min(best[name], seconds)
        curve.append((second, sum(weights[task] * value for task, value in best.items())))
    return curve


def area(curve: list[tuple[float, float]], end: float) -> float:
    """Return the mean of a curve from 0 to `end`."""
    ends = [second for second, _ in curve[1:]] + [end]
    return sum(value * (to - begin) for (begin, value), to in zip(curve, ends, strict=True)) / end


def one_run(options: argparse.Namespace) -> dict[str, Any]:
    """Tune and time one network with one seed."""
    arms = [arm for arm in options.arms.split(",") if arm]
    with tempfile.TemporaryDirectory(prefix="tunedb-networks-") as folder:
        options.folder = Path(folder)
        arguments = [
            value
            for name in ("network", "size", "trials", "total", "seed", "prior", "others")
            if getattr(options, name) is not None
            for value in (f"--{name}", str(getattr(options, name)))
        ]
        contents = {}
        for arm in (*arms, "tunedb"):
            if arm == "onnxruntime":
                continue
            command = [sys.executable, __file__, *arguments, "--arm", arm, "--folder", folder]
            subprocess.run(command, check=True)
            contents[arm] = json.loads((Path(folder) / f"{arm}.json").read_text())
        times, error = latencies(options, [*arms, "tunedb"], arguments)
    curves = {
        arm: steps(content, times["untuned"])
        for arm, content in contents.items()
        if arm not in ("predicted", "winograd")
    }
    found = {"times": times, "error": error, "contents": contents, "curves": curves}
    print(json.dumps({"network": options.network, "seed": options.seed, "times": times}))
    return found


#: Name and colour of an arm in the plot; the colours are Okabe and Ito's.
_LINES = {
    "tvm": ("MetaSchedule (tune_relax)", "#D55E00"),
    "tunedb": ("tunedb, empty database", "#0072B2"),
    "prior": ("tunedb with its prior", "#009E73"),
    "others": ("tunedb with records of other networks", "#CC79A7"),
}


def plot(runs: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    """Write the curves of the first seed of each network."""
    from matplotlib.figure import Figure

    path: Path = options.plot
    figure = Figure(figsize=(6.4 * len(runs), 3.6), layout="constrained")
    for axes, (name, found) in zip(
        figure.subplots(1, len(runs), squeeze=False)[0], runs.items(), strict=True
    ):
        for arm, curve in found[0]["curves"].items():
            seconds = [*(second for second, _ in curve), found[0]["contents"][arm]["seconds"]]
            values = [1e3 * value for _, value in curve]
            label, color = _LINES.get(arm, (arm, None))
            axes.step(seconds, [*values, values[-1]], where="post", label=label, color=color, lw=2)
        if "onnxruntime" in found[0]["times"]:
            least = 1e3 * found[0]["times"]["onnxruntime"]
            axes.axhline(least, linestyle=":", color="gray", label="ONNX Runtime")
        axes.set(
            title=f"{name}, {options.trials} trials for each operator",
            xlabel="seconds of tuning",
            ylabel="latency (sum of operators), ms",
            yscale="log",
        )
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(
            lambda value, _: f"{value:g}" if f"{value:e}"[0] in "235" else ""
        )
        axes.grid(which="both", alpha=0.25)
        axes.legend()
    # No time of creation: a picture changes with its numbers alone.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return float(prod(values) ** (1 / len(values)))


def caught_up(found: dict[str, Any], arm: str) -> float:
    """Return an arm's seconds until the final latency of ``tune_relax``, over those of all its run.

    The curve is scaled to end at the latency of the compiled network: tunedb times operators with
    cold weights where those of a network exceed the caches, and MetaSchedule does not. More than
    the whole run of the arm where it never comes so far.
    """
    curve, times = found["curves"][arm], found["times"]
    last = times["tvm"] * curve[-1][1] / times[arm]
    ours = found["contents"][arm]["seconds"]
    reached = next((s for s, value in curve if value <= last), 2 * ours)
    return reached / found["contents"]["tvm"]["seconds"]


def rows_of(name: str, found: list[dict[str, Any]]) -> list[Row]:
    """Return the rows of a network; ratios are geometric means over the seeds."""

    def times(arm: str) -> float:
        return mean([one["times"][arm] for one in found])

    def seconds(arm: str) -> float:
        return mean([one["contents"][arm]["seconds"] for one in found])

    error = max(one["error"] for one in found)
    rows = [
        Row(f"{name}: untuned", "ms", 1e3 * times("tunedb"), 1e3 * times("untuned")),
        Row(f"{name}: largest error", "", error, None, f"≤ {ERROR:.0e}", error <= ERROR),
    ]
    onnx = ONNX_OF.get(name, ONNX)
    bars = {"tvm": LATENCY, "gradient": None, "warm": None, "onnxruntime": onnx}
    for arm, bar in bars.items():
        if arm not in found[0]["times"]:
            continue
        ratio = times("tunedb") / times(arm)
        rows.append(
            Row(
                f"{name}: latency, {arm}",
                "ms",
                1e3 * times("tunedb"),
                1e3 * times(arm),
                "" if bar is None else f"≤ {bar}",
                None if bar is None else ratio <= bar,
            )
        )
    if "winograd" in found[0]["times"]:
        ours = times("winograd")
        for arm, most in (("tunedb", None), ("onnxruntime", ONNX_WINOGRAD.get(name))):
            if arm in found[0]["times"]:
                other, bar = times(arm), "" if most is None else f"≤ {most}"
                holds = None if most is None else ours <= most * other
                label = "exact" if arm == "tunedb" else arm
                rows.append(
                    Row(f"{name}: Winograd, {label}", "ms", 1e3 * ours, 1e3 * other, bar, holds)
                )
    for arm in _OTHERS:
        if arm in found[0]["times"]:
            label = f"{name}: {arm}, empty database"
            rows.append(Row(label, "ms", 1e3 * times(arm), 1e3 * times("tunedb")))
    if "prior" in found[0]["times"]:
        ours, without = times("prior"), times("tunedb")
        bar, holds = f"≤ {WITH_PRIOR}", ours <= WITH_PRIOR * without
        rows.append(
            Row(f"{name}: with the prior, without", "ms", 1e3 * ours, 1e3 * without, bar, holds)
        )
    if "predicted" in found[0]["times"]:
        ours = times("predicted")
        for arm, share in (("untuned", ZERO_UNTUNED), ("tvm", ZERO), ("tunedb", None)):
            if arm in found[0]["times"]:
                other = times(arm)
                bar, holds = ("", None) if share is None else (f"≤ {share}", ours <= share * other)
                rows.append(
                    Row(f"{name}: zero trials, {arm}", "ms", 1e3 * ours, 1e3 * other, bar, holds)
                )
        took = seconds("predicted")
        bar, holds = f"≤ {ZERO_SECONDS:.0f}", took <= ZERO_SECONDS
        rows.append(Row(f"{name}: compilation in zero trials", "s", took, None, bar, holds))
    for arm, bar in (("tvm", WALL), ("gradient", None)):
        if arm in found[0]["contents"]:
            ratio = seconds("tunedb") / seconds(arm)
            rows.append(
                Row(
                    f"{name}: wall time, {arm}",
                    "s",
                    seconds("tunedb"),
                    seconds(arm),
                    "" if bar is None else f"≤ {bar}",
                    None if bar is None else ratio <= bar,
                )
            )
    if "tvm" in found[0]["contents"]:
        for arm in ("tunedb", "prior", *_OTHERS):
            if arm in found[0]["curves"]:
                share, most = mean([caught_up(one, arm) for one in found]), CATCH_UP.get(arm)
                label = f"{name}: {arm}, time until tvm's final latency"
                bar, holds = ("", None) if most is None else (f"≤ 1/{1 / most:.0f}", share <= most)
                rows.append(Row(label, "s", share * seconds("tvm"), seconds("tvm"), bar, holds))
    if "gradient" in found[0]["contents"]:
        areas = {}
        for arm in ("tunedb", "gradient"):
            areas[arm] = mean(
                [
                    area(
                        one["curves"][arm],
                        max(one["contents"][a]["seconds"] for a in ("tunedb", "gradient")),
                    )
                    for one in found
                ]
            )
        rows.append(
            Row(
                f"{name}: mean of the curve, gradient",
                "ms",
                1e3 * areas["tunedb"],
                1e3 * areas["gradient"],
                f"≤ {AREA}",
                areas["tunedb"] <= AREA * areas["gradient"],
            )
        )
    return rows


def rows_of_all(found: list[dict[str, Any]]) -> list[Row]:
    """Return the rows of all networks: geometric means of the ratios."""

    def row(label: str, ratios: list[float], bar: float) -> Row:
        ratio = mean(ratios)
        return Row(f"all: {label}", "", ratio, 1.0, f"≤ {bar:.3g}", ratio <= bar)

    rows = [
        row(f"latency, {arm}", [one["times"]["tunedb"] / one["times"][arm] for one in found], bar)
        for arm, bar in (("tvm", LATENCY), ("onnxruntime", ONNX))
        if all(arm in one["times"] for one in found)
    ]
    if all("tvm" in one["contents"] for one in found):
        seconds = [{arm: own["seconds"] for arm, own in one["contents"].items()} for one in found]
        rows.append(row("wall time, tvm", [one["tunedb"] / one["tvm"] for one in seconds], WALL))
        caught = [caught_up(one, "tunedb") for one in found]
        rows.append(row("time until tvm's final latency", caught, CATCH_UP["tunedb"]))
    return rows


def measure(options: argparse.Namespace) -> list[Row]:
    """Run the arms, one after the other, and compare them."""
    if options.timed:
        timed(options)
        raise SystemExit(0)
    if options.arm:
        (predict_arm if options.arm == "predicted" else tune_arm)(options)
        raise SystemExit(0)
    if "onnxruntime" in options.arms:
        # Its arm comes last; a missing package is found before the others have tuned.
        importlib.import_module("onnxruntime")
    if options.quick:
        options.network, options.size, options.trials = ",".join(QUICK), "quick", QUICK_TRIALS
    names, seeds = options.network.split(","), options.seed.split(",")
    runs: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        for seed in seeds:
            options.network, options.seed = name, seed
            runs.setdefault(name, []).append(one_run(options))
    if options.plot:
        plot(runs, options)
    rows = [row for name, found in runs.items() for row in rows_of(name, found)]
    if len(names) > 1:
        rows += rows_of_all([one for found in runs.values() for one in found])
    return rows


if __name__ == "__main__":
    run("Networks from an empty database", "baseline", measure, _options)
