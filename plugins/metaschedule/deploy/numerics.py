"""Numerical comparison of programs, inside worker processes.

Programs get equal random arguments. All arguments are compared afterwards: the outputs, and the
inputs, which must not change. A file has the untuned program's results between the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from tvm.runtime import empty
from tvm.tirx import build as tvm_build

from ....records import Trace
from ..trace_codec import TraceBuilder
from ..workers.build_worker import default_build

#: Attribute of a module with the order for a worker, as JSON.
ORDER = "tunedb.revalidation"

#: Relative tolerance of a program's results, by the coarsest floating type among its arguments.
#: They are some thousand units of rounding: a sum over K terms in another order moves by about
#: sqrt(K) of them.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}

#: Relative tolerance of other floating types (float8).
_COARSE = 0.2

#: Bound of random integers, besides the least extent: they may be indices.
_MOST_INTEGER = 8

#: Number for an infinite deviation, because a runner's result must be finite.
FARTHEST = 1e30

Arrays = list[NDArray[Any]]


def order_of(trace: Trace | None, *, keep_preproc: bool) -> str:
    """Return an order for :func:`build`, as JSON.

    Parameters
    ----------
    trace : Trace or None
        Trace that schedules the module; None leaves it as it is.
    keep_preproc : bool
        Whether the program itself changes the layout of its weights, as it must if its results are
        compared. A tuner measures programs without that.
    """
    fields = None
    if trace is not None:
        tail = None if trace.tail is None else trace.tail.decode()
        fields = [trace.sketch.decode(), tail, trace.decisions.decode()]
    return orjson.dumps({"trace": fields, "keep_preproc": keep_preproc}).decode()


def build(mod: Any, target: Any, params: Any) -> Any:
    """Schedule and build a module by its :data:`ORDER`; an ``f_build`` of a builder."""
    order = orjson.loads(str(mod.attrs[ORDER]))
    mod = mod.without_attr(ORDER)
    if order["trace"] is not None:
        sketch, tail, decisions = order["trace"]
        tail = None if tail is None else tail.encode()
        trace = Trace(sketch.encode(), tail, decisions.encode())
        mod = TraceBuilder().scheduled(mod, trace)
    if order["keep_preproc"]:
        return tvm_build(mod, target=target)
    return default_build(mod, target, params)


# ---------------------------------------------------------------------- arguments


def allocate(
    device: Any, args_info: Sequence[Sequence[Any]], draws: int, *, seed: int
) -> list[list[Any]]:
    """Return random arguments, equal in every process; an ``f_alloc_argument`` of a runner.

    Parameters
    ----------
    device : tvm Device
        Device of the arguments.
    args_info : sequence
        ``["TENSOR", dtype, shape]`` of each argument.
    draws : int
        Number of lists of arguments.
    seed : int
        Equal seeds give equal arguments.

    Returns
    -------
    list of list of Tensor
        Floating values of even draws are in [-1, 1), of odd ones in [0.5, 1.5), where logarithms
        and roots are defined. If a type has less than 32 bits they are always in [-1, 1), because
        a long sum of positive float16 stands still at 2048. Integers are small and not negative:
        they may be indices.
    """
    return [
        [
            tensor(device, dtype, values)
            for (_, dtype, _), values in zip(
                args_info, drawn(args_info, draw, seed=seed), strict=True
            )
        ]
        for draw in range(draws)
    ]


def drawn(args_info: Sequence[Sequence[Any]], draw: int, *, seed: int) -> Arrays:
    """Return the values of one draw of arguments (see :func:`allocate`)."""
    several = [int(extent) for _, _, shape in args_info for extent in shape if extent > 1]
    below = max(2, min([_MOST_INTEGER, *several]))
    is_coarse = tolerance_of([str(dtype) for _, dtype, _ in args_info]) > TOLERANCES["float32"]
    low, high = (0.5, 1.5) if draw % 2 and not is_coarse else (-1.0, 1.0)
    arrays: Arrays = []
    for number, (kind, dtype, extents) in enumerate(args_info):
        if kind != "TENSOR":
            raise NotImplementedError(f"an argument that is not a tensor: {kind}")
        rng = np.random.default_rng([seed, draw, number])
        shape = tuple(map(int, extents))
        if _is_float(dtype):
            arrays.append(rng.uniform(low, high, shape))
        else:
            arrays.append(rng.integers(0, 2 if dtype == "bool" else below, shape))
    return arrays


def tensor(device: Any, dtype: str, values: NDArray[Any]) -> Any:
    """Return a TVM tensor on a device."""
    array = empty(values.shape, dtype, device)
    return array.copyfrom(values.astype(array.numpy().dtype))


def _is_float(dtype: str) -> bool:
    return str(dtype).startswith(("float", "bfloat"))


# ---------------------------------------------------------------------- runs


def run_reference(
    rt_mod: Any, device: Any, _config: Any, repeated_args: Sequence[Sequence[Any]], *, path: str
) -> list[float]:
    """Run the untuned program and write its results; an ``f_run_evaluator`` of a runner."""
    results = {}
    for draw, args in enumerate(repeated_args):
        for number, array in enumerate(_run(rt_mod, device, args)):
            results[_name(draw, number)] = array
    np.savez(path, **results)  # type: ignore[arg-type]
    return [0.0]


def run_compared(
    rt_mod: Any, device: Any, _config: Any, repeated_args: Sequence[Sequence[Any]], *, path: str
) -> list[float]:
    """Run a program and compare its results; an ``f_run_evaluator`` of a runner.

    Returns
    -------
    list of float
        For each argument of each draw its deviation from the untuned program's (:func:`deviation`,
        at most :data:`FARTHEST`), and the deviation that its type allows.
    """
    tolerance = tolerance_of([str(arg.dtype) for arg in repeated_args[0]])
    deviations: list[float] = []
    with np.load(path) as expected:
        for draw, args in enumerate(repeated_args):
            for number, array in enumerate(_run(rt_mod, device, args)):
                distance = deviation(expected[_name(draw, number)], array)
                allowed = tolerance if array.dtype.kind == "f" else 0.0
                deviations += [min(distance, FARTHEST), allowed]
    return deviations


def difference_of(costs: Sequence[float]) -> str | None:
    """Return in words by how much the results of :func:`run_compared` differ; None if allowed."""
    pairs = zip(costs[::2], costs[1::2], strict=True)
    wrong = [found for found, allowed in pairs if not found <= allowed]
    if not wrong:
        return None
    if max(wrong) >= FARTHEST:
        return "other integers, or NaN where the untuned program has none"
    return f"it deviates by {max(wrong):.3g} of the largest value from the untuned program's result"


def _run(rt_mod: Any, device: Any, args: Sequence[Any]) -> Arrays:
    rt_mod[rt_mod.entry_name](*args)
    device.sync()
    return [plain(arg.numpy()) for arg in args]


def plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in a type of NumPy itself: bfloat16 and float8 as float32."""
    return array if array.dtype.kind in "fiub" else array.astype(np.float32)


def _name(draw: int, number: int) -> str:
    return f"{draw}_{number}"


# ---------------------------------------------------------------------- comparing


def tolerance_of(dtypes: Sequence[str]) -> float:
    """Return the relative tolerance for the floating results of a program with these arguments.

    It is that of the coarsest type: a product of float16 that is summed in float32 has no more
    digits than float16 gave it.
    """
    return max((TOLERANCES.get(d, _COARSE) for d in dtypes if _is_float(d)), default=0.0)


def deviation(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return the relative deviation of results.

    Parameters
    ----------
    expected, actual : ndarray, equal shapes
        Results of the untuned program and of another.

    Returns
    -------
    float
        Largest difference as a share of the largest absolute expected value, because a sum with
        cancellation has the rounding errors of its terms. For integers 0, or infinity where any
        differs. NaN and infinities must be in the same places; otherwise infinity.
    """
    if expected.shape != actual.shape:
        return np.inf
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(expected, actual) else np.inf
    left, right = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(left)
    same = np.array_equal(left[~finite], right[~finite], equal_nan=True)
    if not (same and np.isfinite(right[finite]).all()):
        return np.inf
    difference = np.abs(left[finite] - right[finite]).max(initial=0.0)
    largest = np.abs(left[finite]).max(initial=0.0)
    if largest == 0.0:
        return 0.0 if difference == 0.0 else np.inf
    return float(difference / largest)
