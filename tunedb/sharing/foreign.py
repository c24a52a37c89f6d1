"""Somebody else's SQLite file, opened so that it can neither be changed nor do any harm.

Every table must be, to the letter, one of a revision that this tunedb knows: a view in the place of
a table can compute for ever, a trigger or a generated column can call functions. What is left can
only be wrong, slow or large. :mod:`tunedb.sharing.verify` finds what is wrong; here is what bounds
the time of each statement and the size of each value (sqlite.org/security.html).

The file is never attached to ours, never written and never upgraded. One that its owner writes to
is read in its WAL mode, as everybody else reads it.
"""

from __future__ import annotations

import re
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import limits, schema, versions
from ..engine import BUSY_TIMEOUT_S, converted_errors, file_uri
from ..errors import LimitError, NotFoundError, SchemaError, StorageError, TuneDBError
from ..files import require_regular, require_regular_logs
from .known_schemas import definition, objects_of

#: Steps of SQLite's machine between two looks at the clock: about 20 us.
_STEPS = 1000

#: One page of the smallest size.
_SMALLEST_FILE = 512

#: Characters of a message that come from the file.
_MOST_TOLD = 200

_AUTOINDEX = re.compile(r"sqlite_autoindex_(\w+)_\d+")
_STORE_KEY = re.compile(r"[0-9a-f]{32}")

#: What ANALYZE leaves; it changes plans, never results.
_STATISTICS = {
    "sqlite_stat1": "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "sqlite_stat4": "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
}

_REASONS: tuple[tuple[str, type[TuneDBError], str], ...] = (
    ("interrupted", LimitError, "it takes too long to read; it is damaged, or made to be slow"),
    ("too big", LimitError, f"it has a value of over {limits.MAX_FOREIGN_BYTES} bytes"),
    ("malformed", StorageError, "damaged; ask for another copy"),
)

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: limits.MAX_FOREIGN_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 2**14,
    sqlite3.SQLITE_LIMIT_COLUMN: 64,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 4,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 8,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

#: Nothing here looks at the tables yet, so nothing in the file is run.
_PRAGMAS = (
    "PRAGMA trusted_schema=OFF",
    "PRAGMA query_only=ON",
    "PRAGMA cell_size_check=ON",
    "PRAGMA mmap_size=0",
    "PRAGMA cache_size=-16384",
    "PRAGMA temp_store=MEMORY",
)


class Watch:
    """Ends a statement that takes too long; SQLite asks it every thousand steps."""

    def __init__(self) -> None:
        self._deadline = 0.0
        self._steps = 0

    def restart(
        self, seconds: float = limits.FOREIGN_STATEMENT_S, steps: int = sys.maxsize
    ) -> None:
        """Give the next statement so many seconds and thousands of steps."""
        self._deadline = time.monotonic() + seconds
        self._steps = steps

    def __call__(self) -> bool:
        """Tell SQLite whether to give up."""
        self._steps -= 1
        return self._steps < 0 or time.monotonic() > self._deadline


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file that is what it should be.

    Parameters
    ----------
    connection : sqlite3.Connection
        Reads it. Texts that are no UTF-8 come as bytes.
    watch : Watch
        To be restarted before each statement.
    revision : str
        Its schema, one of :data:`tunedb.schema.REVISIONS`.
    store_key : str
        Which database it says that it is.
    """

    connection: sqlite3.Connection
    watch: Watch
    revision: str
    store_key: str


def told(text: str) -> str:
    """Return text of a foreign file as a message may hold it: short, without control characters."""
    shown = text[:_MOST_TOLD] + ("…" if len(text) > _MOST_TOLD else "")
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in shown
    )


@contextmanager
def foreign_errors(where: str) -> Iterator[None]:
    """Turn errors of SQLite into ours, with what they quote of the file made harmless."""
    try:
        with converted_errors(where):
            yield
    except MemoryError:
        raise StorageError(f"{where}: damaged: it speaks of more bytes than there are") from None
    except TuneDBError as error:
        if error.__cause__ is None:
            raise
        words = str(error).removeprefix(where)
        for needle, kind, advice in _REASONS:
            if needle in words:
                raise kind(f"{where}: {advice}") from None
        raise type(error)(where + told(words)) from error.__cause__


def is_sqlite(path: Path) -> bool:
    """Tell whether a file is one of SQLite's.

    Asked of SQLite itself: reading it with ``open()`` would drop the locks that SQLite holds for
    other handles of this process (:func:`tunedb.versions.check_file`).
    """
    if not path.is_file() or path.stat().st_size < _SMALLEST_FILE:
        return False
    connection: sqlite3.Connection | None = None
    try:
        connection = _connect(path, Watch())
    except (sqlite3.Error, StorageError, UnicodeError) as error:
        # A message of SQLite's may quote the file, which then is none of Python's texts.
        return "not a database" not in str(error)
    finally:
        if connection is not None:
            connection.close()
    return True


def open_file(path: Path, *, check: bool = True) -> ForeignFile:
    """Open somebody else's database.

    Parameters
    ----------
    path : Path
        The file.
    check : bool
        Let SQLite look through all of it for damage first (``quick_check``).

    Raises
    ------
    NotFoundError
        There is none.
    SchemaError
        It is of another program, of a newer tunedb, or its tables are not those of its revision.
    StorageError
        It is damaged or cannot be read.
    """
    where = str(path)
    _check_path(path)
    watch = Watch()
    with foreign_errors(where):
        connection = _connect(path, watch)
    try:
        with foreign_errors(where):
            revision = _revision(connection, watch, where)
            store_key = _store_key(connection, watch, where)
            if check:
                _check_size(connection, path)
                _quick_check(connection, watch, path)
    except BaseException:
        connection.close()
        raise
    return ForeignFile(connection, watch, revision, store_key)


def _check_path(path: Path) -> None:
    """Raise our error where there is no file, or none that can be a database."""
    try:
        require_regular(path)
        size = path.stat().st_size
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from None
    if size < _SMALLEST_FILE:
        raise SchemaError(f"{path}: not a database ({size} bytes); give another path")


def _connect(path: Path, watch: Watch) -> sqlite3.Connection:
    """Return a connection that has read the first page."""
    require_regular_logs(path)
    uri = f"{file_uri(path)}?mode=ro"
    try:
        return _guarded(uri, watch)
    except sqlite3.OperationalError as error:
        log = path.with_name(f"{path.name}-wal")
        if "unable to open" not in str(error) or (log.exists() and log.stat().st_size):
            raise
        # WAL needs to write beside the file even to read. Here nobody can, on a read-only medium
        # or in a folder of somebody else, and no log is lost where there is none.
        return _guarded(f"{uri}&immutable=1", watch)


def _guarded(uri: str, watch: Watch) -> sqlite3.Connection:
    """Return a connection with every guard that there is."""
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        for number, value in _LIMITS.items():
            connection.setlimit(number, value)
        if sys.version_info >= (3, 12):
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)
        # With sqlite3's own, a text that is no UTF-8 ends the statement, and all of it stands in
        # the message.
        connection.text_factory = _text
        connection.set_progress_handler(watch, _STEPS)
        watch.restart()
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        # Needs the first page and no table.
        connection.execute("PRAGMA schema_version").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


# ---------------------------------------------------------------------- what is in it


def _revision(connection: sqlite3.Connection, watch: Watch, where: str) -> str:
    """Return the revision of a file whose tables are those of that revision.

    Raises
    ------
    SchemaError
        They are not, or the file is none of tunedb.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != schema.APPLICATION_ID:
        raise SchemaError(f"{where}: a database of another program; give one of tunedb")
    # Reading one row of this makes SQLite read the definitions of all tables.
    watch.restart(steps=limits.FOREIGN_OPEN_STEPS)
    cursor = connection.execute("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema")
    rows = cursor.fetchmany(limits.FOREIGN_OBJECTS + 1)
    cursor.close()
    if len(rows) > limits.FOREIGN_OBJECTS:
        raise SchemaError(
            f"{where}: more than {limits.FOREIGN_OBJECTS} tables and indexes, "
            "which no database of tunedb has; it is not read"
        )
    have = _objects(rows, where)
    first = objects_of(schema.REVISIONS[0])
    for name in ("alembic_version", "meta"):
        if have.get(name) != first[name]:
            raise SchemaError(f"{where}: a database of another program; give one of tunedb")
    watch.restart()
    said = connection.execute("SELECT version_num FROM alembic_version LIMIT 2").fetchall()
    if len(said) != 1 or not isinstance(said[0][0], str):
        raise SchemaError(f"{where}: it does not say which schema it has; ask for another copy")
    revision = said[0][0]
    if revision not in schema.REVISIONS:
        versions.require_head(told(revision), where)
    _compare(have, objects_of(revision), revision, where)
    return revision


def _objects(rows: Sequence[tuple[Any, ...]], where: str) -> dict[str, str]:
    """Return what a file defines: name → digest of its definition."""
    found: dict[str, str] = {}
    for said, name, table, root, sql in rows:
        if not all(isinstance(value, str) for value in (said, name, table)):
            raise StorageError(f"{where}: damaged: its list of tables cannot be read")
        stored = isinstance(root, int) and root > 0
        kind = "virtual table" if said in ("table", "index") and not stored else said
        automatic = _AUTOINDEX.fullmatch(name)
        if kind == "index" and automatic and automatic[1] == table and sql is None:
            continue
        if kind == "table" and isinstance(sql, str) and _STATISTICS.get(name) == sql:
            continue
        if name in found:
            raise SchemaError(f"{where}: it defines {told(name)} twice; it is not read")
        found[name] = definition(kind, name, table, sql if isinstance(sql, str) else "")
        if kind not in ("table", "index"):
            raise SchemaError(
                f"{where}: its {told(name)} is a {told(kind)}, which no database of tunedb has; "
                "it is not read"
            )
    return found


def _compare(have: dict[str, str], wanted: dict[str, str], revision: str, where: str) -> None:
    """Raise SchemaError with the first difference."""
    if missing := sorted(wanted.keys() - have.keys()):
        problem = f"{missing[0]} is missing"
    elif added := sorted(have.keys() - wanted.keys()):
        problem = f"{told(added[0])} is no part of it"
    elif changed := sorted(name for name in have if have[name] != wanted[name]):
        problem = f"the definition of {changed[0]} is another one"
    else:
        return
    raise SchemaError(
        f"{where}: its tables are not those of schema {revision}: {problem}; it is not read"
    )


def _store_key(connection: sqlite3.Connection, watch: Watch, where: str) -> str:
    """Return which database a file says that it is."""
    watch.restart()
    meta = dict(connection.execute("SELECT key, value FROM meta LIMIT 100").fetchall())
    if meta.get("format") != schema.FORMAT:
        raise SchemaError(f"{where}: a database of another program; give one of tunedb")
    key = meta.get("store")
    if not isinstance(key, str) or not _STORE_KEY.fullmatch(key):
        raise SchemaError(f"{where}: it does not say which store it is; ask for another copy")
    return key


def _check_size(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StorageError where bytes are missing at the end: SQLite would read zeros."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        # The last pages may be in there.
        return
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    size = path.stat().st_size
    if size < page * pages:
        raise StorageError(f"{path}: cut off after {size} of {page * pages} bytes; copy it again")


def _quick_check(connection: sqlite3.Connection, watch: Watch, path: Path) -> None:
    """Raise StorageError where SQLite finds damage."""
    size = path.stat().st_size
    watch.restart(limits.FOREIGN_STATEMENT_S + size / limits.FOREIGN_CHECK_RATE)
    (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if said != "ok":
        raise StorageError(f"{path}: damaged ({told(str(said))}); ask for another copy")
