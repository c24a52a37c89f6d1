"""Tables of nvprof and of Nsight Systems, as they stand in one file.

nvprof prints metrics and events with one row for each kernel, and a GPU trace with one row for each
launch, below a row of units that differs from file to file. Nsight Systems prints the trace alone,
with the units in the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ... import limits
from ...errors import FormatError
from ...launches import Extents, Launch
from .profiled import Launched, check_extents, threads_of
from .profiler_csv import Row, binary_bytes, parse_number, seconds

_COMMAND = re.compile(r"==(\d+)== (?:NVPROF is profiling|Profiling) .*?command: (.+)")
_CORRELATION = re.compile(r" \[\d+\]$")
_INDEX = re.compile(r" \(\d+\)$")

#: Names of a trace's columns: of nvprof, and of Nsight Systems, whose units are in the names.
_COLUMNS = {
    "Duration": "duration",
    "Grid X": "grid_x",
    "Grid Y": "grid_y",
    "Grid Z": "grid_z",
    "Block X": "block_x",
    "Block Y": "block_y",
    "Block Z": "block_z",
    "Registers Per Thread": "registers",
    "Static SMem": "static",
    "Dynamic SMem": "dynamic",
    "Device": "device",
    "Name": "name",
    "GrdX": "grid_x",
    "GrdY": "grid_y",
    "GrdZ": "grid_z",
    "BlkX": "block_x",
    "BlkY": "block_y",
    "BlkZ": "block_z",
    "Reg/Trd": "registers",
    "StcSMem": "static",
    "DymSMem": "dynamic",
}
_TRACE = frozenset(_COLUMNS.values())
_METRICS = frozenset({"Device", "Kernel", "Invocations", "Avg"})
_PER_LAUNCH = frozenset({"Device", "Context", "Stream", "Kernel"})

_UNITS = re.compile(r"([A-Za-z]+/s|%)$")
_LEVEL = re.compile(r"[A-Za-z]+ \(([0-9]{1,3})\)")
_RATES = {"B/s": 1.0, "KB/s": 2.0**10, "MB/s": 2.0**20, "GB/s": 2.0**30, "TB/s": 2.0**40}


@dataclass(slots=True)
class Counters:
    """Counters of one kernel on one device, averages over its launches."""

    names: list[tuple[str, str]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Profile:
    """What one file of nvprof holds.

    Parameters
    ----------
    command : str or None
        Command line of the program that was profiled.
    process : int or None
        Number of its process.
    counters : dict
        ``(device, kernel with signature)`` → :class:`Counters`.
    launched : dict
        ``(device, launch)`` → :class:`Launched`, in order of the first launch.
    metric_rows, trace_rows : int
        Rows of data, those of copies too.
    bad : list of (Row, str)
        Rows that were not understood, with the reason.
    is_per_launch : bool
        Whether it has counters of each launch, which are not read: they have no times.
    """

    command: str | None = None
    process: int | None = None
    counters: dict[tuple[str, str], Counters] = field(default_factory=dict)
    launched: dict[tuple[str, Launch], Launched] = field(default_factory=dict)
    metric_rows: int = 0
    trace_rows: int = 0
    bad: list[tuple[Row, str]] = field(default_factory=list)
    is_per_launch: bool = False


def parse_profile(rows: Iterable[Row]) -> Profile:
    """Return what the rows of a file of nvprof or Nsight Systems hold.

    Parameters
    ----------
    rows : iterable of Row
        Of :func:`tunedb.logs.gpu.profiler_csv.read_rows` or ``rows_of``. What stands before a
        header, such as the program's own output, is passed over.

    Raises
    ------
    FormatError
        There are more rows or kernels than may be held.
    """
    profile = Profile()
    table: _Metrics | _Trace | None = None
    for row in rows:
        if row.is_chatter:
            _hear(profile, row.text)
            continue
        header = _table_of(row.cells, profile)
        if header is not None:
            table = header
        elif table is not None:
            try:
                table.add(row.cells)
            except FormatError as error:
                profile.bad.append((row, str(error)))
        too_many = max(len(profile.bad), len(profile.launched), len(profile.counters))
        if too_many > limits.MAX_PROFILED_KERNELS or profile.trace_rows > limits.MAX_TRACE_ROWS:
            raise FormatError(f"line {row.number}: too many kernels or launches in one profile")
    return profile


def _hear(profile: Profile, text: str) -> None:
    """Take what the profiler says of the program."""
    match = _COMMAND.match(text)
    if match is not None and profile.command is None:
        profile.process, profile.command = int(match[1]), match[2].strip()


def _table_of(cells: list[str], profile: Profile) -> _Metrics | _Trace | None:
    """Return the table that a header begins; None for another row."""
    if _METRICS.issubset(cells) and ("Metric Name" in cells or "Event Name" in cells):
        return _Metrics(cells, profile)
    plain = {_split_unit(cell)[0]: place for place, cell in enumerate(cells)}
    known = {_COLUMNS[name]: place for name, place in plain.items() if name in _COLUMNS}
    if known.keys() >= _TRACE:
        return _Trace(cells, known, profile)
    profile.is_per_launch = profile.is_per_launch or _PER_LAUNCH.issubset(cells)
    return None


def _split_unit(cell: str) -> tuple[str, str]:
    """Return ``Duration (ns)`` as name and unit."""
    match = re.fullmatch(r"(.+?) \((.+)\)", cell)
    return (match[1], match[2]) if match else (cell, "")


class _Metrics:
    """Rows of metrics or events."""

    def __init__(self, header: list[str], profile: Profile) -> None:
        self._places = {name: place for place, name in enumerate(header)}
        self._width = len(header)
        self._name = "Metric Name" if "Metric Name" in header else "Event Name"
        self._profile = profile

    def add(self, cells: list[str]) -> None:
        """Take one row."""
        if len(cells) != self._width:
            raise FormatError(f"{len(cells)} cells under a header of {self._width}")
        value, unit = parse_value(cells[self._places["Avg"]])
        name = cells[self._places[self._name]]
        if not name or len(name) > limits.MAX_COUNTER_CHARS:
            raise FormatError("a counter without a name, or with too long a one")
        device = _INDEX.sub("", cells[self._places["Device"]])
        key = device, _kernel_name(cells[self._places["Kernel"]])
        found = self._profile.counters.setdefault(key, Counters())
        if len(found.names) >= limits.MAX_COUNTERS:
            raise FormatError(f"more than {limits.MAX_COUNTERS} counters of one kernel")
        if any(name == known for known, _ in found.names):
            raise FormatError(f"{name} twice for one kernel")
        found.names.append((name, unit))
        found.values.append(value)
        self._profile.metric_rows += 1


class _Trace:
    """Rows of a GPU trace."""

    def __init__(self, header: list[str], places: dict[str, int], profile: Profile) -> None:
        self._places = places
        self._width = len(header)
        self._profile = profile
        # Of Nsight Systems; a trace of nvprof has a row of units.
        self._units = {name: _split_unit(header[place])[1] for name, place in places.items()}
        self._has_units = bool(self._units["duration"])

    def add(self, cells: list[str]) -> None:
        """Take one row: of units, of a launch, or of a copy."""
        if len(cells) != self._width:
            raise FormatError(f"{len(cells)} cells under a header of {self._width}")
        row = {name: cells[place] for name, place in self._places.items()}
        if not self._has_units:
            if not row["duration"].isalpha():
                raise FormatError("no row of units below the header")
            self._units, self._has_units = row, True
            return
        self._profile.trace_rows += 1
        if not row["block_x"]:
            return  # a copy
        duration = seconds(_due(row["duration"], "a duration"), self._units["duration"])
        launch = self._launch(row)
        device = _INDEX.sub("", row["device"])
        key = device, launch
        found = self._profile.launched.get(key)
        if found is None:
            found = self._profile.launched[key] = Launched(device, launch)
        found.seconds.append(duration)

    def _launch(self, row: dict[str, str]) -> Launch:
        block = check_extents(_extents(row, "block"), "block")
        return Launch(
            _kernel_name(_CORRELATION.sub("", row["name"])),
            threads_of(block),
            block,
            check_extents(_extents(row, "grid"), "grid"),
            registers=_whole(row["registers"], "registers"),
            static_shared=self._shared(row, "static"),
            dynamic_shared=self._shared(row, "dynamic"),
        )

    def _shared(self, row: dict[str, str], name: str) -> int | None:
        """Return bytes of shared memory; None where Nsight Systems rounded them to megabytes."""
        unit = self._units[name]
        if unit == "MB" or not row[name]:
            return None
        return binary_bytes(_due(row[name], "a size"), unit)


def _kernel_name(name: str) -> str:
    if not name or len(name) > limits.MAX_KERNEL_CHARS:
        raise FormatError("a kernel without a name, or with too long a one")
    return name


def _extents(row: dict[str, str], of: str) -> Extents:
    x, y, z = (_whole(row[f"{of}_{axis}"], of) for axis in "xyz")
    return x, y, z


def _due(text: str, what: str) -> float:
    value = parse_number(text)
    if not 0 <= value < float("inf"):
        raise FormatError(f"{what} of {text[:40]!r}")
    return value


def _whole(text: str, what: str) -> int:
    value = _due(text, what)
    if value != int(value):
        raise FormatError(f"{what}: {text[:40]!r} is no whole number")
    return int(value)


def parse_value(text: str) -> tuple[float, str]:
    """Return a value of a metric and its base unit: ``52.4%``, ``3.5GB/s``, ``Mid (4)``, ``17``.

    ``<OVERFLOW>``, ``nan`` and ``inf`` are NaN.

    Raises
    ------
    FormatError
        It is none of these.
    """
    level = _LEVEL.fullmatch(text)
    if level is not None:
        return float(level[1]), ""
    unit = _UNITS.search(text)
    if unit is None:
        return parse_number(text), ""
    if unit[1] != "%" and unit[1] not in _RATES:
        raise FormatError(f"{text[:40]!r}: an unknown unit")
    value = parse_number(text[: unit.start()].strip())
    return (value, "%") if unit[1] == "%" else (value * _RATES[unit[1]], "byte/s")
