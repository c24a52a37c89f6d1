"""Files of nvprof (``--csv``), and GPU traces of its successor Nsight Systems.

Metrics and events (``nvprof --metrics all --csv``) say neither block nor time; the GPU trace of
another run (``nvprof --print-gpu-trace --csv``, or ``nsys stats --report cuda_gpu_trace --format
csv``) does. Both are read together: ``metricsX.csv`` with ``traceX.csv`` beside it, or with the
trace that the user names. A trace may stand alone, metrics may not.

A record is a kernel with one geometry, with the times of all its launches. Its counters are
nvprof's averages over all launches of a kernel, so they are kept where the trace has one geometry
of that kernel, and left out where it has several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from ... import limits
from ...errors import FormatError
from ...identity import canonical_json
from ...launches import CounterSet, Launch
from ...records import Quarantined
from ..base import Item, LogFile, Remark
from .nvprof_tables import Counters, Profile, parse_profile
from .profiled import Launched, application, measurement_of, problems, program_of
from .profiler_csv import read_rows

__all__ = ["NvprofFormat", "Profile", "merge_counters", "parse_profile", "records"]

_PACKED = (".gz", ".bz2", ".xz", ".lzma", ".zst")

#: First cells of tables that users make of several files of nvprof.
_JOINED = b"kern_name,duration_ms,"


class NvprofFormat:
    """Files of nvprof (see :class:`tunedb.logs.base.FileFormat`)."""

    name = "nvprof"

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Tell whether a file is of nvprof, a trace of Nsight Systems, or a table made of them."""
        if head.startswith(_JOINED) or re.search(rb"(?m)^==\d+== (NVPROF is|Profiling)", head):
            return True
        # The program may have printed before.
        trace = rb"(?m)^\"?Start( \(ns\))?\"?,\"?Duration( \(ns\))?\"?,"
        counters = rb"(?m)^\"?Device\"?,\"?Kernel\"?,\"?Invocations\"?,\"?(Metric|Event) Name"
        return bool(re.search(trace, head) or re.search(counters, head))

    def companions(self, path: Path) -> list[Path]:
        """Return what is read with a file of metrics or events: the trace, and events."""
        return _beside(path, "metrics", ("trace", "events")) + _beside(path, "events", ("trace",))

    def read_file(self, file: LogFile) -> Iterator[Item | Remark]:
        """Yield a record for each kernel and geometry.

        Raises
        ------
        FormatError
            There are metrics without a trace, or what is there is no profile.
        StorageError
            A file cannot be read.
        """
        if file.path is None:
            raise FormatError(f"{file.name}: a profile is no stream; give its path")
        own = _read(file.path)
        parts = [(file.name, own)]
        counted = traced = own
        if not own.launched:
            at = _trace_of(file, own)
            traced = _read(at)
            if not traced.launched:
                raise FormatError(f"{at}: no GPU trace with kernels in it")
            parts.append((str(at), traced))
        if not (own.launched and own.counters):
            read = {file.path: own}
            for path in _counters_beside(file.path):
                if path not in read:
                    read[path] = _read(path)
                    parts.append((str(path), read[path]))
            if len(parts) > 1:
                # In one order, whichever of the files is named: the records are equal then.
                order = dict.fromkeys([*_counters_beside(file.path), file.path])
                counted = merge_counters([read[path] for path in order])
        for name, part in parts:
            for row, reason in part.bad:
                yield Quarantined(name, row.number, reason, row.text.encode(errors="replace"))
        yield from records(traced, counted, file)


def _read(path: Path) -> Profile:
    return parse_profile(read_rows(path))


def merge_counters(profiles: Sequence[Profile]) -> Profile:
    """Return the counters of several runs of one program; of equal names the first counts."""
    merged = Profile(command=profiles[0].command)
    for profile in profiles:
        for key, counters in profile.counters.items():
            found = merged.counters.setdefault(key, Counters())
            known = {name for name, _ in found.names}
            for name, value in zip(counters.names, counters.values, strict=True):
                if name[0] not in known and len(known) < limits.MAX_COUNTERS:
                    known.add(name[0])
                    found.names.append(name)
                    found.values.append(value)
    return merged


def _counters_beside(path: Path) -> list[Path]:
    """Return the metrics and events that belong to one of the files of a run, metrics first."""
    words = ("metrics", "events", "trace")
    return [
        *dict.fromkeys(
            found
            for other in ("metrics", "events")
            for word in words
            for found in _beside(path, word, (other,))[:1]
        )
    ]


def _beside(path: Path, word: str, others: tuple[str, ...]) -> list[Path]:
    """Return the files beside `path` whose names have one of `others` instead of a word."""
    stem = path.name
    for suffix in _PACKED:
        stem = stem.removesuffix(suffix)
    names = [stem.replace(word, other) for other in others] if word in stem else []
    found = (path.with_name(name + suffix) for name in names for suffix in ("", *_PACKED))
    return [candidate for candidate in dict.fromkeys(found) if candidate.is_file()]


def _trace_of(file: LogFile, profile: Profile) -> Path:
    """Return the trace of a file of metrics, or raise FormatError."""
    if file.trace is not None:
        return file.trace
    for word in ("metrics", "events"):
        beside = _beside(file.path, word, ("trace",)) if file.path is not None else []
        if beside:
            return beside[0]
    if file.path is not None and _is_joined(file.path):
        raise FormatError("a table made of several files of nvprof; import those themselves")
    if profile.is_per_launch:
        raise FormatError(
            "counters of each launch without times; profile without --print-gpu-trace and "
            "--aggregate-mode off, and make the trace in a run of its own"
        )
    if not profile.counters and not profile.bad:
        raise FormatError("nvprof profiled nothing there: no metrics and no launches")
    raise FormatError(
        "metrics without a GPU trace, which has the blocks and the times: nvprof "
        "--print-gpu-trace --csv --log-file trace.csv PROGRAM, then --trace trace.csv"
    )


def _is_joined(path: Path) -> bool:
    return any(row.text.encode().startswith(_JOINED) for row in read_rows(path))


def records(traced: Profile, counted: Profile, file: LogFile) -> Iterator[Item | Remark]:
    """Yield the records of a trace with the counters of another run.

    Parameters
    ----------
    traced, counted : Profile
        The trace, and the counters; may be the same.
    file : LogFile
        What the user says of the device, and of the program where no file does.
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
        whole = Launched(
            _device(item.device, file), _with_counters(item.launch, counters), item.seconds
        )
        try:
            yield measurement_of(program_of("cuda", whole, problem, app), whole, context, extra)
        except FormatError as error:
            yield Quarantined(file.name, 0, str(error), orjson.dumps(item.launch.kernel))
    yield from _remarks(traced, counted, mixed)


def _device(device: str, file: LogFile) -> str:
    """Return what a trace calls the device; Nsight Systems may give its number alone."""
    return file.device or "" if device.isdigit() or not device else device


def _with_counters(launch: Launch, counters: Counters | None) -> Launch:
    if counters is None:
        return launch
    counter_set = CounterSet("nvprof", None, None, tuple(counters.names))
    return replace(launch, counter_set=counter_set, values=tuple(counters.values))


def _remarks(traced: Profile, counted: Profile, mixed: set[str]) -> Iterator[Remark]:
    """Say what of the counters was not kept."""
    if counted is not traced and not counted.counters:
        yield Remark("nvprof printed no metrics: launches without counters")
    if mixed:
        yield Remark(
            f"counters of {_number(mixed)} left out: averages over launches of several "
            f"geometries (the first: {min(mixed)[:80]})"
        )
    there = {launch.kernel for _, launch in traced.launched}
    lost = {kernel for _, kernel in counted.counters if kernel not in there}
    if lost:
        yield Remark(
            f"counters of {_number(lost)} left out: the trace has no such launch "
            f"(the first: {min(lost)[:80]})"
        )


def _number(kernels: set[str]) -> str:
    return "1 kernel" if len(kernels) == 1 else f"{len(kernels)} kernels"
