"""Measurement of a processor's roofline with programs of TVM's code generator."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm.script import tirx as T

from ....system.roofline import Roofline

__all__ = ["measure_roofline"]

#: Widths of vectors in float32. The fastest counts: LLVM splits those that a processor lacks.
_LANES = (4, 8, 16)
#: Independent vectors: they hide the latency of an operation, and fit into 16 registers.
_VECTORS = 10
#: Multiply-adds of each vector in a run.
_ROUNDS = 200_000
#: Bytes per thread that are read again and again: in the L2 cache, the last one, and the memory.
_SIZES = (1 << 17, 1 << 20, 1 << 26)
#: Bytes of a run, at least.
_TRAFFIC = 1 << 27
#: Runs of each program. The fastest counts: other processes only slow it down.
_RUNS = 5


def measure_roofline(target: Any, threads: int) -> Roofline:
    """Measure the peak of float32 and the bandwidths of this machine; takes about a second.

    Parameters
    ----------
    target : tvm.target.Target
        A processor; this one.
    threads : int
        Threads of TVM's runtime.

    Raises
    ------
    Exception
        TVM cannot compile for the target.
    """
    peak = max(_peak(target, threads, lanes) for lanes in _LANES)
    bandwidths = tuple(
        (float(size * threads), _bandwidth(target, threads, size)) for size in _SIZES
    )
    return Roofline(peak, bandwidths)


def _peak(target: Any, threads: int, lanes: int) -> float:
    """Return the operations per second of multiply-adds in registers."""

    @T.prim_func
    def main(
        factors: T.Buffer((2, lanes), "float32"),  # type: ignore[valid-type]
        sums: T.Buffer((threads, _VECTORS, lanes), "float32"),  # type: ignore[valid-type]
    ) -> None:
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for thread in T.parallel(threads):
            held = T.alloc_local((_VECTORS, lanes), "float32")
            for i in T.unroll(_VECTORS):
                for v in T.vectorized(lanes):
                    held[i, v] = T.float32(0)
            for _ in range(_ROUNDS):
                for i in T.unroll(_VECTORS):
                    for v in T.vectorized(lanes):
                        held[i, v] = held[i, v] * factors[0, v] + factors[1, v]
            for i in T.unroll(_VECTORS):
                for v in T.vectorized(lanes):
                    sums[thread, i, v] = held[i, v]

    factors = tvm.runtime.tensor(np.full((2, lanes), 0.5, "float32"))
    sums = tvm.runtime.tensor(np.zeros((threads, _VECTORS, lanes), "float32"))
    return 2 * _ROUNDS * _VECTORS * lanes * threads / _least(_built(main, target), factors, sums)


def _bandwidth(target: Any, threads: int, size: int) -> float:
    """Return the bytes per second that threads read, each from an array of its own."""
    lanes = 8
    chunks = size // (4 * _VECTORS * lanes)
    rounds = max(1, _TRAFFIC // (size * threads))

    @T.prim_func
    def main(
        data: T.Buffer((threads, chunks, _VECTORS, lanes), "float32"),  # type: ignore[valid-type]
        largest: T.Buffer((threads, _VECTORS, lanes), "float32"),  # type: ignore[valid-type]
    ) -> None:
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for thread in T.parallel(threads):
            held = T.alloc_local((_VECTORS, lanes), "float32")
            for i in T.unroll(_VECTORS):
                for v in T.vectorized(lanes):
                    held[i, v] = T.float32(0)
            for _ in range(rounds):
                for k in range(chunks):
                    for i in T.unroll(_VECTORS):
                        for v in T.vectorized(lanes):
                            held[i, v] = T.max(held[i, v], data[thread, k, i, v])
            for i in T.unroll(_VECTORS):
                for v in T.vectorized(lanes):
                    largest[thread, i, v] = held[i, v]

    data = tvm.runtime.tensor(np.ones((threads, chunks, _VECTORS, lanes), "float32"))
    largest = tvm.runtime.tensor(np.zeros((threads, _VECTORS, lanes), "float32"))
    traffic = 4 * chunks * _VECTORS * lanes * threads * rounds
    return traffic / _least(_built(main, target), data, largest)


def _built(function: Any, target: Any) -> Callable[..., object]:
    library = tvm.compile(tvm.IRModule({"main": function}), target=target)
    return library["main"]  # type: ignore[no-any-return]


def _least(function: Callable[..., object], *arguments: Any) -> float:
    """Return the least seconds of a call."""
    seconds = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        function(*arguments)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
