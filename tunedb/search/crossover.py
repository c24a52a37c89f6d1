"""Crossover: two traces of one workload joined block by block.

Every instruction belongs to a block: the one whose loops it divides, that it moves, or that it
makes a cache stage for. A child takes all instructions of a block, with their decisions, from one
of its parents. If the parents' instructions differ in decisions and numbers only, the child is made
position by position. Otherwise the two lists are aligned: common steps stay where both parents have
them, and between two common steps the instructions of the first parent's blocks stand before those
of the second's.

Ansor's paper has the operator (Zheng et al., "Ansor", OSDI 2020, 5.1: "node-based crossover"); no
release of TVM has it. A variable that no instruction of the child defines rules it out here; only
a replay shows other dependences between its steps.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ..programs.metaschedule.trace import NO_OUTPUT, is_variable
from .draft import Draft, Instruction, StoredForm, instructions_of

#: Assignments of blocks to parents that are tried until no variable is left undefined.
_TRIES = 4
_ROOT = "root"
_BLOCK = "GetSBlock"

#: A block by name and function; None for an instruction that belongs to none.
Block = tuple[Any, ...] | None


def cross(first: Draft, second: Draft, rng: random.Random) -> Draft | None:
    """Return a draft that takes each block from one of two parents.

    Both parents give something. If they differ in one block only, its decisions are divided among
    them instead.

    Parameters
    ----------
    first, second : Draft
        Programs of one workload.
    rng : random.Random
        Source of chance.

    Returns
    -------
    Draft or None
        None where the parents cannot be joined: they are equal or differ in one decision, they
        have no block in common, or every assignment that was tried leaves a variable undefined.
    """
    if first.skeleton == second.skeleton:
        return _cross_equal(first, second, rng)
    return _cross_aligned(first, second, rng)


def owners(instructions: Sequence[Instruction]) -> list[Block]:
    """Return the block that each instruction belongs to.

    Parameters
    ----------
    instructions : sequence of Instruction
        A trace without post-processing.

    Returns
    -------
    list of tuple or None
        Name and function as ``GetSBlock`` has them; None for an instruction of no block.

    Notes
    -----
    A variable belongs to the block of the instruction that defines it, and an instruction to the
    block of its first variable. An instruction without variables among its inputs (a sampled
    category) belongs to the block of the first instruction that uses its output.
    """
    blocks: list[Block] = [None] * len(instructions)
    owner: dict[str, Block] = {}
    waiting: dict[str, int] = {}
    for number, instruction in enumerate(instructions):
        if instruction.kind == _BLOCK:
            block: Block = instruction.attrs
        else:
            used = list(variables(instruction.inputs))
            block = next((owner[name] for name in used if owner.get(name)), None)
            for name in used:
                if block is not None and name in waiting:
                    blocks[waiting.pop(name)] = owner[name] = block
        blocks[number] = block
        for name in instruction.outputs:
            owner[name] = block
            if block is None:
                waiting[name] = number
    return blocks


def variables(inputs: Sequence[Any]) -> Iterator[str]:
    """Yield the variables among an instruction's inputs, in order."""
    for value in inputs:
        if isinstance(value, tuple):
            yield from variables(value)
        elif is_variable(value):
            yield value


# ---- parents of one skeleton ---------------------------------------------------------------------


def _cross_equal(first: Draft, second: Draft, rng: random.Random) -> Draft | None:
    """Return a child of parents that have the same instructions but for numbers."""
    tiles = second.tiles
    if any(prod(tile) != prod(tiles.get(number, tile)) for number, tile in first.tiles.items()):
        return None
    differing = [
        number
        for number, pair in enumerate(zip(first.instructions, second.instructions, strict=True))
        if pair[0] != pair[1] or first.decisions.get(number) != second.decisions.get(number)
    ]
    owner = _owners(first.form)
    units: list[Hashable] = list(dict.fromkeys(owner[number] for number in differing))
    by_block = len(units) > 1
    taken = _proper_subset(units if by_block else differing, rng)
    if taken is None:
        return None
    instructions = list(first.instructions)
    decisions = dict(first.decisions)
    for number in differing:
        if (owner[number] if by_block else number) in taken:
            instructions[number] = second.instructions[number]
            decisions.pop(number, None)
            if number in second.decisions:
                decisions[number] = second.decisions[number]
    if tuple(instructions) == first.instructions:
        return first.with_decisions(decisions)
    return Draft(tuple(instructions), decisions)


def _proper_subset(units: Sequence[Hashable], rng: random.Random) -> frozenset[Hashable] | None:
    """Return some of the units, neither none nor all; None with fewer than two."""
    if len(units) < 2:
        return None
    return frozenset(rng.sample(units, rng.randint(1, len(units) - 1)))


# ---- parents of different skeletons --------------------------------------------------------------


class _KeyedStep(NamedTuple):
    """An instruction with keys that mean the same in both parents."""

    #: Equal for instructions that do the same to the same variables.
    key: int
    #: Equal also for instructions without outputs (annotations, moves) that differ in inputs.
    place: int
    #: The block that the instruction belongs to.
    owner: Block
    instruction: Instruction
    #: The parent's variables in the instruction: the key of the step that defines each, and its
    #: place among the outputs. Equal in both parents for equal variables.
    definitions: dict[str, tuple[int, int]]

    @property
    def is_naming(self) -> bool:
        """True if it only gives a block its variable, which a child does for all blocks."""
        return self.instruction.kind == _BLOCK


def _cross_aligned(first: Draft, second: Draft, rng: random.Random) -> Draft | None:
    """Return a child of parents with different instructions."""
    parents = first, second
    try:
        steps = _steps(first.form), _steps(second.form)
    except KeyError:  # one of them uses a variable that it does not define
        return None
    if not _are_compatible(parents, steps):
        return None
    segments = [_segments(*pair) for pair in zip(parents, steps, strict=True)]
    blocks = dict.fromkeys([*segments[0], *segments[1]])
    units = [block for block in blocks if segments[0].get(block) != segments[1].get(block)]
    for _ in range(_TRIES):
        taken = _proper_subset(units, rng)
        if taken is None:
            return None
        child = _child(parents, taken)
        if child is not None and child not in parents:
            return child
    return None


@lru_cache(maxsize=512)
def _owners(form: StoredForm) -> list[Block]:
    return owners(instructions_of(form))


# Variables of two traces are taken as the same if instructions of one kind, with the same inputs
# and attributes, define them, and equally many such instructions stand before both.
@lru_cache(maxsize=512)
def _steps(form: StoredForm) -> list[_KeyedStep]:
    """Return the instructions with their variables identified by the steps that define them."""
    definitions: dict[str, tuple[int, int]] = {}
    times: Counter[str] = Counter()
    steps = []
    for each, owner in zip(instructions_of(form), _owners(form), strict=True):
        inputs = _renamed(each.inputs, definitions)
        key = place = _numbered(times, each.kind, inputs, each.attrs, owner)
        if not each.outputs:
            place = _numbered(times, each.kind, each.attrs, owner)
        definitions |= {name: (key, position) for position, name in enumerate(each.outputs)}
        used = {name: definitions[name] for name in (*variables(each.inputs), *each.outputs)}
        steps.append(_KeyedStep(key, place, owner, each, used))
    return steps


def _numbered(times: Counter[str], *parts: Any) -> int:
    """Return a key for the next step with these parts."""
    text = repr(parts)
    times[text] += 1
    return hash((text, times[text]))


@lru_cache(maxsize=4096)
def _order(first: StoredForm, second: StoredForm) -> list[tuple[int, int]]:
    """Return all steps, as numbers of parent and step, in an order that both parents have.

    The annotations of the root block keep their place whatever their values: where they come
    before a split that they follow in both parents, TVM changes the untuned module
    (:func:`tunedb.plugins.metaschedule.modules.shield`).
    """
    first_places, second_places = (
        [step.place for step in _steps(form)] for form in (first, second)
    )
    matcher = SequenceMatcher(None, first_places, second_places, autojunk=False)
    order: list[tuple[int, int]] = []
    for tag, start, end, second_start, second_end in matcher.get_opcodes():
        of_first = [(0, number) for number in range(start, end)]
        of_second = [(1, number) for number in range(second_start, second_end)]
        if tag == "equal":
            order += [step for pair in zip(of_first, of_second, strict=True) for step in pair]
        else:
            order += of_first + of_second
    return order


def _renamed(value: Any, names: Mapping[str, Any]) -> Any:
    """Return inputs with other names for the variables; KeyError for an unknown variable."""
    if isinstance(value, tuple):
        return tuple([_renamed(item, names) for item in value])
    return names[value] if is_variable(value) else value


def _are_compatible(
    parents: tuple[Draft, Draft], steps: tuple[list[_KeyedStep], list[_KeyedStep]]
) -> bool:
    """Tell whether two traces may be of one workload: a block in common, and equal extents."""
    first_extents, second_extents = (
        {own_steps[number].key: prod(tile) for number, tile in parent.tiles.items()}
        for parent, own_steps in zip(parents, steps, strict=True)
    )
    return not _blocks(steps[0]).isdisjoint(_blocks(steps[1])) and all(
        extent == second_extents.get(key, extent) for key, extent in first_extents.items()
    )


def _blocks(steps: list[_KeyedStep]) -> set[Block]:
    """Return the blocks of a trace that compute something."""
    return {step.owner for step in steps if step.owner is not None and step.owner[0] != _ROOT}


def _segments(draft: Draft, steps: list[_KeyedStep]) -> dict[Block, list[tuple[int, Any]]]:
    """Return the steps of each block, with their decisions."""
    segments: dict[Block, list[tuple[int, Any]]] = {}
    for number, step in enumerate(steps):
        segments.setdefault(step.owner, []).append((step.key, draft.decisions.get(number)))
    return segments


def _child(parents: tuple[Draft, Draft], taken: frozenset[Hashable]) -> Draft | None:
    """Return the child with the second parent's steps for the taken blocks."""
    plan = _plan(parents[0].form, parents[1].form, taken)
    if plan is None:
        return None
    bare, sources = plan
    decisions = {}
    for place, (parent, number) in enumerate(sources):
        decision = parents[parent].decisions.get(number)
        if decision is not None:
            decisions[place] = decision
    return bare.with_decisions(decisions)


@lru_cache(maxsize=512)
def _plan(
    first: StoredForm, second: StoredForm, taken: frozenset[Hashable]
) -> tuple[Draft, list[tuple[int, int]]] | None:
    """Return a child without decisions and the sources of its steps; None for unknown variables."""
    steps = _steps(first), _steps(second)
    names: dict[tuple[int, int], str] = {}
    named: set[int] = set()
    instructions: list[Instruction] = []
    sources: list[tuple[int, int]] = []
    for parent, number in _order(first, second):
        step = steps[parent][number]
        wanted = step.key not in named if step.is_naming else (step.owner in taken) == parent
        if not wanted:
            continue
        if step.is_naming:
            named.add(step.key)
        instruction = _with_names(step, names)
        if instruction is None:
            return None
        instructions.append(instruction)
        sources.append((parent, number))
    return Draft(tuple(instructions), {}), sources


def _with_names(step: _KeyedStep, names: dict[tuple[int, int], str]) -> Instruction | None:
    """Return a step with the child's variables, and add those that it defines to `names`."""
    defined = {
        name: names[definition]
        for name, definition in step.definitions.items()
        if definition in names
    }
    old = step.instruction
    try:
        inputs = _renamed(old.inputs, defined)
    except KeyError:
        return None
    outputs = []
    for name in old.outputs:
        outputs.append(name if name == NO_OUTPUT else f"{name[0]}{len(names)}")
        if name != NO_OUTPUT:
            names[step.definitions[name]] = outputs[-1]
    return Instruction(old.kind, inputs, old.attrs, tuple(outputs))
