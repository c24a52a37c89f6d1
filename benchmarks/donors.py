"""What logs of earlier tools save: the first trials of a search that begins with their programs.

Operators of ResNet-50 are tuned from an empty database, and from one that holds TVM's log of that
network by auto_scheduler (converted with `tunedb convert --module`), or TopHub's configurations of
AutoTVM. DATA is a folder with public logs. The log's target is never the machine's, so no record
answers: programs are donors alone.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from common import Row, approve, run

#: Logs below DATA.
LOGS = {
    "auto_scheduler": "ansor/tvm_ci_logs/resnet-50-NHWC-B1-llvm_e6d5318.json",
    "AutoTVM": "autotvm/tophub/llvm_v0.04.log",
}
#: Trials of a search with donors, and of one without that it must equal.
FEW, MANY = 16, 64


def operators(count: int) -> dict[str, Any]:
    """Return convolutions of ResNet-50 by name, spread over all of them."""
    from onnx_networks import preactivated_resnet50
    from tvm.relax.frontend.onnx import from_onnx

    from tunedb.plugins.metaschedule.deploy.apply import tasks_of

    mods = tasks_of(from_onnx(preactivated_resnet50()), {"kind": "llvm"})
    chosen = [name for name in sorted(mods) if "conv2d" in name]
    step = max(1, len(chosen) // count)
    return {name: mods[name] for name in chosen[::step][:count]}


def filled(path: Path, log: Path, mods: Mapping[str, Any]) -> None:
    """Import a log into a new database, and convert what auto_scheduler has tuned."""
    from tunedb.formats.find import find_logs
    from tunedb.formats.importer import import_log
    from tunedb.plugins.metaschedule.convert.convert import convert
    from tunedb.storage.store import Store

    with Store(path) as store:
        import_log(store, *find_logs([log]), source="public")
        convert(store, functions=lambda kind: mods if kind == "llvm" else {})


def best_of(mod: Any, database: Path, trials: int, seed: int) -> list[float]:
    """Tune a function; return the best time after each trial."""
    from tunedb.plugins.metaschedule import Database, tune
    from tunedb.plugins.metaschedule.tuning.defaults import host_target
    from tunedb.records import Status

    target = host_target()
    with Database(database, target=target, prior="none") as opened:
        tune(mod, target, None, trials, database=opened, seed=seed)
        here = opened.store.targets.id_of(opened._handle.targets.bound.digest)
        times = [
            record.mean if record.measurement.status is Status.OK else float("inf")
            for record in opened.store.records.iterate(None, [here])
        ]
    return list(accumulate(times[:trials], min))


def measure(options: argparse.Namespace) -> list[Row]:
    mods = operators(options.operators)
    rows = []
    with tempfile.TemporaryDirectory(prefix="tunedb-donors-") as folder:
        ratios: dict[str, list[tuple[float, float, float]]] = {tool: [] for tool in LOGS}
        templates = {}
        for tool, log in LOGS.items():
            templates[tool] = Path(folder) / f"{tool}.db"
            filled(templates[tool], options.data / log, mods)
        for name, mod in mods.items():
            for seed in range(options.seeds):
                alone = best_of(mod, Path(folder) / f"{name}-{seed}.db", MANY, seed)
                for tool, template in templates.items():
                    copy = approve(shutil.copy(template, Path(folder) / f"{tool}-{name}-{seed}.db"))
                    ours = best_of(mod, copy, FEW, seed)
                    ratios[tool].append(
                        (
                            alone[FEW // 4 - 1] / ours[FEW // 4 - 1],
                            alone[FEW - 1] / ours[-1],
                            alone[-1] / ours[-1],
                        )
                    )
                    print(name, seed, tool, [round(ratio, 3) for ratio in ratios[tool][-1]])
        for tool, found in ratios.items():
            for number, words in enumerate((f"{FEW // 4}", f"{FEW}", f"{MANY}, with donors {FEW}")):
                middle = statistics.median(each[number] for each in found)
                bar = number == 2 and tool == "auto_scheduler"
                rows.append(
                    Row(
                        f"{tool}: time without donors / with them, after {words} trials",
                        *("ratio", middle, None),
                        *((">= 1", middle >= 1) if bar else ("", None)),
                    )
                )
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="folder with public logs")
    parser.add_argument("--operators", type=int, default=6, help="convolutions of ResNet-50")
    parser.add_argument("--seeds", type=int, default=1)


if __name__ == "__main__":
    run(__doc__.splitlines()[0], "without", measure, add_options)
