"""Layouts of a Relax program's operators, converted by TVM's ``ConvertLayout``.

``ConvertLayout`` puts a transposition before and after each operator that it does not know, and
such an operator is not fused with a convolution. So operators of one element at a time are written
with operators that it knows first, and transpositions that cancel are removed afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

from tvm import relax

from ..compat import constant_value, relax_type
from ..modules import (
    call_name,
    calls_of,
    constant_array,
    constant_of,
    rewrite_functions,
    scalar_like,
)
from ..targets import first_line
from .transposed import kept_transposed
from .transpositions import cancel_transpositions

__all__ = ["convert_layouts", "operators_of"]

#: Layouts of transposed convolutions for which TVM has code.
_TRANSPOSED = {
    "relax.nn.conv1d_transpose": ["NCW", "IOW"],
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],
    "relax.nn.conv3d_transpose": ["NCDHW", "IODHW"],
}


def convert_layouts(mod: Any, layouts: Mapping[str, Sequence[str]]) -> tuple[Any, list[str]]:
    """Convert the layouts of a Relax program's operators.

    Parameters
    ----------
    mod : tvm.IRModule
        The program, whose constants are folded.
    layouts : mapping of str to sequence of str
        Layouts of operators, as ``ConvertLayout`` takes them.

    Returns
    -------
    tvm.IRModule
        The program, with transpositions of constants that are not folded.
    list of str
        A line for each operator whose layout TVM rejects.
    """
    if not layouts:
        return mod, []
    mod, notes = rewrite_functions(mod, _ElementwiseRewriter), []
    transposed, known = _layouts_of_transposed(mod, layouts), operators_of(mod)
    for name, wanted in layouts.items():
        if known.isdisjoint((name, f"{name}_transpose")):
            continue
        mod, note = _converted(mod, name, transposed | {name: list(wanted)})
        notes += [note] if note else []
    return cancel_transpositions(mod), notes


def operators_of(mod: Any) -> set[str]:
    """Return the names of the operators that a Relax program calls."""
    return {call_name(call) for call in calls_of(mod)}


def _layouts_of_transposed(mod: Any, layouts: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the layouts of transposed convolutions: where they become convolutions, theirs."""
    kept, found = kept_transposed(mod), dict(_TRANSPOSED)
    for name, (_, kernel) in _TRANSPOSED.items():
        wanted = layouts.get(name.removesuffix("_transpose"))
        if wanted and name not in kept:
            found[name] = [wanted[0], kernel]
    return found


def _converted(mod: Any, name: str, layouts: dict[str, list[str]]) -> tuple[Any, str]:
    """Convert the layout of one operator; return the program and a line for what is kept.

    TVM rejects some operators around it with a failed check. Those operators become functions in
    their own layout first.
    """

    def convert(apart: Set[str]) -> Any:
        legalized = transform.LegalizeOps(skip_ops=sorted(operators - apart))(mod)
        return transform.ConvertLayout(layouts)(legalized)

    transform = relax.transform
    try:
        return transform.ConvertLayout(layouts)(mod), ""
    except Exception as error:
        reason = first_line(error)
    operators = operators_of(mod)
    apart = operators - {name}
    try:
        found = convert(apart)
    except Exception:
        return mod, f"layout of {name} is kept: {reason}"
    for other in sorted(apart):
        with suppress(Exception):
            found = convert(apart - {other})
            apart -= {other}
    return found, f"layouts of {', '.join(sorted(apart))} are kept: {reason}"


@relax.expr_functor.mutator
class _ElementwiseRewriter(relax.PyExprMutator):
    """Replaces clips and leaky ReLUs."""

    def visit_call_(self, call: Any) -> Any:
        """Return a call in operators that ``ConvertLayout`` knows, or the call itself."""
        call = self.visit_expr_post_order(call)
        name, op = call_name(call), relax.op
        if name == "relax.clip":
            x, *bounds = call.args
            numbers = [constant_value(bound) for bound in bounds]
            if any(number is None for number in numbers):
                return call
            least, largest = (scalar_like(number, x) for number in numbers)
            return op.maximum(self.builder_.emit(op.minimum(x, largest)), least)
        if name in _BINARY and relax_type(call).ndim > 3:
            left, right = (_expanded(each, relax_type(call).ndim) for each in call.args)
            # The layout is that of the first argument.
            if _has_axes(left) and not _has_axes(right):
                if name == "relax.subtract":
                    return op.add(self.builder_.emit(op.negative(right)), left)
                if name in _COMMUTATIVE:
                    left, right = right, left
            return relax.Call(call.op, [left, right])
        if name == "relax.nn.leakyrelu" and 0 <= call.attrs.alpha <= 1:
            x = call.args[0]
            product = op.multiply(x, scalar_like(call.attrs.alpha, x))
            return op.maximum(x, self.builder_.emit(product))
        return call


#: Operators that ``ConvertLayout`` knows if their arguments have equal ranks or one is a scalar.
_COMMUTATIVE = ("relax.add", "relax.multiply")
_BINARY = (*_COMMUTATIVE, "relax.subtract", "relax.divide")


def _expanded(x: Any, rank: int) -> Any:
    """Return a constant of one element as a scalar, one like a bias of channels with all axes."""
    value = constant_array(x) if getattr(relax_type(x), "ndim", rank) < rank else None
    if value is None:
        return x
    if value.ndim > 0 and value.size == 1:
        return constant_of(value.reshape(()))
    if value.ndim < 3:
        return x
    return constant_of(value.reshape([1] * (rank - value.ndim) + list(value.shape)))


def _has_axes(x: Any) -> bool:
    """Tell whether an expression is a constant of three or more axes."""
    return constant_value(x) is not None and getattr(relax_type(x), "ndim", 0) >= 3
