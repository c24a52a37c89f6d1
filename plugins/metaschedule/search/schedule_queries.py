"""What only a schedule knows of a trace: where blocks may be computed, and how long loops are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir import SBlockRealize, Schedule
from tvm.tirx.analysis import undefined_vars

from ....search.draft import Draft
from .. import trace_codec
from ..trace_codec import TraceBuilder, items_of

_PARALLEL = "meta_schedule.parallel"
#: No loop has this number: TVM answers with the last location that is legal.
_PAST_ALL = 2**31 - 1
_INLINE = -2
#: A block with two places is passed over once in eight times.
_DRAWS = 3
_MOST_SEED = 2**31 - 2

#: Parallel iterations per core that MetaSchedule's rules for CPUs allow.
JOBS_PER_CORE = 16


def from_tvm(trace: Any) -> Draft:
    """Return a trace of TVM as a draft; its post-processing is dropped.

    Raises
    ------
    UnknownInstructionError
        TVM cannot write the trace as JSON.
    """
    return Draft.of(trace_codec.encode(trace))


def to_tvm(draft: Draft, builder: TraceBuilder) -> Any:
    """Return a draft as a trace of TVM.

    Parameters
    ----------
    draft : Draft
        Which one.
    builder : TraceBuilder
        Makes the instructions of each sketch once.

    Raises
    ------
    UnknownInstructionError
        The draft has an instruction that this TVM does not know, or one whose parts do not fit.
    """
    return builder.build(draft.trace())


def replayed(trace: Any, mod: IRModule, seed: int = 1) -> Schedule:
    """Return the schedule that a trace makes of a module, without its post-processing.

    Parameters
    ----------
    trace : tvm Trace
        What is replayed; decisions that it lacks are drawn.
    mod : IRModule
        The workload.
    seed : int
        Where chance comes from for those.

    Raises
    ------
    Exception
        What TVM raises on a trace that does not fit.
    """
    schedule = _schedule(mod, seed)
    trace.apply_to_schedule(schedule, remove_postproc=True)
    return schedule


def _schedule(mod: IRModule, seed: int) -> Schedule:
    return Schedule(mod, seed=seed, debug_mask="none", error_render_level="none")


def locations(trace: Any, mod: IRModule, *, seed: int | None = None) -> dict[int, list[int]]:
    """Return where blocks with a sampled location may be computed, the others being where they are.

    Finding out what is legal takes longer than replaying (10 to 100 ms of a convolution for all
    places of a block). A mutation needs only one place.

    Parameters
    ----------
    trace : tvm Trace
        What is replayed.
    mod : IRModule
        The workload.
    seed : int, optional
        Look at one block only, drawn at random, and draw one other place for it, each legal one
        with equal probability; this costs what TVM's own mutator does. By default all are found.

    Returns
    -------
    dict of int to list of int
        By the number of the ``SampleComputeLocation`` decisions that are legal, ascending; -2 for
        inlining, -1 for a place of its own, else the number of a loop. Empty where there is none,
        or no other place was drawn.

    Raises
    ------
    Exception
        What TVM raises on a trace that does not fit.
    """
    numbers = [
        number
        for number, instruction in enumerate(items_of(trace.insts))
        if instruction.kind.name == "SampleComputeLocation"
    ]
    if not numbers:
        return {}
    rng = random.Random(seed)  # noqa: S311  chance, not security
    looked_at = set(numbers) if seed is None else {rng.choice(numbers)}
    # The first number that TVM draws is as small as the seed.
    schedule = _schedule(mod, rng.randint(1, _MOST_SEED))
    left = iter(numbers)
    found: dict[int, list[int]] = {}

    def note(instruction: Any, inputs: Any, _attrs: Any, decision: Any) -> Any:
        if instruction.kind.name == "SampleComputeLocation":
            number = next(left)
            if number in looked_at:
                found[number] = (
                    _legal(schedule, inputs[0])
                    if seed is None
                    else _drawn(schedule, inputs[0], decision)
                )
        return decision

    trace.apply_to_schedule(schedule, remove_postproc=True, decision_provider=note)
    return {number: places for number, places in found.items() if places}


def _legal(schedule: Schedule, block: Any) -> list[int]:
    """Return the legal locations of a block.

    TVM has no function for them, but ``sample_compute_location`` takes, of a decision that is not
    legal, the next lower one that is. It changes nothing in the module.
    """
    places: list[int] = []
    wanted = _PAST_ALL
    while wanted >= _INLINE:
        place = _sampled(schedule, block, wanted)
        if place > wanted:  # nothing is legal from there on: it fell back to the block's own place
            break
        places.append(place)
        wanted = place - 1
    return places[::-1]


def _drawn(schedule: Schedule, block: Any, current: Any) -> list[int]:
    """Return a legal location of a block that is not the current one, if a few draws find one."""
    for _ in range(_DRAWS):
        place = _sampled(schedule, block, None)
        if place != current:
            return [place]
    return []


def _sampled(schedule: Schedule, block: Any, wanted: int | None) -> int:
    schedule.sample_compute_location(block, decision=wanted)
    trace = schedule.trace
    return int(trace.get_decision(trace.insts[-1]))


def extents(trace: Any, mod: IRModule) -> dict[str, list[list[int]]]:
    """Return the outer loops that may be fused into a parallel one.

    Parameters
    ----------
    trace : tvm Trace
        What is replayed.
    mod : IRModule
        The workload.

    Returns
    -------
    dict of str to list of list of int
        By the variable (its name in the stored form) of each block that is annotated with a bound
        for parallel loops: for each block in it the extents of the loops around it, outermost
        first, that ``RewriteParallelVectorizeUnroll`` may fuse: data-parallel ones of constant
        extent that are neither annotated nor bound, up to one that has several statements in it.

    Raises
    ------
    Exception
        What TVM raises on a trace that does not fit.
    """
    annotated = _annotated(from_tvm(trace))
    if not annotated:
        return {}
    schedule = replayed(trace, mod)
    return {
        variable: _outer_extents(schedule.get(schedule.get_sblock(name, function)).body)
        for variable, (name, function) in annotated.items()
    }


def most_parallel(target: Any, jobs_per_core: int = JOBS_PER_CORE) -> int | None:
    """Return the most parallel iterations for a target; None if it does not say its cores.

    Parameters
    ----------
    target : tvm Target
        What is tuned for.
    jobs_per_core : int
        How many each core gets.
    """
    cores = target.attrs.get("num-cores")
    return None if cores is None else int(cores) * jobs_per_core


def _annotated(draft: Draft) -> dict[str, tuple[str, str]]:
    """Return names and functions of the blocks with a bound for parallel loops."""
    blocks: dict[str, tuple[str, str]] = {}
    found: dict[str, tuple[str, str]] = {}
    for instruction in draft.instructions:
        if instruction.kind == "GetSBlock":
            blocks[instruction.outputs[0]] = instruction.attrs
        elif instruction.kind == "Annotate" and instruction.attrs[0] == _PARALLEL:
            variable = instruction.inputs[0]
            if variable in blocks:
                found[variable] = blocks[variable]
    return found


def _outer_extents(body: Any) -> list[list[int]]:
    nests = list(_nests(body, ()))
    reduced = set()
    for _, realize in nests:
        for var, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if var.iter_type != tirx.IterVar.DataPar:
                reduced.update(undefined_vars(value))
    made = []
    for loops, _ in nests:
        outer = []
        for loop in loops:
            if not _is_fusible(loop) or loop.loop_var in reduced:
                break
            outer.append(int(loop.extent))
            if isinstance(loop.body, tirx.SeqStmt):
                break
        made.append(outer)
    return made


def _is_fusible(loop: Any) -> bool:
    is_bound = loop.kind == tirx.ForKind.THREAD_BINDING or len(loop.annotations) > 0
    return isinstance(loop.extent, tirx.IntImm) and not is_bound


def _nests(stmt: Any, loops: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the loops around each block inside of a statement, and what realizes the block."""
    if isinstance(stmt, tirx.For):
        yield from _nests(stmt.body, (*loops, stmt))
    elif isinstance(stmt, tirx.SeqStmt):
        for part in items_of(stmt.seq):
            yield from _nests(part, loops)
    elif isinstance(stmt, SBlockRealize):
        yield loops, stmt
