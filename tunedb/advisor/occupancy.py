"""The number of a kernel's warps on a multiprocessor: NVIDIA's occupancy calculator.

The numbers are those of the *CUDA C++ Programming Guide* (Technical Specifications per Compute
Capability) and the rules those of ``cuda_occupancy.h`` of the CUDA Toolkit: registers are allocated
to warps in units, each of the multiprocessor's partitions serves its own warps, shared memory is
allocated to blocks in units, and from 8.0 on the system takes 1 KiB of it per block.

AMD publishes no such rule for the name of a device (the limit depends on scalar and vector
registers and on the compilation of a kernel for waves of 32 or 64), so the result is None there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_KIB = 1024
WARP = 32

#: Threads of the largest block, 2.0 to 12.x.
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class MultiprocessorLimits:
    """Resources of a multiprocessor of one compute capability.

    Parameters
    ----------
    warps, blocks : int
        Maximum number that is active at once.
    registers, registers_block : int
        Registers of the multiprocessor, and maximum of a block.
    registers_thread : int
        Maximum number of registers of a thread.
    register_unit : int
        Unit of the registers of a warp.
    partitions : int
        Parts of the multiprocessor with separate registers.
    shared, shared_block : int
        Bytes of shared memory of the multiprocessor, and of a block at most (after opting in).
    shared_unit : int
        Unit of the shared memory of a block.
    shared_reserved : int
        Bytes of shared memory that the system takes per block.
    """

    warps: int
    blocks: int
    registers: int
    registers_block: int
    registers_thread: int
    register_unit: int
    partitions: int
    shared: int
    shared_block: int
    shared_unit: int
    shared_reserved: int


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps that fit on one multiprocessor.

    Parameters
    ----------
    fraction : float
        Active warps / warps that the multiprocessor can hold, 0 to 1.
    blocks : int
        Active blocks; 0 if the block cannot run at all.
    warps : int
        Active warps.
    limit : str
        The resource that prevents a further block: ``warps``, ``blocks``, ``registers``,
        ``shared``; the first of several. ``threads`` if the block is too large.
    """

    fraction: float
    blocks: int
    warps: int
    limit: str


def _limits(
    warps: int,
    blocks: int,
    shared: int,
    shared_block: int = 48,
    *,
    registers: int = 64,
    registers_block: int = 64,
    registers_thread: int = 255,
    register_unit: int = 256,
    partitions: int = 4,
    shared_unit: int = 256,
    shared_reserved: int = 0,
) -> MultiprocessorLimits:
    return MultiprocessorLimits(
        warps,
        blocks,
        registers * _KIB,
        registers_block * _KIB,
        registers_thread,
        register_unit,
        partitions,
        shared * _KIB,
        shared_block * _KIB,
        shared_unit,
        shared_reserved * _KIB,
    )


def _recent(warps: int, blocks: int, shared: int) -> MultiprocessorLimits:
    """Return the limits of 8.0 and later: a block may have all shared memory but 1 KiB."""
    return _limits(warps, blocks, shared, shared - 1, shared_unit=128, shared_reserved=1)


_FERMI = _limits(
    *(48, 8, 48),
    registers=32,
    registers_block=32,
    registers_thread=63,
    register_unit=64,
    partitions=2,
    shared_unit=128,
)

#: Compute capability → limits.
LIMITS: dict[str, MultiprocessorLimits] = {
    "2.0": _FERMI,
    "2.1": _FERMI,
    "3.0": _limits(64, 16, 48, registers_thread=63),
    "3.2": _limits(64, 16, 48, registers_block=32),
    "3.5": _limits(64, 16, 48),
    "3.7": _limits(64, 16, 112, registers=128),
    "5.0": _limits(64, 32, 64),
    "5.2": _limits(64, 32, 96),
    "5.3": _limits(64, 32, 64, registers_block=32),
    "6.0": _limits(64, 32, 64, partitions=2),
    "6.1": _limits(64, 32, 96),
    "6.2": _limits(64, 32, 64, registers_block=32),
    "7.0": _limits(64, 32, 96, 96),
    "7.2": _limits(64, 32, 96, 96),
    "7.5": _limits(32, 16, 64, 64),
    "8.0": _recent(64, 32, 164),
    "8.6": _recent(48, 16, 100),
    "8.7": _recent(48, 16, 164),
    "8.9": _recent(48, 24, 100),
    "9.0": _recent(64, 32, 228),
    "10.0": _recent(64, 32, 228),
    "10.3": _recent(64, 32, 228),
    "11.0": _recent(48, 24, 228),
    "12.0": _recent(48, 24, 100),
    "12.1": _recent(48, 24, 100),
}


def occupancy(
    compute_capability: str | None, threads: int, registers: int | None = None, shared: int = 0
) -> Occupancy | None:
    """Return the theoretical occupancy of a kernel.

    Parameters
    ----------
    compute_capability : str or None
        ``"7.5"``.
    threads : int
        Threads of a block.
    registers : int or None
        Registers of a thread; unknown ones do not limit.
    shared : int
        Bytes of shared memory of a block, static and dynamic.

    Returns
    -------
    Occupancy or None
        None if the compute capability is unknown, or the device has none (AMD).

    Raises
    ------
    ValueError
        There are no threads, or a number is negative.
    """
    if threads < 1 or (registers or 0) < 0 or shared < 0:
        raise ValueError(f"a block of {threads} threads, {registers} registers, {shared} bytes")
    limits = LIMITS.get(compute_capability or "")
    if limits is None:
        return None
    if threads > MAX_THREADS:
        return Occupancy(0.0, 0, 0, "threads")
    warps = math.ceil(threads / WARP)
    fits = {
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": _by_registers(limits, warps, registers or 0),
        "shared": _by_shared(limits, shared),
    }
    limit = min(fits, key=lambda name: fits[name])
    blocks = fits[limit]
    return Occupancy(blocks * warps / limits.warps, blocks, blocks * warps, limit)


def _by_registers(limits: MultiprocessorLimits, warps: int, registers: int) -> int:
    """Return the number of blocks with enough registers (``cudaOccMaxBlocksPerSMRegsLimit``)."""
    if registers == 0:
        return limits.blocks
    if registers > limits.registers_thread:
        return 0
    per_warp = _up(registers * WARP, limits.register_unit)
    if per_warp * _up(warps, limits.partitions) > limits.registers_block:
        return 0
    per_partition = limits.registers // limits.partitions // per_warp
    return per_partition * limits.partitions // warps


def _by_shared(limits: MultiprocessorLimits, shared: int) -> int:
    if shared > limits.shared_block:
        return 0
    taken = _up(shared + limits.shared_reserved, limits.shared_unit)
    return limits.shared // taken if taken else limits.blocks


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
