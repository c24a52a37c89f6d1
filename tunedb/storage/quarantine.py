"""Quarantine: bytes that could not be understood."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select

from ..records import Quarantined, Source
from ..results import QuarantineRow
from . import schema, statements
from .batches import Batches
from .database import Database
from .loader import Loader


class Quarantine:
    """``store.quarantine``: keeps and gives back bytes that could not be understood."""

    def __init__(self, db: Database, loader: Loader, batches: Batches) -> None:
        self._db = db
        self._loader = loader
        self._batches = batches

    def __repr__(self) -> str:
        return f"<quarantine of {self._db.location}>"

    def add(self, rows: Iterable[Quarantined], source: Source) -> int:
        """Keep bytes that could not be understood; return how many were new."""
        with self._db.transaction() as connection:
            return self._batches.insert_quarantined(connection, rows, source)

    def release(self, ids: Iterable[int]) -> None:
        """Take rows out of quarantine, because their bytes were understood meanwhile."""
        with self._db.transaction() as connection:
            statements.release.many(connection, [{"quarantined": id_} for id_ in ids])

    def rows(
        self, limit: int | None = None, ids: Sequence[int] | None = None
    ) -> list[QuarantineRow]:
        """Return what could not be understood, newest first.

        Parameters
        ----------
        limit : int or None
            How many at most.
        ids : sequence of int or None
            Only these rows.
        """
        q = schema.quarantine.c
        statement = select(schema.quarantine).order_by(q.id.desc()).limit(limit)
        if ids is not None:
            statement = statement.where(q.id.in_(ids))
        return [
            QuarantineRow(
                row.id,
                self._loader.source(row.source_id),
                row.created_at,
                Quarantined(row.file, row.line, row.reason, bytes(row.data)),
            )
            for row in self._db.select(statement)
        ]

    def ids(self, file: str | None = None) -> list[int]:
        """Return the ids of what could not be understood, oldest first; of one file, or all."""
        q = schema.quarantine.c
        statement = select(q.id).order_by(q.id)
        if file is not None:
            statement = statement.where(q.file == file)
        return [row.id for row in self._db.select(statement)]
