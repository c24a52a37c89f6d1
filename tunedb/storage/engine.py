"""SQLAlchemy engines for database URLs, and conversion of driver errors to ours.

SQLite: WAL, ``BEGIN IMMEDIATE`` for writers (the driver's own transactions silently lost 720 of
1,200 read-modify-write updates of four processes, deferred ones failed 436 of them),
``synchronous=NORMAL`` (survives ``kill -9``; a power loss may take the last commits, never more),
30 s busy timeout, foreign keys, ``trusted_schema=OFF``.
"""

from __future__ import annotations

import logging
import os
import shlex
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, exc
from sqlalchemy.engine import URL, CursorResult, ExceptionContext, make_url
from sqlalchemy.pool import NullPool, StaticPool
from sqlalchemy.sql import Executable

from ..errors import (
    BusyError,
    FormatError,
    SchemaError,
    StorageError,
    TuneDBError,
    UnreachableError,
    UsageError,
)
from . import deadlines
from .schema import APPLICATION_ID

#: Input of :func:`parse_url`.
AnyURL: TypeAlias = str | Path | URL

BUSY_TIMEOUT_S = 30

#: ``synchronous`` of new SQLite connections; benchmarks compare NORMAL with FULL.
SYNCHRONOUS = "NORMAL"

_READS = {"tunedb_reads": True}

#: libpq's own timeouts are the system's: two minutes for an unreachable host, two hours for one
#: that goes away during a query. Parameters of the URL override these.
_KEEPALIVES = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}


def parse_url(url: AnyURL) -> URL:
    """Return the SQLAlchemy URL of a path, ``:memory:``, ``sqlite:///…`` or ``postgresql…://…``.

    A parsed URL is returned unchanged: its text would lose the password.

    Raises
    ------
    UsageError
        The dialect or driver is not supported, or the URL is empty or malformed.
    """
    if isinstance(url, URL):
        return url
    text = str(url)
    if not text:
        raise UsageError("empty database URL; give --db PATH or set TUNEDB_URL")
    if "\0" in text:
        raise UsageError("the database URL contains a NUL character; give a path without one")
    if text == ":memory:":
        return URL.create("sqlite", database=":memory:")
    if "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        parsed = make_url(text)
    except (exc.ArgumentError, ValueError):
        raise UsageError(
            "unreadable database URL; give a path, sqlite:///PATH or postgresql+psycopg://HOST/NAME"
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise UsageError(
            f"tunedb cannot use {parsed.drivername}://; "
            "give a path, sqlite:///PATH or postgresql+psycopg://HOST/NAME"
        )
    if parsed.get_backend_name() == "sqlite" and not parsed.database:
        parsed = parsed.set(database=":memory:")
    return parsed


def show_url(url: URL) -> str:
    """Return the URL without its password, or the plain path of a file, for messages."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    # libpq takes passwords as parameters too (postgresql:///db?password=…).
    secret = [key for key in url.query if "password" in key]
    return url.update_query_dict(dict.fromkeys(secret, "***")).render_as_string(hide_password=True)


def canonical_location(url: URL) -> str:
    """Return the real path of a file, or a server's URL without the account.

    Parameters of a server's URL are kept: they may name another host or other tables.
    """
    path = sqlite_path(url)
    if path is not None:
        return os.path.realpath(path)
    return _without_secrets(url, account=False)


def same_database(url: URL, other: URL) -> bool:
    """Return true if both URLs name the same database; a copy is a different one."""
    path, other_path = sqlite_path(url), sqlite_path(other)
    if path is not None and other_path is not None:
        with suppress(OSError, ValueError):
            return path.samefile(other_path)
    return canonical_location(url) == canonical_location(other)


def shell_word(url: URL) -> str:
    """Return the database as a shell argument, without its password."""
    if url.get_backend_name() == "sqlite":
        return shlex.quote(str(url.database))
    return shlex.quote(_without_secrets(url, account=True))


def _without_secrets(url: URL, *, account: bool) -> str:
    """Return a server's URL without secrets and driver, with its parameters sorted."""
    query = {
        key: value
        for key, value in sorted(url.query.items())
        if "password" not in key and (account or key != "user")
    }
    user = url.username if account else None
    cleaned = URL.create(
        url.get_backend_name(), user, None, url.host, url.port, url.database, query
    )
    return cleaned.render_as_string()


def sqlite_path(url: URL) -> Path | None:
    """Return the file behind a URL, or None for a server or ``:memory:``."""
    if url.get_backend_name() != "sqlite" or url.database in (None, ":memory:"):
        return None
    return Path(str(url.database))


def file_uri(path: Path) -> str:
    """Return the path as a SQLite URI; works for names that are not UTF-8."""
    return f"file:{quote(os.fsencode(path.absolute()))}"


def make_engine(url: URL, *, read_only: bool = False) -> Engine:
    """Create an engine whose connections have the settings described above."""
    if url.get_backend_name() != "sqlite":
        return _make_server_engine(url, read_only=read_only)
    path = sqlite_path(url)

    def connect() -> sqlite3.Connection:
        return _connect_sqlite(path, read_only=read_only)

    engine = create_engine(url, creator=connect, poolclass=StaticPool if path is None else NullPool)
    event.listen(engine, "connect", _on_sqlite_connect_read if read_only else _on_sqlite_connect)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _connect_sqlite(path: Path | None, *, read_only: bool) -> sqlite3.Connection:
    """Connect to a file, or to a new database in memory."""

    def connect(name: str) -> sqlite3.Connection:
        # A store locks its connection, so other threads may use it (MetaSchedule tunes in worker
        # threads). isolation_level=None: we begin all transactions ourselves.
        return sqlite3.connect(
            name,
            uri=path is not None,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )

    if path is None:
        return connect(":memory:")
    uri = file_uri(path)
    connection = connect(f"{uri}?mode={'ro' if read_only else 'rwc'}")
    if read_only and _is_frozen(path):
        # Reading in WAL mode writes beside the file, which a read-only medium does not allow.
        connection.close()
        connection = connect(f"{uri}?mode=ro&immutable=1")
    return connection


def _is_frozen(path: Path) -> bool:
    """Return true for a file on a read-only medium whose write-ahead log is missing or empty."""
    try:
        if not os.statvfs(path).f_flag & os.ST_RDONLY:
            return False
        log = path.with_name(f"{path.name}-wal")
        return not log.exists() or log.stat().st_size == 0
    except OSError:
        return False


def _make_server_engine(url: URL, *, read_only: bool) -> Engine:
    """Create an engine for PostgreSQL."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise UsageError("PostgreSQL needs psycopg; run: pip install 'tunedb[postgres]'") from None
    for name in ("psycopg", "sqlalchemy"):
        # A cut connection is reported as our error; without a handler of the application, logging
        # would print the warnings of these libraries too.
        logging.getLogger(name).addHandler(logging.NullHandler())
    # A store keeps its connections, so no pool is needed.
    seconds = deadlines.statement_seconds()
    parameters = {key: value for key, value in _KEEPALIVES.items() if key not in url.query}
    parameters |= deadlines.connect_parameters(seconds, url.query)
    engine = create_engine(url, poolclass=NullPool, connect_args=parameters)
    deadlines.enforce(engine, seconds)
    event.listen(engine, "begin", _take_writers_turn)
    event.listen(engine, "handle_error", _drop_broken_connection)
    if read_only:
        engine = engine.execution_options(postgresql_readonly=True)
    return engine


def _drop_broken_connection(error: ExceptionContext) -> None:
    """Report a connection that psycopg left in pipeline mode as lost; close a lost one's cursor.

    SQLAlchemy replaces a lost connection. It would keep one in pipeline mode, which libpq calls
    open although it rejects every statement: psycopg only logs that it could not leave the mode
    (``psycopg/_pipeline_base.py``, ``BasePipeline._exit``) if the server ends in the middle.
    """
    connection = error.connection
    if connection is not None and not connection.invalidated:
        driver: Any = connection.connection.driver_connection
        if driver.pgconn.pipeline_status:
            error.is_disconnect = True
    if error.is_disconnect and error.execution_context is not None:
        # SQLAlchemy leaves the cursor open. psycopg tells the server first, unless the connection
        # is known to be closed.
        with suppress(Exception):
            error.execution_context.cursor.close()


def enter_wal(connection: sqlite3.Connection) -> None:
    """Switch a database to WAL unless it uses it already.

    Two processes that switch the same new file get "locked" at once, whatever the timeout.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def ensure_wal(connection: Connection, where: str) -> None:
    """Switch a file to WAL; it must be known to be a tunedb database."""
    if connection.dialect.name == "sqlite":
        with converted_errors(where):
            driver: Any = connection.connection.driver_connection
            enter_wal(driver)


def _on_sqlite_connect(connection: sqlite3.Connection, _record: object) -> None:
    # Not WAL: that setting is written into the file, which may belong to another program.
    connection.execute(f"PRAGMA synchronous={SYNCHRONOUS}")
    # 8 MB of log between two checkpoints, each of which waits for the disk.
    connection.execute("PRAGMA wal_autocheckpoint=2000")
    _on_sqlite_connect_read(connection, _record)


def _on_sqlite_connect_read(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute("PRAGMA cache_size=-65536")


def _begin_immediate(connection: Connection) -> None:
    # Readers see one snapshot per statement and take no lock.
    if not connection.get_execution_options().get("tunedb_reads"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


#: Serialises writers, as SQLite does: two transactions that add the same rows in different order
#: would deadlock, and ids would not grow in the order of commits.
_LOCK_WRITERS = f"SELECT pg_advisory_xact_lock({APPLICATION_ID})"


def _take_writers_turn(connection: Connection) -> None:
    if not connection.get_execution_options().get("tunedb_reads"):
        connection.exec_driver_sql(_LOCK_WRITERS)


def connect_reader(engine: Engine) -> Connection:
    """Connect for single statements, each with its own snapshot."""
    connection = engine.connect()
    if engine.dialect.name == "sqlite":
        return connection.execution_options(**_READS)
    return connection.execution_options(isolation_level="AUTOCOMMIT", **_READS)


class Prepared:
    """A Core statement whose SQL is rendered once per dialect.

    Executing a Core statement costs about 70 µs of SQLAlchemy's own time, its rendered SQL 15 µs;
    a top-1 query of SQLite takes 5 µs. Parameters are named as in the statement.

    Parameters
    ----------
    statement : Executable or mapping
        The statement, or a statement per dialect name.
    """

    __slots__ = ("_rendered", "_statement")

    def __init__(self, statement: Executable | Mapping[str, Executable]) -> None:
        self._statement = statement
        self._rendered: dict[str, tuple[str, list[str] | None, dict[str, Any]]] = {}

    def _render(self, connection: Connection) -> tuple[str, list[str] | None, dict[str, Any]]:
        """Return the SQL, its parameter names in order (None if named), and its constants."""
        dialect = connection.dialect
        rendered = self._rendered.get(dialect.name)
        if rendered is None:
            statement: Any = self._statement
            if isinstance(statement, Mapping):
                statement = statement[dialect.name]
            compiled = statement.compile(dialect=dialect)
            names = list(compiled.positiontup) if compiled.positional else None
            constants = {k: v for k, v in compiled.params.items() if v is not None}
            rendered = self._rendered[dialect.name] = (str(compiled), names, constants)
        return rendered

    def __call__(self, connection: Connection, **parameters: Any) -> CursorResult[Any]:
        """Execute the statement once."""
        sql, names, constants = self._render(connection)
        values = constants | parameters if constants else parameters
        if names is None:
            return connection.exec_driver_sql(sql, values)
        return connection.exec_driver_sql(sql, tuple([values[name] for name in names]))

    def tuples(self, connection: Connection, **parameters: Any) -> Sequence[Any]:
        """Return all rows as the driver's tuples, without SQLAlchemy's row objects.

        For one row of 24 columns SQLite takes 7 µs, SQLAlchemy 20 more.
        """
        sql, names, constants = self._render(connection)
        if names is None:
            return self(connection, **parameters).all()
        values = constants | parameters if constants else parameters
        driver: Any = connection.connection.driver_connection
        cursor = driver.execute(sql, tuple([values[name] for name in names]))
        rows: Sequence[Any] = cursor.fetchall()
        return rows

    def many(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Execute the statement for every row; return the number of inserted or changed rows."""
        if not rows:
            return 0
        sql, names, constants = self._render(connection)
        if constants:
            rows = [constants | dict(row) for row in rows]
        if names is None:
            return connection.exec_driver_sql(sql, [dict(row) for row in rows]).rowcount
        # Faster than tuple([row[n] for n in names]); an import runs this millions of times.
        values = (
            [(row[names[0]],) for row in rows]
            if len(names) == 1
            else [*map(itemgetter(*names), rows)]
        )
        return connection.exec_driver_sql(sql, values).rowcount


_REASONS: tuple[tuple[str, type[TuneDBError], str], ...] = (
    ("database is locked", BusyError, "another process is writing; try again later"),
    ("database or disk is full", StorageError, "the disk is full; free some space and repeat"),
    ("out of range", UsageError, "a number is too large for its column; give a smaller one"),
    ("lock timeout", BusyError, "another process is writing; try again later"),
    (
        "statement timeout",
        BusyError,
        f"the server took too long; try again, or allow more seconds in {deadlines.VARIABLE}",
    ),
    ("no space left", StorageError, "the disk is full; free some space and repeat"),
    ("readonly database", StorageError, "it cannot be written; check its permissions or copy it"),
    ("read-only transaction", StorageError, "it was opened read-only"),
    ("unable to open", StorageError, "it cannot be opened; check the path and its permissions"),
    ("file is not a database", SchemaError, "it is not a SQLite file; give another path"),
    ("malformed", StorageError, "it is damaged; restore a copy, or try: sqlite3 FILE .recover"),
    ("disk i/o error", StorageError, "the disk failed; check it and restore a copy"),
    ("no such table", SchemaError, "it is not a complete tunedb database; run: tunedb db check"),
    (
        "permission denied for",
        StorageError,
        "this account lacks a grant: reading needs SELECT, writing also INSERT and UPDATE",
    ),
    ("tunedb guard:", StorageError, "the server rejects it; only its owner may do this"),
    ("authentication failed", StorageError, "the server rejects this account; check ~/.pgpass"),
    (
        "pg_hba.conf",
        StorageError,
        "the server rejects this account from this host (pg_hba.conf); ask its owner",
    ),
    ("no password supplied", StorageError, "the server requires a password; put it into ~/.pgpass"),
)

#: Prefixes of PostgreSQL's states for connections that ended or cannot begin now: broken
#: connections, shutdown and restart, no connection left.
_UNREACHABLE_STATES = ("08", "57P", "533")


def convert(error: Exception, where: str) -> TuneDBError:
    """Return our error for an error of the driver or SQLAlchemy."""
    cause = getattr(error, "orig", None) or error
    # PostgreSQL appends the line of its function that failed.
    text = " ".join(str(cause).split()).partition(" CONTEXT: ")[0]
    for needle, kind, advice in _REASONS:
        if needle in text.lower():
            return kind(f"{where}: {advice} ({text})")
    if isinstance(error, exc.DBAPIError) and not isinstance(cause, sqlite3.Error):
        # libpq gives no state if the connection itself failed.
        state = getattr(cause, "sqlstate", None)
        lost = state is None and isinstance(error, exc.OperationalError | exc.InterfaceError)
        if lost and "does not exist" in text:
            return StorageError(f"{where}: the server has no such database or role ({text})")
        if lost or error.connection_invalidated or (state or "").startswith(_UNREACHABLE_STATES):
            message = f"{where}: the database did not answer ({text}); check that it runs"
            return UnreachableError(message)
    return StorageError(f"{where}: {text}")


@contextmanager
def converted_errors(where: str) -> Iterator[None]:
    """Convert errors of SQLAlchemy and sqlite3 to ours; only this function does so."""
    try:
        yield
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        raise convert(error, where) from error
    except UnicodeError as error:
        raise FormatError(f"{where}: text that is not UTF-8 ({error})") from None
    except OverflowError as error:
        raise UsageError(f"{where}: a number beyond 64 bits ({error})") from None
