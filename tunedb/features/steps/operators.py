"""Axes and accesses of operators whose workload is a key: a name and shapes instead of a module.

The axes are named by letters: ``n`` batch, ``c`` output channels, ``h`` and ``w`` the output's
place, ``r`` input channels, ``y`` and ``x`` the kernel's place; ``b``, ``i``, ``j`` and ``k`` for
products of matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

from ...records import Signature
from .schedule import REDUCTION, SPATIAL

Shape = tuple[int, ...]

#: The axes of a tensor's dimension, with the stride of each.
Dimension = tuple[tuple[str, int], ...]

_REDUCED = frozenset("ryxk")


@dataclass(frozen=True, slots=True)
class AnchorOperator:
    """An operator without its extents.

    Parameters
    ----------
    letters : str
        Its axes in the order of the loops.
    accesses : tuple of (bool, tuple of Dimension)
        For each tensor whether the operator writes it, and its dimensions.
    """

    letters: str
    accesses: tuple[tuple[bool, tuple[Dimension, ...]], ...]

    @staticmethod
    def kind(letter: str) -> str:
        """Return the kind of an axis."""
        return REDUCTION if letter in _REDUCED else SPATIAL


#: An operator, and the extents of its axes by their letters.
Sized = tuple[AnchorOperator, dict[str, int]]


def operator_of(signature: Signature, family: str | None) -> Sized | None:
    """Return the operator of a key with its extents; None if it is unknown.

    Parameters
    ----------
    signature : Signature
        Its arguments: data and kernel, or two matrices; then others.
    family : str or None
        Family without the number of dimensions.
    """
    shapes = [shape for _, shape in signature.arguments or ()]
    if len(shapes) < 2 or not all(all(shape) for shape in shapes[:2]):
        return None
    data, kernel = shapes[:2]
    if family == "matmul" and len(data) == len(kernel) == 2:
        return _matmul(data, kernel)
    if family == "batch_matmul" and len(data) == len(kernel) == 3:
        return _batch_matmul(data, kernel)
    if family in ("conv", "conv_winograd", "depthwise_conv") and len(data) == len(kernel) == 4:
        return _convolution(data, kernel, signature.flops, is_depthwise=family.startswith("dep"))
    return None


def _at(*axes: tuple[str, int] | str) -> Dimension:
    return tuple((axis, 1) if isinstance(axis, str) else axis for axis in axes)


def _matmul(a: Shape, b: Shape) -> Sized | None:
    """``A[i, k] * B[k, j]``, or ``B[j, k]`` as in topi's dense."""
    if b[0] == a[1]:
        j, of_b = b[1], (_at("k"), _at("j"))
    elif b[1] == a[1]:
        j, of_b = b[0], (_at("j"), _at("k"))
    else:
        return None
    accesses = ((True, (_at("i"), _at("j"))), (False, (_at("i"), _at("k"))), (False, of_b))
    return AnchorOperator("ijk", accesses), {"i": a[0], "j": j, "k": a[1]}


def _batch_matmul(a: Shape, b: Shape) -> Sized | None:
    plain = _matmul(a[1:], b[1:])
    if plain is None:
        return None
    operator, extents = plain
    accesses = tuple((is_write, (_at("b"), *dims)) for is_write, dims in operator.accesses)
    return AnchorOperator("bijk", accesses), {"b": max(a[0], b[0]), **extents}


def _convolution(
    data: Shape, kernel: Shape, flops: float | None, *, is_depthwise: bool
) -> Sized | None:
    """Return a convolution over NCHW and OIHW, or NHWC and HWIO.

    The number of the output's places follows from the operations, their height and width from the
    input.
    """
    by_channels = kernel[2] <= data[2] and kernel[3] <= data[3]
    if is_depthwise:
        is_nchw = kernel[0] == data[1] or kernel[1] == data[1]
    else:
        is_nchw = kernel[1] == data[1] and by_channels
    if is_nchw:
        (n, r, height, width), (c, _, y, x) = data, kernel
    elif kernel[2] == data[3]:
        (n, height, width, r), (y, x, _, c) = data, kernel
    else:
        return None
    if is_depthwise:
        c, r = max(prod(kernel) // (y * x), 1), 1
    work = 2.0 * n * c * r * y * x
    places = height * width if not flops else flops / work
    h = max(round(sqrt(places * height / width)), 1)
    w = max(round(places / h), 1)
    by = max(round(height / h), 1)
    extents = {"n": n, "c": c, "h": h, "w": w, "r": r, "y": y, "x": x}
    channel = _at("c") if is_depthwise else _at("r")
    rows, columns = _at(("h", by), "y"), _at(("w", by), "x")
    of_kernel: tuple[Dimension, ...]
    if is_nchw:
        output: tuple[Dimension, ...] = (_at("n"), _at("c"), _at("h"), _at("w"))
        of_data, of_kernel = (
            (_at("n"), channel, rows, columns),
            (_at("c"), _at("r"), _at("y"), _at("x")),
        )
        order = "nchwryx"
    else:
        output = (_at("n"), _at("h"), _at("w"), _at("c"))
        of_data, of_kernel = (
            (_at("n"), rows, columns, channel),
            (_at("y"), _at("x"), _at("r"), _at("c")),
        )
        order = "nhwcyxr"
    if is_depthwise:
        order = order.replace("r", "")
        of_kernel = tuple(dim for dim in of_kernel if dim != _at("r"))
    accesses = ((True, output), (False, of_data), (False, of_kernel))
    return AnchorOperator(order, accesses), {letter: extents[letter] for letter in order}
