"""Files of nvprof (``--csv``), and GPU traces of its successor Nsight Systems.

Metrics and events (``nvprof --metrics all --csv``) lack blocks and times, which the GPU trace of
another run has (``nvprof --print-gpu-trace --csv``, or ``nsys stats --report cuda_gpu_trace
--format csv``). The reader needs both files: ``metricsX.csv`` with ``traceX.csv`` beside it, or
with the trace that the user names. A trace without metrics is accepted.

A record is a kernel with one geometry and the times of all its launches. nvprof averages counters
over all launches of a kernel, so a record has counters only if the trace has a single geometry of
its kernel.
"""

from __future__ import annotations

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
from .profiler_tables import (
    KernelLaunches,
    Row,
    application,
    binary_bytes,
    check_extents,
    measurement_of,
    parse_number,
    problems,
    program_of,
    read_rows,
    seconds,
    threads_of,
)
from .profilers import Capability, Profiler

# ---- Tables of nvprof and of Nsight Systems ------------------------------------------------------
#
# nvprof prints metrics and events with one row for each kernel, and a GPU trace with one row for
# each launch, below a row of units that differs from file to file. Nsight Systems prints only the
# trace, with the units in the header.

_COMMAND = re.compile(r"==(\d+)== (?:NVPROF is profiling|Profiling) .*?command: (.+)")
_CORRELATION = re.compile(r" \[\d+\]$")
_INDEX = re.compile(r" \(\d+\)$")

#: Columns of a trace, by nvprof's names and those of Nsight Systems (without their units).
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
    """The counters and launches in one file of nvprof.

    Parameters
    ----------
    command : str or None
        Command line of the profiled program.
    process : int or None
        Its process id.
    counters : dict
        ``(device, kernel with signature)`` → :class:`Counters`.
    launched : dict
        ``(device, launch)`` → :class:`KernelLaunches`, in order of the first launch.
    metric_rows, trace_rows : int
        Rows of data, including those of memory copies.
    bad : list of (Row, str)
        Bad rows, each with the reason.
    is_per_launch : bool
        The file has counters of each launch; they are ignored, as they have no times.
    """

    command: str | None = None
    process: int | None = None
    counters: dict[tuple[str, str], Counters] = field(default_factory=dict)
    launched: dict[tuple[str, Launch], KernelLaunches] = field(default_factory=dict)
    metric_rows: int = 0
    trace_rows: int = 0
    bad: list[tuple[Row, str]] = field(default_factory=list)
    is_per_launch: bool = False


def parse_profile(rows: Iterable[Row]) -> Profile:
    """Return the counters and launches in a file of nvprof or Nsight Systems.

    Parameters
    ----------
    rows : iterable of Row
        Rows of :func:`tunedb.formats.gpu.profiler_tables.read_rows` or ``rows_of``. Rows before a
        header, such as the program's own output, are skipped.

    Raises
    ------
    FormatError
        The file exceeds the limits of rows or kernels.
    """
    profile = Profile()
    table: _Metrics | _Trace | None = None
    for row in rows:
        if row.is_chatter:
            _read_command(profile, row.text)
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


def _read_command(profile: Profile, text: str) -> None:
    """Read the program's command line and process id from a message of the profiler."""
    match = _COMMAND.match(text)
    if match is not None and profile.command is None:
        profile.process, profile.command = int(match[1]), match[2].strip()


def _table_of(cells: list[str], profile: Profile) -> _Metrics | _Trace | None:
    """Return the table of a header row; None for any other row."""
    if _METRICS.issubset(cells) and ("Metric Name" in cells or "Event Name" in cells):
        return _Metrics(cells, profile)
    plain = {_split_unit(cell)[0]: place for place, cell in enumerate(cells)}
    places = {_COLUMNS[name]: place for name, place in plain.items() if name in _COLUMNS}
    if places.keys() >= _TRACE:
        return _Trace(cells, places, profile)
    profile.is_per_launch = profile.is_per_launch or _PER_LAUNCH.issubset(cells)
    return None


def _split_unit(cell: str) -> tuple[str, str]:
    """Return name and unit of a column such as ``Duration (ns)``."""
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
        """Add one row to the profile."""
        if len(cells) != self._width:
            raise FormatError(f"{len(cells)} cells under a header of {self._width}")
        value, unit = parse_value(cells[self._places["Avg"]])
        name = cells[self._places[self._name]]
        if not name or len(name) > limits.MAX_COUNTER_CHARS:
            raise FormatError("a counter without a name, or with a name that is too long")
        device = _INDEX.sub("", cells[self._places["Device"]])
        key = device, _kernel_name(cells[self._places["Kernel"]])
        counters = self._profile.counters.setdefault(key, Counters())
        if len(counters.names) >= limits.MAX_COUNTERS:
            raise FormatError(f"more than {limits.MAX_COUNTERS} counters of one kernel")
        if any(name == other for other, _ in counters.names):
            raise FormatError(f"{name} twice for one kernel")
        counters.names.append((name, unit))
        counters.values.append(value)
        self._profile.metric_rows += 1


class _Trace:
    """Rows of a GPU trace."""

    def __init__(self, header: list[str], places: dict[str, int], profile: Profile) -> None:
        self._places = places
        self._width = len(header)
        self._profile = profile
        # Units of Nsight Systems; a trace of nvprof has a row of units instead.
        self._units = {name: _split_unit(header[place])[1] for name, place in places.items()}
        self._has_units = bool(self._units["duration"])

    def add(self, cells: list[str]) -> None:
        """Add one row to the profile: of units, of a launch, or of a memory copy."""
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
        duration = seconds(_nonnegative(row["duration"], "a duration"), self._units["duration"])
        launch = self._launch(row)
        device = _INDEX.sub("", row["device"])
        key = device, launch
        launches = self._profile.launched.get(key)
        if launches is None:
            launches = self._profile.launched[key] = KernelLaunches(device, launch)
        launches.seconds.append(duration)

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
        """Return bytes of shared memory; None if Nsight Systems rounded them to megabytes."""
        unit = self._units[name]
        if unit == "MB" or not row[name]:
            return None
        return binary_bytes(_nonnegative(row[name], "a size"), unit)


def _kernel_name(name: str) -> str:
    if not name or len(name) > limits.MAX_KERNEL_CHARS:
        raise FormatError("a kernel without a name, or with a name that is too long")
    return name


def _extents(row: dict[str, str], name: str) -> Extents:
    x, y, z = (_whole(row[f"{name}_{axis}"], name) for axis in "xyz")
    return x, y, z


def _nonnegative(text: str, what: str) -> float:
    value = parse_number(text)
    if not 0 <= value < float("inf"):
        raise FormatError(f"{what} of {text[:40]!r}")
    return value


def _whole(text: str, what: str) -> int:
    value = _nonnegative(text, what)
    if value != int(value):
        raise FormatError(f"{what}: {text[:40]!r} is not a whole number")
    return int(value)


def parse_value(text: str) -> tuple[float, str]:
    """Return a metric's value and base unit, of ``52.4%``, ``3.5GB/s``, ``Mid (4)`` or ``17``.

    ``<OVERFLOW>``, ``nan`` and ``inf`` give NaN.

    Raises
    ------
    FormatError
        The text has none of these forms.
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


# ---- The profiler --------------------------------------------------------------------------------

#: Prefixes of events that units outside the multiprocessors count. Each unit has a domain of its
#: own in ``nvprof --query-events``.
_UNIT_DOMAINS = ("fb_subp0", "fb_subp1", "l2_subp0", "l2_subp1", "l2_subp2", "l2_subp3")

#: Events of one domain per run. Multiprocessors of Fermi and Maxwell have eight counters, those of
#: Kepler eight in pairs; any four work on all of them. Other units have four counters, of which any
#: two work.
_EVENTS_PER_MULTIPROCESSOR = 4
_EVENTS_PER_UNIT = 2

_PACKED = (".gz", ".bz2", ".xz", ".lzma", ".zst")

#: First cells of tables that users join from several files of nvprof.
_JOINED = b"kern_name,duration_ms,"


class NvprofFormat(Profiler):
    """nvprof and its files, and the traces of Nsight Systems."""

    name = "nvprof"
    has_trace = True

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True for a file of nvprof, a trace of Nsight Systems, or a joined table."""
        if head.startswith(_JOINED) or re.search(rb"(?m)^==\d+== (NVPROF is|Profiling)", head):
            return True
        # The program's output may precede the header.
        trace = rb"(?m)^\"?Start( \(ns\))?\"?,\"?Duration( \(ns\))?\"?,"
        counters = rb"(?m)^\"?Device\"?,\"?Kernel\"?,\"?Invocations\"?,\"?(Metric|Event) Name"
        return bool(re.search(trace, head) or re.search(counters, head))

    def companions(self, path: Path) -> list[Path]:
        """Return the trace and the events that are read with a file of metrics or events."""
        return _beside(path, "metrics", ("trace", "events")) + _beside(path, "events", ("trace",))

    def read_file(self, file: LogFile) -> Iterator[Item | Remark]:
        """Yield a record for each kernel and geometry.

        Raises
        ------
        FormatError
            The metrics have no trace, or the file is not a profile.
        StorageError
            A file cannot be read.
        """
        if file.path is None:
            raise FormatError(f"{file.name}: a profile is not a stream; give its path")
        own = _read(file.path)
        profiles = [(file.name, own)]
        counted = traced = own
        if not own.launched:
            trace = _trace_of(file, own)
            traced = _read(trace)
            if not traced.launched:
                raise FormatError(f"{trace}: no GPU trace with kernels")
            profiles.append((str(trace), traced))
        if not (own.launched and own.counters):
            read = {file.path: own}
            for path in _counters_beside(file.path):
                if path not in read:
                    read[path] = _read(path)
                    profiles.append((str(path), read[path]))
            if len(profiles) > 1:
                # A fixed order gives equal records, whichever of the files the user names.
                order = dict.fromkeys([*_counters_beside(file.path), file.path])
                counted = merge_counters([read[path] for path in order])
        for name, profile in profiles:
            for row, reason in profile.bad:
                yield Quarantined(name, row.number, reason, row.text.encode(errors="replace"))
        yield from records(traced, counted, file)

    def suits(self, capability: Capability | None) -> bool:
        """Return True for devices before compute capability 7.0; nvprof reads no others."""
        return capability is not None and capability < (7, 0)

    def fits(self, group: Sequence[str], name: str) -> bool:
        """Return True if the domain of an event has a free hardware counter in a group."""
        domain = event_domain(name)
        most = _EVENTS_PER_UNIT if domain in _UNIT_DOMAINS else _EVENTS_PER_MULTIPROCESSOR
        return sum(event_domain(other) == domain for other in group) < most

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
        """Return the command line prefix that reads one group of counters."""
        words = [executable, "--csv", "--log-file", str(log), *options]
        # Filters apply to the arguments after them; a colon would start another kind of filter.
        if kernel is not None and ":" not in kernel:
            words += ["--kernels", f"^{re.escape(kernel)}"]
        events = set(self.default_counters(None))
        for option, is_event in (("--events", True), ("--metrics", False)):
            names = [name for name in group if (name in events) == is_event]
            if names:
                words += [option, ",".join(names)]
        return words

    def trace_command(self, executable: str, log: Path) -> list[str]:
        """Return the command line prefix that traces a program's launches."""
        return [executable, "--csv", "--log-file", str(log), "--print-gpu-trace"]


def event_domain(counter: str) -> str:
    """Return the hardware unit that counts an event, by the event's name."""
    return next((unit for unit in _UNIT_DOMAINS if counter.startswith(unit)), "multiprocessor")


def _read(path: Path) -> Profile:
    return parse_profile(read_rows(path))


def merge_counters(profiles: Sequence[Profile]) -> Profile:
    """Return the counters of several runs of one program; the first value of a counter wins."""
    merged = Profile(command=profiles[0].command)
    for profile in profiles:
        for key, counters in profile.counters.items():
            union = merged.counters.setdefault(key, Counters())
            names = {name for name, _ in union.names}
            for name, value in zip(counters.names, counters.values, strict=True):
                if name[0] not in names and len(names) < limits.MAX_COUNTERS:
                    names.add(name[0])
                    union.names.append(name)
                    union.values.append(value)
    return merged


def _counters_beside(path: Path) -> list[Path]:
    """Return the metrics and events of the same run as a file, metrics first."""
    words = ("metrics", "events", "trace")
    return [
        *dict.fromkeys(
            neighbour
            for other in ("metrics", "events")
            for word in words
            for neighbour in _beside(path, word, (other,))[:1]
        )
    ]


def _beside(path: Path, word: str, others: tuple[str, ...]) -> list[Path]:
    """Return the files beside `path` whose names have one of `others` in place of `word`."""
    stem = path.name
    for suffix in _PACKED:
        stem = stem.removesuffix(suffix)
    names = [stem.replace(word, other) for other in others] if word in stem else []
    candidates = (path.with_name(name + suffix) for name in names for suffix in ("", *_PACKED))
    return [candidate for candidate in dict.fromkeys(candidates) if candidate.is_file()]


def _trace_of(file: LogFile, profile: Profile) -> Path:
    """Return the trace of a file of metrics, or raise FormatError."""
    if file.trace is not None:
        return file.trace
    for word in ("metrics", "events"):
        traces = _beside(file.path, word, ("trace",)) if file.path is not None else []
        if traces:
            return traces[0]
    if file.path is not None and _is_joined(file.path):
        raise FormatError("a table made of several files of nvprof; import those themselves")
    if profile.is_per_launch:
        raise FormatError(
            "counters of each launch without times; profile without --print-gpu-trace and "
            "--aggregate-mode off, and make the trace in a separate run"
        )
    if not profile.counters and not profile.bad:
        raise FormatError("nvprof profiled nothing: no metrics and no launches")
    raise FormatError(
        "metrics need a GPU trace for blocks and times: nvprof "
        "--print-gpu-trace --csv --log-file trace.csv PROGRAM, then --trace trace.csv"
    )


def _is_joined(path: Path) -> bool:
    return any(row.text.encode().startswith(_JOINED) for row in read_rows(path))


def records(traced: Profile, counted: Profile, file: LogFile) -> Iterator[Item | Remark]:
    """Yield the records of a trace with the counters of another run.

    Parameters
    ----------
    traced, counted : Profile
        The trace and the counters; may be the same.
    file : LogFile
        The file, with the user's device, and a program for files that do not name it.
    """
    command = traced.command or counted.command
    app = application(command) if command else file.kernel
    process = traced.process
    extra = None if process is None else canonical_json({"process": process})
    context = canonical_json({"log": NvprofFormat.name})
    geometries: dict[tuple[str, str], int] = {}
    for device, launch in traced.launched:
        key = device, launch.kernel
        geometries[key] = geometries.get(key, 0) + 1
    items = list(traced.launched.values())
    mixed: set[str] = set()
    for item, problem in zip(items, problems(items), strict=True):
        key = item.device, item.launch.kernel
        counters = counted.counters.get(key)
        if counters is not None and geometries[key] > 1:
            mixed.add(item.launch.kernel)
            counters = None
        launches = KernelLaunches(
            _device(item.device, file), _with_counters(item.launch, counters), item.seconds
        )
        try:
            program = program_of("cuda", launches, problem, app)
            yield measurement_of(program, launches, context, extra)
        except FormatError as error:
            yield Quarantined(file.name, 0, str(error), orjson.dumps(item.launch.kernel))
    yield from _remarks(traced, counted, mixed)


def _device(device: str, file: LogFile) -> str:
    """Return the device of a trace, or the user's if the trace has only its number."""
    return file.device or "" if device.isdigit() or not device else device


def _with_counters(launch: Launch, counters: Counters | None) -> Launch:
    if counters is None:
        return launch
    counter_set = CounterSet("nvprof", None, None, tuple(counters.names))
    return replace(launch, counter_set=counter_set, values=tuple(counters.values))


def _remarks(traced: Profile, counted: Profile, mixed: set[str]) -> Iterator[Remark]:
    """Yield remarks about counters that were left out."""
    if counted is not traced and not counted.counters:
        yield Remark("nvprof printed no metrics: launches without counters")
    if mixed:
        yield Remark(
            f"counters of {_number(mixed)} left out: averages over launches of several "
            f"geometries (the first: {min(mixed)[:80]})"
        )
    launched = {launch.kernel for _, launch in traced.launched}
    lost = {kernel for _, kernel in counted.counters if kernel not in launched}
    if lost:
        yield Remark(
            f"counters of {_number(lost)} left out: the trace has no such launch "
            f"(the first: {min(lost)[:80]})"
        )


def _number(kernels: set[str]) -> str:
    return "1 kernel" if len(kernels) == 1 else f"{len(kernels)} kernels"
