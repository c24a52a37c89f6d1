"""Reductions of columns, tuned in TVM's design space and in tunedb's.

Each function is tuned from an empty database with each space, with as many trials and the same
seed; the best programs of both then run in turn, in one process.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import geometric_mean
from typing import Any

from common import Row, run
from measured import measure_again, this_machine

TRIALS, SEED = 32, 1
ROUNDS = 7
#: Largest time of one function, and of all together, as a share of that in TVM's space.
MOST_EACH, MOST_ALL = 1.1, 0.6


def _pooled(kind: str, size: int, stride: int, pad: int, *shape: int) -> list[Any]:
    """Return an image whose channels come last, and a pooling of it."""
    from tvm import te, topi

    x = te.placeholder((1, *shape), name="x")
    windows = ((size, size), (stride, stride), (1, 1), (pad,) * 4)
    return [x, topi.nn.pool2d(x, *windows, kind, layout="NHWC")]


def _sums(*shape: int) -> list[Any]:
    """Return a tensor, and its sums over all axes between the first one and the channels."""
    from tvm import te, topi

    x = te.placeholder((1, *shape), name="x")
    return [x, topi.sum(x, tuple(range(1, len(shape))), True)]


def _distances(rows: int, channels: int) -> list[Any]:
    """Return two tensors, and sums of their squared distances, as a variance has them."""
    from tvm import te, topi

    x = te.placeholder((1, rows, channels), name="x")
    center = te.placeholder((1, 1, channels), name="center")
    distance = topi.subtract(x, center)
    return [x, center, topi.sum(topi.multiply(distance, distance), 1, True)]


FUNCTIONS = {
    "max of 3x3, 112x112, 64 channels": partial(_pooled, "max", 3, 2, 1, 112, 112, 64),
    "max of 3x3, 56x56, 192 channels": partial(_pooled, "max", 3, 1, 1, 56, 56, 192),
    "max of 3x3, 14x14, 512 channels": partial(_pooled, "max", 3, 1, 1, 14, 14, 512),
    "max of 5x5, 20x20, 256 channels": partial(_pooled, "max", 5, 1, 2, 20, 20, 256),
    "mean of 2x2, 56x56, 128 channels": partial(_pooled, "avg", 2, 2, 0, 56, 56, 128),
    "mean of 7x7, 2048 channels": partial(_sums, 7, 7, 2048),
    "mean of 56x56, 24 channels": partial(_sums, 56, 56, 24),
    "sums of 3000 rows, 512 channels": partial(_sums, 3000, 512),
    "variances of 4096 rows, 320 channels": partial(_distances, 4096, 320),
}


def measure(_options: argparse.Namespace) -> list[Row]:
    """Tune and time the functions."""
    import tvm
    from tvm import te

    from tunedb.plugins.metaschedule import Database, tune

    target, rows = this_machine(), []
    for name, function in FUNCTIONS.items():
        mod = tvm.IRModule({"main": te.create_prim_func(function(), "int64")})
        best = {}
        for space in ("tunedb", "post-order-apply"):
            with Database(":memory:", target=target, prior="none") as database:
                tune(mod, target, None, TRIALS, database=database, space=space, seed=SEED)
                best[space] = database.query_ir_module(mod, target, "main")
        ours, theirs = (seconds for seconds, _ in measure_again(best, ROUNDS).values())
        is_ok = ours <= MOST_EACH * theirs
        rows.append(Row(name, "us", ours * 1e6, theirs * 1e6, f">= {1 / MOST_EACH:.2f}", is_ok))
    mean = geometric_mean(row.ours / row.baseline for row in rows if row.baseline)
    bar = f"<= {MOST_ALL}"
    return [*rows, Row("all, share of TVM's time", "", mean, 1.0, bar, mean <= MOST_ALL)]


if __name__ == "__main__":
    run("Reductions of columns by design space", "TVM's space", measure)
