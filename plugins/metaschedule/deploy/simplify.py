"""Simplification of a Relax program for inference, before its layouts are chosen.

TVM's importers leave what its ``ConvertLayout`` rejects: weights that are computed, dropouts, sums
of stacked tensors, inputs that are padded before, quantisations. Powers of three become products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import prod
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from ..compat import constant_value, relax_type
from ..modules import (
    bound_to,
    call_name,
    calls_of,
    constant_array,
    constant_of,
    extents_of,
    operator_of,
    rewrite_functions,
)
from .transpositions import transposed_axes

__all__ = ["fold_all_constants", "fold_constants", "simplify"]

#: Types of constants that are folded.
_FLOATS = ("float32", "float64")

#: Other types of constants of which an operator is folded.
_DTYPES = {
    "relax.where": (*_FLOATS, "bool"),
    "relax.astype": (*_FLOATS, "float16", "bool", "int8", "uint8", "int16", "int32", "int64"),
    "relax.dequantize": ("float32", "int8", "uint8", "int16", "uint16", "int32"),
}

#: Quantised types whose numbers, and their differences, are floats of 32 bits.
_QUANTISED = ("int8", "uint8", "int16", "uint16")

#: Operators on constants whose results are bitwise equal in numpy and TVM, by IEEE 754.
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.sqrt": np.sqrt,
    "relax.isnan": np.isnan,
    "relax.where": np.where,
}

#: Operators on shapes, which TVM folds without constants.
_SHAPES = ("relax.shape_of", "relax.shape_to_tensor", "relax.tensor_to_shape")

#: Elements of the largest constant that is made of a smaller one.
_LARGEST = 1 << 24

#: Reductions, and the operators that compute them of two tensors.
_REDUCTIONS = {
    "relax.sum": relax.op.add,
    "relax.max": relax.op.maximum,
    "relax.min": relax.op.minimum,
}


#: Operators of two truth values, and those in their place; None: the same one of integers.
_OF_TRUTH = {
    "relax.add": relax.op.logical_or,
    "relax.multiply": relax.op.logical_and,
    "relax.equal": None,
    "relax.not_equal": None,
}

#: Convolutions, which pad their inputs with zeros themselves.
_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")

#: Their attributes besides the padding.
_ATTRIBUTES = (
    *("strides", "dilation", "groups"),
    *("data_layout", "kernel_layout", "out_layout", "out_dtype"),
)


@tvm.transform.module_pass(opt_level=0, name="tunedb.Simplify")
def simplify(mod: Any, _context: Any) -> Any:
    """Remove dropouts and broadcasts that change nothing, and rewrite what TVM does badly.

    Constants are folded (:func:`fold_constants`).

    The importer of ONNX broadcasts, stacks and reduces the inputs of ``Sum``, ``Max``, ``Min`` and
    ``Mean``: they become binary operators. Convolutions pad their inputs with zeros themselves. A
    third power becomes two products, a pixel shuffle a transposition between reshapes, a lookup of
    one constant index a slice. Constant indices that count from the end, which TVM reads from
    before the tensor, count from the start. Tensors that are quantised by constants become floats
    that are rounded, without a conversion to integers where they are dequantised again.
    """
    return relax.transform.DeadCodeElimination()(rewrite_functions(mod, _Simplifier))


@relax.expr_functor.mutator
class _Simplifier(relax.PyExprMutator):
    """Replaces what :func:`simplify` names."""

    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._rewrites = {
            "relax.quantize": self._quantized,
            "relax.dequantize": self._dequantized,
            "relax.power": self._cube,
            "relax.nn.pixel_shuffle": self._shuffled,
            "relax.take": self._taken,
            **dict.fromkeys(_OF_TRUTH, self._of_truth),
            **dict.fromkeys(_CONVOLUTIONS, self._padded),
        }
        #: Variables of quantised tensors less their zero points, and these, by those of integers.
        self._rounded: dict[Any, tuple[Any, int]] = {}

    def visit_tuple_getitem_(self, item: Any) -> Any:
        """Return the input of a dropout, or the item itself."""
        item = self.visit_expr_post_order(item)
        name, call = self._bound(item.tuple_value)
        is_dropout = name == "relax.nn.dropout" and int(item.index) == 0
        return call.args[0] if is_dropout else item

    def visit_call_(self, call: Any) -> Any:
        """Return what computes the same, or the call itself."""
        kind = relax_type(call)
        call = self.visit_expr_post_order(call)
        name = call_name(call)
        rewrite = self._rewrites.get(name)
        if rewrite is not None:
            return rewrite(call)
        if name in (*_REDUCTIONS, "relax.mean") and not call.attrs.keepdims:
            return self._reduced(call, name, kind.ndim + 1)
        is_same = name == "relax.broadcast_to" and tvm_ffi.structural_equal(
            kind, relax_type(call.args[0])
        )
        return call.args[0] if is_same else call

    def _cube(self, call: Any) -> Any:
        """Return two products for a third power, for which LLVM calls the C library, or the call.

        TVM and LLVM multiply for squares alone. GELU's approximation by tanh has a cube.
        """
        x, exponent = call.args
        value = constant_array(exponent)
        if value is None or value.ndim or value != 3:
            return call
        return relax.op.multiply(self.builder_.emit(relax.op.multiply(x, x)), x)

    def _quantized(self, call: Any) -> Any:
        """Return elementwise operators for a quantisation by constants, or the call itself.

        ``ConvertLayout`` knows them. Source: ONNX's ``QuantizeLinear``, which rounds to even.
        """
        x, integers = call.args[0], str(call.attrs.out_dtype)
        scale, zero = map(_number, call.args[1:])
        is_known = _is_quantised(integers, relax_type(x).dtype, scale, zero)
        if not is_known or constant_value(x) is not None:
            return call
        emit, op, limits = self.builder_.emit, relax.op, np.iinfo(integers)
        least, largest = (relax.const(float(n - zero)) for n in (limits.min, limits.max))
        rounded = emit(op.round(emit(op.divide(x, relax.const(scale))) if scale != 1 else x))
        rounded = emit(op.maximum(emit(op.minimum(rounded, largest)), least))
        whole = emit(op.add(rounded, relax.const(float(zero)))) if zero else rounded
        converted = emit(op.astype(whole, integers))
        self._rounded[converted] = (rounded, int(zero))
        return converted

    def _dequantized(self, call: Any) -> Any:
        """Return elementwise operators for the inverse of a quantisation, or the call itself.

        Source: ONNX's ``DequantizeLinear``.
        """
        x, op = call.args[0], relax.op
        scale, zero = map(_number, call.args[1:])
        if not _is_quantised(relax_type(x).dtype, call.attrs.out_dtype, scale, zero):
            return call
        centred, offset = self._rounded.get(self._source(x), (None, 0))
        if centred is None:
            centred = self.builder_.emit(op.astype(x, "float32"))
        if offset != zero:
            centred = self.builder_.emit(op.add(centred, relax.const(float(offset - zero))))
        return op.multiply(centred, relax.const(scale)) if scale != 1 else centred

    def _source(self, value: Any) -> Any:
        """Return the first variable of those that are bound to one another."""
        while isinstance(value, relax.Var) and isinstance(
            bound := self.lookup_binding(value), relax.Var
        ):
            value = bound
        return value

    def _reduced(self, call: Any, name: str, rank: int) -> Any:
        """Return binary operators for a reduction of stacked tensors, or the call itself."""
        of, stacked = self._bound(call.args[0])
        if of != "relax.stack":
            return call
        _, tensors = self._bound(stacked.args[0])
        axes = [int(axis) % rank for axis in call.attrs.axis or ()]
        if not isinstance(tensors, relax.Tuple) or axes != [int(stacked.attrs.axis or 0) % rank]:
            return call
        parts = list(tensors.fields)
        operator = _REDUCTIONS.get(name, relax.op.add)
        total = reduce(lambda left, right: self.builder_.emit(operator(left, right)), parts)
        if name != "relax.mean":
            return total
        return relax.op.divide(total, relax.const(len(parts), str(relax_type(parts[0]).dtype)))

    def _padded(self, call: Any) -> Any:
        """Return a convolution that pads its input itself, or the call itself."""
        data, weight = call.args
        found = self._padding(self._bound(data)[1])
        if found is None:
            return call
        x, ends = found
        layout = str(call.attrs.data_layout)
        places = [axis for axis, letter in enumerate(layout) if letter not in "NC"]
        if any(any(ends[axis]) for axis in range(len(layout)) if axis not in places):
            return call
        more = [ends[axis][end] for end in (0, 1) for axis in places]
        own = [int(number) for number in call.attrs.padding]
        options = {each: getattr(call.attrs, each) for each in _ATTRIBUTES}
        padding = [a + b for a, b in zip(own, more, strict=True)]
        return operator_of(call)(x, weight, padding=padding, **options)

    def _shuffled(self, call: Any) -> Any:
        """Return a pixel shuffle as a transposition between reshapes, which are known."""
        x, factor, emit = call.args[0], int(call.attrs.upscale_factor), self.builder_.emit
        extents = extents_of(relax_type(x))
        if extents is None or len(extents) != 4:
            return call
        n, c, h, w = extents
        c //= factor**2
        parts = emit(relax.op.reshape(x, [n, c, factor, factor, h, w]))
        parts = emit(relax.op.permute_dims(parts, [0, 1, 4, 2, 5, 3]))
        return relax.op.reshape(parts, [n, c, h * factor, w * factor])

    def _taken(self, call: Any) -> Any:
        """Return a slice for a lookup of one constant index, or a lookup without negative ones.

        PyTorch's ``x[:, -1]`` is a lookup of -1, for which TVM reads before the tensor.
        """
        x, indices = call.args[0], constant_array(call.args[1])
        extents = extents_of(relax_type(x))
        if indices is None or extents is None or call.attrs.mode != "fast":
            return call
        # Tensors of one axis need none.
        axis, op = int(call.attrs.axis or 0) % len(extents), relax.op
        extent = extents[axis]
        if np.any((indices < -extent) | (indices >= extent)):
            return call
        indices = np.where(indices < 0, indices + extent, indices)
        if indices.ndim:
            return op.take(x, constant_of(indices), axis, "fast")
        part = self.builder_.emit(op.strided_slice(x, [axis], [int(indices)], [int(indices) + 1]))
        return op.reshape(part, [*extents[:axis], *extents[axis + 1 :]])

    def _of_truth(self, call: Any) -> Any:
        """Return what LLVM can compute of two truth values, or the call itself.

        Comparisons are those of integers; sums and products are *or* and *and*.
        """
        if any(str(getattr(relax_type(x), "dtype", "")) != "bool" for x in call.args):
            return call
        operator = _OF_TRUTH[call_name(call)]
        if operator is not None:
            return operator(*call.args)
        integers = [self.builder_.emit(relax.op.astype(x, "int8")) for x in call.args]
        return relax.Call(call.op, integers)

    def _padding(self, call: Any) -> tuple[Any, list[tuple[int, int]]] | None:
        """Return what a call pads with zeros, and by how much at both ends of each axis."""
        if call_name(call) != "relax.nn.pad":
            return None
        width = [int(number) for number in call.attrs.pad_width]
        is_zero = call.attrs.pad_mode == "constant" and not call.attrs.pad_value
        ends = list(zip(width[::2], width[1::2], strict=True))
        return (call.args[0], ends) if is_zero and min(width) >= 0 else None

    def _bound(self, value: Any) -> tuple[str, Any]:
        """Return the expression of a variable of the program, and the name of its operator."""
        value = bound_to(self, value)
        return call_name(value), value


def _is_quantised(integers: Any, floats: Any, scale: Any, zero: Any) -> bool:
    """Tell whether numbers quantise float32 to integers that floats can hold."""
    has_numbers = scale is not None and zero is not None
    return has_numbers and str(integers) in _QUANTISED and str(floats) == "float32"


def _number(value: Any) -> Any:
    """Return a constant of one element; None for other expressions."""
    array = constant_array(value)
    if array is None:
        return constant_value(value)
    return float(array.reshape(())) if array.size == 1 else None


@tvm.transform.module_pass(opt_level=0, name="tunedb.FoldConstants")
def fold_constants(mod: Any, _context: Any) -> Any:
    """Fold arithmetic on constants, conversions to floats, changes of shapes, and known shapes.

    TVM's ``FoldConstant`` compiles a function for each: 13 s for the batch norms of MobileNetV2.
    That of 0.25 fails at the shape of a constant, as ONNX's ``Gather`` has it.
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
        compute = _computation(call, kind)
        if compute is None:
            return call
        dtypes = _DTYPES.get(call_name(call), _FLOATS)
        numbers = (relax.ShapeExpr, relax.Tuple)
        arguments = (each for each in call.args if not isinstance(each, numbers))
        values = [self._value(argument, dtypes) for argument in arguments]
        if any(value is None for value in values):
            return call
        with np.errstate(all="ignore"):
            return constant_of(np.asarray(compute(*values), order="C"))

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


def _computation(call: Any, kind: Any) -> Callable[..., Any] | None:
    """Return the function of numpy for a call whose result has a type; None without one."""
    name, extents = call_name(call), extents_of(kind)
    compute = _ARITHMETIC.get(name)
    if extents is None:
        return compute
    match name:
        case "relax.reshape" | "relax.expand_dims" | "relax.squeeze":
            compute = methodcaller("reshape", extents)
        case "relax.broadcast_to" if prod(extents) <= _LARGEST:
            compute = partial(np.broadcast_to, shape=extents)
        case "relax.astype" if str(kind.dtype) in _FLOATS:
            compute = partial(np.asarray, dtype=str(kind.dtype))
        case "relax.permute_dims":
            compute = partial(np.transpose, axes=transposed_axes(call))
        case "relax.strided_slice":
            compute = _slicing(call, extents)
        case "relax.dequantize" if str(kind.dtype) == "float32":
            compute = partial(_dequantized, int(call.attrs.axis) % max(1, kind.ndim))
    return compute


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
        # Going down, an end before the first element is -1, which numpy takes for the last.
        chosen[axis] = slice(begin, end if step > 0 or end >= 0 else None, step)

    shape = [int(number) for number in relax_type(call.args[0]).shape]
    found = [len(range(*part.indices(size))) for part, size in zip(chosen, shape, strict=True)]
    # TVM has no constants without elements.
    is_whole = found == extents and all(found)
    return itemgetter(tuple(chosen)) if is_whole else None


def _dequantized(axis: int, data: Any, scale: Any, zero: Any) -> Any:
    """Return a dequantised array; scale and zero point may have a number for each index of an axis.

    Source: TVM's ``python/tvm/relax/transform/legalize_ops/qdq.py``.
    """
    shape = [-1 if place == axis else 1 for place in range(data.ndim)]
    scale, zero = (each if each.size == 1 else each.reshape(shape) for each in (scale, zero))
    whole = data.astype("int32") - zero.astype("int32")
    return (whole.astype("float32") * scale.astype("float32")).reshape(data.shape)
