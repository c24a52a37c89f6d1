"""Variants of a program: block sizes, limits of registers, inputs.

A block has to be legal in three ways (the paper, part 1.4): the device can run it, it has the
original's dimensions, and the results stay correct. The first two are decided here, the third by a
run (:mod:`.output_check`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from ...launches import Extents
from .. import devices
from ..legality import LARGEST, refusal
from ..occupancy import WARP
from .configuration import AXES, GPU, ProgramConfig, extents


@dataclass(frozen=True, slots=True)
class Variant:
    """A program in one of its forms.

    Parameters
    ----------
    program : str
        Its name.
    block : tuple of int
        Extents along x, y and z.
    registers : int or None
        Limit of registers per thread; None for the compiler's default.
    input : str or None
        Value of ``{input}``.
    original : bool
        The block is the original one.
    """

    program: str
    block: Extents
    registers: int | None = None
    input: str | None = None
    original: bool = False

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return math.prod(self.block)

    @property
    def label(self) -> str:
        """Name in a plan: ``32x8``, ``32x8 r64 1024``."""
        words = ["x".join(map(str, self.block))]
        if self.registers is not None:
            words.append(f"r{self.registers}")
        return " ".join([*words, *([] if self.input is None else [self.input])])


@dataclass(frozen=True, slots=True)
class IllegalBlock:
    """A block of a configuration that the device cannot run."""

    program: str
    block: Extents
    reason: str


def make_variants(program: ProgramConfig, device: GPU) -> tuple[list[Variant], list[IllegalBlock]]:
    """Return a program's variants, those of the original block first, and the illegal blocks.

    Parameters
    ----------
    program : ProgramConfig
        Without `sizes` and `blocks` it gets the powers of two along each of its dimensions whose
        product is a multiple of a warp; of several dimensions each is at least 2, so that a block
        keeps its shape.
    device : GPU
        Its limits make blocks illegal.
    """
    legal, illegal = [], []
    for block in _blocks(program, device):
        reason = illegal_reason(block, device)
        if reason is None:
            legal.append(block)
        else:
            illegal.append(IllegalBlock(program.name, block, reason))
    if program.original in legal:
        legal.remove(program.original)
    ordered = [program.original, *sorted(legal, key=lambda b: (math.prod(b), b))]
    inputs: Iterable[str | None] = program.inputs or (None,)
    return [
        Variant(program.name, block, registers, word, block == program.original)
        # The original of each group comes first: its output is the reference of the others.
        for word, registers, block in product(inputs, program.register_limits, ordered)
    ], illegal


def _blocks(program: ProgramConfig, device: GPU) -> list[Extents]:
    """Return the blocks that the configuration allows."""
    if program.blocks:
        return [extents(block) for block in program.blocks]
    least = 1 if len(program.block) == 1 else 2
    axes = [
        program.sizes.get(axis) or _powers(least, most)
        for axis, most in zip(AXES, LARGEST[: len(program.block)], strict=False)
    ]
    blocks = [extents(block) for block in product(*axes)]
    if len(program.sizes) == len(program.block):
        return blocks
    # The user did not name these sizes, so illegal blocks are left out without a message.
    return [b for b in blocks if math.prod(b) % WARP == 0 and illegal_reason(b, device) is None]


def _powers(least: int, most: int) -> tuple[int, ...]:
    return tuple(2**n for n in range(least.bit_length() - 1, most.bit_length()))


def illegal_reason(block: Extents, device: GPU) -> str | None:
    """Return why a device cannot run a block, or None."""
    return refusal(block, device.name, capability(device))


def capability(device: GPU) -> str | None:
    """Return a device's compute capability: the given one, or the known one of its name."""
    if device.compute_capability is not None:
        return device.compute_capability
    known = devices.lookup(device.name)
    return None if known is None else known.compute_capability
