"""Simplification of a Relax program for inference, before its layouts are chosen.

TVM's importers leave what its ``ConvertLayout`` rejects: weights that are computed, dropouts, sums
of stacked tensors, inputs that are padded before, quantisations. Powers of three become products.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from ..compat import constant_value, relax_type
from ..modules import (
    bound_to,
    call_name,
    constant_array,
    constant_of,
    extents_of,
    operator_of,
    rewrite_functions,
)

__all__ = ["simplify"]

#: Quantised types whose numbers, and their differences, are floats of 32 bits.
_QUANTISED = ("int8", "uint8", "int16", "uint16")

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
            "relax.squeeze": self._squeezed,
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

    def _squeezed(self, call: Any) -> Any:
        """Return a reshape to known extents; some squeezes make ``ConvertLayout`` fail."""
        extents = extents_of(relax_type(call))
        return call if extents is None else relax.op.reshape(call.args[0], extents)

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
