"""Import of logs into a store, in batches.

Each batch is one transaction, and digests identify records: a killed import that runs again gives
the same database as one run, and a log that grew adds only its new lines.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Self

from .. import limits
from ..errors import FormatError, StorageError
from ..identity import clean_text
from ..programs.allowlist import check_trace
from ..records import (
    Measurement,
    Quarantined,
    Source,
    SourceKind,
    Status,
    Trust,
    Workload,
    WorkloadFormat,
)
from ..results import QuarantineRow
from ..storage.batches import LogContent
from ..storage.engine import sqlite_path
from ..storage.store import Store
from ..system.gc_pause import paused_gc
from .base import Line, LogFile, Remark
from .reading import LogReader, ReadItem, read_log


@dataclass
class Tally:
    """Counts of records.

    Parameters
    ----------
    read : int
        Parsed records.
    new, known : int
        Records that the database lacked, and records that it already had.
    failed : int
        Records of failed measurements.
    unmeasured : int
        Records of programs without a run.
    launches : int
        Launches of GPU kernels in the records.
    """

    read: int = 0
    new: int = 0
    known: int = 0
    failed: int = 0
    unmeasured: int = 0
    launches: int = 0

    def count(self, number: int, status: Status, *, new: bool, launches: int = 0) -> None:
        """Add `number` records of one status."""
        self.read += number
        self.new += number if new else 0
        self.known += 0 if new else number
        self.failed += number if status is Status.FAILED else 0
        self.unmeasured += number if status is Status.UNMEASURED else 0
        self.launches += launches

    def __iadd__(self, other: Tally) -> Tally:
        for name in ("read", "new", "known", "failed", "unmeasured", "launches"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


@dataclass
class ImportReport:
    """Result of importing one file.

    Parameters
    ----------
    file : str
        Name of the file.
    groups : dict
        ``(format, target)`` → :class:`Tally`; the target by :attr:`Target.label`.
    workloads : int
        Workloads without a record, such as those of a workload file.
    skipped : int
        Comments and blank lines.
    quarantined : int
        Quarantined lines.
    reasons : dict
        Reason → number of quarantined lines.
    bad : list of Quarantined
        The first quarantined lines.
    remarks : list of str
        Messages about the file, one line each.
    refused : str or None
        Reason why the file was not read, or not to its end.
    """

    file: str
    groups: dict[tuple[str, str], Tally] = field(default_factory=dict)
    workloads: int = 0
    skipped: int = 0
    quarantined: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    bad: list[Quarantined] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    refused: str | None = None

    @property
    def total(self) -> Tally:
        """Sum over all groups."""
        total = Tally()
        for tally in self.groups.values():
            total += tally
        return total


class Occurrences:
    """Counter of equal records in a file, in bounded memory."""

    def __init__(self) -> None:
        self._new: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}

    def next(self, digest: bytes) -> int:
        """Return the number of equal records before this one, among those remembered."""
        number = self._new.get(digest)
        if number is None:
            number = self._old.get(digest, 0)
            if len(self._new) >= limits.EQUAL_LINES:
                self._old, self._new = self._new, {}
        self._new[digest] = number + 1
        return number


def import_log(
    store: Store,
    file: LogFile,
    *,
    source: str,
    trust: Trust = Trust.OWN,
    dry_run: bool = False,
    on_batch: Callable[[], None] | None = None,
    report: ImportReport | None = None,
) -> ImportReport:
    """Import one file; as :class:`LogImporter` and its :meth:`~LogImporter.add`."""
    with LogImporter(store, dry_run=dry_run, on_batch=on_batch) as importer:
        return importer.add(file, source=source, trust=trust, report=report)


def require_allowed(measurement: Measurement) -> None:
    """Raise FormatError if a measurement's program is outside the allow-list.

    Parameters
    ----------
    measurement : Measurement
        A parsed measurement of a foreign source.
    """
    program = measurement.program
    try:
        check_trace(program.trace, program.workload.format)
    except FormatError as error:
        raise FormatError(f"not allowed from a foreign source: {error}") from None


def _is_own(store: Store, path: Path) -> bool:
    """Return True for a file of the store: opening and closing it would drop SQLite's locks.

    See ``tunedb.storage.versions.check_file``.
    """
    database = sqlite_path(store.url)
    if database is None:
        return False
    for suffix in ("", "-wal", "-shm", "-journal"):
        with suppress(OSError):
            if path.samefile(database.with_name(database.name + suffix)):
                return True
    return False


class LogImporter:
    """Import of files, which share batches: larger ones write each page of an index less often.

    The end of its ``with`` block stores the last batch, unless an exception ends it.

    Parameters
    ----------
    store : Store
        The database.
    dry_run : bool
        Compare the files with the database and write nothing; a record in two files counts as new
        in both.
    on_batch : callable or None
        Called after each full batch; an exception ends the import and keeps the stored batches.
    on_file : callable or None
        Called with the report of each file, when all of it is stored.
    """

    def __init__(
        self,
        store: Store,
        *,
        dry_run: bool = False,
        on_batch: Callable[[], None] | None = None,
        on_file: Callable[[ImportReport], None] | None = None,
    ) -> None:
        self._store = store
        self._dry_run = dry_run
        self._on_batch = on_batch
        self._on_file = on_file
        self._parts: list[_Part] = []
        # Sizes of the parts whose files are read.
        self._rows = self._bytes = self._others = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.flush()

    def add(
        self,
        file: LogFile,
        *,
        source: str,
        trust: Trust = Trust.OWN,
        on_position: Callable[[int], None] | None = None,
        report: ImportReport | None = None,
    ) -> ImportReport:
        """Read a file, and store each batch that it fills.

        Parameters
        ----------
        file : LogFile
            The file; its formats are detected (:func:`tunedb.formats.reading.read_log`).
        source : str
            Name of the source.
        trust : Trust
            Trust level of a new source. Lines of a foreign source are quarantined if their
            programs are outside the allow-list (:mod:`tunedb.programs.allowlist`).
        on_position : callable or None
            Called from time to time with the number of bytes read so far.
        report : ImportReport or None
            Report to fill in as batches finish, for callers that may be interrupted.

        Returns
        -------
        ImportReport
            Complete when its last batch is stored. Its ``refused`` is set if the file is not a log,
            cannot be read, or is damaged from some point on.

        Raises
        ------
        StorageError
            The database cannot be written.
        """
        report = report or ImportReport(file.name)
        part = _Part(self._store, file, Source(source, SourceKind.FILE, trust), report)
        self._parts.append(part)
        if file.path is not None and _is_own(self._store, file.path):
            report.refused = "it is the database that is written to"
            part.end()
            return report
        stored = self._store.provenance.trust_of(source)
        is_foreign = (trust if stored is None else stored) is Trust.FOREIGN
        items = read_log(file, on_position, accept=require_allowed if is_foreign else None)
        with paused_gc():
            while True:
                try:
                    item = next(items, None)
                except (FormatError, StorageError) as error:
                    # An error of the file: database errors can only come from the writes below.
                    report.refused = str(error).removeprefix(f"{file.name}: ")
                    break
                if item is None:
                    break
                part.add(item)
                if part.bad_lines >= limits.MAX_QUARANTINED_LINES:
                    report.refused = (
                        f"{limits.MAX_QUARANTINED_LINES} lines not understood; repair it"
                    )
                    break
                if self._is_full(part):
                    self.flush()
                    if self._on_batch is not None:
                        self._on_batch()
        part.end()
        self._rows += len(part.measurements)
        self._bytes += part.bytes
        self._others += len(part.bad) + len(part.workloads)
        return report

    def _is_full(self, part: _Part) -> bool:
        """Return True when the batch, with a part that is read, has reached a limit."""
        return (
            self._rows + len(part.measurements) >= limits.IMPORT_ROWS
            or self._bytes + part.bytes >= limits.IMPORT_BYTES
            or self._others + len(part.bad) + len(part.workloads) >= limits.PROGRESS_LINES
        )

    def flush(self) -> None:
        """Store and count the items of the batch."""
        if self._dry_run:
            contains = self._store.batches.contains
            new = [[not contains(m) for m in part.measurements] for part in self._parts]
        else:
            new = self._store.batches.load_all([part.content for part in self._parts])
            if released := [id_ for part in self._parts for id_ in part.released]:
                self._store.quarantine.release(released)
        for part, is_new in zip(self._parts, new, strict=True):
            part.count(is_new)
            if part.is_read and self._on_file is not None:
                self._on_file(part.report)
        self._parts = [part for part in self._parts if not part.is_read]
        self._rows = self._bytes = self._others = 0
        gc.collect(0)


class _Part:
    """Items of a file in a batch that is not stored yet."""

    def __init__(self, store: Store, file: LogFile, source: Source, report: ImportReport) -> None:
        self.report = report
        self.measurements: list[Measurement] = []
        self.workloads: list[Workload] = []
        self.bad: list[Quarantined] = []
        self.bytes = 0
        #: Whether the end of the file was reached.
        self.is_read = False
        #: Quarantined lines of the whole file.
        self.bad_lines = 0
        #: Quarantined lines that were understood this time.
        self.released: list[int] = []
        self._source = source
        self._occurrences = Occurrences()
        self._formats: list[str] = []
        # Earlier quarantined lines of this file, by line number. A line that parses now was
        # truncated by a killed writer then, or has been repaired, and leaves quarantine.
        self._file = file
        self._quarantined = store.batches.quarantined_lines(self._label(file.name))

    def end(self) -> None:
        """Take note of the end of the file, and forget what is only needed to read it."""
        self.is_read = True
        self._occurrences = Occurrences()
        self._quarantined = {}

    @property
    def content(self) -> LogContent:
        """The items, as a batch stores them."""
        return LogContent(self._source, self.measurements, self.workloads, self.bad)

    def add(self, read: ReadItem) -> None:
        """Add one item of the file."""
        item = read.item
        self.bytes += read.size
        if read.line and read.line in self._quarantined and not isinstance(item, Quarantined):
            self.released += self._quarantined.pop(read.line)
        if isinstance(item, Measurement):
            occurrence = self._occurrences.next(item.digest)
            if occurrence:
                # Each of several equal lines is a measurement.
                item = replace(item, occurrence=occurrence)
            self.measurements.append(item)
            self._formats.append(read.format)
        elif isinstance(item, Quarantined):
            self.bad.append(replace(item, file=self._label(item.file)))
            self.bad_lines += 1
        elif isinstance(item, Workload):
            self.workloads.append(item)
        elif isinstance(item, Remark):
            if len(self.report.remarks) < limits.MAX_REASONS:
                self.report.remarks.append(item.text)
        else:
            self.report.skipped += 1

    def _label(self, name: str) -> str:
        """Return a file's name in quarantine: absolute, for retries from other directories."""
        if name != self._file.name:
            return clean_text(str(Path(name).absolute()))
        path = self._file.path
        return name if path is None else clean_text(str(path.absolute()))

    def count(self, new: Sequence[bool]) -> None:
        """Count the stored items in the report, and forget them."""
        report = self.report
        # Counted by id(): hashing targets and statuses takes longer than all the rest.
        targets = [m.program.target for m in self.measurements]
        statuses = [int(m.status) for m in self.measurements]
        by_id = {id(target): target for target in targets}
        launches = [len(m.launches) for m in self.measurements]
        kinds = Counter(zip(self._formats, map(id, targets), statuses, new, launches, strict=True))
        for (format_, target_id, status, is_new, each), number in kinds.items():
            key = format_, by_id[target_id].label[: limits.MAX_NAME_CHARS]
            if key not in report.groups and len(report.groups) >= limits.MAX_GROUPS:
                key = format_, "other targets"
            tally = report.groups.setdefault(key, Tally())
            tally.count(number, Status(status), new=is_new, launches=number * each)
        report.workloads += len(self.workloads)
        report.quarantined += len(self.bad)
        for row in self.bad:
            reason = row.reason
            if reason not in report.reasons and len(report.reasons) >= limits.MAX_REASONS:
                reason = "other reasons"
            report.reasons[reason] = report.reasons.get(reason, 0) + 1
        report.bad += self.bad[: max(0, limits.MAX_NAMED_LINES - len(report.bad))]
        for items in (self.measurements, self._formats, self.workloads, self.bad, self.released):
            items.clear()
        self.bytes = 0


# ---- Retry of quarantined lines with today's formats ---------------------------------------------

#: Rows per query: each may hold a mebibyte.
_PAGE = 100


@dataclass
class RetryReport:
    """Result of a retry of quarantined lines.

    Parameters
    ----------
    tried : int
        Retried lines.
    recovered : int
        New records.
    workloads : int
        New workloads.
    known : int
        Lines whose content is already stored, for example by an import of the repaired file.
    left : int
        Lines that still cannot be parsed and stay in quarantine.
    reasons : dict
        Reason → number of lines that stay.
    """

    tried: int = 0
    recovered: int = 0
    workloads: int = 0
    known: int = 0
    left: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


def retry_quarantine(
    store: Store,
    ids: Sequence[int] | None = None,
    *,
    on_row: Callable[[], None] | None = None,
) -> RetryReport:
    """Parse quarantined lines again and store their records under the same source.

    A line of MetaSchedule needs the workload file beside its file, as on import.

    Parameters
    ----------
    store : Store
        The database.
    ids : sequence of int or None
        Quarantine rows to retry; None for all.
    on_row : callable or None
        Called for each row.
    """
    report = RetryReport()
    occurrences = Occurrences()
    pending = store.quarantine.ids() if ids is None else sorted(set(ids))
    for start in range(0, len(pending), _PAGE):
        rows = store.quarantine.rows(ids=pending[start : start + _PAGE])
        rows.sort(key=lambda row: (row.item.file, row.item.line))
        for file, group in groupby(rows, key=lambda row: row.item.file):
            # The file itself may be gone: is_log accepts its lines without their context.
            reader = LogReader(LogFile(Path(file), file), is_log=True)
            for row in group:
                _retry(store, reader, row, report, occurrences)
                if on_row is not None:
                    on_row()
    return report


def _retry(
    store: Store,
    reader: LogReader,
    row: QuarantineRow,
    report: RetryReport,
    occurrences: Occurrences,
) -> None:
    """Parse one line again and store its items."""
    report.tried += 1
    try:
        items = list(_items(reader, row.item))
        if row.source.trust is Trust.FOREIGN:
            for item in items:
                if isinstance(item, Measurement):
                    require_allowed(item)
    except FormatError as error:
        report.left += 1
        report.reasons[str(error)] = report.reasons.get(str(error), 0) + 1
        return
    file = row.item.file.encode()
    measurements = [
        # Each of several equal lines is a measurement, as on import.
        replace(item, occurrence=occurrences.next(file + item.digest))
        for item in items
        if isinstance(item, Measurement)
    ]
    workloads = [item for item in items if isinstance(item, Workload)]
    modules = sum(store.workloads.id_of(workload.digest) is None for workload in workloads)
    records = sum(store.batches.load(measurements, row.source, workloads))
    report.recovered += records
    report.workloads += modules
    report.known += not (records or modules)
    store.quarantine.release([row.id])


def _items(reader: LogReader, line: Quarantined) -> Iterator[Measurement | Workload]:
    """Yield the items of a quarantined line, or raise FormatError."""
    if len(line.data) >= limits.MAX_QUARANTINE_BYTES:
        raise FormatError("only its beginning is stored; import the file again")
    for read in reader.read_line(Line(line.line, line.data, 0)):
        item = read.item
        if isinstance(item, Quarantined):
            # Bad lines of a companion file have quarantine rows of their own.
            if item.file == line.file and item.line == line.line:
                raise FormatError(item.reason)
        elif isinstance(item, Measurement | Workload):
            yield _with_workload(item)


def _with_workload(item: Measurement | Workload) -> Measurement | Workload:
    """Return an item, or raise FormatError for a record whose workload is missing."""
    if isinstance(item, Measurement) and item.program.workload.format == WorkloadFormat.ARGUMENTS:
        # The workloads may precede the record in the same file, which one line cannot show.
        raise FormatError("its workload file is missing; import the file again")
    return item
