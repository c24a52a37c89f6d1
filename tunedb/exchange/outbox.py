"""Outbox: background push of new records to a server, whenever it is reachable.

The database itself is the outbox: records beyond the watermark of the last push are waiting. A
killed process loses nothing, and ``tunedb push`` sends the rest.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from .. import limits
from ..errors import TuneDBError, UsageError
from ..storage.engine import parse_url, show_url
from ..storage.exchange_types import Position
from ..storage.store import Store
from .merge import MergeReport
from .sync import push

__all__ = ["Delivery", "Outbox"]

_log = logging.getLogger("tunedb")


@dataclass(frozen=True, slots=True)
class Delivery:
    """Progress of a delivery.

    Parameters
    ----------
    server : str
        The server, without a password.
    delivered : int
        Number of measurements that were new to the server.
    waiting : int
        Number of measurements not sent yet; all of them if the server was never reached, because
        only it can tell its store key.
    error : str or None
        Error of the last attempt; None after a successful one.
    """

    server: str
    delivered: int = 0
    waiting: int = 0
    error: str | None = None

    @property
    def is_complete(self) -> bool:
        """True if nothing is waiting."""
        return not self.waiting


class _StoppedError(Exception):
    """Ends a push between two batches."""


class Outbox:
    """Pushes new records of a database on a thread of its own.

    The thread never raises into the program, holds the store only while it stores its progress, and
    does not keep the process alive.

    Parameters
    ----------
    store : Store
        A file or a server, not one in memory. It must stay open until :meth:`close` has returned.
    url : str or Path
        The receiver.

    Raises
    ------
    UsageError
        The database is in memory, or the URL is malformed.

    Examples
    --------
    >>> with Outbox(store, "postgresql://tuner@db/tunedb") as outbox:
    ...     store.batches.add(measurements, source)
    ...     outbox.notify()
    >>> outbox.state.is_complete
    True
    """

    def __init__(self, store: Store, url: str | Path) -> None:
        if store.url.database == ":memory:":
            raise UsageError("a database in memory has no outbox; give a file")
        self._store = store
        self._url = url
        self._state = Delivery(show_url(parse_url(url)))
        self._changed = threading.Condition()
        self._announced = self._done = self._sent_until = 0
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="tunedb-outbox", daemon=True)

    @property
    def state(self) -> Delivery:
        """The progress; waiting records are counted in the database."""
        with self._changed:
            state, sent_until = self._state, self._sent_until
        return replace(state, waiting=self._store.exchange.size_after(sent_until))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start delivering, beginning with records that earlier runs left."""
        self.notify()
        self._thread.start()

    def notify(self) -> None:
        """Announce new records; returns at once."""
        with self._changed:
            self._announced += 1
            self._changed.notify()

    def close(self, timeout: float = limits.OUTBOX_CLOSE_S) -> Delivery:
        """Make a last attempt if anything is waiting, and stop; closing twice does nothing.

        Parameters
        ----------
        timeout : float
            Maximum duration in seconds.
        """
        with self._changed:
            self._deadline = time.monotonic() + timeout
            self._changed.notify()
        if self._thread.is_alive():
            # One second more for the current batch; a batch that is cut off is sent again.
            self._thread.join(timeout + 1)
        return self.state

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        wait: float = limits.FIRST_WAIT_S
        while True:
            is_last, announced = self._wait(wait)
            if announced == self._done or self._deliver(announced):
                wait = limits.FIRST_WAIT_S
            else:
                wait = min(2 * wait, limits.OUTBOX_WAIT_S)
            if is_last:
                return

    def _wait(self, wait: float) -> tuple[bool, int]:
        """Wait for work; return true if it is the last, and the number of announcements."""
        with self._changed:
            if self._state.error is not None:
                # New records do not shorten the wait for an unreachable server.
                self._changed.wait_for(lambda: self._deadline is not None, wait)
            else:
                self._changed.wait_for(
                    lambda: self._deadline is not None or self._announced > self._done
                )
            return self._deadline is not None, self._announced

    def _note(self, position: Position) -> None:
        with self._changed:
            self._sent_until = position.measurement_id

    def _deliver(self, announced: int) -> bool:
        """Push once; return true on success."""
        delivered, error = 0, None

        def count(report: MergeReport) -> None:
            nonlocal delivered
            delivered = report.new
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise _StoppedError

        try:
            report = push(self._store, self._url, on_sent=self._note, on_progress=count)
            delivered = report.new
        except _StoppedError:
            error = "the run ended before everything was delivered"
        except TuneDBError as failure:
            error = str(failure)
        except Exception as failure:  # a bug of ours must not end a tuning run
            error = f"{type(failure).__name__}: {failure}"
        if error is not None:
            _log.info("%s: not delivered yet: %s", self._state.server, error)
        with self._changed:
            if error is None:
                self._done = announced
            self._state = replace(
                self._state, delivered=self._state.delivered + delivered, error=error
            )
        return error is None
