"""Export of records to other tools' files.

The export for MetaSchedule's ``JSONDatabase`` satisfies TVM's brittle loader
(``docs/design.md``): workloads must be unique, records refer to them by line number, and one blank
line crashes it. The format has no fields for timestamps, sessions and causes of failure. TVM treats
modules that differ only in block names as one workload, so each further one goes to a directory of
its own (``DIR/variant-1``, …). Records whose workload file was lost go to
``DIR/without-workloads``, unchanged. A report counts the records that are not exported, by reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import orjson

from ..errors import FormatError, StorageError, UsageError
from ..programs.workload_info import is_rebuildable
from ..records import MODULES, Status, Trust, Workload, WorkloadFormat
from ..results import Record
from ..storage.store import Store
from ..system.temporary import TemporaryFolder
from .base import DocumentWriter, LineWriter, formats
from .metaschedule import RECORDS, WORKLOADS, record_fields, workload_line

_FOREIGN_MODULE = "module of another database; tune or import an equal one"


@dataclass
class ExportReport:
    """Counts of exported records, and of records that were not exported, by reason."""

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

    Exports own and verified records in order of insertion, including failed ones. Records that
    were retracted or cut short and those of foreign sources are left out, and so are records of
    workloads that came only from other databases, whatever their trust level: TVM parses every
    module of the file. Records that a final has superseded are left out, because TVM would rank
    them; their programs have the final's records.

    Parameters
    ----------
    store : Store
        The database.
    directory : Path
        The work directory; created if it is missing.
    target_ids, workload_ids : sequence of int or None
        Restrict the export to these.
    force : bool
        Replace existing files.
    on_record : callable or None
        Called for each record that is read.

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
    superseded = set(store.pruning.superseded_ids().tolist())
    if target_ids is None and workload_ids is None:
        _leave_out_unused(store, folders, report)
    try:
        for record in store.records.iterate(target=target_ids):
            if on_record is not None:
                on_record()
            reason = _reason_to_leave_out(record, workload_ids, superseded)
            folder = folders.get(record.workload_id)
            if reason is None and folder is not None and record.workload_id not in local:
                reason = _FOREIGN_MODULE
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
    """Count workloads without records: they have no source, so no trust level."""
    for summary in store.workloads.find():
        if summary.id in folders and not summary.records:
            report.leave_out("workload without a record")


def _folders(store: Store, directory: Path) -> dict[int, Path]:
    """Return the directory for each MetaSchedule workload; only today's TVM uses `directory`.

    A graph of TVM 0.26 crashes a TVM 0.27 that loads it, so other versions get subdirectories.
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
    """Return a version as a safe path component."""
    return re.sub(r"[^0-9A-Za-z._+-]", "_", version)[:64]


def _reason_to_leave_out(
    record: Record, workload_ids: Sequence[int] | None, superseded: Container[int] = ()
) -> str | None:
    """Return why a record is not exported, or None."""
    if workload_ids is not None and record.workload_id not in workload_ids:
        return "other workload"
    if record.retracted:
        return "retracted"
    if record.source.trust < Trust.VERIFIED:
        return "foreign source"
    if record.id in superseded:
        return "superseded by a final, which measured the program again"
    # No format has a place for it: its times would look like those of a whole measurement.
    return "cut short" if record.measurement.status is Status.CUT_SHORT else None


def export_lines(
    store: Store,
    format_name: str,
    out: IO[bytes],
    *,
    target_ids: Sequence[int] | None = None,
    workload_ids: Sequence[int] | None = None,
    on_record: Callable[[], None] | None = None,
) -> ExportReport:
    """Write records as lines of a format, in order of insertion, including failed ones.

    Exports own and verified records of workloads that the format can hold, without those that were
    cut short.

    Parameters
    ----------
    store : Store
        The database.
    format_name : str
        A format whose records are lines: ``ansor``, ``autotvm``, or one of another package.
    out : binary file
        The output.
    target_ids, workload_ids : sequence of int or None
        Restrict the export to these.
    on_record : callable or None
        Called for each record that is read.

    Raises
    ------
    UsageError
        The format cannot be written.
    StorageError
        `out` cannot be written.
    """
    writer = formats().get(format_name)
    if not isinstance(writer, LineWriter):
        names = [name for name, item in formats().items() if isinstance(item, LineWriter)]
        raise UsageError(f"{format_name}: not a format of lines ({', '.join(names)})")
    report = ExportReport()
    workloads: set[int] = set()
    records = store.records.iterate(target=target_ids)
    for record in _held(records, writer, format_name, workload_ids, report, on_record):
        try:
            line = writer.write_line(record)
        except FormatError as error:
            report.leave_out(str(error))
            continue
        _write(out, line)
        report.records += 1
        workloads.add(record.workload_id)
    report.workloads = len(workloads)
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
    """Stream the records of one workload on one target to a document of a format.

    Exports own and verified records in order of insertion, including failed ones and without those
    that were cut short; without records, nothing is written.

    Parameters
    ----------
    store, out, target_ids, workload_ids, on_record
        As in :func:`export_lines`.
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
    document: tuple[int, int] | None = None
    records = store.records.iterate(target=target_ids)
    for record in _held(records, writer, format_name, workload_ids, report, on_record):
        measurement, program = record.measurement, record.measurement.program
        key = record.workload_id, record.target_id
        if document not in (None, key):
            raise UsageError(_ONE.format(format_name))
        try:
            data = writer.result(measurement, store.launches.for_record(record.id))
        except FormatError as error:
            report.leave_out(str(error))
            continue
        begin = writer.begin(program.workload, program.target) if document is None else b",\n"
        _write(out, begin + data)
        document = key
        report.records += 1
    if document is not None:
        _write(out, writer.end())
    report.workloads = int(document is not None)
    return report


def _held(
    records: Iterable[Record],
    writer: LineWriter | DocumentWriter,
    format_name: str,
    workload_ids: Sequence[int] | None,
    report: ExportReport,
    on_record: Callable[[], None] | None,
) -> Iterator[Record]:
    """Yield the records that a format can hold; count the others in the report."""
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
    """Raise UsageError before any output if records are of several workloads or targets."""
    candidates = [
        summary
        for summary in store.workloads.find()
        if summary.records
        and (ids is None or summary.id in ids)
        and writer.writes(Workload(summary.format, b"{}"))
    ]
    if len(candidates) > 1 or any(summary.targets > 1 for summary in candidates):
        raise UsageError(_ONE.format(format_name))


def _write(out: IO[bytes], data: bytes) -> None:
    try:
        out.write(data)
    except BrokenPipeError:  # `| head`
        raise
    except OSError as error:
        raise StorageError(f"the log cannot be written ({error.strerror})") from None


class _Writer:
    """Writer of one work directory; complete files replace the old ones at the end."""

    def __init__(self, directory: Path, *, force: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._paths = [directory / WORKLOADS, directory / RECORDS]
        for path in self._paths:
            if path.exists() and not force:
                raise UsageError(f"{path} exists; give --force to replace it")
        self._folder = TemporaryFolder("new", directory, hidden=True)
        self._temporary = [self._folder.path / path.name for path in self._paths]
        self._files: list[IO[bytes]] = [path.open("xb") for path in self._temporary]
        self._index: dict[int, int] = {}

    def write(self, record: Record) -> None:
        """Write a record, after its workload."""
        fields = record_fields(record)
        workload = record.measurement.program.workload
        index = self._index.get(record.workload_id)
        if index is None and workload.format == WorkloadFormat.ARGUMENTS:
            index = self._index[record.workload_id] = orjson.loads(workload.body)[0]
        elif index is None:
            line = workload_line(workload)  # before the index: it may raise
            index = self._index[record.workload_id] = len(self._index)
            self._files[0].write(line)
        self._files[1].write(orjson.dumps([index, fields]) + b"\n")

    def finish(self) -> int:
        """Move the files into place; return the number of workloads."""
        sizes = [file.tell() for file in self._files]
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
            file.close()
        # The old records go first: a kill must not leave them beside new workloads.
        self._paths[1].unlink(missing_ok=True)
        for size, temporary, path in zip(sizes, self._temporary, self._paths, strict=True):
            if size:
                temporary.replace(path)
            else:
                # No workloads (WorkloadFormat.ARGUMENTS): the directory gets no workload file.
                path.unlink(missing_ok=True)
        return len(self._index)

    def discard(self) -> None:
        """Remove the temporary files."""
        for file in self._files:
            file.close()
        self._folder.close()
