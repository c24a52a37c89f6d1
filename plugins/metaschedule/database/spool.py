"""Spool: files for measured batches that the database cannot store.

Measurements are expensive, so a batch that cannot be stored is written to a file beside the
database, which ``tunedb import logs`` reads: lines of MetaSchedule's JSON files, workloads before
the records that refer to them. The format has no fields for sessions, causes of failure and
origins; these are lost.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from ....errors import BusyError, FormatError, SchemaError, StorageError, TuneDBError
from ....formats.metaschedule import record_fields, workload_line
from ....records import Measurement, Session, Source
from ....results import Record
from ....storage.engine import sqlite_path
from ....storage.store import Store

__all__ = ["Spool"]

#: Errors of a database that cannot be written.
_FAILURES = (StorageError, BusyError, SchemaError)


class Spool:
    """Files for batches that a store cannot take.

    Parameters
    ----------
    store : Store
        Store of the database; its file is identified now.

    Examples
    --------
    >>> with spool.guarding(measurements, session):
    ...     store.batches.add(measurements, source)
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        path = sqlite_path(store.url)
        self._database = None if path is None else path.absolute()
        self._file = self._identity()

    @contextmanager
    def guarding(self, batch: Sequence[Measurement], session: Session) -> Iterator[None]:
        """Guard a block that stores a batch: write the batch to a file if the block fails.

        Parameters
        ----------
        batch : sequence of Measurement
            Batch that the block stores.
        session : Session
            Session of the batch. If the database's file was deleted, its earlier records are
            written too: SQLite goes on writing to a deleted file, and all of it is lost when the
            process ends.

        Raises
        ------
        StorageError
            The batch could not be stored. The message names the file that has it.
        """
        try:
            self.check()
            yield
            self.check()
        except _FAILURES as error:
            raise self._spooled(error, batch, session) from error

    def check(self) -> None:
        """Raise StorageError if the database's file was deleted or replaced."""
        if self._database is not None and self._identity() != self._file:
            raise StorageError(
                f"{self._store.location}: the file was deleted or replaced while it was in use"
            )

    def write(self, batch: Iterable[Measurement], session: Session) -> Path:
        """Append a batch to the file of its session, and return the path.

        The file is beside the database, else in the working directory, else in the folder for
        temporary files.

        Parameters
        ----------
        batch : iterable of Measurement
            Measurements; those whose workload is no module are left out, because the format
            cannot hold them.
        session : Session
            Session that the file is named after.

        Raises
        ------
        StorageError
            No folder can be written.
        """
        text = _lines(batch)
        name = f"{self._name()}.spool-{session.key[:8]}.json"
        beside = [] if self._database is None else [self._database.parent]
        reasons = []
        for folder in (*beside, Path.cwd(), Path(tempfile.gettempdir())):
            try:
                return _append(folder / name, text)
            except OSError as error:
                reasons.append(f"{folder}: {error.strerror}")
        raise StorageError(
            f"the last batch is lost; no location could store it ({'; '.join(reasons)})"
        )

    def _spooled(
        self, error: TuneDBError, batch: Sequence[Measurement], session: Session
    ) -> StorageError:
        """Write a batch that was not stored; return the error that names the file."""
        stored: list[Measurement] = []
        if self._database is not None and self._identity() != self._file:
            with suppress(TuneDBError):  # the deleted file may be unreadable
                stored = [record.measurement for record in self._store.runs.records(session)]
        known = {measurement.digest for measurement in stored}
        missing = [measurement for measurement in batch if measurement.digest not in known]
        try:
            path = self.write([*stored, *missing], session)
        except StorageError as other:
            return StorageError(f"{error}; {other}")
        return StorageError(f"{error}; the measurements are kept; run: tunedb import logs {path}")

    def _identity(self) -> tuple[int, int] | None:
        """Return device and inode of the database's file; None if it is missing."""
        if self._database is None:
            return None
        try:
            status = self._database.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _name(self) -> str:
        if self._database is not None:
            return self._database.name
        return (self._store.url.database or "tunedb").replace("/", "_").replace(":", "")


def _lines(batch: Iterable[Measurement]) -> bytes:
    """Return workloads and records as lines; numbers of workloads begin at 0."""
    index: dict[bytes, int] = {}
    workloads: list[bytes] = []
    records: list[bytes] = []
    for measurement in batch:
        workload = measurement.program.workload
        try:
            # Only the measurement is written.
            fields = record_fields(Record(0, 0, 0, measurement, Source("tuning"), None))
            if workload.digest not in index:
                workloads.append(workload_line(workload))
                index[workload.digest] = len(index)
        except FormatError:
            continue
        records.append(orjson.dumps([index[workload.digest], fields]) + b"\n")
    return b"".join(workloads + records)


def _append(path: Path, text: bytes) -> Path:
    """Append whole lines to a file, all or nothing."""
    # Unbuffered: a buffer would be written once more when the file is closed.
    with path.open("ab+", buffering=0) as file:
        before = file.tell()
        if before:
            file.seek(-1, os.SEEK_END)
            # A line that was cut off by a kill must not swallow the next one.
            if file.read(1) != b"\n":
                text = b"\n" + text
        rest = memoryview(text)
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            if before == 0:
                path.unlink()
            raise
    return path
