"""Exported PyTorch programs, read by TVM's frontend.

Operators that it converts wrongly are converted here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import add, eq, ge, gt, le, lt, mul, ne, sub, truediv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tvm
from tvm import relax

from ..compat import constant_value, relax_type
from ..modules import constant_of, scalar_like
from .resizing import Method, taps, weighted_sum

__all__ = ["read_torch"]


def read_torch(torch: Any, path: Path) -> Any:
    """Return a program of ``torch.export.save`` as a Relax program whose parameters are constants.

    Parameters
    ----------
    torch : module
        PyTorch, which TVM's frontend imports, too.
    path : Path
        The file.

    Raises
    ------
    Exception
        PyTorch or TVM cannot read the file; they may raise any class.
    """
    from tvm.relax.frontend.torch import from_exported_program

    program = torch.export.load(str(path))
    return from_exported_program(program, custom_convert_map=_CONVERTERS)


def _filled(values: Sequence[Any], *defaults: Any) -> list[Any]:
    """Return arguments of an operator, with defaults for those that are not given."""
    return [*values, *defaults[len(values) :]]


def _elu(node: Any, importer: Any) -> Any:
    """Return an ELU with its scales, as SELU has them; TVM's frontend leaves them out.

    Source: PyTorch's ``elu(input, alpha, scale, input_scale)``.
    """
    x, *numbers = importer.retrieve_args(node)
    alpha, scale, input_scale = _filled(numbers, 1.0, 1.0, 1.0)
    emit, op = importer.block_builder.emit, relax.op
    negative = emit(op.minimum(x, scalar_like(0.0, x)))
    power = emit(op.exp(emit(op.multiply(negative, scalar_like(input_scale, x)))))
    lower = emit(op.multiply(emit(op.subtract(power, scalar_like(1.0, x))), scalar_like(alpha, x)))
    total = emit(op.add(emit(op.nn.relu(x)), lower))
    return emit(op.multiply(total, scalar_like(scale, x))) if scale != 1 else total


def _grid_sample(node: Any, importer: Any) -> Any:
    """Return a sampling at the points of a grid; in TVM their coordinates are an axis before."""
    x, grid, *numbers = importer.retrieve_args(node)
    method, padding, align_corners = _filled(numbers, 0, 0, 0)
    emit = importer.block_builder.emit
    sampled = relax.op.image.grid_sample(
        x,
        emit(relax.op.permute_dims(grid, [0, 3, 1, 2])),
        method=("bilinear", "nearest", "bicubic")[method],
        padding_mode=("zeros", "border", "reflection")[padding],
        align_corners=bool(align_corners),
    )
    return emit(sampled)


def _cumulated(name: str) -> Callable[[Any, Any], Any]:
    """Return the conversion of an operator whose results of integers are int64.

    So are PyTorch's, where no dtype is given; TVM keeps that of the input, truth values too.
    """

    def convert(node: Any, importer: Any) -> Any:
        x, axis = importer.retrieve_args(node)[:2]
        if node.kwargs.get("dtype") is not None or _category(x) == _FLOAT:
            return getattr(importer, f"_{name}")(node)
        emit = importer.block_builder.emit
        return emit(getattr(relax.op, name)(_as_type(emit, x, "int64"), axis))

    return convert


def _resized(name: str, method: Method) -> Callable[[Any, Any], Any]:
    """Return the conversion of an interpolation, in which the given scales place the pixels.

    TVM takes the ratio of the sizes, rounds to the nearest pixel otherwise, and knows no
    antialiasing. Source: PyTorch's ``UpSample.h`` and ``UpSampleKernel.cpp``.
    """

    def convert(node: Any, importer: Any) -> Any:
        x, size, *rest = importer.retrieve_args(node)
        align_corners = bool(rest.pop(0)) if method.mode != "nearest" else False
        # The forms `vec` have a list of scales, the others a scale for each axis.
        given = rest[0] if rest and isinstance(rest[0], list | tuple) else rest
        scales = [float(scale) for scale in given or [] if scale is not None]
        sizes = _sizes(x)[2:]
        before = [n for n in sizes if n is not None]
        is_known = len(before) == len(sizes)
        if is_known and not scales:
            scales = [m / n for n, m in zip(before, size, strict=True)]
        whole = bool(scales) and all(scale == round(scale) for scale in scales)
        by_size = method.mode != "nearest" and (size or align_corners)
        if not method.antialias and (whole or by_size):
            return getattr(importer, f"_{name}")(node)
        if not is_known:
            raise ValueError(f"{name}: the size of the image is no number")
        if align_corners and method.antialias:
            raise ValueError(f"{name}: antialiasing with aligned corners is not computed")
        after = size or [int(n * s) for n, s in zip(before, scales, strict=True)]
        for axis, (n, m, scale) in enumerate(zip(before, after, scales, strict=True), 2):
            x = _weighted(importer.block_builder.emit, x, axis, taps(n, m, scale, method))
        return x

    return convert


def _weighted(emit: Callable[[Any], Any], x: Any, axis: int, weighted: tuple[Any, Any]) -> Any:
    """Return sums of elements of an axis, with weights."""
    kind, op = relax_type(x), relax.op
    dtype = str(kind.dtype)
    return weighted_sum(
        weighted,
        kind.ndim - axis - 1,
        lambda chosen: emit(op.take(x, constant_of(chosen), axis)),
        lambda part, weight: emit(op.multiply(part, constant_of(weight.astype(dtype)))),
        lambda total, part: emit(op.add(total, part)),
    )


def _average_pool(rank: int) -> Callable[[Any, Any], Any]:
    """Return the conversion of an average pool, whose divisor TVM's frontend ignores."""

    def convert(node: Any, importer: Any) -> Any:
        x, kernel, *rest = importer.retrieve_args(node)
        stride, padding, ceil_mode, _, divisor = _filled(rest, None, 0, False, True, None)
        if divisor is None:
            return getattr(importer, f"_avg_pool{rank}d")(node)
        if ceil_mode or relax_type(x).ndim != rank + 2:
            raise ValueError("avg_pool: a divisor with ceil_mode or without batch is not computed")
        pool, emit = getattr(relax.op.nn, f"avg_pool{rank}d"), importer.block_builder.emit
        average = emit(pool(x, kernel, stride or kernel, padding, count_include_pad=True))
        kernel = [kernel] if isinstance(kernel, int) else [*kernel]
        area = prod(kernel) if len(kernel) > 1 else kernel[0] ** rank
        return emit(relax.op.multiply(average, scalar_like(area / divisor, x)))

    return convert


def _any(node: Any, importer: Any) -> Any:
    """Return whether a number is not zero; TVM's frontend returns the largest one."""
    x, *rest = importer.retrieve_args(node)
    axes, keepdims = _filled(rest, None, False)
    emit, op = importer.block_builder.emit, relax.op
    if _category(x) != _BOOL:
        x = emit(op.not_equal(x, scalar_like(0, x)))
    largest = emit(op.max(emit(op.astype(x, "int8")), axes, bool(keepdims)))
    return emit(op.astype(largest, "bool"))


def _binary(name: str, intrinsic: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the conversion of an operator of two numbers, which have PyTorch's common type.

    TVM's frontend makes a number of Python one of the tensor's dtype, rounds quotients of integers
    down, and ignores the factor `alpha`.
    """

    def convert(node: Any, importer: Any) -> Any:
        operator, emit = getattr(relax.op, name), importer.block_builder.emit
        x, y = importer.retrieve_args(node)[:2]
        y = _times(emit, y, node.kwargs.get("alpha", 1))
        tensors = [_category(value) for value in (x, y) if _is_tensor(value)]
        known = all(isinstance(value, int | float) or _is_tensor(value) for value in (x, y))
        common = (_FLOAT if name == "divide" else max(map(_category, (x, y)))) if known else None
        if not tensors or common in (None, max(tensors)):
            return importer._binary_op(operator, intrinsic)(SimpleNamespace(args=(x, y), kwargs={}))
        return emit(operator(*(_as_type(emit, value, _DEFAULTS[common]) for value in (x, y))))

    return convert


def _times(emit: Callable[[Any], Any], value: Any, factor: Any) -> Any:
    """Return the product of a tensor or a number and a number."""
    if factor == 1 or not _is_tensor(value):
        return value if factor == 1 else value * factor
    if _category(factor) > _category(value):
        value = emit(relax.op.astype(value, _DEFAULTS[_category(factor)]))
    return emit(relax.op.multiply(value, scalar_like(factor, value)))


def _as_type(emit: Callable[[Any], Any], value: Any, dtype: str) -> Any:
    """Return a tensor or a number as a tensor of a type."""
    if not _is_tensor(value):
        return relax.const(value, dtype)
    return value if str(relax_type(value).dtype) == dtype else emit(relax.op.astype(value, dtype))


#: Categories of numbers in PyTorch, whose larger one is that of a result, and their dtypes.
_BOOL, _INTEGER, _FLOAT = range(3)
_DEFAULTS = ["bool", "int64", "float32"]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, relax.Expr) and hasattr(relax_type(value), "ndim")


def _sizes(x: Any) -> list[int | None]:
    """Return the size of each axis; None where it is a symbol."""
    return [
        int(size) if isinstance(size, tvm.tirx.IntImm) else None for size in relax_type(x).shape
    ]


def _category(value: Any) -> int:
    """Return the category of a tensor or a number."""
    kind = str(relax_type(value).dtype) if _is_tensor(value) else type(value).__name__
    return _BOOL if kind == "bool" else _INTEGER if kind.startswith(("int", "uint")) else _FLOAT


def _subtracted_from(node: Any, importer: Any) -> Any:
    """Return a number less a tensor."""
    x, y = importer.retrieve_args(node)[:2]
    swapped = SimpleNamespace(args=(y, x), kwargs={})
    if node.kwargs.get("alpha", 1) != 1 or len(node.args) > 2:
        raise ValueError("rsub: a factor is not computed")
    return _binary("subtract", sub)(swapped, importer)


def _indexed(node: Any, importer: Any) -> Any:
    """Return elements by indices, of which those below zero count from the end.

    TVM reads before the tensor for them, unless they are constants.
    """
    x, indices = importer.retrieve_args(node)[:2]
    emit, indices = importer.block_builder.emit, list(indices)
    for axis, index in enumerate(indices):
        if index is not None and constant_value(index) is None and _category(index) == _INTEGER:
            indices[axis] = _from_start(emit, index, x, axis)
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if len(axes) < 2 or len(axes) == len(indices):
        return importer._index_tensor(SimpleNamespace(args=(x, indices), kwargs={}))
    # Indices of several axes belong together. TVM's frontend takes each with each of the others.
    chosen = [indices[axis] for axis in axes]
    rest = [axis for axis in range(relax_type(x).ndim) if axis not in axes]
    found = emit(relax.op.index_tensor(emit(relax.op.permute_dims(x, axes + rest)), chosen))
    rank = max(relax_type(index).ndim for index in chosen)
    # The new axes stand where adjacent ones were, else first.
    before = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    places = [*range(rank, rank + len(rest))]
    order = [*places[:before], *range(rank), *places[before:]]
    return emit(relax.op.permute_dims(found, order))


def _from_start(emit: Callable[[Any], Any], index: Any, x: Any, axis: int) -> Any:
    """Return an index of an axis of a tensor that counts from the first element."""
    op, size = relax.op, _sizes(x)[axis]
    if size is not None:
        extent = scalar_like(size, index)
    else:
        sizes = emit(op.shape_to_tensor(emit(op.shape_of(x))))
        extent = emit(op.take(sizes, relax.const(axis, "int64"), 0))
        extent = _as_type(emit, extent, str(relax_type(index).dtype))
    below = emit(op.less(index, scalar_like(0, index)))
    return emit(op.where(below, emit(op.add(index, extent)), index))


def _divided(node: Any, importer: Any) -> Any:
    """Return a rounded quotient; TVM's frontend refuses integers, and rounds none of them."""
    x, y, *rest = importer.retrieve_args(node)
    mode = _filled(rest, node.kwargs.get("rounding_mode", "floor"))[0]
    values, emit = (x, y), importer.block_builder.emit
    if mode is None:
        return _binary("divide", truediv)(SimpleNamespace(args=values, kwargs={}), importer)
    common = max(map(_category, values))
    kinds = {str(relax_type(value).dtype) for value in values if _is_tensor(value)}
    kinds = {kind for kind in kinds if kind.startswith(("int", "uint")) == (common == _INTEGER)}
    dtype = kinds.pop() if len(kinds) == 1 and common != _BOOL else _DEFAULTS[common]
    x, y = (_as_type(emit, value, dtype) for value in values)
    if mode == "floor":
        return emit(relax.op.floor_divide(x, y))
    if common == _FLOAT:
        return emit(relax.op.trunc(emit(relax.op.divide(x, y))))
    quotient = emit(relax.op.divide(*(_as_type(emit, each, "float64") for each in (x, y))))
    return _as_type(emit, emit(relax.op.trunc(quotient)), dtype)


def _clamp(node: Any, importer: Any) -> Any:
    """Return numbers within bounds; TVM's frontend gives integers the bound infinity."""
    x, *rest = importer.retrieve_args(node)
    low, high = _filled(rest, node.kwargs.get("min"), node.kwargs.get("max"))
    bounds = [bound for bound in (low, high) if bound is not None]
    emit = importer.block_builder.emit
    if _category(x) != _INTEGER or not all(isinstance(bound, int) for bound in bounds):
        if any(isinstance(bound, float) for bound in bounds) and _category(x) == _INTEGER:
            x = _as_type(emit, x, _DEFAULTS[_FLOAT])
        return importer._clamp(SimpleNamespace(args=(x, low, high), kwargs={}))
    for bound, operator in ((low, relax.op.maximum), (high, relax.op.minimum)):
        if bound is not None:
            x = emit(operator(x, scalar_like(bound, x)))
    return x


def _reduced(name: str) -> Callable[[Any, Any], Any]:
    """Return the conversion of a reduction that TVM's frontend lacks."""

    def convert(node: Any, importer: Any) -> Any:
        x, *rest = importer.retrieve_args(node)
        axes, keepdims = _filled(rest, [], False)
        axes = axes if isinstance(axes, int) else [*axes] or None
        if node.kwargs.get("dtype") is not None:
            raise ValueError(f"{name}: another type of the result is not computed")
        if name == "prod" and _category(x) != _FLOAT:
            x = _as_type(importer.block_builder.emit, x, "int64")
        return importer.block_builder.emit(getattr(relax.op, name)(x, axes, bool(keepdims)))

    return convert


def _without_indices(name: str) -> Callable[[Any, Any], Any]:
    """Return the conversion of a pool with indices, for which TVM's frontend returns zeros."""

    def convert(node: Any, importer: Any) -> Any:
        if any(item.args[1] == 1 and item.users for item in node.users):
            raise ValueError(f"{name}: indices of maxima are not computed")
        return getattr(importer, f"_{name}")(node)

    return convert


def _batch_norm(node: Any, importer: Any) -> Any:
    """Return a batch norm of inference; TVM's frontend takes one of training for it."""
    if node.args[5]:
        raise ValueError("batch_norm: training is not computed; export the model after eval()")
    return importer._batch_norm_legit_functional(node)


#: Operators of two numbers, by the names of PyTorch.
_BINARY = {
    "add": ("add", add),
    "div": ("divide", truediv),
    "eq": ("equal", eq),
    "ge": ("greater_equal", ge),
    "gt": ("greater", gt),
    "le": ("less_equal", le),
    "lt": ("less", lt),
    "mul": ("multiply", mul),
    "ne": ("not_equal", ne),
    "sub": ("subtract", sub),
}

#: Conversions by the names of PyTorch's operators.
_CONVERTERS = {
    "_native_batch_norm_legit_functional.default": _batch_norm,
    "amax.default": _reduced("max"),
    "amin.default": _reduced("min"),
    "_upsample_bicubic2d_aa.default": _resized(
        "upsample_bicubic2d_aa", Method("cubic", cubic=-0.5, antialias=True, exclude_outside=True)
    ),
    "_upsample_bilinear2d_aa.default": _resized(
        "upsample_bilinear2d_aa", Method("linear", antialias=True, exclude_outside=True)
    ),
    "any.default": _any,
    "any.dim": _any,
    "any.dims": _any,
    "avg_pool2d.default": _average_pool(2),
    "avg_pool3d.default": _average_pool(3),
    "clamp.default": _clamp,
    "cumprod.default": _cumulated("cumprod"),
    "cumsum.default": _cumulated("cumsum"),
    "div.Tensor_mode": _divided,
    "elu.default": _elu,
    "floor_divide.default": _divided,
    "grid_sampler_2d.default": _grid_sample,
    "index.Tensor": _indexed,
    "max_pool2d_with_indices.default": _without_indices("max_pool2d_with_indices"),
    "max_pool3d_with_indices.default": _without_indices("max_pool3d_with_indices"),
    "prod.dim_int": _reduced("prod"),
    "rsub.Scalar": _subtracted_from,
    "upsample_bicubic2d.vec": _resized("upsample_bicubic2d", Method("cubic")),
    "upsample_bilinear2d.vec": _resized("upsample_bilinear2d", Method("linear")),
    "upsample_nearest2d.vec": _resized(
        "upsample_nearest2d", Method("nearest", "inverse", nearest="floor")
    ),
    **{
        f"{name}.{form}": _binary(*operator)
        for name, operator in _BINARY.items()
        for form in ("Scalar", "Tensor")
    },
}
