"""Functions that TVM's importer of ONNX makes where Relax has operators: clips, pads, repeats.

Passes over operators cannot look into functions. A function becomes an operator where it equals the
one that the importer makes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi

from ..compat import relax_type, walk
from ..modules import (
    call_name,
    extents_of,
    rewrite_functions,
    scalar_like,
    without_attributes,
)

__all__ = ["restore_operators"]

#: A result of a function's inputs in TVM's expressions, and the operator that computes it.
_Way = tuple[Any, Callable[[], Any]]


@tvm.transform.module_pass(opt_level=0, name="tunedb.RestoreOperators")
def restore_operators(mod: Any, _context: Any) -> Any:
    """Replace functions of the importer by operators."""
    return relax.transform.DeadCodeElimination()(rewrite_functions(mod, _Restorer))


@relax.expr_functor.mutator
class _Restorer(relax.PyExprMutator):
    """Replaces what :func:`restore_operators` names."""

    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._functions = {
            var: without_attributes(func)
            for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc)
        }

    def visit_call_(self, call: Any) -> Any:
        """Return the operator for a call of a function of the importer, or the call itself."""
        after = extents_of(relax_type(call))
        call = self.visit_expr_post_order(call)
        if call_name(call) != "relax.call_tir" or after is None:
            return call
        func, arguments = self._functions[call.args[0]], list(call.args[1])
        shapes = [extents_of(relax_type(each)) for each in arguments]
        before = shapes[0] if shapes else None
        if before is None or None in shapes:
            return call
        numbers: list[Any] = []
        walk(func, tirx.FloatImm, numbers.append)
        inputs = [
            te.placeholder(relax_type(each).shape.values, relax_type(each).dtype)
            for each in arguments
        ]
        if before == after:
            ways = _clips(arguments, inputs, numbers)
        elif len(arguments) == 1:
            ways = _copies(arguments[0], inputs[0], before, after, numbers)
        else:
            return call
        for result, operator in ways:
            found = te.create_prim_func([*inputs, result], "int64")
            if tvm_ffi.structural_equal(without_attributes(found), func):
                return operator()
        return call


def _clips(arguments: list[Any], inputs: list[Any], numbers: list[Any]) -> Iterator[_Way]:
    """Yield the bounds of a tensor, which are numbers or tensors of one element."""
    if len(arguments) > 2 or (len(arguments) == 2 and len(inputs[1].shape) > 0):
        return
    x = arguments[0]
    for compute, operator in (
        (topi.maximum, relax.op.maximum),
        (topi.minimum, relax.op.minimum),
    ):
        if len(arguments) == 2:
            yield compute(*inputs), partial(operator, *arguments)
        elif numbers:
            bound = scalar_like(numbers[0], x)
            yield compute(inputs[0], numbers[0]), partial(operator, x, bound)


def _copies(
    x: Any, data: Any, before: list[int], after: list[int], numbers: list[Any]
) -> Iterator[_Way]:
    """Yield the pads and repeats that turn extents into others."""
    if len(before) != len(after) or any(map(int.__gt__, before, after)):
        return
    pad, value = relax.op.nn.pad, float(numbers[0].value) if numbers else 0.0
    more = [wide - narrow for narrow, wide in zip(before, after, strict=True)]
    for shares in product(*map(_shares, more)):
        ends, width = list(zip(*shares, strict=True)), [n for pair in shares for n in pair]
        yield topi.nn.pad(data, *ends, value), partial(pad, x, width, "constant", value)
        yield topi.nn.mirror_pad(data, *ends, "REFLECT"), partial(pad, x, width, "reflect")
        yield topi.nn.replicate_pad(data, *ends), partial(pad, x, width, "replicate")
    repeats = [wide // narrow for narrow, wide in zip(before, after, strict=True)]
    yield topi.tile(data, repeats), partial(relax.op.tile, x, repeats)


def _shares(number: int) -> list[tuple[int, int]]:
    """Return the usual divisions of a padding: by halves, or all of it at one end."""
    half = number // 2
    ways = ((half, number - half), (number - half, half), (0, number), (number, 0))
    return list(dict.fromkeys(ways))
