"""A team's server beside the database of a run: taken from at its begin, given to while it goes."""

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
    """Pull what is new on a server, and deliver to it what is measured until the stack ends.

    Parameters
    ----------
    store : Store
        The database of the run: cache of what the server has, and outbox.
    server : str or Path
        Where to. One that is away now gets everything when it is back.
    stack : ExitStack
        Ends the deliveries.

    Raises
    ------
    UsageError
        It is this very database, or that is in memory.
    TuneDBError
        The server answers and cannot be used: another schema, a missing right.
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
    """Return what a run calls after each batch, which the outbox then delivers."""

    def tell(progress: Progress) -> None:
        outbox.notify()
        if on_progress is not None:
            on_progress(progress)

    return tell
