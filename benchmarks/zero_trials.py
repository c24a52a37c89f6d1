"""Networks compiled in zero trials, beside ONNX Runtime.

`public`: those that the onnx package ships, as Caffe2 and others exported them; nobody wrote them
for tunedb. Their weights are constants of one value each, so times mean something and results do
not. `modern`: small networks of today (modern_networks.py), whose results are compared.
`quantised`: a network of integers of eight bits, with which tunedb computes as floats; `halved`:
networks of float16, with which both compute as float32 where the processor has no vectors of it.
Each network is compiled, and then timed in turn with ONNX Runtime, in processes of their own with
as many threads.
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
from modern_networks import HALVED, MODERN, QUANTISED

from tunedb.exchange.prior import IN_WHEEL

_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_PUBLIC = {
    path.stem.removeprefix("light_"): partial(onnx.load, str(path))
    for path in sorted(_FOLDER.glob("light_*.onnx"))
}
_SETS = {"public": _PUBLIC, "modern": MODERN, "quantised": QUANTISED, "halved": HALVED}
_NETWORKS = _PUBLIC | MODERN | QUANTISED | HALVED
#: Largest difference of results, as a share of the largest result (docs/using.md).
TOLERANCES = {"float32": 1e-4, "float16": 1e-2}
#: Processes in which each network is timed, and seconds of its runs in each.
ROUNDS, SECONDS = 3, 1.5


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", default="public", choices=(*_SETS, "all"))
    parser.add_argument("--networks", default="", help="names by semicolons, instead of a set")
    parser.add_argument("--layout", default="auto", choices=("auto", "keep"))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--compiled", help=argparse.SUPPRESS)
    parser.add_argument("--timed", nargs=2, help=argparse.SUPPRESS)


def compiled(options: argparse.Namespace) -> None:
    """Compile a network in zero trials; write the library, the seconds and what was used."""
    started = time.perf_counter()
    from tunedb.plugins.metaschedule import Database, compile
    from tunedb.plugins.metaschedule.module_source import load_module
    from tunedb.plugins.metaschedule.tuning.defaults import host_target

    target, path = host_target(), options.folder / "network.onnx"
    onnx.save(_NETWORKS[options.compiled](), str(path))
    with Database(":memory:", target=target, prior=IN_WHEEL) as database:
        found = compile(load_module(path), database, target, trials=0, layout=options.layout)
    found.executable.export_library(str(options.folder / f"{options.compiled}.so"))
    kinds = Counter(use.kind for use in found.uses)
    content = {"seconds": time.perf_counter() - started, "kinds": kinds, "notes": found.notes}
    (options.folder / f"{options.compiled}.json").write_text(json.dumps(content))


def timed(options: argparse.Namespace) -> None:
    """Print the median seconds of a network's runs in this process; write its first result."""
    name, arm = options.timed
    network = _NETWORKS[name]()
    weights = {one.name for one in network.graph.initializer}
    inputs = {one.name: _values(one) for one in network.graph.input if one.name not in weights}
    call: Callable[[], Any]
    if arm == "onnxruntime":
        call = partial(onnx_session(network).run, None, inputs)
    else:
        call = _library(options.folder / f"{name}.so", inputs)
    np.save(options.folder / f"{name}.{arm}.npy", call()[0])
    times, begun = list[float](), time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begun < SECONDS:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    print(median(times))


def _values(value: Any) -> Any:
    """Return random values for an input of a network; indices are below 1,000."""
    shape = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if dtype == np.int64:
        return rng.integers(0, 1000, shape)
    return rng.normal(size=shape).astype(dtype)


def _library(path: Path, inputs: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that runs the network of a library and returns its results."""
    import tvm
    from tvm import relax

    library = tvm.runtime.load_module(str(path))
    main = relax.VirtualMachine(library, tvm.cpu())["main"]
    tensors = [tvm.runtime.tensor(array) for array in inputs.values()]

    def call() -> list[Any]:
        found = main(*tensors)
        return [one.numpy() for one in ([found] if hasattr(found, "numpy") else found)]

    return call


def measure(options: argparse.Namespace) -> list[Row]:
    """Compile and time the networks."""
    if options.compiled:
        raise SystemExit(compiled(options))
    if options.timed:
        raise SystemExit(timed(options))
    names = [name for name in options.networks.split(";") if name]
    names = names or list(_PUBLIC | MODERN if options.set == "all" else _SETS[options.set])
    rows, ratios = list[Row](), list[float]()
    with tempfile.TemporaryDirectory(prefix="tunedb-zero-") as folder:
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
            if name not in _PUBLIC:
                rows.append(_difference(Path(folder), name))
            print(name, f"{other:.4g} {ours:.4g}", content["kinds"], *content["notes"], flush=True)
    return [*rows, Row("latency, geometric mean of ONNX Runtime's", "", geometric_mean(ratios))]


def _difference(folder: Path, name: str) -> Row:
    """Return the difference of a network's results from those of ONNX Runtime."""
    ours, other = (np.load(folder / f"{name}.{arm}.npy") for arm in ("tunedb", "onnxruntime"))
    bar = TOLERANCES[str(other.dtype)]
    found = float(np.abs(ours - other).max() / np.abs(other).max())
    return Row(f"{name}: difference", "", found, None, f"<= {bar}", found <= bar)


if __name__ == "__main__":
    run(__doc__ or "", "ONNX Runtime", measure, _options)
