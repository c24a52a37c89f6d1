"""Measure what predictions of this package are worth: the shares of ``tunedb apply --predict``.

The workloads of one network after another are removed from the prior and predicted from what is
left; each prediction runs beside the best program that the whole prior has for it, in alternation
(docs/prior.md). An interrupted run continues where it stopped.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["TUNEDB_PRIOR"] = "none"

import orjson
from make_prior import network, target
from prior_networks import NETWORKS
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tunedb.exchange.prior import IN_WHEEL, unpacked
from tunedb.models.share import FAR, MEASURED, MeasuredPrediction, expected_share
from tunedb.system.host import cpu_model

#: Turns of both programs, and the least time of a run in one of them in ms.
TURNS, LEAST_MS = 5, 30


def measured_predictions(
    name: str, folder: Path, here: Any, done: set[str]
) -> Iterator[tuple[str, MeasuredPrediction]]:
    """Predict functions of a network whose best programs the prior has, and measure both.

    Yields the digest of a workload with its prediction; those of `done` are left out.
    """
    # `prior_networks` makes its folder known.
    from held_out import kinds_of, use_models_of, write_without

    from tunedb.plugins.metaschedule import Database
    from tunedb.plugins.metaschedule.deploy.apply import find_record, tasks_of
    from tunedb.plugins.metaschedule.deploy.predict import predict
    from tunedb.plugins.metaschedule.modules import to_workload
    from tunedb.plugins.metaschedule.workers.warm_builder import WarmBuilder

    tasks = {to_workload(task).digest: task for task in tasks_of(network(name), here).values()}
    rest = folder / f"{name}.bundle"
    if not rest.exists():
        write_without(kinds_of(tasks.values()), unpacked(IN_WHEEL), rest)
    use_models_of(rest)
    with Database(":memory:", target=here, prior=IN_WHEEL) as whole:
        best = {key: find_record(whole._handle, task, here) for key, task in tasks.items()}
    known = {
        key: task for key, task in tasks.items() if best[key] is not None and key.hex() not in done
    }
    with Database(":memory:", target=here, prior=rest) as held:
        predicted = predict(
            held._handle, known, here, lambda done, total, work: None, weights_are_cold=False
        )
    with WarmBuilder() as builder:
        for key, found in predicted.items():
            traces = [best[key].record.trace, found.record.trace]
            times = times_of(tasks[key], traces, here, builder)
            if times is not None and math.isfinite(found.octaves):
                share = min(1.0, times[0] / times[1])
                yield key.hex(), MeasuredPrediction(found.family, found.octaves, share)


def times_of(mod: Any, traces: list[Any], here: Any, builder: Any) -> list[float] | None:
    """Return the times of programs of a function, measured in turns; None if one fails."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from tunedb.plugins.metaschedule.targets import device_of

    scheduled = []
    for trace in traces:
        schedule = tvm.s_tir.Schedule(mod)
        trace.apply_to_schedule(schedule, remove_postproc=False)
        scheduled.append(schedule.mod)
    built = builder.build([ms.builder.BuilderInput(one, here) for one in scheduled])
    if any(result.error_msg is not None for result in built):
        return None
    config = ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=LEAST_MS)
    runner = ms.runner.LocalRunner(evaluator_config=config)
    inputs = [
        ms.runner.RunnerInput(
            result.artifact_path,
            str(device_of(here).type),
            ms.arg_info.ArgInfo.from_entry_func(one, remove_preproc=True),
        )
        for one, result in zip(scheduled, built, strict=True)
    ]
    times: list[list[float]] = [[] for _ in inputs]
    for _ in range(TURNS):
        for place, each in enumerate(inputs):
            (future,) = runner.run([each])
            times[place] += map(float, future.result().run_secs or ())
    return [statistics.median(own) for own in times] if all(times) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for what is measured so far")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--output", type=Path, default=MEASURED, metavar="FILE")
    options = parser.parse_args()

    from tunedb.plugins.metaschedule.threads import usable_cpus, use_threads

    use_threads()
    options.folder.mkdir(parents=True, exist_ok=True)
    here, rows = target(None), dict[str, dict[str, Any]]()
    with Progress() as progress:
        for name in progress.track(options.networks):
            file = options.folder / f"{name}.json"
            if not file.exists():
                new = dict(measured_predictions(name, options.folder, here, set(rows)))
                file.write_bytes(orjson.dumps({key: asdict(row) for key, row in new.items()}))
                median = statistics.median([row.share for row in new.values()] or [math.nan])
                progress.console.print(f"{name}: {len(new)} predictions, median share {median:.2f}")
            rows |= orjson.loads(file.read_bytes())
    machine = {"cpu": cpu_model(), "threads": usable_cpus(), "target": str(here)}
    content = {"machine": machine, "rows": [rows[key] for key in sorted(rows)]}
    options.output.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    predictions = [MeasuredPrediction(**row) for row in rows.values()]
    Console().print(table_of(predictions))
    print(f"Mean error of the expected share of each, by the others: {mean_error(predictions):.3f}")


def table_of(predictions: list[MeasuredPrediction]) -> Table:
    """Return a table of the shares of each family."""
    columns = ("family", "predictions", "mean share", "median", "worst")
    table = Table(*columns, f"mean within {FAR:g} octaves", "mean beyond")
    families = {one.family: one.family for one in predictions} | {"all": None}
    for name, family in families.items():
        own = [one for one in predictions if family in (None, one.family)]
        shares = [one.share for one in own]
        figures = [statistics.mean(shares), statistics.median(shares), min(shares)]
        near = [one.share for one in own if one.octaves <= FAR]
        far = [one.share for one in own if one.octaves > FAR]
        table.add_row(
            *(str(name), str(len(own)), *(f"{figure:.2f}" for figure in figures)),
            *(
                f"{statistics.mean(part):.2f} of {len(part)}" if part else ""
                for part in (near, far)
            ),
        )
    return table


def mean_error(predictions: list[MeasuredPrediction]) -> float:
    """Return the mean error of the share that the other predictions let expect of each."""
    errors = []
    for number, one in enumerate(predictions):
        others = predictions[:number] + predictions[number + 1 :]
        expected = expected_share(one.family, one.octaves, others)
        if expected is not None:
            errors.append(abs(expected - one.share))
    return statistics.mean(errors)


if __name__ == "__main__":
    main()
