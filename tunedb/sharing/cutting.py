"""Rows into chunks that are bounded in rows and bytes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

from .. import limits
from ..errors import StorageError
from .wire import Chunk

Row = tuple[Any, ...]

_SIZED = (bytes, str)


def _size(row: Row) -> int:
    """Return the bytes and characters of a row's long values."""
    return sum([len(value) for value in row if value.__class__ in _SIZED])


def cut(table: str, rows: Iterable[Row]) -> Iterator[Chunk]:
    """Yield rows in chunks that are bounded in rows and bytes."""
    part: list[Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += _size(row)
        if len(part) == limits.BATCH_ROWS or size > limits.CHUNK_BYTES:
            yield Chunk(table, part)
            part, size = [], 0
    if part:
        yield Chunk(table, part)


def taken(page: Generator[Row], after: int, where: str) -> tuple[list[Row], bool]:
    """Return the rows of a page that fit into a chunk, and whether some did not.

    Parameters
    ----------
    page : generator of tuple
        Rows in order of their numbers, which come first; it is closed.
    after : int
        Below all of them.
    where : str
        The database, for messages.

    Raises
    ------
    StorageError
        They are not in order: a damaged file could be read for ever.
    """
    rows: list[Row] = []
    size = 0
    with closing(page):
        for row in page:
            number = row[0]
            if number.__class__ is not int or number <= after:
                raise StorageError(f"{where}: damaged: its rows are out of order")
            after = number
            rows.append(row)
            size += _size(row)
            if size > limits.CHUNK_BYTES:
                return rows, True
    return rows, False
