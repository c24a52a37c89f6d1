"""Interpolation along one axis as a weighted sum of a few elements of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

__all__ = ["Method", "taps", "weighted_sum"]


@dataclass(frozen=True)
class Method:
    """How values between pixels are computed.

    Parameters
    ----------
    mode : {"nearest", "linear", "cubic"}
        The interpolation.
    coordinates : {"half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", \
"inverse", "align_corners"}
        Places of the new pixels among the old ones; "inverse" is "asymmetric" by a factor, as
        PyTorch computes it.
    nearest : {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple"}
        Rounding of "nearest"; "simple" rounds down where an axis grows, else up.
    cubic : float
        Coefficient ``a`` of "cubic".
    antialias : bool
        Whether the interpolation is as wide as the distance of new pixels.
    exclude_outside : bool
        Whether elements outside have no weight; else they are those of the edge.
    """

    mode: str
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False


def taps(size: int, result: int, scale: float, method: Method) -> tuple[Any, Any]:
    """Return the elements that each element of a result is a sum of, and their weights.

    Source: the operator Resize of ONNX 19 (``docs/Operators.md``); the coordinates of
    "align_corners" are those of the size of the result in numbers, as PyTorch and ONNX Runtime
    have them.

    Parameters
    ----------
    size : int
        Elements of the axis.
    result : int
        Elements of the axis of the result.
    scale : float
        Distance of two old pixels in new ones; ``result`` is about ``scale * size``.
    method : Method
        The interpolation.

    Returns
    -------
    elements : ndarray of int64, shape (result, n)
        Numbers of elements of the axis.
    weights : ndarray of float64, shape (result, n)
        Their weights.
    """
    # Where a place is next to a whole number, float32 decides, as in ONNX Runtime and PyTorch.
    dtype = np.dtype("float32" if method.mode == "nearest" else "float64")
    places = _COORDINATES[method.coordinates](np.arange(result, dtype=dtype), size, scale)
    if method.mode == "nearest":
        simple = "floor" if scale >= 1 else "ceil"
        rounding = simple if method.nearest == "simple" else method.nearest
        elements = _ROUNDING[rounding](places).astype("int64")[:, None]
        return elements.clip(0, size - 1), np.ones((result, 1))
    radius, kernel = {"linear": (1, _linear), "cubic": (2, _cubic)}[method.mode]
    stretch = max(1.0, 1 / scale) if method.antialias else 1.0
    reach = int(np.ceil(radius * stretch))
    elements = np.floor(places).astype("int64")[:, None] + np.arange(1 - reach, reach + 1)
    weights = kernel(np.abs(elements - places[:, None]) / stretch, method.cubic)
    if method.exclude_outside:
        weights[(elements < 0) | (elements >= size)] = 0
    if method.antialias or method.exclude_outside:
        weights = weights / weights.sum(axis=1, keepdims=True)
    used = np.any(weights, axis=0)
    return elements.clip(0, size - 1)[:, used], weights[:, used]


def weighted_sum(
    weighted: tuple[Any, Any],
    after: int,
    take: Callable[[Any], Any],
    multiply: Callable[[Any, Any], Any],
    add: Callable[[Any, Any], Any],
) -> Any:
    """Return the sum of elements of an axis, written in the operators of a frontend.

    Parameters
    ----------
    weighted : tuple
        Elements and weights, as :func:`taps` returns them.
    after : int
        Number of axes after this one.
    take, multiply, add : callable
        Elements of the axis by their numbers; a product with an array; a sum.
    """
    elements, weights = weighted
    parts = []
    for chosen, weight in zip(elements.T, weights.T, strict=True):
        part = take(chosen.copy())
        if np.any(weight != 1):
            part = multiply(part, weight.reshape(-1, *[1] * after))
        parts.append(part)
    return reduce(add, parts)


def _linear(distance: Any, _a: float) -> Any:
    return np.maximum(1 - distance, 0)


def _cubic(distance: Any, a: float) -> Any:
    """Return the weights of a cubic convolution (Keys 1981)."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.select([distance <= 1, distance < 2], [near, far], 0.0)


def _half_pixel(x: Any, _size: int, scale: float) -> Any:
    return (x + x.dtype.type(0.5)) / x.dtype.type(scale) - x.dtype.type(0.5)


def _symmetric(x: Any, size: int, scale: float) -> Any:
    return size / 2 * (1 - len(x) / (scale * size)) + _half_pixel(x, size, scale)


#: Places of new pixels, from their numbers, the number of old ones and the scale.
_COORDINATES: dict[str, Callable[[Any, int, float], Any]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": lambda x, n, scale: _half_pixel(x, n, scale) if len(x) > 1 else x,
    "half_pixel_symmetric": _symmetric,
    "asymmetric": lambda x, _, scale: x / x.dtype.type(scale),
    "inverse": lambda x, _, scale: x * x.dtype.type(1 / scale),
    "align_corners": lambda x, n, _: x * ((n - 1) / max(len(x) - 1, 1)),
}

_ROUNDING: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
