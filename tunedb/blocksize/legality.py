"""Which thread blocks a kernel may be launched with.

The document names three conditions: the device's limits; as many dimensions as the original block
has; and results that stay right, which only running shows. So the model gives a direction, and the
next legal block in it is looked up here. What is known to give right results are blocks that ran in
the slice, and those that a FAIR T1 input of the kernel allows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from itertools import product
from typing import TYPE_CHECKING

from .. import limits
from ..errors import FormatError
from ..launches import Extents
from .blocks import dimensions
from .devices import lookup
from .inputs import resident
from .observations import Label, Observation
from .occupancy import MAX_THREADS, WARP

if TYPE_CHECKING:
    from ..logs.gpu.t1 import T1Input

#: Largest extents along x, y and z (CUDA C++ Programming Guide, since compute capability 2.0).
_LARGEST = (1024, 1024, 64)

#: How far away a multiple of the warp may be to be taken for a nearer block that is none.
_NEAR = 2.0


def legal_blocks(
    observation: Observation,
    *,
    seen: Collection[Extents] = (),
    t1: T1Input | None = None,
) -> list[Extents]:
    """Return the blocks that are legal, ascending in threads, then along x, y and z.

    Parameters
    ----------
    observation : Observation
        The launch. Its registers and shared memory are taken to stay as they are.
    seen : collection of Extents
        Blocks of its slice that ran: legal whatever else holds.
    t1 : T1Input, optional
        What the kernel's tuning space allows. Where it speaks of the observation's parameters,
        what it does not allow is not legal; otherwise powers of two along each of the original's
        dimensions are, the original block, and what was seen.
    """
    stated = _stated(observation, t1)
    made = _powers(observation) if stated is None else stated
    fitting = {block for block in made if fits(observation, block)}
    return sorted({*fitting, *seen, original(observation)}, key=lambda b: (math.prod(b), b))


def next_block(
    observation: Observation,
    label: Label,
    *,
    seen: Collection[Extents] = (),
    t1: T1Input | None = None,
) -> Extents | None:
    """Return the next legal block in a direction; None where there is none, and for no change.

    Blocks that are known to give right results (seen, or stated by a T1 input) come before others.
    Of them it is the nearest in threads, but a multiple of the warp up to a factor of two away is
    taken for a nearer block that is none; of several with as many threads the one whose shape is
    nearest to the original's, then the widest.
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


def original(observation: Observation) -> Extents:
    """Return the observation's block; where only its threads are known, those along x."""
    return observation.block or (observation.threads, 1, 1)


def fits(observation: Observation, block: Extents) -> bool:
    """Tell whether the device can run the kernel with that block.

    Its extents and threads are within the device's limits, and at least one block finds registers
    and shared memory on a multiprocessor.
    """
    threads = math.prod(block)
    device = lookup(observation.device)
    most = MAX_THREADS if device is None else device.max_threads
    if threads > most or any(a > b for a, b in zip(block, _LARGEST, strict=True)):
        return False
    reached = resident(observation, threads)
    return reached is None or reached.blocks > 0


def _powers(observation: Observation) -> Iterable[Extents]:
    """Return blocks of powers of two with the original's dimensions."""
    used = dimensions(original(observation))
    axes = [
        [2**power for power in range(most.bit_length())] if axis < used else [1]
        for axis, most in enumerate(_LARGEST)
    ]
    return [(x, y, z) for x, y, z in product(*axes) if dimensions((x, y, z)) == used]


def _stated(observation: Observation, t1: T1Input | None) -> list[Extents] | None:
    """Return what a T1 input allows with the other parameters as they are; None if nothing."""
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
            # A condition that divides by zero there does not hold.
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
    shape = sum(abs(math.log2(a / b)) for a, b in zip(block, original(observation), strict=True))
    x, y, z = block
    return not whole, steps, shape, (-x, -y, -z)
