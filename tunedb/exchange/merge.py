"""Taking over what another database has: the validated union of rows.

A database is a set of rows that are known by their digests, so a merge is a union: doing it twice
adds nothing, and the order of merges does not matter. Nothing that comes is believed before
:mod:`tunedb.exchange.verify` has looked at it, and local rows never change but for what is derived.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from .. import limits
from ..errors import UsageError
from ..storage.engine import parse_url, same_database
from ..storage.exchanged import (
    EVERYTHING,
    Believe,
    Chunk,
    Incoming,
    Merged,
    Peer,
    Position,
    Selection,
)
from ..storage.store import Store
from ..system.gc_pause import collecting_less
from .merge_report import MergeReport, Reason, SourceTally
from .receive import Receiver

__all__ = ["MergeReport", "Reason", "SourceTally", "merge"]


def merge(
    store: Store,
    peer: Peer,
    *,
    selection: Selection = EVERYTHING,
    since: Position | None = None,
    until: Position | None = None,
    believe: Believe = False,
    dry_run: bool = False,
    watermark: tuple[str, str, str] | None = None,
    on_committed: Callable[[Position], object] | None = None,
    on_progress: Callable[[MergeReport], object] | None = None,
) -> MergeReport:
    """Take over the records of another database.

    Each batch is one transaction, and rows are known by their digests: a merge that is killed and
    made again ends as one that was not.

    Parameters
    ----------
    store : Store
        Where to.
    peer : Peer
        The other database.
    selection : Selection
        Which of its records.
    since, until : Position or None
        Only records after and up to there, in the numbers of the other database.
    believe : bool or set of str
        Whether to take new records and retractions in the name of sources and databases that are
        trusted here, from anybody or from the databases with these keys
        (:func:`tunedb.storage.exchanged.refuses`).
    dry_run : bool
        Compare and write nothing.
    watermark : tuple of str or None
        Direction, key of the other database and key of the selection, under which each batch
        writes how far it came (:meth:`tunedb.storage.exchange.Exchange.watermark`).
    on_committed : callable or None
        Told after each batch how far it came.
    on_progress : callable or None
        Told now and then what there is so far. What it raises ends the merge; what was written
        stays.

    Returns
    -------
    MergeReport

    Raises
    ------
    UsageError
        It is the database itself.
    FormatError, LimitError, IntegrityError, NotFoundError
        The other database or bundle cannot be read on, or has not what is selected.
    StorageError
        One of the two cannot be read or written.
    """
    if peer.store_key == store.key and same_database(store.url, parse_url(peer.location)):
        raise UsageError(f"{peer.location}: this is the database itself; give another one")
    report = MergeReport(peer.location, peer.store_key, dry_run, total=peer.total)
    started = time.monotonic()
    receiver = Receiver(store, report, believe)
    writer = _Writer(store, receiver, report, since or Position(), watermark, on_committed)

    def tell() -> None:
        report.seconds = time.monotonic() - started
        report.total = peer.total
        if on_progress is not None:
            on_progress(report)

    try:
        with collecting_less():
            for chunk in peer.chunks(selection, since, until):
                writer.take(chunk)
                if chunk.table == "measurement":
                    tell()
            writer.finish(until)
    finally:
        receiver.close()
        report.seconds = time.monotonic() - started
    tell()
    return report


class _Writer:
    """Writes what was received, in batches that end where a watermark may stand."""

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
        """Take a chunk, and write what came before where that is enough."""
        receiver = self._receiver
        if chunk.table != "measurement":
            receiver.take(chunk)
            if receiver.bytes >= limits.IMPORT_BYTES:
                self.flush(self._reached())
            return
        # Here, so that failures and launches are written with their records.
        if receiver.rows >= limits.IMPORT_ROWS:
            self.flush(self._reached())
        for _ in receiver.measurements(chunk.rows):
            # After each row: twenty thousand new ones may have sixteen megabytes each.
            if receiver.bytes >= limits.IMPORT_BYTES:
                self.flush(self._reached())

    def _reached(self) -> Position:
        """Return how far all measurements were looked at; what is learnt comes with the next."""
        since, receiver = self._since, self._receiver
        if receiver.last is None or receiver.last[0] <= since.measurement_id:
            return since
        number, digest = receiver.last
        return Position(number, since.failure_id, digest, since.retractions, since.launch_id)

    def finish(self, until: Position | None) -> None:
        """Write the rest; all that the other side had was looked at."""
        reached = self._reached() if until is None else until
        self.flush(reached)
        for incoming in self._receiver.features():
            self._write(incoming, reached)

    def flush(self, reached: Position) -> None:
        """Write what there is in one transaction, but for features."""
        self._write(self._receiver.incoming(), reached)

    def _write(self, incoming: Incoming, reached: Position) -> None:
        moves = self._watermark is not None and reached != self._since
        if self._report.dry_run:
            merged = self._receiver.foreseen(incoming)
        elif incoming.is_empty and not moves:
            merged = Merged()
        else:
            mark = None
            if self._watermark is not None:
                mark = (*self._watermark, reached)
            merged = self._store.exchange.merge(incoming, watermark=mark)
        self._receiver.written(incoming, merged)
        if self._on_committed is not None and not self._report.dry_run:
            self._on_committed(reached)
        gc.collect(0)
