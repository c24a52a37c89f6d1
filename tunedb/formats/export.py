"""Writing records as other tools' files.

MetaSchedule's ``JSONDatabase`` is written so that TVM loads it. Its loader is brittle
(``docs/design.md``): workloads must be unique, their line numbers are the records' references,
and one blank line crashes it. What the format cannot hold is counted, never dropped in silence:
times of day, sessions, causes of failure. Modules that differ in block names alone are one
workload to TVM, so each further one goes to a directory of its own (``DIR/variant-1``, …).
Records whose workload file was lost go to ``DIR/without-workloads``, as they came.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import orjson

from ..errors import FormatError, StorageError, UsageError
from ..programs.workload_info import is_rebuildable
from ..records import MODULES, Trust, Workload, WorkloadFormat
from ..results import Record
from ..storage.store import Store
from ..system.temporary import TemporaryFolder
from .base import DocumentWriter, LineWriter, formats
from .metaschedule import RECORDS, WORKLOADS, record_fields, workload_line

_OF_OTHERS = "module of another database; tune or import an equal one"


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
    store: Store,
    directory: Path,
    *,
    target_ids: Sequence[int] | None = None,
    workload_ids: Sequence[int] | None = None,
    force: bool = False,
    on_record: Callable[[], None] | None = None,
) -> ExportReport:
    """Write records as a work directory of MetaSchedule.

    Own and verified records are written in order of insertion, failed ones included; retracted
    ones and those of foreign sources are left out. So are those of workloads that only came from
    other databases, however far these are trusted: TVM parses every module of the file.

    Parameters
    ----------
    store : Store
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
    writers: dict[Path, _Writer] = {}
    folders, local = _folders(store, directory), store.provenance.local_workloads()
    if target_ids is None and workload_ids is None:
        _leave_out_unused(store, folders, report)
    try:
        for record in store.records.iterate(target=target_ids):
            if on_record is not None:
                on_record()
            reason = _reason_to_leave_out(record, workload_ids)
            folder = folders.get(record.workload_id)
            if reason is None and folder is not None and record.workload_id not in local:
                reason = _OF_OTHERS
            if reason is not None or folder is None:
                report.leave_out(reason or "no MetaSchedule workload")
                continue
            if folder not in writers:
                writers[folder] = _Writer(folder, force=force)
                report.directories.append(str(folder))
            try:
                writers[folder].write(record)
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


def _leave_out_unused(store: Store, folders: dict[int, Path], report: ExportReport) -> None:
    """Count the workloads that no record has: nobody knows who brought them."""
    for summary in store.workloads.find():
        if summary.id in folders and not summary.records:
            report.leave_out("workload without a record")


def _folders(store: Store, directory: Path) -> dict[int, Path]:
    """Return where the records of each workload of MetaSchedule go.

    One graph of TVM 0.26 ends the process of a TVM 0.27 that loads it, so each version has a
    folder of its own, and what today's TVM loads stands in `directory` itself.
    """
    folders = {}
    for summary in store.workloads.find():
        version = summary.tvm_version
        if summary.format == WorkloadFormat.ARGUMENTS:
            folders[summary.id] = directory / "without-workloads"
        elif summary.format in MODULES:
            folder = directory
            if not is_rebuildable(summary.format, version, has_script=False):
                folder = directory / f"tvm-{_folder_name(version or 'unknown')}"
            before = store.workloads.equivalent(summary.id).index(summary.id)
            folders[summary.id] = folder / f"variant-{before}" if before else folder
    return folders


def _folder_name(version: str) -> str:
    """Return a version from a file as one part of a path."""
    return re.sub(r"[^0-9A-Za-z._+-]", "_", version)[:64]


def _reason_to_leave_out(record: Record, workload_ids: Sequence[int] | None) -> str | None:
    """Return why a record is not exported, or None."""
    if workload_ids is not None and record.workload_id not in workload_ids:
        return "other workload"
    if record.retracted:
        return "retracted"
    if record.source.trust < Trust.VERIFIED:
        return "foreign source"
    return None


def export_lines(
    store: Store,
    format_name: str,
    out: IO[bytes],
    *,
    target_ids: Sequence[int] | None = None,
    workload_ids: Sequence[int] | None = None,
    on_record: Callable[[], None] | None = None,
) -> ExportReport:
    """Write records as lines of a format, in order of insertion, failed ones included.

    Own and verified records; those of workloads that the format cannot hold are left out.

    Parameters
    ----------
    store : Store
        The database.
    format_name : str
        A format whose records are lines: ``ansor``, ``autotvm``, or one of another package.
    out : binary file
        Where to.
    target_ids, workload_ids : sequence of int or None
        Only these.
    on_record : callable or None
        Called for each record that was looked at.

    Raises
    ------
    UsageError
        The format cannot be written.
    StorageError
        `out` cannot be written.
    """
    writer = formats().get(format_name)
    if not isinstance(writer, LineWriter):
        names = [name for name, known in formats().items() if isinstance(known, LineWriter)]
        raise UsageError(f"{format_name}: not a format of lines ({', '.join(names)})")
    report = ExportReport()
    met: set[int] = set()
    records = store.records.iterate(target=target_ids)
    for record in _held(records, writer, format_name, workload_ids, report, on_record):
        try:
            line = writer.write_line(record)
        except FormatError as error:
            report.leave_out(str(error))
            continue
        _write(out, line)
        report.records += 1
        met.add(record.workload_id)
    report.workloads = len(met)
    return report


def export_document(
    store: Store,
    format_name: str,
    out: IO[bytes],
    *,
    target_ids: Sequence[int] | None = None,
    workload_ids: Sequence[int] | None = None,
    on_record: Callable[[], None] | None = None,
) -> ExportReport:
    """Write the records of one workload on one target as a document of a format, as they come.

    Own and verified records in order of insertion, failed ones included; nothing is written where
    there is none.

    Parameters
    ----------
    store, out, target_ids, workload_ids, on_record
        As :func:`export_lines` has them.
    format_name : str
        A format whose records are a document: ``t4``.

    Raises
    ------
    UsageError
        The format cannot be written, or the records are of several workloads or targets.
    StorageError
        `out` cannot be written.
    """
    writer = formats().get(format_name)
    if not isinstance(writer, DocumentWriter):
        raise UsageError(f"{format_name}: not a format of documents")
    if target_ids is None:
        _require_one(store, writer, format_name, workload_ids)
    report = ExportReport()
    chosen: tuple[int, int] | None = None
    records = store.records.iterate(target=target_ids)
    for record in _held(records, writer, format_name, workload_ids, report, on_record):
        measurement, program = record.measurement, record.measurement.program
        of = record.workload_id, record.target_id
        if chosen not in (None, of):
            raise UsageError(_ONE.format(format_name))
        try:
            data = writer.result(measurement, store.launches.for_record(record.id))
        except FormatError as error:
            report.leave_out(str(error))
            continue
        begin = writer.begin(program.workload, program.target) if chosen is None else b",\n"
        _write(out, begin + data)
        chosen = of
        report.records += 1
    if chosen is not None:
        _write(out, writer.end())
    report.workloads = int(chosen is not None)
    return report


def _held(
    records: Iterable[Record],
    writer: LineWriter | DocumentWriter,
    format_name: str,
    workload_ids: Sequence[int] | None,
    report: ExportReport,
    on_record: Callable[[], None] | None,
) -> Iterator[Record]:
    """Yield the records that a format can hold; the report says why others are left out."""
    for record in records:
        if on_record is not None:
            on_record()
        reason = _reason_to_leave_out(record, workload_ids)
        if reason is None and not writer.writes(record.measurement.program.workload):
            reason = f"no {format_name} workload"
        if reason is None:
            yield record
        else:
            report.leave_out(reason)


_ONE = "{} holds one kernel on one device; choose with --workload and --target"


def _require_one(
    store: Store, writer: DocumentWriter, format_name: str, ids: Sequence[int] | None
) -> None:
    """Raise UsageError, before anything is written, where records are of several workloads."""
    found = [
        summary
        for summary in store.workloads.find()
        if summary.records
        and (ids is None or summary.id in ids)
        and writer.writes(Workload(summary.format, b"{}"))
    ]
    if len(found) > 1 or any(summary.targets > 1 for summary in found):
        raise UsageError(_ONE.format(format_name))


def _write(out: IO[bytes], data: bytes) -> None:
    try:
        out.write(data)
    except BrokenPipeError:  # `| head`
        raise
    except OSError as error:
        raise StorageError(f"the log cannot be written ({error.strerror})") from None


class _Writer:
    """Writes one work directory; the files get their names when all is written."""

    def __init__(self, directory: Path, *, force: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._paths = [directory / WORKLOADS, directory / RECORDS]
        for path in self._paths:
            if path.exists() and not force:
                raise UsageError(f"{path} exists; give --force to replace it")
        self._folder = TemporaryFolder("new", directory, hidden=True)
        self._made = [self._folder.path / path.name for path in self._paths]
        self._files: list[IO[bytes]] = [path.open("xb") for path in self._made]
        self._index: dict[int, int] = {}

    def write(self, record: Record) -> None:
        """Write a record, after its workload."""
        fields = record_fields(record)
        workload = record.measurement.program.workload
        index = self._index.get(record.workload_id)
        if index is None and workload.format == WorkloadFormat.ARGUMENTS:
            index = self._index[record.workload_id] = orjson.loads(workload.body)[0]
        elif index is None:
            line = workload_line(workload)  # it may fail, and must not leave a number then
            index = self._index[record.workload_id] = len(self._index)
            self._files[0].write(line)
        self._files[1].write(orjson.dumps([index, fields]) + b"\n")

    def finish(self) -> int:
        """Give the files their names; return the number of workloads."""
        sizes = [file.tell() for file in self._files]
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
            file.close()
        # First the old records go: killed here, none of them is left with another workload.
        self._paths[1].unlink(missing_ok=True)
        for size, made, path in zip(sizes, self._made, self._paths, strict=True):
            if size:
                made.replace(path)
            else:
                # Without a workload, a file of them would only say that there is none.
                path.unlink(missing_ok=True)
        return len(self._index)

    def discard(self) -> None:
        """Remove what has no name yet."""
        for file in self._files:
            file.close()
        self._folder.close()
