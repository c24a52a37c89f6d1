"""What the loops of a schedule touch: tiles, and the boxes of tensors that they read and write."""

from __future__ import annotations

from collections.abc import Sequence

from .formulas import Builder, Value
from .schedule import REDUCTION, THREADS, Schedule
from .tasks import Access, Block, Dimension

Tiles = Sequence[Value | None]


class Footprints:
    """Footprints of the tiled stage.

    Parameters
    ----------
    builder : Builder
        What makes the values.
    schedule : Schedule
        The loops.
    block : Block or None
        The stage as it was written, whose axes are the schedule's; without it only the output is
        known.
    """

    def __init__(self, builder: Builder, schedule: Schedule, block: Block | None) -> None:
        self._builder = builder
        self._schedule = schedule
        self._block = block
        self._numbers = {id(axis): number for number, axis in enumerate(schedule.axes)}
        # From no loops at all to the whole nest.
        self._tiles: list[Tiles] = [[builder.const(1)] * len(schedule.axes)]

    def tiles(self, start: int) -> Tiles:
        """Return how long the loops from `start` inwards run along each axis."""
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
        """Return how long the threads of a block together run along each axis.

        What is computed into shared memory inside a thread's loops is computed for all threads of
        its block. In the tiles of TVM's schedules the outermost part of a spatial axis belongs to
        the blocks of the grid and the others to vthreads, threads and the loops of a thread.

        Parameters
        ----------
        depth : int
            Loops around that tile; those of reductions are left out of it.
        """
        inner = self.tiles(depth)
        if self._schedule.bound.keys().isdisjoint(THREADS):
            return inner
        return [
            self._builder.product(axis.parts[1:]) if axis.parts and axis.kind != REDUCTION else tile
            for axis, tile in zip(self._schedule.axes, inner, strict=True)
        ]

    def touched(self, tiles: Tiles, *, is_write: bool | None) -> Value | None:
        """Return the elements that tiles read or write, or for None the bytes of both."""
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
        """Return how many elements of that box stand in a row: its innermost dimension."""
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
