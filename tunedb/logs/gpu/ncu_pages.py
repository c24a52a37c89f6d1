"""Pages of Nsight Compute: details, raw and summary, with or without what stands between.

Columns are found by their names: NVTX columns may stand between them, and rows may be short. The
raw page has a row of units below its header, the details page a unit in each row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ... import limits
from ...errors import FormatError
from ...launches import CounterSet, Extents, Launch
from .profiled import check_extents, threads_of
from .profiler_csv import Locale, Row, base_unit, parse_number

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
        Of :func:`tunedb.logs.gpu.profiler_csv.read_rows` or ``rows_of``.
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
            "Nsight Compute printed no table there; profile with ncu --csv --page raw "
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
                raise FormatError("a kernel without a name, or with too long a one")
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
            raise FormatError("a counter with too long a name or unit")
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
        raise FormatError(f"{text[:40]!r} is no block or grid; (x, y, z) is due")
    return int(match[1]), int(match[2]), int(match[3])
