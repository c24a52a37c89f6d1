"""Pull and push: the exchange with another database that goes on where the last one ended.

How far an exchange has come is in table ``watermark`` of the database here, in numbers of the side
that gives. It is believed only while that side still has the record that it names, under the number
that it had, or says that it has pruned it: a server that was restored from a backup is compared
anew, which costs little, because rows that are known are looked up and not written. A push
remembers two positions, that of the database here and that of the server, so that a server which
lost what it had got gets it again.
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
from ..storage.exchanged import EVERYTHING, Position, Selection
from ..storage.store import Store
from .database import DatabasePeer
from .merge import MergeReport, merge

__all__ = ["pull", "push"]

#: What a watermark is of: what we were given; what we gave; what the server had then.
_PULL, _PUSH, _RECEIVER = "pull", "push", "receiver"


def pull(
    store: Store,
    url: str | Path,
    *,
    selection: Selection = EVERYTHING,
    believe: bool = False,
    anew: bool = False,
    dry_run: bool = False,
    on_progress: Callable[[MergeReport], object] | None = None,
) -> MergeReport:
    """Take over what is new in another database.

    Parameters
    ----------
    store : Store
        Where to.
    url : str or Path
        A server or a file; to read it is enough.
    selection : Selection
        Which records. Each selection has a watermark of its own; one with ``features`` has none
        and always compares everything, because rows of old records may come any time.
    believe : bool
        As for :func:`tunedb.exchange.merge.merge`.
    anew : bool
        Compare everything, not only what is new since the last time.
    dry_run : bool
        Write nothing, and say what would come.
    on_progress : callable or None
        As for :func:`tunedb.exchange.merge.merge`.

    Returns
    -------
    MergeReport
        What came.

    Raises
    ------
    UsageError
        It is this very database.
    UnreachableError
        The server does not answer, or went away; what came until then stays, and the next pull
        goes on from there.
    TuneDBError
        As :func:`tunedb.exchange.merge.merge`.
    """
    there = _other(store, url)
    with ExitStack() as stack:
        peer = stack.enter_context(DatabasePeer(there, check=False))
        key = _key(selection, believe=believe) + f" from {_place(there)}"
        until = peer.position()
        since = None
        if _is_lasting(selection) and not anew:
            since = _still_there(peer, store.exchange.watermark(_PULL, peer.store_key, key), until)
        if since is None and sqlite_path(there) is not None:
            # Somebody else's file, of which everything is read, is looked through for damage first.
            peer.close()
            peer = stack.enter_context(DatabasePeer(there))
        lasting = _is_lasting(selection) and not dry_run
        return merge(
            store,
            peer,
            selection=selection,
            since=since,
            until=until,
            believe=believe,
            dry_run=dry_run,
            watermark=(_PULL, peer.store_key, key) if lasting else None,
            on_progress=on_progress,
        )


def push(
    store: Store,
    url: str | Path,
    *,
    selection: Selection = EVERYTHING,
    anew: bool = False,
    dry_run: bool = False,
    on_given: Callable[[Position], object] | None = None,
    on_progress: Callable[[MergeReport], object] | None = None,
) -> MergeReport:
    """Give another database what is new here.

    Sources of this database are believed there, because who may write there may write anything;
    records that came here from others are not, where their source is trusted there.

    Parameters
    ----------
    store : Store
        What is given; a file or a server.
    url : str or Path
        Where to. It must be there: ``tunedb db init URL`` makes it.
    selection, anew, dry_run, on_progress
        As for :func:`pull`.
    on_given : callable or None
        Called with how far the other side has what is selected, before the first batch and after
        each.

    Returns
    -------
    MergeReport
        What the other side took.

    Raises
    ------
    UsageError
        It is this very database, or one in memory.
    UnreachableError
        The server does not answer, or went away; what it had taken until then stays, and the next
        push goes on from there.
    TuneDBError
        As :func:`tunedb.exchange.merge.merge`.
    """
    there = _other(store, url)
    if store.url.database == ":memory:":
        raise UsageError("a database in memory cannot be pushed; give a file")
    with ExitStack() as stack:
        receiver = stack.enter_context(Store(there, create=False, read_only=dry_run))
        judge = stack.enter_context(DatabasePeer(there, own=True))
        peer = stack.enter_context(DatabasePeer(store.url, own=True))
        if not dry_run:
            receiver.exchange.register(store.key)
        marks = _Marks(store, judge, _key(selection))
        until = peer.position()
        since = None
        if _is_lasting(selection) and not anew:
            since = _still_there(peer, marks.given(), until)
        lasting = _is_lasting(selection) and not dry_run and not store.read_only

        def note(position: Position) -> None:
            if lasting and position != since:
                marks.note(position)
            if on_given is not None:
                on_given(position)

        if on_given is not None:
            on_given(since or Position())
        report = merge(
            receiver,
            peer,
            selection=selection,
            since=since,
            until=until,
            believe=frozenset({store.key}),
            dry_run=dry_run,
            on_committed=note,
            on_progress=on_progress,
        )
        # The other side is what a report names, and here that is the one that took.
        report.location, report.store_key = receiver.location, receiver.key
        return report


class _Marks:
    """The two watermarks of a push, in the database that gives.

    Parameters
    ----------
    store : Store
        The database that gives.
    there : DatabasePeer
        The one that takes.
    key : str
        What is exchanged.
    """

    def __init__(self, store: Store, there: DatabasePeer, key: str) -> None:
        self._store = store
        self._there = there
        self._key = key

    def given(self) -> Position | None:
        """Return how far we have given, or None where the other side does not have it any more."""
        find = self._store.exchange.watermark
        received = find(_RECEIVER, self._there.store_key, self._key)
        if _still_there(self._there, received, self._there.position()) is None:
            return None
        return find(_PUSH, self._there.store_key, self._key)

    def note(self, position: Position) -> None:
        """Keep how far we have given, after the other side has committed it."""
        # The other side's position first: a push that is killed in between gives some rows again.
        for direction, reached in ((_RECEIVER, self._there.position()), (_PUSH, position)):
            self._store.exchange.set_watermark(direction, self._there.store_key, self._key, reached)


def _still_there(peer: DatabasePeer, mark: Position | None, now: Position) -> Position | None:
    """Return a watermark that still says something of a database, or None."""
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
        # To compare everything would bring back what was pruned.
        return mark
    return mark if digest == mark.measurement_digest else None


def _is_lasting(selection: Selection) -> bool:
    """Tell whether nothing more comes of what was looked at once."""
    return not selection.features


def _key(selection: Selection, *, believe: bool = False) -> str:
    """Return under which words watermarks of an exchange stand.

    Records that were refused for want of ``--accept-trusted-names`` must be looked at again.
    """
    return selection.key + (" believed" if believe else "")


def _place(url: Any) -> str:
    """Return a short word for where a database is, whoever asks.

    A copy has the key of the original, and may have lost records that are below its last one: what
    was read there says nothing of the original. Nor does what somebody else's file says it is.
    """
    return identity.digest("place", os.fsencode(canonical_location(url))).hex()


def _other(store: Store, url: str | Path) -> Any:
    """Return the parsed URL of the other side.

    Raises
    ------
    UsageError
        It is the database of the store.
    """
    there = parse_url(url)
    if same_database(store.url, there):
        raise UsageError(f"{show_url(there)}: this is the database itself; give the other one")
    return there
