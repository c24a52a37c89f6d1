"""Command lines of ncu and nvprof, and what they wrote as launches."""

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

#: Under this locale both tools write numbers that mean one thing.
LOCALE = {"LC_ALL": "C"}

#: What Nsight Compute knows of a launch without counting anything.
_LAUNCH_METRICS = (
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
)


def find_tool(tool: str, path: str) -> str:
    """Return where a profiler is.

    Raises
    ------
    UsageError
        It is not on the configured path.
    """
    found = shutil.which(tool, path=path)
    if found is None:
        raise UsageError(
            f"{tool} is not on the PATH; add its folder to environment.path of the configuration "
            "(tunedb advise configure --path DIR), or use --profiler none"
        )
    return found


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
    """Return what stands before a program's command to read one group of counters.

    Parameters
    ----------
    tool : str
        ``ncu`` or ``nvprof``.
    executable : str
        Where it is.
    group : sequence of str
        Counters.
    log : Path
        File that takes the CSV.
    kernel : str or None
        Kernel whose launches are profiled; None for all.
    options : sequence of str
        Further arguments of the tool.
    first : bool
        Whether it is the first group, with which the launches themselves are described.
    """
    if tool == "ncu":
        names = [*(_LAUNCH_METRICS if first else ()), *group]
        chosen = [] if kernel is None else ["--kernel-name", kernel]
        return [
            *(executable, "--csv", "--page", "raw", "--print-units", "base"),
            # A line for the shell starts the program as its child.
            *("--target-processes", "all"),
            *("--log-file", str(log), *chosen, "--metrics", ",".join(names), *options),
        ]
    words = [executable, "--csv", "--log-file", str(log), *options]
    # Filters hold for what comes after them. A colon would begin another kind of filter.
    if kernel is not None and ":" not in kernel:
        words += ["--kernels", f"^{re.escape(kernel)}"]
    for kind, wanted in (("--events", True), ("--metrics", False)):
        names = [name for name in group if is_event(name) == wanted]
        if names:
            words += [kind, ",".join(names)]
    return words


def trace_command(executable: str, log: Path) -> list[str]:
    """Return what stands before a program's command to have nvprof write its launches."""
    return [executable, "--csv", "--log-file", str(log), "--print-gpu-trace"]


def read_launches(
    tool: str, log: Path, *, device: str, trace: Path | None = None
) -> list[tuple[Launch, tuple[float, ...]]]:
    """Return the launches in a profiler's file, and the durations of each in seconds.

    The file is read as an import reads it, but for the locale, which is known.

    Parameters
    ----------
    tool : str
        ``ncu`` or ``nvprof``.
    log : Path
        Its CSV.
    device : str
        Its name, where the file does not say it.
    trace : Path or None
        The trace that belongs to counters of nvprof.

    Raises
    ------
    FormatError
        The file is none, or holds what is not understood.
    NotFoundError, StorageError
        The profiler wrote none, or it cannot be read.
    """
    if tool == "ncu":
        report = parse_report(read_rows(log), is_english=True)
        for row, reason in report.bad:
            raise FormatError(f"line {row.number}: {reason}")
        return [(profiled.launch(), ()) for profiled in report.launches]
    found: list[tuple[Launch, tuple[float, ...]]] = []
    for item in (row.item for row in read_log(LogFile(log, str(log), None, device, trace))):
        if isinstance(item, Quarantined):
            raise FormatError(f"line {item.line}: {item.reason}")
        if isinstance(item, Measurement):
            found += [(launch, item.run_secs or ()) for launch in item.launches]
    return found


def complaint(log: Path) -> str | None:
    """Return what a profiler's file says about why there is nothing in it, or None."""
    try:
        with log.open("rb") as file:
            text = file.read(limits.MAX_PRINTED_BYTES).decode(errors="backslashreplace")
    except OSError:
        return None
    found = re.search(r"^==+(?:\d+==)? ?(?:ERROR==|Error:?) ?(.*)", text, re.MULTILINE)
    return None if found is None else found[1][: limits.MAX_TAIL_BYTES]


def merge(
    runs: Iterable[Iterable[Launch]],
    kernel: str | None,
    block: Extents,
    compute_capability: str | None = None,
) -> list[Launch]:
    """Return the launches of one variant with the counters of all its runs.

    Launches of one kernel with equal geometry are one: their counters are averaged over the
    launches of a run. Only those with the variant's block are kept.

    Parameters
    ----------
    runs : iterable of iterable of Launch
        The launches of each run under the profiler.
    kernel : str or None
        Name of the kernel that is meant; None for all.
    block : tuple of int
        The variant's block.
    compute_capability : str or None
        Of the device; nvprof does not write it.
    """
    kept: dict[tuple[object, ...], Launch] = {}
    values: dict[tuple[object, ...], dict[tuple[str, str], list[float]]] = {}
    sets: dict[tuple[object, ...], CounterSet] = {}
    for launch in (launch for run in runs for launch in run):
        if launch.block != block or not _is_meant(launch.kernel, kernel):
            continue
        key = (launch.kernel, launch.grid)
        kept[key] = _filled(kept.get(key), launch)
        if launch.counter_set is None:
            continue
        said = launch.counter_set
        sets.setdefault(
            key, replace(said, compute_capability=said.compute_capability or compute_capability)
        )
        mine = values.setdefault(key, {})
        for name, value in zip(launch.counter_set.counters, launch.values, strict=True):
            mine.setdefault(name, []).append(value)
    return [
        _counted(replace(launch, number=number), sets.get(key), values.get(key, {}))
        for number, (key, launch) in enumerate(kept.items())
    ]


def dominant(launches: Sequence[Launch]) -> list[Launch]:
    """Return the launches whose times can be told apart.

    Of several launches only those with seconds of their own are learnt from. Where the profiler
    gives none, the times of the program are taken for those of the largest launch of each kernel.
    """
    if all(launch.seconds is not None for launch in launches):
        return list(launches)
    largest: dict[str, Launch] = {}
    for launch in launches:
        before = largest.get(launch.kernel)
        if before is None or _blocks(before) < _blocks(launch):
            largest[launch.kernel] = launch
    return [replace(launch, number=number) for number, launch in enumerate(largest.values())]


def _blocks(launch: Launch) -> int:
    return math.prod(launch.grid or (0,))


def _is_meant(name: str, kernel: str | None) -> bool:
    return kernel is None or re.search(rf"(?<!\w){re.escape(kernel)}(?!\w)", name) is not None


def _filled(first: Launch | None, launch: Launch) -> Launch:
    """Return the first launch with what only a later run says of it."""
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


def _counted(
    launch: Launch, base: CounterSet | None, values: dict[tuple[str, str], list[float]]
) -> Launch:
    """Return a launch with the means of what was measured."""
    if base is None:
        return replace(launch, counter_set=None, values=())
    counters = tuple(values)
    means = []
    for name in counters:
        measured = [value for value in values[name] if not math.isnan(value)]
        means.append(math.fsum(measured) / len(measured) if measured else math.nan)
    merged = CounterSet(base.tool, base.tool_version, base.compute_capability, counters)
    return replace(launch, counter_set=merged, values=tuple(means))
