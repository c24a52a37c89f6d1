"""The SQLite layout of mshr-h's ``metaschedule_sqlitedatabase``.

``workload(shash text, mod text)``
    A row per workload; a record's ``workload_index`` is the workload's position by ``rowid``,
    from 0. ``mod`` is the base64 of TVM's graph (:mod:`tunedb.programs.workload_info.graphs`).
``tuning_record(workload_index int, trace text, run_secs text, target text, args_info text)``
    The fields as JSON texts; ``None`` stands for null.

The tool writes two files, ``database_workload.sqlite`` and ``database_tuning_record.sqlite``; one
file may also hold both tables.

The file is foreign: the reader opens it read-only and immutable, reads only plain tables, and
rejects rows longer than :data:`tunedb.limits.MAX_LINE_BYTES`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from .. import limits
from ..errors import FormatError
from ..json_checks import INT64, parse_json
from ..records import Quarantined
from ..storage import schema
from .base import Item, LogFile
from .metaschedule import RecordParser, companion_of

MAGIC = b"SQLite format 3\0"

#: Exceptions of damaged files. Python decodes SQLite's messages, which quote the file; lengths in
#: the file may exceed the memory.
_ERRORS = (sqlite3.Error, UnicodeDecodeError, MemoryError)


class _SqliteTable(NamedTuple):
    """A table of the layout and the statements that read it."""

    name: str
    columns: tuple[str, ...]
    layout: str
    following: str
    row: str


_WORKLOAD = _SqliteTable(
    "workload",
    ("shash", "mod"),
    "PRAGMA table_xinfo(workload)",
    "SELECT min(rowid) FROM workload WHERE rowid >= ?",
    "SELECT shash, mod FROM workload WHERE rowid = ?",
)

_RECORD = _SqliteTable(
    "tuning_record",
    ("workload_index", "trace", "run_secs", "target", "args_info"),
    "PRAGMA table_xinfo(tuning_record)",
    "SELECT min(rowid) FROM tuning_record WHERE rowid >= ?",
    "SELECT workload_index, trace, run_secs, target, args_info FROM tuning_record WHERE rowid = ?",
)


class _Text(bytes):
    """An undecoded cell of type text; blobs are plain bytes."""


class MetaScheduleSQLiteFormat:
    """MetaSchedule records in SQLite (see :class:`tunedb.formats.base.FileFormat`)."""

    name = "metaschedule-sqlite"

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True for a SQLite database."""
        return head.startswith(MAGIC)

    def read_file(self, file: LogFile) -> Iterator[Item]:
        """Yield the workloads and records of a file, and its bad rows as quarantined.

        Raises
        ------
        FormatError
            The file is damaged, or of another tool.
        """
        if file.path is None:
            raise FormatError(f"{file.name}: a SQLite file is not a stream; give its path")
        with closing(_open(file.path, file.name)) as connection:
            tables = _tables(connection, file.name)
            records = RecordParser()
            if _WORKLOAD in tables:
                yield from _read_workloads(connection, file.name, records)
            elif (beside := companion_of(file.path, file.path.suffix)) is not None:
                with closing(_open(beside, str(beside))) as other:
                    if _WORKLOAD in _tables(other, str(beside)):
                        yield from _read_workloads(other, str(beside), records)
            if _RECORD in tables:
                yield from _read_records(connection, file.name, records)


def _open(path: Path, name: str) -> sqlite3.Connection:
    """Open a foreign file read-only, without attached databases."""
    for suffix in ("-wal", "-journal"):
        log = path.with_name(path.name + suffix)
        if log.is_file() and log.stat().st_size:
            raise FormatError(
                f"{name}: {log.name} holds unfinished changes; finish them first: sqlite3 "
                f"{path.name} 'PRAGMA journal_mode=DELETE'"
            )
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    except _ERRORS as error:
        raise FormatError(f"{name}: SQLite cannot open it ({error})") from None
    connection.text_factory = _Text
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.MAX_LINE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return connection


def _tables(connection: sqlite3.Connection, name: str) -> set[_SqliteTable]:
    """Return the layout's tables in a file; FormatError if it is damaged or has none."""
    try:
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA cell_size_check=ON")
        if connection.execute("PRAGMA application_id").fetchone()[0] == schema.APPLICATION_ID:
            raise FormatError(f"{name}: a database of tunedb, not a log; give it with --db")
        tables = {table for table in (_WORKLOAD, _RECORD) if _has(connection, table)}
    except _ERRORS as error:
        raise FormatError(
            f"{name}: SQLite cannot read it ({error}); unpack it if it is compressed"
        ) from None
    if not tables:
        raise FormatError(
            f"{name}: a SQLite file without MetaSchedule's tables workload(shash, mod) and "
            "tuning_record(workload_index, trace, run_secs, target, args_info)"
        )
    return tables


def _has(connection: sqlite3.Connection, table: _SqliteTable) -> bool:
    """Return True if a file has a plain table with the columns of the layout."""
    # Views and virtual tables have no root page.
    rows = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ? AND rootpage > 0"
        " AND lower(sql) NOT LIKE '%without%rowid%'",
        (table.name,),
    ).fetchall()
    # The last field is not 0 for a hidden or computed column.
    columns = [(row[1], row[6]) for row in connection.execute(table.layout)]
    return len(rows) == 1 and columns == [(column.encode(), 0) for column in table.columns]


def _rows(connection: sqlite3.Connection, table: _SqliteTable) -> Iterator[tuple[int, Any, str]]:
    """Yield ``(rowid, values, reason)`` per row; values are None for an unreadable row.

    Each row has its own query, because an error ends a query.
    """
    start = -INT64
    while start < INT64:
        try:
            (rowid,) = connection.execute(table.following, (start,)).fetchone()
        except _ERRORS as error:
            yield start, None, f"SQLite cannot read on ({error})"
            return
        if rowid is None:
            return
        if rowid < start:
            yield start, None, "its rows are out of order: the file is damaged"
            return
        start = rowid + 1
        try:
            values = connection.execute(table.row, (rowid,)).fetchone()
        except _ERRORS as error:
            yield rowid, None, f"SQLite cannot read the row ({error})"
        else:
            yield rowid, values, "SQLite does not find the row: the file is damaged"


def _read_workloads(
    connection: sqlite3.Connection, name: str, records: RecordParser
) -> Iterator[Item]:
    records.begin_workloads()
    for index, (rowid, values, reason) in enumerate(_rows(connection, _WORKLOAD)):
        try:
            if values is None:
                raise FormatError(reason)
            yield records.add_workload(index, [_text(value) for value in values])
        except FormatError as error:
            records.add_bad(index, str(error))
            yield _quarantined(name, rowid, str(error), values)


def _read_records(
    connection: sqlite3.Connection, name: str, records: RecordParser
) -> Iterator[Item]:
    for rowid, values, reason in _rows(connection, _RECORD):
        try:
            if values is None:
                raise FormatError(reason)
            index, *texts = values
            yield records.parse([index, [_value(text) for text in texts]])
        except FormatError as error:
            yield _quarantined(name, rowid, str(error), values)


def _text(value: Any) -> str:
    """Return the text of a cell."""
    if not isinstance(value, _Text):
        raise FormatError("a row with a cell that is not text")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise FormatError("a row with a cell that is not UTF-8") from None


def _value(cell: Any) -> Any:
    """Return the JSON value of a cell."""
    if cell is None or cell == b"None":
        return None
    return parse_json(_text(cell).encode())


def _quarantined(name: str, rowid: int, reason: str, values: Any) -> Quarantined:
    """Return a bad row, with its cells as a truncated JSON list."""
    cells = [
        cell.decode(errors="backslashreplace") if isinstance(cell, bytes) else cell
        for cell in values or ()
    ]
    data = orjson.dumps(cells, default=str)[: limits.MAX_QUARANTINE_BYTES]
    return Quarantined(name, rowid, reason, data)
