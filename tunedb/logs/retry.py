"""Reading quarantined lines again, with what tunedb knows today."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from .. import limits
from ..errors import FormatError
from ..records import Measurement, Quarantined, Trust, Workload, WorkloadFormat
from ..results import QuarantineRow
from ..store import Store
from .base import LogFile
from .importer import Occurrences, require_allowed
from .lines import Line
from .reading import LogReader

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
    todo = store.query.quarantined_ids() if ids is None else sorted(set(ids))
    for start in range(0, len(todo), _PAGE):
        rows = store.query.quarantined(ids=todo[start : start + _PAGE])
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
    modules = sum(store.query.workload_id(workload.digest) is None for workload in workloads)
    records = sum(store.import_batch(measurements, row.source, workloads))
    report.recovered += records
    report.workloads += modules
    report.known += not (records or modules)
    store.release([row.id])


def _items(reader: LogReader, kept: Quarantined) -> Iterator[Measurement | Workload]:
    """Yield what a kept line holds, or raise FormatError."""
    if len(kept.data) >= limits.MAX_QUARANTINE_BYTES:
        raise FormatError("only its beginning is kept; import the file again")
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
        raise FormatError("its workloads are not beside its file; import the file again")
    return item
