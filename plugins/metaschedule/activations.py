"""Activations of float32 as polynomials, which LLVM vectorises.

LLVM calls the C library for each element of ``exp``, ``erf`` and ``tanh``. TVM's
``FastMathTransform`` replaces these by polynomials; :func:`define_activations` runs before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from .compat import relax_type


@tvm.transform.module_pass(opt_level=0, name="tunedb.DefineActivations")
def define_activations(mod: Any, _context: Any) -> Any:
    """Express activations by ``exp``, ``erf`` and ``tanh``, and ``softmax`` by a polynomial.

    ``FastMathTransform`` would give ``softmax`` another stage, which earlier schedules lack.
    """
    mutator = _ActivationRewriter(mod)
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            mutator.builder_.update_func(var, mutator.visit_expr(func))
    return relax.transform.CanonicalizeBindings()(mutator.builder_.get())


def _constant(value: float) -> Any:
    return relax.const(value, "float32")


def _sigmoid(x: Any) -> Any:
    op, one = relax.op, _constant(1.0)
    return op.divide(one, op.add(one, op.exp(op.negative(x))))


def _gelu(x: Any) -> Any:
    op = relax.op
    erf = op.erf(op.multiply(x, _constant(0.5**0.5)))
    return op.multiply(op.multiply(x, _constant(0.5)), op.add(erf, _constant(1.0)))


def _gelu_tanh(x: Any) -> Any:
    op = relax.op
    cubic = op.add(_constant(1.0), op.multiply(_constant(0.044715), op.multiply(x, x)))
    tanh = op.tanh(op.multiply(op.multiply(x, _constant((2 / np.pi) ** 0.5)), cubic))
    return op.multiply(op.multiply(x, _constant(0.5)), op.add(tanh, _constant(1.0)))


def _softmax(x: Any, axis: int) -> Any:
    """Return softmax in the stages of TVM's own, with the polynomial of ``topi.fast_exp``."""
    extents = list(x.shape)
    axis %= len(extents)
    reduced = extents[:axis] + extents[axis + 1 :]

    def without(indices: Sequence[Any]) -> list[Any]:
        return [*indices[:axis], *indices[axis + 1 :]]

    def over(tensor: Any, reduce: Callable[..., Any], name: str) -> Any:
        k = te.reduce_axis((0, extents[axis]), name="k")
        return te.compute(
            reduced, lambda *i: reduce(tensor(*i[:axis], k, *i[axis:]), axis=k), name=name
        )

    largest = over(x, te.max, "T_softmax_maxelem")
    exp = te.compute(
        extents, lambda *i: _fast_exp(x(*i) - largest(*without(i))), name="T_softmax_exp"
    )
    total = over(exp, te.sum, "T_softmax_expsum")
    return te.compute(
        extents,
        lambda *i: exp(*i) / total(*without(i)),
        name="T_softmax_norm",
        attrs={"axis": axis},
    )


def _fast_exp(x: Any) -> Any:
    """Return ``exp`` of a float32 as ``topi.fast_exp`` computes it (``topi/elemwise.h``)."""

    def number(value: float) -> Any:
        return tirx.const(value, "float32")

    bounded = tirx.max(tirx.min(x, number(88.3762626647950)), number(-88.3762626647949))
    n = tirx.floor(bounded * number(1.44269504088896341) + number(0.5))
    rest = bounded - n * number(0.6931471805599453)
    y = number(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5):
        y = y * rest + number(factor)
    power = tirx.reinterpret("float32", tirx.Cast("int32", n + number(127.0)) << 23)
    # The maximum is NaN for NaN, and else the first operand.
    return tirx.max(power * (y * rest * rest + rest + number(1.0)), x)


#: Activations in terms of functions that ``FastMathTransform`` replaces.
_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relax.sigmoid": _sigmoid,
    "relax.nn.silu": lambda x: relax.op.multiply(x, _sigmoid(x)),
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
}


@relax.expr_functor.mutator
class _ActivationRewriter(relax.PyExprMutator):
    """Replaces activations of float32 by their definitions."""

    def visit_call_(self, call: Any) -> Any:
        """Return the definition of an activation, or the call itself."""
        call = self.visit_expr_post_order(call)
        name = str(getattr(call.op, "name", None))
        is_softmax = name == "relax.nn.softmax"
        if not (is_softmax or name in _ACTIVATIONS):
            return call
        (x,) = call.args
        if str(relax_type(x).dtype) != "float32":
            return call
        if is_softmax:
            axis = int(call.attrs.axis)
            return self.builder_.call_te(_softmax, x, axis, primfunc_name_hint="softmax")
        return _ACTIVATIONS[name](x)
