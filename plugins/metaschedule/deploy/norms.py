"""Norms of groups, as PyTorch exports them to ONNX.

The exporter writes a norm of instances: it joins the channels and pixels of each group before, and
divides them after. Channels cannot come last then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..compat import relax_type
from ..modules import bound_to, call_name, constant_array, extents_of, rewrite_functions
from .transpositions import reshaped_once

__all__ = ["divide_groups"]

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
        return call_name(joined) == "relax.reshape" and self._parts(joined.args[0]) is not None

    def _norm(self, quotient: Any) -> Any:
        """Return a norm of joined axes as one of divided axes, or the call itself."""
        parts = self._parts(quotient)
        if parts is None:
            return quotient
        joined, axes, epsilon = parts
        source, groups = bound_to(self, joined), extents_of(relax_type(joined))
        if call_name(source) != "relax.reshape" or groups is None or axes != [2]:
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
        root = emit(op.sqrt(emit(op.add(emit(op.variance(x, axes, True)), epsilon))))
        return op.reshape(emit(op.divide(difference, root)), groups)

    def _parts(self, value: Any) -> tuple[Any, list[int], Any] | None:
        """Return `x`, axes and epsilon of ``(x - mean(x)) / sqrt(variance(x) + epsilon)``.

        None for other values.
        """
        quotient = bound_to(self, value)
        if call_name(quotient) != "relax.divide":
            return None
        difference, root = (bound_to(self, each) for each in quotient.args)
        if [*map(call_name, (difference, root))] != ["relax.subtract", "relax.sqrt"]:
            return None
        x, total = difference.args[0], bound_to(self, root.args[0])
        if call_name(total) != "relax.add":
            return None
        moments = [bound_to(self, each) for each in (difference.args[1], total.args[0])]
        if [*map(call_name, moments)] != ["relax.mean", "relax.variance"]:
            return None
        if not all(each.attrs.keepdims and each.args[0].same_as(x) for each in moments):
            return None
        mean, variance = ([int(n) for n in each.attrs.axis or ()] for each in moments)
        return (x, mean, total.args[1]) if mean == variance else None
