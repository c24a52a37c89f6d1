"""Observations as columns of numbers.

Two sets. ``raw`` are the counters of a profiler, the document's inputs; a count grows with the
problem, so one kernel teaches little about another. ``ratios`` are numbers that compare between
kernels: counts per executed instruction, percents of peak, and the geometry of the launch on its
device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..programs.thread_blocks import dimensions
from .counters import describe
from .devices import Device, lookup
from .observations import Inputs, Observation
from .occupancy import LIMITS, WARP, Occupancy, occupancy

#: The divisor of other counts: warp instructions, without replays.
_INSTRUCTIONS = "inst_executed"

#: Kinds of counters that compare between kernels unchanged.
_COMPARABLE = frozenset({"percent", "level", "ratio"})

#: Threads of the largest block on any NVIDIA GPU, and on AMD's.
_MAX_THREADS = 1024


def raw(observations: Sequence[Observation]) -> Inputs:
    """Return the counters unchanged.

    Columns are neutral names (:mod:`tunedb.advisor.counters`) in alphabetical order, of all
    counters that any observation has; NaN for counters that were not measured. Durations and
    throughputs are among them, if the profiler read them.
    """
    return _table([observation.counters for observation in observations])


def ratios(observations: Sequence[Observation]) -> Inputs:
    """Return numbers that compare between kernels, problems and devices.

    From the counters (NaN if not measured):

    * counts, per executed warp instruction: ``NAME_per_inst``;
    * percents, levels from 0 to 10, and ratios, unchanged;
    * rates, times and counters of unknown kind are left out: the former measure the device.

    From the launch (:func:`geometry`), NaN if the device or the grid is unknown.
    """
    return _table([_ratios(observation) for observation in observations])


#: Inputs by name.
INPUTS: dict[str, Callable[[Sequence[Observation]], Inputs]] = {"ratios": ratios, "raw": raw}


def read_inputs(name: str, observations: Sequence[Observation]) -> Inputs:
    """Return observations as the columns of one of :data:`INPUTS`."""
    return INPUTS[name](observations)


def _table(rows: Sequence[Mapping[str, float]]) -> Inputs:
    names = tuple(sorted(set().union(*rows))) if rows else ()
    values = np.array([[row.get(name, math.nan) for name in names] for row in rows], np.float64)
    return Inputs(names, values.reshape(len(rows), len(names)))


def _ratios(observation: Observation) -> dict[str, float]:
    counters = observation.counters
    instructions = counters.get(_INSTRUCTIONS, math.nan)
    found = {}
    for name, value in counters.items():
        kind = describe(name).kind
        if kind in _COMPARABLE:
            found[name] = value
        elif kind == "count" and name != _INSTRUCTIONS:
            found[f"{name}_per_inst"] = value / instructions if instructions > 0 else math.nan
    found.update(geometry(observation))
    if counters.get("achieved_occupancy") is not None:
        share = found["theoretical_occupancy"]
        found["occupancy_reached"] = (
            counters["achieved_occupancy"] / share if share > 0 else math.nan
        )
    if _INSTRUCTIONS in counters and observation.grid is not None:
        warps = math.prod(observation.grid) * math.ceil(observation.threads / WARP)
        found["log2_inst_per_warp"] = math.log2(max(instructions / warps, 1.0))
    return found


def geometry(observation: Observation) -> dict[str, float]:
    """Return the geometry of a launch on its device.

    Returns
    -------
    dict
        ``log2_threads``
            Threads of a block.
        ``log2_block_x``
            Its extent along x, which neighbours in memory usually follow.
        ``block_dimensions``
            1 to 3: axes up to the last with an extent above 1.
        ``partial_warp``
            Share of lanes that no thread uses, 0 to below 1.
        ``largest_share``
            Threads / threads of the largest block, 0 to 1.
        ``registers``, ``shared_per_thread``
            Registers of a thread; bytes of shared memory of a block by its threads.
        ``registers_share``, ``shared_share``
            Share of the multiprocessor's registers and shared memory that one block takes.
        ``theoretical_occupancy``, ``resident_blocks``
            :func:`tunedb.advisor.occupancy.occupancy`.
        ``occupancy_halved``, ``occupancy_doubled``
            The same with half and with twice the threads, registers and shared memory of a block
            unchanged: the basis of the usual guideline.
        ``log2_waves``, ``last_wave``
            Blocks of the grid / blocks that the device holds at once; how full the last of those
            waves is, above 0 to 1.
    """
    device = lookup(observation.device)
    block = observation.extents
    warp = WARP if device is None else device.warp
    lanes = math.ceil(observation.threads / warp) * warp
    largest = _MAX_THREADS if device is None else device.max_threads
    found = {
        "log2_threads": math.log2(observation.threads),
        "log2_block_x": math.log2(block[0]),
        "block_dimensions": float(dimensions(block)),
        "partial_warp": 1 - observation.threads / lanes,
        "largest_share": observation.threads / largest,
    }
    found.update(_resources(observation))
    found.update(_waves(observation, device))
    return found


def _resources(observation: Observation) -> dict[str, float]:
    registers, shared = observation.registers, shared_bytes(observation)
    limits = LIMITS.get(observation.compute_capability or "")
    found = dict.fromkeys(
        ("registers", "shared_per_thread", "registers_share", "shared_share"), math.nan
    )
    if registers is not None:
        found["registers"] = float(registers)
        if limits is not None:
            found["registers_share"] = registers * observation.threads / limits.registers
    if shared is not None:
        found["shared_per_thread"] = shared / observation.threads
        if limits is not None:
            found["shared_share"] = shared / limits.shared
    for name, factor in (
        ("theoretical_occupancy", 1.0),
        ("occupancy_halved", 0.5),
        ("occupancy_doubled", 2.0),
    ):
        threads = max(1, int(observation.threads * factor))
        reached = resident(observation, threads)
        found[name] = math.nan if reached is None else reached.fraction
        if factor == 1.0:
            found["resident_blocks"] = math.nan if reached is None else float(reached.blocks)
    return found


def _waves(observation: Observation, device: Device | None) -> dict[str, float]:
    reached = resident(observation, observation.threads)
    if device is None or observation.grid is None or reached is None or not reached.blocks:
        return {"log2_waves": math.nan, "last_wave": math.nan}
    waves = math.prod(observation.grid) / (device.multiprocessors * reached.blocks)
    return {"log2_waves": math.log2(waves), "last_wave": waves - math.ceil(waves) + 1}


def resident(observation: Observation, threads: int) -> Occupancy | None:
    """Return the theoretical occupancy of an observation's kernel with blocks of `threads`."""
    return occupancy(
        observation.compute_capability,
        threads,
        observation.registers,
        shared_bytes(observation) or 0,
    )


def shared_bytes(observation: Observation) -> int | None:
    """Return the shared memory of a block in bytes; None if unknown."""
    known = (observation.static_shared, observation.dynamic_shared)
    return None if known == (None, None) else sum(part or 0 for part in known)
