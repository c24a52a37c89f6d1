"""Legal thread blocks of a kernel.

The document names three conditions: the device's limits; as many dimensions as the original block;
and right results, which only a run shows. So the model gives a direction, and this module finds the
next legal block in it. Known to give right results are blocks that ran in the slice, and those that
a FAIR T1 input of the kernel allows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from itertools import product
from typing import TYPE_CHECKING

from .. import limits
from ..errors import FormatError
from ..launches import Extents
from ..programs.thread_blocks import dimensions
from .devices import lookup
from .inputs import shared_bytes
from .observations import Label, Observation
from .occupancy import MAX_THREADS, WARP, occupancy

if TYPE_CHECKING:
    from ..formats.gpu.t1 import T1Input

#: Largest extents along x, y and z since compute capability 2.0 (CUDA C++ Programming Guide,
#: "Technical Specifications per Compute Capability").
LARGEST = (1024, 1024, 64)

#: Largest distance of a multiple of the warp that replaces a nearer block.
_NEAR = 2.0


def legal_blocks(
    observation: Observation,
    *,
    seen: Collection[Extents] = (),
    t1: T1Input | None = None,
) -> list[Extents]:
    """Return the legal blocks, ascending in threads, then along x, y and z.

    Parameters
    ----------
    observation : Observation
        The launch. Other blocks are assumed to need equal registers and shared memory.
    seen : collection of Extents
        Blocks of its slice that ran: always legal.
    t1 : T1Input, optional
        The kernel's tuning space. If it covers the observation's parameters, only blocks that it
        allows are legal; otherwise powers of two along each of the original's dimensions, the
        original block, and seen blocks.
    """
    stated = _stated(observation, t1)
    made = _powers(observation) if stated is None else stated
    fitting = {block for block in made if fits(observation, block)}
    return sorted({*fitting, *seen, observation.extents}, key=lambda b: (math.prod(b), b))


def next_block(
    observation: Observation,
    label: Label,
    *,
    seen: Collection[Extents] = (),
    t1: T1Input | None = None,
) -> Extents | None:
    """Return the next legal block in a direction; None without one, and for no change.

    Blocks with known right results (seen, or stated by a T1 input) come before others. Of them the
    nearest in threads wins, but a multiple of the warp up to a factor of two away replaces a nearer
    block that is none; of several with as many threads the one whose shape is nearest to the
    original's, then the widest.
    """
    threads = observation.threads
    stated = _stated(observation, t1)
    known = {*seen, *(stated or ())}
    candidates = [
        block
        for block in legal_blocks(observation, seen=seen, t1=t1)
        if (label == Label.INCREASE and math.prod(block) > threads)
        or (label == Label.DECREASE and math.prod(block) < threads)
    ]
    proven = [block for block in candidates if block in known]
    return min(proven or candidates, key=lambda b: _nearness(observation, b), default=None)


def fits(observation: Observation, block: Extents) -> bool:
    """Tell whether the device can run the kernel with that block, by its known limits."""
    return not refusal(
        block,
        observation.device,
        observation.compute_capability,
        observation.registers,
        shared_bytes(observation) or 0,
    )


def refusal(
    block: Extents,
    device: str,
    compute_capability: str | None,
    registers: int | None = None,
    shared: int = 0,
) -> str | None:
    """Return the reason why a device cannot run a kernel with a block; None if it can.

    Parameters
    ----------
    block : tuple of int
        Extents along x, y and z.
    device : str
        Name of the device; an unknown device has the limits that all share.
    compute_capability : str or None
        Such as ``"7.5"``.
    registers : int, optional
        Registers of a thread.
    shared : int, optional
        Shared memory of a block, in bytes.
    """
    known = lookup(device)
    most = MAX_THREADS if known is None else known.max_threads
    threads = math.prod(block)
    if threads > most:
        return f"{threads} threads; the device takes {most}"
    for axis, extent, largest in zip("xyz", block, LARGEST, strict=True):
        if extent > largest:
            return f"{extent} along {axis}; the device takes {largest}"
    reached = occupancy(compute_capability, threads, registers, shared)
    if reached is not None and reached.blocks == 0:
        return f"no block of {threads} threads fits on a multiprocessor ({reached.limit})"
    return None


def _powers(observation: Observation) -> Iterable[Extents]:
    """Return blocks of powers of two with the original's dimensions."""
    used = dimensions(observation.extents)
    axes = [
        [2**power for power in range(most.bit_length())] if axis < used else [1]
        for axis, most in enumerate(LARGEST)
    ]
    return [(x, y, z) for x, y, z in product(*axes) if dimensions((x, y, z)) == used]


def _stated(observation: Observation, t1: T1Input | None) -> list[Extents] | None:
    """Return the blocks that a T1 input allows with the other parameters unchanged, or None."""
    if t1 is None:
        return None
    names = t1.block_parameters
    if not names or not set(names) <= set(observation.parameters):
        return None
    values = [t1.parameters[name] for name in names]
    if math.prod(map(len, values)) > limits.MAX_STATED_BLOCKS:
        return None
    found = []
    for chosen in product(*values):
        configuration = {**observation.parameters, **dict(zip(names, chosen, strict=True))}
        try:
            block = t1.block(configuration) if t1.is_legal(configuration) else None
        except FormatError:
            # A condition that divides by zero is false.
            block = None
        if block is not None:
            found.append(block)
    return found


def _nearness(observation: Observation, block: Extents) -> tuple[bool, float, float, Extents]:
    device = lookup(observation.device)
    warp = WARP if device is None else device.warp
    threads = math.prod(block)
    steps = abs(math.log2(threads / observation.threads))
    whole = threads % warp == 0 and steps <= math.log2(_NEAR)
    shape = sum(abs(math.log2(a / b)) for a, b in zip(block, observation.extents, strict=True))
    x, y, z = block
    return not whole, steps, shape, (-x, -y, -z)
