"""Launch geometry: columns that are known for any block, measured or not.

Only these can be computed for an untried block, so predictions for other blocks use only these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..devices import lookup
from ..inputs import resident, shared_bytes
from ..labels import Floats
from ..observations import Observation
from ..occupancy import LIMITS, WARP

#: Threads and blocks on a multiprocessor of an unknown device.
_RESIDENT, _BLOCKS = 2_048, 16

#: Columns of :func:`columns`.
NAMES = (
    "log2 threads",
    "log2 threads squared",
    "below 64 threads",
    "above 64 threads",
    "above 256 threads",
    "unused lanes",
    "occupancy",
    "log2 occupancy",
    "log2 width",
    "log2 width within a warp",
)


def columns(observations: Sequence[Observation]) -> Floats:
    """Return the launch columns of observations.

    Logarithms, because halving a block from 1,024 to 512 threads is a step as from 64 to 32. The
    square is centred at 128 threads, and hinges lie at 64 and 256, where the usual advice changes.

    Returns
    -------
    ndarray, shape (n, len(NAMES)), float64
        NaN for the occupancy of a launch without known registers, or on a device without
        published limits (AMD's, unknown ones).
    """
    threads = np.array([one.threads for one in observations], np.float64)
    width = np.array([one.extents[0] for one in observations], np.float64)
    known = [one.compute_capability in LIMITS and one.registers is not None for one in observations]
    lanes = {one.device: lookup(one.device) for one in observations}
    warp = np.array([getattr(lanes[one.device], "warp", WARP) for one in observations])
    fraction = np.where(known, occupancies(observations), np.nan)
    size, warps = np.log2(threads), np.ceil(threads / warp)
    found = (
        size,
        (size - 7) ** 2,
        np.maximum(0, 6 - size),
        np.maximum(0, size - 6),
        np.maximum(0, size - 8),
        np.log2(warp * warps / threads),
        fraction,
        np.log2(np.maximum(fraction, 1 / 64)),
        np.log2(width),
        np.log2(np.minimum(width, warp)),
    )
    return np.column_stack(found) if len(observations) else np.zeros((0, len(NAMES)))


def occupancies(observations: Sequence[Observation]) -> Floats:
    """Return the theoretical occupancy of each, 0 to 1.

    Without registers or shared memory it is an upper bound; without a known device it counts warps
    and blocks of a multiprocessor with 2,048 threads.
    """
    known: dict[tuple[object, ...], float] = {}
    found = []
    for one in observations:
        key = (one.compute_capability, one.threads, one.registers, shared_bytes(one))
        if key not in known:
            known[key] = _occupancy(one)
        found.append(known[key])
    return np.array(found, np.float64)


def _occupancy(one: Observation) -> float:
    residency = resident(one, one.threads)
    if residency is not None:
        return residency.fraction
    warps = -(-one.threads // WARP)
    blocks = min(_BLOCKS, _RESIDENT // (warps * WARP))
    return blocks * warps * WARP / _RESIDENT
