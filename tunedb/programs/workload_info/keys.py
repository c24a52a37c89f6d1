"""Signatures from workload keys: auto_scheduler's, AutoTVM's and MetaSchedule's ``args_info``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from ...records import Signature
from .families import family_of_name
from .graphs import MAX_DIMENSIONS, Tensor, Unreadable, dimension, name

# ---- Arithmetic operations of operators from their shapes, by hand -------------------------------
#
# A multiply-add is two operations, of integers and floats. A convolution has the operations of the
# direct loop nest in TVM's ``topi.nn``, whatever algorithm the schedule uses: a Winograd one counts
# as the direct one (as in AutoTVM's ``add_flop``), products with padding count, and a transposed
# convolution counts its taps at every output.

#: Layouts of data and kernel by the word in a task's name. A letter that occurs twice is a split
#: dimension: ``NCHWc`` has C in two parts.
_LAYOUTS = {
    "ncw": ("NCW", "OIW"),
    "nwc": ("NWC", "WIO"),
    "nchw": ("NCHW", "OIHW"),
    "nhwc": ("NHWC", "HWIO"),
    "hwcn": ("HWCN", "HWIO"),
    "hwnc": ("HWNC", "HWOI"),
    "ncdhw": ("NCDHW", "OIDHW"),
    "ndhwc": ("NDHWC", "DHWIO"),
}

#: Layouts of packed tensors by the layout before packing and the number of dimensions.
_PACKED_DATA = {("NCHW", 5): "NCHWC", ("NCHW", 6): "NCHWNC", ("HWNC", 6): "HWNCNC"}
_PACKED_KERNEL = {
    ("OIHW", 6): "OIHWIO",
    ("OIHW", 7): "OIHWIOI",  # eight-bit: four input channels innermost
    ("HWOI", 6): "HWOIOI",
}


def padding_of(value: Any, kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Return the total padding of each spatial dimension, as topi's ``get_pad_tuple``.

    Parameters
    ----------
    value : int, list of int or str
        One number for all dimensions, for each dimension or for each side (first all fronts, then
        all backs), ``"SAME"`` or ``"VALID"``.
    kernel : tuple of int
        Spatial extents of the (dilated) kernel.

    Raises
    ------
    Unreadable
        `value` is none of these.
    """
    n = len(kernel)
    if value == "VALID":
        return (0,) * n
    if value == "SAME":
        return tuple(extent - 1 for extent in kernel)
    if type(value) is int:
        return (2 * dimension(value),) * n
    if type(value) is list and len(value) in (n, 2 * n):
        sides = [dimension(item) for item in value]
        backs = sides if len(value) == n else sides[n:]
        return tuple(front + back for front, back in zip(sides, backs, strict=False))
    raise Unreadable("no padding")


def steps_of(value: Any, n: int) -> tuple[int, ...]:
    """Return strides or dilations of `n` dimensions: one number for all, or one for each.

    Raises
    ------
    Unreadable
        `value` is neither, or a number is not positive.
    """
    values = value if type(value) is list else [value] * n
    steps = tuple(dimension(item) for item in values)
    if len(steps) != n or 0 in steps:
        raise Unreadable("no strides")
    return steps


def convolved(
    spatial: tuple[int, ...], kernel: tuple[int, ...], strides: Any, padding: Any, dilation: Any = 1
) -> tuple[int, ...]:
    """Return the spatial extents of the output of a convolution or a pooling.

    Parameters
    ----------
    spatial, kernel : tuple of int
        Spatial extents of the input and of the kernel.
    strides, dilation : int or list of int
        As :func:`steps_of`.
    padding : int, list of int or str
        As :func:`padding_of`.

    Raises
    ------
    Unreadable
        The kernel does not fit.
    """
    n = len(spatial)
    steps, gaps = steps_of(strides, n), steps_of(dilation, n)
    dilated = tuple((k - 1) * gap + 1 for k, gap in zip(kernel, gaps, strict=True))
    padded = zip(spatial, padding_of(padding, dilated), dilated, steps, strict=True)
    extents = tuple((size + pad - k) // step + 1 for size, pad, k, step in padded)
    if any(extent < 1 for extent in extents):
        raise Unreadable("a kernel that does not fit")
    return extents


def transposed(
    spatial: tuple[int, ...], kernel: tuple[int, ...], strides: Any, padding: Any, more: Any = 0
) -> tuple[int, ...]:
    """Return the spatial extents of the output of a transposed convolution.

    ``more`` is the output padding, an integer or one for each dimension; the others are as in
    :func:`convolved`.

    Raises
    ------
    Unreadable
        The output is empty.
    """
    n = len(spatial)
    added = [dimension(item) for item in (more if type(more) is list else [more] * n)]
    if len(added) != n:
        raise Unreadable("no output padding")
    parts = zip(
        spatial, kernel, steps_of(strides, n), padding_of(padding, kernel), added, strict=True
    )
    extents = tuple((size - 1) * step + k - pad + out for size, k, step, pad, out in parts)
    if any(extent < 1 for extent in extents):
        raise Unreadable("an empty output")
    return extents


def layouts_of(word: str, data: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[str, str]:
    """Return the layouts of data and kernel, e.g. ``("NCHWC", "OIHWIO")``.

    Parameters
    ----------
    word : str
        The layout before packing, e.g. ``nchw``.
    data, kernel : tuple of int
        Shapes, packed or not.

    Raises
    ------
    Unreadable
        The layout is unknown.
    """
    plain = _LAYOUTS.get(word)
    if plain is None:
        raise Unreadable("no layout")
    n = len(plain[0])
    of_data = plain[0] if len(data) == n else _PACKED_DATA.get((plain[0], len(data)))
    of_kernel = plain[1] if len(kernel) == n else _PACKED_KERNEL.get((plain[1], len(kernel)))
    if of_data is None or of_kernel is None:
        raise Unreadable("no layout of these dimensions")
    if of_data.count("N") == 2 and of_kernel == "OIHWIO":
        of_kernel = "OIHWOI"  # VTA splits the batch, and its kernels the other way round
    return of_data, of_kernel


def extent_of(shape: tuple[int, ...], layout: str, letter: str) -> int:
    """Return the extent of one dimension of a layout, the product of its parts."""
    return prod(size for size, part in zip(shape, layout, strict=True) if part == letter)


def spatial_of(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the spatial extents of a shape: D, H and W if the layout has them."""
    return tuple(size for size, part in zip(shape, layout, strict=True) if part in "DHW")


def matmul_operations(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Return the operations of ``A[m, k] * B[n, k]``.

    `a` is ``(m, k)`` or packed ``(m/x, k/y, x, y)``, `b` ``(n, k)`` or packed in any way.

    Raises
    ------
    Unreadable
        The shapes do not fit.
    """
    if len(a) == 2:
        m, k = a
    elif len(a) == 4:
        m, k = a[0] * a[2], a[1] * a[3]
    else:
        raise Unreadable("no matrix")
    if k == 0 or prod(b) % k or (len(b) == 2 and k not in b):
        raise Unreadable("matrices that do not fit")
    return 2 * m * prod(b)


def batch_matmul_operations(a: tuple[int, ...], b: tuple[int, ...], transposed_a: bool) -> int:
    """Return the operations of a product of batches of matrices.

    Parameters
    ----------
    a : tuple of int
        ``(batch, m, k)``; ``(batch, k, m)`` if `transposed_a`.
    b : tuple of int
        ``(batch, n, k)`` or ``(batch, k, n)``. Either batch may be 1.

    Raises
    ------
    Unreadable
        The shapes do not fit.
    """
    if len(a) != 3 or len(b) != 3 or (1 not in (a[0], b[0]) and a[0] != b[0]):
        raise Unreadable("no batches")
    m, k = (a[2], a[1]) if transposed_a else (a[1], a[2])
    if k not in b[1:] or k == 0:
        raise Unreadable("matrices that do not fit")
    return 2 * max(a[0], b[0]) * m * (b[1] * b[2] // k) * k


# ---- Functions of TVM's tutorials and of public logs, which their authors registered by name -----
#
# A log holds only the name and the arguments; the public logs replay under these definitions. They
# give the arguments' shapes, and data types if the key names one. A name is no proof: the nnfusion
# logs have ``conv2d_layer`` with and without a following addition, under one key. Operations are
# those of the anchor operator alone.

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
    """Return arguments and operations of a registered function.

    Parameters
    ----------
    function : str
        Its name; a prefix up to the last dot or slash (``tutorial/``) is ignored.
    args : list
        Its arguments as JSON values.

    Raises
    ------
    Unreadable
        The function is unknown, or its arguments do not fit or are too large to be real.
    """
    short = function.replace("/", ".").rpartition(".")[2]
    known = _FUNCTIONS.get(short)
    if known is None or not known[0] <= len(args) <= known[1]:
        raise Unreadable("no known function")
    described = known[2](args)
    for _, shape in described.arguments:
        for extent in shape:
            dimension(extent)
    return described


def _untyped(*shapes: Shape) -> tuple[Tensor, ...]:
    return tuple((None, shape) for shape in shapes)


def _conv2d_layer(args: list[Any]) -> Described:
    """Describe nnfusion's function, whose padding is a word, or that of TVM's tutorial."""
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

    The weights are blocks of a sparse matrix, followed by a bias and a ReLU.
    """
    m, n, k = shape_of(args[:3])
    data, indices, indptr = (shape_of(args[i]) for i in (3, 4, 5))
    dtype = name(args[6])
    inputs = [(dtype, (m, k)), (dtype, data), ("int32", indices), ("int32", indptr)]
    return Described((*inputs, (dtype, (m, n)), (dtype, (m, n))), 2 * m * prod(data))


def _gemm(args: list[Any]) -> Described:
    """``gemm(M, N, K)``, whose second matrix is transposed; ``swish_gemm`` ends in a hard swish."""
    m, n, k = shape_of(args)
    return Described(_untyped((m, k), (n, k), (m, n)), 2 * m * n * k)


# ---- Operators of Ansor's paper, as in TVM's s_tir/meta_schedule/testing/te_workload.py ----------


def _completed(args: list[Any], *defaults: int) -> list[Any]:
    """Return the last arguments; the defaults of those that a log leaves out follow them."""
    return [*args, *defaults[len(args) :]]


def _matmul_relu(args: list[Any]) -> Described:
    """``matmul_relu(n, m, k)``; the order of three numbers of a ``matmul`` is anybody's guess."""
    n, m, k = shape_of(args)
    return Described(_untyped((n, k), (k, m), (n, m)), 2 * n * m * k)


def _batch_matmul_nkkm(args: list[Any]) -> Described:
    batch, n, m, k = shape_of(args)
    shapes = (batch, n, k), (batch, k, m), (batch, n, m)
    return Described(_untyped(*shapes), 2 * batch * n * m * k)


def _transpose_batch_matmul(args: list[Any]) -> Described:
    batch, length, heads, size = shape_of(args)
    given, output = (batch, length, heads, size), (batch, heads, length, length)
    return Described(_untyped(given, given, output), 2 * prod(output) * size)


def _channels_last(args: list[Any], n: int, *, vectors: int = 0) -> Described:
    """``conv(N, ..., CI, CO, kernel_size, stride, padding, dilation, groups)`` of `n` dimensions.

    With `vectors` it takes so many of the length of its channels, as the scale of a batch norm.
    """
    batch, *spatial, inputs, outputs, size = shape_of(args[: n + 4])
    stride, padding, dilation, groups = _completed(args[n + 4 :], 1, 0, 1, 1)
    parts, kernel = dimension(groups), (size,) * n
    if parts == 0 or inputs % parts or outputs % parts:
        raise Unreadable("no groups of these channels")
    places = convolved(tuple(spatial), kernel, stride, padding, dilation)
    output, weights = (batch, *places, outputs), (*kernel, inputs // parts, outputs)
    shapes = [(batch, *spatial, inputs), weights, *[(outputs,)] * vectors, output]
    return Described(_untyped(*shapes), 2 * prod(output) * prod(weights[:-1]))


def _depthwise_conv2d_nhwc(args: list[Any]) -> Described:
    """``depthwise_conv2d_nhwc(N, H, W, C, kernel_size, stride, padding, dilation)``."""
    n, h, w, c, size = shape_of(args[:5])
    stride, padding, dilation = _completed(args[5:], 1, 0, 1)
    output = (n, *convolved((h, w), (size, size), stride, padding, dilation), c)
    return Described(
        _untyped((n, h, w, c), (1, size, size, c), output), 2 * prod(output) * size * size
    )


def _conv2d_transpose_nhwc(args: list[Any]) -> Described:
    """``conv2d_transpose_nhwc(N, H, W, CI, CO, kernel_size, stride, padding)``."""
    n, h, w, ci, co, size = shape_of(args[:6])
    stride, padding = _completed(args[6:], 1, 0)
    weights = (size, size, ci, co)
    output = (n, *transposed((h, w), weights[:2], stride, padding), co)
    return Described(
        _untyped((n, h, w, ci), weights, output), 2 * prod(output) * prod(weights[:-1])
    )


def _conv2d_nchw(args: list[Any], *, vectors: int = 0) -> Described:
    """``conv2d_nchw(n, h, w, ci, co, kh, kw, stride, padding, dilation)``."""
    n, h, w, ci, co, kh, kw = shape_of(args[:7])
    output = (n, co, *convolved((h, w), (kh, kw), *args[7:]))
    shapes = [(n, ci, h, w), (co, ci, kh, kw), *[(co, 1, 1)] * vectors, output]
    return Described(_untyped(*shapes), 2 * prod(output) * ci * kh * kw)


def _conv2d_capsule_nhwijc(args: list[Any]) -> Described:
    """``conv2d_capsule_nhwijc(N, H, W, CI, CO, kernel_size, stride, padding, capsule_size)``."""
    n, h, w, ci, co, size = shape_of(args[:6])
    stride, padding, capsule = _completed(args[6:], 1, 0, 4)
    square = (dimension(capsule),) * 2
    output = (n, *convolved((h, w), (size, size), stride, padding), *square, co)
    shapes = (n, h, w, *square, ci), (size, size, *square, ci, co), output
    return Described(_untyped(*shapes), 2 * prod(output) * size * size * square[0] * ci)


def _softmax_mn(args: list[Any]) -> Described:
    """``softmax_mn(m, n)``: a maximum, a difference, a sum and a quotient; ``exp`` is a call."""
    shape = shape_of(args)
    return Described(_untyped(shape, shape), 4 * prod(shape))


def _norm_bmn(args: list[Any]) -> Described:
    """``norm_bmn(B, M, N)``: the root of a sum of squares."""
    b, m, n = shape_of(args)
    return Described(_untyped((b, m, n), (b,)), 2 * b * m * n)


#: Name → least and most arguments, and the function that describes them.
_FUNCTIONS: dict[str, tuple[int, int, Callable[[list[Any]], Described]]] = {
    "batch_matmul_layer": (5, 5, _batch_matmul_layer),
    "batch_matmul_nkkm": (4, 4, _batch_matmul_nkkm),
    "conv1d_nlc": (5, 9, partial(_channels_last, n=1)),
    "conv2d": (9, 9, _conv2d_template),
    "conv2d_capsule_nhwijc": (6, 9, _conv2d_capsule_nhwijc),
    "conv2d_layer": (9, 9, _conv2d_layer),
    "conv2d_nchw": (9, 10, _conv2d_nchw),
    "conv2d_nchw_bias_bn_relu": (9, 10, partial(_conv2d_nchw, vectors=3)),
    "conv2d_nhwc": (6, 10, partial(_channels_last, n=2)),
    "conv2d_nhwc_bn_relu": (8, 9, partial(_channels_last, n=2, vectors=3)),
    "conv2d_no_batching": (9, 9, _conv2d_template),
    "conv2d_transpose_nhwc": (6, 8, _conv2d_transpose_nhwc),
    "conv3d_ndhwc": (7, 11, partial(_channels_last, n=3)),
    "depthwise_conv2d_layer": (8, 8, _depthwise_conv2d_layer),
    "depthwise_conv2d_nhwc": (5, 8, _depthwise_conv2d_nhwc),
    "gemm": (3, 3, _gemm),
    "matmul": (4, 4, _matmul),
    "matmul_add": (4, 4, _matmul_add),
    "matmul_layer": (3, 3, _matmul_layer),
    "matmul_relu": (3, 3, _matmul_relu),
    "norm_bmn": (3, 3, _norm_bmn),
    "pool_layer": (9, 9, _pool_layer),
    "reduction_layer": (3, 3, _reduction_layer),
    "relu_layer": (4, 4, _relu_layer),
    "softmax_mn": (2, 2, _softmax_mn),
    "sparse_dense": (7, 7, _sparse_dense),
    "swish_gemm": (3, 3, _gemm),
    "transpose_batch_matmul": (4, 4, _transpose_batch_matmul),
}


# ---- Workload keys -------------------------------------------------------------------------------

#: Deepest lists among a task's arguments that may hold tensors.
_MAX_DEPTH = 4

_MD5 = re.compile(r"[0-9a-f]{32}")
_LAYOUT = re.compile(r"ncdhw|ndhwc|nchw|nhwc|hwcn|hwnc|ncw|nwc")

#: Words of AutoTVM tasks whose second tensor is not a kernel, or has a special form.
_OTHER_KERNELS = ("bitserial", "deformable", "quantized", "simd")

#: Tasks of TVM 0.4 that name channels and kernel size before the strides.
_LEGACY = ("topi_x86_", "topi_intel_graphics_")


def of_ansor(key: Any) -> Signature:
    """Return the signature of auto_scheduler's workload key, parsed.

    A hash of a compute DAG is not a name: ``[hash, shape, ...]`` gives the shapes, ``[hash, dim,
    ...]`` nothing, because flat dimensions do not show where a tensor ends.
    """
    if type(key) is not list or not key or type(key[0]) is not str:
        return Signature()
    head, args = key[0], key[1:]
    if not _MD5.fullmatch(head):
        return _of_registered(head, args)
    try:
        shapes = tuple((None, shape_of(item)) for item in args)
    except Unreadable:
        shapes = ()
    return Signature(arguments=shapes or None)


def of_autotvm(task: Any) -> Signature:
    """Return the signature of AutoTVM's ``[task name, args, kwargs]``.

    The arguments are the tensors that the task names: a template's inputs, without its output.
    """
    if type(task) is not list or len(task) < 2 or type(task[0]) is not str:
        return Signature()
    args = task[1] if type(task[1]) is list else []
    signature = _of_registered(task[0], args)
    if signature.flops is not None or signature.arguments is None:
        return signature
    try:
        operations = _task_operations(task[0].lower(), signature, args)
    except Unreadable:
        return signature
    return Signature(
        signature.function, signature.arguments, signature.family, as_flops(operations)
    )


def of_arguments(value: Any) -> Signature:
    """Return the signature of ``[index, args_info]``, which has the tensors alone."""
    if type(value) is not list or len(value) != 2 or type(value[1]) is not list:
        return Signature()
    try:
        tensors = tuple(_tensor(item, dtype=1, shape=2) for item in value[1])
    except Unreadable:
        return Signature()
    return Signature(arguments=tensors)


def as_flops(operations: int) -> float | None:
    """Return a count as a float; None if it is too large."""
    try:
        value = float(operations)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def _of_registered(function: str, args: list[Any]) -> Signature:
    """Return the signature of a function or task from its name and arguments."""
    try:
        label = name(function)
    except Unreadable:
        return Signature()
    family = family_of_name(label)
    try:
        known = describe(label, args)
    except Unreadable:
        return Signature(label, _tensors(args) or None, family)
    return Signature(label, known.arguments, family, as_flops(known.operations))


def _tensor(value: Any, *, dtype: int, shape: int) -> Tensor:
    """Return the tensor of a list that begins with ``TENSOR``; further items are ignored."""
    if type(value) is not list or len(value) < 3 or value[0] != "TENSOR":
        raise Unreadable("no tensor")
    return name(value[dtype]), shape_of(value[shape])


def _tensors(values: list[Any]) -> tuple[Tensor, ...]:
    """Return the tensors among arguments, also those in lists (``concatenate``).

    Return no tensors if one cannot be read: the others would have another meaning.
    """
    found: list[Tensor] = []

    def collect(items: list[Any], depth: int) -> None:
        for item in items:
            if type(item) is not list or not item:
                continue
            if item[0] == "TENSOR":
                found.append(_tensor(item, dtype=2, shape=1))
            elif depth:
                collect(item, depth - 1)

    try:
        collect(values, _MAX_DEPTH)
    except Unreadable:
        return ()
    return tuple(found)


def _task_operations(task: str, signature: Signature, args: list[Any]) -> int:
    """Return the operations of one of topi's AutoTVM tasks."""
    family, tensors = signature.family or "", signature.arguments or ()
    if len(tensors) < 2 or any(word in task for word in _OTHER_KERNELS):
        raise Unreadable("no known task")
    (_, data), (_, kernel) = tensors[:2]
    flags = [item for item in args if type(item) is bool]
    if family == "matmul":
        return matmul_operations(data[::-1] if flags[:1] == [True] else data, kernel)
    if family == "batch_matmul":
        return batch_matmul_operations(data, kernel, flags[:1] == [True])
    if "conv" in family:
        return _convolution_operations(task, family, data, kernel, args[2:])
    raise Unreadable("no known task")


def _convolution_operations(
    task: str, family: str, data: tuple[int, ...], kernel: tuple[int, ...], rest: list[Any]
) -> int:
    """Return the operations of a convolution: every kernel element at every output's place."""
    of_data, of_kernel = layouts_of(_layout_word(task, family, rest), data, kernel)
    if family.startswith("depthwise") and of_kernel == "HWIO":
        of_kernel = "HWOI"
    if family.endswith("_transpose") and of_kernel.startswith("OI") and len(of_kernel) < 6:
        of_kernel = "IO" + of_kernel[2:]
    channels = extent_of(data, of_data, "C")
    inputs, outputs = (extent_of(kernel, of_kernel, letter) for letter in "IO")
    if family.startswith("depthwise"):
        fits = outputs == channels
    elif family.startswith("group"):
        fits = inputs > 0 and channels % inputs == 0
    else:
        fits = inputs == channels
    if not fits:
        raise Unreadable("a kernel of other channels: transformed, or in another layout")
    spatial, taps = spatial_of(data, of_data), spatial_of(kernel, of_kernel)
    strides, padding, more = _steps(task, rest, taps)
    resize = transposed if family.endswith("_transpose") else convolved
    places = prod(resize(spatial, taps, strides, padding, more))
    return 2 * extent_of(data, of_data, "N") * places * prod(kernel)


def _layout_word(task: str, family: str, rest: list[Any]) -> str:
    """Return the layout in the task's name, or else in one of its arguments."""
    texts = [task, *(item.lower() for item in rest if type(item) is str)]
    found = next(filter(None, map(_LAYOUT.search, texts)), None)
    if found is None:
        if "packed" not in task:
            raise Unreadable("no layout")
        return "nchw"
    # The task "conv1d_transpose_nchw" has layout NCW.
    return found[0].replace("h", "") if "conv1d" in family else found[0]


def _steps(task: str, rest: list[Any], taps: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Return strides, padding, and dilation (output padding of a transposed convolution)."""
    if task.startswith(_LEGACY) and len(rest) > 1 and rest[1] == list(taps):
        lists = [item for item in rest[2:] if type(item) is list]
        if len(lists) == 3 and task == "topi_x86_conv2d":
            return lists[1], lists[2], lists[0]
        if len(lists) in (2, 3):
            return lists[0], lists[1], lists[2] if len(lists) == 3 else 1
    if len(rest) < 2:
        raise Unreadable("no strides and padding")
    if "transpose" in task:
        lists = [item for item in rest[2:] if type(item) is list]
        return rest[0], rest[1], lists[0] if lists else 0
    dilation = rest[2] if len(rest) > 2 and type(rest[2]) in (int, list) else 1
    return rest[0], rest[1], dilation
