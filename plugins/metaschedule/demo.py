"""The operators of ``tunedb demo``: their programs, what NumPy computes, their times."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from .database.database import Database
from .tuning.results import TuningResult
from .tuning.tune import tune

#: Runs of a program per measurement, as TVM's ``EvaluatorConfig`` takes them.
EVALUATOR = {"number": 1, "repeat": 3, "min_repeat_ms": 10}


@dataclass(frozen=True)
class Operator:
    """An operator with one result.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Its program.
    shapes : tuple of tuple of int
        Shapes of its arguments, the result last.
    reference : callable
        What NumPy computes of its inputs.
    """

    func: Any
    shapes: tuple[tuple[int, ...], ...]
    reference: Callable[..., np.ndarray]


def matmul(name: str, n: int, m: int, depth: int) -> Operator:
    """Return a matmul of n by `depth` and `depth` by m."""
    a = te.placeholder((n, depth), name="A")
    b = te.placeholder((depth, m), name="B")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    func = te.create_prim_func([a, b, c]).with_attr("global_symbol", name)
    return Operator(func, ((n, depth), (depth, m), (n, m)), np.matmul)


def conv2d() -> Operator:
    """Return a 3 by 3 convolution, NHWC, 28 by 28 pixels, 32 channels to 32, no padding."""
    shapes = ((1, 30, 30, 32), (3, 3, 32, 32), (1, 28, 28, 32))
    x = te.placeholder(shapes[0], name="x")
    w = te.placeholder(shapes[1], name="w")
    r, s, c = (te.reduce_axis((0, e), name=n) for e, n in ((3, "r"), (3, "s"), (32, "c")))
    y = te.compute(
        shapes[2],
        lambda n, h, v, k: te.sum(x[n, h + r, v + s, c] * w[r, s, c, k], axis=[r, s, c]),
        name="conv2d",
    )
    func = te.create_prim_func([x, w, y]).with_attr("global_symbol", "conv2d")
    return Operator(func, shapes, _convolve)


def _convolve(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    result = np.zeros((1, 28, 28, 32), "float32")
    for r in range(3):
        for s in range(3):
            result += np.einsum("nhvc,ck->nhvk", x[:, r : r + 28, s : s + 28], w[r, s])
    return result


def tune_operator(
    operator: Operator, database: Database, builder: Any, *, trials: int, per_batch: int, seed: int
) -> TuningResult:
    """Tune an operator for a database's target."""
    return tune(
        operator.func,
        max_trials_global=trials,
        num_trials_per_iter=per_batch,
        database=database,
        builder=builder,
        evaluator=EvaluatorConfig(**EVALUATOR),
        seed=seed,
    )


def compare(operator: Operator, database: Database, target: Any) -> tuple[float, float]:
    """Return the times of the untuned and the best stored program in seconds.

    Raises
    ------
    AssertionError
        A result differs from NumPy's.
    """
    task = ms.tune_context._normalize_mod(operator.func)
    schedule = database.query_schedule(task, target, "main")
    times = []
    for module in (tvm.IRModule({"main": operator.func}), schedule.mod):
        compiled = tvm.compile(module, target=target)
        rng = np.random.default_rng(0)
        inputs = [rng.random(shape, dtype="float32") for shape in operator.shapes[:-1]]
        result = np.zeros(operator.shapes[-1], "float32")
        arrays = [tvm.runtime.tensor(x) for x in (*inputs, result)]
        timer = compiled.mod.time_evaluator("main", tvm.cpu(), number=3, repeat=5, min_repeat_ms=20)
        times.append(statistics.median(timer(*arrays).results))
        np.testing.assert_allclose(arrays[-1].numpy(), operator.reference(*inputs), rtol=1e-3)
    return times[0], times[1]
