"""Networks that the onnx package ships, compiled in zero trials, beside ONNX Runtime.

AlexNet, DenseNet-121, Inception v1 and v2, ResNet-50, ShuffleNet, SqueezeNet, VGG-19 and ZFNet, as
Caffe2 and others exported them: nobody wrote them for tunedb. Their weights are constants of one
value each, so times mean something and results do not. Each network is compiled, and then timed in
turn with ONNX Runtime, in processes of their own with as many threads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import onnx
from common import Row, onnx_session, run

from tunedb.exchange.prior import IN_WHEEL

_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
#: Processes in which each network is timed, and seconds of its runs in each.
ROUNDS, SECONDS = 3, 1.5


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", default="", help="names by commas; all without")
    parser.add_argument("--layout", default="auto", choices=("auto", "keep"))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--compiled", help=argparse.SUPPRESS)
    parser.add_argument("--timed", nargs=2, help=argparse.SUPPRESS)


def model(name: str) -> Any:
    """Return a network of the onnx package."""
    return onnx.load(str(_FOLDER / f"light_{name}.onnx"))


def compiled(options: argparse.Namespace) -> None:
    """Compile a network in zero trials; write the library, the seconds and what was used."""
    started = time.perf_counter()
    from tvm.relax.frontend.onnx import from_onnx

    from tunedb.plugins.metaschedule import Database, compile
    from tunedb.plugins.metaschedule.tuning.defaults import host_target

    target = host_target()
    with Database(":memory:", target=target, prior=IN_WHEEL) as database:
        mod = from_onnx(model(options.compiled))
        found = compile(mod, database, target, trials=0, layout=options.layout)
    found.executable.export_library(str(options.folder / f"{options.compiled}.so"))
    kinds = Counter(use.kind for use in found.uses)
    content = {"seconds": time.perf_counter() - started, "kinds": kinds, "notes": found.notes}
    (options.folder / f"{options.compiled}.json").write_text(json.dumps(content))


def timed(options: argparse.Namespace) -> None:
    """Print the median seconds of a network's runs in this process."""
    name, arm = options.timed
    network = model(name)
    weights = {one.name for one in network.graph.initializer}
    shapes = {
        one.name: [axis.dim_value for axis in one.type.tensor_type.shape.dim]
        for one in network.graph.input
        if one.name not in weights
    }
    rng = np.random.default_rng(0)
    call: Callable[[], Any]
    inputs = {key: rng.normal(size=shape).astype("float32") for key, shape in shapes.items()}
    if arm == "onnxruntime":
        call = partial(onnx_session(network).run, None, inputs)
    else:
        call = _library(options.folder / f"{name}.so", inputs)
    call()
    times, begun = list[float](), time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begun < SECONDS:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    print(median(times))


def _library(path: Path, inputs: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that runs the network of a library."""
    import tvm
    from tvm import relax

    library = tvm.runtime.load_module(str(path))
    main = relax.VirtualMachine(library, tvm.cpu())["main"]
    tensors = [tvm.runtime.tensor(array) for array in inputs.values()]
    return lambda: main(*tensors)


def measure(options: argparse.Namespace) -> list[Row]:
    """Compile and time the networks."""
    if options.compiled:
        raise SystemExit(compiled(options))
    if options.timed:
        raise SystemExit(timed(options))
    names = [name for name in options.networks.split(",") if name]
    names = names or sorted(path.stem.removeprefix("light_") for path in _FOLDER.glob("*.onnx"))
    rows, ratios = list[Row](), list[float]()
    with tempfile.TemporaryDirectory(prefix="tunedb-light-") as folder:
        command = [sys.executable, __file__, "--folder", folder, "--layout", options.layout]
        for name in names:
            subprocess.run([*command, "--compiled", name], check=True)
            content = json.loads((Path(folder) / f"{name}.json").read_text())
            times: dict[str, float] = {}
            for _ in range(ROUNDS):
                for arm in ("onnxruntime", "tunedb"):
                    found = subprocess.run(
                        [*command, "--timed", name, arm], check=True, capture_output=True, text=True
                    )
                    seconds = float(found.stdout.split()[-1])
                    times[arm] = min(seconds, times.get(arm, seconds))
            ours, other = times["tunedb"] * 1e3, times["onnxruntime"] * 1e3
            ratios.append(ours / other)
            rows.append(Row(f"{name}: latency", "ms", ours, other))
            rows.append(Row(f"{name}: compilation", "s", content["seconds"]))
            print(name, f"{other:.4g} {ours:.4g}", content["kinds"], *content["notes"], flush=True)
    return [*rows, Row("latency, geometric mean of ONNX Runtime's", "", geometric_mean(ratios))]


if __name__ == "__main__":
    run(__doc__ or "", "ONNX Runtime", measure, _options)
