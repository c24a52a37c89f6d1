"""Schedules of drafts: TVM's form of a draft, its replay, and facts that only a schedule knows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.s_tir.schedule import _ffi_api as _api
from tvm.tirx.analysis import undefined_vars

from ....search.draft import Draft
from .. import trace_codec
from ..compat import sblock_types, walk
from ..modules import shield
from ..trace_codec import TraceBuilder, items_of

_PARALLEL = "meta_schedule.parallel"
#: No loop has this number: TVM returns the last legal location.
_PAST_ALL = 2**31 - 1
_INLINE = -2
#: Tries for another place: they miss that of a block with two places once in eight times.
_DRAWS = 3

#: Greatest seed of TVM's random states.
MOST_SEED = 2**31 - 2

#: No verification after each step, and no text of errors (``ScheduleErrorRenderLevel``).
_NO_CHECKS = 0
_SILENT = 2

#: Most operations of a program, as a multiple of the least of the task's programs. A block that is
#: computed in a loop which its values do not depend on repeats its work: of 24 random programs of a
#: softmax over 256 rows, seven do 17 to 136 times the work of the others.
_MOST_OPERATIONS = 4.0

#: Parallel iterations per core that MetaSchedule's rules for CPUs allow.
_JOBS_PER_CORE = 16


def from_tvm(trace: Any) -> Draft:
    """Return a trace of TVM as a draft; its post-processing is dropped.

    Parameters
    ----------
    trace : tvm Trace
        A trace of this TVM.

    Raises
    ------
    UnknownInstructionError
        TVM cannot write the trace as JSON.
    """
    return Draft.from_trace(trace_codec.encode(trace))


def to_tvm(draft: Draft, builder: TraceBuilder) -> Any:
    """Return a draft as a trace of TVM.

    Parameters
    ----------
    draft : Draft
        Program to convert.
    builder : TraceBuilder
        Cache of the instructions of each sketch.

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
        Trace to replay; decisions that it lacks are drawn.
    mod : IRModule
        Workload.
    seed : int
        Seed for the decisions that are drawn.

    Raises
    ------
    Exception
        The trace does not apply to the module; TVM raises several classes.
    """
    schedule = _schedule(mod, seed)
    trace.apply_to_schedule(schedule, remove_postproc=True)
    return schedule


def _schedule(mod: IRModule, seed: int) -> Schedule:
    return Schedule(mod, seed=seed, debug_mask="none", error_render_level="none")


def locations(trace: Any, mod: IRModule, *, seed: int | None = None) -> dict[int, list[int]]:
    """Return the legal locations of each block with a sampled one, the other blocks unmoved.

    Finding all legal places takes longer than replaying (10 to 100 ms for a block of a
    convolution). A mutation needs only one place.

    Parameters
    ----------
    trace : tvm Trace
        Trace to replay.
    mod : IRModule
        Workload.
    seed : int, optional
        Draw one block, and one other place for it, each legal one with equal probability; this
        costs as much as TVM's own mutator. By default all places of all blocks.

    Returns
    -------
    dict of int to list of int
        Number of the ``SampleComputeLocation`` → the legal decisions, ascending: -2 for inlining,
        -1 for a place of its own, else the number of a loop. Empty if there is none, or no other
        place was drawn.

    Raises
    ------
    Exception
        The trace does not apply to the module; TVM raises several classes.
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
    schedule = _schedule(mod, rng.randint(1, MOST_SEED))
    remaining = iter(numbers)
    places: dict[int, list[int]] = {}

    def look(instruction: Any, inputs: Any, _attrs: Any, decision: Any) -> Any:
        if instruction.kind.name == "SampleComputeLocation":
            number = next(remaining)
            if number in looked_at:
                places[number] = (
                    _legal_places(schedule, inputs[0])
                    if seed is None
                    else _drawn_place(schedule, inputs[0], decision)
                )
        return decision

    trace.apply_to_schedule(schedule, remove_postproc=True, decision_provider=look)
    return {number: legal for number, legal in places.items() if legal}


# TVM exports no function for the legal locations, but ``sample_compute_location`` replaces an
# illegal decision by the next lower legal one. It does not change the module.
def _legal_places(schedule: Schedule, block: Any) -> list[int]:
    """Return the legal locations of a block, ascending."""
    places: list[int] = []
    wanted = _PAST_ALL
    while wanted >= _INLINE:
        place = _sampled(schedule, block, wanted)
        if place > wanted:  # nothing is legal from there on: it fell back to the block's own place
            break
        places.append(place)
        wanted = place - 1
    return places[::-1]


def _drawn_place(schedule: Schedule, block: Any, current: Any) -> list[int]:
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
        Trace to replay.
    mod : IRModule
        Workload.

    Returns
    -------
    dict of str to list of list of int
        Variable (its name in the stored form) of each block with a bound for parallel loops → for
        each block in it the extents of the loops around it, outermost first, that
        ``RewriteParallelVectorizeUnroll`` may fuse: data-parallel loops of constant extent without
        annotation and binding, up to a loop with several statements.

    Raises
    ------
    Exception
        The trace does not apply to the module; TVM raises several classes.
    """
    annotated = parallel_blocks(from_tvm(trace))
    if not annotated:
        return {}
    schedule = replayed(trace, mod)
    return {
        variable: _outer_extents(schedule.get(schedule.get_sblock(name, function)).body)
        for variable, (name, function) in annotated.items()
    }


def most_parallel(target: Any) -> int | None:
    """Return the most parallel iterations for a target; None if its cores are unknown.

    Parameters
    ----------
    target : tvm Target
        Target of the tuning run.
    """
    cores = target.attrs.get("num-cores")
    return None if cores is None else int(cores) * _JOBS_PER_CORE


def parallel_blocks(draft: Draft) -> dict[str, tuple[str, str]]:
    """Return names and functions of the blocks with a bound for parallel loops, by variable."""
    blocks: dict[str, tuple[str, str]] = {}
    annotated: dict[str, tuple[str, str]] = {}
    for instruction in draft.instructions:
        if instruction.kind == "GetSBlock":
            blocks[instruction.outputs[0]] = instruction.attrs
        elif instruction.kind == "Annotate" and instruction.attrs[0] == _PARALLEL:
            variable = instruction.inputs[0]
            if variable in blocks:
                annotated[variable] = blocks[variable]
    return annotated


def _outer_extents(body: Any) -> list[list[int]]:
    nests = list(_nests(body, ()))
    reduced = set()
    for _, realize in nests:
        for var, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if var.iter_type != tirx.IterVar.DataPar:
                reduced.update(undefined_vars(value))
    extents_of_nests = []
    for loops, _ in nests:
        outer = []
        for loop in loops:
            if not _is_fusible(loop) or loop.loop_var in reduced:
                break
            outer.append(int(loop.extent))
            if isinstance(loop.body, tirx.SeqStmt):
                break
        extents_of_nests.append(outer)
    return extents_of_nests


def _is_fusible(loop: Any) -> bool:
    is_bound = loop.kind == tirx.ForKind.THREAD_BINDING or len(loop.annotations) > 0
    return isinstance(loop.extent, tirx.IntImm) and not is_bound


def _nests(stmt: Any, loops: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the loops around each block inside a statement, and the realization of the block."""
    if isinstance(stmt, tirx.For):
        yield from _nests(stmt.body, (*loops, stmt))
    elif isinstance(stmt, tirx.SeqStmt):
        for child in items_of(stmt.seq):
            yield from _nests(child, loops)
    elif isinstance(stmt, sblock_types()[1]):
        yield loops, stmt


# ---- the programs of a task ----------------------------------------------------------------------


class DraftReplayer:
    """Schedules of drafts and stored traces on the module of one task, made on threads.

    A draft is legal if all its instructions apply and every postprocessor accepts the result, as
    MetaSchedule decides it for its own traces, and if no other program of the task computes with a
    quarter of the operations, or with vectors of consecutive elements where this one has others.

    Parameters
    ----------
    mod : tvm IRModule
        Module of the task.
    postprocs : sequence of tvm Postproc
        Those of the task's space generator, initialised.
    threads : int
        Drafts to replay at a time; TVM releases the GIL meanwhile.
    seed : int
        Seed of the decisions that a draft leaves to TVM. Equal calls in equal order give equal
        schedules, whatever the number of threads.
    """

    def __init__(self, mod: Any, postprocs: Sequence[Any], *, threads: int, seed: int) -> None:
        self.mod = mod
        self._shield = shield(mod)
        self._postprocs = list(postprocs)
        self._threads = threads
        self._random = random.Random(seed)  # noqa: S311  chance, not security
        self._builder = TraceBuilder()
        self._least_operations, self._least_gathers = math.inf, math.inf

    def schedules(self, drafts: Sequence[Draft]) -> list[Any]:
        """Return the schedule of each draft, postprocessed; None for an illegal draft."""
        schedules = self._map(self._postprocessed, drafts)
        costs = [
            (0.0, math.inf) if each is None else (_operations(each.mod), gathers(each.mod))
            for each in schedules
        ]
        self._least_operations = min([self._least_operations, *(n for n, _ in costs if n > 0)])
        self._least_gathers = min([self._least_gathers, *(gathered for _, gathered in costs)])
        most = _MOST_OPERATIONS * self._least_operations
        return [
            each if operations <= most and gathered <= self._least_gathers else None
            for each, (operations, gathered) in zip(schedules, costs, strict=True)
        ]

    def stored_schedules(self, traces: Sequence[Any]) -> list[Any]:
        """Return the schedules of whole traces, with the postprocessing that they name.

        Parameters
        ----------
        traces : sequence of tvm Trace
            Traces of stored records.

        Returns
        -------
        list of tvm Schedule or None
            None for a trace that does not apply.
        """
        return self._map(self._stored_schedule, traces)

    def ask(self, query: Callable[[Any, IRModule], dict[Any, Any]], draft: Draft) -> dict[Any, Any]:
        """Return the result of a query on a draft's trace; empty if it does not apply."""
        try:
            return query(self._trace(draft), self.mod)
        except Exception:  # TVM raises several classes; nothing can be changed then
            return {}

    def draw_seed(self) -> int:
        """Draw a seed for TVM."""
        return self._random.randint(1, MOST_SEED)

    def _map(self, schedule_of: Callable[[Any, int], Any], items: Sequence[Any]) -> list[Any]:
        seeds = [self.draw_seed() for _ in items]
        if self._threads == 1 or len(items) < 2:
            return [schedule_of(*pair) for pair in zip(items, seeds, strict=True)]
        with ThreadPoolExecutor(min(self._threads, len(items))) as threads:
            return list(threads.map(schedule_of, items, seeds))

    def _trace(self, draft: Draft) -> Any:
        return self._builder.build_or_replay(draft.trace(), self.mod)

    def _postprocessed(self, draft: Draft, seed: int) -> Any:
        try:
            schedule = self._new_schedule(seed)
            self._trace(draft).apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            return schedule if all(rule.apply(schedule) for rule in self._postprocs) else None
        except Exception:  # TVM raises ScheduleError, InternalError, ValueError, …
            return None

    def _stored_schedule(self, trace: Any, seed: int) -> Any:
        try:
            schedule = self._new_schedule(seed)
            trace.apply_to_schedule(schedule, remove_postproc=False)
            return schedule
        except Exception:  # as above
            return None

    def _new_schedule(self, seed: int) -> Any:
        # Schedule(...) checks the types of its arguments, which takes a tenth of a replay.
        return _api.TracedSchedule(self.mod, seed, _NO_CHECKS, _SILENT, True)


def gathers(mod: IRModule) -> int:
    """Return the accesses of reductions to elements that do not stand in a row in a vector loop.

    Where a whole row is shorter than a vector, MetaSchedule fuses the loop of the next axis into
    the vector loop. An access that depends on one of the two axes then becomes scalar accesses:
    seven such convolutions reached 2 to 32 % of the throughput of the best program.

    Parameters
    ----------
    mod : tvm IRModule
        A scheduled module.
    """
    found = 0
    for func in mod.functions.values():
        vectors: list[Any] = []
        walk(func, tirx.For, vectors.append)
        for loop in vectors:
            if loop.kind != tirx.ForKind.VECTORIZED:
                continue
            realizes: list[Any] = []
            walk(loop.body, sblock_types()[1], realizes.append)
            found += sum(_gathers(realize, loop.loop_var) for realize in realizes)
    return found


def _gathers(realize: Any, vector: Any) -> int:
    """Return the regions of a block that use some, but not all of the axes in a vector loop."""
    axes = list(zip(realize.block.iter_vars, realize.iter_values, strict=True))
    fused = {axis.var for axis, value in axes if vector in undefined_vars(value)}
    if len(fused) < 2 or all(axis.iter_type == tirx.IterVar.DataPar for axis, _ in axes):
        return 0
    used = [
        fused & {var for range_ in each.region for var in undefined_vars(range_.min)}
        for each in (*realize.block.reads, *realize.block.writes)
    ]
    return sum(0 < len(each) < len(fused) for each in used)


def _operations(mod: IRModule) -> float:
    """Return the arithmetic operations of a scheduled module; 0 where TVM cannot count them."""
    try:
        return float(estimate_tir_flops(mod))
    except Exception:  # TVM raises several classes, e.g. for a loop of unknown length
        return 0.0
