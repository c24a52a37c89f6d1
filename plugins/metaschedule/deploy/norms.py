"""Norms of groups and of instances, as PyTorch exports them to ONNX.

The exporter writes a norm of groups as one of instances: it joins the channels and pixels of each
group before, and divides them after. Channels cannot come last then. Where they do come last, means
over pixels are computed for each channel alone, which processors do with vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from ..compat import relax_type
from ..modules import (
    UNFUSED,
    bound_to,
    call_name,
    constant_array,
    extents_of,
    rewrite_functions,
)
from .transpositions import reshaped_once

__all__ = ["divide_groups", "sum_by_channels"]

#: Numbers that change nothing as second arguments of operators.
_NEUTRAL = {"relax.add": 0, "relax.multiply": 1}


@tvm.transform.module_pass(opt_level=0, name="tunedb.DivideGroups")
def divide_groups(mod: Any, _context: Any) -> Any:
    """Compute norms of groups on tensors with an axis for the groups.

    Their products with one and sums with zero, which are the weights of the instances, are left
    out, and so are reshapes before others.
    """
    return relax.transform.DeadCodeElimination()(rewrite_functions(mod, _Divider))


@relax.expr_functor.mutator
class _Divider(relax.PyExprMutator):
    """Replaces what :func:`divide_groups` names."""

    def visit_call_(self, call: Any) -> Any:
        """Return what computes the same, or the call itself."""
        kind = relax_type(call)
        call = self.visit_expr_post_order(call)
        name = call_name(call)
        if name == "relax.divide":
            return self._norm(call)
        if name == "relax.reshape":
            return reshaped_once(self, call)
        if name in _NEUTRAL:
            x, array = call.args[0], constant_array(call.args[1])
            is_same = array is not None and extents_of(relax_type(x)) == extents_of(kind)
            is_neutral = is_same and np.all(array == _NEUTRAL[name])
            return x if is_neutral and self._is_divided(x) else call
        return call

    def _is_divided(self, x: Any) -> bool:
        """Tell whether a tensor is a norm of groups whose axes are joined again."""
        joined = bound_to(self, x)
        return call_name(joined) == "relax.reshape" and _norm_of(self, joined.args[0]) is not None

    def _norm(self, quotient: Any) -> Any:
        """Return a norm of joined axes as one of divided axes, or the call itself."""
        norm = _norm_of(self, quotient)
        if norm is None:
            return quotient
        source, groups = bound_to(self, norm.x), extents_of(relax_type(norm.x))
        if call_name(source) != "relax.reshape" or groups is None or norm.axes != [2]:
            return quotient
        extents = extents_of(relax_type(source.args[0]))
        if len(groups) != 3 or extents is None or len(extents) < 4 or extents[0] != groups[0]:
            return quotient
        channels, rest = divmod(extents[1], groups[1])
        if rest:
            return quotient
        emit, op = self.builder_.emit, relax.op
        x = emit(op.reshape(source.args[0], [*groups[:2], channels, *extents[2:]]))
        axes = list(range(2, len(extents) + 1))
        difference = emit(op.subtract(x, emit(op.mean(x, axes, True))))
        root = emit(op.sqrt(emit(op.add(emit(op.variance(x, axes, True)), norm.epsilon))))
        return op.reshape(emit(op.divide(difference, root)), groups)


@tvm.transform.module_pass(opt_level=0, name="tunedb.SumByChannels")
def sum_by_channels(mod: Any, _context: Any) -> Any:
    """Compute norms of tensors whose channels come last from sums over the pixels of each channel.

    The sums are functions of their own, with the roots: fused to what follows, a root would be
    computed again for each pixel.
    """
    return relax.transform.DeadCodeElimination()(rewrite_functions(mod, _Summer))


@relax.expr_functor.mutator
class _Summer(relax.PyExprMutator):
    """Replaces what :func:`sum_by_channels` names."""

    def visit_call_(self, call: Any) -> Any:
        """Return what computes the same, or the call itself."""
        call = self.visit_expr_post_order(call)
        name = call_name(call)
        if name == "relax.reshape":
            return reshaped_once(self, call)
        return self._norm(call) if name == "relax.divide" else call

    def _norm(self, quotient: Any) -> Any:
        """Return a norm from sums of channels, or the call itself."""
        norm = _norm_of(self, quotient)
        channels = None if norm is None else self._channels(norm)
        if norm is None or channels is None:
            return quotient
        x, pixels, group, epsilon = channels
        emit, op = self.builder_.emit, relax.op
        call_te = partial(self.builder_.call_te, primfunc_attrs=UNFUSED)
        mean = partial(_mean, pixels=pixels, group=group)
        center = emit(call_te(mean, x, primfunc_name_hint="mean_of_channels"))

        def scale(x: Any, center: Any) -> Any:
            distance = topi.subtract(x, center)
            variance = mean(topi.multiply(distance, distance))
            return te.compute(
                variance.shape, lambda *at: 1 / tirx.sqrt(variance[at] + epsilon), "scale"
            )

        factor = emit(call_te(scale, x, center, primfunc_name_hint="scale_of_channels"))
        result = op.multiply(emit(op.subtract(x, center)), factor)
        if x.same_as(norm.x):
            return result
        return op.reshape(emit(result), extents_of(relax_type(norm.x)))

    def _channels(self, norm: _Norm) -> tuple[Any, list[int], int, Any] | None:
        """Return a tensor with channels, its axes of pixels, channels of a group, and epsilon.

        None for other norms.
        """
        x, kind, epsilon = norm.x, relax_type(norm.x), constant_array(norm.epsilon)
        extents = extents_of(kind)
        if extents is None or epsilon is None or epsilon.ndim or str(kind.dtype) != "float32":
            return None
        last, group = len(extents) - 1, 1
        axes = {axis % len(extents) for axis in norm.axes}
        pixels = sorted(axes - {last})
        if last in axes:
            source, group = bound_to(self, x), extents[last]
            joined = [*extents[: last - 1], extents[last - 1] * group]
            if last - 1 in pixels or call_name(source) != "relax.reshape":
                return None
            x = source.args[0]
            if extents_of(relax_type(x)) != joined:
                return None
        return (x, pixels, group, tirx.const(float(epsilon), "float32")) if pixels else None


def _mean(values: Any, pixels: Sequence[int], group: int) -> Any:
    """Return the mean over pixels, and over the channels of each group, for each channel."""
    total = topi.sum(values, axis=list(pixels), keepdims=True)
    number = group * prod(int(values.shape[axis]) for axis in pixels)
    if group > 1:
        member = te.reduce_axis((0, group), "member")
        total = te.compute(
            total.shape,
            lambda *at: te.sum(total[(*at[:-1], at[-1] // group * group + member)], member),
            "total",
        )
    return te.compute(total.shape, lambda *at: total[at] / tirx.const(number, "float32"), "mean")


@dataclass(frozen=True, slots=True)
class _Norm:
    """``(x - mean(x)) / sqrt(variance(x) + epsilon)``, both over `axes`."""

    x: Any
    axes: list[int]
    epsilon: Any


def _norm_of(mutator: Any, value: Any) -> _Norm | None:
    """Return the norm that a value of a mutator's program is, or None."""
    quotient = bound_to(mutator, value)
    if call_name(quotient) != "relax.divide":
        return None
    difference, root = (bound_to(mutator, each) for each in quotient.args)
    if [*map(call_name, (difference, root))] != ["relax.subtract", "relax.sqrt"]:
        return None
    x, total = difference.args[0], bound_to(mutator, root.args[0])
    if call_name(total) != "relax.add":
        return None
    moments = [bound_to(mutator, each) for each in (difference.args[1], total.args[0])]
    if [*map(call_name, moments)] != ["relax.mean", "relax.variance"]:
        return None
    if not all(each.attrs.keepdims and each.args[0].same_as(x) for each in moments):
        return None
    mean, variance = ([int(n) for n in each.attrs.axis or ()] for each in moments)
    return _Norm(x, mean, total.args[1]) if mean == variance else None
