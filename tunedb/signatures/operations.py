"""Arithmetic operations of operators from their shapes, by hand.

A multiply-add is two operations, of integers as of floats. Convolutions are counted as the direct
loop nest of TVM's ``topi.nn`` does them, whatever algorithm the schedule uses: so a Winograd
convolution counts as the direct one (as AutoTVM's own ``add_flop``), products with padding count,
and a transposed convolution counts its taps at every output.
"""

from __future__ import annotations

from math import prod
from typing import Any

from .graphs import Unreadable, dimension

#: Layouts of data and kernel by the word in a task's name. A letter that occurs twice stands for
#: a dimension that was split, so ``NCHWc`` has C in two parts.
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
    """Return how much padding each spatial dimension gets in all, as topi's ``get_pad_tuple``.

    Parameters
    ----------
    value : int, list of int or str
        One for all, one for each dimension, one for each side (first all fronts, then all
        backs), ``"SAME"`` or ``"VALID"``.
    kernel : tuple of int
        Spatial extents of the (dilated) kernel.

    Raises
    ------
    Unreadable
        It is none of these.
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
    """Return strides or dilations of `n` dimensions: one for all, or one for each.

    Raises
    ------
    Unreadable
        They are neither, or not positive.
    """
    values = value if type(value) is list else [value] * n
    steps = tuple(dimension(item) for item in values)
    if len(steps) != n or 0 in steps:
        raise Unreadable("no strides")
    return steps


def convolved(
    spatial: tuple[int, ...], kernel: tuple[int, ...], strides: Any, padding: Any, dilation: Any = 1
) -> tuple[int, ...]:
    """Return the output's spatial extents of a convolution or a pooling.

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
    """Return the output's spatial extents of a transposed convolution.

    ``more`` is the output padding, an integer or one for each dimension; the others are as in
    :func:`convolved`.

    Raises
    ------
    Unreadable
        Nothing is left of the output.
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
        No such layout is known.
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
    """Return the spatial extents among a shape: D, H, W as far as the layout has them."""
    return tuple(size for size, part in zip(shape, layout, strict=True) if part in "DHW")


def matmul_operations(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Return the operations of ``A[m, k] * B[n, k]``.

    `a` is ``(m, k)`` or packed ``(m/x, k/y, x, y)``, `b` ``(n, k)`` or packed in any way.

    Raises
    ------
    Unreadable
        The shapes are of no such product.
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
        ``(batch, m, k)``, or ``(batch, k, m)`` where `transposed_a`.
    b : tuple of int
        ``(batch, n, k)`` or ``(batch, k, n)``. Either batch may be 1.

    Raises
    ------
    Unreadable
        The shapes are of no such product.
    """
    if len(a) != 3 or len(b) != 3 or (1 not in (a[0], b[0]) and a[0] != b[0]):
        raise Unreadable("no batches")
    m, k = (a[2], a[1]) if transposed_a else (a[1], a[2])
    if k not in b[1:] or k == 0:
        raise Unreadable("matrices that do not fit")
    return 2 * max(a[0], b[0]) * m * (b[1] * b[2] // k) * k
