"""Measure random candidates of TVM's test workloads on this machine, for `ranking.py`.

Each workload becomes a directory with the two files of a MetaSchedule JSON database. It appears
when the workload is done. Workloads with a directory are skipped, so that an interrupted run
continues where it stopped.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from common import random_arguments
from rich.progress import Progress

#: Operators of common networks, small enough that the slowest candidates end in seconds.
WORKLOADS = (
    *("bmm_12_64_64_64", "bmm_8_128_128_32"),
    *("conv1d_1_128_64_128_3_2_1", "conv1d_1_256_64_64_3_1_1"),
    *("conv2d_1_14_14_128_128_3_1_1", "conv2d_1_28_28_64_64_3_1_1", "conv2d_1_56_56_32_64_3_2_1"),
    *("conv2d_1_56_56_64_64_1_1_0", "conv2d_1_7_7_256_128_1_1_0", "conv3d_1_8_14_14_16_32_3_1_1"),
    *("dense_relu_128_256_128", "dense_relu_64_512_256"),
    *("dep_1_28_28_128_3_1_1", "dep_1_28_28_128_3_2_1", "dep_1_56_56_64_3_1_1"),
    *("matmul_128_128_128", "matmul_1_1000_2048", "matmul_256_256_256", "matmul_32_768_768"),
    *("matmul_512_512_64", "matmul_64_1024_128"),
    *("norm_1_256_256", "softmax_1024_128", "softmax_256_256"),
)
EVALUATOR = {"number": 3, "repeat": 3, "min_repeat_ms": 20}
BATCH = 16
#: What TVM's database stores as the run time of a failure, in seconds.
FAILED = (1e10,)


def this_machine() -> Any:
    """Return the LLVM target of this machine, with the threads that its programs get."""
    from tunedb.plugins.metaschedule.threads import use_threads
    from tunedb.plugins.metaschedule.tuning.defaults import host_target

    use_threads()
    return host_target()


def measure_again(modules: dict[str, Any], rounds: int) -> dict[str, tuple[float, float]]:
    """Return median seconds of scheduled modules and the half width of its 95 % interval.

    They are measured in alternation.
    """
    import tvm

    timers = {}
    for tuner, mod in modules.items():
        built = tvm.compile(mod, target=this_machine())
        arguments = random_arguments(mod)
        timer = built.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=1, min_repeat_ms=50)
        timers[tuner] = lambda timer=timer, arguments=arguments: timer(*arguments).mean
    told: dict[str, list[float]] = {tuner: [] for tuner in timers}
    for _ in range(rounds):
        for tuner, timer in timers.items():
            told[tuner].append(timer())
    rng = np.random.default_rng(0)
    found = {}
    for tuner, times in told.items():
        samples = np.median(rng.choice(times, (2000, len(times))), axis=1)
        low, high = np.quantile(samples, (0.025, 0.975))
        found[tuner] = float(np.median(times)), float(high - low) / 2
    return found


def measure(schedules: list[Any], target: Any, builder: Any, runner: Any) -> list[Any]:
    """Build and run a batch; return TVM's `RunnerResult` of each, with the error if it failed."""
    from tvm.s_tir import meta_schedule as ms

    built = builder.build([ms.builder.BuilderInput(one.mod, target) for one in schedules])
    good = [index for index, one in enumerate(built) if one.error_msg is None]
    futures = runner.run(
        [
            ms.runner.RunnerInput(built[i].artifact_path, "cpu", arguments(schedules[i].mod))
            for i in good
        ]
    )
    ran = {index: future.result() for index, future in zip(good, futures, strict=True)}
    for index in good:
        Path(built[index].artifact_path).unlink()
    return [
        ran.get(i) or ms.runner.RunnerResult(None, one.error_msg) for i, one in enumerate(built)
    ]


def arguments(mod: Any) -> Any:
    """Return TVM's description of a module's arguments."""
    from tvm.s_tir import meta_schedule as ms

    return ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True)


def measure_workload(
    name: str, folder: Path, options: argparse.Namespace, tools: tuple[Any, Any], progress: Progress
) -> None:
    """Write the database of a workload into a directory."""
    from candidates import make_module, random_candidates
    from tvm.s_tir import meta_schedule as ms

    mod, target = make_module(name), this_machine()
    schedules = random_candidates(mod, target, options.candidates, options.seed)
    database = ms.database.JSONDatabase(work_dir=str(folder), allow_missing=True)
    workload = database.commit_workload(mod)
    errors = []
    task = progress.add_task(name, total=len(schedules))
    for start in range(0, len(schedules), BATCH):
        batch = schedules[start : start + BATCH]
        for schedule, result in zip(batch, measure(batch, target, *tools), strict=True):
            if result.error_msg is not None:
                errors.append(str(result.error_msg))
            times = result.run_secs or FAILED
            about = arguments(schedule.mod)
            database.commit_tuning_record(
                ms.database.TuningRecord(schedule.trace, workload, times, target, about)
            )
        told = f"{name}, {len(errors)} failed" if errors else name
        progress.update(task, advance=len(batch), description=told)
    if len(errors) == len(schedules):
        raise SystemExit(f"{name}: no candidate of {len(schedules)} ran\n{''.join(errors[:1])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="directory for the databases")
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, metavar="NAME")
    parser.add_argument("--candidates", type=int, default=96, metavar="N", help="of each workload")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    from candidates import make_module
    from tvm.s_tir import meta_schedule as ms

    from tunedb.plugins.metaschedule.workers.warm_builder import WarmBuilder

    todo = [name for name in options.workloads if not (options.out / name).exists()]
    for name in todo:
        make_module(name)  # a wrong name ends the run before it begins
    options.out.mkdir(parents=True, exist_ok=True)
    runner = ms.runner.LocalRunner(evaluator_config=ms.runner.EvaluatorConfig(**EVALUATOR))
    with WarmBuilder() as builder, Progress() as progress:
        for name in todo:
            # A name of its own until all records are there; a dot keeps readers away.
            partial = options.out / f".{name}"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            measure_workload(name, partial, options, (builder, runner), progress)
            partial.rename(options.out / name)


if __name__ == "__main__":
    main()
