"""Sessions: runs on one machine in which measurements were made."""

from __future__ import annotations

from sqlalchemy import select

from .. import identity
from ..records import Session
from . import schema
from .database import Database
from .loader import Loader
from .retry import retried
from .rows import Rows

_t = schema.session.c


class Sessions:
    """``store.sessions``: adds and finds sessions."""

    def __init__(self, db: Database, loader: Loader, rows: Rows) -> None:
        self._db = db
        self._loader = loader
        self._rows = rows

    def __repr__(self) -> str:
        return f"<sessions of {self._db.location}>"

    @retried
    def add(self, session: Session) -> None:
        """Add a session that has no measurements (yet)."""
        with self._db.transaction() as connection:
            self._rows.session(connection, session)

    def get(self, id_: int) -> Session:
        """Return a session by its id.

        Raises
        ------
        NotFoundError
            There is none.
        """
        return self._loader.session(id_)

    def find(self, text: str) -> list[int]:
        """Return the ids of sessions that a text means: a key, an id, or a digest from its start.

        Parameters
        ----------
        text : str
            A key, an id, or at least four hexadecimal digits.
        """
        if found := [row.id for row in self._db.select(select(_t.id).where(_t.key == text))]:
            return found
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
        if found := [row.id for row in self._db.select(select(_t.id).where(_t.id == number))]:
            return found
        digits = 2 * identity.DIGEST_BYTES
        if not 4 <= len(text) <= digits or not set(text.lower()) <= set("0123456789abcdef"):
            return []
        low, high = (bytes.fromhex(text.ljust(digits, filler)) for filler in "0f")
        chosen = select(_t.id).where(_t.digest.between(low, high)).order_by(_t.id)
        return [row.id for row in self._db.select(chosen)]
