"""Definitions of the operators in public logs of auto_scheduler.

A definition gets the arguments of a workload key and returns te tensors, inputs before outputs. The
stages must be those of the tuned function, in number and in loops; their names are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, topi

# Operators of Ansor's paper (section 7.1), which the entry points of tunedb name.
from tvm.s_tir.meta_schedule.testing import te_workload  # noqa: F401
from tvm.topi.nn.utils import get_pad_tuple

Tensors = list[Any]


def _inputs(*shapes: Sequence[int], dtype: str = "float32") -> Tensors:
    return [te.placeholder(tuple(shape), dtype, f"p{i}") for i, shape in enumerate(shapes)]


def _matmul(a: Any, b: Any) -> Any:
    """Return the product of two matrices."""
    k = te.reduce_axis((0, a.shape[1]), "k")
    shape = (a.shape[0], b.shape[1])
    return te.compute(shape, lambda i, j: te.sum(a[i, k] * b[k, j], k), "matmul")


# ---- TVM's tutorials -----------------------------------------------------------------------------


def matmul_add(n: int, length: int, m: int, dtype: str) -> Tensors:
    """Return ``A[n, l] * B[l, m] + C[n, m]`` (tune_matmul_x86)."""
    a, b, c = _inputs((n, length), (length, m), (n, m), dtype=dtype)
    product = _matmul(a, b)
    return [a, b, c, te.compute((n, m), lambda i, j: product[i, j] + c[i, j], "out")]


def conv2d_bias_relu(
    *arguments: Any,
) -> Tensors:
    """Return ``conv2d_layer(N, H, W, CO, CI, KH, KW, stride, padding)`` of the CUDA tutorial."""
    n, h, w, co, ci, kh, kw, stride, padding = arguments
    data, kernel, bias = _inputs((n, ci, h, w), (co, ci, kh, kw), (1, co, 1, 1))
    out = topi.nn.conv2d_nchw(data, kernel, stride, padding, 1, out_dtype="float32")
    return [data, kernel, bias, topi.nn.relu(out + bias)]


# ---- Logs of Apple's GPUs ------------------------------------------------------------------------


def gemm(m: int, n: int, k: int) -> Tensors:
    """Return ``gemm(M, N, K)``: ``A[m, k] * B[n, k]``."""
    a, b = _inputs((m, k), (n, k))
    axis = te.reduce_axis((0, k), "k")
    return [a, b, te.compute((m, n), lambda i, j: te.sum(a[i, axis] * b[j, axis], axis), "gemm")]


def swish_gemm(m: int, n: int, k: int) -> Tensors:
    """Return ``swish_gemm(M, N, K)``: the same with a hard swish in three stages."""
    a, b, product = gemm(m, n, k)
    shifted = te.compute((m, n), lambda i, j: product[i, j] + 3.0, "shifted")
    clipped = topi.clip(shifted, 0.0, 6.0)
    sixth = 0.1666667
    swish = te.compute((m, n), lambda i, j: clipped[i, j] * product[i, j] * sixth, "swish")
    return [a, b, swish]


# ---- Artifacts of Roller (OSDI 2022) -------------------------------------------------------------


def conv2d(
    *arguments: Any,
) -> Tensors:
    """Return ``conv2d_layer(N, CI, H, W, CO, KH, KW, stride, padding)``."""
    n, ci, h, w, co, kh, kw, stride, padding = arguments
    data, kernel = _inputs((n, ci, h, w), (co, ci, kh, kw))
    return [data, kernel, topi.nn.conv2d_nchw(data, kernel, stride, padding, 1, "float32")]


def conv2d_add(*arguments: Any) -> Tensors:
    """Return the same key's tensors with an addition: a key is no proof of identity."""
    data, kernel, out = conv2d(*arguments)
    other = te.placeholder(out.shape, "float32", "other")
    return [data, kernel, other, topi.add(out, other)]


def depthwise_conv2d(
    *arguments: Any,
) -> Tensors:
    """Return ``depthwise_conv2d_layer(N, C, H, W, KH, KW, stride, padding)``."""
    n, c, h, w, kh, kw, stride, padding = arguments
    data, kernel = _inputs((n, c, h, w), (c, 1, kh, kw))
    out = topi.nn.depthwise_conv2d_nchw(data, kernel, stride, padding, 1, "float32")
    return [data, kernel, out]


def pool(kind: str, *arguments: Any) -> Tensors:
    """Return ``pool_layer(kind, N, C, H, W, KH, KW, stride, padding)``."""
    n, c, h, w, kh, kw, stride, padding = arguments
    (data,) = _inputs((n, c, h, w))
    pads = get_pad_tuple(padding, (kh, kw))
    strides = [stride, stride] if isinstance(stride, int) else stride
    return [data, topi.nn.pool2d(data, [kh, kw], strides, [1, 1], pads, kind)]


def matmul(batch: int, i: int, o: int) -> Tensors:
    """Return ``matmul_layer(batch, I, O)``."""
    a, b = _inputs((batch, i), (i, o))
    return [a, b, _matmul(a, b)]


def batch_matmul(batch: int, c: int, m: int, k: int, n: int) -> Tensors:
    """Return ``batch_matmul_layer(batch, C, M, K, N)``."""
    a, b = _inputs((batch * c, m, k), (batch * c, k, n))
    return [a, b, topi.nn.batch_matmul(a, b, transpose_a=False, transpose_b=False)]


def reduction(shape: list[int], axis: Any, keepdims: bool) -> Tensors:
    """Return ``reduction_layer(shape, axis, keepdims)``: a sum."""
    (data,) = _inputs(shape)
    return [data, topi.sum(data, axis, keepdims)]


def relu(*shape: int) -> Tensors:
    """Return ``relu_layer(N, C, H, W)``."""
    (data,) = _inputs(shape)
    return [data, topi.nn.relu(data)]
