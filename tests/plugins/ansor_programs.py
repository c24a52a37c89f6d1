"""Programs of auto_scheduler for tests, and what they compute on a processor."""

import json
from math import prod

import numpy as np
import orjson
import tvm

from tunedb.plugins.metaschedule.deploy.numerics import deviation, drawn, tensor, tolerance_of
from tunedb.plugins.metaschedule.trace_codec import TraceBuilder
from tunedb.programs.metaschedule.trace import join_trace, split_trace

CPU = "llvm -keys=cpu"
_KINDS = ("blockIdx", "threadIdx", "vthread")
CUDA = "cuda -keys=cuda,gpu -max_num_threads=1024 -thread_warp_size=32"


def line(key, target, steps, *, seconds=0.25, error=0, stamp=1_700_000_000):
    """Return a line of a log, v0.6."""
    hardware = [4, 64, 64, 49152, 2147483647, 1024, 8, 32]
    task = [json.dumps(key), target, hardware, "", 0, []]
    return {"i": [task, [[], steps]], "r": [[seconds], error, 1.0, stamp], "v": "v0.6"}


def matmul_add(tile=(2, 4, 8), *, unroll=16, n=32, k=24, m=64):
    """Return a tiled program of the tutorial's matmul, whose sum is attached to the addition."""
    outer, inner, lanes = tile
    steps = [
        *(["SP", 2, 0, n, [outer, inner, 1], 1], ["SP", 2, 4, m, [outer, 1, lanes], 1]),
        *(["SP", 2, 8, k, [4], 1], ["RE", 2, [0, 4, 1, 5, 8, 2, 6, 9, 3, 7]]),
        *(["FSP", 4, 0, 0, 2], ["FSP", 4, 3, 1, 2], ["RE", 4, [0, 3, 1, 4, 2, 5]]),
        *(["CA", 2, 4, 3], ["FU", 4, [0, 1]], ["AN", 4, 0, 3], ["AN", 2, 9, 2]),
        ["PR", 2, 0, f"auto_unroll_max_step${unroll}"],
    ]
    return line(["matmul_add", n, k, m, "float32"], CPU, steps)


def factored_sum(factor=8, *, rows=16, columns=96):
    """Return a program of a sum whose reduction is split and factored (``RF``)."""
    steps = [
        *(["SP", 1, 1, columns, [factor], 1], ["RF", 1, 2, 1]),
        *(["CA", 1, 2, 0], ["CR", 1], ["RE", 1, [0, 2, 1]], ["AN", 1, 2, 2], ["AN", 2, 0, 3]),
        ["PR", 1, 0, "auto_unroll_max_step$64"],
    ]
    return line(["reduction_layer", [rows, columns], 1, False], CPU, steps)


def cuda_matmul(tile=(2, 4, 1, 2), *, n=64, k=32, m=64):
    """Return a program with caches, vthreads and cooperative fetching."""
    axis = list(tile)
    fetches = [
        [
            *(["FU", stage, [0, 1]], ["SP", stage, 0, 0, [lanes], 1], ["AN", stage, 1, 2]),
            *(["FFSP", stage, 0, [1, 2], 1, 1], ["AN", stage, 1, 6]),
        ]
        for stage, lanes in ((3, 2), (1, 1))
    ]
    steps = [
        *(["CHW", 2, "local"], ["SP", 2, 0, n, axis, 1], ["SP", 2, 5, m, axis, 1]),
        *(["SP", 2, 10, k, [2, 4], 1], ["RE", 2, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]]),
        *(["FSP", 3, 0, 1, 3], ["FSP", 3, 4, 2, 3], ["RE", 3, [0, 4, 1, 5, 2, 6, 3, 7]]),
        *(["CA", 2, 3, 5], ["CHR", 1, "shared", [2]], ["CA", 2, 3, 6]),
        *(["CHR", 0, "shared", [3]], ["CA", 1, 4, 6]),
        *(["FU", 5, [0, 1]], ["AN", 5, 0, 5], ["FU", 5, [1, 2]], ["AN", 5, 1, 4]),
        *(["FU", 5, [2, 3]], ["AN", 5, 2, 6], *fetches[0], *fetches[1]),
        ["PR", 4, 0, "auto_unroll_max_step$512"],
    ]
    return line(["matmul_layer", n, k, m], CUDA, steps)


def on_processor(trace):
    """Return a trace without bindings to threads and with caches in plain memory."""
    instructions, decisions = join_trace(trace)
    kept, numbers = [], {}
    for number, (kind, inputs, attrs, outputs) in enumerate(instructions):
        if kind == "Bind":
            continue
        if kind in ("CacheRead", "CacheWrite"):
            attrs = [attrs[0], "global"]
        numbers[number] = len(kept)
        kept.append([kind, inputs, attrs, outputs])
    return split_trace(kept, [[numbers[number], value] for number, value in decisions])


def grid(mod):
    """Return the largest numbers of blocks, threads and vthreads of kernels; 0 for none.

    Raises if loops of one kernel that are bound to the same axis have different extents.
    """
    kernels, waiting = [{}], [(mod["main"].body, None)]
    while waiting:
        node, kernel = waiting.pop()
        if getattr(node, "thread_binding", None) is not None:
            if kernel is None:
                kernels.append(kernel := {})
            tag, extent = str(node.thread_binding.thread_tag), int(node.extent)
            assert kernel.setdefault(tag, extent) == extent, (tag, extent, kernel)
        parts = [getattr(node, name, None) for name in ("body", "block", "then_case")]
        parts.extend(getattr(node, "seq", ()))
        waiting.extend((part, kernel) for part in parts if part is not None)
    grids = []
    for kernel in kernels:
        kinds = [[tag for tag in kernel if tag.startswith(kind)] for kind in _KINDS]
        grids.append([prod(kernel[tag] for tag in tags) if tags else 0 for tags in kinds])
    return [max(column) for column in zip(*grids, strict=True)]


def farthest(mod, trace, args_info):
    """Return the deviation of a program from the untuned one, relative to what is allowed."""
    args_info = orjson.loads(args_info)
    results = [_run(each, args_info) for each in (mod, TraceBuilder().scheduled(mod, trace))]
    distance = max(map(deviation, *results))
    return distance / tolerance_of([dtype for _, dtype, _ in args_info])


def _run(mod, args_info):
    device = tvm.cpu()
    values = drawn(args_info, 0, seed=3)
    args = [
        tensor(device, dtype, array) for (_, dtype, _), array in zip(args_info, values, strict=True)
    ]
    tvm.compile(mod, target="llvm")(*args)
    return [np.asarray(arg.numpy()) for arg in args]
