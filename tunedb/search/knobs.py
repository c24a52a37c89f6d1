"""Configurations of AutoTVM's public templates as decisions of MetaSchedule's sketches.

A template tiles each loop of an operator by one knob. MetaSchedule's sketches tile the same loops
(``MultiLevelTiling``), with more levels and in another order of operators and layouts, so a
configuration is a starting point of a search and never an equal program. :data:`_KNOBS` says which
knob tiles which axis (``python/tvm/topi/{cuda,x86,arm_cpu}``, apache/tvm v0.4 to v0.19),
:data:`_AXES` which axes the loops of a block are, and :data:`_LEVELS` at which levels the factors
of a knob go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Any

from .draft import Draft, Instruction
from .tilings import nearest_tiling

__all__ = ["KnobDraft", "knob_draft"]

#: Axes: n batch, f output channel, y and x row and column of the output, c reduced channel, j and i
#: row and column of the kernel; of a matrix product b batch, y row, x column, k reduced axis.
_CONV_NCHW, _CONV_NHWC = "nfyxcji", "nyxfjic"

#: Name of a block → the axes of its loops, in their order. Relax has one name for all products.
_AXES = {
    "conv2d_nchw": (_CONV_NCHW,),
    "conv2d_nhwc": (_CONV_NHWC,),
    "group_conv2d_nchw": (_CONV_NCHW,),
    "group_conv2d_nhwc": (_CONV_NHWC,),
    "T_matmul_NN": ("yxk",),
    "T_matmul_NT": ("yxk",),
    "matmul": ("yxk", "byxk"),
    "T_batch_matmul_NN": ("byxk",),
    "T_batch_matmul_NT": ("byxk",),
}
_REDUCED = frozenset("cjik")

_CONV_KNOBS = {
    # cuda, rocm, opencl: conv2d_nchw, depthwise_conv2d_nchw
    **{"tile_f": "f", "tile_y": "y", "tile_x": "x", "tile_rc": "c", "tile_ry": "j", "tile_rx": "i"},
    # x86: conv2d_NCHWc, depthwise_conv2d_NCHWc
    **{"tile_oc": "f", "tile_oh": "y", "tile_ow": "x", "tile_ic": "c"},
    # arm_cpu, mali: conv2d_nchw_spatial_pack, depthwise_conv2d_nchw
    **{"tile_co": "f", "tile_c": "f", "tile_h": "y", "tile_w": "x"},
}
_PRODUCT_KNOBS = {"tile_y": "y", "tile_x": "x", "tile_k": "k"}

#: Family of a workload → the axis of each knob.
_KNOBS = {
    **dict.fromkeys(("conv2d", "depthwise_conv2d", "group_conv2d"), _CONV_KNOBS),
    **dict.fromkeys(("matmul", "batch_matmul"), _PRODUCT_KNOBS),
}
#: Parts of the names of tasks and templates that have other loops under these names of knobs.
_OTHER_LOOPS = ("winograd", "int8", "tensorcore", "transpose")

#: Templates with other axes: rows of the product are tile_x here.
_OTHER_KNOBS = {"dense_large_batch.gpu": {"tile_x": "y", "tile_y": "x", "tile_k": "k"}}

#: (whether the axis is reduced, levels of the sketch, factors of the knob) → level of each factor.
#: On GPUs ``SSSRRSRS``: blocks, virtual threads, threads; on CPUs ``SSRSRS``.
_LEVELS = {
    (False, 5, 4): (0, 1, 2, 4),
    (False, 5, 3): (0, 2, 4),
    (True, 3, 2): (0, 1),
    (True, 3, 3): (0, 1, 2),
    (False, 4, 2): (0, 3),
    (False, 4, 3): (0, 1, 3),
    (True, 2, 2): (0, 1),
}
_TILE, _CATEGORY, _BLOCKS = "SamplePerfectTile", "SampleCategorical", ("GetBlock", "GetSBlock")


@dataclass(frozen=True, slots=True)
class KnobDraft:
    """A configuration of AutoTVM on a sketch.

    Parameters
    ----------
    draft : Draft
        The sketch with the tiles of the knobs; it leaves all other decisions to TVM.
    kept : float
        Share of the axes of the block that a knob tiles.
    distance : float
        Distance of the extents of these axes, in octaves.
    """

    draft: Draft
    kept: float
    distance: float


def knob_draft(
    task: str, template: object, family: str, entity: Sequence[Sequence[Any]], sketch: Draft
) -> KnobDraft | None:
    """Put the knobs of a configuration on a sketch.

    Parameters
    ----------
    task : str
        Name of AutoTVM's task, such as ``conv2d_nchw.cuda``.
    template : object
        Key of the template in old logs, such as ``direct``; None without one.
    family : str
        Operator family of its workload.
    entity : sequence of (name, type, value)
        The configuration (:func:`tunedb.programs.autotvm.join_knobs`).
    sketch : Draft
        A design space of MetaSchedule with TVM's first decisions, which give the extents of loops.

    Returns
    -------
    KnobDraft or None
        None for an unknown template, one that tiles no output, and a sketch that tiles no block of
        a known operator.
    """
    if any(word in f"{task} {template}" for word in _OTHER_LOOPS):
        return None
    axis_of = _OTHER_KNOBS.get(task) or _KNOBS.get(family) or {}
    factors = {
        axis_of[name]: value
        for name, kind, value in entity
        if kind == "sp" and name in axis_of and _are_factors(value)
    }
    tiles = _tiles(sketch)
    decided: dict[int, Any] = {}
    kept, squares, tiles_output = 0, 0.0, False
    for axis, number in tiles.items():
        own, levels = sketch.decisions[number], len(sketch.decisions[number])
        extent = prod(own)
        places = _LEVELS.get((axis in _REDUCED, levels, len(factors.get(axis, ()))))
        donor = [extent] + [1] * (levels - 1)
        if places is not None:
            inner = [*factors[axis][1:]]
            outer = factors[axis][0]
            donor = [1] * levels
            # AutoTVM writes -1 for what the other factors leave of the extent.
            first = ceil(extent / prod(inner)) if outer == -1 else outer
            for place, factor in zip(places, [first, *inner], strict=True):
                donor[place] = factor
            kept += 1
            tiles_output |= axis not in _REDUCED
            squares += log2(extent / prod(donor)) ** 2
        tiling = nearest_tiling(tuple(donor), extent, _limit(sketch.instructions[number]))
        if tiling is not None:
            decided[number] = list(tiling)
    if not tiles_output:
        return None
    draft = sketch.with_decisions({})
    for number, decision in {**decided, **_unrolling(entity, sketch)}.items():
        draft = draft.with_decision(number, decision)
    return KnobDraft(draft, kept / len(tiles), squares**0.5)


def _are_factors(value: Any) -> bool:
    """Return whether a value is a list of factors, of which the first may be unknown."""
    return (
        isinstance(value, list)
        and len(value) > 1
        and all(type(factor) is int for factor in value)
        and (value[0] == -1 or value[0] > 0)
        and min(value[1:]) > 0
    )


def _tiles(sketch: Draft) -> dict[str, int]:
    """Return the tile of each axis of the operator's block; nothing where they are not alike."""
    names = (
        instruction.attrs[0]
        for instruction in sketch.instructions
        if instruction.kind in _BLOCKS and instruction.attrs
    )
    choices = next((_AXES[name] for name in names if name in _AXES), ())
    numbers = [
        number
        for number, instruction in enumerate(sketch.instructions)
        if instruction.kind == _TILE and number in sketch.decisions
    ]
    axes = next((each for each in choices if len(each) == len(numbers)), "")
    levels: dict[bool, set[int]] = {False: set(), True: set()}
    for axis, number in zip(axes, numbers, strict=bool(axes)):
        levels[axis in _REDUCED].add(len(sketch.decisions[number]))
    # Another block, or another rule, tiles otherwise.
    if any(len(found) > 1 for found in levels.values()):
        return {}
    return dict(zip(axes, numbers, strict=bool(axes)))


def _limit(instruction: Instruction) -> int | None:
    limit = instruction.attrs[1] if len(instruction.attrs) > 1 else None
    return limit if type(limit) is int else None


def _unrolling(entity: Sequence[Sequence[Any]], sketch: Draft) -> Mapping[int, int]:
    """Return the decision about unrolling that is nearest to the knob."""
    knobs = {name: value for name, _, value in entity}
    steps = knobs.get("auto_unroll_max_step")
    if type(steps) is not int:
        return {}
    for number in reversed(range(len(sketch.instructions))):
        instruction = sketch.instructions[number]
        # Its candidates begin with no unrolling; those of vectors begin with 1.
        if instruction.kind == _CATEGORY and instruction.attrs[0][0] == 0:
            candidates = instruction.attrs[0]
            nearest = min(candidates, key=lambda each: abs(each - steps))
            return {number: candidates.index(nearest)}
    return {}
