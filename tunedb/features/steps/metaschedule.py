"""The schedule that the instructions of a MetaSchedule sketch describe.

See :mod:`tunedb.programs.metaschedule.trace` for their stored form.

Variables of the trace identify blocks and loops. The final loops are known for blocks that keep
their loops, and unknown for blocks that are computed elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...errors import FormatError
from ...programs.metaschedule.instructions import INSTRUCTIONS, SAMPLING, TILINGS
from .formulas import Builder, Value
from .schedule import (
    MAX_LOOPS,
    Axis,
    Fetch,
    Loop,
    Pipeline,
    Schedule,
    scope_of,
    split_loop,
)
from .tasks import TaskStructure

#: Most instructions of a sketch and most blocks. Real ones stay below 200 and 30.
MAX_INSTRUCTIONS = 2048
_MAX_BLOCKS = 128

#: Most parts of one sampled tile.
_MAX_PARTS = 64

#: Annotations of the sketch that postprocessors carry out → their bindings.
_LIMITS = {
    "meta_schedule.parallel": "parallel_limit",
    "meta_schedule.vectorize": "vector_limit",
    "meta_schedule.unroll_explicit": "unroll_steps",
    "meta_schedule.unroll_implicit": "unroll_steps",
    "meta_schedule.vthread_extent": "vthread_extent",
    "meta_schedule.thread_extent_low_inclusive": "least_threads",
}


@dataclass(slots=True, eq=False)
class _ScheduledBlock:
    """A block of the schedule. ``loops`` is None while its loops are unknown."""

    name: str = ""
    loops: list[Loop] | None = None
    axes: list[Axis] = field(default_factory=list)
    tiles: int = 0
    is_tiled: bool = False
    fetch: Fetch | None = None
    is_write: bool = False
    place: Loop | None = None  # the innermost loop around a block that was moved
    reads: str = ""  # the block that a cache is for


def read_sketch(builder: Builder, instructions: Any, task: TaskStructure) -> Schedule:
    """Return the schedule of a sketch.

    Raises
    ------
    FormatError
        The sketch has no instructions, or too many.
    """
    if type(instructions) is not list or len(instructions) > MAX_INSTRUCTIONS:
        raise FormatError("a sketch that is not a list of instructions, or too long")
    reader = _InstructionReader(builder, task)
    try:
        reader.declare(instructions)
        for number, (kind, inputs, attrs, outputs) in enumerate(instructions):
            reader.read(number, kind, inputs, attrs, outputs)
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise FormatError(f"cannot read a sketch: {error!r:.200}") from None
    return reader.finish()


class _InstructionReader:
    """Follows the instructions of one sketch."""

    def __init__(self, builder: Builder, task: TaskStructure) -> None:
        self._builder = builder
        self._task = task
        self._schedule = Schedule()
        self._variables: dict[str, Any] = {}
        self._blocks: dict[str, _ScheduledBlock] = {}
        self._order: list[_ScheduledBlock] = []
        self._decided: dict[int, list[Value]] = {}
        self._literals: list[Value] = []
        self._used = 0

    # ------------------------------------------------------------------ numbers of the decisions

    def declare(self, instructions: list[Any]) -> None:
        """Lay out the slots: decisions in the order of their instructions, then literals."""
        n_literals = 0
        for number, (kind, inputs, _, outputs) in enumerate(instructions):
            n_literals += _count_literals(inputs)
            if kind in TILINGS:
                if len(outputs) > _MAX_PARTS:
                    raise ValueError("a tile of too many parts")
                self._decided[number] = self._builder.decision(number, len(outputs))
            elif kind in SAMPLING:
                self._decided[number] = self._builder.decision(number, None)
        self._literals = self._builder.literals(n_literals)

    def _value(self, item: Any) -> Any:
        """Return the value of an input: a variable, a literal, None."""
        if item == {}:
            self._used += 1
            return self._literals[self._used - 1]
        if isinstance(item, list):
            return [self._value(one) for one in item]
        return self._variables.get(item) if isinstance(item, str) else None

    # ------------------------------------------------------------------ instructions

    def read(
        self, number: int, kind: str, inputs: list[Any], attrs: list[Any], outputs: Any
    ) -> None:
        """Follow one instruction."""
        values = [self._value(item) for item in inputs]
        follow = None
        if kind not in INSTRUCTIONS:
            self._schedule.counts["unknown"] += 1
        else:
            if name := INSTRUCTIONS[kind].counts:
                self._schedule.counts[name] += 1
            follow = getattr(self, f"_{kind}", None)
        made = follow(number, values, attrs, outputs) if follow is not None else ()
        for name, value in zip(outputs, made, strict=False):
            self._variables[name] = value
        for name in outputs:
            if name.startswith("b") and self._variables.get(name) is None:
                self._variables[name] = self._new_block()

    def _new_block(self, name: str = "") -> _ScheduledBlock:
        block = _ScheduledBlock(name)
        if len(self._order) == _MAX_BLOCKS:
            raise ValueError("too many blocks")
        self._order.append(block)
        return block

    def _GetSBlock(self, _: int, __: Any, attrs: Any, ___: Any) -> list[_ScheduledBlock]:
        name = attrs[0]
        if name not in self._blocks:
            self._blocks[name] = self._new_block(name)
        return [self._blocks[name]]

    _GetBlock = _GetSBlock

    def _GetLoops(self, _: int, values: Any, __: Any, outputs: Any) -> list[Loop]:
        (block,) = values
        if len(outputs) > MAX_LOOPS:
            raise ValueError("too many loops")
        if block.loops is not None and len(block.loops) == len(outputs):
            return list(block.loops)
        known = self._task.block(block.name) if block.loops is None else None
        axes = [Axis(None) for _ in outputs]
        if known is not None and len(known.axes) == len(outputs):
            axes = [
                Axis(None if extent is None else self._builder.extent(extent), kind)
                for extent, kind in known.axes
            ]
        loops = [Loop.from_axis(axis) for axis in axes]
        if not block.tiles:  # the tiles of a block say more than its new loops
            block.axes, block.loops = axes, loops
        return list(loops)

    def _SamplePerfectTile(self, number: int, values: Any, _: Any, __: Any) -> list[Value]:
        parts = self._decided[number]
        loop = values[0]
        if isinstance(loop, Loop):
            if loop.extent is None:
                loop.extent = self._builder.product(parts)
                if len(loop.parts) == 1:
                    loop.parts[0][0].extent = loop.extent
            for block in self._holders(loop):
                block.tiles += 1
        return parts

    _SamplePartitionedTile = _SamplePerfectTile

    def _SampleCategorical(self, number: int, _: Any, attrs: Any, __: Any) -> list[Value | None]:
        candidates = [self._builder.const(candidate) for candidate in attrs[0]]
        return [self._builder.pick(candidates, self._decided[number][0])]

    def _SampleComputeLocation(self, number: int, _: Any, __: Any, ___: Any) -> tuple[()]:
        self._schedule.locations.append(self._decided[number][0])
        return ()

    def _Split(self, _: int, values: Any, __: Any, outputs: Any) -> list[Loop]:
        loop, lengths = values[0], values[1:]
        if not isinstance(loop, Loop) or len(lengths) != len(outputs):
            return [Loop(None) for _ in outputs]
        if lengths.count(None) == 1:
            at = lengths.index(None)
            rest = self._builder.product(lengths[:at] + lengths[at + 1 :])
            lengths[at] = self._builder.ceildiv(loop.extent, rest)
        loops, axis = split_loop(loop, lengths)
        for block in self._holders(loop):
            if axis is not None:
                members = [member for member, _, _ in loop.parts]
                block.axes = [one for one in block.axes if one not in members] + [axis]
            self._replace(block, loop, loops)
        self._move_places([loop], loops[-1])
        return loops

    def _Fuse(self, _: int, values: Any, __: Any, ___: Any) -> list[Loop]:
        loops = [value for value in values if isinstance(value, Loop)]
        fused = Loop(
            self._builder.product([loop.extent for loop in loops]) if loops else None,
            tuple(part for loop in loops for part in loop.parts)[:MAX_LOOPS],
        )
        for block in self._holders(loops[0]) if loops else ():
            rest = [loop for loop in block.loops or () if loop not in loops[1:]]
            block.loops = [fused if loop is loops[0] else loop for loop in rest]
        self._move_places(loops, fused)
        return [fused]

    def _Reorder(self, _: int, values: Any, __: Any, ___: Any) -> tuple[()]:
        loops = [value for value in values if isinstance(value, Loop)]
        for block in self._holders(loops[0]) if loops else ():
            order = iter([loop for loop in loops if loop in (block.loops or ())])
            block.loops = [next(order) if one in loops else one for one in block.loops or ()]
        return ()

    def _holders(self, loop: Loop) -> list[_ScheduledBlock]:
        return [block for block in self._order if block.loops and loop in block.loops]

    def _move_places(self, loops: list[Loop], innermost: Loop) -> None:
        """Let blocks that were computed in a replaced loop follow it."""
        for block in self._order:
            if block.place in loops:
                block.place = innermost

    def _replace(self, block: _ScheduledBlock, loop: Loop, loops: list[Loop]) -> None:
        if block.loops is None or len(block.loops) + len(loops) > MAX_LOOPS:
            raise ValueError("too many loops")
        at = block.loops.index(loop)
        block.loops[at : at + 1] = loops

    # ------------------------------------------------------------------ annotations

    def _Bind(self, _: int, values: Any, attrs: Any, __: Any) -> tuple[()]:
        word = attrs[0].strip('"')
        self._bind("vthread" if word.startswith("vthread") else word, values[0])
        return ()

    def _Parallel(self, _: int, values: Any, __: Any, ___: Any) -> tuple[()]:
        self._bind("parallel", values[0])
        return ()

    def _Vectorize(self, _: int, values: Any, __: Any, ___: Any) -> tuple[()]:
        self._bind("vectorize", values[0])
        return ()

    def _Unroll(self, _: int, values: Any, __: Any, ___: Any) -> tuple[()]:
        self._bind("unroll", values[0])
        return ()

    def _bind(self, word: str, loop: Any) -> None:
        self._schedule.bind(word, loop.extent if isinstance(loop, Loop) else None)

    def _Annotate(self, _: int, values: Any, attrs: Any, __: Any) -> tuple[()]:
        target, value = values[0], values[1]
        key = attrs[0]
        if key == "meta_schedule.tiling_structure" and isinstance(target, _ScheduledBlock):
            target.is_tiled = True
        elif key == "meta_schedule.cooperative_fetch" and isinstance(target, _ScheduledBlock):
            if target.fetch is not None:
                target.fetch.vector = value
        elif key in _LIMITS:
            self._schedule.bind(_LIMITS[key], value)
            if key == "meta_schedule.unroll_explicit":
                self._schedule.bind("unroll_explicit", self._builder.const(1))
        elif key == "warp_execution":  # a tensorized block runs on all threads of a warp
            self._schedule.bind("threadIdx.x", self._builder.device("warp"))
        elif key == "software_pipeline_stage" and isinstance(target, Loop) and value:
            self._schedule.pipelines.append(Pipeline(target, list(value)))
        return ()

    # ------------------------------------------------------------------ blocks

    def _CacheRead(self, _: int, __: Any, attrs: Any, ___: Any) -> list[_ScheduledBlock]:
        block = self._new_block()
        tensor = attrs[0] if type(attrs[0]) is int else None
        block.fetch = Fetch(scope_of(str(attrs[1])), tensor=tensor)
        self._schedule.fetches.append(block.fetch)
        self._schedule.scopes[block.fetch.scope] += 1
        return [block]

    _ReadAt = _ReindexCacheRead = _CacheRead

    def _CacheWrite(self, _: int, __: Any, attrs: Any, ___: Any) -> list[_ScheduledBlock]:
        block = self._new_block()
        block.is_write = True
        self._schedule.scopes[scope_of(str(attrs[1]))] += 1
        return [block]

    _WriteAt = _ReindexCacheWrite = _CacheWrite

    def _ComputeAt(self, _: int, values: Any, __: Any, ___: Any) -> tuple[()]:
        block, loop = values[0], values[1]
        if not isinstance(block, _ScheduledBlock):
            return ()
        block.place = loop if isinstance(loop, Loop) else None
        if not block.tiles:
            block.loops = None
        return ()

    _ReverseComputeAt = _ComputeAt

    def _RFactor(self, _: int, values: Any, __: Any, ___: Any) -> tuple[()]:
        if isinstance(values[0], Loop):
            self._schedule.factored.append(values[0])
        return ()

    # ------------------------------------------------------------------ the schedule

    def finish(self) -> Schedule:
        """Return the schedule, whose tiled block is now known."""
        tiled = [block for block in self._order if block.is_tiled]
        tiled += sorted(
            (block for block in self._order if not block.is_tiled),
            key=lambda block: (-block.tiles, -len(block.axes)),
        )
        schedule = self._schedule
        if tiled:
            anchor = tiled[0]
            schedule.name = anchor.name
            schedule.axes = anchor.axes
            schedule.nest = anchor.loops or []
            for block in self._order:
                depth = _depth(schedule.nest, block.place)
                if block.fetch is not None:
                    block.fetch.depth = depth
                if block.is_write and block.place is not None:
                    schedule.writes.append(depth)
            own = set(map(id, anchor.axes))
            schedule.others = [
                axis.parts
                for block in tiled[1:]
                for axis in block.axes
                if axis.parts and id(axis) not in own
            ]
        return schedule


def _depth(nest: list[Loop], place: Loop | None) -> int:
    """Return the number of loops around a place; 0 if it is not in the nest."""
    return nest.index(place) + 1 if place in nest else 0


def _count_literals(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_count_literals, value))
    return int(value == {})
