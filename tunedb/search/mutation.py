"""Small changes of a trace, each to a program that is near the old one.

Each operator reaches every neighbour that the mutator of TVM's for the same purpose reaches
(``src/s_tir/meta_schedule/mutator``). Whether TVM can replay what comes out is for the caller to
find out.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from operator import mul
from typing import TYPE_CHECKING, Any

from .draft import Draft, Instruction
from .tilings import divisors

if TYPE_CHECKING:
    from .prior import TilePrior

_FETCH = frozenset({"meta_schedule.cooperative_fetch"})
_PARALLEL = "meta_schedule.parallel"
_UNROLL = frozenset({"meta_schedule.unroll_explicit", "meta_schedule.unroll_implicit"})


# ---- tile sizes ----------------------------------------------------------------------------------


def mutate_tile_size(
    draft: Draft, rng: random.Random, *, prior: TilePrior | None = None
) -> Draft | None:
    """Move a divisor from one level of a tiled loop to another.

    One sampled tile is changed. On GPUs the width of a cooperative fetch counts as one, too.

    Parameters
    ----------
    draft : Draft
        What is changed.
    rng : random.Random
        Where chance comes from.
    prior : TilePrior, optional
        What is known of good tiles; it weighs the tiles that one move can reach. Without it the
        level that shrinks, the level that grows and the divisor are drawn in turn.

    Returns
    -------
    Draft or None
        None where no divisor can be moved.
    """
    sites = [number for number, tile in draft.tiles.items() if _is_movable(tile)]
    sites += _categories(draft, _FETCH)
    rng.shuffle(sites)
    for number in sites:
        instruction = draft.instructions[number]
        if instruction.kind == "SampleCategorical":
            value: Any = _other_category(draft, number, rng)
        else:
            value = _other_tile(draft, number, rng, prior)
        if value is not None:
            return draft.with_decision(number, value)
    return None


def tile_moves(instruction: Instruction, tile: Sequence[int]) -> list[list[int]]:
    """Return the tiles that one move of a divisor makes of a tile.

    Parameters
    ----------
    instruction : Instruction
        A ``SamplePerfectTile`` or ``SamplePartitionedTile``; it says what the levels are bound to.
    tile : sequence of int
        Factors, outermost first.
    """
    made = []
    for source, factor in enumerate(tile):
        for target in range(len(tile)):
            for divisor in divisors(factor)[1:] if target != source else ():
                moved = list(tile)
                moved[source] //= divisor
                moved[target] *= divisor
                if _is_bound_kept(instruction, moved, target):
                    made.append(moved)
    return made


def _is_movable(tile: Sequence[int]) -> bool:
    return len(tile) >= 2 and any(factor > 1 for factor in tile)


def _other_tile(
    draft: Draft, number: int, rng: random.Random, prior: TilePrior | None
) -> list[int] | None:
    instruction, tile = draft.instructions[number], draft.decisions[number]
    moves = tile_moves(instruction, tile)
    if not moves:
        return None
    if prior is not None:
        place = _place(draft, number)
        return rng.choices(moves, prior.weigh(prod(tile), len(tile), moves, place))[0]
    for changed in (_shrunk, _grown):
        levels = sorted({changed(tile, move) for move in moves})
        level = rng.choice(levels)
        moves = [move for move in moves if changed(tile, move) == level]
    return rng.choice(moves)


def _place(draft: Draft, number: int) -> int:
    """Return how many tiles of as many levels are sampled before this one."""
    wanted = draft.instructions[number]
    return sum(
        one.kind == wanted.kind and one.attrs[0] == wanted.attrs[0]
        for one in draft.instructions[:number]
    )


def _shrunk(tile: Sequence[int], move: Sequence[int]) -> int:
    return next(level for level, old in enumerate(tile) if move[level] < old)


def _grown(tile: Sequence[int], move: Sequence[int]) -> int:
    return next(level for level, old in enumerate(tile) if move[level] > old)


def _is_bound_kept(instruction: Instruction, moved: Sequence[int], target: int) -> bool:
    if instruction.kind == "SamplePartitionedTile":
        _, position, inner_part = instruction.attrs
        return bool(prod(moved[position:]) % inner_part == 0)
    # A level that is too large already may shrink.
    return target != len(moved) - 1 or bool(moved[target] <= instruction.attrs[1])


# ---- categories ----------------------------------------------------------------------------------


def mutate_unroll(draft: Draft, rng: random.Random) -> Draft | None:
    """Choose another number of steps up to which the compiler unrolls loops.

    Parameters
    ----------
    draft : Draft
        What is changed.
    rng : random.Random
        Where chance comes from; the number is drawn with the probabilities of the sketch.

    Returns
    -------
    Draft or None
        None where nothing is unrolled, or there is one choice only.
    """
    return _with_other_category(draft, _categories(draft, _UNROLL), rng)


def _with_other_category(draft: Draft, numbers: list[int], rng: random.Random) -> Draft | None:
    rng.shuffle(numbers)
    for number in numbers:
        value = _other_category(draft, number, rng)
        if value is not None:
            return draft.with_decision(number, value)
    return None


def _other_category(draft: Draft, number: int, rng: random.Random) -> int | None:
    """Return another choice of a ``SampleCategorical``, or None where there is no other."""
    weights = list(draft.instructions[number].attrs[1])
    current = draft.decisions.get(number)
    if current is not None:
        weights[current] = 0
    if not any(weights):
        return None
    return rng.choices(range(len(weights)), weights)[0]


def _samples(draft: Draft) -> dict[str, int]:
    """Return which variables are sampled categories, and by which instructions."""
    return {
        instruction.outputs[0]: number
        for number, instruction in enumerate(draft.instructions)
        if instruction.kind == "SampleCategorical"
    }


def _categories(draft: Draft, keys: frozenset[str]) -> list[int]:
    """Return the ``SampleCategorical`` whose choice is the value of one of these annotations."""
    samples = _samples(draft)
    values = (
        instruction.inputs[1]
        for instruction in draft.instructions
        if instruction.kind == "Annotate" and instruction.attrs[0] in keys
    )
    found = (samples.get(value) for value in values if isinstance(value, str))
    return [number for number in dict.fromkeys(found) if number is not None]


# ---- parallelism ---------------------------------------------------------------------------------


def mutate_parallel(
    draft: Draft,
    rng: random.Random,
    extents: Mapping[str, Sequence[Sequence[int]]],
    *,
    most: int | None = None,
) -> Draft | None:
    """Change how many iterations run in parallel.

    On CPUs the bound of an annotated block is changed so that more or fewer of its outer loops
    are fused into the parallel one; on GPUs the number of threads that a fused loop is split by.

    Parameters
    ----------
    draft : Draft
        What is changed.
    rng : random.Random
        Where chance comes from.
    extents : mapping of str to sequence of sequence of int
        For the variable of each annotated block the extents of the loops around each block in it,
        outermost first, that can be fused.
    most : int, optional
        Most parallel iterations; by default there is no bound.

    Returns
    -------
    Draft or None
        None where there is one choice only.
    """
    sites: list[tuple[int, int | None]] = [
        (number, bound)
        for number, instruction in enumerate(draft.instructions)
        if _is_parallel(instruction)
        for bound in [_other_bound(instruction, extents, most, rng)]
        if bound is not None
    ]
    sites += [(number, None) for number in _thread_extents(draft)]
    rng.shuffle(sites)
    for number, bound in sites:
        if bound is not None:
            return _with_bound(draft, number, bound)
        changed = _with_other_category(draft, [number], rng)
        if changed is not None:
            return changed
    return None


def _is_parallel(instruction: Instruction) -> bool:
    return (
        instruction.kind == "Annotate"
        and instruction.attrs[0] == _PARALLEL
        and isinstance(instruction.inputs[1], int)
    )


def _other_bound(
    instruction: Instruction,
    extents: Mapping[str, Sequence[Sequence[int]]],
    most: int | None,
    rng: random.Random,
) -> int | None:
    """Return a bound under which other loops are fused, or None."""
    nests = [list(accumulate(nest, mul)) for nest in extents.get(instruction.inputs[0], ())]
    bounds: dict[tuple[int, ...], int] = {}
    for bound in sorted({1, *(product for nest in nests for product in nest)}):
        if most is None or bound <= most:
            bounds.setdefault(_fused(nests, bound), bound)
    bounds.pop(_fused(nests, instruction.inputs[1]), None)
    return rng.choice(list(bounds.values())) if bounds else None


def _fused(nests: Sequence[Sequence[int]], bound: int) -> tuple[int, ...]:
    """Return how many loops of each nest, given as products, are fused under a bound.

    Those whose product is within the bound and one more, as ``RewriteParallelVectorizeUnroll``
    does it. TVM's own mutator takes programs for equal that are not: it counts until the product
    reaches the bound.
    """
    return tuple(min(bisect_right(products, bound) + 1, len(products)) for products in nests)


def _with_bound(draft: Draft, number: int, bound: int) -> Draft:
    old = draft.instructions[number]
    new = Instruction(old.kind, (old.inputs[0], bound), old.attrs, old.outputs)
    changed = (*draft.instructions[:number], new, *draft.instructions[number + 1 :])
    return Draft(changed, draft.decisions)


def _thread_extents(draft: Draft) -> list[int]:
    """Return the ``SampleCategorical`` whose choice splits off a loop bound to ``threadIdx.x``."""
    samples = _samples(draft)
    split_off: dict[str, int] = {}
    found = []
    for instruction in draft.instructions:
        if instruction.kind == "Split" and len(instruction.inputs) == 3:
            _, outer, inner = instruction.inputs
            if outer == "None" and inner in samples:
                split_off[instruction.outputs[1]] = samples[inner]
        elif instruction.kind == "Bind" and instruction.attrs[0] == "threadIdx.x":
            found.append(split_off.get(instruction.inputs[0]))
    return [number for number in dict.fromkeys(found) if number is not None]


# ---- locations -----------------------------------------------------------------------------------


def mutate_compute_location(
    draft: Draft, rng: random.Random, locations: Mapping[int, Sequence[int]]
) -> Draft | None:
    """Compute a block that is not tiled itself at another place.

    Parameters
    ----------
    draft : Draft
        What is changed.
    rng : random.Random
        Where chance comes from.
    locations : mapping of int to sequence of int
        For each ``SampleComputeLocation`` by its number the decisions that are legal: the number
        of a loop of its consumer, -1 for a place of its own, -2 for inlining.

    Returns
    -------
    Draft or None
        None where no block can be moved.
    """
    sites = []
    for number, legal in locations.items():
        others = [place for place in legal if place != draft.decisions.get(number)]
        if others:
            sites.append((number, others))
    if not sites:
        return None
    number, others = rng.choice(sites)
    return draft.with_decision(number, rng.choice(others))
