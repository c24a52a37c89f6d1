"""Products with many weights, with and without prefetch of weights.

Products of 49 rows with 9.4 MB of weights, as many as a 3x3 convolution of 512 channels on 7x7
pixels has, reuse blocks of weights, which are in the caches or flushed from them before each run,
as in a network that exceeds them. A product of one row with 67 MB of weights, a fully connected
layer, uses each weight once, in the order in which the weights lie; the loops in which it does
differ. Programs with and without prefetch run in turn, in one process.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import Any

from common import Row, random_arguments, run

ROWS, COLUMNS, INNER, LANES = 49, 512, 4608, 32
#: Outer and inner steps of the sum; a block of weights has the inner ones.
STEPS = ((144, 32), (72, 64), (36, 128))
#: Columns and sums of the product of one row.
WIDTH = 4096
#: Vectors of columns, steps of the sum and lanes of an iteration, which reads as many weights.
ITERATIONS = ((2, 2, 32), (2, 4, 64), (4, 8, 32))
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


def row_product(vectors: int, steps: int, lanes: int) -> Any:
    """Return a scheduled product of one row; an iteration reads `vectors` * `steps` * `lanes`."""
    import tvm
    from tvm import s_tir, te

    data = te.placeholder((WIDTH,), name="A")
    shape = (WIDTH // (vectors * lanes), WIDTH // steps, vectors, steps, lanes)
    weights = te.placeholder(shape, name="W")
    k = te.reduce_axis((0, WIDTH), name="k")

    def dot(j: Any) -> Any:
        weight = weights[
            j // (vectors * lanes), k // steps, j // lanes % vectors, k % steps, j % lanes
        ]
        return te.sum(data[k] * weight, axis=k)

    function = te.create_prim_func([data, weights, te.compute((WIDTH,), dot, name="C")])
    schedule = s_tir.Schedule(tvm.IRModule({"main": function}))
    block = schedule.get_sblock("C")
    j, k = schedule.get_loops(block)
    outer, vector, lane = schedule.split(j, [None, vectors, lanes])
    iterations, step = schedule.split(k, [None, steps])
    schedule.reorder(outer, iterations, vector, step, lane)
    schedule.parallel(outer)
    schedule.unroll(vector)
    schedule.unroll(step)
    schedule.vectorize(lane)
    schedule.decompose_reduction(block, iterations)
    return schedule.mod


@dataclass(frozen=True)
class Case:
    """A program, and the state of its weights, which are its second argument."""

    label: str
    mod: Any
    is_cold: bool


def cases() -> list[Case]:
    """Return what is measured."""
    found = []
    for state in ("cold", "warm"):
        for steps in STEPS:
            label = f"{state} weights, blocks of {steps[1] * LANES * 4 // 1024} KiB"
            found.append(Case(label, product(steps), state == "cold"))
    for sizes in ITERATIONS:
        label = f"one row, {prod(sizes) * 4} bytes an iteration"
        found.append(Case(label, row_product(*sizes), is_cold=True))
    return found


def measure(_options: argparse.Namespace) -> list[Row]:
    """Time the programs of each case in turn."""
    import tvm
    from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

    from tunedb.plugins.metaschedule.measure.cold_weights import cold_repeats
    from tunedb.plugins.metaschedule.prefetch import with_prefetch
    from tunedb.plugins.metaschedule.tuning.defaults import host_target

    target, device = host_target(), tvm.cpu()
    config = EvaluatorConfig(number=1, repeat=1, min_repeat_ms=100)
    rows = []
    for case in cases():
        arguments = random_arguments(case.mod)
        programs = [
            tvm.tirx.build(each, target=target)
            for each in (with_prefetch(case.mod, target), case.mod)
        ]
        seconds: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for program, own in zip(programs, seconds, strict=True):
                cold = (1,) if case.is_cold else ()
                own.extend(cold_repeats(program, device, config, arguments, cold))
        rows.append(Row(case.label, "us", *(median(own) * 1e6 for own in seconds)))
    return rows


if __name__ == "__main__":
    run("Prefetch of weights", "without", measure)
