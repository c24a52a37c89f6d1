"""Profilers: the format of their files, the table of their counters, and their command lines.

The table is a CSV file beside the module, named after the profiler. It maps the profiler's counters
to neutral names (:mod:`tunedb.advisor.counters`), one row per name of the profiler:

``canonical``
    Neutral name.
``cc_min``, ``cc_max``
    First and last compute capability on which the row applies; empty for no bound.
``name``
    The profiler's name; empty if the profiler lacks the counter on these devices.
``aggregation``
    ``one``: the counter itself. ``parts``: the sum of the counters read (slices of a cache).
    ``all``: the sum, only if all counters were read.
``scale``
    Factor from the profiler's values to the neutral ones.
``exactness``
    ``exact``: both count the same event. ``near``: the nearest event. ``none``: not comparable,
    with a neutral name of its own.
``checked``
    ``data``: verified with files of the profiler. ``source``: verified with published programs or
    lists of names. ``no``: not verified.
``origin``
    ``table1``: Table I of the paper (Connors and Qasem, HPCC 2017). ``ktt``: KTT's pairs of
    counters before and after compute capability 7.0. ``nvprof``, ``ncu``, ``blackwell``: pairs
    beyond those.
"""

from __future__ import annotations

import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from ...errors import FormatError
from ...launches import Launch
from ...records import Measurement, Quarantined
from ..base import Item, LogFile, Remark, formats
from ..reading import read_log

#: A compute capability as numbers, because "10.0" is above "9.0".
Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CounterAlias:
    """One row of a profiler's table of counters (see the module's docstring)."""

    canonical: str
    tool: str
    cc_min: Capability | None
    cc_max: Capability | None
    name: str
    aggregation: str
    scale: float
    exactness: str
    checked: str
    origin: str

    def holds_on(self, capability: Capability | None) -> bool:
        """Return True if the row applies to a compute capability; for None, all rows do."""
        if capability is None:
            return True
        above = self.cc_min is None or self.cc_min <= capability
        return above and (self.cc_max is None or capability <= self.cc_max)


class Profiler(ABC):
    """A profiler, whose files are a log format (:class:`tunedb.formats.base.FileFormat`).

    Attributes
    ----------
    name : str
        Name of its executable, of the format and of the table.
    default_origins : tuple of str
        Origins of the counters that are read by default.
    has_trace : bool
        Counters need a trace of the launches from a separate run.
    """

    name: str
    default_origins: tuple[str, ...] = ("table1",)
    has_trace = False

    @abstractmethod
    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True if a file's first bytes are those of this profiler."""

    @abstractmethod
    def read_file(self, file: LogFile) -> Iterator[Item | Remark]:
        """Yield the records of a file."""

    @abstractmethod
    def suits(self, capability: Capability | None) -> bool:
        """Return True if the profiler supports a compute capability (None: unknown)."""

    @abstractmethod
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
        """Return the command line prefix that reads one group of counters.

        Parameters
        ----------
        executable : str
            Path of the profiler.
        group : sequence of str
            Counters to read.
        log : Path
            Output file.
        kernel : str or None
            Kernel whose launches are profiled; None for all.
        options : sequence of str
            Further arguments for the profiler.
        first : bool
            The group is the first one, which also reads the launches' resources.
        """

    def trace_command(self, executable: str, log: Path) -> list[str]:
        """Return the command line prefix that traces a program's launches."""
        raise NotImplementedError(f"{self.name} has no trace")

    def fits(self, group: Sequence[str], name: str) -> bool:
        """Return True if one run can read a counter together with a group of others."""
        return not group

    def read_launches(
        self, log: Path, device: str, trace: Path | None = None
    ) -> list[tuple[Launch, tuple[float, ...]]]:
        """Return the launches in a file of the profiler, and the durations of each in seconds.

        Parameters
        ----------
        log : Path
            The file, written under ``LC_ALL=C``.
        device : str
            Device for files that do not name it.
        trace : Path or None
            The trace, if counters need one.

        Raises
        ------
        FormatError
            The file is not a profile, or has a bad row.
        NotFoundError, StorageError
            The profiler wrote no file, or the file cannot be read.
        """
        launches: list[tuple[Launch, tuple[float, ...]]] = []
        for row in read_log(LogFile(log, str(log), None, device, trace)):
            item = row.item
            if isinstance(item, Quarantined):
                raise FormatError(f"line {item.line}: {item.reason}")
            if isinstance(item, Measurement):
                launches += [(launch, item.run_secs or ()) for launch in item.launches]
        return launches

    @cached_property
    def aliases(self) -> tuple[CounterAlias, ...]:
        """The rows of the table, in order of preference."""
        folder = files(type(self).__module__.rpartition(".")[0])
        text = folder.joinpath(f"{self.name}.csv").read_text(encoding="utf-8")
        return tuple(
            CounterAlias(
                tool=self.name,
                cc_min=parse_capability(row.pop("cc_min")),
                cc_max=parse_capability(row.pop("cc_max")),
                scale=float(row.pop("scale")),
                **row,
            )
            for row in csv.DictReader(text.splitlines())
        )

    def default_counters(self, capability: Capability | None) -> tuple[str, ...]:
        """Return the profiler's names of the counters that are read by default on a device."""
        names = (
            row.name
            for row in self.aliases
            if row.name and row.origin in self.default_origins and row.holds_on(capability)
        )
        return tuple(dict.fromkeys(names))


def profilers() -> dict[str, Profiler]:
    """Return the log formats that are profilers, by name."""
    return {name: item for name, item in formats().items() if isinstance(item, Profiler)}


def parse_capability(text: str | None) -> Capability | None:
    """Return ``"8.6"`` as ``(8, 6)``; None for a text that is not a compute capability."""
    match = re.fullmatch(r"([0-9]{1,3})(?:\.([0-9]{1,2}))?", text or "")
    return None if match is None else (int(match[1]), int(match[2] or 0))
