"""The columns of cache stages that read: how much they fetch, how often, and in which pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .footprints import Footprints, Tiles
from .formulas import Builder, Value
from .schedule import Fetch, Schedule
from .tasks import Access, Block

#: Bytes that a GPU reads from its memory at once (CUDA C++ Best Practices Guide, "Coalesced Access
#: to Global Memory"); half of a CPU's cache line.
SECTOR = 32


@dataclass(frozen=True, slots=True)
class _Fetched:
    """What one cache stage fetches at a time.

    Parameters
    ----------
    access : Access
        How the tiled stage reads it.
    tiles : Tiles
        What it is for: the loops inside the fetch, of all threads that share it.
    elements, bits : Value or None
        How much it is.
    is_shared : bool
        Whether it goes into the memory that the threads of a block share.
    """

    access: Access
    tiles: Tiles
    elements: Value | None
    bits: Value | None
    is_shared: bool


class Fetches:
    """Writes the columns of the cache stages that read for a tiled stage.

    Parameters
    ----------
    builder : Builder
        Where the columns go.
    schedule : Schedule
        The loops and the cache stages.
    block : Block or None
        The stage as it was written; without it nobody knows what is fetched.
    footprints : Footprints
        Of that stage.
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
        known = [one for fetch in fetches if (one := self._fetched(fetch)) is not None]
        if known:
            self._sizes(known, threads)
            self._traffic(known)
            self._pieces(known)

    def _fetched(self, fetch: Fetch) -> _Fetched | None:
        number, is_shared = fetch.tensor, fetch.scope == "shared"
        if number is None or not fetch.depth or not 0 <= number < len(self._reads):
            return None
        footprints, access = self._footprints, self._reads[number]
        tiles = (footprints.block_tiles if is_shared else footprints.tiles)(fetch.depth)
        elements = footprints.elements(access, tiles)
        bits = self._builder.mul(elements, self._builder.const(access.bits))
        return _Fetched(access, tiles, elements, bits, is_shared)

    def _sizes(self, known: Sequence[_Fetched], threads: Value | None) -> None:
        builder = self._builder
        elements = builder.total(one.elements for one in known)
        shared = builder.total(one.bits for one in known if one.is_shared)
        limit = builder.mul(builder.device("shared_bytes"), builder.const(8))
        builder.emit("fetch.elements", elements, log=True)
        builder.emit("fetch.largest", builder.greatest(one.elements for one in known), log=True)
        builder.emit("fetch.per_thread", builder.div(elements, threads), log=True)
        builder.emit("fetch.bytes_ratio", builder.div(shared, limit))

    def _traffic(self, known: Sequence[_Fetched]) -> None:
        """Write what all fetches of the program move."""
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
        """Write how long the pieces are that stand in a row in memory."""
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
