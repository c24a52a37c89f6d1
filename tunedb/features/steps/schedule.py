"""What the steps of a program say about its schedule, whichever tool wrote them.

Extents and lengths are values of a :class:`~.formulas.Builder`; None is one that nobody knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .formulas import Value

SPATIAL, REDUCTION, UNKNOWN = "spatial", "reduction", "unknown"

#: What loops are bound to that the threads of a block run.
THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")

#: Most loops of one stage that are followed. Real ones stay below 30.
MAX_LOOPS = 256


@dataclass(slots=True, eq=False)
class Axis:
    """A loop of the computation as it was written, and the parts that it was split into.

    Parameters
    ----------
    extent : Value or None
        How often it runs.
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
        How often it runs.
    parts : tuple of (Axis, int, Value or None)
        The axis that it is a part of, at which level, and the part's length; several where loops
        were fused. Levels count from the outermost part of an axis; that of an axis that was not
        split is 0.
    """

    extent: Value | None
    parts: tuple[tuple[Axis, int, Value | None], ...] = ()

    @classmethod
    def whole(cls, axis: Axis) -> Loop:
        """Return the loop of an axis that was not split."""
        return cls(axis.extent, ((axis, 0, axis.extent),))

    @property
    def level(self) -> int:
        """The level of the first part, 0 where there is none."""
        return self.parts[0][1] if self.parts else 0

    @property
    def kind(self) -> str:
        """The kind of the axes that it is made of, unknown where they differ."""
        kinds = {axis.kind for axis, _, _ in self.parts}
        return kinds.pop() if len(kinds) == 1 else UNKNOWN


def split_loop(loop: Loop, lengths: Sequence[Value | None]) -> tuple[list[Loop], Axis | None]:
    """Return the loops that a split makes, and the new axis where the loop was fused from several.

    The lengths are in order from the outermost loop inwards, none missing.
    """
    made: Axis | None = None
    if len(loop.parts) == 1:
        axis, level, _ = loop.parts[0]
    else:
        axis, level = Axis(loop.extent, loop.kind), 0
        made = axis
    if not axis.parts:
        axis.parts = list(lengths)
        levels = list(range(len(lengths)))
    else:  # a part that is split again stays on its level
        levels = [level] * len(lengths)
    loops = [Loop(n, ((axis, at, n),)) for at, n in zip(levels, lengths, strict=True)]
    return loops, made


@dataclass(slots=True, eq=False)
class Fetch:
    """A stage that reads a tensor into a cache.

    Parameters
    ----------
    scope : str
        Kind of memory (:func:`scope_of`).
    depth : int
        Loops of the tiled stage around it; 0 where that is not known.
    vector : Value or None
        Elements that one thread reads at once.
    tensor : int or None
        Which of the tensors that the tiled stage reads.
    """

    scope: str
    depth: int = 0
    vector: Value | None = None
    tensor: int | None = None


@dataclass(slots=True, eq=False)
class Schedule:
    """What the steps say.

    Parameters
    ----------
    name : str
        Name of the block that the tiles are of; empty where there are no names.
    axes : list of Axis
        Axes of the tiled stage in their order.
    nest : list of Loop
        Its loops from the outermost inwards.
    counts : Counter
        Steps by kind (:data:`.columns.COUNTS`).
    scopes : Counter
        Cache stages by kind of memory (:data:`.columns.SCOPES`).
    bound : dict
        Extents of the loops that were bound to an annotation (:data:`.columns.BINDINGS`).
    fetches : list of Fetch
        Cache stages that read.
    writes : list of int
        For each cache stage that writes: loops of the tiled stage around it.
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
    locations: list[Value | None] = field(default_factory=list)
    factored: list[Loop] = field(default_factory=list)
    others: list[Sequence[Value | None]] = field(default_factory=list)

    def bind(self, annotation: str, extent: Value | None) -> None:
        """Note that a loop was bound, or an annotation given."""
        self.bound.setdefault(annotation, []).append(extent)


def scope_of(scope: str) -> str:
    """Return the kind of memory that a storage scope is of."""
    head = scope.split(".", maxsplit=1)[0]
    if head in ("global", "local", "shared"):
        return head
    return "matrix" if head in ("wmma", "m16n8k8", "mma", "metal") else "other"
