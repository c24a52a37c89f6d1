"""Operators of ONNX that TVM converts wrongly, or not in all of their forms, by others.

A definition returns None for a node that TVM's frontend converts rightly, the nodes of definitions
included: a model is read in several passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .onnx_nodes import Body, NoDefinitionError
from .resizing import Method, taps, weighted_sum

__all__ = ["CORRECTIONS"]

_Results = list[str] | None


# ---------------------------------------------------------------------------------- resize


def _resize(body: Body) -> _Results:
    """Define what differs from TVM's operators, which know the sizes and no scales."""
    if body.version < 11:
        scales, mode = body.known.array(body.inputs[1]), body.attributes["mode"]
        return None if any(body.inputs[2:]) else _resize_by(body, scales, mode)
    own, x = body.attributes, body.inputs[0]
    given, wanted = (body.known.array(name) for name in body.inputs[2:4])
    coordinates = own["coordinate_transformation_mode"].decode()
    numbers = given if wanted is None or not wanted.size else wanted
    if coordinates == "tf_crop_and_resize" or numbers is None or not numbers.size:
        if body.inputs[2] and given is None:
            raise NoDefinitionError(f"{body.inputs[2]} is no constant")
        return None
    shape = body.known.shape(x)
    axes = [axis % len(shape) for axis in own.get("axes", range(len(shape)))]
    if numbers is given:
        scales = np.ones(len(shape), "float32")
        scales[axes] = given
        results = _results_of(shape, scales)
    else:
        scales, results = _scales_of(body, axes, numbers)
    method = Method(
        own["mode"].decode(),
        coordinates,
        own["nearest_mode"].decode(),
        own["cubic_coeff_a"],
        bool(own.get("antialias", 0)),
        bool(own["exclude_outside"]),
    )
    if _is_right(shape, results, scales, method) and "axes" not in own:
        return None
    return _resized(body, results, scales, method)


def _scales_of(body: Body, axes: Sequence[int], wanted: Any) -> tuple[Any, list[int]]:
    """Return scales and sizes of the result by the wanted sizes of axes.

    The scale of an axis whose size is unknown is 1 here.
    """
    x, policy = body.inputs[0], body.attributes.get("keep_aspect_ratio_policy", b"stretch")
    shape = body.known.shape(x)
    scales, results = np.ones(len(shape)), list(shape)
    for axis, n in zip(axes, map(int, wanted), strict=True):
        scales[axis], results[axis] = n / (shape[axis] or n), n
    if policy != b"stretch":
        sizes = body.known.sizes(x)
        scale = scales[axes].min() if policy == b"not_larger" else scales[axes].max()
        scales[axes] = scale
        for axis in axes:
            results[axis] = int(scale * sizes[axis] + 0.5)
    return scales, results


def _upsample(body: Body) -> _Results:
    own = body.attributes
    scales = own["scales"] if body.version < 9 else body.known.array(body.inputs[1])
    return _resize_by(body, scales, own["mode"])


def _resize_by(body: Body, scales: Any, mode: bytes) -> _Results:
    """Return a resize of earlier versions, which rounds down where it enlarges, else up."""
    if scales is None:
        raise NoDefinitionError(f"{body.inputs[1]} is no constant")
    scales, shape = np.asarray(scales, "float32"), body.known.shape(body.inputs[0])
    method = Method(mode.decode(), "asymmetric", "simple")
    results = _results_of(shape, scales)
    if scales.min() < 1 or not _is_right(shape, results, scales, method):
        return _resized(body, results, scales, method)
    resized = body.add(
        "Resize",
        *(body.inputs[0], "", body.constant(scales, "float32")),
        mode=method.mode,
        coordinate_transformation_mode=method.coordinates,
        nearest_mode="floor",
    )
    return [resized]


def _results_of(shape: Sequence[int], scales: Any) -> list[int]:
    """Return the sizes of a result by its scales, in float32 as ONNX's shape inference does."""
    return [int(np.float32(n) * scale) for n, scale in zip(shape, scales, strict=True)]


def _is_right(shape: Sequence[int], results: Sequence[int], scales: Any, method: Method) -> bool:
    """Tell whether TVM resizes so.

    It resizes all but the first two of three to five axes, and takes the ratio of their sizes for
    the scale. Unknown sizes, which are 0, have a ratio where the scale is a whole number.
    """
    if not 3 <= len(shape) <= 5 or list(scales[:2]) != [1, 1] or method.antialias:
        return False
    if method.coordinates == "align_corners":
        return all(n == 1 or result != 1 for n, result in zip(shape, results, strict=True))
    return method.coordinates != "half_pixel_symmetric" and all(
        scale == round(scale) or (n > 0 and abs(n * scale - result) < 1e-6 * result)
        for n, result, scale in zip(shape, results, scales, strict=True)
    )


def _resized(body: Body, results: Sequence[int], scales: Any, method: Method) -> list[str]:
    """Return weighted sums along one axis after the other, the ones that shrink most first."""
    x = body.inputs[0]
    dtype = body.known.dtype(x)
    if method.mode != "nearest" and "float" not in dtype:
        raise NoDefinitionError(f"{method.mode} interpolation of {dtype} is not computed")
    sizes = {axis: body.known.size(x, axis) for axis, scale in enumerate(scales) if scale != 1}
    for axis in sorted(sizes, key=lambda axis: results[axis] / sizes[axis]):
        x = weighted_sum(
            taps(sizes[axis], results[axis], float(scales[axis]), method),
            len(results) - axis - 1,
            partial(_taken, body, x, axis),
            lambda part, weight: body.add("Mul", part, body.constant(weight, dtype)),
            partial(body.add, "Add"),
        )
    return [x]


def _taken(body: Body, x: str, axis: int, chosen: Any) -> str:
    return body.add("Gather", x, body.constant(chosen), axis=axis)


# ------------------------------------------------------------------ windows and regions


def _windows(body: Body, kernel: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the size of each axis of an image, the extent of its window, and the stride."""
    sizes, ones = body.known.sizes(body.inputs[0], 2), [1] * len(kernel)
    strides, dilations = (body.own.get(name, ones) for name in ("strides", "dilations"))
    return [
        (size, (extent - 1) * dilation + 1, stride)
        for size, extent, dilation, stride in zip(sizes, kernel, dilations, strides, strict=True)
    ]


def _max_pool(body: Body) -> _Results:
    """Pad explicitly: TVM rounds sizes down for SAME_LOWER, and cuts where strides exceed."""
    pads = body.attributes["auto_pad"]
    if pads not in (b"SAME_UPPER", b"SAME_LOWER") or len(body.outputs) > 1:
        return None
    totals = [
        max(0, (-(-size // stride) - 1) * stride + extent - size)
        for size, extent, stride in _windows(body, body.own["kernel_shape"])
    ]
    own = {name: value for name, value in body.own.items() if name != "auto_pad"}
    padded = _divided(totals, pads == b"SAME_UPPER")
    return [body.add("MaxPool", body.inputs[0], **own, pads=padded)]


def _divided(totals: Sequence[int], more_after: bool) -> list[int]:
    """Return pads before and after all axes; one more after or before them where a sum is odd."""
    less, more = [n // 2 for n in totals], [n - n // 2 for n in totals]
    return [*less, *more] if more_after else [*more, *less]


def _lp_pool(body: Body) -> _Results:
    if body.attributes.get("ceil_mode") and not _divides(body):
        raise NoDefinitionError("its ceil_mode is not computed")
    return None


def _divides(body: Body) -> bool:
    """Tell whether windows reach the end of each axis, as they do with `ceil_mode` otherwise."""
    windows = _windows(body, body.own["kernel_shape"])
    pads = body.own.get("pads", [0] * 2 * len(windows))
    return not any(
        (size + sum(pads[axis :: len(windows)]) - extent) % stride
        for axis, (size, extent, stride) in enumerate(windows)
    )


def _conv_transpose(body: Body) -> _Results:
    """Turn the shape of the result into pads, which TVM knows."""
    shape = body.own.get("output_shape")
    if shape is None:
        return None
    windows, own = _windows(body, body.known.sizes(body.inputs[1], 2)), dict(body.own)
    rank = len(windows)
    own["output_padding"] = own.get("output_padding", [0] * rank)
    totals = [
        stride * (size - 1) + more + extent - wanted
        for (size, extent, stride), more, wanted in zip(
            windows, own["output_padding"], shape[-rank:], strict=True
        )
    ]
    # What no pad takes away is added at the end.
    own["output_padding"] = [
        more - min(total, 0) for more, total in zip(own["output_padding"], totals, strict=True)
    ]
    if any(
        more >= stride for more, (*_, stride) in zip(own["output_padding"], windows, strict=True)
    ):
        raise NoDefinitionError("its output_shape is larger than its input fills")
    upper = own.pop("auto_pad", b"NOTSET") == b"SAME_UPPER"
    own["pads"] = _divided([max(total, 0) for total in totals], upper)
    del own["output_shape"]
    return [body.add("ConvTranspose", *filter(None, body.inputs), **own)]


def _roi_align(body: Body) -> _Results:
    """Scale the regions first: TVM takes half a pixel off before it scales them, ONNX after it."""
    own = body.attributes
    if own["mode"] == b"max":
        raise NoDefinitionError("its maxima are not computed")
    x, rois, batch = body.inputs
    scale, place = own["spatial_scale"], "coordinate_transformation_mode"
    if scale == 1 or own.get(place, b"output_half_pixel") == b"output_half_pixel":
        return None
    factor = body.constant(scale, body.known.dtype(rois) or "float32")
    scaled = body.add("Mul", rois, factor)
    return [body.add("RoiAlign", x, scaled, batch, **(own | {"spatial_scale": 1.0}))]


# ---------------------------------------------------------------------- one element each


def _is_inf(body: Body) -> _Results:
    both = body.attributes["detect_negative"], body.attributes["detect_positive"]
    if all(both):
        return None
    x = body.inputs[0]
    zero = body.constant(0, body.known.dtype(x) or "float32")
    # Nothing is less than itself.
    kind, other = ("Less" if both[0] else "Greater"), (zero if any(both) else x)
    return [body.add("And", body.add("IsInf", x), body.add(kind, x, other))]


def _pow(body: Body) -> _Results:
    """Compute powers of integers in float64, and of two types in that of the base."""
    x, exponent = body.inputs
    base, other = (body.known.dtype(name) for name in (x, exponent))
    if not base or not other or (base == other and "float" in base):
        return None
    if "float" in base:
        return [body.add("Pow", x, body.cast(exponent, base))]
    power = body.add("Pow", body.cast(x, "float64"), body.cast(exponent, "float64"))
    return [body.cast(power, base)]


# ----------------------------------------------------------------------------- other ones


def _slice(body: Body) -> _Results:
    """Give bounds as inputs, which are attributes before version 10."""
    own = body.own
    if body.version >= 10 or "starts" not in own:
        return None
    axes = own.get("axes", range(len(own["starts"])))
    bounds = [body.constant([*numbers]) for numbers in (own["starts"], own["ends"], axes)]
    return [body.add("Slice", body.inputs[0], *bounds)]


def _top_k(body: Body) -> _Results:
    """Give k as an attribute, which TVM asks for before version 11 and ONNX before version 10."""
    if body.version != 10 or not body.inputs[1]:
        return None
    count = body.known.array(body.inputs[1])
    if count is None:
        raise NoDefinitionError(f"{body.inputs[1]} is no constant")
    axis = body.attributes["axis"]
    values, indices = body.several("TopK", body.inputs[:1], 2, axis=axis, k=int(count.item()))
    return [values, body.cast(indices, "int64")]  # TVM 0.25 has int32


def _one_hot(body: Body) -> _Results:
    indices, depth, values = body.inputs
    count = body.known.array(depth)
    if count is None:
        return None
    count, rank = int(count.item()), len(body.known.shape(indices))
    axis = body.attributes["axis"] % (rank + 1)
    number = body.cast(indices, "int64")
    wrapped = body.add("Add", number, body.constant(count))
    number = body.add("Where", body.add("Less", number, body.constant(0)), wrapped, number)
    places = body.constant(np.arange(count).reshape(-1, *[1] * (rank - axis)))
    found = body.add("Equal", body.unsqueeze(number, axis), places)
    return [body.add("Where", found, body.slice(values, 1, 2, 0), body.slice(values, 0, 1, 0))]


def _space_to_depth(body: Body) -> _Results:
    """Order channels by their own number first (CRD), where TVM orders them by the pixel."""
    if body.attributes.get("mode", b"DCR") != b"CRD":
        return None
    (x,), block = body.inputs, body.attributes["blocksize"]
    batch, channels, height, width = body.known.sizes(x)
    divided = body.reshape(x, batch, channels, height // block, block, width // block, block)
    moved = body.add("Transpose", divided, perm=[0, 1, 3, 5, 2, 4])
    return [body.reshape(moved, batch, channels * block**2, height // block, width // block)]


def _layer_normalization(body: Body) -> _Results:
    """Return the mean and the inverse deviation, too; TVM has the first result alone."""
    if not any(body.outputs[1:]):
        return None
    x, scale, bias = body.inputs
    rank, dtype = len(body.known.shape(x)), body.known.dtype(x)
    axes = range(body.attributes["axis"] % rank, rank)
    wide = "float64" if dtype == "float64" else "float32"
    value = x if dtype == wide else body.cast(x, wide)
    mean = body.reduce("ReduceMean", value, *axes)
    centred = body.add("Sub", value, mean)
    variance = body.reduce("ReduceMean", body.add("Mul", centred, centred), *axes)
    deviation = body.add("Add", variance, body.constant(body.attributes["epsilon"], wide))
    inverse = body.add("Reciprocal", body.add("Sqrt", deviation))
    result = body.add("Mul", centred, inverse)
    result = body.add("Mul", result if dtype == wide else body.cast(result, dtype), scale)
    return [body.add("Add", result, bias) if bias else result, mean, inverse]


# ----------------------------------------------------------------------------- training


def _batch_normalization(body: Body) -> _Results:
    if body.attributes.get("training_mode"):
        raise NoDefinitionError("its training mode is not computed; export it for inference")
    return None


def _dropout(body: Body) -> _Results:
    training = body.known.array(body.inputs[2]) if len(body.inputs) > 2 else None
    if training is not None and training.item():
        raise NoDefinitionError("its training mode is not computed; export it for inference")
    if not any(body.outputs[1:]):
        return None
    x = body.inputs[0]
    unknown = body.add("IsNaN", x)
    return [body.add("Identity", x), body.add("Or", unknown, body.add("Not", unknown))]


#: Definitions by the kinds of operators.
CORRECTIONS: dict[str, Callable[[Body], _Results]] = {
    "BatchNormalization": _batch_normalization,
    "ConvTranspose": _conv_transpose,
    "Dropout": _dropout,
    "IsInf": _is_inf,
    "LayerNormalization": _layer_normalization,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "OneHot": _one_hot,
    "Pow": _pow,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "TopK": _top_k,
    "Upsample": _upsample,
}
