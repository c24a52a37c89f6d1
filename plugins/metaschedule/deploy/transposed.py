"""Transposed convolutions as convolutions, whose results are interleaved.

A transposed convolution of stride s puts s - 1 zeros between the elements of its input and
convolves it, so that of s products in each axis one counts. The results at every s-th place are a
convolution of the input itself with every s-th weight (arXiv 1609.07009); tunedb computes those of
all places as channels of one convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from ..compat import relax_type
from ..modules import (
    call_name,
    calls_of,
    constant_array,
    constant_of,
    extents_of,
    rewrite_functions,
)

__all__ = ["interleave_transposed", "kept_transposed"]

#: The convolution that computes each transposed one.
_CONVOLUTIONS = {
    "relax.nn.conv1d_transpose": relax.op.nn.conv1d,
    "relax.nn.conv2d_transpose": relax.op.nn.conv2d,
    "relax.nn.conv3d_transpose": relax.op.nn.conv3d,
}


def interleave_transposed(mod: Any) -> Any:
    """Return a Relax program whose transposed convolutions of constant weights are convolutions.

    Parameters
    ----------
    mod : tvm.IRModule
        The program, with channels first or last.

    Returns
    -------
    tvm.IRModule
        The program. It keeps transposed convolutions whose weights are computed, and those with
        both a stride and a dilation, or with more padding than results.
    """
    return rewrite_functions(mod, _Interleaver)


def kept_transposed(mod: Any) -> set[str]:
    """Return the names of transposed operators that :func:`interleave_transposed` keeps."""
    transposed = [call for call in calls_of(mod) if call_name(call) in _CONVOLUTIONS]
    return {call_name(call) for call in transposed if _Plan.of(call) is None}


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of a transposed convolution.

    Parameters
    ----------
    stride, dilation : int
        Its stride, and the distance of its weights.
    taps : int
        Weights of the convolution.
    padding : tuple of int
        Padding of the convolution at both ends.
    first, extent : int
        Place of the first result among the interleaved ones, and number of results.
    """

    stride: int
    dilation: int
    taps: int
    padding: tuple[int, int]
    first: int
    extent: int

    @property
    def places(self) -> int:
        """Results of the convolution: those of one phase."""
        return -(-(self.first + self.extent) // self.stride)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A transposed convolution as a convolution.

    Parameters
    ----------
    axes : tuple of _Axis
        Spatial axes.
    weights : ndarray, shape (groups * inputs, outputs, extents ...)
        Weights, whose outputs are those of a group.
    groups : int
        Number of groups.
    channels_last : bool
        Whether channels are the last axis of the data, or the second one.
    """

    axes: tuple[_Axis, ...]
    weights: NDArray[Any]
    groups: int
    channels_last: bool

    def kernel(self) -> NDArray[Any]:
        """Return the weights of the convolution; its channels are groups, phases and outputs.

        Where channels are not the last axis, outputs come before phases.
        """
        weights = _by_phase(self.weights, self.axes, self.groups)
        groups, inputs, outputs = weights.shape[:3]
        at = [3 + 2 * number for number in range(len(self.axes))]
        phases = [1 + number for number in at]
        taps = [axis.taps for axis in self.axes]
        channels = groups * outputs * prod(axis.stride for axis in self.axes)
        if self.channels_last:
            ordered = weights.transpose([*at, 1, 0, *phases, 2])
            return np.ascontiguousarray(ordered.reshape(*taps, inputs, channels))
        ordered = weights.transpose([0, 2, *phases, 1, *at])
        return np.ascontiguousarray(ordered.reshape(channels, inputs, *taps))

    @classmethod
    def of(cls, call: Any) -> _Plan | None:
        """Return the plan of a call; None where it stays as it is."""
        data, weight = call.args
        attrs, array = call.attrs, constant_array(weight)
        before, layout, kernel = extents_of(relax_type(data)), str(attrs.data_layout), "IO"
        if array is None or before is None:
            return None
        kernel_layout = str(attrs.kernel_layout)
        letters = "".join(each for each in kernel_layout if each not in kernel)
        last = layout == f"N{letters}C"
        if not (last or layout == f"NC{letters}") or str(attrs.out_layout) not in ("", layout):
            return None
        order = [kernel_layout.index(letter) for letter in kernel + letters]
        array = array.transpose(order)
        axes = [
            _axis(extent, weights, *numbers)
            for extent, weights, *numbers in zip(
                before[1:-1] if last else before[2:],
                array.shape[2:],
                attrs.strides,
                attrs.dilation,
                attrs.padding[: len(letters)],
                attrs.padding[len(letters) :],
                attrs.output_padding,
                strict=True,
            )
        ]
        usable = tuple(axis for axis in axes if axis is not None)
        if len(usable) < len(axes):
            return None
        return cls(usable, array, int(attrs.groups), last)


def _axis(extent: int, weights: int, *numbers: Any) -> _Axis | None:
    """Return an axis by its extent, number of weights, and attributes; None if it is unusual."""
    stride, dilation, before, after, more = map(int, numbers)
    if stride > 1 and dilation > 1:
        return None
    taps = -(-weights // stride)
    results = (extent - 1) * stride - before - after + dilation * (weights - 1) + more + 1
    place, first = divmod(before, stride)
    last = (before + results - 1) // stride
    padding = (dilation * (taps - 1) - place, last - extent + 1)
    return None if min(padding) < 0 else _Axis(stride, dilation, taps, padding, first, results)


def _by_phase(array: NDArray[Any], axes: tuple[_Axis, ...], groups: int) -> NDArray[Any]:
    """Return weights (groups, inputs, outputs, taps, stride, taps, stride ...) of :class:`_Plan`.

    Each axis is divided by the place of the convolution and by phase.
    """
    ends = [
        (0, axis.taps * axis.stride - weights)
        for axis, weights in zip(axes, array.shape[2:], strict=True)
    ]
    inputs, outputs = array.shape[:2]
    phases = [number for axis in axes for number in (axis.taps, axis.stride)]
    padded = np.pad(array, [(0, 0), (0, 0), *ends])
    divided = padded.reshape(groups, inputs // groups, outputs, *phases)
    # A convolution meets the elements of its input in the other order.
    return np.flip(divided, tuple(3 + 2 * number for number in range(len(axes))))


@relax.expr_functor.mutator
class _Interleaver(relax.PyExprMutator):
    """Replaces transposed convolutions."""

    def visit_call_(self, call: Any) -> Any:
        """Return the interleaved results of a convolution, or the call itself."""
        call = self.visit_expr_post_order(call)
        name = call_name(call)
        plan = _Plan.of(call) if name in _CONVOLUTIONS else None
        if plan is None:
            return call
        letters = str(call.attrs.data_layout).strip("NC")
        result = _CONVOLUTIONS[name](
            call.args[0],
            constant_of(plan.kernel()),
            padding=[axis.padding[end] for end in (0, 1) for axis in plan.axes],
            dilation=[axis.dilation for axis in plan.axes],
            groups=plan.groups,
            data_layout=call.attrs.data_layout,
            kernel_layout=f"{letters}IO" if plan.channels_last else f"OI{letters}",
            out_dtype=call.attrs.out_dtype,
        )
        if all(axis.stride == 1 for axis in plan.axes):
            return result
        return self._interleaved(self.builder_.emit(result), plan)

    def _interleaved(self, result: Any, plan: _Plan) -> Any:
        """Return the results of a convolution with those of all phases at their places."""
        emit, op, number = self.builder_.emit, relax.op, len(plan.axes)
        places = [axis.places for axis in plan.axes]
        strides = [axis.stride for axis in plan.axes]
        whole = [axis.places * axis.stride for axis in plan.axes]
        groups, outputs = plan.groups, plan.weights.shape[1]
        batch = relax_type(result).shape.values[0]
        if plan.channels_last:
            divided = [batch, *places, groups, *strides, outputs]
            pairs = [(1 + axis, 2 + number + axis) for axis in range(number)]
            order = [0, *chain(*pairs), 1 + number, 2 + 2 * number]
            shape = [batch, *whole, groups * outputs]
        else:
            divided = [batch, groups * outputs, *strides, *places]
            pairs = [(2 + number + axis, 2 + axis) for axis in range(number)]
            order = [0, 1, *chain(*pairs)]
            shape = [batch, groups * outputs, *whole]
        result = emit(op.reshape(result, divided))
        result = op.reshape(emit(op.permute_dims(result, order)), shape)
        if whole == [axis.extent for axis in plan.axes]:
            return result
        first = [axis.first for axis in plan.axes]
        end = [axis.first + axis.extent for axis in plan.axes]
        spatial = [axis + (1 if plan.channels_last else 2) for axis in range(number)]
        return op.strided_slice(emit(result), spatial, first, end)
