"""Bringing logs into a store, in batches.

Each batch is one transaction, and a record is known by its digest: an import that is killed and
run again ends as one run does, and a log that grew adds its new lines.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

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
from ..storage.engine import sqlite_path
from ..storage.store import Store
from ..system.gc_pause import collecting_less
from .base import Line, LogFile, Remark
from .reading import Found, LogReader, read_log


@dataclass
class Tally:
    """Numbers of records.

    Parameters
    ----------
    read : int
        Records that were understood.
    new, known : int
        Those that the database lacked, and those it had.
    failed : int
        Those of failed measurements.
    unmeasured : int
        Programs that nobody ran.
    launches : int
        Launches of GPU kernels that the records have.
    """

    read: int = 0
    new: int = 0
    known: int = 0
    failed: int = 0
    unmeasured: int = 0
    launches: int = 0

    def count(self, number: int, status: Status, *, new: bool, launches: int = 0) -> None:
        """Count records."""
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
    """What an import found in one file.

    Parameters
    ----------
    file : str
        The file.
    groups : dict
        ``(format, target)`` → :class:`Tally`; the target as :attr:`Target.label` names it.
    workloads : int
        Workloads that were read apart from records, in a workload file.
    skipped : int
        Comments and blank lines.
    quarantined : int
        Lines that were not understood.
    reasons : dict
        Reason → number of lines, for what was not understood.
    bad : list of Quarantined
        The first of them.
    remarks : list of str
        What else there is to say of the file, a line each.
    refused : str or None
        Why the file was not read, or not to its end.
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
        """All groups together."""
        total = Tally()
        for tally in self.groups.values():
            total += tally
        return total


class Occurrences:
    """Counts equal records of a file, in bounded memory."""

    def __init__(self) -> None:
        self._new: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}

    def next(self, digest: bytes) -> int:
        """Return how many equal records came before, as far as they are remembered."""
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
    on_position: Callable[[int], None] | None = None,
    on_batch: Callable[[], None] | None = None,
    report: ImportReport | None = None,
) -> ImportReport:
    """Import one file.

    Parameters
    ----------
    store : Store
        Where to.
    file : LogFile
        The file; what it holds is found out (:func:`tunedb.formats.reading.read_log`).
    source : str
        Name of the source.
    trust : Trust
        Trust of the source, if it is new. Lines of a foreign source are quarantined where their
        program holds what is not allowed (:mod:`tunedb.programs.allowlist`).
    dry_run : bool
        Read and compare with what is stored, write nothing; a record that two files share counts
        as new in both.
    on_position : callable or None
        Called now and then with the number of bytes of the file that were read.
    on_batch : callable or None
        Called after each batch; what it raises ends the import, and what was stored stays.
    report : ImportReport or None
        Filled in as batches finish, so that a caller has it when interrupted.

    Returns
    -------
    ImportReport
        A file that is no log, cannot be read, or is damaged from some point on has ``refused``
        set.

    Raises
    ------
    StorageError
        The database cannot be written.
    """
    report = report or ImportReport(file.name)
    origin = Source(source, SourceKind.FILE, trust)
    batch = _Batch(store, file, origin, report, dry_run=dry_run)
    if file.path is not None and _is_own(store, file.path):
        report.refused = "it is the database that is written to"
        return report
    known = store.provenance.trust_of(source)
    is_foreign = (trust if known is None else known) is Trust.FOREIGN
    items = read_log(file, on_position, accept=require_allowed if is_foreign else None)
    with collecting_less():
        while True:
            try:
                found = next(items, None)
            except (FormatError, StorageError) as error:
                # Of the file, not of the database: that is only written below.
                report.refused = str(error).removeprefix(f"{file.name}: ")
                break
            if found is None:
                break
            batch.add(found)
            if batch.bad_lines >= limits.MAX_QUARANTINED_LINES:
                report.refused = f"{limits.MAX_QUARANTINED_LINES} lines not understood; repair it"
                break
            if batch.is_full:
                batch.flush()
                if on_batch is not None:
                    on_batch()
        batch.flush()
    return report


def require_allowed(measurement: Measurement) -> None:
    """Raise FormatError unless a foreign source may give a measurement's program.

    Parameters
    ----------
    measurement : Measurement
        As it was read.
    """
    program = measurement.program
    try:
        check_trace(program.trace, program.workload.format)
    except FormatError as error:
        raise FormatError(f"not allowed from a foreign source: {error}") from None


def _is_own(store: Store, path: Path) -> bool:
    """Tell whether a file is the store's, which must not even be opened.

    Closing it would drop the locks that SQLite holds on it
    (``tunedb.storage.versions.check_file``).
    """
    own = sqlite_path(store.url)
    if own is None:
        return False
    for suffix in ("", "-wal", "-shm", "-journal"):
        with suppress(OSError):
            if path.samefile(own.with_name(own.name + suffix)):
                return True
    return False


class _Batch:
    """What was read and is not stored yet."""

    def __init__(
        self,
        store: Store,
        file: LogFile,
        source: Source,
        report: ImportReport,
        *,
        dry_run: bool,
    ) -> None:
        self._store = store
        self._source = source
        self._report = report
        self._dry_run = dry_run
        self._occurrences = Occurrences()
        self._measurements: list[Measurement] = []
        self._formats: list[str] = []
        self._workloads: list[Workload] = []
        self._bad: list[Quarantined] = []
        self._bytes = 0
        #: Lines that were not understood, of the whole file.
        self.bad_lines = 0
        # What is in quarantine of this file: a line that was cut off when its writer was killed
        # is whole now, or somebody repaired it.
        self._file = file
        self._kept = store.batches.quarantined_lines(self._label(file.name))
        self._released: list[int] = []

    @property
    def is_full(self) -> bool:
        """Whether it is time for a transaction."""
        return (
            len(self._measurements) >= limits.IMPORT_ROWS
            or self._bytes >= limits.IMPORT_BYTES
            or len(self._bad) + len(self._workloads) >= limits.PROGRESS_LINES
        )

    def add(self, found: Found) -> None:
        """Take what was read."""
        item = found.item
        self._bytes += found.size
        if found.line and found.line in self._kept and not isinstance(item, Quarantined):
            self._released += self._kept.pop(found.line)
        if isinstance(item, Measurement):
            occurrence = self._occurrences.next(item.digest)
            if occurrence:
                # Equal lines of one file are as many measurements.
                item = replace(item, occurrence=occurrence)
            self._measurements.append(item)
            self._formats.append(found.format)
        elif isinstance(item, Quarantined):
            self._bad.append(replace(item, file=self._label(item.file)))
            self.bad_lines += 1
        elif isinstance(item, Workload):
            self._workloads.append(item)
        elif isinstance(item, Remark):
            if len(self._report.remarks) < limits.MAX_REASONS:
                self._report.remarks.append(item.text)
        else:
            self._report.skipped += 1

    def _label(self, name: str) -> str:
        """Return what quarantine calls a file: a retry may run in another directory."""
        if name != self._file.name:
            return clean_text(str(Path(name).absolute()))
        path = self._file.path
        return name if path is None else clean_text(str(path.absolute()))

    def flush(self) -> None:
        """Store what there is, and count it."""
        if self._dry_run:
            new: Sequence[bool] = [not self._store.batches.contains(m) for m in self._measurements]
        else:
            new = self._store.batches.load(
                self._measurements, self._source, self._workloads, self._bad
            )
            if self._released:
                self._store.quarantine.release(self._released)
                self._released.clear()
        report = self._report
        # By number of the object: hashing a target or a status takes longer than all the rest.
        targets = [m.program.target for m in self._measurements]
        statuses = [int(m.status) for m in self._measurements]
        by_number = {id(target): target for target in targets}
        launches = [len(m.launches) for m in self._measurements]
        kinds = Counter(zip(self._formats, map(id, targets), statuses, new, launches, strict=True))
        for (format_, number_, status, is_new, each), number in kinds.items():
            key = format_, by_number[number_].label[: limits.MAX_NAME_CHARS]
            if key not in report.groups and len(report.groups) >= limits.MAX_GROUPS:
                key = format_, "other targets"
            tally = report.groups.setdefault(key, Tally())
            tally.count(number, Status(status), new=is_new, launches=number * each)
        report.workloads += len(self._workloads)
        report.quarantined += len(self._bad)
        for row in self._bad:
            reason = row.reason
            if reason not in report.reasons and len(report.reasons) >= limits.MAX_REASONS:
                reason = "other reasons"
            report.reasons[reason] = report.reasons.get(reason, 0) + 1
        report.bad += self._bad[: max(0, limits.MAX_NAMED_LINES - len(report.bad))]
        for part in (self._measurements, self._formats, self._workloads, self._bad):
            part.clear()
        gc.collect(0)
        self._bytes = 0


# ---- Reading quarantined lines again, with what tunedb knows today -------------------------------

#: Rows that are read at a time: each may hold a mebibyte.
_PAGE = 100


@dataclass
class RetryReport:
    """What became of quarantined lines.

    Parameters
    ----------
    tried : int
        Lines that were read again.
    recovered : int
        Records that the database lacked.
    workloads : int
        Workloads that it lacked.
    known : int
        Lines of which it had all meanwhile, e.g. because the repaired file was imported.
    left : int
        Lines that are still not understood, and stay.
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
    """Read quarantined lines again; what is understood becomes records of the same source.

    A line of MetaSchedule needs the workload file beside its file, as on import.

    Parameters
    ----------
    store : Store
        The database.
    ids : sequence of int or None
        Only these rows; None for all.
    on_row : callable or None
        Called for each row.
    """
    report = RetryReport()
    occurrences = Occurrences()
    todo = store.quarantine.ids() if ids is None else sorted(set(ids))
    for start in range(0, len(todo), _PAGE):
        rows = store.quarantine.rows(ids=todo[start : start + _PAGE])
        rows.sort(key=lambda row: (row.item.file, row.item.line))
        for file, group in groupby(rows, key=lambda row: row.item.file):
            # The file may be gone: then its lines must speak for themselves.
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
    """Read one line again, and keep what it holds."""
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
        # Equal lines of one file are as many measurements, as on import.
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


def _items(reader: LogReader, kept: Quarantined) -> Iterator[Measurement | Workload]:
    """Yield what a kept line holds, or raise FormatError."""
    if len(kept.data) >= limits.MAX_QUARANTINE_BYTES:
        raise FormatError("only its beginning is stored; import the file again")
    for found in reader.read_line(Line(kept.line, kept.data, 0)):
        if isinstance(found.item, Quarantined):
            # What a companion file holds wrong is quarantined on its own.
            if found.item.file == kept.file and found.item.line == kept.line:
                raise FormatError(found.item.reason)
        elif isinstance(found.item, Measurement | Workload):
            yield _whole(found.item)


def _whole(item: Measurement | Workload) -> Measurement | Workload:
    """Return what was read, or raise FormatError where it lacks what stood beside its line."""
    if isinstance(item, Measurement) and item.program.workload.format == WorkloadFormat.ARGUMENTS:
        # They may stand before it in the same file: the line alone does not tell.
        raise FormatError("its workload file is missing; import the file again")
    return item
