"""Synchronisation with a team's server: a pull before the run, pushes during it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ....errors import BusyError, UnreachableError
from ....exchange.outbox import Outbox
from ....exchange.sync import pull
from ....storage.store import Store
from .progress import Progress

__all__ = ["notify_outbox", "start_outbox"]

_log = logging.getLogger("tunedb")


def start_outbox(store: Store, server: str | Path, stack: ExitStack) -> Outbox:
    """Pull new records of a server, and push measured ones to it until the stack ends.

    Parameters
    ----------
    store : Store
        Database of the run, which is the cache and outbox.
    server : str or Path
        URL or path of the server. An unreachable server gets the records later.
    stack : ExitStack
        Stack that ends the outbox.

    Raises
    ------
    UsageError
        The server is the database of the run, or that is in memory.
    TuneDBError
        A reachable server cannot be used, e.g. because of its schema or a missing right.
    """
    outbox = Outbox(store, server)
    try:
        report = pull(store, server)
    except (UnreachableError, BusyError) as error:
        _log.warning("%s; the run continues without it and pushes later", error)
    else:
        _log.info("%s: %d new records", outbox.state.server, report.new)
    outbox.start()
    stack.callback(outbox.close)
    return outbox


def notify_outbox(
    outbox: Outbox, on_progress: Callable[[Progress], object] | None
) -> Callable[[Progress], object]:
    """Return a progress callback that announces the records of each batch to the outbox."""

    def notify(progress: Progress) -> None:
        outbox.notify()
        if on_progress is not None:
            on_progress(progress)

    return notify
