"""Where measured batches go when the database does not take them.

Times that were measured cost more than the run that ends, so a batch that cannot be stored is
written to a file beside the database, which ``tunedb import logs`` reads: lines of MetaSchedule's
JSON files, workloads before the records that refer to them. Such lines have no place for sessions,
causes of failure and origins; these are lost.
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

#: What a database raises that cannot be written.
_FAILURES = (StorageError, BusyError, SchemaError)


class Spool:
    """Keeps what a store does not take.

    Parameters
    ----------
    store : Store
        The database; which file it is, is noted now.

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
        """Let a block store a batch, and keep the batch in a file where it cannot.

        Parameters
        ----------
        batch : sequence of Measurement
            What the block stores.
        session : Session
            Whose earlier records are kept too, where the database's file has gone: SQLite goes on
            writing to a file that was deleted, and all of it is lost when the process ends.

        Raises
        ------
        StorageError
            The batch could not be stored. The message names the file where it is.
        """
        try:
            self.check()
            yield
            self.check()
        except _FAILURES as error:
            raise self._kept(error, batch, session) from error

    def check(self) -> None:
        """Raise StorageError if the database's file was deleted or replaced."""
        if self._database is not None and self._identity() != self._file:
            raise StorageError(
                f"{self._store.location}: the file was deleted or replaced while it was in use"
            )

    def write(self, batch: Iterable[Measurement], session: Session) -> Path:
        """Write a batch to a file of its session, after what is there; return the file.

        Beside the database, else in the working directory, else in that for temporary files.

        Parameters
        ----------
        batch : iterable of Measurement
            Those whose workload is no module are left out: the file has no place for them.
        session : Session
            Names the file.

        Raises
        ------
        StorageError
            No place can be written.
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

    def _kept(
        self, error: TuneDBError, batch: Sequence[Measurement], session: Session
    ) -> StorageError:
        """Write a batch that was refused; return the error that says where it is."""
        stored: list[Measurement] = []
        if self._database is not None and self._identity() != self._file:
            with suppress(TuneDBError):  # what cannot be read any more
                stored = [one.measurement for one in self._store.runs.records(session)]
        known = {measurement.digest for measurement in stored}
        missing = [measurement for measurement in batch if measurement.digest not in known]
        try:
            path = self.write([*stored, *missing], session)
        except StorageError as other:
            return StorageError(f"{error}; {other}")
        return StorageError(f"{error}; the measurements are kept; run: tunedb import logs {path}")

    def _identity(self) -> tuple[int, int] | None:
        """Return device and number of the database's file, or None where it is not there."""
        if self._database is None:
            return None
        try:
            found = self._database.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

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
            # The other fields are not written.
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
        left = memoryview(text)
        try:
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            if before == 0:
                path.unlink()
            raise
    return path
