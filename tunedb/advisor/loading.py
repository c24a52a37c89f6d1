"""Observations from a database.

An observation is one configuration of a kernel on a device: the launches of one program that were
measured in one way. Several measurements of it are one observation. Its time is the median of their
means (an outlier of one session does not move it), its counters are those of the first measurement
with counters.

KTT times a run with counters under the profiler: of 256 pairs the median differs by 0.1 %, single
ones by -18 % to 12 %. So all times of one slice come from runs under the profiler, or all from
others, whichever has more blocks; with equally many, from runs with counters. Other tools profile
apart from timing, so their launches with counters have plain times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import orjson

from .. import identity
from ..errors import FormatError
from ..formats.gpu.profilers import profilers
from ..formats.gpu.t1 import T1Input, read_t1
from ..launches import Extents
from ..programs import TOOL_NAMES
from ..programs.kernel import join_parameters
from ..programs.metaschedule.trace import join_trace
from ..programs.thread_blocks import block_parameters
from ..records import Target, Trace, Workload, WorkloadFormat
from .counters import describe, neutral
from .devices import lookup
from .observations import Observation

if TYPE_CHECKING:
    from ..launches import CounterSet
    from ..results import LaunchRow
    from ..storage.store import Store

# ---- Slices: launches that differ in the thread block alone --------------------------------------
#
# The key of a slice is a digest over everything that must be equal: the target and the program. The
# key of a program is over workload, kernel, and its text without what determines the block:
#
# * programs of tuning parameters: all parameters but those of the block
#   (:func:`tunedb.programs.thread_blocks.block_parameters`);
# * profiled launches of programs without parameters: the number of threads in the grid, as far as
#   blocks can cover it (:func:`problems`). A template argument may be the block's size, so those do
#   not count;
# * traces of MetaSchedule: the instructions before ``EnterPostproc`` and their decisions, without
#   those that determine a bound loop (:func:`masked_trace`);
# * all others: the whole program, which makes slices of one.

#: A parameter with the number of blocks, which follows from the block.
_GRID = re.compile(r"grid(?:_size|size|dim|_dim)?[._]?[xyz]", re.IGNORECASE)

_BOUND = re.compile(r'"?(?:threadIdx|blockIdx)\.[xyz]"?')


@lru_cache(maxsize=4096)
def plain_name(kernel: str) -> str:
    """Return a kernel's name without return type, template arguments and signature.

    ``void reduce<float, int=4>(float const *, int)`` is ``reduce``; a namespace stays.
    """
    name = kernel.strip()
    depth, kept = 0, []
    for place, char in enumerate(name):
        if char == "<":
            depth += 1
        elif char == ">":
            depth = max(depth - 1, 0)
        elif depth == 0:
            # "(anonymous namespace)::f(int)" starts with a parenthesis that is no signature.
            if char == "(" and not name[place:].startswith("(anonymous namespace)"):
                break
            kept.append(char)
    words = "".join(kept).replace("(anonymous namespace)", "(anonymous)").split()
    return words[-1] if words else name


def parameter_key(
    workload: Workload,
    kernel: str,
    parameters: Mapping[str, Any],
    block: Collection[str],
) -> bytes:
    """Return the program of a configuration of tuning parameters, without its block.

    Parameters
    ----------
    workload : Workload
    kernel : str
        Plain name of the kernel: a program may launch several.
    parameters : mapping
        The configuration; the order of its names does not count.
    block : collection of str
        Names of the parameters that determine the thread block.
    """
    rest = sorted((name, value) for name, value in parameters.items() if name not in block)
    return _key(workload, kernel, ["parameters", [list(pair) for pair in rest]])


def problem_key(workload: Workload, kernel: str, problem: int) -> bytes:
    """Return the program of a profiled launch, without its block.

    Parameters
    ----------
    problem : int
        The kernel's problem that it solved (:func:`problems`).
    """
    return _key(workload, kernel, ["problem", problem])


def program_key(workload: Workload, kernel: str, trace: Trace) -> bytes:
    """Return any other program, without its block."""
    if TOOL_NAMES.get(workload.format) != "metaschedule":
        parts = [trace.sketch, trace.tail or b"", trace.decisions]
        return _key(workload, kernel, ["program", [part.hex() for part in parts]])
    return _key(workload, kernel, ["trace", *masked_trace(trace)])


def _key(workload: Workload, kernel: str, rest: list[Any]) -> bytes:
    return identity.digest(
        "program",
        workload.digest,
        kernel.encode(errors="surrogatepass"),
        identity.canonical_json(rest),
    )


def is_geometry(parameters: Iterable[str], block: Collection[str]) -> bool:
    """Tell whether a program has no parameters but its launch's geometry, the grid among them."""
    rest = [name for name in parameters if name not in block]
    return bool(rest) and all(_GRID.fullmatch(name) for name in rest)


def problems(launches: Sequence[tuple[Extents, Extents]]) -> list[int]:
    """Return the problem of each launch of one kernel.

    A problem of n threads along an axis takes ``ceil(n / block)`` blocks, so a launch determines n
    up to the size of a block. Launches whose ranges of n overlap solved the same problem; they are
    visited in the order of their threads. If the grid of a kernel does not grow with the problem (a
    loop over the grid), each block has its own problem, and there is no comparison.

    Parameters
    ----------
    launches : sequence of (Extents, Extents)
        Block and grid.

    Returns
    -------
    list of int
        The largest n that all launches of the problem allow; equal for them.
    """
    ranges = []
    for block, grid in launches:
        axes = list(zip(block, grid, strict=True))
        least = math.prod((blocks - 1) * threads + 1 for threads, blocks in axes)
        ranges.append((math.prod(block) * math.prod(grid), least))
    found: dict[int, int] = {}
    first = -1
    for place in sorted(range(len(ranges)), key=lambda i: ranges[i]):
        most, least = ranges[place]
        if least > first:
            first = most
        found[place] = first
    return [found[place] for place in range(len(ranges))]


def masked_trace(trace: Trace) -> tuple[list[Any], list[Any]]:
    """Return a trace of MetaSchedule without the decisions of its bound loops.

    The decisions are traced back from ``Bind`` through ``Fuse`` to the factors of ``Split``; of a
    tiling the bound parts are masked, the others stay. The instructions after ``EnterPostproc``
    follow from the rest and are left out.

    Returns
    -------
    list, list
        Instructions and decisions; None replaces masked parts.

    Raises
    ------
    FormatError
        The trace is damaged.
    """
    instructions, decisions = join_trace(_head(trace))
    feeding = _feeding(instructions)
    masked = [_masked_instruction(instruction, feeding) for instruction in instructions]
    return masked, [
        [index, _masked_decision(instructions[index], value, feeding)]
        for index, value in decisions
        if index < len(instructions)
    ]


def _masked_instruction(instruction: list[Any], feeding: set[str]) -> list[Any]:
    kind, inputs, attrs, outputs = instruction
    if kind != "Split" or not feeding.intersection(outputs):
        return instruction
    loop, *factors = inputs
    kept = [
        None if place < len(outputs) and outputs[place] in feeding else factor
        for place, factor in enumerate(factors)
    ]
    return [kind, [loop, *kept], attrs, outputs]


def _head(trace: Trace) -> Trace:
    """Return a trace up to ``EnterPostproc``; damaged decisions stay, for later checks."""
    try:
        decisions, literals, _ = orjson.loads(trace.decisions)
    except ValueError:
        return trace
    return Trace(trace.sketch, None, identity.canonical_json([decisions, literals, []]))


def _masked_decision(instruction: list[Any], value: Any, feeding: set[str]) -> Any:
    outputs = instruction[3]
    if not isinstance(value, list):
        return None if feeding.intersection(outputs) else value
    return [
        None if place < len(outputs) and outputs[place] in feeding else part
        for place, part in enumerate(value)
    ]


def _feeding(instructions: list[Any]) -> set[str]:
    """Return the variables that bound loops depend on: loops, and the factors of their splits."""
    feeding: set[str] = set()
    for kind, inputs, attrs, outputs in reversed(instructions):
        if kind == "Bind" and attrs and _BOUND.fullmatch(str(attrs[0])):
            feeding.add(inputs[0])
        elif kind == "Fuse" and feeding.intersection(outputs):
            feeding.update(name for name in inputs if isinstance(name, str))
        elif kind == "Split":
            for place, output in enumerate(outputs):
                factor = inputs[1 + place] if 1 + place < len(inputs) else None
                if output in feeding and isinstance(factor, str):
                    feeding.add(factor)
    return feeding


# ---- Observations from a database ----------------------------------------------------------------

#: Formats whose times are those of the profiled run itself.
_TIMED_UNDER_PROFILER = frozenset({"ktt", "ktt-csv", "ktt-xml", "t4"})


@dataclass(slots=True)
class _Run:
    """A launch on its way to an observation."""

    row: LaunchRow
    kernel: str
    seconds: float
    spread: float | None
    parameters: Mapping[str, Any]
    counted: bool
    program: bytes = b""

    @property
    def slice(self) -> bytes:
        return identity.digest("slice", self.program, self.row.target.digest)

    @property
    def under_profiler(self) -> bool:
        return self.counted and _log(self.row.context) in _TIMED_UNDER_PROFILER

    @property
    def configuration(self) -> tuple[Any, ...]:
        launch = self.row.launch
        return self.row.program_id, launch.number, launch.threads, launch.block


def load(
    store: Store,
    *,
    kernels: Collection[str] | None = None,
    devices: Collection[str] | None = None,
    profiled: bool | None = None,
) -> list[Observation]:
    """Return the launches with a known run time, in the order of record and launch.

    Failed and retracted runs are left out; foreign sources count, as for cost models. If a program
    launched several kernels, only kernels with a time of their own count.

    Parameters
    ----------
    store : Store
        An open database.
    kernels, devices : collection of str, optional
        Only these: kernels by their names, plain names, or the names of their workloads; devices by
        their names in the database, or by usual names (``RTX 2080 Ti``).
    profiled : bool, optional
        True for runs with counters alone, False for those without; both by default.

    Raises
    ------
    FormatError
        A launch or a program is damaged (``tunedb db check``).
    """
    runs = [
        run
        for run in _runs(store.launches.iterate())
        if _is_meant(run.row, kernels, devices) and profiled in (None, run.counted)
    ]
    _set_programs(runs, t1_inputs(store))
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


def t1_inputs(store: Store) -> dict[str, T1Input]:
    """Return the FAIR T1 inputs of a database by the names of their kernels.

    Several inputs of one kernel count only if they agree on the thread block. Unreadable inputs do
    not count.
    """
    found: dict[str, T1Input | None] = {}
    for name, body in store.training.t1_inputs():
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
    """Return the name of a target's device, or the target's kind without one."""
    model = (target.attributes or {}).get("model")
    return model if isinstance(model, str) and model not in ("", "unknown") else target.kind


def _is_meant(
    row: LaunchRow, kernels: Collection[str] | None, devices: Collection[str] | None
) -> bool:
    if kernels is not None:
        name = row.launch.kernel
        if not {name, plain_name(name), row.workload.name}.intersection(kernels):
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
                kernel = plain_name(row.launch.kernel)
                counted = bool(_counted(row.launch.counter_set))
                runs.append(
                    _Run(row, kernel, fmean(secs), _spread(secs), _parameters(row), counted)
                )
    return runs


@lru_cache(maxsize=1024)
def _counted(counter_set: CounterSet | None) -> frozenset[str]:
    """Return the neutral names of a profiler's counters in a set.

    Kernel Tuner stores the user's metrics beside measured counters, and metrics often contain the
    time (``GFLOP/s``), which is the answer of a model. So only names that a profiler has count.
    """
    if counter_set is None:
        return frozenset()
    names = neutral(counter_set, [0.0] * len(counter_set.counters))
    if counter_set.tool in profilers():
        return frozenset(names)
    return frozenset(name for name in names if describe(name).kind != "unknown")


def _spread(secs: Sequence[float]) -> float | None:
    """Return the coefficient of variation of some times; None for a single time."""
    if len(secs) < 2:
        return None
    mean = fmean(secs)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in secs) / (len(secs) - 1)) / mean


def _parameters(row: LaunchRow) -> dict[str, Any]:
    return join_parameters(row.trace) if row.workload.format == WorkloadFormat.KERNEL else {}


@lru_cache(maxsize=1024)
def _log(context: bytes | None) -> str:
    """Return the format from which a record was read; empty for other records."""
    known = orjson.loads(context) if context else None
    return str(known.get("log", "")) if isinstance(known, dict) else ""


def _set_programs(runs: Sequence[_Run], stated: Mapping[str, T1Input]) -> None:
    """Set the program of each run; the parameters of the block are found per tuning space."""
    spaces: dict[tuple[int, bytes, str], list[_Run]] = {}
    for run in runs:
        spaces.setdefault((run.row.workload_id, run.row.trace.sketch, run.kernel), []).append(run)
    for (_, _, kernel), space in spaces.items():
        workload = space[0].row.workload
        if workload.format != WorkloadFormat.KERNEL:
            for run in space:
                run.program = program_key(workload, kernel, run.row.trace)
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
            run.program = parameter_key(workload, kernel, run.parameters, block)


def _is_seen_by_profiler(space: Sequence[_Run], block: Collection[str]) -> bool:
    first = space[0]
    rest = set(first.parameters) - set(block)
    return is_geometry(first.parameters, block) or (
        not rest and _log(first.row.context) in profilers()
    )


def _by_problem(space: Sequence[_Run]) -> None:
    targets: dict[int, list[_Run]] = {}
    for run in space:
        launch = run.row.launch
        if launch.block is None or launch.grid is None:
            run.program = program_key(run.row.workload, run.kernel, run.row.trace)
        else:
            targets.setdefault(run.row.target_id, []).append(run)
    for several in targets.values():
        geometry = [
            (run.row.launch.block or (1, 1, 1), run.row.launch.grid or (1, 1, 1)) for run in several
        ]
        for run, problem in zip(several, problems(geometry), strict=True):
            row = run.row
            run.program = problem_key(row.workload, run.kernel, problem)


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
    """Builds observations; caches their shared parts."""

    def __init__(self) -> None:
        self._sets: dict[tuple[bytes, str | None], CounterSet] = {}
        self._targets: dict[bytes, tuple[str, str | None]] = {}

    def observation(self, timed: Sequence[_Run], counted: _Run | None) -> Observation:
        """Return the observation of some runs of one configuration; `counted` has the counters."""
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
            program=run.program,
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
        """Return a counter set with its device: names of counters differ between generations."""
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
    """Return the compute capability of an architecture such as ``sm_75``."""
    digits = architecture.removeprefix("sm_").rstrip("a")
    if digits == architecture or not digits.isdigit() or len(digits) < 2:
        return None
    return f"{digits[:-1]}.{digits[-1]}"
