"""Writing MetaSchedule's ``JSONDatabase`` so that TVM loads it.

Its loader is brittle (``docs/design.md``): workloads must be unique, their line numbers are the
records' references, and one blank line crashes it. What the format cannot hold is counted, never
dropped in silence: times of day, sessions, causes of failure. Modules that differ in block names
alone are one workload to TVM, so each further one goes to a directory of its own
(``DIR/variant-1``, …).
"""

from __future__ import annotations

import base64
import os
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import orjson

from ..errors import FormatError, StorageError, UsageError
from ..query import Query
from ..records import Record, Trust, Workload
from ..traces import join_trace
from .metaschedule import GRAPH, RECORDS, WORKLOADS

_NO_VERSION = "0.27.0"


@dataclass
class ExportReport:
    """What was written, and what was left out for which reason."""

    records: int = 0
    workloads: int = 0
    directories: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def leave_out(self, reason: str) -> None:
        """Count one record that was not written."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


def export_metaschedule(
    query: Query,
    directory: Path,
    *,
    target_ids: Sequence[int] | None = None,
    workload_ids: Sequence[int] | None = None,
    force: bool = False,
    on_record: Callable[[], None] | None = None,
) -> ExportReport:
    """Write records as a work directory of MetaSchedule.

    Own and verified records are written in order of insertion, failed ones included; retracted
    ones and those of foreign sources are left out.

    Parameters
    ----------
    query : Query
        The database.
    directory : Path
        Made where it is missing.
    target_ids, workload_ids : sequence of int or None
        Only these.
    force : bool
        Replace files that are there.
    on_record : callable or None
        Called for each record that was looked at.

    Raises
    ------
    UsageError
        The files exist and `force` is false.
    StorageError
        The directory cannot be written.
    """
    report = ExportReport()
    writers: dict[int, _Writer] = {}
    layers = _layers(query)
    try:
        for record in query.iterate(target_ids=target_ids):
            if on_record is not None:
                on_record()
            reason = _reason_to_leave_out(record, workload_ids)
            if reason is not None:
                report.leave_out(reason)
                continue
            layer = layers[record.workload_id]
            if layer not in writers:
                folder = directory if layer == 0 else directory / f"variant-{layer}"
                writers[layer] = _Writer(folder, force=force)
                report.directories.append(str(folder))
            try:
                writers[layer].write(record)
            except FormatError:
                report.leave_out("its trace cannot be read")
            else:
                report.records += 1
        for writer in writers.values():
            report.workloads += writer.finish()
    except OSError as error:
        raise StorageError(f"{directory}: cannot be written ({error.strerror})") from None
    finally:
        for writer in writers.values():
            writer.discard()
    return report


def _layers(query: Query) -> dict[int, int]:
    """Return for each workload how many equal ones stand before it."""
    layers = {}
    for summary in query.workloads():
        equal = query.equivalent(summary.id)
        layers[summary.id] = equal.index(summary.id)
    return layers


def _reason_to_leave_out(record: Record, workload_ids: Sequence[int] | None) -> str | None:
    """Return why a record is not exported, or None."""
    if workload_ids is not None and record.workload_id not in workload_ids:
        return "other workload"
    if record.retracted:
        return "retracted"
    if record.source.trust < Trust.VERIFIED:
        return "foreign source"
    if record.measurement.program.workload.format != GRAPH:
        return "no MetaSchedule workload"
    return None


def workload_line(workload: Workload) -> bytes:
    """Return a workload's line. TVM computes the hash anew, so 0 stands for it."""
    graph = orjson.loads(workload.body)
    graph["metadata"] = {"tvm_version": workload.tvm_version or _NO_VERSION}
    text = orjson.dumps(graph)
    body = base64.b64encode(struct.pack("<q", len(text)) + text).decode()
    return orjson.dumps(["0", body]) + b"\n"


def record_fields(record: Record) -> list[Any]:
    """Return a record's fields.

    Raises
    ------
    FormatError
        Its stored trace is damaged.
    """
    measurement = record.measurement
    instructions, decisions = join_trace(measurement.program.trace)
    args = measurement.args_info
    return [
        [instructions, decisions],
        None if measurement.run_secs is None else list(measurement.run_secs),
        measurement.program.target.attributes,
        None if args is None else orjson.loads(args),
    ]


class _Writer:
    """Writes one work directory; the files get their names when all is written."""

    def __init__(self, directory: Path, *, force: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._paths = [directory / WORKLOADS, directory / RECORDS]
        for path in self._paths:
            if path.exists() and not force:
                raise UsageError(f"{path} exists; give --force to replace it")
        self._temporary = [
            path.with_name(f".{path.name}.{uuid.uuid4().hex}") for path in self._paths
        ]
        self._files: list[IO[bytes]] = [path.open("xb") for path in self._temporary]
        self._index: dict[int, int] = {}

    def write(self, record: Record) -> None:
        """Write a record, after its workload."""
        fields = record_fields(record)
        index = self._index.get(record.workload_id)
        if index is None:
            index = self._index[record.workload_id] = len(self._index)
            self._files[0].write(workload_line(record.measurement.program.workload))
        self._files[1].write(orjson.dumps([index, fields]) + b"\n")

    def finish(self) -> int:
        """Give the files their names; return the number of workloads."""
        for file, temporary, path in zip(self._files, self._temporary, self._paths, strict=True):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            temporary.replace(path)
        return len(self._index)

    def discard(self) -> None:
        """Remove what has no name yet."""
        for file, temporary in zip(self._files, self._temporary, strict=True):
            file.close()
            temporary.unlink(missing_ok=True)
