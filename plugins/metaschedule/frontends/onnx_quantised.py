"""Operators of ONNX on quantised tensors, computed with the integers as float32.

Sums beyond 2**24 are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx import TensorProto

from .onnx_nodes import Body, NoDefinitionError

__all__ = ["QUANTISED"]


def _centred(body: Body, x: str, zero: str) -> str:
    """Return quantised activations less their zero point, as float32."""
    one = body.constant(1, "float32")
    return body.add("DequantizeLinear", *filter(None, (x, one, zero)))


def _weights(body: Body, w: str, zero: str, *shape: int) -> str:
    """Return quantised weights less their zero points, which have a shape, as float32."""
    w = body.add("Cast", w, to=TensorProto.FLOAT)
    if not zero:
        return w
    zero = body.add("Cast", zero, to=TensorProto.FLOAT)
    return body.add("Sub", w, body.reshape(zero, *shape))


def _convolved(body: Body, x: str, x_zero: str, w: str, w_zero: str, bias: str = "") -> str:
    """Return a convolution of integers, as float32."""
    shape = [-1, *[1] * (len(body.known.shape(w)) - 1)]
    inputs = [_centred(body, x, x_zero), _weights(body, w, w_zero, *shape)]
    if bias:
        inputs.append(body.add("Cast", bias, to=TensorProto.FLOAT))
    return body.add("Conv", *inputs, **body.attributes)


def _quantised(body: Body, total: str, scales: Sequence[str], zero: str, *shape: int) -> str:
    """Return sums of integers as quantised numbers; the scale of weights has a shape."""
    x, w, y = scales
    scale = body.add("Div", body.add("Mul", x, body.reshape(w, *shape)), y)
    one = body.constant(1, "float32")
    return body.add("QuantizeLinear", body.add("Mul", total, scale), one, zero)


def _qlinear_conv(body: Body) -> list[str]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = body.inputs
    total = _convolved(body, x, x_zero, w, w_zero, bias)
    shape = [-1, *[1] * (len(body.known.shape(w)) - 2)]
    return [_quantised(body, total, [x_scale, w_scale, y_scale], y_zero, *shape)]


def _conv_integer(body: Body) -> list[str]:
    x, w, x_zero, w_zero = body.inputs
    return [body.add("Cast", _convolved(body, x, x_zero, w, w_zero), to=TensorProto.INT32)]


def _qlinear_matmul(body: Body) -> list[str]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = body.inputs
    if any(body.known.shape(name) not in ([], [1]) for name in (a_scale, a_zero)):
        raise NoDefinitionError(f"{a_scale} has a number for each row")
    total = body.add("MatMul", _centred(body, a, a_zero), _weights(body, b, b_zero, -1))
    return [_quantised(body, total, [a_scale, b_scale, y_scale], y_zero, -1)]


#: Definitions by the kinds of operators.
QUANTISED: dict[str, Callable[[Body], list[str]]] = {
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
}
