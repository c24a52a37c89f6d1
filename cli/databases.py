"""Other databases that a command reads beside the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from ..system import text
from .options import Settings

if TYPE_CHECKING:
    from ..storage.store import Store


@contextmanager
def open_other(settings: Settings, other: str) -> Iterator[Store]:
    """Open another database for reading: a file, a server, or a bundle.

    The records of a bundle go into a database that is deleted afterwards. They count as verified
    there, because otherwise no time of them would be shown or compared.
    """
    from .. import limits
    from ..exchange.bundle import BundlePeer
    from ..exchange.merge import merge
    from ..exchange.peers import open_peer
    from ..records import Trust
    from ..storage.store import Store
    from ..system.temporary import TemporaryFolder

    peer = open_peer(other)
    with closing(peer):
        if not isinstance(peer, BundlePeer):
            # As a layer (tunedb.exchange.peers.open_layer): bodies of strangers have a limit.
            limit = limits.MAX_FOREIGN_BYTES
            with Store(other, create=False, read_only=True, body_limit=limit) as store:
                yield store
            return
        with (
            closing(TemporaryFolder("bundle")) as folder,
            Store(folder.path / "bundle.db") as store,
        ):
            report = merge(store, peer)
            if report.rejected:
                settings.warn(f"{other}: {text.count(report.rejected, 'row')} rejected")
            for source in store.sources.summaries():
                if source.trust is Trust.FOREIGN:
                    store.trust.set(source.id, Trust.VERIFIED)
            yield store
