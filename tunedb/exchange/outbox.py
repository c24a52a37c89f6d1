"""What was measured here, delivered to a server in the background, whenever that is there.

The file is the outbox: what waits is what it holds beyond the watermark of the last push. So
nothing is lost when the process dies, and ``tunedb push`` delivers the rest.
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
from ..storage.exchanged import Position
from ..storage.store import Store
from .merge import MergeReport
from .sync import push

__all__ = ["Delivery", "Outbox"]

_log = logging.getLogger("tunedb")


@dataclass(frozen=True, slots=True)
class Delivery:
    """How far the records of a database are delivered.

    Parameters
    ----------
    server : str
        Where to, without a password.
    delivered : int
        Measurements that the server has got from this outbox and did not know.
    waiting : int
        Measurements of the database that the server was not given yet: all of them where it was
        not reached, because only it says which database it is.
    error : str or None
        Why the last attempt failed; None after one that did not.
    """

    server: str
    delivered: int = 0
    waiting: int = 0
    error: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the server has everything."""
        return not self.waiting


class _StoppedError(Exception):
    """Ends a push between two batches."""


class Outbox:
    """Pushes what is new in a database, on a thread of its own.

    The thread never raises into the program and holds the store only while it notes how far it
    has come. It does not keep the process alive.

    Parameters
    ----------
    store : Store
        A file, or a server; not one in memory. It must stay open until :meth:`close` has returned.
    url : str or Path
        Where to.

    Raises
    ------
    UsageError
        A database in memory, or an unreadable URL.

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
        self._announced = self._done = self._given = 0
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="tunedb-outbox", daemon=True)

    @property
    def state(self) -> Delivery:
        """How far it is. What waits is counted in the database."""
        with self._changed:
            state, given = self._state, self._given
        return replace(state, waiting=self._store.exchange.size_after(given))

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
        """Begin to deliver, first what earlier runs have left."""
        self.notify()
        self._thread.start()

    def notify(self) -> None:
        """Say that the database has something new; returns at once."""
        with self._changed:
            self._announced += 1
            self._changed.notify()

    def close(self, timeout: float = limits.OUTBOX_CLOSE_S) -> Delivery:
        """Try once more where something is left, and end. Closing twice is fine.

        Parameters
        ----------
        timeout : float
            Seconds that it may take.
        """
        with self._changed:
            self._deadline = time.monotonic() + timeout
            self._changed.notify()
        if self._thread.is_alive():
            # One batch longer than it may take: what is cut off in the middle is given again.
            self._thread.join(timeout + 1)
        return self.state

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        wait: float = limits.FIRST_WAIT_S
        while True:
            is_last, aim = self._next(wait)
            if aim == self._done or self._deliver(aim):
                wait = limits.FIRST_WAIT_S
            else:
                wait = min(2 * wait, limits.OUTBOX_WAIT_S)
            if is_last:
                return

    def _next(self, wait: float) -> tuple[bool, int]:
        """Wait until there is something to do; return whether it is the last, and up to where."""
        with self._changed:
            if self._state.error is not None:
                # Word of new records is no reason to ask a server sooner that is away.
                self._changed.wait_for(lambda: self._deadline is not None, wait)
            else:
                self._changed.wait_for(
                    lambda: self._deadline is not None or self._announced > self._done
                )
            return self._deadline is not None, self._announced

    def _note(self, position: Position) -> None:
        with self._changed:
            self._given = position.measurement_id

    def _deliver(self, aim: int) -> bool:
        """Push once; return whether all went well."""
        delivered, error = 0, None

        def count(report: MergeReport) -> None:
            nonlocal delivered
            delivered = report.new
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise _StoppedError

        try:
            report = push(self._store, self._url, on_given=self._note, on_progress=count)
            delivered = report.new
        except _StoppedError:
            error = "the run ended before everything was delivered"
        except TuneDBError as failed:
            error = str(failed)
        except Exception as failed:  # a bug of ours must not end a tuning run
            error = f"{type(failed).__name__}: {failed}"
        if error is not None:
            _log.info("%s: not delivered yet: %s", self._state.server, error)
        with self._changed:
            if error is None:
                self._done = aim
            self._state = replace(
                self._state, delivered=self._state.delivered + delivered, error=error
            )
        return error is None
