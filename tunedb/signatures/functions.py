"""Functions of TVM's tutorials and of public logs, which their authors registered by name.

A log holds the name and the arguments only, so these are the definitions under which the public
logs replay. They say the arguments' shapes; data types only where the key names one. A name is no
proof: the nnfusion logs have ``conv2d_layer`` with and without an addition behind it, under one
key. Operations are those of the anchor operator alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from .graphs import MAX_DIMENSIONS, Tensor, Unreadable, dimension, name
from .operations import convolved

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """Arguments, inputs before outputs, and operations of one run."""

    arguments: tuple[Tensor, ...]
    operations: int


def shape_of(value: Any) -> Shape:
    """Return a shape given as a list of dimensions, or raise Unreadable."""
    if type(value) is not list or len(value) > MAX_DIMENSIONS:
        raise Unreadable("no shape")
    return tuple(dimension(item) for item in value)


def describe(function: str, args: list[Any]) -> Described:
    """Return what a registered function computes.

    Parameters
    ----------
    function : str
        Its name; what stands before the last dot or slash (``tutorial/``) says nothing.
    args : list
        Its arguments as JSON values.

    Raises
    ------
    Unreadable
        It is none of those known here, its arguments are others, or too large to be real.
    """
    short = function.replace("/", ".").rpartition(".")[2]
    known = _FUNCTIONS.get(short)
    if known is None or len(args) != known[0]:
        raise Unreadable("no known function")
    described = known[1](args)
    for _, shape in described.arguments:
        for extent in shape:
            dimension(extent)
    return described


def _untyped(*shapes: Shape) -> tuple[Tensor, ...]:
    return tuple((None, shape) for shape in shapes)


def _conv2d_layer(args: list[Any]) -> Described:
    """Tell nnfusion's function, whose padding is a word, from that of TVM's tutorial."""
    if type(args[8]) is str:
        n, ci, h, w, co, kh, kw = shape_of(args[:7])
        with_bias = False
    elif type(args[7]) is list and type(args[8]) is list:
        n, h, w, co, ci, kh, kw = shape_of(args[:7])
        with_bias = True
    else:
        raise Unreadable("neither of the two")
    output = (n, co, *convolved((h, w), (kh, kw), args[7], args[8]))
    inputs = [(n, ci, h, w), (co, ci, kh, kw)] + [(1, co, 1, 1)] * with_bias
    return Described(_untyped(*inputs, output), 2 * prod(output) * ci * kh * kw)


def _conv2d_template(args: list[Any]) -> Described:
    """``conv2d_no_batching(N, H, W, CO, CI, KH, KW, stride, padding)`` of AutoTVM's tutorial."""
    n, h, w, co, ci, kh, kw = shape_of(args[:7])
    output = (n, co, *convolved((h, w), (kh, kw), args[7], args[8]))
    arguments = _untyped((n, ci, h, w), (co, ci, kh, kw), output)
    return Described(arguments, 2 * prod(output) * ci * kh * kw)


def _depthwise_conv2d_layer(args: list[Any]) -> Described:
    n, c, h, w, kh, kw = shape_of(args[:6])
    output = (n, c, *convolved((h, w), (kh, kw), args[6], args[7]))
    return Described(_untyped((n, c, h, w), (c, 1, kh, kw), output), 2 * prod(output) * kh * kw)


def _pool_layer(args: list[Any]) -> Described:
    """``pool_layer(kind, n, c, h, w, kh, kw, stride, padding)``: one operation per element."""
    n, c, h, w, kh, kw = shape_of(args[1:7])
    output = (n, c, *convolved((h, w), (kh, kw), args[7], args[8]))
    return Described(_untyped((n, c, h, w), output), prod(output) * kh * kw)


def _matmul_layer(args: list[Any]) -> Described:
    batch, i, o = shape_of(args)
    return Described(_untyped((batch, i), (i, o), (batch, o)), 2 * batch * i * o)


def _matmul_add(args: list[Any]) -> Described:
    """``matmul_add(N, L, M, dtype)``: ``A[n, l] * B[l, m] + C[n, m]``."""
    n, k, m = shape_of(args[:3])
    dtype = name(args[3])
    shapes = ((n, k), (k, m), (n, m), (n, m))
    return Described(tuple((dtype, shape) for shape in shapes), 2 * n * k * m)


def _matmul(args: list[Any]) -> Described:
    """``matmul(N, L, M, dtype)`` of AutoTVM's tutorial."""
    described = _matmul_add(args)
    a, b, _, c = described.arguments
    return Described((a, b, c), described.operations)


def _batch_matmul_layer(args: list[Any]) -> Described:
    batch, channels, m, k, n = shape_of(args)
    b = batch * channels
    return Described(_untyped((b, m, k), (b, k, n), (b, m, n)), 2 * b * m * k * n)


def _reduction_layer(args: list[Any]) -> Described:
    """``reduction_layer(shape, axis, keepdims)``: one operation per input element."""
    shape = shape_of(args[0])
    axes = {dimension(axis) for axis in (args[1] if type(args[1]) is list else [args[1]])}
    if not axes or max(axes) >= len(shape) or type(args[2]) is not bool:
        raise Unreadable("no axes of this shape")
    kept = [(1 if axis in axes else size) for axis, size in enumerate(shape)]
    left = [size for axis, size in enumerate(shape) if axis not in axes]
    return Described(_untyped(shape, tuple(kept if args[2] else left)), prod(shape))


def _relu_layer(args: list[Any]) -> Described:
    shape = shape_of(args)
    return Described(_untyped(shape, shape), prod(shape))


def _sparse_dense(args: list[Any]) -> Described:
    """``sparse_dense(M, N, K, w_data, w_indices, w_indptr, dtype)`` of TVM's tutorial.

    The weights are blocks of a sparse matrix; a bias and a ReLU follow.
    """
    m, n, k = shape_of(args[:3])
    data, indices, indptr = (shape_of(args[i]) for i in (3, 4, 5))
    dtype = name(args[6])
    inputs = [(dtype, (m, k)), (dtype, data), ("int32", indices), ("int32", indptr)]
    return Described((*inputs, (dtype, (m, n)), (dtype, (m, n))), 2 * m * prod(data))


#: By name: the number of arguments, and what tells the rest.
_FUNCTIONS: dict[str, tuple[int, Callable[[list[Any]], Described]]] = {
    "batch_matmul_layer": (5, _batch_matmul_layer),
    "conv2d": (9, _conv2d_template),
    "conv2d_layer": (9, _conv2d_layer),
    "conv2d_no_batching": (9, _conv2d_template),
    "depthwise_conv2d_layer": (8, _depthwise_conv2d_layer),
    "matmul": (4, _matmul),
    "matmul_add": (4, _matmul_add),
    "matmul_layer": (3, _matmul_layer),
    "pool_layer": (9, _pool_layer),
    "reduction_layer": (3, _reduction_layer),
    "relu_layer": (4, _relu_layer),
    "sparse_dense": (7, _sparse_dense),
}
