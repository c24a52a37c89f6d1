"""Reductions of columns, tuned in TVM's design space and in tunedb's.

Each function is tuned from an empty database with each space, with as many trials and the same
seed; the best programs of both then run in turn, in one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import geometric_mean, median
from typing import Any

from common import Row, run

TRIALS, SEED = 32, 1
ROUNDS = 7
#: Largest time of one function, and of all together, as a share of that in TVM's space.
MOST_EACH, MOST_ALL = 1.1, 0.6


def _pooled(kind: str, size: int, stride: int, pad: int, *shape: int) -> Callable[[], Any]:
    """Return a pooling of an image whose channels come last."""

    def function() -> Any:
        from tvm import te, topi

        x = te.placeholder((1, *shape), name="x")
        windows = ((size, size), (stride, stride), (1, 1), (pad,) * 4)
        return [x, topi.nn.pool2d(x, *windows, kind, layout="NHWC")]

    return function


def _sums(*shape: int) -> Callable[[], Any]:
    """Return sums over all axes between the first one and the channels."""

    def function() -> Any:
        from tvm import te, topi

        x = te.placeholder((1, *shape), name="x")
        return [x, topi.sum(x, tuple(range(1, len(shape))), True)]

    return function


def _distances(rows: int, channels: int) -> Callable[[], Any]:
    """Return sums of squared distances, as a variance has them."""

    def function() -> Any:
        from tvm import te, topi

        x = te.placeholder((1, rows, channels), name="x")
        center = te.placeholder((1, 1, channels), name="center")
        distance = topi.subtract(x, center)
        return [x, center, topi.sum(topi.multiply(distance, distance), 1, True)]

    return function


FUNCTIONS = {
    "max of 3x3, 112x112, 64 channels": _pooled("max", 3, 2, 1, 112, 112, 64),
    "max of 3x3, 56x56, 192 channels": _pooled("max", 3, 1, 1, 56, 56, 192),
    "max of 3x3, 14x14, 512 channels": _pooled("max", 3, 1, 1, 14, 14, 512),
    "max of 5x5, 20x20, 256 channels": _pooled("max", 5, 1, 2, 20, 20, 256),
    "mean of 2x2, 56x56, 128 channels": _pooled("avg", 2, 2, 0, 56, 56, 128),
    "mean of 7x7, 2048 channels": _sums(7, 7, 2048),
    "mean of 56x56, 24 channels": _sums(56, 56, 24),
    "sums of 3000 rows, 512 channels": _sums(3000, 512),
    "variances of 4096 rows, 320 channels": _distances(4096, 320),
}


def measure(_options: argparse.Namespace) -> list[Row]:
    """Tune and time the functions."""
    import numpy as np
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    from tunedb.plugins.metaschedule import Database, tune
    from tunedb.plugins.metaschedule.compat import arguments_of
    from tunedb.plugins.metaschedule.tuning.defaults import host_target

    target, device = host_target(), tvm.cpu()
    rng = np.random.default_rng(0)
    rows = []
    for name, function in FUNCTIONS.items():
        mod = tvm.IRModule({"main": te.create_prim_func(function(), "int64")})
        programs = []
        for space in ("tunedb", "post-order-apply"):
            with Database(":memory:", target=target, prior="none") as database:
                tune(mod, target, None, TRIALS, database=database, space=space, seed=SEED)
                schedule = ms.tir_integration.compile_tir(database, mod, target)
                programs.append(tvm.tirx.build(schedule.mod, target=target))
        arguments = [
            tvm.runtime.tensor(rng.random(tuple(map(int, each.shape)), "float32"), device)
            for each in arguments_of(mod["main"])
        ]
        seconds: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for program, own in zip(programs, seconds, strict=True):
                time = program.time_evaluator("main", device, number=3, min_repeat_ms=30)
                own.append(float(time(*arguments).mean))
        ours, theirs = map(median, seconds)
        is_ok = ours <= MOST_EACH * theirs
        rows.append(Row(name, "us", ours * 1e6, theirs * 1e6, f">= {1 / MOST_EACH:.2f}", is_ok))
    mean = geometric_mean(row.ours / row.baseline for row in rows if row.baseline)
    bar = f"<= {MOST_ALL}"
    return [*rows, Row("all, share of TVM's time", "", mean, 1.0, bar, mean <= MOST_ALL)]


if __name__ == "__main__":
    run("Reductions of columns by design space", "TVM's space", measure)
