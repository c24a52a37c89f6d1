"""Tables of Nsight Compute (``ncu --csv``): details, raw and summary pages.

Without ``--log-file``, the output of the profiled program precedes the header; the reader skips it.

Nsight Compute measures durations at its own clocks while it replays kernels, so its durations are
counters and never run times. A launch is an unmeasured record. If the user names a GPU trace of
another run of the same program (from Nsight Systems or nvprof), its times become the run times.
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
    KernelLaunches,
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

# ---- Pages of Nsight Compute: details, raw and summary -------------------------------------------
#
# Columns are looked up by name: NVTX columns may come between them, and rows may be short. The raw
# page has a row of units below its header, the details page a unit in each row.

_EXTENTS = re.compile(r"\(?\s*([0-9]{1,10})\s*,\s*([0-9]{1,10})\s*,\s*([0-9]{1,10})\s*\)?")
_NUMERIC = re.compile(
    r"[-+]?[.,\d][\d.,eE+\- \xa0\u202f'\u2019]*|n/a|\(!\) ?(?:n/a|nan)|-?nan|-?inf"
)

#: Prefix of constants of the device, of which a raw page has hundreds.
_DEVICE = "device__attribute_"
_DEVICE_NAME = "device__attribute_display_name"

#: Launch parameters, by their names in the raw page and their labels in the details page.
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
class ProfiledLaunch:
    """A launch in a table of Nsight Compute, or a kernel of a summary.

    Parameters
    ----------
    kernel : str
        Name of the kernel as the file gives it.
    process : str or None
        Name of the program.
    device : str or None
        Name of the device, which only the raw page has.
    capability : str or None
        Compute capability.
    block, grid : tuple of int or None
        Extents.
    geometry : dict
        Registers, shared memory and so on, by :data:`_GEOMETRY`.
    counters : dict
        Name → unit and value; NaN for counters that were not measured.
    line : int
        Line number of its first row.
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
        """Return the :class:`~tunedb.launches.Launch`.

        Raises
        ------
        FormatError
            The number of threads per block is unknown.
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

    def _extents(self, name: str, extents: Extents | None) -> Extents | None:
        if extents is not None:
            return check_extents(extents, name)
        x, y, z = (self._whole(f"{name}_{axis}") for axis in "xyz")
        if x is None or y is None or z is None:
            return None
        return check_extents((x, y, z), name)

    def _whole(self, name: str) -> int | None:
        value = self.geometry.get(name, math.nan)
        return round(value) if 0 <= value < 2**31 else None


@dataclass(slots=True)
class NcuReport:
    """The launches in a file of Nsight Compute.

    Parameters
    ----------
    launches : list of ProfiledLaunch
        The launches, in the order of the file.
    bad : list of (Row, str)
        Bad rows, each with the reason.
    is_summary : bool
        The values are averages over launches.
    """

    launches: list[ProfiledLaunch] = field(default_factory=list)
    bad: list[tuple[Row, str]] = field(default_factory=list)
    is_summary: bool = False


def parse_report(rows: Iterable[Row], *, is_english: bool = False) -> NcuReport:
    """Return the launches in the rows of a table of Nsight Compute.

    Parameters
    ----------
    rows : iterable of Row
        Rows of :func:`tunedb.formats.gpu.profiler_tables.read_rows` or ``rows_of``.
    is_english : bool
        The locale of the numbers is known to be English, or C.

    Raises
    ------
    FormatError
        The numbers have another locale or are ambiguous, there are too many launches, or there is
        no header of Nsight Compute.
    """
    report, locale = NcuReport(), Locale(is_english=is_english)
    page: _Page | None = None
    for row in rows:
        header = _page_of(row.cells, report, locale)
        if header is not None:
            page = header
        elif page is not None and not row.is_chatter:
            try:
                page.add(row)
            except FormatError as error:
                report.bad.append((row, str(error)))
        if max(len(report.launches), len(report.bad)) > limits.MAX_PROFILED_KERNELS:
            raise FormatError(f"line {row.number}: too many launches in one profile")
        locale.check_seen(row.number)
    if page is None:
        raise FormatError(
            "the file has no table of Nsight Compute; profile with ncu --csv --page raw "
            "--print-units base --log-file FILE"
        )
    locale.check()
    return report


def _page_of(cells: list[str], report: NcuReport, locale: Locale) -> _Page | None:
    """Return the page of a header row; None for any other row."""
    if not cells or cells[0] not in ("ID", "Process ID") or "Kernel Name" not in cells:
        return None
    if "Metric Value" in cells:
        return _DetailsPage(cells, report, locale)
    if "Average" in cells and "Metric Name" in cells:
        report.is_summary = True
        return _SummaryPage(cells, report, locale)
    return _RawPage(cells, report, locale) if "ID" in cells else None


class _Page:
    """Rows below one header."""

    def __init__(self, header: list[str], report: NcuReport, locale: Locale) -> None:
        self._header = header
        self._report = report
        self._locale = locale
        self._launches: dict[tuple[str, ...], ProfiledLaunch] = {}

    def add(self, row: Row) -> None:
        """Add one row to the report."""
        raise NotImplementedError

    def _cells(self, row: Row) -> dict[str, str]:
        """Return column → cell; the last columns may be missing."""
        if len(row.cells) > len(self._header):
            raise FormatError(f"{len(row.cells)} cells under a header of {len(self._header)}")
        return dict(zip(self._header, row.cells, strict=False))

    def _launch(self, row: Row, cells: dict[str, str], key: tuple[str, ...]) -> ProfiledLaunch:
        """Return the launch of a row; the first row of a launch creates it."""
        launch = self._launches.get(key)
        if launch is None:
            name = cells.get("Kernel Name", "")
            if not name or len(name) > limits.MAX_KERNEL_CHARS:
                raise FormatError("a kernel without a name, or with a name that is too long")
            launch = ProfiledLaunch(name, row.number)
            launch.process = cells.get("Process Name") or None
            launch.capability = cells.get("CC") or None
            launch.block = _extents(cells.get("Block Size"))
            launch.grid = _extents(cells.get("Grid Size"))
            self._launches[key] = launch
            self._report.launches.append(launch)
        return launch

    def _add_value(
        self, launch: ProfiledLaunch, name: str, unit: str, text: str, section: str = ""
    ) -> None:
        """Add one value to a launch, except texts, such as a cache's configuration."""
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


class _DetailsPage(_Page):
    """The details page: a row for each metric of each launch."""

    def add(self, row: Row) -> None:
        cells = self._cells(row)
        if not cells.get("ID", "").isdigit():
            raise FormatError("a row without the number of its launch")
        launch = self._launch(row, cells, (cells["ID"], cells.get("Process ID", "")))
        name = cells.get("Metric Name", "")
        if name:  # else the row of a rule
            unit, text = cells.get("Metric Unit", ""), cells.get("Metric Value", "")
            self._add_value(launch, name, unit, text, cells.get("Section Name", ""))


class _SummaryPage(_Page):
    """The summary page: a row for each metric of each kernel, averaged over its launches."""

    def add(self, row: Row) -> None:
        cells = self._cells(row)
        identity = ("Process ID", "Kernel Name", "Block Size", "Grid Size", "Device")
        key = tuple(cells.get(name, "") for name in identity)
        launch = self._launch(row, cells, key)
        name = cells.get("Metric Name", "")
        if name:
            unit, text = cells.get("Metric Unit", ""), cells.get("Average", "")
            self._add_value(launch, name, unit, text, cells.get("Section Name", ""))


class _RawPage(_Page):
    """The raw page: a row for each launch, below a row of units."""

    def __init__(self, header: list[str], report: NcuReport, locale: Locale) -> None:
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
                self._add_value(launch, name, self._units.get(name, ""), text)


def _extents(text: str | None) -> Extents | None:
    """Return the extents of a text such as ``(256, 1, 1)``; None for an empty one."""
    if not text:
        return None
    match = _EXTENTS.fullmatch(text)
    if match is None:
        raise FormatError(f"{text[:40]!r} is not a block or grid; expected (x, y, z)")
    return int(match[1]), int(match[2]), int(match[3])


# ---- The profiler --------------------------------------------------------------------------------

#: Metrics of a launch's resources, read in the first pass.
_LAUNCH_METRICS = (
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
)

_METRICS_PER_PASS = 8


class NcuFormat(Profiler):
    """Nsight Compute and its tables."""

    name = "ncu"
    default_origins: tuple[str, ...] = ("table1", "ktt")

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True for a table of Nsight Compute, or a file with its messages."""
        if re.search(rb"(?m)^==(PROF|ERROR|WARNING)== ", head):
            return True
        header = rb'(?m)^(\xef\xbb\xbf)?"(ID|Process ID)",("[^"\n]*",)*"Kernel Name",'
        return re.search(header, head) is not None

    def read_file(self, file: LogFile) -> Iterator[Item | Remark]:
        """Yield a record for each launch; with a trace, for each kernel and geometry.

        Raises
        ------
        FormatError
            The file is not a table, or its locale is not English.
        StorageError
            A file cannot be read.
        """
        if file.path is None:
            raise FormatError(f"{file.name}: a profile is not a stream; give its path")
        report = parse_report(read_rows(file.path))
        for row, reason in report.bad:
            yield Quarantined(file.name, row.number, reason, row.text.encode(errors="replace"))
        items: list[KernelLaunches] = []
        apps: list[str | None] = []
        for profiled in report.launches:
            try:
                launch = profiled.launch()
            except FormatError as error:
                kernel = orjson.dumps(profiled.kernel)
                yield Quarantined(file.name, profiled.line, str(error), kernel)
                continue
            items.append(KernelLaunches(profiled.device or file.device or "", launch))
            apps.append(application(profiled.process) if profiled.process else file.kernel)
        if not items and not report.bad and not report.launches:
            yield Remark("no launch in it: Nsight Compute profiled nothing")
        if file.trace is not None:
            items, apps, lost = _with_times(items, apps, file.trace)
            if lost:
                yield Remark(f"{lost} launches without a time: the trace has no such kernel")
        yield from _records(items, apps)

    def suits(self, capability: Capability | None) -> bool:
        """Return True for devices of compute capability 7.0 and later."""
        return capability is None or capability >= (7, 0)

    def fits(self, group: Sequence[str], name: str) -> bool:
        """Return True for a group of fewer than eight metrics.

        On Volta and later, one pass reads eight metrics of one unit.
        """
        return len(group) < _METRICS_PER_PASS

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
        """Return the command line prefix that reads one group of metrics."""
        names = [*(_LAUNCH_METRICS if first else ()), *group]
        kernels = [] if kernel is None else ["--kernel-name", kernel]
        return [
            *(executable, "--csv", "--page", "raw", "--print-units", "base"),
            # In a shell command, the program is a child process of the shell.
            *("--target-processes", "all"),
            *("--log-file", str(log), *kernels, "--metrics", ",".join(names), *options),
        ]

    def read_launches(
        self, log: Path, device: str, trace: Path | None = None
    ) -> list[tuple[Launch, tuple[float, ...]]]:
        """Return the launches of a raw page, which has no durations."""
        report = parse_report(read_rows(log), is_english=True)
        for row, reason in report.bad:
            raise FormatError(f"line {row.number}: {reason}")
        return [(profiled.launch(), ()) for profiled in report.launches]


def _records(items: Sequence[KernelLaunches], apps: Sequence[str | None]) -> Iterator[Item]:
    """Yield the records of launches."""
    context = canonical_json({"log": NcuFormat.name})
    for item, app, problem in zip(items, apps, _problems(items, apps), strict=True):
        yield measurement_of(program_of("cuda", item, problem, app), item, context, None)


def _problems(items: Sequence[KernelLaunches], apps: Sequence[str | None]) -> list[tuple[int, int]]:
    """Return :func:`problems` of separately listed launches, with equal ones as repeated runs."""
    keys = [
        (app, item.device, item.launch.kernel, item.launch.block, item.launch.grid)
        for item, app in zip(items, apps, strict=True)
    ]
    first = dict(zip(reversed(keys), reversed(items), strict=True))
    unique = list(dict.fromkeys(keys))
    problem_by_key: dict[tuple[object, ...], tuple[int, int]] = {}
    for app in dict.fromkeys(key[0] for key in unique):
        app_keys = [key for key in unique if key[0] == app]
        app_problems = problems([first[key] for key in app_keys])
        problem_by_key.update(zip(app_keys, app_problems, strict=True))
    return [problem_by_key[key] for key in keys]


def _with_times(
    items: Sequence[KernelLaunches], apps: Sequence[str | None], trace: Path
) -> tuple[list[KernelLaunches], list[str | None], int]:
    """Return launches with a trace's times, one for each kernel, block and grid.

    Kernels match by their names without signatures, which the tools write differently. Counters of
    several launches are averaged.
    """
    traced = parse_profile(read_rows(trace))
    if not traced.launched:
        raise FormatError(f"{trace}: no GPU trace with kernels")
    times: dict[tuple[object, ...], list[KernelLaunches]] = {}
    for item in traced.launched.values():
        times.setdefault(_geometry(item.launch), []).append(item)
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, item in enumerate(items):
        groups.setdefault((apps[number], *_geometry(item.launch)), []).append(number)
    timed: list[KernelLaunches] = []
    names: list[str | None] = []
    lost = 0
    for (app, *key), numbers in groups.items():
        matches = times.get(tuple(key), [])
        if len(matches) != 1:
            lost += len(numbers)
            timed += [items[number] for number in numbers]
            names += [apps[number] for number in numbers]
            continue
        device = items[numbers[0]].device or matches[0].device
        launch = _average([items[number].launch for number in numbers])
        timed.append(KernelLaunches("" if device.isdigit() else device, launch, matches[0].seconds))
        names.append(app if isinstance(app, str) else None)
    return timed, names, lost


def _geometry(launch: Launch) -> tuple[object, ...]:
    return kernel_key(launch.kernel), launch.block, launch.grid


def _average(launches: Sequence[Launch]) -> Launch:
    """Return the first launch, with counters averaged over launches of the same counter set."""
    first = launches[0]
    same = [launch.values for launch in launches if launch.counter_set == first.counter_set]
    means = []
    for column in zip(*same, strict=True):
        measured = [value for value in column if not math.isnan(value)]
        means.append(math.fsum(measured) / len(measured) if measured else math.nan)
    return replace(first, values=tuple(means))
