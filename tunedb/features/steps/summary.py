"""The columns of ``steps`` for a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ...errors import FormatError
from .columns import (
    BINDINGS,
    COUNTS,
    DEVICE,
    GROUPS,
    LOCATIONS,
    REDUCTION_AXES,
    REDUCTION_LEVELS,
    SCOPES,
    SPATIAL_AXES,
    SPATIAL_LEVELS,
    TAIL,
    TAIL_DEPTHS,
    TASK,
)
from .formulas import Builder, Value
from .schedule import REDUCTION, THREADS, Axis, Fetch, Loop, Schedule
from .tasks import Access, Block, Dimension

# ---- What the loops of a schedule touch: tiles, and the boxes of tensors that they read and ------
# write

Tiles = Sequence[Value | None]


class Footprints:
    """Footprints of the tiled stage.

    Parameters
    ----------
    builder : Builder
        The builder of the values.
    schedule : Schedule
        The loops.
    block : Block or None
        The unscheduled stage, whose axes are the schedule's; without it only the output is known.
    """

    def __init__(self, builder: Builder, schedule: Schedule, block: Block | None) -> None:
        self._builder = builder
        self._schedule = schedule
        self._block = block
        self._numbers = {id(axis): number for number, axis in enumerate(schedule.axes)}
        # From no loops at all to the whole nest.
        self._tiles: list[Tiles] = [[builder.const(1)] * len(schedule.axes)]

    def tiles(self, start: int) -> Tiles:
        """Return the length along each axis of the loops from `start` inwards."""
        nest = self._schedule.nest
        wanted = max(len(nest) - start, 0)
        while len(self._tiles) <= wanted:
            loop = nest[-len(self._tiles)]
            lengths = list(self._tiles[-1])
            for axis, _, length in loop.parts:
                number = self._numbers.get(id(axis))
                if number is not None:
                    lengths[number] = self._builder.product([lengths[number], length])
            self._tiles.append(lengths)
        return self._tiles[wanted]

    def block_tiles(self, depth: int) -> Tiles:
        """Return the length along each axis of all threads of a block together.

        A computation into shared memory inside a thread's loops serves all threads of its block. In
        the tiles of TVM's schedules the outermost part of a spatial axis belongs to the blocks of
        the grid and the others to vthreads, threads and the loops of a thread.

        Parameters
        ----------
        depth : int
            Number of loops around the tile, which leaves out those of reductions.
        """
        inner = self.tiles(depth)
        if self._schedule.bound.keys().isdisjoint(THREADS):
            return inner
        return [
            self._builder.product(axis.parts[1:]) if axis.parts and axis.kind != REDUCTION else tile
            for axis, tile in zip(self._schedule.axes, inner, strict=True)
        ]

    def touched(self, tiles: Tiles, *, is_write: bool | None) -> Value | None:
        """Return the elements that tiles read or write; for None the bytes of both."""
        builder = self._builder
        if self._block is None:
            if is_write is not True:
                return None
            pairs = zip(self._schedule.axes, tiles, strict=True)
            return builder.product(tile for axis, tile in pairs if axis.kind != REDUCTION)
        found: list[Value | None] = []
        for access in self._block.accesses:
            if is_write is None:
                size = builder.const(access.bits / 8)
                found.append(builder.mul(self.elements(access, tiles), size))
            elif access.is_write == is_write:
                found.append(self.elements(access, tiles))
        return builder.total(found)

    def elements(self, access: Access, tiles: Tiles) -> Value | None:
        """Return the elements of the smallest box around an access."""
        spans = [self._span(dimension, tiles) for dimension in access.dimensions if dimension]
        return self._builder.product(spans)

    def run(self, access: Access, tiles: Tiles) -> Value | None:
        """Return the number of contiguous elements in that box: its innermost dimension."""
        if not access.dimensions or not access.dimensions[-1]:
            return self._builder.const(1)
        return self._span(access.dimensions[-1], tiles)

    def _span(self, dimension: Dimension, tiles: Tiles) -> Value | None:
        builder = self._builder
        if len(dimension) == 1 and abs(dimension[0][1]) == 1:
            return tiles[dimension[0][0]]
        one = builder.const(1)
        steps = [
            builder.mul(builder.sub(tiles[axis], one), builder.const(abs(by)))
            for axis, by in dimension
        ]
        return None if None in steps else builder.total([one, *steps])


def movement(access: Access, axis: int) -> str:
    """Return how an access moves with an axis."""
    moved = [dict(dimension).get(axis, 0) for dimension in access.dimensions]
    if not any(moved):
        return "broadcast"
    return "contiguous" if abs(moved[-1]) == 1 and not any(moved[:-1]) else "strided"


# ---- The columns of cache stages that read: size, frequency and pieces of their fetches ----------

#: Bytes that a GPU reads from its memory at once (CUDA C++ Best Practices Guide, "Coalesced Access
#: to Global Memory"); half of a CPU's cache line.
SECTOR = 32


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Elements that one cache stage fetches at a time.

    Parameters
    ----------
    access : Access
        How the tiled stage reads it.
    tiles : Tiles
        The loops inside the fetch, of all threads that share it.
    elements, bits : Value or None
        Size of the fetch.
    buffers : Value or None
        Buffers of that size: a software pipeline fetches for later iterations.
    is_shared : bool
        Whether it goes into the memory that the threads of a block share.
    """

    access: Access
    tiles: Tiles
    elements: Value | None
    bits: Value | None
    buffers: Value | None
    is_shared: bool


class Fetches:
    """Writes the columns of the cache stages that read for a tiled stage.

    Parameters
    ----------
    builder : Builder
        The builder of the columns.
    schedule : Schedule
        The loops and the cache stages.
    block : Block or None
        The unscheduled stage; without it the fetches are unknown.
    footprints : Footprints
        The footprints of that stage.
    """

    def __init__(
        self, builder: Builder, schedule: Schedule, block: Block | None, footprints: Footprints
    ) -> None:
        self._builder = builder
        self._schedule = schedule
        self._footprints = footprints
        self._reads = [] if block is None else [one for one in block.accesses if not one.is_write]

    def write(self, threads: Value | None) -> None:
        """Write the columns, given the threads of a block."""
        builder, fetches = self._builder, self._schedule.fetches
        vectors = [fetch.vector for fetch in fetches]
        builder.emit_number("fetch.count", len(fetches))
        builder.emit("fetch.vector", builder.greatest(vectors))
        builder.emit("fetch.vector_least", builder.least(vectors))
        builder.emit_number("fetch.depth", max((fetch.depth for fetch in fetches), default=0))
        buffers = self._pipelines()
        pairs = zip(fetches, buffers, strict=True)
        known = [one for pair in pairs if (one := self._fetched(*pair)) is not None]
        if known:
            self._sizes(known, threads)
            self._traffic(known)
            self._pieces(known)

    def _pipelines(self) -> list[Value | None]:
        """Write the columns of software pipelines; return the buffers of each fetch.

        A fetch has a buffer for each stage from its own to that of the computation. The pipelines
        of tensor cores have further statements; their buffers are unknown, and at least one.
        """
        builder, nest, fetches = self._builder, self._schedule.nest, self._schedule.fetches
        buffers: list[Value | None] = [builder.const(1)] * len(fetches)
        extents: list[Value | None] = []
        most: list[Value | None] = []
        for pipeline in self._schedule.pipelines:
            *stages, last = pipeline.stages
            inside = [
                number
                for number, fetch in enumerate(fetches)
                if fetch.depth and nest[fetch.depth - 1] is pipeline.loop
            ]
            if not inside or len(inside) != len(stages):
                continue
            extents.append(pipeline.loop.extent)
            for number, stage in zip(inside, stages, strict=True):
                buffers[number] = builder.add(builder.sub(last, stage), builder.const(1))
                most.append(buffers[number])
        builder.emit("pipeline.extent", builder.least(extents), log=True)
        builder.emit("pipeline.buffers", builder.greatest(most))
        return buffers

    def _fetched(self, fetch: Fetch, buffers: Value | None) -> _Fetched | None:
        number, is_shared = fetch.tensor, fetch.scope == "shared"
        if number is None or not fetch.depth or not 0 <= number < len(self._reads):
            return None
        footprints, access = self._footprints, self._reads[number]
        tiles = (footprints.block_tiles if is_shared else footprints.tiles)(fetch.depth)
        elements = footprints.elements(access, tiles)
        bits = self._builder.mul(elements, self._builder.const(access.bits))
        return _Fetched(access, tiles, elements, bits, buffers, is_shared)

    def _sizes(self, known: Sequence[_Fetched], threads: Value | None) -> None:
        builder = self._builder
        elements = builder.total(one.elements for one in known)
        shared = builder.total(builder.mul(one.bits, one.buffers) for one in known if one.is_shared)
        limit = builder.mul(builder.device("shared_bytes"), builder.const(8))
        builder.emit("fetch.elements", elements, log=True)
        builder.emit("fetch.largest", builder.greatest(one.elements for one in known), log=True)
        builder.emit("fetch.per_thread", builder.div(elements, threads), log=True)
        builder.emit("fetch.bytes_ratio", builder.div(shared, limit))

    def _traffic(self, known: Sequence[_Fetched]) -> None:
        """Write the traffic of all fetches of the program."""
        builder, footprints = self._builder, self._footprints
        work = builder.product(axis.extent for axis in self._schedule.axes)
        times = [builder.div(work, builder.product(one.tiles)) for one in known]
        traffic = builder.total(
            builder.mul(often, one.elements) for often, one in zip(times, known, strict=True)
        )
        all_loops = footprints.tiles(0)
        whole = builder.total(footprints.elements(one.access, all_loops) for one in known)
        builder.emit("fetch.times", builder.greatest(times), log=True)
        builder.emit("fetch.traffic", traffic, log=True)
        builder.emit("fetch.reuse", builder.div(work, traffic), log=True)
        builder.emit("fetch.repeated", builder.div(traffic, whole), log=True)

    def _pieces(self, known: Sequence[_Fetched]) -> None:
        """Write the lengths of the contiguous pieces in memory."""
        builder = self._builder
        sector = builder.const(8 * SECTOR)
        runs = [self._footprints.run(one.access, one.tiles) for one in known]
        sectors = [
            builder.mul(
                builder.div(one.elements, run),
                builder.ceildiv(builder.mul(run, builder.const(one.access.bits)), sector),
            )
            for run, one in zip(runs, known, strict=True)
        ]
        fetched = builder.total(one.bits for one in known)
        builder.emit("fetch.run", builder.least(runs), log=True)
        read = builder.mul(builder.total(sectors), sector)
        builder.emit("fetch.sectors_share", builder.div(fetched, read))


# ---- MetaSchedule's postprocessors, from a trace's tail ------------------------------------------

_COUNTED = {
    "Bind": "bind",
    "DecomposeReduction": "decompose",
    "Parallel": "parallel",
    "Split": "split",
    "Tensorize": "tensorize",
    "Vectorize": "vectorize",
}


def read_tail(body: bytes | None) -> list[float]:
    """Return the facts of a tail: :data:`.columns.TAIL`, then vector loops by the depth of blocks.

    All facts are zero without a tail.

    Raises
    ------
    FormatError
        The tail is damaged.
    """
    if body is None:
        return [0.0] * (len(TAIL) + TAIL_DEPTHS)
    try:
        counts, vectors = _read(orjson.loads(body))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise FormatError(f"cannot read a tail: {error!r:.200}") from None
    return [*(float(counts[name]) for name in TAIL), *vectors]


def _read(instructions: list[Any]) -> tuple[Counter[str], list[float]]:
    counts: Counter[str] = Counter(instructions=len(instructions))
    loops: list[Any] = []  # of the block of the last GetLoops
    fused: dict[str, int] = {}
    vectors = [0.0] * TAIL_DEPTHS
    deepest = most = 0
    for kind, inputs, attrs, outputs in instructions:
        name = _COUNTED.get(kind)
        if name is not None:
            counts[name] += 1
        if kind == "GetLoops":
            loops = outputs
            counts["loops"] = max(counts["loops"], len(loops))
            counts["all_loops"] += len(loops)
        elif kind == "GetChildBlocks":
            counts["blocks"] += len(outputs)
        elif kind == "Fuse":
            fused[outputs[0]] = len(inputs)
        elif kind == "Parallel":
            if len(loops) > deepest:
                deepest = len(loops)
                counts["parallel_loops"] = fused.get(inputs[0], 1)
        elif kind == "Vectorize":
            n_fused = fused.get(inputs[0], 1)
            counts["vector_loops"] = max(counts["vector_loops"], n_fused)
            if len(loops) > most:
                most = len(loops)
                counts["inner_vector_loops"] = n_fused
            if len(loops) < TAIL_DEPTHS:  # of blocks of one depth, the last one is the consumer
                vectors[len(loops)] = float(n_fused)
        elif kind == "Annotate" and attrs[0] == "pragma_auto_unroll_max_step":
            counts["unroll"] += 1
        elif kind == "DecomposeReduction" and inputs[1] in loops:
            depth = loops.index(inputs[1])
            counts["decompose_depth"] = max(counts["decompose_depth"], depth)
            counts["decompose_depths"] += depth
    return counts, vectors


# ---- From a schedule to columns ------------------------------------------------------------------

#: Added to a decided place of computation, so that 0 means no place: 1 is "inline" (TVM's -2),
#: 2 "root" (-1), 3 the outermost loop (0).
_LOCATION_OFFSET = 3

#: Facts of a workload and a target whose columns are logarithms.
_LOGGED = frozenset(
    {
        *(
            f"task.{name}"
            for name in ("flops", "bytes", "largest_bytes", "last_bytes", "intensity")
        ),
        *(f"device.{name}" for name in ("threads", "shared_bytes", "registers")),
    }
)

_BLOCKS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")


class Summary:
    """Writes the columns of one schedule.

    Parameters
    ----------
    builder : Builder
        The builder of the columns.
    schedule : Schedule
        The schedule.
    block : Block or None
        The unscheduled tiled block; its axes are the schedule's.
    """

    def __init__(self, builder: Builder, schedule: Schedule, block: Block | None) -> None:
        self.builder = builder
        self.schedule = schedule
        self.block = block
        self._footprints = Footprints(builder, schedule, block)

    def write(self) -> None:
        """Write all columns."""
        self._task()
        self._steps()
        self._axes()
        self._levels()
        self._nest()
        self._inner()
        self._grid()
        self._parallel()
        self._caches()
        self._decided()

    # ------------------------------------------------------------------ workload, target, steps

    def _task(self) -> None:
        builder = self.builder
        for name in TASK:
            builder.emit(name, builder.task(name), log=name in _LOGGED)
        for name in DEVICE:
            builder.emit(f"device.{name}", builder.device(name), log=f"device.{name}" in _LOGGED)

    def _steps(self) -> None:
        builder, schedule = self.builder, self.schedule
        builder.emit_number("steps.total", schedule.counts.total())
        for name in COUNTS:
            builder.emit_number(f"steps.{name}", schedule.counts[name])
        for name in SCOPES:
            builder.emit_number(f"cache.{name}", schedule.scopes[name])
        for name in TAIL:
            builder.emit(f"tail.{name}", builder.tail(name))

    # ------------------------------------------------------------------ tiles

    @property
    def _spatial(self) -> list[Axis]:
        """The spatial axes, the innermost first."""
        return [axis for axis in self.schedule.axes if axis.kind != REDUCTION][::-1]

    @property
    def _reduced(self) -> list[Axis]:
        """The reduction axes, the innermost first."""
        return [axis for axis in self.schedule.axes if axis.kind == REDUCTION][::-1]

    def _axes(self) -> None:
        builder = self.builder
        for kind, axes, count in (
            ("spatial", self._spatial, SPATIAL_AXES),
            ("reduction", self._reduced, REDUCTION_AXES),
        ):
            builder.emit_number(f"axes.{kind}", len(axes))
            levels = max((len(axis.parts) for axis in axes), default=0)
            builder.emit_number(f"axes.{kind}_levels", levels)
            for number, axis in enumerate(axes[:count]):
                self._axis(f"{kind}{number}", axis)
        builder.emit("axes.output", self._output(), log=True)
        reduced = builder.product(axis.extent for axis in self._reduced)
        builder.emit("axes.reduced", reduced, log=True)

    def _output(self) -> Value | None:
        return self.builder.product(axis.extent for axis in self._spatial)

    def _axis(self, name: str, axis: Axis) -> None:
        builder = self.builder
        builder.emit(f"{name}.extent", axis.extent, log=True)
        if not axis.parts:
            return
        most = SPATIAL_LEVELS if name.startswith("spatial") else REDUCTION_LEVELS
        for level, part in enumerate(axis.parts[::-1][:most]):
            builder.emit(f"{name}.level{level}", part, log=True)
        inner = builder.product(axis.parts[1:])
        builder.emit(f"{name}.inner", inner, log=True)
        builder.emit(f"{name}.inner_ratio", builder.div(inner, axis.extent))

    def _levels(self) -> None:
        builder = self.builder
        for kind, axes, count in (
            ("spatial", self._spatial, SPATIAL_LEVELS),
            ("reduction", self._reduced, REDUCTION_LEVELS),
        ):
            tiled = [axis.parts[::-1] for axis in axes if axis.parts]
            whole = builder.product(axis.extent for axis in axes)
            inner: Value | None = builder.const(1)
            for level in range(min(count, max(map(len, tiled), default=0))):
                lengths = [parts[level] for parts in tiled if level < len(parts)]
                product = builder.product(lengths)
                inner = builder.mul(inner, product)
                builder.emit(f"tile.{kind}.level{level}", product, log=True)
                builder.emit(f"tile.{kind}.inner{level}", inner, log=True)
                builder.emit(f"tile.{kind}.ratio{level}", builder.div(inner, whole))
        last = [axis.parts[-1] for axis in self._spatial if axis.parts]
        if last:
            shape = builder.div(builder.greatest(last), builder.least(last))
            builder.emit("tile.squareness", shape, log=True)
        last += [axis.parts[-1] for axis in self._reduced if axis.parts]
        if last:
            builder.emit("tile.inner_work", builder.product(last), log=True)

    # ------------------------------------------------------------------ loops and their footprints

    def _nest(self) -> None:
        builder = self.builder
        nest = self.schedule.nest
        end = len(nest)
        for number, start in enumerate(_groups(nest)[:GROUPS]):
            tiles = self._footprints.tiles(start)
            work = builder.product(loop.extent for loop in nest[start:])
            values = {
                "extent": builder.product(loop.extent for loop in nest[start:end]),
                "outer": builder.product(loop.extent for loop in nest[:start]),
                "work": work,
                "output": self._footprints.touched(tiles, is_write=True),
                "input": self._footprints.touched(tiles, is_write=False),
                "bytes": self._footprints.touched(tiles, is_write=None),
            }
            values["intensity"] = builder.div(work, values["bytes"])
            for name, value in values.items():
                builder.emit(f"nest{number}.{name}", value, log=True)
            end = start

    def _inner(self) -> None:
        """Write the columns of the innermost loop."""
        builder, nest = self.builder, self.schedule.nest
        if not nest:
            return
        extent, lanes = nest[-1].extent, builder.device("lanes")
        builder.emit("inner.extent", extent, log=True)
        builder.emit("inner.lanes_ratio", builder.div(extent, lanes), log=True)
        builder.emit("inner.lanes_waste", _waste(builder, extent, lanes))
        builder.emit("inner.odd", _odd(builder, extent), log=True)
        if not nest[-1].parts:
            return
        axis = nest[-1].parts[-1][0]
        builder.emit_number("inner.is_reduction", axis.kind == REDUCTION)
        if self.block is None or axis not in self.schedule.axes:
            return
        number = self.schedule.axes.index(axis)
        for access in self.block.accesses:
            how = movement(access, number)
            if access.is_write:
                builder.emit_number("inner.writes_contiguous", how == "contiguous")
        reads = [movement(access, number) for access in self.block.accesses if not access.is_write]
        for how in ("contiguous", "broadcast", "strided"):
            builder.emit_number(f"inner.{how}", reads.count(how))
        groups = [by for access in self.block.accesses for of, by in access.groups if of == number]
        if groups:
            # A vector with several groups of channels gathers its input lane by lane.
            within = builder.gcd(extent, builder.const(min(groups)))
            builder.emit("inner.groups", builder.div(extent, within), log=True)

    # ------------------------------------------------------------------ bindings of loops

    def _bound(self, name: str) -> Value | None:
        return self.builder.greatest(self.schedule.bound.get(name, ()))

    def _product_of(self, names: Sequence[str]) -> Value | None:
        """Return the product of the extents of the loops with some bindings."""
        return self.builder.product(
            self._bound(name) for name in names if name in self.schedule.bound
        )

    def _grid(self) -> None:
        builder, bound = self.builder, self.schedule.bound
        for name in BINDINGS:
            builder.emit(f"bound.{name}", self._bound(name), log=True)
        for name in ("vthread", "parallel", "vectorize", "unroll"):
            builder.emit_number(f"bound.{name}_count", len(bound.get(name, ())))
        if bound.keys().isdisjoint((*_BLOCKS, *THREADS)):
            return
        n_blocks, n_threads = self._product_of(_BLOCKS), self._product_of(THREADS)
        builder.emit("grid.blocks", n_blocks, log=True)
        builder.emit("grid.threads", n_threads, log=True)
        builder.emit("grid.least_threads", self._bound("least_threads"), log=True)
        builder.emit("grid.vthreads", self._bound("vthread"), log=True)
        most, warp = builder.device("threads"), builder.device("warp")
        builder.emit("grid.threads_ratio", builder.div(n_threads, most))
        builder.emit("grid.warps", builder.ceildiv(n_threads, warp))
        builder.emit("grid.warp_waste", _waste(builder, n_threads, warp))
        everywhere = builder.mul(n_blocks, n_threads)
        work = builder.product(axis.extent for axis in self.schedule.axes)
        flops = builder.task("task.flops")
        for name, whole in (("work", work), ("output", self._output()), ("flops", flops)):
            builder.emit(f"grid.{name}_per_thread", builder.div(whole, everywhere), log=True)

    def _parallel(self) -> None:
        builder, bound = self.builder, self.schedule.bound
        extent = self._bound("parallel")
        if extent is None and "parallel_limit" in bound:
            loops = [loop.extent for loop in self.schedule.nest]
            extent = builder.prefix(loops, builder.tail("parallel_loops"))
        cores = builder.device("cores")
        builder.emit("parallel.extent", extent, log=True)
        builder.emit("parallel.per_core", builder.div(extent, cores), log=True)
        builder.emit("parallel.waste", _waste(builder, extent, cores))
        builder.emit("parallel.limit", self._bound("parallel_limit"), log=True)
        flops = builder.div(builder.task("task.flops"), extent)
        builder.emit("parallel.flops", flops, log=True)
        builder.emit("vector.limit", self._bound("vector_limit"), log=True)
        vector = self._bound("vectorize")
        if vector is None and "vector_limit" in bound:
            loops = [loop.extent for loop in reversed(self.schedule.nest)]
            vector = builder.prefix(loops, builder.vector_loops(len(loops)))
        builder.emit("vector.extent", vector, log=True)
        builder.emit("vector.lanes_ratio", builder.div(vector, builder.device("lanes")), log=True)
        builder.emit("vector.odd", _odd(builder, vector), log=True)
        steps = self._bound("unroll_steps")
        builder.emit("unroll.steps", steps, log=True)
        builder.emit("unroll.explicit", self._bound("unroll_explicit"))
        builder.emit("unroll.copies", builder.within(self._serial(), steps), log=True)
        last = [axis.parts[-1] for axis in self.schedule.axes if axis.parts]
        if last:
            builder.emit("unroll.covers", builder.div(steps, builder.product(last)), log=True)

    def _serial(self) -> list[Value | None]:
        """Return the extents of the loops that TVM may unroll, the innermost first.

        Its pass ``UnrollLoop`` unrolls one after another as long as the body has at most `steps`
        copies. A vector loop is one statement by then.
        """
        nest = self.schedule.nest
        is_vector = (
            not self.schedule.bound.keys().isdisjoint(("vectorize", "vector_limit"))
            and bool(nest and nest[-1].parts)
            and nest[-1].parts[-1][0].kind != REDUCTION
        )
        return [loop.extent for loop in reversed(nest[:-1] if is_vector else nest)]

    # ------------------------------------------------------------------ caches and decided places

    def _caches(self) -> None:
        builder, schedule = self.builder, self.schedule
        fetches = Fetches(builder, schedule, self.block, self._footprints)
        fetches.write(self._product_of(THREADS))
        builder.emit_number("write.count", len(schedule.writes))
        if schedule.writes:
            depth = max(schedule.writes)
            builder.emit_number("write.depth", depth)
            tiles = self._footprints.tiles(depth)
            builder.emit("write.elements", self._footprints.touched(tiles, is_write=True), log=True)

    def _decided(self) -> None:
        builder, schedule = self.builder, self.schedule
        offset = builder.const(_LOCATION_OFFSET)
        places = [builder.add(place, offset) for place in schedule.locations]
        for number, place in enumerate(places[:LOCATIONS]):
            builder.emit(f"location{number}", place)
        builder.emit("location.greatest", builder.greatest(places))
        builder.emit("location.least", builder.least(places))
        builder.emit("location.total", builder.total(places))
        self._located()
        factored = [loop.extent for loop in schedule.factored]
        builder.emit("factored.extent", builder.greatest(factored), log=True)
        builder.emit_number("factored.is_inner", sum(loop.level > 0 for loop in schedule.factored))
        builder.emit_number("others.count", len(schedule.others))
        inner = [parts[-1] for parts in schedule.others]
        builder.emit("others.inner", builder.greatest(inner), log=True)
        builder.emit("others.inner_least", builder.least(inner), log=True)
        outermost = [parts[0] for parts in schedule.others]
        builder.emit("others.outer", builder.greatest(outermost), log=True)
        knobs = schedule.bound.get("knob", ())
        builder.emit("knob.greatest", builder.greatest(knobs), log=True)
        builder.emit("knob.total", builder.total(knobs), log=True)
        words = schedule.bound.get("annotations", ())
        builder.emit("knob.annotations", builder.total(words))

    def _located(self) -> None:
        """Write the effect of the first decided place if its consumer is the tiled stage."""
        builder, nest = self.builder, self.schedule.nest
        if not self.schedule.locations or not nest:
            return
        number = self.schedule.locations[0]
        outer = builder.prefix(
            [loop.extent for loop in nest], builder.add(number, builder.const(1))
        )
        inputs = [
            self._footprints.touched(self._footprints.tiles(depth), is_write=False)
            for depth in range(len(nest) + 1)
        ]
        elements = builder.pick(inputs[1:], number)
        everywhere = builder.mul(outer, elements)
        builder.emit("location.outer", outer, log=True)
        builder.emit("location.elements", elements, log=True)
        builder.emit("location.repeated", builder.div(everywhere, inputs[0]), log=True)


def _waste(builder: Builder, extent: Value | None, unit: Value | None) -> Value | None:
    """Return the share of extra work when `extent` is rounded up to a multiple of `unit`."""
    rounded = builder.mul(builder.ceildiv(extent, unit), unit)
    return builder.sub(builder.div(rounded, extent), builder.const(1))


def _odd(builder: Builder, extent: Value | None) -> Value | None:
    """Return the largest odd divisor of an extent.

    It is 1 for powers of two. LLVM keeps a vector of another length in memory unless the loops
    around it are unrolled: a convolution with 40 lanes takes ten times as long then.
    """
    return builder.div(extent, builder.gcd(extent, builder.const(2.0**40)))


def _groups(nest: Sequence[Loop]) -> list[int]:
    """Return the starts of groups of loops of one kind and level, the innermost group first."""
    keys = [(loop.kind, loop.level) for loop in nest]
    return [at for at in reversed(range(len(nest))) if at == 0 or keys[at] != keys[at - 1]]
