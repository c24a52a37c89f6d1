"""How many cores a compiled program keeps busy: TVM's default threads, and ours.

A convolution of 56 x 56 x 64 and a matmul of 1024 x 1024 x 1024, whose outer loops are parallel,
run for a second in fresh processes, in turn. The figure is CPU time over wall time: cores at work.
The last row runs where the process may use one CPU only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median
from typing import Any

from common import Row, run

#: Bar: least share of the whole cores at work.
BUSY = 0.9
_VARIABLES = ("TVM_NUM_THREADS", "TVM_BIND_THREADS", "OMP_NUM_THREADS")


def programs() -> dict[str, Any]:
    """Return the programs, scheduled with a parallel outer loop and a vector inner one."""
    import tvm
    from tvm import te, topi

    data = te.placeholder((1, 56, 56, 64), name="data")
    kernel = te.placeholder((3, 3, 64, 64), name="kernel")
    convolution = topi.nn.conv2d_nhwc(data, kernel, 1, 1, 1)
    a, b = (te.placeholder((1024, 1024), name=name) for name in "ab")
    k = te.reduce_axis((0, 1024), name="k")
    product = te.compute(
        (1024, 1024), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product"
    )
    found = {}
    for name, arguments, block in (
        ("conv2d 56x56x64", [data, kernel, convolution], "conv2d_nhwc"),
        ("matmul 1024", [a, b, product], "product"),
    ):
        schedule = tvm.s_tir.Schedule(te.create_prim_func(arguments))
        if block == "conv2d_nhwc":
            schedule.compute_inline(schedule.get_sblock("pad_temp"))
        loops = schedule.get_loops(schedule.get_sblock(block))
        spatial = len(arguments[-1].shape)
        schedule.parallel(schedule.fuse(*loops[: spatial - 1]))
        schedule.reorder(*loops[spatial:], loops[spatial - 1])
        schedule.vectorize(loops[spatial - 1])
        shapes = [tuple(int(extent) for extent in one.shape) for one in arguments]
        found[name] = (schedule.mod, shapes)
    return found


def busy(ours: bool) -> dict[str, float]:
    """Return the cores that each program keeps busy in this process, and its milliseconds."""
    import numpy as np
    import tvm

    if ours:
        from tunedb.plugins.metaschedule.threads import use_threads

        use_threads()
    target = {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()}
    found = {}
    for name, (mod, shapes) in programs().items():
        function = tvm.compile(mod, target=tvm.target.Target(target))["main"]
        arrays = [tvm.runtime.tensor(np.ones(shape, "float32")) for shape in shapes]
        function(*arrays)
        wall, cpu, times = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - wall < 1.0:
            function(*arrays)
            times += 1
        seconds = time.perf_counter() - wall
        found[name] = (time.process_time() - cpu) / seconds
        found[f"{name}, ms"] = 1e3 * seconds / times
    return found


def fresh(ours: bool, cpus: set[int]) -> dict[str, float]:
    """Return what :func:`busy` finds in a fresh process that may use some CPUs."""
    environment = {k: v for k, v in os.environ.items() if k not in _VARIABLES}
    done = subprocess.run(
        [sys.executable, __file__, "--measure", "ours" if ours else "default"],
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(options: argparse.Namespace) -> list[Row]:
    """Run both in turn."""
    from tunedb.plugins.metaschedule.threads import whole_cores

    cores, cpus = whole_cores(), os.sched_getaffinity(0)
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _ in range(options.rounds):
        for ours, found in runs.items():
            found.append(fresh(ours, cpus))
    rows = []
    for name in runs[True][0]:
        default, ours = (median(one[name] for one in runs[which]) for which in (False, True))
        if name.endswith("ms"):
            rows.append(Row(name.removesuffix(", ms"), "ms", ours, default))
        else:
            bar, is_busy = f"at least {BUSY} of {cores}", ours >= BUSY * cores
            rows.append(Row(name, "cores at work", ours, default, bar, is_busy))
    one = fresh(True, {max(cpus)})
    most = max(value for name, value in one.items() if not name.endswith("ms"))
    rows.append(Row("on one CPU", "cores at work", most, None, "at most 1.05", most <= 1.05))
    return rows


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="processes of each; 5 by default")
    parser.add_argument("--measure", choices=("ours", "default"), help=argparse.SUPPRESS)


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(json.dumps(busy(sys.argv[-1] == "ours")))
    else:
        run("Threads of TVM's runtime", "TVM", measure, _add_options)
