"""Bringing logs into a store, in batches.

Each batch is one transaction, and a record is known by its digest: an import that is killed and
run again ends as one run does, and a log that grew adds its new lines.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import limits
from ..allowed import check_trace
from ..collecting import collecting_less
from ..engine import sqlite_path
from ..errors import FormatError, StorageError
from ..identity import clean_text
from ..records import Measurement, Quarantined, Source, SourceKind, Status, Trust, Workload
from ..store import Store
from .base import LogFile, Remark
from .reading import Found, read_log


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
        The file; what it holds is found out (:func:`tunedb.logs.reading.read_log`).
    source : str
        Name of the source.
    trust : Trust
        Trust of the source, if it is new. Lines of a foreign source are quarantined where their
        program holds what is not allowed (:mod:`tunedb.allowed`).
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
    known = store.query.trust_of(source)
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

    Closing it would drop the locks that SQLite holds on it (``tunedb.versions.check_file``).
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
        self._kept = store.query.quarantined_lines(self._label(file.name))
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
            new: Sequence[bool] = [not self._store.query.knows(m) for m in self._measurements]
        else:
            new = self._store.import_batch(
                self._measurements, self._source, self._workloads, self._bad
            )
            if self._released:
                self._store.release(self._released)
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
