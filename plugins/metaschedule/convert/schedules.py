"""The transformations of auto_scheduler's stages, applied to a schedule of TVM of today.

The trace of the schedule is MetaSchedule's: where the lengths of a split divide its extent they are
the decision of a ``SamplePerfectTile``, splits that follow it use its variables, and the limit of
unrolling is a ``SampleCategorical``. So records of one sketch share the instructions and differ in
numbers alone, and a search can mutate them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import postproc
from tvm.tirx import IntImm

from ..compat import arguments_of, buffer_of
from .stages import (
    REDUCTION,
    Align,
    Annotate,
    CacheRead,
    CacheWrite,
    Creation,
    Fuse,
    Loop,
    Plan,
    Reorder,
    ReplayError,
    Rfactor,
    Split,
    Stage,
    Unroll,
)
from .workloads import DefinedWorkload

#: Limits of unrolling among which auto_scheduler draws (``sketch_policy.cc``): 1024 on GPUs alone.
UNROLL_STEPS = (0, 16, 64, 512, 1024)

#: Largest innermost factor of MetaSchedule's tiles; a larger one in the log raises it.
INNERMOST = 64

_VTHREAD = "vthread.x"


class Choice(NamedTuple):
    """A sampling instruction: the step that it stands for, and the extent of the loop of a tile."""

    step: int
    extent: int | None


class Replayed(NamedTuple):
    """A schedule with all transformations of a plan.

    Parameters
    ----------
    schedule : tvm.s_tir.Schedule
        The schedule.
    choices : list of Choice or None
        Its sampling instructions in their order; None where a number in the log is in another
        instruction, too.
    """

    schedule: Schedule
    choices: list[Choice] | None


def scheduled(workload: DefinedWorkload, plan: Plan, *, rewrites_layout: bool = False) -> Replayed:
    """Replay a plan on a schedule of a workload.

    Parameters
    ----------
    workload : DefinedWorkload
        The workload.
    plan : Plan
        Result of :func:`.stages.plan_of` on the workload's stages.
    rewrites_layout : bool
        Whether inputs that the definition marks as free in layout get that of their reader.

    Raises
    ------
    ReplayError
        The plan needs what TVM's schedules of today cannot do.
    Exception
        TVM refuses a transformation; it raises any class.
    """
    replayer = _Replayer(workload, plan)
    schedule = replayer.run()
    before = len(schedule.trace.insts)
    if rewrites_layout and not postproc.RewriteLayout().apply(schedule):
        raise ReplayError("TVM cannot rewrite the layout of an input")
    # A layout is written with the numbers of the tiles.
    has_literals = replayer.has_literals or len(schedule.trace.insts) > before
    return Replayed(schedule, None if has_literals else replayer.choices)


class _Replayer:
    """A schedule during the replay of a plan."""

    def __init__(self, workload: DefinedWorkload, plan: Plan) -> None:
        self._workload = workload
        self._plan = plan
        self._schedule = Schedule(workload.mod, seed=1, debug_mask="none")
        self._blocks: dict[Stage, Any] = {}
        self._arguments: dict[Stage, Any] = {}
        #: Loop variables of finished stages.
        self._loops: dict[Loop, Any] = {}
        #: Variables of the tiles of splits, outermost first.
        self._tiles: dict[Split, list[Any]] = {}
        #: Partial stages, whose nest and block have other orders of loops than their axes.
        self._partial: dict[Stage, Rfactor] = {}
        #: Loop variables of untransformed stages.
        self._roots: dict[Stage, dict[Loop, Any]] = {}
        self.choices: list[Choice] = []
        #: Whether a length in the log is a literal of an instruction.
        self.has_literals = False

    def run(self) -> Schedule:
        made = {id(creation.stage) for creation in self._plan.creations}
        original = [stage for stage in self._plan.stages if id(stage) not in made]
        parameters = arguments_of(self._workload.mod["main"])
        for stage, operation in zip(original, self._workload.operations, strict=True):
            if operation.block is None:
                self._arguments[stage] = parameters[operation.argument]
            else:
                self._blocks[stage] = self._schedule.get_sblock(operation.block)
        for creation in self._plan.creations:
            self._create(creation)
        stages = [stage for stage in self._plan.stages if not stage.is_input]
        for stage in stages:
            if stage.is_inlined:
                self._schedule.compute_inline(self._blocks[stage])
        stages = [stage for stage in stages if not stage.is_inlined]
        for stage in stages:
            self._sample_tiles(stage)
        for stage in reversed(stages):
            self._transform(stage)
        self._schedule.enter_postproc()
        # auto_scheduler's reductions are initialised where their stage is attached.
        if not postproc.RewriteReductionBlock().apply(self._schedule):
            raise ReplayError("TVM cannot initialise a reduction where the log does")
        return self._schedule

    # ------------------------------------------------------------------ new stages

    def _create(self, creation: Creation) -> None:
        match creation:
            case CacheRead():
                self._cache_read(creation)
            case CacheWrite():
                # TVM's new block is the copy: the block that computes keeps its name.
                block = self._blocks[creation.copy]
                self._blocks[creation.copy] = self._schedule.cache_write(block, 0, creation.scope)
                self._blocks[creation.stage] = block
            case Rfactor():
                self._rfactor(creation)

    def _cache_read(self, creation: CacheRead) -> None:
        if creation.producer.is_input:
            buffer = self._arguments[creation.producer]
        else:
            buffer = buffer_of(self._schedule.get(self._blocks[creation.producer]).writes[0])
        readers = [self._blocks[reader] for reader in creation.readers]
        reads = [buffer_of(region) for region in self._schedule.get(readers[0]).reads]
        number = next((i for i, read in enumerate(reads) if read.same_as(buffer)), None)
        if number is None:
            raise ReplayError(f"{creation.readers[0].name} does not read {creation.producer.name}")
        self._blocks[creation.stage] = self._schedule.cache_read(
            readers[0], number, creation.scope, readers
        )

    def _rfactor(self, creation: Rfactor) -> None:
        block = self._blocks[creation.combined]
        loops = dict(zip(creation.axes, self._schedule.get_loops(block), strict=True))
        for action in creation.actions:
            self._act(block, loops, action, None)
        self._blocks[creation.stage] = self._schedule.rfactor(loops[creation.loop], creation.axis)
        self._partial[creation.stage] = creation

    # ------------------------------------------------------------------ one stage

    def _sample_tiles(self, stage: Stage) -> None:
        """Sample the tiles of a stage's untransformed loops.

        It precedes all movements: in an attached stage only the inner parts of a loop are left.
        """
        for action in stage.actions:
            if isinstance(action, Split) and action.is_perfect and not action.loop.parents:
                loop = self._root_loops(stage)[action.loop]
                self._tiles[action] = self._sample(loop, action)

    def _sample(self, loop: Any, split: Split) -> list[Any]:
        factors = [split.loop.extent // prod(split.lengths), *split.lengths]
        self.choices.append(Choice(split.step, split.loop.extent))
        return list(
            self._schedule.sample_perfect_tile(
                loop,
                n=len(factors),
                max_innermost_factor=max(INNERMOST, factors[-1]),
                decision=factors,
            )
        )

    def _transform(self, stage: Stage) -> None:
        block = self._blocks[stage]
        place = stage.place
        loops = self._root_loops(stage) if place is None else self._attach(stage, *place)
        last = []
        for action in stage.actions:
            if isinstance(action, Annotate | Unroll | Align):
                last.append(action)
            else:
                self._act(block, loops, action, place)
        for action in last:
            self._annotate(stage, loops, action)
        self._loops.update(loops)

    def _root_loops(self, stage: Stage) -> dict[Loop, Any]:
        """Return the loops of a stage that is attached nowhere, before its transformations."""
        loops = self._roots.get(stage)
        if loops is None:
            ordered = [*stage.spatial, *stage.reduction]
            creation = self._partial.get(stage)
            # TVM keeps the nest of the stage that was factored; auto_scheduler orders the axes.
            axes = ordered if creation is None else creation.nest
            variables = self._schedule.get_loops(self._blocks[stage]) if axes else []
            loops = self._roots[stage] = dict(zip(axes, variables, strict=True))
            if axes != ordered:
                self._schedule.reorder(*(loops[loop] for loop in ordered))
        return dict(loops)

    def _attach(self, stage: Stage, consumer: Stage, loop: Loop) -> dict[Loop, Any]:
        """Move a stage's block to its place and return its loops there."""
        target = self._loops.get(loop.last)
        if target is None:
            raise ReplayError(f"{stage.name} is attached to {consumer.name}, which is inlined")
        block = self._blocks[stage]
        self._schedule.compute_at(block, target, preserve_unit_loops=True)
        axes = self._block_axes(stage)
        loops = self._schedule.get_loops(block)
        return dict(zip(axes, loops[len(loops) - len(axes) :], strict=True))

    def _block_axes(self, stage: Stage) -> list[Loop]:
        """Return a stage's axes in the order of its block's variables.

        TVM makes a loop for each of them when it moves the block.
        """
        creation = self._partial.get(stage)
        spatial = list(stage.spatial)
        if creation is not None:
            # The variable of the factored loop comes first.
            spatial.insert(0, spatial.pop(creation.axis))
        of_kind = {True: iter(stage.reduction), False: iter(spatial)}
        variables = self._schedule.get(self._blocks[stage]).iter_vars
        return [next(of_kind[int(each.iter_type) == REDUCTION]) for each in variables]

    def _act(
        self,
        block: Any,
        loops: dict[Loop, Any],
        action: Any,
        place: tuple[Stage, Loop] | None,
    ) -> None:
        """Apply a transformation of loops."""
        match action:
            case Split():
                loop = loops.pop(action.loop)
                parts = self._split(loop, action, place)
                loops.update(zip(action.parts, parts, strict=True))
            case Reorder():
                if len(action.loops) > 1:
                    self._schedule.reorder(*(loops[loop] for loop in action.loops))
            case Fuse(loops=[]):
                outermost = next(iter(loops.values()), block)
                loops[action.fused] = self._schedule.add_unit_loop(outermost)
            case Fuse():
                fused = [loops.pop(loop) for loop in action.loops]
                loops[action.fused] = self._schedule.fuse(*fused)

    def _split(self, loop: Any, split: Split, place: tuple[Stage, Loop] | None) -> Sequence[Any]:
        extent = self._schedule.get(loop).extent
        if not isinstance(extent, IntImm):
            raise ReplayError("a loop of an attached stage has no constant extent")
        factors = self._factors(loop, int(extent), split, place)
        parts: Sequence[Any] = self._schedule.split(loop, factors)
        return parts

    def _factors(
        self, loop: Any, extent: int, split: Split, place: tuple[Stage, Loop] | None
    ) -> list[Any]:
        """Return the factors of a split, outermost first; TVM computes the one that is None."""
        lengths = split.lengths
        if not split.is_inner:
            self.has_literals = True
            return [*lengths, None]
        if split.source is None and not split.is_free:
            # Threads that fetch together are those of the block, also for fewer elements.
            self.has_literals = True
            return [None, *lengths]
        if split.source in self._tiles and extent == split.source.loop.extent:
            return [*self._tiles[split.source][: len(lengths)], None]
        if place is None and split.is_perfect and split not in self._tiles:
            self._tiles[split] = self._sample(loop, split)
        tile = self._tiles.get(split)
        if tile is not None:
            outside = 0 if place is None else _outside(split, *place)
            if outside == 0 and extent == split.loop.extent:
                return tile
            if outside and extent == prod(lengths[outside - 1 :]):
                return [None, *[1] * (outside - 1), *tile[outside:]]
        self.has_literals = True
        return [None, *_clipped(lengths, extent)]

    # ------------------------------------------------------------------ annotations

    def _annotate(
        self, stage: Stage, loops: dict[Loop, Any], action: Annotate | Unroll | Align
    ) -> None:
        schedule = self._schedule
        if isinstance(action, Align):
            axis = next((i for i, loop in enumerate(stage.spatial) if loop is action.loop), None)
            if axis is None:
                raise ReplayError("only an untransformed loop can be aligned")
            schedule.storage_align(self._blocks[stage], 0, axis, action.factor, action.offset)
            return
        loop = loops[action.loop.last]
        if isinstance(action, Unroll):
            candidates = sorted({*UNROLL_STEPS, action.steps})
            self.choices.append(Choice(action.step, None))
            steps = schedule.sample_categorical(
                candidates, [1 / len(candidates)] * len(candidates), candidates.index(action.steps)
            )
            schedule.annotate(loop, "pragma_auto_unroll_max_step", steps)
            schedule.annotate(loop, "pragma_unroll_explicit", 1)
            return
        match action.annotation:
            case "none":
                return
            case "unroll" | "vectorize" | "parallel" as method:
                getattr(schedule, method)(loop)
            case "vthread":
                schedule.bind(loop, _VTHREAD)
            case thread:
                schedule.bind(loop, thread)


def _outside(split: Split, consumer: Stage, loop: Loop) -> int:
    """Return how many parts of an attached stage's tile are loops of the consumer, from outside."""
    above = {*consumer.loops[: consumer.loops.index(loop.last) + 1]}
    for action in consumer.actions:
        if isinstance(action, Split) and action.source is split:
            parts = [part.last in above for part in action.parts]
            return len(split.parts) if all(parts) else parts.index(False)
    return 0


def _clipped(lengths: Sequence[int], extent: int) -> list[int]:
    """Return lengths that an attached stage's loop has room for, the innermost ones first."""
    clipped: list[int] = []
    rest = extent
    for length in reversed(lengths):
        clipped.insert(0, min(length, rest))
        rest = -(-rest // clipped[0])
    return clipped
