"""The schedule that the steps of auto_scheduler describe (:mod:`tunedb.programs.ansor`).

Stages and loops are positions in lists that the steps change. The log does not have the initial
lengths of the lists. A step that refers to a place behind the end extends its list, which is exact
because all places before it are known by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ...errors import FormatError
from ...programs.ansor import ANNOTATIONS, CODES
from .formulas import Builder, Value
from .schedule import (
    MAX_LOOPS,
    REDUCTION,
    SPATIAL,
    Axis,
    Fetch,
    Loop,
    Schedule,
    scope_of,
    split_loop,
)

#: Most steps of a sketch and most stages. Real ones stay below 100.
MAX_STEPS = 4096
_MAX_STAGES = 1024
_MAX_LENGTHS = 64

_COUNTED = {
    "AN": "annotate",
    "CA": "compute_at",
    "CHR": "cache_read",
    "CHW": "cache_write",
    "CI": "compute_inline",
    "CR": "compute_at",
    "FFSP": "split",
    "FSP": "split",
    "FU": "fuse",
    "PR": "pragma",
    "RE": "reorder",
    "RF": "rfactor",
    "SA": "storage_align",
    "SP": "split",
}


@dataclass(slots=True, eq=False)
class _Stage:
    """A stage; ``loops`` are the loops that a step referred to, and the axes behind them."""

    loops: list[Loop] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)
    fetch: Fetch | None = None
    host: tuple[_Stage, int] | None = None
    split_first: list[int] = field(default_factory=list)  # lengths of splits of whole axes

    def loop(self, number: int) -> Loop:
        """Return the loop at a position."""
        if number >= MAX_LOOPS:
            raise ValueError("too many loops")
        while len(self.loops) <= number:
            axis = Axis(None)
            self.axes.append(axis)
            self.loops.append(Loop.from_axis(axis))
        return self.loops[number]


def read_sketch(builder: Builder, sketch: Any) -> Schedule:
    """Return the schedule of a sketch.

    Raises
    ------
    FormatError
        The sketch has no steps, or too many.
    """
    try:
        steps = sketch["steps"]
        if type(steps) is not list or len(steps) > MAX_STEPS:
            raise ValueError("no list of steps, or too long")
        reader = _StepReader(builder)
        for step in steps:
            reader.read(step[0], step[1:])
        return reader.finish()
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise FormatError(f"cannot read a sketch: {error!r:.200}") from None


class _StepReader:
    """Follows the steps of one sketch."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._schedule = Schedule()
        self._stages: list[_Stage] = []
        self._lengths: list[tuple[Value | None, list[Value | None]]] = []
        self._follow: dict[str, Callable[..., None]] = {
            code: getattr(self, f"_{code.lower()}") for code in CODES
        }

    def read(self, code: str, fields: list[Any]) -> None:
        """Follow one step."""
        self._lengths.append((None, []))
        follow = self._follow.get(code)
        self._schedule.counts[_COUNTED.get(code, "unknown")] += 1
        if follow is not None:
            follow(*fields)

    def _stage(self, number: int) -> _Stage:
        if not 0 <= number < _MAX_STAGES:
            raise ValueError("too many stages")
        while len(self._stages) <= number:
            self._stages.append(_Stage())
        return self._stages[number]

    # ------------------------------------------------------------------ loops

    def _sp(self, stage: int, loop: int, extent: Any, lengths: list[Any], from_inner: int) -> None:
        if len(lengths) > _MAX_LENGTHS:
            raise ValueError("a split into too many parts")
        builder = self._builder
        if extent is None:
            known, *values = builder.slots(1 + len(lengths))
            found: list[Value | None] = list(values)
        else:  # a length is unknown, so no number was taken out
            known = builder.const(extent) if extent else builder.const_unknown()
            found = [None if one is None else builder.const(one) for one in lengths]
        self._lengths[-1] = (known, found)
        self._split(self._stage(stage), loop, known, found, bool(from_inner))

    def _fsp(self, stage: int, loop: int, source: int, count: int) -> None:
        known, lengths = self._lengths[source]
        if not 0 < count <= len(lengths):
            raise ValueError("a split that follows another one too far")
        merged = [*lengths[: count - 1], self._builder.product(lengths[count - 1 :])]
        self._split(self._stage(stage), loop, known, merged, True)

    def _ffsp(self, stage: int, loop: int, sources: list[int], level: int, is_factor: int) -> None:
        length = self._builder.product([self._lengths[source][1][level] for source in sources])
        self._split(self._stage(stage), loop, None, [length], bool(is_factor))

    def _split(
        self,
        stage: _Stage,
        number: int,
        extent: Value | None,
        lengths: list[Value | None],
        from_inner: bool,
    ) -> None:
        loop = stage.loop(number)
        if loop.extent is None:
            loop.extent = extent
            if len(loop.parts) == 1 and not loop.parts[0][0].parts:
                loop.parts[0][0].extent = extent
        builder = self._builder
        rest = builder.ceildiv(loop.extent, builder.product(lengths))
        whole = len(loop.parts) == 1 and not loop.parts[0][0].parts
        loops, axis = split_loop(loop, [rest, *lengths] if from_inner else [*lengths, rest])
        if axis is not None:
            members = [member for member, _, _ in loop.parts]
            stage.axes = [one for one in stage.axes if one not in members] + [axis]
        elif whole:
            stage.split_first.append(len(lengths))
        stage.loops[number : number + 1] = loops
        if len(stage.loops) > MAX_LOOPS:
            raise ValueError("too many loops")

    def _fu(self, stage: int, numbers: list[int]) -> None:
        found = self._stage(stage)
        if not numbers:
            return
        found.loop(max(numbers))
        loops = [found.loops[number] for number in numbers]
        extent = self._builder.product([loop.extent for loop in loops])
        parts = tuple(part for loop in loops for part in loop.parts)[:MAX_LOOPS]
        found.loops[numbers[0]] = Loop(extent, parts)
        found.loops = [one for one in found.loops if one not in loops[1:]]

    def _re(self, stage: int, order: list[int]) -> None:
        found = self._stage(stage)
        if sorted(order) != list(range(len(order))):
            raise ValueError("no order of loops")
        if order:
            found.loop(len(order) - 1)
        found.loops[: len(order)] = [found.loops[number] for number in order]

    def _an(self, stage: int, loop: int, annotation: int) -> None:
        found = self._stage(stage)
        extent = found.loop(loop).extent
        word = ANNOTATIONS[annotation]
        if word == "vectorize" and found.fetch is not None:
            found.fetch.vector = extent
        if word != "none":
            self._schedule.bind(word, extent)

    def _pr(self, stage: int, loop: int, pragma: str, *number: Any) -> None:
        self._stage(stage).loop(loop)
        if number:
            self._schedule.bind("unroll_steps", self._builder.slots(1)[0])

    # ------------------------------------------------------------------ stages

    def _ca(self, stage: int, host: int, loop: int) -> None:
        found = self._stage(stage)
        found.host = (self._stage(host), loop + 1)
        if found.fetch is not None:
            found.fetch.depth = loop + 1

    def _cr(self, stage: int) -> None:
        self._stage(stage).host = None

    def _ci(self, stage: int) -> None:
        self._stage(stage)

    def _chr(self, stage: int, scope: str, readers: list[int]) -> None:
        self._stage(stage)
        fetch = Fetch(scope_of(scope))
        self._schedule.fetches.append(fetch)
        self._schedule.scopes[fetch.scope] += 1
        self._stages.insert(stage + 1, _Stage(fetch=fetch))

    def _chw(self, stage: int, scope: str) -> None:
        # The loops of the stage now compute into the cache; the stage only writes it back.
        self._stage(stage)
        self._schedule.scopes[scope_of(scope)] += 1
        self._stages.insert(stage, _Stage())

    def _rf(self, stage: int, loop: int, _: int) -> None:
        found = self._stage(stage)
        self._schedule.factored.append(found.loop(loop))
        factored = _Stage(list(found.loops), list(found.axes), split_first=list(found.split_first))
        self._stages.insert(stage, factored)
        self._stages[stage + 1] = _Stage()

    def _sa(self, stage: int, _: int, __: int, ___: int) -> None:
        self._stage(stage)

    # ------------------------------------------------------------------ the schedule

    def finish(self) -> Schedule:
        """Return the schedule, whose tiled stage is now known."""
        schedule = self._schedule
        if not self._stages:
            return schedule
        anchor = max(self._stages, key=lambda stage: (sum(stage.split_first), len(stage.axes)))
        _tell_kinds(anchor)
        schedule.axes, schedule.nest = anchor.axes, anchor.loops
        # Stages are in the order of the tensors that they fetch. The log does not have the sizes of
        # these fetches: the extents of these stages' splits lack the threads, and the mutation of
        # tiles did not update them.
        tensors = count()
        for stage in self._stages:
            if stage.fetch is not None:
                stage.fetch.tensor = next(tensors)
            elif stage is not anchor:
                schedule.others += [axis.parts for axis in stage.axes if axis.parts]
        if anchor.host is not None:
            schedule.writes.append(anchor.host[1])
        return schedule


def _tell_kinds(stage: _Stage) -> None:
    """Distinguish spatial axes from reductions, which have fewer levels of tiles."""
    counts = Counter(len(axis.parts) for axis in stage.axes if axis.parts)
    most = max(counts, default=0)
    for axis in stage.axes:
        if axis.parts:
            axis.kind = SPATIAL if len(axis.parts) == most else REDUCTION
