"""Activations of float32 as polynomials, which LLVM vectorises.

LLVM calls the C library for each element of ``exp``, ``erf``, ``tanh`` and ``log``. The first three
get the polynomials of TVM's ``FastMathTransform``, a pass that fails at calls of packed functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from .compat import relax_type
from .modules import call_name, rewrite_functions


@tvm.transform.module_pass(opt_level=0, name="tunedb.DefineActivations")
def define_activations(mod: Any, _context: Any) -> Any:
    """Express activations by ``exp``, ``erf`` and ``tanh``, and these and others by polynomials.

    ``FastMathTransform`` would give ``softmax`` another stage, which earlier schedules lack. It
    leaves ``log_softmax`` and ``log``, of which softplus and Mish are made.
    """
    return rewrite_functions(rewrite_functions(mod, _ActivationRewriter), _PolynomialRewriter)


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


def _over(
    x: Any, axis: int, value: Callable[..., Any], reduce: Callable[..., Any], name: str
) -> Any:
    """Return a reduction of one axis of values by their indices."""
    extents = list(x.shape)
    k = te.reduce_axis((0, extents[axis]), name="k")
    return te.compute(
        [*extents[:axis], *extents[axis + 1 :]],
        lambda *i: reduce(value(*i[:axis], k, *i[axis:]), axis=k),
        name=name,
    )


def _softmax(x: Any, axis: int) -> Any:
    """Return softmax in the stages of TVM's own, with the polynomial of ``topi.fast_exp``."""
    axis %= len(x.shape)
    largest = _over(x, axis, x, te.max, "T_softmax_maxelem")
    exp = te.compute(
        x.shape,
        lambda *i: _fast_exp(x(*i) - largest(*i[:axis], *i[axis + 1 :])),
        name="T_softmax_exp",
    )
    total = _over(x, axis, exp, te.sum, "T_softmax_expsum")
    return te.compute(
        x.shape,
        lambda *i: exp(*i) / total(*i[:axis], *i[axis + 1 :]),
        name="T_softmax_norm",
        attrs={"axis": axis},
    )


def _log_softmax(x: Any, axis: int) -> Any:
    """Return the logarithm of softmax; TVM's computes ``exp`` and ``log`` in the C library."""
    axis %= len(x.shape)
    largest = _over(x, axis, x, te.max, "T_softmax_maxelem")

    def exp(*i: Any) -> Any:
        return _fast_exp(x(*i) - largest(*i[:axis], *i[axis + 1 :]))

    total = _over(x, axis, exp, te.sum, "T_softmax_expsum")
    log = te.compute(
        total.shape, lambda *i: largest(*i) + _fast_log(total(*i)), name="T_softmax_log"
    )
    return te.compute(
        x.shape,
        lambda *i: x(*i) - log(*i[:axis], *i[axis + 1 :]),
        name="T_softmax_norm",
        attrs={"axis": axis},
    )


def _log(x: Any) -> Any:
    """Return the logarithm of each element."""
    return te.compute(x.shape, lambda *i: _fast_log(x(*i)), name="T_log")


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


def _fast_log(x: Any) -> Any:
    """Return ``log`` of a float32 by the polynomial of Cephes (``single/logf.c``).

    The mantissa is in [sqrt(1/2), sqrt(2)); subnormal numbers are scaled.
    """

    def number(value: float) -> Any:
        return tirx.const(value, "float32")

    def bits(value: int) -> Any:
        return tirx.const(value, "int32")

    least, root = number(float(np.finfo("float32").tiny)), bits(0x3F3504F3)
    scaled = tirx.Select(x < least, x * number(2.0**23), x)
    offset = tirx.reinterpret("int32", scaled) - root
    exponent = tirx.Cast("float32", offset >> bits(23))
    exponent = exponent - tirx.Select(x < least, number(23.0), number(0.0))
    rest = tirx.reinterpret("float32", (offset & bits(0x7FFFFF)) + root) - number(1.0)
    square = rest * rest
    y = number(7.0376836292e-2)
    for term in _LOG:
        y = y * rest + number(term)
    # The exponent times log(2), in two parts.
    y = y * rest * square - exponent * number(2.12194440e-4) - square * number(0.5)
    found = rest + y + exponent * number(0.693359375)
    special = tirx.Select(x < number(0.0), number(float("nan")), x)
    special = tirx.Select(x == number(0.0), number(-float("inf")), special)
    is_usual = tirx.And(x > number(0.0), x < number(float("inf")))
    return tirx.Select(is_usual, found, special)


#: Coefficients of the polynomial of ``log`` after the first.
_LOG = (
    *(-1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
#: Operators that are computed by polynomials of ours.
_COMPUTED = {
    "relax.log": _log,
    "relax.nn.softmax": _softmax,
    "relax.nn.log_softmax": _log_softmax,
}
#: Operators that TVM computes by polynomials.
_FAST = {"relax.exp": topi.fast_exp, "relax.erf": topi.fast_erf, "relax.tanh": topi.fast_tanh}

#: Activations in terms of these.
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
        name = call_name(call)
        if not (name in _COMPUTED or name in _ACTIVATIONS):
            return call
        (x,) = call.args
        if str(relax_type(x).dtype) != "float32":
            return call
        if name in _ACTIVATIONS:
            return _ACTIVATIONS[name](x)
        axes = [int(call.attrs.axis)] if "softmax" in name else []
        hint = name.rsplit(".", 1)[1]
        return self.builder_.call_te(_COMPUTED[name], x, *axes, primfunc_name_hint=hint)


@relax.expr_functor.mutator
class _PolynomialRewriter(relax.PyExprMutator):
    """Replaces functions of float32 by TVM's polynomials."""

    def visit_call_(self, call: Any) -> Any:
        """Return the polynomial of a call, or the call itself."""
        call = self.visit_expr_post_order(call)
        compute = _FAST.get(call_name(call))
        is_float = compute and str(relax_type(call.args[0]).dtype) == "float32"
        return self.builder_.call_te(compute, call.args[0]) if is_float else call
