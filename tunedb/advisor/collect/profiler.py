"""Command lines of ncu and nvprof, and the launches in their files."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ... import limits
from ...errors import FormatError, UsageError
from ...formats.base import LogFile
from ...formats.gpu.ncu import parse_report
from ...formats.gpu.profiler_tables import read_rows
from ...formats.reading import read_log
from ...launches import CounterSet, Extents, Launch
from ...records import Measurement, Quarantined
from .counter_groups import is_event

#: Locale in which the numbers of both tools are unambiguous.
LOCALE = {"LC_ALL": "C"}

#: Metrics of Nsight Compute that describe a launch and count nothing.
_LAUNCH_METRICS = (
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
)


def find_tool(tool: str, path: str) -> str:
    """Return the path of a profiler.

    Raises
    ------
    UsageError
        It is not on the configured path.
    """
    executable = shutil.which(tool, path=path)
    if executable is None:
        raise UsageError(
            f"{tool} is not on the PATH; add its folder to environment.path of the configuration "
            "(tunedb advise configure --path DIR), or use --profiler none"
        )
    return executable


def counter_command(
    tool: str,
    executable: str,
    group: Sequence[str],
    log: Path,
    *,
    kernel: str | None,
    options: Sequence[str],
    first: bool,
) -> list[str]:
    """Return the words before a program's command that read one group of counters.

    Parameters
    ----------
    tool : str
        ``ncu`` or ``nvprof``.
    executable : str
        Its path.
    group : sequence of str
        Counters.
    log : Path
        File for the CSV.
    kernel : str or None
        Kernel whose launches are profiled; None for all.
    options : sequence of str
        Further arguments of the tool.
    first : bool
        It is the first group, which also describes the launches.
    """
    if tool == "ncu":
        names = [*(_LAUNCH_METRICS if first else ()), *group]
        kernels = [] if kernel is None else ["--kernel-name", kernel]
        return [
            *(executable, "--csv", "--page", "raw", "--print-units", "base"),
            # The program of a line for the shell is a child of the shell.
            *("--target-processes", "all"),
            *("--log-file", str(log), *kernels, "--metrics", ",".join(names), *options),
        ]
    words = [executable, "--csv", "--log-file", str(log), *options]
    # Filters apply to the arguments after them. A colon would begin another kind of filter.
    if kernel is not None and ":" not in kernel:
        words += ["--kernels", f"^{re.escape(kernel)}"]
    for option, events in (("--events", True), ("--metrics", False)):
        names = [name for name in group if is_event(name) == events]
        if names:
            words += [option, ",".join(names)]
    return words


def trace_command(executable: str, log: Path) -> list[str]:
    """Return the words before a program's command with which nvprof writes its launches."""
    return [executable, "--csv", "--log-file", str(log), "--print-gpu-trace"]


def read_launches(
    tool: str, log: Path, *, device: str, trace: Path | None = None
) -> list[tuple[Launch, tuple[float, ...]]]:
    """Return the launches in a profiler's file, and the durations of each in seconds.

    The file is read as by an import, but its locale is known.

    Parameters
    ----------
    tool : str
        ``ncu`` or ``nvprof``.
    log : Path
        Its CSV.
    device : str
        Name of the device for a file without one.
    trace : Path or None
        nvprof's trace, which counters of nvprof need.

    Raises
    ------
    FormatError
        The file is no profile, or has a row that cannot be read.
    NotFoundError, StorageError
        The profiler wrote no file, or it cannot be read.
    """
    if tool == "ncu":
        report = parse_report(read_rows(log), is_english=True)
        for row, reason in report.bad:
            raise FormatError(f"line {row.number}: {reason}")
        return [(profiled.launch(), ()) for profiled in report.launches]
    launches: list[tuple[Launch, tuple[float, ...]]] = []
    for item in (row.item for row in read_log(LogFile(log, str(log), None, device, trace))):
        if isinstance(item, Quarantined):
            raise FormatError(f"line {item.line}: {item.reason}")
        if isinstance(item, Measurement):
            launches += [(launch, item.run_secs or ()) for launch in item.launches]
    return launches


def error_message(log: Path) -> str | None:
    """Return the profiler's error message in its file, or None."""
    try:
        with log.open("rb") as file:
            text = file.read(limits.MAX_PRINTED_BYTES).decode(errors="backslashreplace")
    except OSError:
        return None
    match = re.search(r"^==+(?:\d+==)? ?(?:ERROR==|Error:?) ?(.*)", text, re.MULTILINE)
    return None if match is None else match[1][: limits.MAX_TAIL_BYTES]


def merge_launches(
    runs: Iterable[Iterable[Launch]],
    kernel: str | None,
    block: Extents,
    compute_capability: str | None = None,
) -> list[Launch]:
    """Return the launches of one variant with the counters of all its runs.

    Launches of one kernel with equal geometry become one, with the means of their counters. Only
    those with the variant's block are kept.

    Parameters
    ----------
    runs : iterable of iterable of Launch
        The launches of each run under the profiler.
    kernel : str or None
        Name of the kernel; None for all.
    block : tuple of int
        The variant's block.
    compute_capability : str or None
        Of the device; nvprof does not write it.
    """
    launches: dict[tuple[object, ...], Launch] = {}
    values: dict[tuple[object, ...], dict[tuple[str, str], list[float]]] = {}
    sets: dict[tuple[object, ...], CounterSet] = {}
    for launch in (launch for run in runs for launch in run):
        if launch.block != block or not _is_named(launch.kernel, kernel):
            continue
        key = (launch.kernel, launch.grid)
        launches[key] = _filled(launches.get(key), launch)
        counters = launch.counter_set
        if counters is None:
            continue
        capability = counters.compute_capability or compute_capability
        sets.setdefault(key, replace(counters, compute_capability=capability))
        series = values.setdefault(key, {})
        for name, value in zip(counters.counters, launch.values, strict=True):
            series.setdefault(name, []).append(value)
    return [
        _with_means(replace(launch, number=number), sets.get(key), values.get(key, {}))
        for number, (key, launch) in enumerate(launches.items())
    ]


def dominant_launches(launches: Sequence[Launch]) -> list[Launch]:
    """Return the launches that have times of their own, or the largest launch of each kernel.

    The advisor learns only from launches with seconds of their own. Without them the times of the
    program are those of the largest launch of each kernel.
    """
    if all(launch.seconds is not None for launch in launches):
        return list(launches)
    largest: dict[str, Launch] = {}
    for launch in launches:
        known = largest.get(launch.kernel)
        if known is None or _blocks(known) < _blocks(launch):
            largest[launch.kernel] = launch
    return [replace(launch, number=number) for number, launch in enumerate(largest.values())]


def _blocks(launch: Launch) -> int:
    return math.prod(launch.grid or (0,))


def _is_named(name: str, kernel: str | None) -> bool:
    return kernel is None or re.search(rf"(?<!\w){re.escape(kernel)}(?!\w)", name) is not None


def _filled(first: Launch | None, launch: Launch) -> Launch:
    """Return the first launch with the resources that only a later run has."""
    if first is None:
        return launch
    return replace(
        first,
        registers=launch.registers if first.registers is None else first.registers,
        static_shared=launch.static_shared if first.static_shared is None else first.static_shared,
        dynamic_shared=(
            launch.dynamic_shared if first.dynamic_shared is None else first.dynamic_shared
        ),
    )


def _with_means(
    launch: Launch, base: CounterSet | None, values: dict[tuple[str, str], list[float]]
) -> Launch:
    """Return a launch with the means of its counters."""
    if base is None:
        return replace(launch, counter_set=None, values=())
    counters = tuple(values)
    means = []
    for name in counters:
        measured = [value for value in values[name] if not math.isnan(value)]
        means.append(math.fsum(measured) / len(measured) if measured else math.nan)
    merged = CounterSet(base.tool, base.tool_version, base.compute_capability, counters)
    return replace(launch, counter_set=merged, values=tuple(means))
