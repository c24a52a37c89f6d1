"""Observations out of a database.

An observation is one configuration of a kernel on a device: the launches of one program that were
measured in one way. Several measurements of it are one observation, whose time is the median of
their means (an outlier of one session does not move it), and whose counters are those of the first
measurement that has some.

KTT's times of a run with counters are taken under the profiler: of 256 pairs the median differs by
0.1 %, single ones by -18 % to 12 %. So the times of one slice are of one kind: of runs under the
profiler or of others, whichever has more blocks; with equally many, of those with counters. Other
tools profile apart from timing, so their launches with counters have plain times.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import orjson

from ..errors import FormatError
from ..logs.gpu.t1 import T1Input, read_t1
from ..records import Target, WorkloadFormat
from ..steps.parameters import join_parameters
from . import slices
from .blocks import block_parameters
from .counters import TOOLS, describe, neutral
from .devices import lookup
from .observations import Observation

if TYPE_CHECKING:
    from ..launches import CounterSet
    from ..query import Query
    from ..results import LaunchRow

#: Formats whose times are those of the profiled run itself.
_TIMED_UNDER_PROFILER = frozenset({"ktt", "ktt-csv", "ktt-xml", "t4"})

#: Formats of profilers: what they see has no tuning parameters.
_PROFILERS = frozenset({"nvprof", "ncu"})


@dataclass(slots=True)
class _Run:
    """A launch on its way to an observation."""

    row: LaunchRow
    kernel: str
    seconds: float
    spread: float | None
    parameters: Mapping[str, Any]
    counted: bool
    slice: bytes = b""

    @property
    def under_profiler(self) -> bool:
        return self.counted and _log(self.row.context) in _TIMED_UNDER_PROFILER

    @property
    def configuration(self) -> tuple[Any, ...]:
        launch = self.row.launch
        return self.row.program_id, launch.number, launch.threads, launch.block


def load(
    query: Query,
    *,
    kernels: Collection[str] | None = None,
    devices: Collection[str] | None = None,
    profiled: bool | None = None,
) -> list[Observation]:
    """Return the launches whose run time is known, in the order of record and launch.

    Failed and retracted runs are left out; foreign sources count, as for cost models. Of a program
    that launched several kernels only those count whose own time is known.

    Parameters
    ----------
    query : Query
        An open database.
    kernels, devices : collection of str, optional
        Only these: kernels by their names, plain names, or the names of their workloads; devices by
        the names they have in the database, or that people write (``RTX 2080 Ti``).
    profiled : bool, optional
        True for runs with counters alone, False for those without; both by default.

    Raises
    ------
    FormatError
        A launch or a program is damaged (``tunedb db check``).
    """
    runs = [
        run
        for run in _runs(query.launches())
        if _is_meant(run.row, kernels, devices) and profiled in (None, run.counted)
    ]
    _put_in_slices(runs, t1_inputs(query))
    by_slice: dict[bytes, list[_Run]] = {}
    for run in runs:
        by_slice.setdefault(run.slice, []).append(run)
    reader = _Reader()
    found = [
        reader.observation(timed, counted)
        for several in by_slice.values()
        for timed, counted in _configurations(several)
    ]
    return sorted(found, key=lambda observation: (observation.record, observation.launch))


def t1_inputs(query: Query) -> dict[str, T1Input]:
    """Return the FAIR T1 inputs of a database by the names of their kernels.

    Of several inputs of one kernel none counts unless they agree on the thread block, and one that
    cannot be read does not count.
    """
    found: dict[str, T1Input | None] = {}
    for name, body in query.t1_inputs():
        try:
            read = read_t1(body)
        except FormatError:
            continue
        known = found.setdefault(name, read)
        if known is not None and known.local_size != read.local_size:
            found[name] = None
    return {name: known for name, known in found.items() if known is not None}


def t1_of(stated: Mapping[str, T1Input], workload: str, kernel: str) -> T1Input | None:
    """Return the T1 input of a kernel, by the name of its workload or by its own."""
    return stated.get(workload, stated.get(kernel))


def device_of(target: Target) -> str:
    """Return the name of a target's device, or the target's kind where it says none."""
    model = (target.attributes or {}).get("model")
    return model if isinstance(model, str) and model not in ("", "unknown") else target.kind


def _is_meant(
    row: LaunchRow, kernels: Collection[str] | None, devices: Collection[str] | None
) -> bool:
    if kernels is not None:
        name = row.launch.kernel
        if not {name, slices.plain_name(name), row.workload.name}.intersection(kernels):
            return False
    if devices is None:
        return True
    device = device_of(row.target)
    if device in devices:
        return True
    known = lookup(device)
    return known is not None and any(lookup(wanted) == known for wanted in devices)


def _runs(rows: Iterable[LaunchRow]) -> list[_Run]:
    """Return the rows with a time of their own."""
    runs = []
    for _, group in groupby(rows, key=lambda row: row.record_id):
        launches = list(group)
        for row in launches:
            times: Iterable[float | None] = row.run_secs or ()
            if len(launches) > 1:
                # The time of the whole program is not the kernel's.
                times = [row.launch.seconds]
            secs = [value for value in times if value is not None and 0 < value < math.inf]
            if secs:
                kernel = slices.plain_name(row.launch.kernel)
                counted = bool(_counted(row.launch.counter_set))
                runs.append(
                    _Run(row, kernel, fmean(secs), _spread(secs), _parameters(row), counted)
                )
    return runs


@lru_cache(maxsize=1024)
def _counted(counter_set: CounterSet | None) -> frozenset[str]:
    """Return the neutral names of a set that a profiler's counters have.

    Kernel Tuner keeps what the user computes beside what was measured, and that is often made of
    the time (``GFLOP/s``): a model that sees it sees the answer. So of its counters only those
    count that a profiler has.
    """
    if counter_set is None:
        return frozenset()
    names = neutral(counter_set, [0.0] * len(counter_set.counters))
    if counter_set.tool in TOOLS:
        return frozenset(names)
    return frozenset(name for name in names if describe(name).kind != "unknown")


def _spread(secs: Sequence[float]) -> float | None:
    """Return the coefficient of variation of some times; None where there is one."""
    if len(secs) < 2:
        return None
    mean = fmean(secs)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in secs) / (len(secs) - 1)) / mean


def _parameters(row: LaunchRow) -> dict[str, Any]:
    return join_parameters(row.trace) if row.workload.format == WorkloadFormat.KERNEL else {}


@lru_cache(maxsize=1024)
def _log(context: bytes | None) -> str:
    """Return the format that a record was read from; empty for one that was not."""
    known = orjson.loads(context) if context else None
    return str(known.get("log", "")) if isinstance(known, dict) else ""


def _put_in_slices(runs: Sequence[_Run], stated: Mapping[str, T1Input]) -> None:
    """Set the slice of each run; what feeds the block is found out per tuning space."""
    spaces: dict[tuple[int, bytes, str], list[_Run]] = {}
    for run in runs:
        spaces.setdefault((run.row.workload_id, run.row.trace.sketch, run.kernel), []).append(run)
    for (_, _, kernel), space in spaces.items():
        workload = space[0].row.workload
        if workload.format != WorkloadFormat.KERNEL:
            for run in space:
                run.slice = slices.program_key(workload, run.row.target, kernel, run.row.trace)
            continue
        t1 = t1_of(stated, workload.name, kernel)
        block = block_parameters(
            [(run.parameters, run.row.launch.threads, run.row.launch.block) for run in space],
            None if t1 is None else t1.block_parameters,
        )
        if _is_seen_by_profiler(space, block):
            _by_problem(space)
            continue
        for run in space:
            run.slice = slices.parameter_key(
                workload, run.row.target, kernel, run.parameters, block
            )


def _is_seen_by_profiler(space: Sequence[_Run], block: Collection[str]) -> bool:
    first = space[0]
    rest = set(first.parameters) - set(block)
    return slices.is_geometry(first.parameters, block) or (
        not rest and _log(first.row.context) in _PROFILERS
    )


def _by_problem(space: Sequence[_Run]) -> None:
    targets: dict[int, list[_Run]] = {}
    for run in space:
        launch = run.row.launch
        if launch.block is None or launch.grid is None:
            run.slice = slices.program_key(
                run.row.workload, run.row.target, run.kernel, run.row.trace
            )
        else:
            targets.setdefault(run.row.target_id, []).append(run)
    for several in targets.values():
        geometry = [
            (run.row.launch.block or (1, 1, 1), run.row.launch.grid or (1, 1, 1)) for run in several
        ]
        for run, problem in zip(several, slices.problems(geometry), strict=True):
            row = run.row
            run.slice = slices.problem_key(row.workload, row.target, run.kernel, problem)


def _configurations(runs: Sequence[_Run]) -> Iterable[tuple[list[_Run], _Run | None]]:
    """Yield, per configuration of a slice, the runs that time it, and one with counters."""
    blocks: dict[bool, set[Any]] = {True: set(), False: set()}
    for run in runs:
        blocks[run.under_profiler].add((run.row.launch.threads, run.row.launch.block))
    under_profiler = len(blocks[True]) >= len(blocks[False])
    timed: dict[tuple[Any, ...], list[_Run]] = {}
    counted: dict[tuple[Any, ...], _Run] = {}
    for run in runs:
        if run.under_profiler == under_profiler:
            timed.setdefault(run.configuration, []).append(run)
        if run.counted:
            counted.setdefault(run.configuration, run)
    for configuration, several in timed.items():
        yield several, counted.get(configuration)


class _Reader:
    """Makes observations; remembers what many of them share."""

    def __init__(self) -> None:
        self._sets: dict[tuple[bytes, str | None], CounterSet] = {}
        self._targets: dict[bytes, tuple[str, str | None]] = {}

    def observation(self, timed: Sequence[_Run], counted: _Run | None) -> Observation:
        """Return what some runs of one configuration say; `counted` has the counters."""
        run = counted or timed[0]
        launch = run.row.launch
        device, capability = self._device(run.row.target)
        counters: dict[str, float] = {}
        if launch.counter_set is not None:
            capability = launch.counter_set.compute_capability or capability
            known = self._set(launch.counter_set, capability)
            kept = _counted(known)
            counters = {
                name: value for name, value in neutral(known, launch.values).items() if name in kept
            }
        means = [each.seconds for each in timed]
        spreads = [each.spread for each in timed if each.spread is not None]
        return Observation(
            record=run.row.record_id,
            launch=run.row.id,
            kernel=run.kernel,
            workload=run.row.workload.name,
            slice=run.slice,
            device=device,
            compute_capability=capability,
            threads=launch.threads,
            block=launch.block,
            grid=launch.grid,
            registers=launch.registers,
            static_shared=launch.static_shared,
            dynamic_shared=launch.dynamic_shared,
            seconds=median(means),
            spread=median(spreads) if spreads else _spread(means),
            counters=counters,
            parameters=run.parameters,
        )

    def _set(self, counter_set: CounterSet, capability: str | None) -> CounterSet:
        """Return a set that knows its device: names of counters differ between generations."""
        key = counter_set.digest, capability
        if key not in self._sets:
            self._sets[key] = replace(counter_set, compute_capability=capability)
        return self._sets[key]

    def _device(self, target: Target) -> tuple[str, str | None]:
        if target.digest not in self._targets:
            name = device_of(target)
            known = lookup(name)
            capability = None if known is None else known.compute_capability
            self._targets[target.digest] = name, capability or _of_arch(target.architecture)
        return self._targets[target.digest]


def _of_arch(architecture: str) -> str | None:
    """Return the compute capability that ``sm_75`` says."""
    digits = architecture.removeprefix("sm_").rstrip("a")
    if digits == architecture or not digits.isdigit() or len(digits) < 2:
        return None
    return f"{digits[:-1]}.{digits[-1]}"
