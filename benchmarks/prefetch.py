"""Products of 49 rows with 9.4 MB of weights, with and without prefetch of blocks of weights.

A 3x3 convolution of 512 channels on 7x7 pixels multiplies as many rows and weights. The weights are
in the caches, or flushed from them before each run, as in a network that exceeds them. Programs
with and without prefetch run in turn, in one process.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from common import Row, run

ROWS, COLUMNS, INNER, LANES = 49, 512, 4608, 32
#: Outer and inner steps of the sum; a block of weights has the inner ones.
STEPS = ((144, 32), (72, 64), (36, 128))
ROUNDS = 5


def product(steps: tuple[int, int]) -> Any:
    """Return a scheduled product that reuses each block of packed weights for seven tiles."""
    import tvm
    from tvm import s_tir, te

    data = te.placeholder((ROWS, INNER), name="A")
    weights = te.placeholder((COLUMNS // LANES, INNER, LANES), name="W")
    k = te.reduce_axis((0, INNER), name="k")
    out = te.compute(
        (ROWS, COLUMNS),
        lambda i, j: te.sum(data[i, k] * weights[j // LANES, k, j % LANES], axis=k),
        name="C",
    )
    mod = tvm.IRModule({"main": te.create_prim_func([data, weights, out])})
    schedule = s_tir.Schedule(mod)
    block = schedule.get_sblock("C")
    i, j, k = schedule.get_loops(block)
    vectors, lanes = schedule.split(j, [None, LANES])
    tiles, rows = schedule.split(i, [None, 7])
    outer, inner = schedule.split(k, list(steps))
    schedule.reorder(vectors, outer, tiles, inner, rows, lanes)
    schedule.parallel(vectors)
    schedule.unroll(rows)
    schedule.vectorize(lanes)
    schedule.decompose_reduction(block, outer)
    return schedule.mod


def measure(_options: argparse.Namespace) -> list[Row]:
    """Time the programs in turn."""
    import numpy as np
    import tvm
    from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

    from tunedb.plugins.metaschedule.measure.cold_weights import cold_repeats
    from tunedb.plugins.metaschedule.prefetch import with_prefetch
    from tunedb.plugins.metaschedule.tuning.defaults import host_target

    target, device = host_target(), tvm.cpu()
    config = EvaluatorConfig(number=1, repeat=1, min_repeat_ms=100)
    rng = np.random.default_rng(0)
    shapes = ((ROWS, INNER), (COLUMNS // LANES, INNER, LANES), (ROWS, COLUMNS))
    arguments = [tvm.runtime.tensor(rng.random(shape, "float32"), device) for shape in shapes]
    programs = {}
    for steps in STEPS:
        mod = product(steps)
        for name, each in (("plain", mod), ("prefetch", with_prefetch(mod, target))):
            programs[steps, name] = tvm.tirx.build(each, target=target)
    results: dict[Any, list[float]] = {}
    for _ in range(ROUNDS):
        for (steps, name), program in programs.items():
            for state, weights in (("warm", ()), ("cold", (1,))):
                seconds = cold_repeats(program, device, config, arguments, weights)
                results.setdefault((steps, state, name), []).extend(seconds)
    times = {key: median(seconds) * 1e6 for key, seconds in results.items()}
    return [
        Row(
            f"{state} weights, blocks of {steps[1] * LANES * 4 // 1024} KiB",
            "us",
            times[steps, state, "prefetch"],
            times[steps, state, "plain"],
        )
        for state in ("cold", "warm")
        for steps in STEPS
    ]


if __name__ == "__main__":
    run("Prefetch of weights", "without", measure)
