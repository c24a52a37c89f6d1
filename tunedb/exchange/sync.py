"""Pull and push: incremental exchanges with another database.

Progress is stored in table ``watermark`` of this database, in ids of the sending side. A watermark
is used only while that side still has the record that it names, under the same id, or states that
it has pruned it. A server restored from a backup is compared in full, which is cheap, because known
rows are looked up and not written. A push stores two positions, that of this database and that of
the server, so that a server that lost rows receives them again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .. import identity
from ..errors import UsageError
from ..storage.engine import canonical_location, parse_url, same_database, show_url, sqlite_path
from ..storage.exchange_types import EVERYTHING, Position, Selection
from ..storage.store import Store
from .database_peer import DatabasePeer
from .merge import MergeReport, merge

__all__ = ["pull", "push"]

#: Directions of watermarks: received rows; sent rows; rows of the server at that time.
_PULL, _PUSH, _RECEIVER = "pull", "push", "receiver"


def pull(
    store: Store,
    url: str | Path,
    *,
    selection: Selection = EVERYTHING,
    accept_trusted_names: bool = False,
    full: bool = False,
    dry_run: bool = False,
    on_progress: Callable[[MergeReport], object] | None = None,
) -> MergeReport:
    """Merge new records of another database.

    Parameters
    ----------
    store : Store
        Database to be written.
    url : str or Path
        A server or a file; read access is enough.
    selection : Selection
        Records to pull. Each selection has a watermark of its own. One with ``features`` has none
        and compares everything, because rows of old records may be added at any time.
    accept_trusted_names : bool
        As for :func:`tunedb.exchange.merge.merge`.
    full : bool
        Compare all records, not only those since the last pull.
    dry_run : bool
        Write nothing, and report the rows to merge.
    on_progress : callable or None
        As for :func:`tunedb.exchange.merge.merge`.

    Returns
    -------
    MergeReport

    Raises
    ------
    UsageError
        The other database is this one.
    UnreachableError
        The server does not answer. Batches already written stay, and the next pull continues there.
    TuneDBError
        As for :func:`tunedb.exchange.merge.merge`.
    """
    other = _other(store, url)
    with ExitStack() as stack:
        peer = stack.enter_context(DatabasePeer(other, check=False))
        key = _key(selection, accept_trusted_names=accept_trusted_names) + f" from {_place(other)}"
        until = peer.position()
        since = None
        if _is_incremental(selection) and not full:
            since = _if_valid(peer, store.exchange.watermark(_PULL, peer.store_key, key), until)
        if since is None and sqlite_path(other) is not None:
            # A foreign file that is read as a whole is checked for damage first.
            peer.close()
            peer = stack.enter_context(DatabasePeer(other))
        has_watermark = _is_incremental(selection) and not dry_run
        return merge(
            store,
            peer,
            selection=selection,
            since=since,
            until=until,
            accept_trusted_names=accept_trusted_names,
            dry_run=dry_run,
            watermark=(_PULL, peer.store_key, key) if has_watermark else None,
            on_progress=on_progress,
        )


def push(
    store: Store,
    url: str | Path,
    *,
    selection: Selection = EVERYTHING,
    full: bool = False,
    dry_run: bool = False,
    on_sent: Callable[[Position], object] | None = None,
    on_progress: Callable[[MergeReport], object] | None = None,
) -> MergeReport:
    """Send new records to another database.

    Sources of this database are accepted there, because writers of a database may write anything.
    Records of other databases are not, if their source is trusted there.

    Parameters
    ----------
    store : Store
        Database to send; a file or a server.
    url : str or Path
        The other database. It must exist: ``tunedb db init URL`` creates it.
    selection, full, dry_run, on_progress
        As for :func:`pull`.
    on_sent : callable or None
        Called with the progress before the first batch and after each.

    Returns
    -------
    MergeReport
        Report of the other side.

    Raises
    ------
    UsageError
        The other database is this one, or this one is in memory.
    UnreachableError
        The server does not answer. Batches already written stay, and the next push continues there.
    TuneDBError
        As for :func:`tunedb.exchange.merge.merge`.
    """
    other = _other(store, url)
    if store.url.database == ":memory:":
        raise UsageError("a database in memory cannot be pushed; give a file")
    with ExitStack() as stack:
        receiver = stack.enter_context(Store(other, create=False, read_only=dry_run))
        received = stack.enter_context(DatabasePeer(other, own=True))
        peer = stack.enter_context(DatabasePeer(store.url, own=True))
        if not dry_run:
            receiver.exchange.register(store.key)
        watermarks = _PushWatermarks(store, received, _key(selection))
        until = peer.position()
        since = None
        if _is_incremental(selection) and not full:
            since = _if_valid(peer, watermarks.read(), until)
        has_watermark = _is_incremental(selection) and not dry_run and not store.read_only

        def note(position: Position) -> None:
            if has_watermark and position != since:
                watermarks.write(position)
            if on_sent is not None:
                on_sent(position)

        if on_sent is not None:
            on_sent(since or Position())
        report = merge(
            receiver,
            peer,
            selection=selection,
            since=since,
            until=until,
            accept_trusted_names=frozenset({store.key}),
            dry_run=dry_run,
            on_committed=note,
            on_progress=on_progress,
        )
        # A report names the other side, which here is the receiver.
        report.location, report.store_key = receiver.location, receiver.key
        return report


class _PushWatermarks:
    """The two watermarks of a push, stored in the sending database."""

    def __init__(self, store: Store, receiver: DatabasePeer, key: str) -> None:
        self._store = store
        self._receiver = receiver
        self._key = key

    def read(self) -> Position | None:
        """Return the progress, or None if the receiver does not have these rows any more."""
        find = self._store.exchange.watermark
        received = find(_RECEIVER, self._receiver.store_key, self._key)
        if _if_valid(self._receiver, received, self._receiver.position()) is None:
            return None
        return find(_PUSH, self._receiver.store_key, self._key)

    def write(self, position: Position) -> None:
        """Store the progress, after the receiver has committed it."""
        # The receiver's position first: a push killed in between sends some rows again.
        for direction, reached in ((_RECEIVER, self._receiver.position()), (_PUSH, position)):
            self._store.exchange.set_watermark(
                direction, self._receiver.store_key, self._key, reached
            )


def _if_valid(peer: DatabasePeer, mark: Position | None, now: Position) -> Position | None:
    """Return a watermark if it still describes the database, else None."""
    if mark is None or (
        now.measurement_id < mark.measurement_id
        or now.failure_id < mark.failure_id
        or now.launch_id < mark.launch_id
        or now.retractions < mark.retractions
    ):
        return None
    if not mark.measurement_id:
        return mark
    digest = peer.digest_at(mark.measurement_id)
    if digest is None and mark.measurement_id <= peer.pruned_until():
        # A full comparison would bring back pruned records.
        return mark
    return mark if digest == mark.measurement_digest else None


def _is_incremental(selection: Selection) -> bool:
    """Return true if exchanged rows never change, so that a watermark is possible."""
    return not selection.features


def _key(selection: Selection, *, accept_trusted_names: bool = False) -> str:
    """Return the key of an exchange's watermarks; it differs if trusted names are accepted."""
    # Records rejected without the option must be compared again with it.
    return selection.key + (" believed" if accept_trusted_names else "")


def _place(url: Any) -> str:
    """Return a digest of a database's location."""
    # A copy has the key of the original, and may lack records below its last one; a foreign file
    # may state any key. Progress is therefore stored per location.
    return identity.digest("place", os.fsencode(canonical_location(url))).hex()


def _other(store: Store, url: str | Path) -> Any:
    """Return the parsed URL of the other side; UsageError if it is the store's own database."""
    other = parse_url(url)
    if same_database(store.url, other):
        raise UsageError(f"{show_url(other)}: this is the database itself; give the other one")
    return other
