"""The only reader with SQL.

Every method is one statement, so it sees one snapshot, or says that it is made of several.
"""

from __future__ import annotations

from .exchange import Sharing
from .foreign_words import Words
from .measured import KnownPrograms
from .neighbours import Neighbours
from .sources import Sources
from .space import Space

__all__ = ["Query"]


class Query(Neighbours, KnownPrograms, Sources, Space, Words, Sharing):
    """Reads of one database. Made by :class:`tunedb.storage.store.Store` as its ``query``."""
