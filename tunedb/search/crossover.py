"""Two traces of one workload joined block by block.

Every instruction belongs to a block: the one whose loops it divides, that it moves, or that it
makes a cache stage for. An offspring takes all instructions of a block, with their decisions, from
one of its parents. The offspring of parents whose instructions differ in decisions and numbers
only is made position by position. Else the two lists are aligned, so that what both do stays
where it is in both, and between two such places the instructions of the first parent's blocks
stand before those of the second's.

Ansor's paper has the operator (Zheng et al., "Ansor", OSDI 2020, 5.1: "node-based crossover"); none
of TVM's releases has. A variable that no instruction of the offspring defines rules it out here;
whether the steps depend on each other in other ways is found out by replaying it.
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
from .draft import Draft, Form, Instruction, instructions_of

#: Other assignments of blocks to parents that are tried where variables are left undefined.
_TRIES = 4
_ROOT = "root"
_BLOCK = "GetSBlock"

#: A block by name and function; None for an instruction that belongs to none.
Block = tuple[Any, ...] | None


def cross(first: Draft, second: Draft, rng: random.Random) -> Draft | None:
    """Return a draft that takes each block from one of two parents.

    Something is taken of both. If they differ in one block only, its decisions are divided among
    them instead.

    Parameters
    ----------
    first, second : Draft
        Programs of one workload.
    rng : random.Random
        Where chance comes from.

    Returns
    -------
    Draft or None
        None where nothing can be joined: the parents are equal or differ in one decision, they
        have no block in common, or every assignment that was tried leaves a variable undefined.
    """
    if first.skeleton == second.skeleton:
        return _exchanged(first, second, rng)
    return _joined(first, second, rng)


def owners(instructions: Sequence[Instruction]) -> list[Block]:
    """Return the block that each instruction belongs to.

    Parameters
    ----------
    instructions : sequence of Instruction
        A trace without post-processing.

    Returns
    -------
    list of tuple or None
        Name and function as ``GetSBlock`` has them; None for what belongs to no block.

    Notes
    -----
    A variable belongs to the block of the instruction that defines it, and an instruction to the
    block of its first variable. What has no variables among its inputs (a sampled category)
    belongs to the first instruction that uses its output.
    """
    found: list[Block] = [None] * len(instructions)
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
                    found[waiting.pop(name)] = owner[name] = block
        found[number] = block
        for name in instruction.outputs:
            owner[name] = block
            if block is None:
                waiting[name] = number
    return found


def variables(inputs: Sequence[Any]) -> Iterator[str]:
    """Yield the variables among an instruction's inputs, in order."""
    for value in inputs:
        if isinstance(value, tuple):
            yield from variables(value)
        elif is_variable(value):
            yield value


# ---- parents of one skeleton ---------------------------------------------------------------------


def _exchanged(first: Draft, second: Draft, rng: random.Random) -> Draft | None:
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
    taken = _some(units if by_block else differing, rng)
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
    made = tuple(instructions)
    return first.with_decisions(decisions) if made == first.instructions else Draft(made, decisions)


def _some(units: Sequence[Hashable], rng: random.Random) -> frozenset[Hashable] | None:
    """Return some of the units, neither none nor all; None where there are not two."""
    if len(units) < 2:
        return None
    return frozenset(rng.sample(units, rng.randint(1, len(units) - 1)))


# ---- parents of different skeletons --------------------------------------------------------------


class _Step(NamedTuple):
    """An instruction in words that mean the same in both parents.

    Parameters
    ----------
    key : int
        Equal for instructions that do the same to the same variables.
    owner : Block
        The block that it belongs to.
    instruction : Instruction
        As the parent has it.
    meaning : dict of str to tuple
        The parent's variables in the instruction; the values are equal in both parents where the
        variables are: which key made it, and its place among the outputs.
    """

    key: int
    owner: Block
    instruction: Instruction
    meaning: dict[str, tuple[int, int]]

    @property
    def is_naming(self) -> bool:
        """Whether it only gives a block its variable, which is done for both parents' blocks."""
        return self.instruction.kind == _BLOCK


def _joined(first: Draft, second: Draft, rng: random.Random) -> Draft | None:
    """Return a child of parents with different instructions."""
    parents = first, second
    try:
        steps = _steps(first.form), _steps(second.form)
    except KeyError:  # one of them uses a variable that it does not define
        return None
    if not _may_meet(parents, steps):
        return None
    segments = [_segments(*one) for one in zip(parents, steps, strict=True)]
    blocks = dict.fromkeys([*segments[0], *segments[1]])
    units = [block for block in blocks if segments[0].get(block) != segments[1].get(block)]
    for _ in range(_TRIES):
        taken = _some(units, rng)
        if taken is None:
            return None
        child = _child(parents, taken)
        if child is not None and child not in parents:
            return child
    return None


@lru_cache(maxsize=512)
def _owners(form: Form) -> list[Block]:
    return owners(instructions_of(form))


@lru_cache(maxsize=512)
def _steps(form: Form) -> list[_Step]:
    """Return the instructions with their variables known by what made them.

    Variables of two traces are taken as the same if instructions of one kind, with the same
    inputs and attributes, made them, and equally many such instructions stand before both.
    """
    meaning: dict[str, tuple[int, int]] = {}
    times: Counter[str] = Counter()
    made = []
    for one, owner in zip(instructions_of(form), _owners(form), strict=True):
        what = repr((one.kind, _renamed(one.inputs, meaning), one.attrs, owner))
        times[what] += 1
        key = hash((what, times[what]))
        meaning |= {name: (key, position) for position, name in enumerate(one.outputs)}
        used = {name: meaning[name] for name in (*variables(one.inputs), *one.outputs)}
        made.append(_Step(key, owner, one, used))
    return made


@lru_cache(maxsize=4096)
def _order(first: Form, second: Form) -> list[tuple[int, int]]:
    """Return the steps of both parents in one order that keeps those of each.

    Each is the number of the parent, 0 or 1, and the number of the step in it.
    """
    mine, others = ([step.key for step in _steps(form)] for form in (first, second))
    matcher = SequenceMatcher(None, mine, others, autojunk=False)
    order: list[tuple[int, int]] = []
    for tag, start, end, other_start, other_end in matcher.get_opcodes():
        kept = [(0, number) for number in range(start, end)]
        new = [(1, number) for number in range(other_start, other_end)]
        if tag == "equal":
            order += [step for pair in zip(kept, new, strict=True) for step in pair]
        else:
            order += kept + new
    return order


def _renamed(value: Any, names: Mapping[str, Any]) -> Any:
    """Return inputs with other names for the variables; KeyError for one that has none."""
    if isinstance(value, tuple):
        return tuple([_renamed(item, names) for item in value])
    return names[value] if is_variable(value) else value


def _may_meet(parents: tuple[Draft, Draft], steps: tuple[list[_Step], list[_Step]]) -> bool:
    """Tell whether two traces may be of one workload: a block in common, and equal extents."""
    mine, others = (
        {one[number].key: prod(tile) for number, tile in parent.tiles.items()}
        for parent, one in zip(parents, steps, strict=True)
    )
    return not _blocks(steps[0]).isdisjoint(_blocks(steps[1])) and all(
        extent == others.get(key, extent) for key, extent in mine.items()
    )


def _blocks(steps: list[_Step]) -> set[Block]:
    """Return the blocks of a trace that compute something."""
    return {step.owner for step in steps if step.owner is not None and step.owner[0] != _ROOT}


def _segments(draft: Draft, steps: list[_Step]) -> dict[Block, list[tuple[int, Any]]]:
    """Return the steps of each block, with their decisions."""
    found: dict[Block, list[tuple[int, Any]]] = {}
    for number, step in enumerate(steps):
        found.setdefault(step.owner, []).append((step.key, draft.decisions.get(number)))
    return found


def _child(parents: tuple[Draft, Draft], taken: frozenset[Hashable]) -> Draft | None:
    """Return the child that has the second parent's steps of the blocks that are taken."""
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
    first: Form, second: Form, taken: frozenset[Hashable]
) -> tuple[Draft, list[tuple[int, int]]] | None:
    """Return a child without decisions, and which parent's which step each of its steps is.

    None if one of them uses a variable that none of them defines.
    """
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
        made = _with_names(step, names)
        if made is None:
            return None
        instructions.append(made)
        sources.append((parent, number))
    return Draft(tuple(instructions), {}), sources


def _with_names(step: _Step, names: dict[tuple[int, int], str]) -> Instruction | None:
    """Return a step with the child's variables, and add those that it defines to `names`."""
    known = {name: names[what] for name, what in step.meaning.items() if what in names}
    old = step.instruction
    try:
        inputs = _renamed(old.inputs, known)
    except KeyError:
        return None
    outputs = []
    for name in old.outputs:
        outputs.append(name if name == NO_OUTPUT else f"{name[0]}{len(names)}")
        if name != NO_OUTPUT:
            names[step.meaning[name]] = outputs[-1]
    return Instruction(old.kind, inputs, old.attrs, tuple(outputs))
