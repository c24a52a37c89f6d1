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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from ...errors import FormatError
from ...identity import canonical_json
from ...launches import Launch
from ...records import Quarantined
from ..base import Item, LogFile, Remark
from .ncu_pages import parse_report
from .nvprof_tables import parse_profile
from .profiled import Launched, application, kernel_key, measurement_of, problems, program_of
from .profiler_csv import read_rows

__all__ = ["NcuFormat", "parse_report"]


class NcuFormat:
    """Tables of Nsight Compute (see :class:`tunedb.logs.base.FileFormat`)."""

    name = "ncu"

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
            raise FormatError(f"{file.name}: a profile is no stream; give its path")
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
        raise FormatError(f"{trace}: no GPU trace with kernels in it")
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
