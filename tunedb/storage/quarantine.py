"""Quarantine: unreadable bytes, kept with the reason."""

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
    """``store.quarantine``: keeps and returns unreadable bytes."""

    def __init__(self, db: Database, loader: Loader, batches: Batches) -> None:
        self._db = db
        self._loader = loader
        self._batches = batches

    def __repr__(self) -> str:
        return f"<quarantine of {self._db.location}>"

    def add(self, rows: Iterable[Quarantined], source: Source) -> int:
        """Keep unreadable bytes.

        Parameters
        ----------
        rows : iterable of Quarantined
            Bytes with their file, line and reason.
        source : Source
            Origin of the bytes.

        Returns
        -------
        int
            Number of rows that were not stored before.
        """
        with self._db.transaction() as connection:
            return self._batches.insert_quarantined(connection, rows, source)

    def release(self, ids: Iterable[int]) -> None:
        """Remove rows from quarantine, because their bytes can be read now.

        Parameters
        ----------
        ids : iterable of int
            Ids of the rows.
        """
        with self._db.transaction() as connection:
            statements.release_quarantined.many(connection, [{"quarantined": id_} for id_ in ids])

    def rows(
        self, limit: int | None = None, ids: Sequence[int] | None = None
    ) -> list[QuarantineRow]:
        """Return the rows in quarantine, newest first.

        Parameters
        ----------
        limit : int or None
            Maximum number of rows.
        ids : sequence of int or None
            Only these rows.

        Returns
        -------
        list of QuarantineRow
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
        """Return the ids of the rows in quarantine, oldest first.

        Parameters
        ----------
        file : str or None
            Only rows of this file.

        Returns
        -------
        list of int
        """
        q = schema.quarantine.c
        statement = select(q.id).order_by(q.id)
        if file is not None:
            statement = statement.where(q.file == file)
        return [row.id for row in self._db.select(statement)]
