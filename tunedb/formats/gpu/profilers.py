"""Profilers: each is the format of its files, a table of its counters, and its command lines.

The table is a CSV file beside the module, with the profiler's name. It gives counters neutral names
(:mod:`tunedb.advisor.counters`), a row for each name of the profiler's:

``canonical``
    Neutral name.
``cc_min``, ``cc_max``
    Compute capabilities on which the row holds (both included; empty: no end).
``name``
    The profiler's name; empty in a row of a counter that the profiler does not have there.
``aggregation``
    ``one``: the counter itself. ``parts``: the sum of those that were read (slices of a cache).
    ``all``: the sum, if all were read.
``scale``
    Factor of the values.
``exactness``
    ``exact``: the same event is counted. ``near``: the nearest one. ``none``: not comparable, kept
    under a name of its own.
``checked``
    ``data``: seen in files of the profiler. ``source``: seen in published programs or lists of
    names. ``no``: from memory, unverified.
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

#: A compute capability as numbers: "10.0" is above "9.0".
Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CounterAlias:
    """One row of a profiler's table."""

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
        """Tell whether the row is about a compute capability; all rows are about an unknown one."""
        if capability is None:
            return True
        above = self.cc_min is None or self.cc_min <= capability
        return above and (self.cc_max is None or capability <= self.cc_max)


class Profiler(ABC):
    """A profiler, whose files are a log format (:class:`tunedb.formats.base.FileFormat`).

    Attributes
    ----------
    name : str
        Name of its program, of the format and of the table.
    default_origins : tuple of str
        Origins of the counters that are read without a choice.
    has_trace : bool
        Its counters need a trace of the launches, from a run of its own.
    """

    name: str
    default_origins: tuple[str, ...] = ("table1",)
    has_trace = False

    @abstractmethod
    def matches_file(self, head: bytes, path: Path) -> bool:
        """Tell whether a file is of this profiler, by its first bytes."""

    @abstractmethod
    def read_file(self, file: LogFile) -> Iterator[Item | Remark]:
        """Yield the records of a file."""

    @abstractmethod
    def suits(self, capability: Capability | None) -> bool:
        """Tell whether the profiler reads counters of a compute capability (None: unknown)."""

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
        """Return the words before a program's command that read one group of counters.

        Parameters
        ----------
        executable : str
            Path of the profiler.
        group : sequence of str
            Counters.
        log : Path
            File for its table.
        kernel : str or None
            Kernel whose launches are profiled; None for all.
        options : sequence of str
            Further arguments of the profiler.
        first : bool
            It is the first group, which also describes the launches.
        """

    def trace_command(self, executable: str, log: Path) -> list[str]:
        """Return the words before a program's command that trace its launches."""
        raise NotImplementedError(f"{self.name} has no trace")

    def fits(self, group: Sequence[str], name: str) -> bool:
        """Tell whether one run reads a counter together with a group of others."""
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
            Name of the device for a file without one.
        trace : Path or None
            The trace, if counters need one.

        Raises
        ------
        FormatError
            The file is no profile, or has a row that cannot be read.
        NotFoundError, StorageError
            The profiler wrote no file, or it cannot be read.
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
        """The rows of the table in their order, which is their rank."""
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
        """Return the counters that are read without a choice, under their names on a device."""
        names = (
            row.name
            for row in self.aliases
            if row.name and row.origin in self.default_origins and row.holds_on(capability)
        )
        return tuple(dict.fromkeys(names))


def profilers() -> dict[str, Profiler]:
    """Return all profilers by name: the log formats that are one."""
    return {name: known for name, known in formats().items() if isinstance(known, Profiler)}


def parse_capability(text: str | None) -> Capability | None:
    """Return ``"8.6"`` as ``(8, 6)``; None where it is no compute capability."""
    match = re.fullmatch(r"([0-9]{1,3})(?:\.([0-9]{1,2}))?", text or "")
    return None if match is None else (int(match[1]), int(match[2] or 0))
