"""Steps of auto_scheduler, replayed on stages and loops without TVM.

auto_scheduler's schedules infer bounds at the end: a stage is tiled first and attached later, and
its outer loops then have extent 1. TVM's schedules of today regenerate the loops of a block that
they move. So the steps are replayed here on symbols, and :mod:`.schedules` applies the result to a
schedule stage by stage, consumers first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

from ....errors import FormatError
from ....programs.ansor import ANNOTATIONS, UNROLL

#: Type of the axes of a reduction (TVM's ``IterVar.kCommReduce``).
REDUCTION = 2


class ReplayError(FormatError):
    """The steps do not fit the definition of the workload."""


class Loop:
    """A loop of a stage.

    Parameters
    ----------
    extent : int
        Its extent; 0 if unknown, as in a stage that is attached to a loop.
    parents : tuple of Loop
        The loops of which a split or a fusion made it.
    """

    __slots__ = ("extent", "parents", "successor")

    def __init__(self, extent: int, parents: tuple[Loop, ...] = ()) -> None:
        self.extent: int = extent
        self.parents: tuple[Loop, ...] = parents
        self.successor: Loop | None = None

    @property
    def last(self) -> Loop:
        """The loop of the finished stage to which attachments of this loop moved."""
        loop = self
        while loop.successor is not None:
            loop = loop.successor
        return loop


@dataclass(eq=False, slots=True)
class Split:
    """``SP``, ``FSP``, ``FFSP``: a loop becomes several.

    Parameters
    ----------
    loop : Loop
        The loop.
    parts : list of Loop
        Its parts, outermost first.
    lengths : list of int
        The extents of all parts but one.
    is_inner : bool
        True if the outermost part has no length, False if the innermost one has none.
    is_free : bool
        True for a ``SP``, whose lengths the search chose.
    source : Split or None
        For a ``FSP`` the split that it follows.
    step : int
        Number of the step; -1 unless the search chose its lengths.
    """

    loop: Loop
    parts: list[Loop]
    lengths: list[int]
    is_inner: bool
    is_free: bool = False
    source: Split | None = None
    step: int = -1

    @property
    def is_perfect(self) -> bool:
        """Whether it is a tile: the search chose lengths that divide the extent."""
        return (
            self.is_free
            and self.is_inner
            and self.loop.extent > 0
            and self.loop.extent % prod(self.lengths) == 0
        )


@dataclass(slots=True)
class Fuse:
    """``FU``: consecutive loops become one; none become a unit loop."""

    loops: list[Loop]
    fused: Loop


@dataclass(slots=True)
class Reorder:
    """``RE``: all loops of a stage in a new order."""

    loops: list[Loop]


@dataclass(slots=True)
class Annotate:
    """``AN``: a loop is unrolled, vectorised, parallel or bound to a thread axis."""

    loop: Loop
    annotation: str


@dataclass(slots=True)
class Unroll:
    """``PR``: statements below a loop are unrolled up to a number of steps.

    Parameters
    ----------
    loop : Loop
        The loop.
    steps : int
        The number.
    step : int
        Number of the step in the log.
    """

    loop: Loop
    steps: int
    step: int


@dataclass(slots=True)
class Align:
    """``SA``: storage of a dimension is padded."""

    loop: Loop
    factor: int
    offset: int


Action: TypeAlias = Split | Fuse | Reorder | Annotate | Unroll | Align


@dataclass(slots=True)
class CacheRead:
    """``CHR``: a new stage copies what another stage wrote, for some readers."""

    stage: Stage
    producer: Stage
    readers: list[Stage]
    scope: str


@dataclass(slots=True)
class CacheWrite:
    """``CHW``: a new stage computes, and the old one copies the result."""

    stage: Stage
    copy: Stage
    scope: str


@dataclass(slots=True)
class Rfactor:
    """``RF``: a new stage computes partial results, and the old one combines them.

    Parameters
    ----------
    stage, combined : Stage
        The new stage and the old one.
    axes : list of Loop
        Loops of the old stage before its transformations.
    actions : list
        Transformations of the old stage before this step.
    loop : Loop
        The loop of the reduction that becomes an axis.
    axis : int
        Position of that axis in the partial results.
    nest : list of Loop
        Loops of the new stage in the order of the old one.
    """

    stage: Stage
    combined: Stage
    axes: list[Loop]
    actions: list[Action]
    loop: Loop
    axis: int
    nest: list[Loop]


Creation: TypeAlias = CacheRead | CacheWrite | Rfactor


@dataclass(eq=False, slots=True)
class Stage:
    """An operation of the workload, or one that a step made.

    Parameters
    ----------
    name : str
        Its name, for messages.
    spatial, reduction : list of Loop
        Loops of the untransformed stage.
    is_input : bool
        Whether it is a placeholder.

    Attributes
    ----------
    loops : list of Loop
        Its loops after the steps so far.
    actions : list
        Its transformations in order.
    place : tuple of (Stage, Loop) or None
        Where it is attached.
    is_inlined : bool
        Whether its consumers compute it.
    is_touched : bool
        Whether a step is about it, or made it.
    """

    name: str
    spatial: list[Loop]
    reduction: list[Loop] = field(default_factory=list)
    is_input: bool = False
    loops: list[Loop] = field(init=False)
    actions: list[Action] = field(default_factory=list)
    place: tuple[Stage, Loop] | None = None
    is_inlined: bool = False
    is_touched: bool = False

    def __post_init__(self) -> None:
        self.loops = [*self.spatial, *self.reduction]

    def begin(self, spatial: list[Loop], reduction: list[Loop]) -> None:
        """Start again with fresh loops."""
        self.spatial, self.reduction = spatial, reduction
        self.loops = [*spatial, *reduction]
        self.actions = []


def stage_of(
    name: str, spatial: Sequence[int], reduction: Sequence[int] = (), *, is_input: bool = False
) -> Stage:
    """Return a stage with loops of these extents."""
    return Stage(name, list(map(Loop, spatial)), list(map(Loop, reduction)), is_input)


@dataclass(slots=True)
class Plan:
    """The transformations of all stages.

    Parameters
    ----------
    stages : list of Stage
        Producers before consumers, those that steps made included.
    creations : list
        What made new stages, in the order of the steps.
    """

    stages: list[Stage]
    creations: list[Creation] = field(default_factory=list)


def plan_of(stages: list[Stage], steps: Sequence[Sequence[Any]]) -> Plan:
    """Replay steps on the stages of a workload.

    Parameters
    ----------
    stages : list of Stage
        Untransformed stages in auto_scheduler's order; they are changed.
    steps : sequence
        Steps as in the log (:func:`tunedb.programs.ansor.join_steps`).

    Raises
    ------
    ReplayError
        A step does not fit the stages.
    """
    replay = _Replay(stages)
    for number, step in enumerate(steps):
        try:
            replay.apply(number, step)
        except ReplayError as error:
            raise ReplayError(f"step {number} ({step[0]}): {error}") from None
    return replay.plan


class _Replay:
    """Stages during a replay; a method for each kind of step."""

    def __init__(self, stages: list[Stage]) -> None:
        self.plan = Plan(stages)
        self._stages = stages
        self._splits: dict[int, Split] = {}
        self._number = 0

    def apply(self, number: int, step: Sequence[Any]) -> None:
        self._number = number
        code, stage, *arguments = step
        method = getattr(self, f"_{code.lower()}", None)
        if method is None:
            raise ReplayError("a kind of step that cannot be replayed")
        subject = self._stage(stage)
        subject.is_touched = True
        method(subject, *arguments)

    def _stage(self, number: int) -> Stage:
        if not 0 <= number < len(self._stages):
            raise ReplayError(f"stage {number} of {len(self._stages)}")
        return self._stages[number]

    @staticmethod
    def _loop(stage: Stage, number: int) -> Loop:
        if not 0 <= number < len(stage.loops):
            raise ReplayError(f"loop {number} of the {len(stage.loops)} of {stage.name}")
        return stage.loops[number]

    def _source(self, number: int) -> Split:
        if number not in self._splits:
            raise ReplayError(f"it follows step {number}, which is no split before it")
        return self._splits[number]

    # ------------------------------------------------------------------ loops

    def _sp(self, stage: Stage, loop: int, extent: int, lengths: list[Any], is_inner: int) -> None:
        split = self._split(stage, loop, lengths, is_inner=bool(is_inner))
        actual = split.loop.extent
        if extent and actual and extent != actual:
            raise ReplayError(
                f"the log says extent {extent} for a loop of {stage.name}, the definition {actual}"
            )
        split.is_free, split.step = True, self._number
        self._splits[self._number] = split

    def _fsp(self, stage: Stage, loop: int, source: int, n_split: int) -> None:
        followed = self._source(source)
        if not 0 < n_split <= len(followed.lengths) or not followed.is_inner:
            raise ReplayError(f"{n_split} levels of a split of {len(followed.lengths)}")
        lengths = [*followed.lengths[: n_split - 1], prod(followed.lengths[n_split - 1 :])]
        self._split(stage, loop, lengths, is_inner=True).source = followed

    def _ffsp(self, stage: Stage, loop: int, sources: list[int], level: int, is_inner: int) -> None:
        followed = [self._source(source) for source in sources]
        if any(level >= len(split.lengths) for split in followed):
            raise ReplayError(f"level {level} of a split with fewer")
        length = prod(split.lengths[level] for split in followed)
        self._split(stage, loop, [length], is_inner=bool(is_inner))

    def _split(self, stage: Stage, number: int, lengths: list[Any], *, is_inner: bool) -> Split:
        loop = self._loop(stage, number)
        if not all(lengths):
            raise ReplayError("a length of the split is unknown or 0")
        outer = -(-loop.extent // prod(lengths))  # 0 if unknown
        extents = [outer, *lengths] if is_inner else [*lengths, outer]
        parts = [Loop(extent, (loop,)) for extent in extents]
        loop.successor = parts[-1]
        stage.loops[number : number + 1] = parts
        split = Split(loop, parts, list(lengths), is_inner)
        stage.actions.append(split)
        return split

    def _fu(self, stage: Stage, numbers: list[int]) -> None:
        loops = [self._loop(stage, number) for number in numbers]
        if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise ReplayError("the loops are not consecutive")
        fused = Loop(prod(loop.extent for loop in loops), tuple(loops))
        for loop in loops:
            loop.successor = fused
        start = numbers[0] if numbers else 0
        stage.loops[start : start + len(loops)] = [fused]
        stage.actions.append(Fuse(loops, fused))

    def _re(self, stage: Stage, order: list[int]) -> None:
        if sorted(order) != list(range(len(stage.loops))):
            raise ReplayError(f"no permutation of the {len(stage.loops)} loops of {stage.name}")
        stage.loops = [stage.loops[number] for number in order]
        stage.actions.append(Reorder(list(stage.loops)))

    def _an(self, stage: Stage, loop: int, number: int) -> None:
        annotation = ANNOTATIONS[number]
        if annotation == "tensorize":
            raise ReplayError("tensorize needs an intrinsic that the log lacks")
        stage.actions.append(Annotate(self._loop(stage, loop), annotation))

    def _pr(self, stage: Stage, loop: int, pragma: str) -> None:
        steps = pragma.removeprefix(UNROLL)
        if pragma == steps or not steps.isdecimal():
            raise ReplayError(f"the pragma {pragma[:40]!r} cannot be replayed")
        stage.actions.append(Unroll(self._loop(stage, loop), int(steps), self._number))

    def _sa(self, stage: Stage, loop: int, factor: int, offset: int) -> None:
        stage.actions.append(Align(self._loop(stage, loop), factor, offset))

    # ------------------------------------------------------------------ places

    def _ca(self, stage: Stage, target: int, loop: int) -> None:
        consumer = self._stage(target)
        if consumer is stage or consumer.is_input:
            raise ReplayError(f"{stage.name} cannot be attached to {consumer.name}")
        stage.place = consumer, self._loop(consumer, loop)
        # The log has the extents at that place, which are inferred.
        for moved in stage.loops:
            moved.extent = 0

    def _cr(self, stage: Stage) -> None:
        stage.place = None

    def _ci(self, stage: Stage) -> None:
        if stage.is_input:
            raise ReplayError("an input cannot be inlined")
        stage.is_inlined = True

    # ------------------------------------------------------------------ new stages

    def _chr(self, stage: Stage, scope: str, readers: list[int]) -> None:
        reading = [self._stage(reader) for reader in readers]
        if not reading or any(reader.is_input for reader in reading):
            raise ReplayError("no stage reads the copy")
        made = stage_of(f"{stage.name}.{scope}", [loop.extent for loop in stage.spatial])
        made.is_touched = True
        self._stages.insert(self._stages.index(stage) + 1, made)
        self.plan.creations.append(CacheRead(made, stage, reading, scope))

    def _chw(self, stage: Stage, scope: str) -> None:
        self._require_untouched(stage)
        made = Stage(f"{stage.name}.{scope}", stage.spatial, stage.reduction, is_touched=True)
        stage.begin([Loop(loop.extent) for loop in made.spatial], [])
        self._stages.insert(self._stages.index(stage), made)
        self.plan.creations.append(CacheWrite(made, stage, scope))

    def _rf(self, stage: Stage, number: int, axis: int) -> None:
        loop = self._loop(stage, number)
        n_spatial = len(stage.spatial)
        if stage.loops[:n_spatial] != stage.spatial or number < n_spatial:
            raise ReplayError(f"loop {number} of {stage.name} is no loop of a reduction")
        if axis > n_spatial:
            raise ReplayError(f"axis {axis} of {n_spatial + 1}")
        nest = [Loop(old.extent) for old in stage.loops]
        factored = nest[number]
        spatial = nest[:n_spatial]
        spatial.insert(axis, factored)
        rest = [new for new in nest[n_spatial:] if new is not factored]
        made = Stage(f"{stage.name}.rf", spatial, rest, is_touched=True)
        axes = [*stage.spatial, *stage.reduction]
        creation = Rfactor(made, stage, axes, stage.actions, loop, axis, nest)
        stage.begin([Loop(old.extent) for old in stage.spatial], [Loop(loop.extent)])
        self._stages.insert(self._stages.index(stage), made)
        self.plan.creations.append(creation)

    @staticmethod
    def _require_untouched(stage: Stage) -> None:
        if stage.is_input or stage.actions:
            raise ReplayError(f"{stage.name} was transformed before its result is cached")
