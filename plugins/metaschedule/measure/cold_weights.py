"""Measurement with weights that are not in the caches, as in networks that do not fit there.

A network whose weights exceed the last cache reads all of them from memory in each run. Repeats of
one operator would keep its weights in the cache, and prefer programs that read them several times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

import tvm
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from ....system.host import last_cache
from ..compat import arguments_of
from ..modules import FREE_LAYOUTS, bytes_of
from ..targets import is_cpu

__all__ = ["cold_repeats", "cold_weights", "exceed_caches", "weight_bytes"]

#: Least bytes of weights that are removed from the caches; smaller ones are read in no time.
_LEAST_BYTES = 1 << 18
#: Ratio of a run to the least duration of a repeat from which the program is slow.
_SLOW = 10
#: Name of the function that removes weights from the caches, in the runner's process.
_FLUSH = "tunedb.flush_weights"


def cold_weights(mod: Any) -> tuple[int, ...]:
    """Return the numbers of the large weights among the parameters of a task.

    Parameters
    ----------
    mod : tvm.IRModule
        Module of one function. Only weights whose layout the tuner chooses are known.
    """
    return tuple(number for number, size in _weights(mod).items() if size >= _LEAST_BYTES)


def exceed_caches(size: int, target: Any) -> bool:
    """Return whether weights of so many bytes do not stay in a processor's caches between runs.

    False for other devices, and where the system does not tell the size of its last cache.
    """
    cache = last_cache()
    return cache is not None and is_cpu(target) and size > cache


def weight_bytes(mod: Any) -> int:
    """Return the bytes of all weights of a task."""
    return sum(_weights(mod).values())


def _weights(mod: Any) -> dict[int, int]:
    """Return the bytes of each weight, by its number among the parameters."""
    (function,) = mod.functions.values()
    free = function.attrs.get(FREE_LAYOUTS, ()) if function.attrs else ()
    buffers = arguments_of(function)
    return {
        int(number): bytes_of(map(int, buffers[int(number)].shape), buffers[int(number)].dtype)
        for number in free
    }


def cold_repeats(
    module: Any,
    device: Any,
    config: EvaluatorConfig,
    arguments: Sequence[Any],
    weights: Sequence[int],
) -> list[float]:
    """Measure a program in the runner's process; its weights are cold in each run.

    Parameters
    ----------
    module, device, config
        As TVM's evaluator gets them. The runs of a repeat take about ``min_repeat_ms`` or more.
    arguments : sequence
        One list of arguments.
    weights : sequence of int
        Numbers of the arguments that are removed from all caches before each run. With
        ``enable_cpu_cache_flush`` all but the first are, as by TVM's evaluator.

    Returns
    -------
    list of float
        Mean seconds of the runs of each repeat.
    """
    flush = tvm.get_global_func("cache_flush_cpu_non_first_arg")

    def flush_weights(*given: Any) -> None:
        cold = given[1:] if config.enable_cpu_cache_flush else [given[i] for i in weights]
        flush(given[0], *cold)

    def runs(number: int) -> list[float]:
        evaluator = module.time_evaluator(
            module.entry_name, device, number=1, repeat=number, f_preproc=_FLUSH
        )
        return list(evaluator(*arguments).results)

    tvm.register_global_func(_FLUSH, flush_weights, override=True)
    number, least = config.number, config.min_repeat_ms / 1000
    if least:
        probe = runs(1)
        # One disturbed run would make all repeats too short; slow programs need no more.
        probe += runs(2) if probe[0] < _SLOW * least else []
        number = max(number, math.ceil(least / max(median(probe), 1e-9)))
    seconds = runs(number * config.repeat)
    return [fmean(seconds[i : i + number]) for i in range(0, len(seconds), number)]
