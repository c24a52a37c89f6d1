"""Schedules of programs, common to the steps of all tools.

Extents and lengths are values of a :class:`~.formulas.Builder`; None stands for an unknown value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .formulas import Value

SPATIAL, REDUCTION, UNKNOWN = "spatial", "reduction", "unknown"

#: Bindings of loops to the threads of a block.
THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")

#: Maximum number of loops of one stage; real ones stay below 30.
MAX_LOOPS = 256


@dataclass(slots=True, eq=False)
class Axis:
    """A loop of the unscheduled computation, and the parts that splits gave it.

    Parameters
    ----------
    extent : Value or None
        Extent of the loop.
    kind : str
        ``spatial``, ``reduction`` or ``unknown``.
    parts : list
        Lengths of the parts of its first split, from the outermost inwards; empty without one.
    """

    extent: Value | None
    kind: str = UNKNOWN
    parts: list[Value | None] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Loop:
    """A loop of a schedule.

    Parameters
    ----------
    extent : Value or None
        Extent of the loop.
    parts : tuple of (Axis, int, Value or None)
        Axis, level and length of the part that the loop runs over; several for fused loops. Levels
        count from the outermost part of an axis; the level of an unsplit axis is 0.
    """

    extent: Value | None
    parts: tuple[tuple[Axis, int, Value | None], ...] = ()

    @classmethod
    def from_axis(cls, axis: Axis) -> Loop:
        """Return the loop of an unsplit axis."""
        return cls(axis.extent, ((axis, 0, axis.extent),))

    @property
    def level(self) -> int:
        """Level of the first part; 0 without parts."""
        return self.parts[0][1] if self.parts else 0

    @property
    def kind(self) -> str:
        """Kind of the loop's axes; unknown if they differ."""
        kinds = {axis.kind for axis, _, _ in self.parts}
        return kinds.pop() if len(kinds) == 1 else UNKNOWN


def split_loop(loop: Loop, lengths: Sequence[Value | None]) -> tuple[list[Loop], Axis | None]:
    """Return the loops of a split, outermost first, and a new axis if the loop was a fused one."""
    new_axis: Axis | None = None
    if len(loop.parts) == 1:
        axis, level, _ = loop.parts[0]
    else:
        axis, level = Axis(loop.extent, loop.kind), 0
        new_axis = axis
    if not axis.parts:
        axis.parts = list(lengths)
        levels = list(range(len(lengths)))
    else:  # a part keeps its level when it is split again
        levels = [level] * len(lengths)
    loops = [Loop(n, ((axis, at, n),)) for at, n in zip(levels, lengths, strict=True)]
    return loops, new_axis


@dataclass(slots=True, eq=False)
class Fetch:
    """A stage that reads a tensor into a cache.

    Parameters
    ----------
    scope : str
        Kind of memory (:func:`scope_of`).
    depth : int
        Number of loops of the tiled stage around it; 0 if unknown.
    vector : Value or None
        Number of elements that one thread reads at once.
    tensor : int or None
        Index among the tensors that the tiled stage reads.
    """

    scope: str
    depth: int = 0
    vector: Value | None = None
    tensor: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A loop whose iterations overlap (TVM's ``InjectSoftwarePipeline``).

    Parameters
    ----------
    loop : Loop
        The loop.
    stages : sequence of Value
        Stage of each statement in its body: the fetches in order, then the computation.
    """

    loop: Loop
    stages: Sequence[Value | None]


@dataclass(slots=True, eq=False)
class Schedule:
    """The schedule of a program.

    Parameters
    ----------
    name : str
        Name of the tiled block; empty for tools without names.
    axes : list of Axis
        Axes of the tiled stage, in order.
    nest : list of Loop
        Its loops from the outermost inwards.
    counts : Counter
        Steps by kind (:data:`.columns.COUNTS`).
    scopes : Counter
        Cache stages by kind of memory (:data:`.columns.SCOPES`).
    bound : dict
        Extents of the loops with an annotation (:data:`.columns.BINDINGS`).
    fetches : list of Fetch
        Cache stages that read.
    writes : list of int
        For each cache stage that writes: loops of the tiled stage around it.
    pipelines : list of Pipeline
        Software pipelines.
    locations : list of Value
        Decided places of computation.
    factored : list of Loop
        Loops of reductions that were factored.
    others : list of list
        Parts of the splits of other stages.
    """

    name: str = ""
    axes: list[Axis] = field(default_factory=list)
    nest: list[Loop] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    scopes: Counter[str] = field(default_factory=Counter)
    bound: dict[str, list[Value | None]] = field(default_factory=dict)
    fetches: list[Fetch] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    pipelines: list[Pipeline] = field(default_factory=list)
    locations: list[Value | None] = field(default_factory=list)
    factored: list[Loop] = field(default_factory=list)
    others: list[Sequence[Value | None]] = field(default_factory=list)

    def bind(self, annotation: str, extent: Value | None) -> None:
        """Record a binding or annotation of a loop."""
        self.bound.setdefault(annotation, []).append(extent)


def scope_of(scope: str) -> str:
    """Return the kind of memory of a storage scope."""
    head = scope.split(".", maxsplit=1)[0]
    if head in ("global", "local", "shared"):
        return head
    return "matrix" if head in ("wmma", "m16n8k8", "mma", "metal") else "other"
