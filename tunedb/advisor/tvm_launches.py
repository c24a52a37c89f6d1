"""Filling in the launches of TVM's own GPU programs (:mod:`.tvm_threads` reads them)."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from .. import limits
from ..errors import FormatError, TuneDBError
from ..features.steps.ansor import read_sketch
from ..launches import Extents, Launch
from ..programs import TOOL_NAMES
from ..programs.ansor import ANNOTATIONS, join_steps
from ..programs.metaschedule.trace import join_trace
from ..records import Measurement, Trace, WorkloadFormat
from ..results import Record, StoredProgram

if TYPE_CHECKING:
    from ..features.steps.formulas import Builder
    from ..storage.store import Store

# ---- Thread blocks of TVM's own GPU programs, from stored data and without TVM -------------------
#
# Three kinds of stored data determine the threads of a program's kernels:
#
# * a trace of MetaSchedule binds loops whose extents are decisions and numbers of its splits;
# * the steps of auto_scheduler annotate loops whose extents are lengths of its splits
#   (:mod:`.ansor_threads`);
# * the rows of ``ansor.per_store`` have, for each stored buffer, the extents of the bound loops
#   around its first store (``threadIdx_x_len`` and so on, as log2(extent + 1)).
#
# If the threads are uncertain, there is no launch: a wrong block is worse than none.

#: Bindings of loops that make a kernel.
AXES = {
    f"{kind}.{axis}": (kind, at)
    for kind in ("blockIdx", "threadIdx")
    for at, axis in enumerate("xyz")
}

#: Largest grid whose extent a logarithm in single precision gives exactly.
_MAX_EXACT = 2**18


@dataclass(slots=True)
class Kernel:
    """Extents of the bound loops of one nest; None for a bound loop of unknown extent."""

    blocks: dict[int, int | None] = field(default_factory=dict)
    threads: dict[int, int | None] = field(default_factory=dict)

    def bind(self, kind: str, axis: int, extent: int | None) -> None:
        """Record a loop. Loops bound to one axis of a kernel have one extent."""
        bound = self.blocks if kind == "blockIdx" else self.threads
        known = bound.get(axis)
        if known is not None and extent is not None and known != extent:
            raise UnknownError
        bound[axis] = extent if known is None else known


class UnknownError(Exception):
    """The trace does not determine the threads."""


def launches_of_trace(trace: Trace, name: str, order: Sequence[str] = ()) -> tuple[Launch, ...]:
    """Return the kernels of a trace of MetaSchedule.

    Parameters
    ----------
    trace : Trace
        The trace in its stored form; its postprocessing binds loops too.
    name : str
        Name of the workload; TVM's kernels are ``<name>_kernel``, ``<name>_kernel_1`` and so on.
    order : sequence of str
        Names of the workload's blocks in their order, which gives the order of several kernels.

    Returns
    -------
    tuple of Launch
        In the order of their blocks, or of their first bindings if a block is unknown. Empty if the
        extent of a bound loop follows from the workload alone, or if the kernel of a loop is
        ambiguous.

    Raises
    ------
    FormatError
        The stored trace is damaged.
    """
    instructions, decisions = join_trace(trace)
    reader = _TraceReader()
    try:
        chosen = dict(decisions)
        for number, (kind, inputs, attrs, outputs) in enumerate(instructions):
            reader.read(kind, inputs, attrs, outputs, chosen.get(number))
        return launches_of_kernels(reader.kernels(order), name)
    except UnknownError:
        return ()
    except (TypeError, ValueError, LookupError) as error:
        raise FormatError(f"cannot read a stored trace: {error!r:.200}") from None


def launches_of_kernels(kernels: Sequence[Kernel], name: str) -> tuple[Launch, ...]:
    """Return kernels as launches; raise UnknownError if the threads of one are unknown."""
    found = []
    for number, kernel in enumerate(kernels):
        block = _extents(kernel.threads)
        if block is None or math.prod(block) > limits.MAX_BLOCK_THREADS:
            raise UnknownError
        found.append(_launch(name, number, block, _extents(kernel.blocks)))
    return tuple(found)


def _launch(name: str, number: int, block: Extents, grid: Extents | None) -> Launch:
    suffix = f"_{number}" if number else ""
    return Launch(f"{name}_kernel{suffix}", math.prod(block), block, grid, number)


def _extents(bound: dict[int, int | None]) -> Extents | None:
    """Return the extents along x, y and z; None if one is unknown."""
    x, y, z = (bound.get(axis, 1) for axis in range(3))
    return None if x is None or y is None or z is None else (x, y, z)


def _merged(kernels: dict[int, Kernel], named: Container[int]) -> dict[int, Kernel]:
    """Return kernels, joining nests that are known to be one kernel.

    A consumer of another block, or the like, is bound through a nest of unknown name, which may be
    one of the others.
    """
    others = [kernel for nest, kernel in kernels.items() if nest not in named]
    if not others or all(kernel.blocks for kernel in kernels.values()):
        return kernels
    sure = {nest: kernel for nest, kernel in kernels.items() if nest in named}
    if len(sure) != 1 or any(kernel.blocks for kernel in others):
        raise UnknownError
    for nest, kernel in sure.items():
        if not kernel.blocks:
            raise UnknownError
        for other in others:
            for axis, extent in other.threads.items():
                kernels[nest].bind("threadIdx", axis, extent)
    return sure


class _TraceReader:
    """Follows a trace: the nest and the known extent of each loop."""

    def __init__(self) -> None:
        self._values: dict[str, int] = {}
        self._loops: dict[str, tuple[int, int | None]] = {}
        self._blocks: dict[str, int] = {}
        self._named: dict[tuple[str, ...], int] = {}
        #: Nest → the nest to which it was moved (a union-find forest).
        self._moved: list[int] = []
        self._bound: list[tuple[int, str, int, int | None]] = []
        self._follow: dict[str, Callable[..., None]] = {
            "GetBlock": self._get_block,
            "GetSBlock": self._get_block,
            "GetLoops": self._get_loops,
            "SamplePerfectTile": self._sample_tile,
            "SamplePartitionedTile": self._sample_tile,
            "SampleCategorical": self._sample_category,
            "Split": self._split,
            "Fuse": self._fuse,
            "AddUnitLoop": self._add_unit_loop,
            "Bind": self._bind,
            "ComputeAt": self._compute_at,
            "ReverseComputeAt": self._compute_at,
        }

    def read(
        self, kind: str, inputs: list[Any], attrs: list[Any], outputs: list[str], decision: Any
    ) -> None:
        """Follow one instruction."""
        follow = self._follow.get(kind)
        if follow is not None:
            follow(_flat(inputs), attrs, outputs, decision)
            return
        # DecomposeReduction, Blockize, ReadAt, WriteAt, …: a block in the nest of an input loop;
        # the others (CacheRead, RFactor, …) make a new nest.
        given = [self._loops[one][0] for one in _flat(inputs) if _is(one, "l")]
        nested = kind not in ("RFactor",) and bool(given)
        for output in outputs:
            if _is(output, "b"):
                self._blocks[output] = given[0] if nested else self._new_nest()
            elif _is(output, "l"):
                owner = given[0] if given else self._new_nest()
                self._loops[output] = (owner, None)

    def kernels(self, order: Sequence[str]) -> list[Kernel]:
        """Return the bindings of each nest, in the order of the blocks if known."""
        found: dict[int, Kernel] = {}
        for nest, kind, axis, extent in self._bound:
            found.setdefault(self._root(nest), Kernel()).bind(kind, axis, extent)
        named = {nest: key[0].strip('"') for key, nest in self._named.items()}
        found = _merged(found, named)
        places = {name: float(at) for at, name in enumerate(order)}
        # The block that RFactor splits off comes before its reduction.
        places |= {
            f"{name}_rf": at - 0.5 for name, at in places.items() if f"{name}_rf" not in places
        }
        # A nest keeps the place of its own block when others are moved into it.
        if all(named.get(nest) in places for nest in found):
            found = dict(sorted(found.items(), key=lambda item: places[named[item[0]]]))
        return list(found.values())

    def _new_nest(self) -> int:
        self._moved.append(len(self._moved))
        return len(self._moved) - 1

    def _root(self, nest: int) -> int:
        while self._moved[nest] != nest:
            self._moved[nest] = self._moved[self._moved[nest]]
            nest = self._moved[nest]
        return nest

    def _number(self, value: Any) -> int | None:
        """Return a factor: a number, or a sampled variable; None for an inferred one."""
        if type(value) is int:
            return value
        return self._values.get(value) if isinstance(value, str) else None

    # ------------------------------------------------------------------ instructions

    def _get_block(self, _: list[Any], attrs: list[Any], outputs: list[str], __: Any) -> None:
        # GetSBlock may name the same block again.
        key = tuple(map(str, attrs))
        if key not in self._named:
            self._named[key] = self._new_nest()
        self._blocks[outputs[0]] = self._named[key]

    def _get_loops(self, inputs: list[Any], _: list[Any], outputs: list[str], __: Any) -> None:
        for output in outputs:
            self._loops[output] = (self._blocks[inputs[0]], None)

    def _sample_tile(self, _: list[Any], __: list[Any], outputs: list[str], decision: Any) -> None:
        if isinstance(decision, list) and len(decision) == len(outputs):
            self._values.update(zip(outputs, decision, strict=True))

    def _sample_category(
        self, _: list[Any], attrs: list[Any], outputs: list[str], decision: Any
    ) -> None:
        if type(decision) is int and 0 <= decision < len(attrs[0]):
            self._values[outputs[0]] = attrs[0][decision]

    def _split(self, inputs: list[Any], _: list[Any], outputs: list[str], __: Any) -> None:
        owner, whole = self._loops[inputs[0]]
        factors = [self._number(value) for value in inputs[1:]]
        if len(factors) != len(outputs):
            raise ValueError("a split with other loops than factors")
        for at, (output, factor, given) in enumerate(
            zip(outputs, factors, inputs[1:], strict=True)
        ):
            extent = factor
            others = factors[:at] + factors[at + 1 :]
            if given in (None, "None") and whole is not None and None not in others:
                extent = -(-whole // max(1, math.prod(filter(None, others))))
            self._loops[output] = (owner, extent)

    def _fuse(self, inputs: list[Any], _: list[Any], outputs: list[str], __: Any) -> None:
        owners, extents = zip(*(self._loops[one] for one in inputs), strict=True)
        whole = None if None in extents else math.prod(extents)
        self._loops[outputs[0]] = (owners[0], whole)

    def _add_unit_loop(self, inputs: list[Any], _: list[Any], outputs: list[str], __: Any) -> None:
        given = inputs[0]
        owner = self._blocks[given] if _is(given, "b") else self._loops[given][0]
        self._loops[outputs[0]] = (owner, 1)

    def _compute_at(self, inputs: list[Any], _: list[Any], __: list[str], ___: Any) -> None:
        if _is(inputs[1], "l") and inputs[1] in self._loops:
            self._moved[self._root(self._blocks[inputs[0]])] = self._root(self._loops[inputs[1]][0])

    def _bind(self, inputs: list[Any], attrs: list[Any], _: list[str], __: Any) -> None:
        place = AXES.get(str(attrs[0]).strip('"'))
        if place is not None:  # a vthread is not a thread
            owner, extent = self._loops[inputs[0]]
            self._bound.append((owner, *place, extent))


def _flat(inputs: list[Any]) -> list[Any]:
    """Return inputs without the lists in which some releases wrote several of one kind."""
    flat: list[Any] = []
    for value in inputs:
        flat += value if isinstance(value, list) else [value]
    return flat


def _is(value: Any, letter: str) -> bool:
    """Tell whether a value is a variable of a kind: block, loop or value."""
    return isinstance(value, str) and value[:1] == letter and value[1:].isdecimal()


def launches_of_rows(
    rows: npt.NDArray[np.float32], columns: Sequence[str], name: str
) -> tuple[Launch, ...]:
    """Return the kernels of rows of ``ansor.per_store``.

    Parameters
    ----------
    rows : ndarray of float32, shape (stores, columns)
        Rows of one program, in the order of its stores.
    columns : sequence of str
        Names of the columns (:data:`tunedb.features.ansor.NAMES`).
    name : str
        Of the workload.

    Returns
    -------
    tuple of Launch
        One for each run of rows with equal extents: neighbouring kernels with equal grids and
        blocks count as one. Empty for a program of a processor.
    """
    places = [columns.index("is_gpu")]
    places += [
        columns.index(f"{kind}_{axis}_len") for kind in ("threadIdx", "blockIdx") for axis in "xyz"
    ]
    found: list[tuple[Extents, Extents | None]] = []
    for row in np.asarray(rows, np.float64)[:, places]:
        if row[0] < 0.5:
            continue
        x, y, z, *grid = (max(1, round(2.0**value - 1)) for value in row[1:])
        if x * y * z > limits.MAX_BLOCK_THREADS:
            return ()
        exact_grid = (grid[0], grid[1], grid[2]) if max(grid) <= _MAX_EXACT else None
        if not found or found[-1] != ((x, y, z), exact_grid):
            found.append(((x, y, z), exact_grid))
    return tuple(_launch(name, number, *one) for number, one in enumerate(found))


# ---- Thread blocks of auto_scheduler's GPU programs, from their steps alone ----------------------


def launches_of_steps(trace: Trace, name: str) -> tuple[Launch, ...]:
    """Return the kernels of a program's steps.

    A kernel is a stage with all stages that are computed in it.

    Parameters
    ----------
    trace : Trace
        Steps of auto_scheduler in their stored form.
    name : str
        Of the workload; TVM calls the kernels ``<name>_kernel``, ``<name>_kernel_1`` and so on.

    Returns
    -------
    tuple of Launch
        In the order of their stages. Empty if the steps lack the extent of a bound loop.

    Raises
    ------
    FormatError
        The stored steps are damaged.
    """
    steps, _ = join_steps(trace)
    # The reader of the feature set "steps" follows the loops, with numbers instead of symbols.
    schedule = read_sketch(cast("Builder", _Numbers()), {"steps": steps})
    extents: dict[str, Iterator[Any]] = {place: iter(v) for place, v in schedule.bound.items()}
    stages = _Stages()
    kernels: dict[int, Kernel] = {}
    try:
        for code, stage, *fields in steps:
            stages.follow(code, stage, fields)
            place = ANNOTATIONS[fields[1]] if code == "AN" else "none"
            extent = None if place == "none" else next(extents[place])
            if place in AXES:
                kernel = kernels.setdefault(stages.own(stage), Kernel())
                kernel.bind(*AXES[place], None if extent is None else int(extent))
        return launches_of_kernels(_joined(kernels, stages), name)
    except UnknownError:
        return ()


def _joined(kernels: dict[int, Kernel], stages: _Stages) -> list[Kernel]:
    """Return the kernels of stages, joining stages that are computed in one."""
    joined: dict[int, Kernel] = {}
    for stage, kernel in kernels.items():
        host = joined.setdefault(stages.host(stage), Kernel())
        for kind, bound in (("blockIdx", kernel.blocks), ("threadIdx", kernel.threads)):
            for axis, extent in bound.items():
                host.bind(kind, axis, extent)
    return [kernel for _, kernel in sorted(joined.items(), key=lambda item: stages.place(item[0]))]


class _Stages:
    """Stages with fixed numbers: their places move when a stage is inserted."""

    def __init__(self) -> None:
        self._order: list[int] = []
        self._hosts: list[int | None] = []

    def follow(self, code: str, stage: int, fields: list[Any]) -> None:
        """Follow the effect of a step on stages."""
        self.own(stage)
        if code == "CHR":
            self._order.insert(stage + 1, self._new())
        elif code in ("CHW", "RF"):
            self._order.insert(stage, self._new())
        elif code == "CA":
            self._hosts[self.own(stage)] = self.own(fields[0])
        elif code == "CR":
            self._hosts[self.own(stage)] = None

    def own(self, place: int) -> int:
        """Return the number of the stage at a place."""
        while len(self._order) <= place:
            self._order.append(self._new())
        return self._order[place]

    def host(self, stage: int) -> int:
        """Return the stage in which a stage is finally computed."""
        for _ in self._hosts:
            host = self._hosts[stage]
            if host is None:
                return stage
            stage = host
        raise UnknownError  # stages that are computed in each other

    def place(self, stage: int) -> int:
        """Return the place of a stage."""
        return self._order.index(stage)

    def _new(self) -> int:
        self._hosts.append(None)
        return len(self._hosts) - 1


class _Numbers:
    """A :class:`~tunedb.features.steps.formulas.Builder` that computes numbers at once."""

    def const(self, number: float) -> float:
        return number

    def const_unknown(self) -> None:
        return None

    def product(self, values: Iterable[float | None]) -> float | None:
        found = list(values)
        return None if None in found else math.prod(cast("list[float]", found))

    def ceildiv(self, a: float | None, b: float | None) -> float | None:
        return None if a is None or not b else -(-a // b)


# ---- Filling in the launches of a database -------------------------------------------------------

#: Feature sets whose rows hold extents of threads.
_SETS = ("ansor.per_store/tvm", "ansor.per_store/ansor")

#: Number of workloads whose blocks are cached.
_MOST = 1_000


@dataclass
class FillReport:
    """Outcome for the records of GPU programs.

    Parameters
    ----------
    records : int
        Records of TVM's programs for GPUs.
    known : int
        Records that had launches before.
    filled : int
        Records with new launches.
    unknown : int
        Records whose stored data do not determine the extents of their threads.
    launches : int
        Number of new launches.
    """

    records: int = 0
    known: int = 0
    filled: int = 0
    unknown: int = 0
    launches: int = 0


def fill_launches(
    store: Store,
    *,
    workload_ids: Sequence[int] | None = None,
    target_ids: Sequence[int] | None = None,
    on_record: Callable[[int], None] | None = None,
    report: FillReport | None = None,
) -> FillReport:
    """Add missing launches to the records of TVM's GPU programs.

    Each batch is stored at its end: an interrupted run continues where it stopped.

    Parameters
    ----------
    store : Store
        Store of the records.
    workload_ids, target_ids : sequence of int or None
        Only records of these workloads and targets.
    on_record : callable or None
        Called with the number of records so far.
    report : FillReport or None
        Report to update after each batch, so that an interrupted caller has it.

    Returns
    -------
    FillReport
        Records of other tools than TVM, of processors, and retracted ones are not counted.
    """
    report = report or FillReport()
    finder = _Finder(store)
    records = _records(store, workload_ids, gpu_targets(store, target_ids))
    seen = 0
    while batch := list(islice(records, limits.FEATURE_PROGRAMS)):
        wanted = [one for one in batch if not one.retracted and _is_tvm(one)]
        bare = [one for one in wanted if not store.launches.for_record(one.id)]
        found = finder.find([one.measurement for one in bare])
        rows = [
            (one.measurement, launch)
            for one, launches in zip(bare, found, strict=True)
            for launch in launches
        ]
        report.launches += store.launches.add(rows)
        report.records += len(wanted)
        report.known += len(wanted) - len(bare)
        report.filled += sum(map(bool, found))
        report.unknown += len(bare) - sum(map(bool, found))
        seen += len(batch)
        if on_record is not None:
            on_record(seen)
    return report


def gpu_targets(store: Store, target_ids: Sequence[int] | None = None) -> list[int]:
    """Return the targets that are GPUs, of those that are given or of all."""
    from ..features.steps.targets import device_of

    chosen = store.lookup.targets() if target_ids is None else target_ids
    return [id_ for id_ in chosen if device_of(store.targets.get(id_))[0] > 0]


def _records(
    store: Store, workload_ids: Sequence[int] | None, target_ids: list[int]
) -> Iterator[Record]:
    if not target_ids:
        return iter(())
    if workload_ids is None:
        return store.records.iterate(target=target_ids)
    return chain.from_iterable(store.records.iterate(id_, target_ids) for id_ in workload_ids)


def _is_tvm(record: Record) -> bool:
    return TOOL_NAMES.get(record.measurement.program.workload.format) in ("metaschedule", "ansor")


class _Finder:
    """Finds the launches of programs; caches the facts of workloads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._orders: dict[int, tuple[str, ...]] = {}

    def find(self, measurements: Sequence[Measurement]) -> list[tuple[Launch, ...]]:
        """Return the launches of each measurement's program; none if they are unknown."""
        from ..features.base import feature_set

        digests = {one.program.digest: None for one in measurements}
        ids = dict(zip(digests, self._store.programs.ids(digests), strict=True))
        stored = {one.id: one for one in self._store.programs.get([i for i in ids.values() if i])}
        rows: dict[int, list[tuple[Launch, ...]]] = {id_: [] for id_ in stored}
        for name in _SETS:
            one = feature_set(name)
            for program, table in zip(
                stored.values(), self._store.features.rows(one, list(stored)), strict=True
            ):
                if table is not None:
                    launches = launches_of_rows(table, one.columns, program.workload.name)
                    rows[program.id].append(launches)
        found = {}
        for id_, program in stored.items():
            try:
                found[id_] = agreed(self._of_steps(program), rows[id_])
            except TuneDBError:  # a damaged program has no launches; `tunedb db check` names it
                found[id_] = ()
        return [found.get(ids[one.program.digest] or 0, ()) for one in measurements]

    def _of_steps(self, program: StoredProgram) -> tuple[Launch, ...]:
        name = program.workload.name
        if program.workload.format != WorkloadFormat.ANSOR:
            return launches_of_trace(program.trace, name, self._order(program))
        return launches_of_steps(program.trace, name)

    def _order(self, program: StoredProgram) -> tuple[str, ...]:
        """Return the names of a workload's blocks in their order."""
        from ..features.steps.tasks import read_task

        found = self._orders.get(program.workload_id)
        if found is None:
            structure, _ = read_task(program.workload, program.signature, "metaschedule")
            if len(self._orders) >= _MOST:
                self._orders.clear()
            found = self._orders[program.workload_id] = tuple(name for name, _ in structure.blocks)
        return found


def agreed(steps: tuple[Launch, ...], rows: Sequence[tuple[Launch, ...]]) -> tuple[Launch, ...]:
    """Return the launches on which the steps of a program and its features agree.

    Parameters
    ----------
    steps : tuple of Launch
        Launches of the steps; empty if unknown.
    rows : sequence of tuple of Launch
        Launches of each feature set.

    Returns
    -------
    tuple of Launch
        Of the features where they have as many kernels as the steps: they know grids. They may
        have fewer: they take equal neighbours for one kernel, and kernels that store nothing but
        constants have no rows. Empty where a block differs, or where nothing is known.
    """
    described = [one for one in rows if one]
    blocks = {frozenset(launch.block for launch in one) for one in described}
    if len(blocks) > 1 or (steps and not all(one <= {x.block for x in steps} for one in blocks)):
        return ()
    most = max(map(len, described), default=0)
    if len(steps) > most:
        return steps
    return next((one for one in described if len(one) == most), ())
