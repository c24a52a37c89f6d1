"""Which launches differ in the thread block alone, and may be compared.

The key of a slice is a digest over all that must be equal: workload, target, kernel, and the
program without what feeds the block:

* programs of tuning parameters: all parameters but those of the block
  (:func:`tunedb.blocksize.blocks.block_parameters`);
* launches that a profiler saw, of programs without parameters: the number of threads in the grid,
  as far as blocks can cover it (:func:`problems`). A template argument may be the block's size, so
  those do not count;
* traces of MetaSchedule: the instructions before ``EnterPostproc`` and their decisions, without
  those that feed a bound loop (:func:`masked_trace`);
* all others: the program as it is, which makes slices of one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from .. import identity
from ..launches import Extents
from ..records import Target, Trace, Workload, WorkloadFormat
from ..traces import join_trace

#: A parameter that says how many blocks there were, which follows from the block.
_GRID = re.compile(r"grid(?:_size|size|dim|_dim)?[._]?[xyz]", re.IGNORECASE)

#: Formats of workloads whose programs are traces of MetaSchedule.
_TRACED = (WorkloadFormat.GRAPH, WorkloadFormat.NODES, WorkloadFormat.ARGUMENTS)

_BOUND = re.compile(r'"?(?:threadIdx|blockIdx)\.[xyz]"?')


@lru_cache(maxsize=4096)
def plain_name(kernel: str) -> str:
    """Return a kernel's name without return type, template arguments and signature.

    ``void reduce<float, int=4>(float const *, int)`` is ``reduce``; a namespace stays.
    """
    name = kernel.strip()
    depth, kept = 0, []
    for place, char in enumerate(name):
        if char == "<":
            depth += 1
        elif char == ">":
            depth = max(depth - 1, 0)
        elif depth == 0:
            # "(anonymous namespace)::f(int)" starts with a parenthesis that is no signature.
            if char == "(" and not name[place:].startswith("(anonymous namespace)"):
                break
            kept.append(char)
    words = "".join(kept).replace("(anonymous namespace)", "(anonymous)").split()
    return words[-1] if words else name


def parameter_key(
    workload: Workload,
    target: Target,
    kernel: str,
    parameters: Mapping[str, Any],
    block: Collection[str],
) -> bytes:
    """Return the slice of a configuration of tuning parameters.

    Parameters
    ----------
    workload, target : Workload, Target
        What is computed, and on which device.
    kernel : str
        Its plain name: a program may launch several.
    parameters : mapping
        The configuration; the order of its names does not count.
    block : collection of str
        Names of those that feed the thread block.
    """
    rest = sorted((name, value) for name, value in parameters.items() if name not in block)
    return _key(workload, target, kernel, ["parameters", [list(pair) for pair in rest]])


def problem_key(workload: Workload, target: Target, kernel: str, problem: int) -> bytes:
    """Return the slice of a launch that a profiler saw.

    Parameters
    ----------
    problem : int
        Which of the kernel's problems it solved (:func:`problems`).
    """
    return _key(workload, target, kernel, ["problem", problem])


def program_key(workload: Workload, target: Target, kernel: str, trace: Trace) -> bytes:
    """Return the slice of any other program."""
    if workload.format not in _TRACED:
        parts = [trace.sketch, trace.tail or b"", trace.decisions]
        return _key(workload, target, kernel, ["program", [part.hex() for part in parts]])
    return _key(workload, target, kernel, ["trace", *masked_trace(trace)])


def _key(workload: Workload, target: Target, kernel: str, rest: list[Any]) -> bytes:
    return identity.digest(
        "slice",
        workload.digest,
        target.digest,
        kernel.encode(errors="surrogatepass"),
        identity.canonical_json(rest),
    )


def is_geometry(parameters: Iterable[str], block: Collection[str]) -> bool:
    """Tell whether a program has no parameters but its launch's geometry, the grid among them."""
    rest = [name for name in parameters if name not in block]
    return bool(rest) and all(_GRID.fullmatch(name) for name in rest)


def problems(launches: Sequence[tuple[Extents, Extents]]) -> list[int]:
    """Return which problem each launch of one kernel solved.

    A problem of n threads along an axis takes ``ceil(n / block)`` blocks, so a launch says n up to
    the size of a block. Launches whose ranges of n have a number in common solved the same problem;
    they are gone through in the order of their threads. A kernel whose grid does not grow with the
    problem (a loop over the grid) has a problem per block then, and nothing to compare.

    Parameters
    ----------
    launches : sequence of (Extents, Extents)
        Block and grid.

    Returns
    -------
    list of int
        The largest n that all launches of the problem can have solved: equal for those.
    """
    ranges = []
    for block, grid in launches:
        axes = list(zip(block, grid, strict=True))
        least = math.prod((blocks - 1) * threads + 1 for threads, blocks in axes)
        ranges.append((math.prod(block) * math.prod(grid), least))
    found: dict[int, int] = {}
    first = -1
    for place in sorted(range(len(ranges)), key=lambda i: ranges[i]):
        most, least = ranges[place]
        if least > first:
            first = most
        found[place] = first
    return [found[place] for place in range(len(ranges))]


def masked_trace(trace: Trace) -> tuple[list[Any], list[Any]]:
    """Return a trace of MetaSchedule without what feeds its bound loops.

    Which decisions those are is followed back from ``Bind`` through ``Fuse`` to the factors of
    ``Split``; of a tiling the parts that are bound are masked, the others stay. What comes after
    ``EnterPostproc`` follows from the rest and is left out.

    Returns
    -------
    list, list
        Instructions and decisions, None in the place of what was masked.

    Raises
    ------
    FormatError
        The trace is damaged.
    """
    instructions, decisions = join_trace(_head(trace))
    feeding = _feeding(instructions)
    masked = [_masked_instruction(instruction, feeding) for instruction in instructions]
    return masked, [
        [index, _masked_decision(instructions[index], value, feeding)]
        for index, value in decisions
        if index < len(instructions)
    ]


def _masked_instruction(instruction: list[Any], feeding: set[str]) -> list[Any]:
    kind, inputs, attrs, outputs = instruction
    if kind != "Split" or not feeding.intersection(outputs):
        return instruction
    loop, *factors = inputs
    kept = [
        None if place < len(outputs) and outputs[place] in feeding else factor
        for place, factor in enumerate(factors)
    ]
    return [kind, [loop, *kept], attrs, outputs]


def _head(trace: Trace) -> Trace:
    """Return a trace up to ``EnterPostproc``; damaged decisions stay for others to complain of."""
    try:
        decisions, literals, _ = orjson.loads(trace.decisions)
    except ValueError:
        return trace
    return Trace(trace.sketch, None, identity.canonical_json([decisions, literals, []]))


def _masked_decision(instruction: list[Any], value: Any, feeding: set[str]) -> Any:
    outputs = instruction[3]
    if not isinstance(value, list):
        return None if feeding.intersection(outputs) else value
    return [
        None if place < len(outputs) and outputs[place] in feeding else part
        for place, part in enumerate(value)
    ]


def _feeding(instructions: list[Any]) -> set[str]:
    """Return the variables that bound loops depend on: loops, and the factors that made them."""
    feeding: set[str] = set()
    for kind, inputs, attrs, outputs in reversed(instructions):
        if kind == "Bind" and attrs and _BOUND.fullmatch(str(attrs[0])):
            feeding.add(inputs[0])
        elif kind == "Fuse" and feeding.intersection(outputs):
            feeding.update(name for name in inputs if isinstance(name, str))
        elif kind == "Split":
            for place, output in enumerate(outputs):
                factor = inputs[1 + place] if 1 + place < len(inputs) else None
                if output in feeding and isinstance(factor, str):
                    feeding.add(factor)
    return feeding
