"""Bringing logs into a store, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .. import limits
from ..errors import FormatError, NotFoundError
from ..records import Measurement, Quarantined, Source, SourceKind, Status, Trust
from ..store import Store
from .base import LogFormat, format_of


@dataclass
class ImportReport:
    """What an import found in one log.

    Parameters
    ----------
    path, format : str
        The log.
    read : int
        Records that were understood.
    new, known : int
        Those that the database lacked, and those it had.
    failed : int
        Records of failed measurements.
    quarantined : int
        Lines that were not understood.
    reasons : dict
        Reason → number of lines, for what was not understood.
    """

    path: str
    format: str
    read: int = 0
    new: int = 0
    known: int = 0
    failed: int = 0
    quarantined: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


def find_logs(paths: Iterable[Path]) -> Iterator[tuple[Path, LogFormat]]:
    """Yield the logs among files and directories, directories searched to the bottom.

    Raises
    ------
    NotFoundError
        A path that does not exist, or a directory without any log.
    FormatError
        A file of no known format.
    """
    for path in paths:
        if not path.exists():
            raise NotFoundError(f"{path}: no such file or directory")
        if not path.is_dir():
            yield path, format_of(path)
            continue
        found = False
        for folder in [path, *sorted(p for p in path.rglob("*") if p.is_dir())]:
            try:
                yield folder, format_of(folder)
            except FormatError:
                continue
            found = True
        if not found:
            raise NotFoundError(f"{path}: no log that tunedb knows in this directory")


def import_log(
    store: Store,
    path: Path,
    log_format: LogFormat,
    *,
    source: str | None = None,
    trust: Trust = Trust.OWN,
    dry_run: bool = False,
    on_progress: Callable[[int], None] | None = None,
    report: ImportReport | None = None,
) -> ImportReport:
    """Import one log.

    Each batch is a transaction: an import that is killed and run again ends as one run does.

    Parameters
    ----------
    store : Store
        Where to.
    path : Path
        The log.
    log_format : LogFormat
        Its format.
    source : str or None
        Name of the source; the absolute path where None.
    trust : Trust
        Trust of the source, if it is new.
    dry_run : bool
        Read and compare with what is stored, write nothing; a record that two logs share counts
        as new in both.
    on_progress : callable or None
        Called with the number of bytes read so far.
    report : ImportReport or None
        Filled in as batches finish, so that a caller has it when interrupted.

    Returns
    -------
    ImportReport
    """
    report = report or ImportReport(str(path), log_format.name)
    origin = Source(source or str(path.resolve()), SourceKind.FILE, trust)
    batch: list[Measurement] = []
    bad: list[Quarantined] = []

    def flush() -> None:
        _add(store, batch, bad, origin, report, dry_run=dry_run)
        batch.clear()
        bad.clear()

    for parsed in log_format.read(path):
        if isinstance(parsed.item, Quarantined):
            bad.append(parsed.item)
        else:
            batch.append(parsed.item)
        if len(batch) + len(bad) >= limits.BATCH_ROWS:
            flush()
        if on_progress is not None:
            on_progress(parsed.position)
    flush()
    return report


def _add(
    store: Store,
    batch: list[Measurement],
    bad: list[Quarantined],
    source: Source,
    report: ImportReport,
    *,
    dry_run: bool,
) -> None:
    """Store one batch and count it."""
    if batch:
        new = (
            sum(not store.query.knows(measurement.digest) for measurement in batch)
            if dry_run
            else store.add_batch(batch, source)[1]
        )
        report.read += len(batch)
        report.new += new
        report.known += len(batch) - new
        report.failed += sum(m.status is Status.FAILED for m in batch)
    if bad:
        if not dry_run:
            store.quarantine(bad, source)
        report.quarantined += len(bad)
        for row in bad:
            report.reasons[row.reason] = report.reasons.get(row.reason, 0) + 1
