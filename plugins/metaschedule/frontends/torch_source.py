"""Exported PyTorch programs, read by TVM's frontend.

Operators that it converts wrongly are converted here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm import relax

from ..compat import relax_type
from ..modules import scalar_like

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


def _elu(node: Any, importer: Any) -> Any:
    """Return an ELU with its scales, as SELU has them; TVM's frontend leaves them out.

    Source: PyTorch's ``elu(input, alpha, scale, input_scale)``.
    """
    x, *numbers = importer.retrieve_args(node)
    alpha, scale, input_scale = [*numbers, 1.0, 1.0, 1.0][:3]
    emit, op = importer.block_builder.emit, relax.op
    negative = emit(op.minimum(x, scalar_like(0.0, x)))
    power = emit(op.exp(emit(op.multiply(negative, scalar_like(input_scale, x)))))
    lower = emit(op.multiply(emit(op.subtract(power, scalar_like(1.0, x))), scalar_like(alpha, x)))
    total = emit(op.add(emit(op.nn.relu(x)), lower))
    return emit(op.multiply(total, scalar_like(scale, x))) if scale != 1 else total


def _grid_sample(node: Any, importer: Any) -> Any:
    """Return a sampling at the points of a grid; in TVM their coordinates are an axis before."""
    x, grid, *numbers = importer.retrieve_args(node)
    method, padding, align_corners = [*numbers, 0, 0, 0][:3]
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
        kind = str(relax_type(x).dtype)
        if node.kwargs.get("dtype") is not None or not kind.startswith(("bool", "int", "uint")):
            return getattr(importer, f"_{name}")(node)
        emit = importer.block_builder.emit
        return emit(getattr(relax.op, name)(emit(relax.op.astype(x, "int64")), axis))

    return convert


#: Conversions by the names of PyTorch's operators.
_CONVERTERS = {
    "cumprod.default": _cumulated("cumprod"),
    "cumsum.default": _cumulated("cumsum"),
    "elu.default": _elu,
    "grid_sampler_2d.default": _grid_sample,
}
