"""Real candidates of real workloads, multiplied into databases of any size.

64 candidates are drawn by TVM's own search space; their records are repeated with jittered times.
The workloads are one operator with a function attribute that differs, so that all traces apply.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms

CANDIDATES = 64
TARGET = {"kind": "llvm", "num-cores": 2, "mcpu": tvm.target.codegen.llvm_get_system_cpu()}


def matmul(n: int = 128, tag: int = 0) -> Any:
    """Return a matmul of n by n by n as a module; `tag` makes other workloads of equal loops."""
    a = te.placeholder((n, n), name="A")
    b = te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return _module(te.create_prim_func([a, b, c]), tag)


def conv2d(size: int = 56, channels: int = 64, tag: int = 0) -> Any:
    """Return an NHWC 3x3 convolution with padding 1 as a module."""
    x = te.placeholder((1, size, size, channels), name="x")
    w = te.placeholder((3, 3, channels, channels), name="w")
    padded = te.compute(
        (1, size + 2, size + 2, channels),
        lambda n, h, v, c: te.if_then_else(
            te.all(h >= 1, h < size + 1, v >= 1, v < size + 1), x[n, h - 1, v - 1, c], 0.0
        ),
        name="padded",
    )
    r, s, c = (te.reduce_axis((0, e), name=m) for e, m in ((3, "r"), (3, "s"), (channels, "c")))
    y = te.compute(
        (1, size, size, channels),
        lambda n, h, v, k: te.sum(padded[n, h + r, v + s, c] * w[r, s, c, k], axis=[r, s, c]),
        name="conv2d",
    )
    return _module(te.create_prim_func([x, w, y]), tag)


def _module(func: Any, tag: int) -> Any:
    return tvm.IRModule({"main": func.with_attr("benchmark.tag", tag)})


def draw(mod: Any) -> list[Any]:
    """Return traces and argument descriptions of random candidates as TuningRecords."""
    target = tvm.target.Target(TARGET)
    context = ms.TuneContext(
        mod,
        target=target,
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        num_threads=1,
        rand_state=1,
    )
    spaces = context.generate_design_space()
    context.search_strategy.pre_tuning(
        CANDIDATES, CANDIDATES, spaces, ms.database.MemoryDatabase(), ms.cost_model.RandomModel()
    )
    found = context.search_strategy.generate_measure_candidates() or []
    workload = ms.database.Workload(mod)
    rng = random.Random(1)
    return [
        ms.database.TuningRecord(
            c.sch.trace, workload, [rng.uniform(1e-4, 1e-3) for _ in range(3)], target, c.args_info
        )
        for c in found
    ]


def write_json_database(folder: Path, modules: list[Any], n: int, records: list[Any]) -> None:
    """Write a work directory of `n` records spread over the modules, without opening it."""
    folder.mkdir(parents=True)
    with (folder / "database_workload.json").open("w", encoding="utf-8") as file:
        for mod in modules:
            file.write(json.dumps(ms.database.Workload(mod).as_json()) + "\n")
    with (folder / "database_tuning_record.json").open("w", encoding="utf-8") as file:
        for index, fields in enumerate(_repeated(records, n)):
            file.write(json.dumps([index % len(modules), fields]) + "\n")


def _repeated(records: list[Any], n: int) -> Iterator[list[Any]]:
    """Yield the JSON fields of `n` records with jittered times."""
    rng = random.Random(2)
    lines = [_plain(record.as_json()) for record in records]
    for index in range(n):
        trace, run_secs, target, args = lines[(index * 7919) % len(lines)]
        yield [trace, [float(v) * rng.uniform(0.5, 2.0) for v in run_secs], target, args]


def _plain(value: Any) -> Any:
    """Return JSON values of what as_json leaves as TVM objects."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return getattr(value, "value", value)
