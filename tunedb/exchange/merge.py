"""Merges: the verified union of two databases.

A database is a set of rows that are identified by digests, so a merge is a set union: repeating it
adds nothing, and the order of merges does not matter. :mod:`tunedb.exchange.verify` checks every
row from outside before it is written, and local rows change only in derived columns.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from .. import limits
from ..errors import UsageError
from ..storage.engine import parse_url, same_database
from ..storage.exchange_types import (
    EVERYTHING,
    AcceptedNames,
    Chunk,
    MergeBatch,
    MergeResult,
    Peer,
    Position,
    Selection,
)
from ..storage.store import Store
from ..system.gc_pause import paused_gc
from .merge_report import MergeReport, RejectionCount, SourceTally
from .receive import Receiver

__all__ = ["MergeReport", "RejectionCount", "SourceTally", "merge"]


def merge(
    store: Store,
    peer: Peer,
    *,
    selection: Selection = EVERYTHING,
    since: Position | None = None,
    until: Position | None = None,
    accept_trusted_names: AcceptedNames = False,
    dry_run: bool = False,
    watermark: tuple[str, str, str] | None = None,
    on_committed: Callable[[Position], object] | None = None,
    on_progress: Callable[[MergeReport], object] | None = None,
) -> MergeReport:
    """Merge the records of another database.

    Each batch is one transaction, and rows are identified by digests: an interrupted merge that is
    repeated ends as an uninterrupted one.

    Parameters
    ----------
    store : Store
        Database to be written.
    peer : Peer
        The other database.
    selection : Selection
        Records to merge.
    since, until : Position or None
        Only records after and up to these positions of the other database.
    accept_trusted_names : bool or set of str
        Accept new records and retractions in the name of sources and databases that are trusted
        here: from anybody, or from the databases with these keys
        (:func:`tunedb.storage.exchange_types.is_rejected`).
    dry_run : bool
        Compare and write nothing.
    watermark : tuple of str or None
        Direction, key of the other database and key of the selection, under which each batch stores
        the progress (:meth:`tunedb.storage.exchange.Exchange.watermark`).
    on_committed : callable or None
        Called with the progress after each batch.
    on_progress : callable or None
        Called with the report from time to time. An exception that it raises ends the merge;
        batches already written stay.

    Returns
    -------
    MergeReport

    Raises
    ------
    UsageError
        The other database is this one.
    FormatError, LimitError, IntegrityError, NotFoundError
        The other database or bundle cannot be read, or lacks what is selected.
    StorageError
        One of the two cannot be read or written.
    """
    if peer.store_key == store.key and same_database(store.url, parse_url(peer.location)):
        raise UsageError(f"{peer.location}: this is the database itself; give another one")
    report = MergeReport(peer.location, peer.store_key, dry_run, total=peer.total)
    started = time.monotonic()
    receiver = Receiver(store, report, accept_trusted_names)
    writer = _BatchWriter(store, receiver, report, since or Position(), watermark, on_committed)

    def report_progress() -> None:
        report.seconds = time.monotonic() - started
        report.total = peer.total
        if on_progress is not None:
            on_progress(report)

    try:
        with paused_gc():
            for chunk in peer.chunks(selection, since, until):
                writer.take(chunk)
                if chunk.table == "measurement":
                    report_progress()
            writer.finish(until)
    finally:
        receiver.close()
        report.seconds = time.monotonic() - started
    report_progress()
    return report


class _BatchWriter:
    """Writes received rows, in batches that end where a watermark may stand."""

    def __init__(
        self,
        store: Store,
        receiver: Receiver,
        report: MergeReport,
        since: Position,
        watermark: tuple[str, str, str] | None,
        on_committed: Callable[[Position], object] | None,
    ) -> None:
        self._store = store
        self._receiver = receiver
        self._report = report
        self._since = since
        self._watermark = watermark
        self._on_committed = on_committed

    def take(self, chunk: Chunk) -> None:
        """Receive a chunk, writing earlier rows if there are enough."""
        receiver = self._receiver
        if chunk.table != "measurement":
            receiver.take(chunk)
            if receiver.bytes >= limits.IMPORT_BYTES:
                self.flush(self._reached())
            return
        # Only here, so that failures and launches are written with their records.
        if receiver.rows >= limits.IMPORT_ROWS:
            self.flush(self._reached())
        for _ in receiver.measurements(chunk.rows):
            # After each row: twenty thousand of them may have sixteen megabytes each.
            if receiver.bytes >= limits.IMPORT_BYTES:
                self.flush(self._reached())

    def _reached(self) -> Position:
        """Return the position up to which all measurements were read; statements follow theirs."""
        since, receiver = self._since, self._receiver
        if receiver.last is None or receiver.last[0] <= since.measurement_id:
            return since
        number, digest = receiver.last
        return Position(number, since.failure_id, digest, since.retractions, since.launch_id)

    def finish(self, until: Position | None) -> None:
        """Write the remaining rows, after the other side has sent all."""
        reached = self._reached() if until is None else until
        self.flush(reached)
        for batch in self._receiver.features():
            self._write(batch, reached)

    def flush(self, reached: Position) -> None:
        """Write the collected rows except features, in one transaction."""
        self._write(self._receiver.batch(), reached)

    def _write(self, batch: MergeBatch, reached: Position) -> None:
        has_progress = self._watermark is not None and reached != self._since
        if self._report.dry_run:
            result = self._receiver.expected_result(batch)
        elif batch.is_empty and not has_progress:
            result = MergeResult()
        else:
            mark = None
            if self._watermark is not None:
                mark = (*self._watermark, reached)
            result = self._store.exchange.merge(batch, watermark=mark)
        self._receiver.record_result(batch, result)
        if self._on_committed is not None and not self._report.dry_run:
            self._on_committed(reached)
        gc.collect(0)
