"""Tables of GPU profilers, and the conversion of profiled launches to records."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ... import limits
from ...errors import FormatError
from ...launches import Extents, Launch
from ...programs.kernel import split_parameters
from ...records import Measurement, Program, Status
from ..base import read_lines
from ..streams import open_log
from .kernels import gpu_target, kernel_workload

# ---- Tables of nvprof, Nsight Compute and Nsight Systems -----------------------------------------
#
# All are CSV, mixed with messages of the profiler and output of the profiled program. Columns are
# looked up by name, never by position.

#: ``==1234== Profiling result:``, ``==PROF== Connected to process``, ``======== Error: …``.
_CHATTER = re.compile(r"==[A-Z0-9]*==")


class Row(NamedTuple):
    """A line of a profiler's file.

    Parameters
    ----------
    number : int
        Line number, from 1.
    text : str
        The line.
    cells : list of str
        Its cells; empty for messages and lines that are not CSV.
    is_chatter : bool
        The line is a message of the profiler.
    """

    number: int
    text: str
    cells: list[str]
    is_chatter: bool


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the lines of a file, compressed or not, as rows, without blank ones.

    Raises
    ------
    FormatError
        The file is damaged from some point on, or has a line that is too long.
    StorageError
        The file cannot be read.
    """
    with open_log(path) as (stream, position):
        for line in read_lines(stream, position):
            if line.too_long:
                raise FormatError(f"line {line.number}: longer than {limits.MAX_LINE_BYTES} bytes")
            text = line.data.decode(errors="backslashreplace")
            if line.number == 1:
                text = text.removeprefix("\ufeff")
            row = parse_row(text, line.number)
            if row is not None:
                yield row


def rows_of(text: str) -> Iterator[Row]:
    """Yield the lines of a text as :func:`read_rows` does."""
    for number, line in enumerate(text.splitlines(), 1):
        row = parse_row(line, number)
        if row is not None:
            yield row


def parse_row(text: str, number: int) -> Row | None:
    """Return a line as a row; None for a blank line."""
    text = text.rstrip("\r\n")
    if not text.strip():
        return None
    if _CHATTER.match(text):
        return Row(number, text, [], is_chatter=True)
    try:
        # Each line on its own: an unclosed quote must not swallow the next lines.
        cells = next(csv.reader([text]))
    except (csv.Error, StopIteration):
        cells = []
    return Row(number, text, [cell.strip() for cell in cells], is_chatter=False)


#: Factors from units to their base units. The profilers' spellings do not conflict.
_TIMES = {
    **{"second": 1.0, "msecond": 1e-3, "usecond": 1e-6, "nsecond": 1e-9, "psecond": 1e-12},
    **{"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "ps": 1e-12, "\u03bcs": 1e-6, "\xb5s": 1e-6},
    **{"sec": 1.0, "msec": 1e-3, "usec": 1e-6, "nsec": 1e-9},
}
#: nvprof's kilobytes have 1,024 bytes (195.3125 KB are 200,000 bytes), Nsight Compute's 1,000.
_BINARY = {"B": 1.0, "KB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30, "TB": 2.0**40}
_PREFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def seconds(value: float, unit: str) -> float:
    """Return a time in seconds.

    Raises
    ------
    FormatError
        The unit is not a unit of time.
    """
    factor = _TIMES.get(unit)
    if factor is None:
        raise FormatError(f"a time in {unit!r}; expected s, ms, us or ns")
    return value * factor


def binary_bytes(value: float, unit: str) -> int:
    """Return a size in bytes; nvprof prints sizes with six decimal places.

    Raises
    ------
    FormatError
        The unit is not a unit of size.
    """
    factor = _BINARY.get(unit)
    if factor is None:
        raise FormatError(f"a size in {unit!r}; expected B, KB or MB")
    return round(value * factor)


def base_unit(unit: str) -> tuple[float, str]:
    """Return the factor from a unit of Nsight Compute to its base unit, and the base unit.

    Accepts both spellings: ``usecond`` and ``us``, ``Gbyte/second`` and ``GB/s``. Units other than
    those of time, size and frequency are their own base units.
    """
    if "/" in unit:
        over, under = unit.split("/", maxsplit=1)
        (factor, above), (divisor, below) = base_unit(over), base_unit(under)
        return factor / divisor, f"{above}/{below}"
    if unit in _TIMES:
        return _TIMES[unit], "second"
    for names, base in ((("byte", "B"), "byte"), (("hz", "Hz"), "hz")):
        for name in names:
            if unit == name:
                return 1.0, base
            if unit[1:] == name and unit[0] in _PREFIXES:
                return _PREFIXES[unit[0]], base
    return 1.0, unit


def parse_number(text: str) -> float:
    """Return a number as the profilers print it in an English locale: ``1,215,000.00``.

    ``n/a``, an empty cell, ``<OVERFLOW>`` and infinity give NaN, which means not measured.

    Raises
    ------
    FormatError
        The text is not a number.
    """
    if text in (
        "",
        "n/a",
        "nan",
        "-nan",
        "inf",
        "-inf",
        "+inf",
        "<OVERFLOW>",
        "(!) n/a",
        "(!) nan",
    ):
        return float("nan")
    plain = text.replace(",", "") if _GROUPED.fullmatch(text) else text
    if not _PLAIN.fullmatch(plain):
        raise FormatError(f"{text[:40]!r} is not a number")
    value = float(plain)
    return value if abs(value) != float("inf") else float("nan")


_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?", re.ASCII)


class Locale:
    """Detector of a file's locale from its numbers.

    ``117.344`` and ``1,024`` are ambiguous; other numbers of the same file resolve them.
    """

    _ENGLISH = re.compile(
        # A point not followed by three digits, a leading 0, more than three digits in a group.
        r"-?(?:\d+\.(?:\d{1,2}|\d{4,})|0\.\d+|\d{4,}\.\d+|\d{1,3}(?:,\d{3})+\.\d*|"
        r"\d{1,3}(?:,\d{3}){2,})"
    )
    _OTHER = re.compile(
        r"-?(?:\d+,(?:\d{1,2}|\d{4,})|0,\d+|\d{4,},\d+|\d{1,3}(?:\.\d{3})+,\d*|"
        r"\d{1,3}(?:\.\d{3}){2,}|\d{1,3}(?:[ \xa0\u202f'\u2019]\d{3})+(?:,\d*)?)"
    )
    _EITHER = re.compile(r"-?[1-9]\d{0,2}[.,]\d{3}")

    def __init__(self, *, is_english: bool = False) -> None:
        self._is_english = is_english
        self._other: str | None = None
        self._either: str | None = None

    def see(self, text: str) -> None:
        """Classify one number."""
        if self._OTHER.fullmatch(text):
            self._other = self._other or text
        elif self._ENGLISH.fullmatch(text):
            self._is_english = True
        elif self._either is None and self._EITHER.fullmatch(text):
            self._either = text

    def check_seen(self, line: int) -> None:
        """Raise FormatError if a number up to this line has another locale than English."""
        if self._other is not None:
            raise FormatError(
                f"line {line}: the number {self._other} has another locale; {_ENGLISH_PLEASE}"
            )

    def check(self) -> None:
        """Raise FormatError if the numbers seen are ambiguous."""
        if self._either is not None and not self._is_english:
            raise FormatError(
                f"{self._either} is ambiguous, and no other number shows the locale; "
                f"{_ENGLISH_PLEASE}"
            )


_ENGLISH_PLEASE = "profile again with LC_ALL=C and --print-units base"


# ---- Launches as records -------------------------------------------------------------------------

#: Suffixes of programs that are built once per block size: ``vectorAdd_bs256``.
_BLOCK_SUFFIX = re.compile(r"[_-](?:bs|blk|block|tb|threads?)[_-]?\d+$", re.IGNORECASE)

_DIGITS = re.compile(r"\d+")

#: Launches have different problem sizes if their threads differ by more than one part in so many.
_NEAR = 8

#: Tuning parameters of a profiled launch.
BLOCK_PARAMETERS = ("block_size_x", "block_size_y", "block_size_z")

_UNNAMED = "(anonymous namespace)"
_CALL = "operator()"


def kernel_key(name: str) -> str:
    """Return a kernel's name without return type, signature and template arguments.

    Variants of one kernel differ in their template arguments, which may be the block size
    (``matrixMulCUDA<int=8>``).
    """
    letters: list[str] = []
    depth = place = 0
    while place < len(name):
        letter = name[place]
        if depth == 0 and name.startswith(_UNNAMED, place):
            letters.append(_UNNAMED)
            place += len(_UNNAMED)
            continue
        if depth == 0 and name.startswith(_CALL, place):
            letters.append(_CALL)
            place += len(_CALL)
            continue
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth = max(0, depth - 1)
        elif letter == "(" and depth == 0:
            break
        elif depth == 0:
            letters.append(letter)
        place += 1
    return "".join(letters).strip().removeprefix("void ").strip() or name


def application(command: str) -> str:
    """Return a command line without the program's folder and block size.

    The arguments stay, because they mostly contain the size of the problem.
    """
    program, *arguments = command.split()
    name = _BLOCK_SUFFIX.sub("", re.split(r"[/\\]", program)[-1])
    return " ".join([name, *arguments])


@dataclass(slots=True)
class KernelLaunches:
    """Launches of one kernel with one geometry.

    Parameters
    ----------
    device : str
        Name of the device; may be empty.
    launch : Launch
        The geometry, and the counters if known.
    seconds : list of float
        Duration of each launch in seconds; empty if unknown.
    """

    device: str
    launch: Launch
    seconds: list[float] = field(default_factory=list)


def problems(launched: Iterable[KernelLaunches]) -> list[tuple[int, int]]:
    """Return each item's problem: its ordinal within the kernel, from 1, and the kernel's count.

    A program may launch a kernel for several problem sizes, whose times must not be compared. A
    profile does not name the sizes, so they are numbered in the order of their first launch.
    Launches with about as many threads in other blocks (256 blocks of 64, 64 of 256) have one size.
    """
    classes: dict[tuple[str, str], list[list[Launch]]] = {}
    ordinals: list[tuple[tuple[str, str], int]] = []
    for item in launched:
        key = item.device, kernel_key(item.launch.kernel)
        sizes = classes.setdefault(key, [])
        matches = (
            number
            for number, members in enumerate(sizes)
            if all(_has_same_size(member, item.launch) for member in members)
        )
        place = next(matches, len(sizes))
        if place == len(sizes):
            sizes.append([])
        sizes[place].append(item.launch)
        ordinals.append((key, place + 1))
    return [(ordinal, len(classes[key])) for key, ordinal in ordinals]


def _has_same_size(launch: Launch, other: Launch) -> bool:
    """Return True for two launches of one problem size with different blocks."""
    if None in (launch.block, launch.grid, other.block, other.grid) or launch.block == other.block:
        return False
    if _DIGITS.sub("", launch.kernel) != _DIGITS.sub("", other.kernel):
        return False  # template arguments differ in more than numbers: another function
    extents = (launch.block, launch.grid, other.block, other.grid)
    axes = zip(*(item or (1, 1, 1) for item in extents), strict=True)
    return all(_is_near(b * g, c * h, max(b, c)) for b, g, c, h in axes)


def _is_near(threads: int, other: int, block: int) -> bool:
    """Return True if threads differ by less than a block and by at most an eighth.

    A block alone is too lax: one block of 150 threads and one of 34 are two sizes.
    """
    return abs(threads - other) < min(block, max(threads, other) / _NEAR + 1)


def program_of(
    kind: str, item: KernelLaunches, problem: tuple[int, int], app: str | None
) -> Program:
    """Return the program of a profiled launch.

    The workload is the kernel with the application that launched it; the block is a configuration
    of tuning parameters. The grid follows from both, and only the launch stores it.
    """
    description: dict[str, object] = {}
    if app:
        description["application"] = app
    ordinal, number = problem
    if number > 1:
        description["launch"] = [ordinal, number]
    launch = item.launch
    if launch.block is None:
        trace = split_parameters({"threads": launch.threads})
    else:
        trace = split_parameters(dict(zip(BLOCK_PARAMETERS, launch.block, strict=True)))
    workload = kernel_workload(kernel_key(launch.kernel), description or None)
    return Program(workload, gpu_target(kind, item.device), trace)


def measurement_of(
    program: Program, item: KernelLaunches, context: bytes, extra: bytes | None
) -> Measurement:
    """Return the record of launches; without times it is unmeasured, with counters only.

    Times under a profiler that replays kernels are not run times, so launches without a trace have
    no times.

    Raises
    ------
    FormatError
        The launches exceed the limit of run times.
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
    """Return the extents of a block or grid, or raise FormatError if they are out of range."""
    if min(extents) < 1 or max(extents) >= 2**31:
        raise FormatError(f"a {what} of {' x '.join(map(str, extents))}")
    return extents


def threads_of(block: Extents) -> int:
    """Return the threads of a block, or raise FormatError if it has too many."""
    threads = block[0] * block[1] * block[2]
    if threads > limits.MAX_BLOCK_THREADS:
        raise FormatError(f"a block of {threads} threads")
    return threads
