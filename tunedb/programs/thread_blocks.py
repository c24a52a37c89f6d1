"""Thread blocks of GPU kernels, from the names and values of tuning parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import limits
from ..launches import Extents

#: Stems of names with a suffix for the axis, and names without one. Kernel Tuner: ``block_size_x``;
#: KTT: ``WORK_GROUP_SIZE_X``; FAIR T1: ``LocalSize``; NVIDIA's samples: ``blockDim.x``.
_STEMS = "blocksize|workgroupsize|localsize|blockdim|threadblocksize|threadblock|block|threads"
_AXIS = re.compile(rf"(?:{_STEMS})([xyz])")
_WHOLE = {
    *("blocksize", "workgroupsize", "localsize", "blockdim"),
    *("threadblocksize", "threadsperblock", "numthreads"),
}
#: CLBlast's gemm: the work-group is MDIMC x NDIMC.
_GEMM = ("MDIMC", "NDIMC")

#: Triton's block size, in warps; its BLOCK_SIZE counts elements.
_WARPS = "num_warps"


def axes(names: Iterable[str]) -> tuple[str | None, str | None, str | None] | None:
    """Return the parameters that name the block's extents along x, y and z by convention.

    Parameters
    ----------
    names : iterable of str
        Parameters of a tuning space.

    Returns
    -------
    tuple of (str or None) or None
        None for an axis without a parameter, which has extent 1. None instead of the tuple if no
        name is known, or if two names compete.
    """
    names = list(names)
    if _WARPS in names:
        return None
    plain = {name: re.sub(r"[^a-z0-9]", "", name.lower()) for name in names}
    by_axis: dict[str, list[str | None]] = {}
    for name, short in plain.items():
        if match := _AXIS.fullmatch(short):
            by_axis.setdefault(match[1], []).append(name)
    if "x" in by_axis:
        if any(len(candidates) > 1 for candidates in by_axis.values()):
            return None
        x, y, z = (by_axis.get(axis, [None])[0] for axis in "xyz")
        return x, y, z
    if all(name in plain for name in _GEMM):
        return (*_GEMM, None)
    whole = [name for name, short in plain.items() if short in _WHOLE]
    return (whole[0], None, None) if len(whole) == 1 and not by_axis else None


def block_of(parameters: Mapping[str, Any]) -> Extents | None:
    """Return the thread block of a configuration, by the names of its parameters.

    Parameters
    ----------
    parameters : mapping
        Tuning parameter → value.

    Returns
    -------
    tuple of int or None
        Extents along x, y and z; None if no name is known, or a value is not an extent.
    """
    named = axes(parameters)
    if named is None:
        return None
    extents = [1 if name is None else _extent(parameters[name]) for name in named]
    if any(extent is None for extent in extents):
        return None
    block = (extents[0] or 1, extents[1] or 1, extents[2] or 1)
    return block if math.prod(block) <= limits.MAX_BLOCK_THREADS else None


def _extent(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 1 <= value <= limits.MAX_BLOCK_THREADS or value != int(value):
        return None
    return int(value)


def dimensions(block: Extents) -> int:
    """Return the number of axes up to the last with an extent above 1: 1 to 3."""
    return max((axis + 1 for axis in range(3) if block[axis] > 1), default=1)


def block_parameters(
    rows: Sequence[tuple[Mapping[str, Any], int, Extents | None]],
    local_size: Iterable[str] | None = None,
) -> frozenset[str]:
    """Return the parameters of a kernel that determine its thread block.

    From the first of these sources that has any: names in a FAIR T1 input's ``LocalSize``, if all
    are parameters; conventional names; parameters that vary and equal an extent of the launched
    block, or its threads, in every row.

    Parameters
    ----------
    rows : sequence of (mapping, int, tuple or None)
        Configurations of one tuning space, each with its launched threads and block.
    local_size : iterable of str, optional
        Names in the kernel's ``LocalSize``.
    """
    if not rows:
        return frozenset()
    names = set(rows[0][0])
    stated = frozenset(local_size or ())
    if stated and stated <= names:
        return stated
    if _WARPS in names:
        return frozenset({_WARPS})
    if (named := axes(rows[0][0])) is not None:
        return frozenset(name for name in named if name is not None)
    return frozenset(name for name in sorted(names) if _agrees(name, rows))


def _agrees(name: str, rows: Sequence[tuple[Mapping[str, Any], int, Extents | None]]) -> bool:
    values = [_extent(parameters.get(name)) for parameters, _, _ in rows]
    if None in values or len(set(values)) < 2:
        return False
    candidates: list[list[int | None]] = [[threads for _, threads, _ in rows]]
    candidates += [[block and block[axis] for _, _, block in rows] for axis in range(3)]
    return values in candidates
