"""Search operators: small changes of a program, and how often each of them is taken.

:data:`OPERATORS` lists them. tunedb's search and the mutators for TVM's search follow from the
list. Each operator reaches every neighbour that TVM's mutator for the same purpose reaches
(``src/s_tir/meta_schedule/mutator``). Whether TVM can replay the new program is for the caller to
find out.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any, NamedTuple, Protocol

from ..errors import UsageError
from .chance import draw
from .crossover import cross
from .draft import Draft, Instruction, StoredForm, instructions_of
from .prior import TilePrior
from .tilings import divisors

#: Kinds of targets whose programs are bound to blocks of threads.
_GPUS = frozenset({"cuda", "metal", "nvptx", "opencl", "rocm", "vulkan", "webgpu"})

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
        Program to change.
    rng : random.Random
        Source of chance.
    prior : TilePrior, optional
        Distribution of good tiles; it weighs the tiles that one move can reach. Without it the
        level that shrinks, the level that grows and the divisor are drawn in turn.

    Returns
    -------
    Draft or None
        None if no divisor can be moved.
    """
    sites = [number for number, tile in draft.tiles.items() if len(tile) >= 2 and max(tile) > 1]
    sites += _categories(draft.form, _FETCH)
    while sites:
        number = sites.pop(rng.randrange(len(sites)))
        if draft.instructions[number].kind == "SampleCategorical":
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
        A ``SamplePerfectTile`` or ``SamplePartitionedTile``; its attributes bound the levels.
    tile : sequence of int
        Factors, outermost first.

    Returns
    -------
    list of list of int
        Factors of each tile, outermost first.
    """
    return [list(move) for move in _moves(instruction, tuple(tile)).tiles]


class _Moves(NamedTuple):
    """Tiles that one move of a divisor makes of a tile."""

    tiles: tuple[tuple[int, ...], ...]
    #: Level that shrinks → level that grows → the tiles.
    by_levels: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]


@lru_cache(maxsize=2**16)
def _moves(instruction: Instruction, tile: tuple[int, ...]) -> _Moves:
    by_source = []
    for source, factor in enumerate(tile):
        by_target = []
        for target in range(len(tile)):
            moves = []
            for divisor in divisors(factor)[1:] if target != source else ():
                moved = list(tile)
                moved[source] //= divisor
                moved[target] *= divisor
                if _keeps_bound(instruction, moved, target):
                    moves.append(tuple(moved))
            if moves:
                by_target.append(tuple(moves))
        if by_target:
            by_source.append(tuple(by_target))
    every = tuple([tile for targets in by_source for moves in targets for tile in moves])
    return _Moves(every, tuple(by_source))


def _other_tile(
    draft: Draft, number: int, rng: random.Random, prior: TilePrior | None
) -> list[int] | None:
    tile = draft.decisions[number]
    moves = _moves(draft.instructions[number], tuple(tile))
    if not moves.tiles:
        return None
    if prior is not None:
        place = _place(draft.form, number)
        return list(draw(rng, moves.tiles, prior.cumulated(moves.tiles, place)))
    return list(rng.choice(rng.choice(rng.choice(moves.by_levels))))


@lru_cache(maxsize=4096)
def _place(form: StoredForm, number: int) -> int:
    """Return how many tiles of as many levels are sampled before this one."""
    instructions = instructions_of(form)
    tiling = instructions[number]
    return sum(
        earlier.kind == tiling.kind and earlier.attrs[0] == tiling.attrs[0]
        for earlier in instructions[:number]
    )


def _keeps_bound(instruction: Instruction, moved: Sequence[int], target: int) -> bool:
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
        Program to change.
    rng : random.Random
        Source of chance; the number is drawn with the probabilities of the sketch.

    Returns
    -------
    Draft or None
        None without unrolling, or with one choice only.
    """
    return _with_other_category(draft, _categories(draft.form, _UNROLL), rng)


def _with_other_category(draft: Draft, numbers: Sequence[int], rng: random.Random) -> Draft | None:
    for number in rng.sample(numbers, len(numbers)):
        value = _other_category(draft, number, rng)
        if value is not None:
            return draft.with_decision(number, value)
    return None


def _other_category(draft: Draft, number: int, rng: random.Random) -> int | None:
    """Return another choice of a ``SampleCategorical``, or None without another one."""
    weights = _other_categories(draft, number)
    return rng.choices(list(weights), list(weights.values()))[0] if weights else None


def _other_categories(draft: Draft, number: int) -> dict[int, float]:
    """Return the weight of each other choice of a ``SampleCategorical``."""
    weights = draft.instructions[number].attrs[1]
    current = draft.decisions.get(number)
    return {choice: weight for choice, weight in enumerate(weights) if weight and choice != current}


def _category_samples(instructions: Sequence[Instruction]) -> dict[str, int]:
    """Return the number of the ``SampleCategorical`` that defines each sampled variable."""
    return {
        instruction.outputs[0]: number
        for number, instruction in enumerate(instructions)
        if instruction.kind == "SampleCategorical"
    }


@lru_cache(maxsize=1024)
def _categories(form: StoredForm, keys: frozenset[str]) -> tuple[int, ...]:
    """Return the ``SampleCategorical`` whose choice is the value of one of these annotations."""
    instructions = instructions_of(form)
    samples = _category_samples(instructions)
    values = (
        instruction.inputs[1]
        for instruction in instructions
        if instruction.kind == "Annotate" and instruction.attrs[0] in keys
    )
    numbers = (samples.get(value) for value in values if isinstance(value, str))
    return tuple([number for number in dict.fromkeys(numbers) if number is not None])


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
        Program to change.
    rng : random.Random
        Source of chance.
    extents : mapping of str to sequence of sequence of int
        For the variable of each annotated block the extents of the loops around each block in it,
        outermost first, that can be fused.
    most : int, optional
        Most parallel iterations; by default there is no bound.

    Returns
    -------
    Draft or None
        None with one choice only.
    """
    sites: list[tuple[int, int | None]] = [
        (number, bound)
        for number, instruction in enumerate(draft.instructions)
        if _is_parallel(instruction)
        for bound in [_other_bound(instruction, extents, most, rng)]
        if bound is not None
    ]
    sites += [(number, None) for number in _thread_extents(draft.form)]
    rng.shuffle(sites)
    for number, bound in sites:
        if bound is not None:
            return _with_bound(draft, number, bound)
        mutant = _with_other_category(draft, [number], rng)
        if mutant is not None:
            return mutant
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
    bounds = _other_bounds(instruction, extents, most)
    return rng.choice(bounds) if bounds else None


def _other_bounds(
    instruction: Instruction, extents: Mapping[str, Sequence[Sequence[int]]], most: int | None
) -> list[int]:
    """Return the least bound for each other set of fused loops."""
    nests = [list(accumulate(nest, mul)) for nest in extents.get(instruction.inputs[0], ())]
    bounds: dict[tuple[int, ...], int] = {}
    for bound in sorted({1, *(product for nest in nests for product in nest)}):
        if most is None or bound <= most:
            bounds.setdefault(_fused(nests, bound), bound)
    bounds.pop(_fused(nests, instruction.inputs[1]), None)
    return list(bounds.values())


# ``RewriteParallelVectorizeUnroll`` fuses the loops whose product is within the bound, plus one.
# TVM's own mutator counts until the product reaches the bound, so it takes some different programs
# for equal.
def _fused(nests: Sequence[Sequence[int]], bound: int) -> tuple[int, ...]:
    """Return how many loops of each nest, given as products, are fused under a bound."""
    return tuple(min(bisect_right(products, bound) + 1, len(products)) for products in nests)


def _with_bound(draft: Draft, number: int, bound: int) -> Draft:
    old = draft.instructions[number]
    new = Instruction(old.kind, (old.inputs[0], bound), old.attrs, old.outputs)
    instructions = (*draft.instructions[:number], new, *draft.instructions[number + 1 :])
    return Draft(instructions, draft.decisions)


@lru_cache(maxsize=1024)
def _thread_extents(form: StoredForm) -> tuple[int, ...]:
    """Return the ``SampleCategorical`` whose choice splits off a loop bound to ``threadIdx.x``."""
    instructions = instructions_of(form)
    samples = _category_samples(instructions)
    split_off: dict[str, int] = {}
    numbers = []
    for instruction in instructions:
        if instruction.kind == "Split" and len(instruction.inputs) == 3:
            _, outer, inner = instruction.inputs
            if outer == "None" and inner in samples:
                split_off[instruction.outputs[1]] = samples[inner]
        elif instruction.kind == "Bind" and instruction.attrs[0] == "threadIdx.x":
            numbers.append(split_off.get(instruction.inputs[0]))
    return tuple([number for number in dict.fromkeys(numbers) if number is not None])


# ---- locations -----------------------------------------------------------------------------------


def mutate_compute_location(
    draft: Draft, rng: random.Random, locations: Mapping[int, Sequence[int]]
) -> Draft | None:
    """Compute a block that is not tiled itself at another place.

    Parameters
    ----------
    draft : Draft
        Program to change.
    rng : random.Random
        Source of chance.
    locations : mapping of int to sequence of int
        For each ``SampleComputeLocation`` by its number the decisions that are legal: the number
        of a loop of its consumer, -1 for a place of its own, -2 for inlining.

    Returns
    -------
    Draft or None
        None if no block can be moved.
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


# ---- the operators -------------------------------------------------------------------------------


class TaskFacts(Protocol):
    """Facts about a task that an operator may ask for beside the program itself.

    The plugin answers (``plugins/metaschedule/search/schedule_queries.py``).
    """

    @property
    def prior(self) -> TilePrior | None:
        """Distribution of good tiles."""

    @property
    def most_parallel(self) -> int | None:
        """Most parallel iterations; None for no bound."""

    def extents(self, draft: Draft) -> Mapping[str, Sequence[Sequence[int]]]:
        """Return the loops that can be fused, as :func:`mutate_parallel` takes them."""

    def locations(self, draft: Draft) -> Mapping[int, Sequence[int]]:
        """Return another legal location of one block, drawn at random."""

    def partners(self, draft: Draft) -> Iterable[Draft]:
        """Return other programs of the workload to try in turn as a second parent."""


def _cross_with_partner(draft: Draft, rng: random.Random, facts: TaskFacts) -> Draft | None:
    children = (cross(draft, partner, rng) for partner in facts.partners(draft))
    return next((child for child in children if child is not None), None)


@dataclass(frozen=True, slots=True)
class Operator:
    """A way to make a new program of another one.

    Parameters
    ----------
    name : str
        Name in the lineage of a candidate.
    cpu, gpu : float
        Weights by kind of target, relative to those of the other operators.
    apply : callable
        Called with a draft, a random generator and :class:`TaskFacts`; returns another draft, or
        None if it finds nothing to change.
    has_partner : bool
        Whether it asks for a second parent.
    may_not_replay : bool
        Whether TVM has to confirm an offspring, because its steps may depend on each other in
        other ways than the parent's.
    """

    name: str
    cpu: float
    gpu: float
    apply: Callable[[Draft, random.Random, TaskFacts], Draft | None]
    has_partner: bool = False
    may_not_replay: bool = False


#: The weights are Ansor's (``sketch_policy_rules.h`` of TVM 0.8 to 0.19). It mutates neither
#: locations nor parallelism on a GPU; binding to threads has the weight that MetaSchedule gives it.
#: Its releases have no crossover; 0.05 is the ratio that Ansor had set aside for one.
OPERATORS: tuple[Operator, ...] = (
    Operator(
        "tile_size",
        cpu=0.90,
        gpu=0.90,
        apply=lambda draft, rng, facts: mutate_tile_size(draft, rng, prior=facts.prior),
    ),
    Operator(
        "parallel",
        cpu=0.01,
        gpu=0.02,
        apply=lambda draft, rng, facts: mutate_parallel(
            draft, rng, facts.extents(draft), most=facts.most_parallel
        ),
    ),
    Operator(
        "unroll",
        cpu=0.04,
        gpu=0.10,
        apply=lambda draft, rng, _facts: mutate_unroll(draft, rng),
    ),
    Operator(
        "compute_location",
        cpu=0.05,
        gpu=0.0,
        apply=lambda draft, rng, facts: mutate_compute_location(draft, rng, facts.locations(draft)),
        may_not_replay=True,
    ),
    Operator(
        "crossover",
        cpu=0.05,
        gpu=0.05,
        apply=_cross_with_partner,
        has_partner=True,
        may_not_replay=True,
    ),
)


def operator_named(name: str) -> Operator:
    """Return an operator by its name.

    Raises
    ------
    UsageError
        There is no operator of this name.
    """
    for operator in OPERATORS:
        if operator.name == name:
            return operator
    names = ", ".join(operator.name for operator in OPERATORS)
    raise UsageError(f"no search operator {name!r}; there are {names}")


@dataclass(frozen=True, slots=True)
class Operators:
    """Relative weights of the operators.

    Parameters
    ----------
    weights : mapping of str to float
        By the names in :data:`OPERATORS`; operators that it leaves out are never taken.

    Raises
    ------
    UsageError
        A name is unknown, a weight is negative or not finite, or no weight is positive.

    Examples
    --------
    >>> Operators({"tile_size": 3, "unroll": 1}).probabilities()["tile_size"]
    0.75
    """

    weights: Mapping[str, float]
    _cumulated: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in self.weights:
            operator_named(name)
        weights = {operator.name: self.weights.get(operator.name, 0.0) for operator in OPERATORS}
        if not all(math.isfinite(weight) and weight >= 0 for weight in weights.values()):
            raise UsageError(f"weights of operators must be 0 or more, not {weights}")
        if not any(weights.values()):
            raise UsageError("at least one operator must have a positive weight")
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "_cumulated", tuple(accumulate(weights.values())))

    @classmethod
    def for_target(cls, kind: str) -> Operators:
        """Return the weights for a kind of target.

        Parameters
        ----------
        kind : str
            TVM's target kind, e.g. ``llvm``.
        """
        is_gpu = kind in _GPUS
        return cls({each.name: each.gpu if is_gpu else each.cpu for each in OPERATORS})

    def with_weights(self, **weights: float) -> Operators:
        """Return the weights with some of them replaced.

        Parameters
        ----------
        **weights : float
            New weights by the names of the operators.

        Raises
        ------
        UsageError
            As for the class.
        """
        return Operators({**self.weights, **weights})

    def probabilities(self) -> dict[str, float]:
        """Return the weights by name, scaled to a sum of 1."""
        total = sum(self.weights.values())
        return {name: weight / total for name, weight in self.weights.items()}

    def draw(self, rng: random.Random) -> Operator:
        """Return an operator, drawn by weight."""
        return draw(rng, OPERATORS, self._cumulated)


# ---- neighbours ----------------------------------------------------------------------------------


def neighbours(
    draft: Draft, extents: Mapping[str, Sequence[Sequence[int]]], *, most: int | None = None
) -> list[tuple[str, Draft]]:
    """Return every program that differs in one tile or one annotation, with its operator's name.

    These are the children of ``tile_size``, ``parallel`` and ``unroll``.

    Parameters
    ----------
    draft : Draft
        Program to change.
    extents, most
        As for :func:`mutate_parallel`.
    """
    found = [
        ("tile_size", draft.with_decision(number, tile))
        for number, before in draft.tiles.items()
        for tile in tile_moves(draft.instructions[number], before)
    ]
    for name, numbers in (
        ("tile_size", _categories(draft.form, _FETCH)),
        ("unroll", _categories(draft.form, _UNROLL)),
        ("parallel", _thread_extents(draft.form)),
    ):
        found += [
            (name, draft.with_decision(number, choice))
            for number in numbers
            for choice in _other_categories(draft, number)
        ]
    found += [
        ("parallel", _with_bound(draft, number, bound))
        for number, instruction in enumerate(draft.instructions)
        if _is_parallel(instruction)
        for bound in _other_bounds(instruction, extents, most)
    ]
    return found
