"""Launches of kernels that a profiler saw, as records: which program, and of which problem."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ... import limits
from ...errors import FormatError
from ...launches import Extents, Launch
from ...records import Measurement, Program, Status
from ...steps.parameters import split_parameters
from .kernels import gpu_target, kernel_workload

#: What programs that are built once for each block size are called: ``vectorAdd_bs256``.
_BLOCK_SUFFIX = re.compile(r"[_-](?:bs|blk|block|tb|threads?)[_-]?\d+$", re.IGNORECASE)

_DIGITS = re.compile(r"\d+")

#: Launches whose threads differ by more than this part are of two sizes.
_NEAR = 8

#: Names of the parameters that a profiled launch has.
BLOCK_PARAMETERS = ("block_size_x", "block_size_y", "block_size_z")

_UNNAMED = "(anonymous namespace)"
_CALL = "operator()"


def kernel_key(name: str) -> str:
    """Return a kernel's name without return type, signature and template arguments.

    Template arguments may be the block size (``matrixMulCUDA<int=8>``), so variants of one kernel
    differ in them.
    """
    kept: list[str] = []
    depth = place = 0
    while place < len(name):
        letter = name[place]
        if depth == 0 and name.startswith(_UNNAMED, place):
            kept.append(_UNNAMED)
            place += len(_UNNAMED)
            continue
        if depth == 0 and name.startswith(_CALL, place):
            kept.append(_CALL)
            place += len(_CALL)
            continue
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth = max(0, depth - 1)
        elif letter == "(" and depth == 0:
            break
        elif depth == 0:
            kept.append(letter)
        place += 1
    return "".join(kept).strip().removeprefix("void ").strip() or name


def application(command: str) -> str:
    """Return which program a command line runs: its name without folder and block size.

    Arguments follow the name, as the size of the problem is mostly there.
    """
    program, *arguments = command.split()
    name = _BLOCK_SUFFIX.sub("", re.split(r"[/\\]", program)[-1])
    return " ".join([name, *arguments])


@dataclass(slots=True)
class Launched:
    """Launches of one kernel with one geometry.

    Parameters
    ----------
    device : str
        Name of the device; may be empty.
    launch : Launch
        The geometry, and the counters where they are known.
    seconds : list of float
        Time of each.
    """

    device: str
    launch: Launch
    seconds: list[float] = field(default_factory=list)


def problems(launched: Iterable[Launched]) -> list[tuple[int, int]]:
    """Return which launch of its kernel each is: its ordinal from 1, and of how many.

    A program may launch a kernel for several sizes, whose times must not be compared. Nothing in a
    profile names them, so they are counted in the order of their first launch. Launches of about
    as many threads in other blocks (256 blocks of 64, 64 of 256) are of one size.
    """
    classes: dict[tuple[str, str], list[list[Launch]]] = {}
    ordinals: list[tuple[tuple[str, str], int]] = []
    for item in launched:
        key = item.device, kernel_key(item.launch.kernel)
        known = classes.setdefault(key, [])
        same = (
            number
            for number, members in enumerate(known)
            if all(_covers_same(member, item.launch) for member in members)
        )
        place = next(same, len(known))
        if place == len(known):
            known.append([])
        known[place].append(item.launch)
        ordinals.append((key, place + 1))
    return [(ordinal, len(classes[key])) for key, ordinal in ordinals]


def _covers_same(one: Launch, other: Launch) -> bool:
    """Tell whether two launches are of one size, with other blocks."""
    if None in (one.block, one.grid, other.block, other.grid) or one.block == other.block:
        return False
    if _DIGITS.sub("", one.kernel) != _DIGITS.sub("", other.kernel):
        return False  # other template arguments than sizes: another function
    axes = zip(*map(_known, (one.block, one.grid, other.block, other.grid)), strict=True)
    return all(_is_same(b * g, c * h, max(b, c)) for b, g, c, h in axes)


def _is_same(one: int, other: int, block: int) -> bool:
    """Tell whether as many threads run, up to a part of a block and an eighth of all.

    One block of 150 threads and one of 34 differ by less than a block, and are two sizes.
    """
    return abs(one - other) < min(block, max(one, other) / _NEAR + 1)


def _known(extents: Extents | None) -> Extents:
    return extents or (1, 1, 1)


def program_of(kind: str, item: Launched, problem: tuple[int, int], app: str | None) -> Program:
    """Return the program of a profiled launch.

    The workload is the kernel with the program that launched it; the block is a configuration of
    tuning parameters. The grid follows from both, and is kept with the launch alone.
    """
    said: dict[str, object] = {}
    if app:
        said["application"] = app
    ordinal, number = problem
    if number > 1:
        said["launch"] = [ordinal, number]
    launch = item.launch
    if launch.block is None:
        trace = split_parameters({"threads": launch.threads})
    else:
        trace = split_parameters(dict(zip(BLOCK_PARAMETERS, launch.block, strict=True)))
    workload = kernel_workload(kernel_key(launch.kernel), said or None)
    return Program(workload, gpu_target(kind, item.device), trace)


def measurement_of(
    program: Program, item: Launched, context: bytes, extra: bytes | None
) -> Measurement:
    """Return a record of launches: measured where there are times, else profiled only.

    A time under a profiler that replays kernels is none of the program, so a launch without a
    trace is a program that nobody timed: unmeasured, with its counters.

    Raises
    ------
    FormatError
        There are more times than a measurement may have.
    """
    times = tuple(item.seconds)
    if len(times) > limits.MAX_RUN_SECS:
        raise FormatError(f"{len(times)} launches of {item.launch.kernel[:80]}")
    return Measurement(
        program,
        times or None,
        Status.OK if times else Status.UNMEASURED,
        context=context,
        extra=extra,
        launches=(item.launch,),
    )


def check_extents(extents: Extents, what: str) -> Extents:
    """Return extents of a block or grid, or raise FormatError."""
    if min(extents) < 1 or max(extents) >= 2**31:
        raise FormatError(f"a {what} of {' x '.join(map(str, extents))}")
    return extents


def threads_of(block: Extents) -> int:
    """Return the threads of a block, or raise FormatError where it has too many."""
    threads = block[0] * block[1] * block[2]
    if threads > limits.MAX_BLOCK_THREADS:
        raise FormatError(f"a block of {threads} threads")
    return threads
