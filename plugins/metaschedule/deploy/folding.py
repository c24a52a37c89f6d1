"""Operators on constants of a Relax program, computed by NumPy.

TVM's ``FoldConstant`` compiles a function for each: 13 s for the batch norms of MobileNetV2, and as
long for the masks and positions of Swin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..compat import constant_value, relax_type
from ..modules import call_name, calls_of, constant_of, extents_of, rewrite_functions
from .transpositions import transposed_axes

__all__ = ["fold_all_constants", "fold_constants"]

#: Types of constants that are folded.
_FLOATS = ("float32", "float64")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "int64")
_ALL = (*_FLOATS, *_INTEGERS, "float16", "bool")

#: Operators on constants whose results are bitwise equal in NumPy and TVM, by IEEE 754, and the
#: types of their arguments.
_ARITHMETIC: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "relax.add": (np.add, (*_FLOATS, *_INTEGERS)),
    "relax.subtract": (np.subtract, (*_FLOATS, *_INTEGERS)),
    "relax.multiply": (np.multiply, (*_FLOATS, *_INTEGERS)),
    "relax.divide": (np.divide, _FLOATS),
    "relax.sqrt": (np.sqrt, _FLOATS),
    "relax.isnan": (np.isnan, _FLOATS),
    "relax.mod": (np.fmod, _INTEGERS),
    "relax.floor_mod": (np.mod, _INTEGERS),
    "relax.floor_divide": (np.floor_divide, _INTEGERS),
    "relax.where": (np.where, _ALL),
    **{
        f"relax.{name}": (getattr(np, name), (*_FLOATS, *_INTEGERS))
        for name in ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
    },
    "relax.bitwise_and": (np.bitwise_and, (*_INTEGERS, "bool")),
    "relax.bitwise_or": (np.bitwise_or, (*_INTEGERS, "bool")),
    **{
        f"relax.{name}": (getattr(np, name), ("bool",))
        for name in ("logical_and", "logical_not", "logical_or")
    },
}

#: Operators on shapes, which TVM folds without constants.
_SHAPES = ("relax.shape_of", "relax.shape_to_tensor", "relax.tensor_to_shape")

#: Elements of the largest constant that is made of a smaller one.
_LARGEST = 1 << 24


@tvm.transform.module_pass(opt_level=0, name="tunedb.FoldConstants")
def fold_constants(mod: Any, _context: Any) -> Any:
    """Fold arithmetic on constants, conversions, lookups, changes of shapes, and known shapes.

    TVM's pass of 0.25 fails at the shape of a constant, as ONNX's ``Gather`` has it.
    """
    return rewrite_functions(mod, _ConstantFolder)


@tvm.transform.module_pass(opt_level=0, name="tunedb.FoldAllConstants")
def fold_all_constants(mod: Any, _context: Any) -> Any:
    """Fold constants here, and what is left by TVM, whose pass takes time where nothing is."""
    mod = rewrite_functions(mod, _ConstantFolder)
    left = any(
        call_name(call) in _SHAPES or all(map(_is_constant, call.args)) for call in calls_of(mod)
    )
    return relax.transform.FoldConstant()(mod) if left else mod


def _is_constant(argument: Any) -> bool:
    """Tell whether an argument of a call depends on no variable."""
    if isinstance(argument, relax.Tuple):
        return all(map(_is_constant, argument.fields))
    return not isinstance(argument, relax.Var | relax.TupleGetItem)


@relax.expr_functor.mutator
class _ConstantFolder(relax.PyExprMutator):
    """Replaces calls with constant arguments by their results."""

    def visit_call_(self, call: Any) -> Any:
        """Return the result of a call, or the call itself if only TVM can compute it."""
        kind = relax_type(call)
        call = self.visit_expr_post_order(call)
        if call_name(call) == "relax.shape_to_tensor":
            extents = extents_of(relax_type(call.args[0]))
            return call if extents is None else constant_of(np.array(extents, "int64"))
        compute, dtypes = _computation(call, kind)
        if compute is None:
            return call
        numbers = (relax.ShapeExpr, relax.Tuple)
        tensors = [each for each in call.args if not isinstance(each, numbers)]
        if call_name(call) in _OF_SEVERAL:
            several = [each for each in call.args if isinstance(each, relax.Tuple)]
            if not several:
                return call
            tensors += several[0].fields
        values = [self._value(each, dtypes) for each in tensors]
        if any(value is None for value in values):
            return call
        try:
            with np.errstate(all="ignore"):
                result = np.asarray(compute(*values), order="C")
        except IndexError:  # whatever TVM reads there
            return call
        return constant_of(result) if result.size else call  # TVM has no constants without elements

    def _value(self, argument: Any, dtypes: Sequence[str]) -> Any | None:
        """Return a constant of one of the dtypes as an array; None for other arguments."""
        if isinstance(argument, relax.Var):
            argument = self.lookup_binding(argument)
        value = constant_value(argument)
        if value is None:
            return None
        dtype = str(relax_type(argument).dtype)
        if dtype not in dtypes:
            return None
        return value.numpy() if isinstance(value, tvm.runtime.Tensor) else np.asarray(value, dtype)


#: Operators that have a tuple of tensors among their arguments.
_OF_SEVERAL = ("relax.concat", "relax.index_tensor")


def _computation(call: Any, kind: Any) -> tuple[Callable[..., Any] | None, Sequence[str]]:
    """Return the function of NumPy for a call whose result has a type, and types of arguments.

    The function is None where there is none.
    """
    name, extents = call_name(call), extents_of(kind)
    compute, dtypes = _ARITHMETIC.get(name, (None, _ALL))
    if extents is not None and name in _MAKERS:
        compute = _MAKERS[name](call, extents, str(kind.dtype))
    return compute, dtypes


def _exact(x: Any) -> Sequence[str]:
    """Return the types to which NumPy converts a tensor as TVM does."""
    kind = str(relax_type(x).dtype)
    return (*_FLOATS, *_INTEGERS) if kind == "bool" or kind in _INTEGERS else _FLOATS


def _full(extents: list[int], dtype: str, value: Any) -> Any:
    return np.full(extents, value, dtype)


def _concatenated(axis: int, *parts: Any) -> Any:
    return np.concatenate(parts, axis)


def _indexed(data: Any, *indices: Any) -> Any:
    """Return elements by indices, which are broadcast together; below zero from the end."""
    return data[indices]


def _scattered(axis: int, data: Any, part: Any, start: Any, stop: Any, step: Any) -> Any:
    """Return a copy of an array, a slice of which is another one."""
    result = data.copy()
    np.moveaxis(result, axis, 0)[int(start) : int(stop) : int(step)] = np.moveaxis(part, axis, 0)
    return result


def _slicing(call: Any, extents: list[int]) -> Callable[..., Any] | None:
    """Return the slicing of a call whose result has extents; None where its bounds are unknown."""
    if not all(isinstance(each, relax.Tuple) for each in call.args[1:]):
        return None
    parts = [[constant_value(number) for number in each.fields] for each in call.args[1:]]
    rank, parts = len(extents), parts if len(parts) == 4 else [*parts, [1] * len(parts[0])]
    if any(number is None for part in parts for number in part):
        return None
    chosen = [slice(None)] * rank
    for axis, begin, end, step in zip(*parts, strict=True):
        # Going down, an end before the first element is -1, which NumPy takes for the last.
        chosen[axis] = slice(begin, end if step > 0 or end >= 0 else None, step)

    shape = extents_of(relax_type(call.args[0]))
    if shape is None:
        return None
    found = [len(range(*part.indices(size))) for part, size in zip(chosen, shape, strict=True)]
    return itemgetter(tuple(chosen)) if found == extents else None


def _dequantized(axis: int, data: Any, scale: Any, zero: Any) -> Any:
    """Return a dequantised array; scale and zero point may have a number for each index of an axis.

    Source: TVM's ``python/tvm/relax/transform/legalize_ops/qdq.py``.
    """
    shape = [-1 if place == axis else 1 for place in range(data.ndim)]
    scale, zero = (each if each.size == 1 else each.reshape(shape) for each in (scale, zero))
    whole = data.astype("int32") - zero.astype("int32")
    return (whole.astype("float32") * scale.astype("float32")).reshape(data.shape)


#: Functions of NumPy for calls, from the call, the extents and the dtype of its result.
_MAKERS: dict[str, Callable[[Any, list[int], str], Callable[..., Any] | None]] = {
    **dict.fromkeys(
        ("relax.reshape", "relax.expand_dims", "relax.squeeze"),
        lambda call, extents, dtype: methodcaller("reshape", extents),
    ),
    "relax.arange": lambda call, extents, dtype: (
        partial(np.arange, dtype=dtype) if dtype in _INTEGERS else None
    ),
    "relax.astype": lambda call, extents, dtype: (
        partial(np.asarray, dtype=dtype) if dtype in _exact(call.args[0]) else None
    ),
    "relax.broadcast_to": lambda call, extents, dtype: (
        partial(np.broadcast_to, shape=extents) if prod(extents) <= _LARGEST else None
    ),
    "relax.concat": lambda call, extents, dtype: (
        None if call.attrs.axis is None else partial(_concatenated, int(call.attrs.axis))
    ),
    "relax.cumsum": lambda call, extents, dtype: (
        partial(np.cumsum, axis=int(call.attrs.axis), dtype=dtype)
        if call.attrs.axis is not None and dtype in _INTEGERS and not call.attrs.exclusive
        else None
    ),
    "relax.dequantize": lambda call, extents, dtype: (
        partial(_dequantized, int(call.attrs.axis) % max(1, len(extents)))
        if dtype == "float32"
        else None
    ),
    "relax.full": lambda call, extents, dtype: (
        partial(_full, extents, dtype) if prod(extents) <= _LARGEST else None
    ),
    "relax.index_tensor": lambda call, extents, dtype: _indexed,
    "relax.permute_dims": lambda call, extents, dtype: partial(
        np.transpose, axes=transposed_axes(call)
    ),
    "relax.slice_scatter": lambda call, extents, dtype: partial(_scattered, int(call.attrs.axis)),
    "relax.strided_slice": lambda call, extents, dtype: _slicing(call, extents),
    "relax.take": lambda call, extents, dtype: (
        partial(np.take, axis=int(call.attrs.axis))
        if call.attrs.axis is not None and call.attrs.mode == "fast"
        else None
    ),
}
