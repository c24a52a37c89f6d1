"""Tables of Nsight Compute (``ncu --csv``): details, raw and summary pages.

What the program printed stands before the header unless ``--log-file`` was given, and is passed
over.

The times of Nsight Compute are taken at its own clocks while kernels are replayed, so they are
counters and never run times. A launch is a record without a time, which nobody can mistake for a
fast one; a trace of another run of the same program (Nsight Systems' or nvprof's GPU trace) gives
the times where the user names it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from ... import limits
from ...errors import FormatError
from ...identity import canonical_json
from ...launches import CounterSet, Extents, Launch
from ...records import Quarantined
from ..base import Item, LogFile, Remark
from .nvprof import parse_profile
from .profiler_tables import (
    Launched,
    Locale,
    Row,
    application,
    base_unit,
    check_extents,
    kernel_key,
    measurement_of,
    parse_number,
    problems,
    program_of,
    read_rows,
    threads_of,
)
from .profilers import Capability, Profiler

# ---- Pages of Nsight Compute: details, raw and summary, with or without what stands between ------
#
# Columns are found by their names: NVTX columns may stand between them, and rows may be short. The
# raw page has a row of units below its header, the details page a unit in each row.

_EXTENTS = re.compile(r"\(?\s*([0-9]{1,10})\s*,\s*([0-9]{1,10})\s*,\s*([0-9]{1,10})\s*\)?")
_NUMERIC = re.compile(
    r"[-+]?[.,\d][\d.,eE+\- \xa0\u202f'\u2019]*|n/a|\(!\) ?(?:n/a|nan)|-?nan|-?inf"
)

#: Constants of the device, hundreds in a raw page.
_DEVICE = "device__attribute_"
_DEVICE_NAME = "device__attribute_display_name"

#: Launch parameters, by the raw name and by the label of the details page.
_GEOMETRY = {
    "launch__block_dim_x": "block_x",
    "launch__block_dim_y": "block_y",
    "launch__block_dim_z": "block_z",
    "launch__grid_dim_x": "grid_x",
    "launch__grid_dim_y": "grid_y",
    "launch__grid_dim_z": "grid_z",
    "launch__block_size": "threads",
    "launch__registers_per_thread": "registers",
    "launch__shared_mem_per_block_static": "static",
    "launch__shared_mem_per_block_dynamic": "dynamic",
    "Block Size": "threads",
    "Registers Per Thread": "registers",
    "Static Shared Memory Per Block": "static",
    "Dynamic Shared Memory Per Block": "dynamic",
}
_LAUNCH_SECTION = "Launch Statistics"


@dataclass(slots=True)
class Profiled:
    """One launch, or one kernel of a summary.

    Parameters
    ----------
    kernel : str
        Its name as the file gives it.
    process : str or None
        Name of the program.
    device : str or None
        Name of the device, where the raw page has it; else the file has its number at most.
    capability : str or None
        Compute capability.
    block, grid : tuple of int or None
        Extents.
    geometry : dict
        Registers, shared memory and so on, by :data:`_GEOMETRY`.
    counters : dict
        Name → unit and value; NaN is what was not measured.
    line : int
        Number of the line where it was met first.
    """

    kernel: str
    line: int
    process: str | None = None
    device: str | None = None
    capability: str | None = None
    block: Extents | None = None
    grid: Extents | None = None
    geometry: dict[str, float] = field(default_factory=dict)
    counters: dict[str, tuple[str, float]] = field(default_factory=dict)

    def launch(self) -> Launch:
        """Return it as a launch.

        Raises
        ------
        FormatError
            The threads of a block are not known.
        """
        block, grid = self._extents("block", self.block), self._extents("grid", self.grid)
        threads = threads_of(block) if block is not None else self._whole("threads")
        if not threads:
            raise FormatError(
                "no block size: let ncu collect it (--section LaunchStats, or --metrics "
                "launch__block_size,launch__grid_size)"
            )
        if threads > limits.MAX_BLOCK_THREADS:
            raise FormatError(f"a block of {threads} threads")
        counter_set = CounterSet(
            "ncu", None, self.capability, tuple((n, u) for n, (u, _) in self.counters.items())
        )
        return Launch(
            self.kernel,
            threads,
            block,
            grid,
            registers=self._whole("registers"),
            static_shared=self._whole("static"),
            dynamic_shared=self._whole("dynamic"),
            counter_set=counter_set if self.counters else None,
            values=tuple(value for _, value in self.counters.values()),
        )

    def _extents(self, name: str, given: Extents | None) -> Extents | None:
        if given is not None:
            return check_extents(given, name)
        x, y, z = (self._whole(f"{name}_{axis}") for axis in "xyz")
        if x is None or y is None or z is None:
            return None
        return check_extents((x, y, z), name)

    def _whole(self, name: str) -> int | None:
        value = self.geometry.get(name, math.nan)
        return round(value) if 0 <= value < 2**31 else None


@dataclass(slots=True)
class Report:
    """What a file of Nsight Compute holds.

    Parameters
    ----------
    launches : list of Profiled
        In the order of the file.
    bad : list of (Row, str)
        Rows that were not understood, with the reason.
    is_summary : bool
        Whether it has averages over launches.
    """

    launches: list[Profiled] = field(default_factory=list)
    bad: list[tuple[Row, str]] = field(default_factory=list)
    is_summary: bool = False


def parse_report(rows: Iterable[Row], *, is_english: bool = False) -> Report:
    """Return what the rows of a table of Nsight Compute hold.

    Parameters
    ----------
    rows : iterable of Row
        Of :func:`tunedb.formats.gpu.profiler_tables.read_rows` or ``rows_of``.
    is_english : bool
        Whether the locale is known to be English, or C.

    Raises
    ------
    FormatError
        Its numbers are of another locale or may be, there are too many launches, or there is no
        header of Nsight Compute.
    """
    report, locale = Report(), Locale(is_english=is_english)
    table: _Table | None = None
    for row in rows:
        header = _table_of(row.cells, report, locale)
        if header is not None:
            table = header
        elif table is not None and not row.is_chatter:
            try:
                table.add(row)
            except FormatError as error:
                report.bad.append((row, str(error)))
        if max(len(report.launches), len(report.bad)) > limits.MAX_PROFILED_KERNELS:
            raise FormatError(f"line {row.number}: too many launches in one profile")
        locale.check_seen(row.number)
    if table is None:
        raise FormatError(
            "the file has no table of Nsight Compute; profile with ncu --csv --page raw "
            "--print-units base --log-file FILE"
        )
    locale.check()
    return report


def _table_of(cells: list[str], report: Report, locale: Locale) -> _Table | None:
    """Return the table that a header begins; None for another row."""
    if not cells or cells[0] not in ("ID", "Process ID") or "Kernel Name" not in cells:
        return None
    if "Metric Value" in cells:
        return _Details(cells, report, locale)
    if "Average" in cells and "Metric Name" in cells:
        report.is_summary = True
        return _Summary(cells, report, locale)
    return _Raw(cells, report, locale) if "ID" in cells else None


class _Table:
    """Rows below one header."""

    def __init__(self, header: list[str], report: Report, locale: Locale) -> None:
        self._header = header
        self._report = report
        self._locale = locale
        self._launches: dict[tuple[str, ...], Profiled] = {}

    def add(self, row: Row) -> None:
        """Take one row; see the pages."""
        raise NotImplementedError

    def _cells(self, row: Row) -> dict[str, str]:
        """Return column → cell; the last cells may be missing, and are left out then."""
        if len(row.cells) > len(self._header):
            raise FormatError(f"{len(row.cells)} cells under a header of {len(self._header)}")
        return dict(zip(self._header, row.cells, strict=False))

    def _launch(self, row: Row, cells: dict[str, str], key: tuple[str, ...]) -> Profiled:
        """Return the launch that a row belongs to."""
        found = self._launches.get(key)
        if found is None:
            name = cells.get("Kernel Name", "")
            if not name or len(name) > limits.MAX_KERNEL_CHARS:
                raise FormatError("a kernel without a name, or with a name that is too long")
            found = Profiled(name, row.number)
            found.process = cells.get("Process Name") or None
            found.capability = cells.get("CC") or None
            found.block = _extents(cells.get("Block Size"))
            found.grid = _extents(cells.get("Grid Size"))
            self._launches[key] = found
            self._report.launches.append(found)
        return found

    def _take(self, launch: Profiled, name: str, unit: str, text: str, section: str = "") -> None:
        """Take one value of a launch; words, such as a cache's configuration, are no counters."""
        if name.startswith(_DEVICE):
            if name == _DEVICE_NAME and text:
                launch.device = text
            return
        if text and not _NUMERIC.fullmatch(text):
            return
        self._locale.see(text)
        factor, base = base_unit(unit)
        value = parse_number(text) * factor
        label = f"{section}: {name}" if section and "__" not in name else name
        if len(label) > limits.MAX_COUNTER_CHARS or len(base) > limits.MAX_COUNTER_CHARS:
            raise FormatError("a counter with a name or unit that is too long")
        if name in _GEOMETRY and ("__" in name or section == _LAUNCH_SECTION):
            launch.geometry.setdefault(_GEOMETRY[name], value)
            return
        if label not in launch.counters and len(launch.counters) >= limits.MAX_COUNTERS:
            raise FormatError(f"more than {limits.MAX_COUNTERS} counters of one launch")
        launch.counters.setdefault(label, (base, value))


class _Details(_Table):
    """A row for each metric of each launch."""

    def add(self, row: Row) -> None:
        cells = self._cells(row)
        if not cells.get("ID", "").isdigit():
            raise FormatError("a row without the number of its launch")
        launch = self._launch(row, cells, (cells["ID"], cells.get("Process ID", "")))
        name = cells.get("Metric Name", "")
        if name:  # else the row of a rule
            unit, text = cells.get("Metric Unit", ""), cells.get("Metric Value", "")
            self._take(launch, name, unit, text, cells.get("Section Name", ""))


class _Summary(_Table):
    """A row for each metric of each kernel, with the average over its launches."""

    def add(self, row: Row) -> None:
        cells = self._cells(row)
        identity = ("Process ID", "Kernel Name", "Block Size", "Grid Size", "Device")
        key = tuple(cells.get(name, "") for name in identity)
        launch = self._launch(row, cells, key)
        name = cells.get("Metric Name", "")
        if name:
            unit, text = cells.get("Metric Unit", ""), cells.get("Average", "")
            self._take(launch, name, unit, text, cells.get("Section Name", ""))


class _Raw(_Table):
    """A row for each launch, below a row of units."""

    def __init__(self, header: list[str], report: Report, locale: Locale) -> None:
        super().__init__(header, report, locale)
        self._units: dict[str, str] | None = None

    def add(self, row: Row) -> None:
        cells = self._cells(row)
        if not cells.get("ID"):
            if self._units is not None or cells.get("Kernel Name"):
                raise FormatError("a row without the number of its launch")
            self._units = cells
            return
        if self._units is None:
            raise FormatError("no row of units below the header")
        launch = self._launch(row, cells, (str(row.number),))
        for name, text in cells.items():
            if "__" in name:
                self._take(launch, name, self._units.get(name, ""), text)


def _extents(text: str | None) -> Extents | None:
    """Return ``(256, 1, 1)``; None where there is none."""
    if not text:
        return None
    match = _EXTENTS.fullmatch(text)
    if match is None:
        raise FormatError(f"{text[:40]!r} is not a block or grid; expected (x, y, z)")
    return int(match[1]), int(match[2]), int(match[3])


# ---- The profiler --------------------------------------------------------------------------------

#: Metrics that describe a launch and count nothing.
_LAUNCH_METRICS = (
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
)

_METRICS_OF_A_PASS = 8


class NcuFormat(Profiler):
    """Nsight Compute and its tables."""

    name = "ncu"
    default_origins = ("table1", "ktt")

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Tell whether a file is a table of Nsight Compute, or has its messages."""
        if re.search(rb"(?m)^==(PROF|ERROR|WARNING)== ", head):
            return True
        header = rb'(?m)^(\xef\xbb\xbf)?"(ID|Process ID)",("[^"\n]*",)*"Kernel Name",'
        return re.search(header, head) is not None

    def read_file(self, file: LogFile) -> Iterator[Item | Remark]:
        """Yield a record for each launch, or with a trace for each kernel and geometry.

        Raises
        ------
        FormatError
            What is there is no table, or of another locale than the English one.
        StorageError
            A file cannot be read.
        """
        if file.path is None:
            raise FormatError(f"{file.name}: a profile is not a stream; give its path")
        report = parse_report(read_rows(file.path))
        for row, reason in report.bad:
            yield Quarantined(file.name, row.number, reason, row.text.encode(errors="replace"))
        items: list[Launched] = []
        apps: list[str | None] = []
        for profiled in report.launches:
            try:
                launch = profiled.launch()
            except FormatError as error:
                kernel = orjson.dumps(profiled.kernel)
                yield Quarantined(file.name, profiled.line, str(error), kernel)
                continue
            items.append(Launched(profiled.device or file.device or "", launch))
            apps.append(application(profiled.process) if profiled.process else file.kernel)
        if not items and not report.bad and not report.launches:
            yield Remark("no launch in it: Nsight Compute profiled nothing")
        if file.trace is not None:
            items, apps, lost = _with_times(items, apps, file.trace)
            if lost:
                yield Remark(f"{lost} launches without a time: the trace has no such kernel")
        yield from _records(items, apps)

    def suits(self, capability: Capability | None) -> bool:
        """Tell whether the device has compute capability 7.0 or a later one."""
        return capability is None or capability >= (7, 0)

    def fits(self, group: Sequence[str], name: str) -> bool:
        """Tell whether a group has fewer than eight metrics.

        Eight of one unit fit one pass on Volta and later; more of them are more passes.
        """
        return len(group) < _METRICS_OF_A_PASS

    def counter_command(
        self,
        executable: str,
        group: Sequence[str],
        log: Path,
        *,
        kernel: str | None,
        options: Sequence[str],
        first: bool,
    ) -> list[str]:
        """Return the words before a program's command that read one group of metrics."""
        names = [*(_LAUNCH_METRICS if first else ()), *group]
        kernels = [] if kernel is None else ["--kernel-name", kernel]
        return [
            *(executable, "--csv", "--page", "raw", "--print-units", "base"),
            # The program of a line for the shell is a child of the shell.
            *("--target-processes", "all"),
            *("--log-file", str(log), *kernels, "--metrics", ",".join(names), *options),
        ]

    def read_launches(
        self, log: Path, device: str, trace: Path | None = None
    ) -> list[tuple[Launch, tuple[float, ...]]]:
        """Return the launches in a raw page, which has no durations."""
        report = parse_report(read_rows(log), is_english=True)
        for row, reason in report.bad:
            raise FormatError(f"line {row.number}: {reason}")
        return [(profiled.launch(), ()) for profiled in report.launches]


def _records(items: Sequence[Launched], apps: Sequence[str | None]) -> Iterator[Item]:
    """Yield the records of launches."""
    context = canonical_json({"log": NcuFormat.name})
    for item, app, problem in zip(items, apps, _problems(items, apps), strict=True):
        yield measurement_of(program_of("cuda", item, problem, app), item, context, None)


def _problems(items: Sequence[Launched], apps: Sequence[str | None]) -> list[tuple[int, int]]:
    """Return which launch of its kernel each is; equal launches are one of many runs.

    A profile lists each launch apart, where a trace has those of one geometry together.
    """
    keys = [
        (app, item.device, item.launch.kernel, item.launch.block, item.launch.grid)
        for item, app in zip(items, apps, strict=True)
    ]
    first = dict(zip(reversed(keys), reversed(items), strict=True))
    order = list(dict.fromkeys(keys))
    found: dict[tuple[object, ...], tuple[int, int]] = {}
    for one in dict.fromkeys(key[0] for key in order):
        own = [key for key in order if key[0] == one]
        found.update(zip(own, problems([first[key] for key in own]), strict=True))
    return [found[key] for key in keys]


def _with_times(
    items: Sequence[Launched], apps: Sequence[str | None], trace: Path
) -> tuple[list[Launched], list[str | None], int]:
    """Return launches with the times of a trace, one for each kernel, block and grid.

    The two tools write signatures in other ways, so kernels are told by their names without them.
    Counters of several launches are averaged.
    """
    traced = parse_profile(read_rows(trace))
    if not traced.launched:
        raise FormatError(f"{trace}: no GPU trace with kernels")
    times: dict[tuple[object, ...], list[Launched]] = {}
    for item in traced.launched.values():
        times.setdefault(_geometry(item.launch), []).append(item)
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, item in enumerate(items):
        groups.setdefault((apps[number], *_geometry(item.launch)), []).append(number)
    done: list[Launched] = []
    names: list[str | None] = []
    lost = 0
    for (app, *key), numbers in groups.items():
        found = times.get(tuple(key), [])
        if len(found) != 1:
            lost += len(numbers)
            done += [items[number] for number in numbers]
            names += [apps[number] for number in numbers]
            continue
        device = items[numbers[0]].device or found[0].device
        launch = _average([items[number].launch for number in numbers])
        done.append(Launched("" if device.isdigit() else device, launch, found[0].seconds))
        names.append(app if isinstance(app, str) else None)
    return done, names, lost


def _geometry(launch: Launch) -> tuple[object, ...]:
    return kernel_key(launch.kernel), launch.block, launch.grid


def _average(launches: Sequence[Launch]) -> Launch:
    """Return the first launch with the means of the counters of those that have the same ones."""
    first = launches[0]
    same = [launch.values for launch in launches if launch.counter_set == first.counter_set]
    means = []
    for column in zip(*same, strict=True):
        there = [value for value in column if not math.isnan(value)]
        means.append(math.fsum(there) / len(there) if there else math.nan)
    return replace(first, values=tuple(means))
