"""Signatures from workload keys: auto_scheduler's, AutoTVM's and MetaSchedule's ``args_info``."""

from __future__ import annotations

import math
import re
from math import prod
from typing import Any

from ..records import Signature
from .families import family_of_name
from .functions import describe, shape_of
from .graphs import Tensor, Unreadable, name
from .operations import (
    batch_matmul_operations,
    convolved,
    extent_of,
    layouts_of,
    matmul_operations,
    spatial_of,
    transposed,
)

#: Deepest lists among a task's arguments in which tensors are looked for.
_MAX_DEPTH = 4

_MD5 = re.compile(r"[0-9a-f]{32}")
_LAYOUT = re.compile(r"ncdhw|ndhwc|nchw|nhwc|hwcn|hwnc|ncw|nwc")

#: Words of AutoTVM tasks whose second tensor is no kernel, or one in a form of its own.
_OTHER_KERNELS = ("bitserial", "deformable", "quantized", "simd")

#: Tasks of TVM 0.4 that name channels and kernel size before the strides.
_LEGACY = ("topi_x86_", "topi_intel_graphics_")


def of_ansor(key: Any) -> Signature:
    """Return the signature of auto_scheduler's workload key, parsed.

    A hash of a compute DAG is no name: of ``[hash, shape, ...]`` the shapes are known, of
    ``[hash, dim, ...]`` nothing, because flat dimensions do not say where a tensor ends.
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
    """Return the signature of ``[index, args_info]``, which says the tensors and no more."""
    if type(value) is not list or len(value) != 2 or type(value[1]) is not list:
        return Signature()
    try:
        tensors = tuple(_tensor(item, dtype=1, shape=2) for item in value[1])
    except Unreadable:
        return Signature()
    return Signature(arguments=tensors)


def as_flops(operations: int) -> float | None:
    """Return a count as a float, None where it is too large for one."""
    try:
        value = float(operations)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def _of_registered(function: str, args: list[Any]) -> Signature:
    """Return what is known of a function or task by its name and its arguments."""
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
    """Return a tensor of a list that begins with ``TENSOR``; what follows is left out."""
    if type(value) is not list or len(value) < 3 or value[0] != "TENSOR":
        raise Unreadable("no tensor")
    return name(value[dtype]), shape_of(value[shape])


def _tensors(values: list[Any]) -> tuple[Tensor, ...]:
    """Return the tensors among arguments, also those in lists (``concatenate``).

    No tensors at all where one of them cannot be read: the others would mean something else.
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
    """Return the layout that the task's name, or else one of its arguments, says."""
    texts = [task, *(item.lower() for item in rest if type(item) is str)]
    found = next(filter(None, map(_LAYOUT.search, texts)), None)
    if found is None:
        if "packed" not in task:
            raise Unreadable("no layout")
        return "nchw"
    # "conv1d_transpose_nchw" is the name of a task over NCW.
    return found[0].replace("h", "") if "conv1d" in family else found[0]


def _steps(task: str, rest: list[Any], taps: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Return strides, padding, and dilation or (of a transposed one) output padding."""
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
