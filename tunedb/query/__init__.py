"""The only reader with SQL.

Every method is one statement, so it sees one snapshot, or says that it is made of several.
"""

from __future__ import annotations

from .known import KnownPrograms
from .neighbours import Neighbours
from .sharing import Sharing
from .sources import Sources
from .space import Space
from .words import Words

__all__ = ["Query"]


class Query(Neighbours, KnownPrograms, Sources, Space, Words, Sharing):
    """Reads of one database. Made by :class:`tunedb.store.Store` as its ``query``."""
