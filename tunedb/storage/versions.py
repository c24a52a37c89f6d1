"""Schema versions: check, creation and upgrade of a database's schema.

Alembic is imported only to create or change a schema: opening compares one string.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import Connection, event, inspect, select
from sqlalchemy.engine import URL

from .. import identity
from ..errors import NotFoundError, SchemaError, StorageError, UsageError
from ..system.files import new_file, require_regular, require_regular_logs
from . import guards, schema
from .deadlines import long_statements
from .engine import (
    BUSY_TIMEOUT_S,
    converted_errors,
    enter_wal,
    file_uri,
    make_engine,
    show_url,
    sqlite_path,
)
from .network_filesystem import refuse_network_file

#: Bytes of SQLite's smallest page.
_SMALLEST_FILE = 512
# As SQL, because each engine would render a statement of SQLAlchemy anew.
_VERSION_QUERY = "SELECT version_num FROM alembic_version"
_COLUMNS_QUERY = "SELECT * FROM meta LIMIT 0"
_FORMAT_QUERY = """SELECT value FROM meta WHERE "key" = 'format'"""


def check_file(url: URL, *, create: bool) -> bool:
    """Check the file behind a URL before SQLite opens it; return true if it must be created.

    Raises
    ------
    NotFoundError
        The file is missing and `create` is false, or its folder is missing.
    SchemaError
        The file is empty and `create` is false, or too small to be a database.
    StorageError
        The file cannot be read.
    """
    path = sqlite_path(url)
    if path is None:
        return url.get_backend_name() == "sqlite"
    # Never by open(): closing the file would drop the locks that SQLite holds on it for other
    # handles of this process (sqlite.org/howtocorrupt.html, 2.2), and the next process to close
    # its handle would delete the log into which they write.
    try:
        require_regular(path)
        size = path.stat().st_size
    except FileNotFoundError:
        if not create:
            raise NotFoundError(f"{path}: no such database; run: tunedb db init {path}") from None
        if not path.absolute().parent.is_dir():
            raise NotFoundError(f"{path}: its folder does not exist; make it first") from None
        return True
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from None
    require_regular_logs(path)
    if not size and not create:
        raise SchemaError(f"{path}: an empty file; run: tunedb db init {path}")
    if 0 < size < _SMALLEST_FILE:
        # SQLite would overwrite a file of a few bytes.
        raise SchemaError(f"{path}: not a database ({size} bytes); give another path")
    return not size


def create_file(url: URL) -> bool:
    """Create a SQLite database atomically; return false if another process was faster.

    It is built in a hidden folder and linked into place, so that nobody sees half a schema and the
    first of two processes wins. An existing empty file is kept (:func:`prepare` fills it in one
    transaction): two processes that replaced it would lose rows of the first.
    """
    path = sqlite_path(url)
    if path is None:
        raise UsageError("only files are created this way")
    where = show_url(url)
    _refuse_stale_log(path)
    if path.exists():
        with converted_errors(where):
            existing = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
            with closing(existing):
                _set_up(existing)
        return False
    try:
        with converted_errors(where), new_file(path) as temporary:
            with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
                _set_up(connection)
            engine = make_engine(URL.create("sqlite", database=str(temporary)))
            with engine.begin() as connection_:
                create_schema(connection_)
            engine.dispose()
        return True
    except FileExistsError:
        # Another process was first.
        return False
    except OSError as error:
        raise StorageError(
            f"{where}: cannot be written ({error.strerror}); check space and permissions there"
        ) from None


def _remove(path: Path) -> None:
    """Remove a SQLite file and its logs as far as the medium allows."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        with suppress(OSError):
            path.with_name(path.name + suffix).unlink()


def _set_up(connection: sqlite3.Connection) -> None:
    """Set the pragmas that SQLite needs before the first table is created."""
    enter_wal(connection)
    connection.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")


def _refuse_stale_log(path: Path) -> None:
    """Raise StorageError for the log of a missing file: SQLite would replay it into a new one."""
    # Logs are checked first: another process that creates the database has its file before its log.
    logs = [path.with_name(path.name + suffix) for suffix in ("-wal", "-journal")]
    if any(log.exists() for log in logs) and not path.exists():
        stale = next((log for log in logs if log.exists()), logs[0])
        raise StorageError(
            f"{stale}: left over from a missing database; restore {path.name}, or remove it"
        )


def create_schema(connection: Connection) -> None:
    """Create all tables in an empty database and write its metadata."""
    from .. import __version__, migrations

    migrations.upgrade(connection)
    store = uuid.uuid4().hex
    _mark(connection, store)
    connection.execute(
        schema.meta.insert(),
        [
            {"key": "format", "value": schema.FORMAT},
            {"key": "store", "value": store},
            {"key": "created_by", "value": __version__},
            {"key": "created_at", "value": str(time.time_ns() // 1000)},
        ],
    )


def store_mark(key: str) -> int:
    """Return the number in a file's header that protects its store key; never 0."""
    return int.from_bytes(identity.digest("store", key.encode())[:3], "big") + 1


def _mark(connection: Connection, key: str) -> None:
    """Write :func:`store_mark` into the header of a SQLite file; nothing else protects the key."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA user_version = {store_mark(key):d}")


def mark_of(connection: Connection) -> int:
    """Return the store mark in a SQLite file's header; 0 if there is none."""
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())


def revision_of(connection: Connection, where: str) -> str | None:
    """Return the revision of the schema, or None for a database without tables.

    Raises
    ------
    SchemaError
        The database belongs to another program.
    """
    names = set(inspect(connection).get_table_names())
    if not names:
        return None
    foreign = SchemaError(f"{where}: a database of another program; give another path")
    if not {"meta", "alembic_version"} <= names:
        raise foreign
    if not {"key", "value"} <= set(connection.exec_driver_sql(_COLUMNS_QUERY).keys()):
        raise foreign
    if connection.exec_driver_sql(_FORMAT_QUERY).scalar() != schema.FORMAT:
        raise foreign
    revision: str | None = connection.exec_driver_sql(_VERSION_QUERY).scalar()
    if revision is None:
        raise SchemaError(f"{where}: it does not state its schema; restore a copy")
    return revision


def require_head(revision: str | None, where: str) -> None:
    """Raise SchemaError, with the command to run, unless `revision` is this version's."""
    if revision == schema.HEAD:
        return
    if revision in schema.REVISIONS:
        raise SchemaError(
            f"{where}: its schema is {revision}, but this tunedb needs {schema.HEAD}; "
            f"run: tunedb db upgrade --db {where}"
        )
    raise SchemaError(
        f"{where}: written by a newer tunedb (schema {revision}, this one knows {schema.HEAD}); "
        "run: pip install --upgrade tunedb"
    )


def upgrade(
    url: URL,
    *,
    dry_run: bool = False,
    on_backup: Callable[[Path], None] | None = None,
    on_restored: Callable[[tuple[str, ...]], None] | None = None,
) -> tuple[str, str]:
    """Upgrade a database to this version's schema; a file gets a backup beside it first.

    Missing guards of a server that has this schema already are restored.

    Parameters
    ----------
    url : URL
        The database.
    dry_run : bool
        Migrate and roll back.
    on_backup : callable or None
        Called with the path of the backup.
    on_restored : callable or None
        Called with the guards that a server lacked (:mod:`tunedb.storage.guards`).

    Returns
    -------
    tuple of str
        The revisions before and after.

    Raises
    ------
    SchemaError
        The database is newer, or not a tunedb database.
    """
    from .. import migrations

    where = show_url(url)
    check_file(url, create=False)
    refuse_network_file(sqlite_path(url))
    engine = make_engine(url)
    if engine.dialect.name == "sqlite":
        # Alembic changes a table of SQLite by copying it; dropping the old one would delete rows
        # that refer to it. The pragma has no effect inside a transaction.
        event.listen(engine, "connect", _ignore_foreign_keys)
    backup: Path | None = None
    try:
        with (
            converted_errors(where),
            engine.connect() as connection,
            connection.begin() as change,
            long_statements(connection),
        ):
            before = revision_of(connection, where)
            if before is None:
                raise SchemaError(f"{where}: an empty database; run: tunedb db init {where}")
            if before not in schema.REVISIONS:
                require_head(before, where)
            if before != schema.HEAD:
                path = sqlite_path(url)
                if path is not None and not dry_run:
                    backup = back_up(path, before)
                    if on_backup is not None:
                        on_backup(backup)
                migrations.upgrade(connection)
                _check_foreign_keys(connection, where)
                _mark_old(connection)
            elif missing := guards.inspect(connection).missing:
                migrations.restore_guards(connection)
                if on_restored is not None:
                    on_restored(missing)
            if dry_run:
                change.rollback()
            return before, schema.HEAD
    except BaseException:
        # The database is unchanged, so the backup would only fill the disk.
        if backup is not None:
            _remove(backup)
        raise
    finally:
        engine.dispose()


def _mark_old(connection: Connection) -> None:
    """Write the store mark into a file of an earlier tunedb."""
    if connection.dialect.name == "sqlite" and not mark_of(connection):
        key = select(schema.meta.c.value).where(schema.meta.c.key == "store")
        _mark(connection, connection.execute(key).scalar_one())


def _ignore_foreign_keys(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA foreign_keys=OFF")


def _check_foreign_keys(connection: Connection, where: str) -> None:
    """Raise StorageError if a migration of SQLite left a dangling reference."""
    if connection.dialect.name == "sqlite":
        dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        if dangling:
            raise StorageError(
                f"{where}: {len(dangling)} rows of {dangling[0][0]} would lose their references; "
                "nothing was changed; please report this"
            )


def back_up(path: Path, revision: str) -> Path:
    """Write a copy of a SQLite file beside it, atomically; return its path."""
    number = 1
    while True:
        suffix = f".{number}" if number > 1 else ""
        backup = path.with_name(f"{path.name}.bak-{revision}{suffix}")
        try:
            with new_file(backup) as temporary:
                source = sqlite3.connect(f"{file_uri(path)}?mode=ro", uri=True)
                with closing(source), closing(sqlite3.connect(temporary)) as copy:
                    source.backup(copy)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise StorageError(
                f"{backup}: cannot be written ({error.strerror}); check space and permissions there"
            ) from None
        else:
            return backup


def prepare(reader: Connection, where: str, *, create: bool) -> bool:
    """Check the schema of a database; create it in an empty one if `create` is true.

    Parameters
    ----------
    reader : Connection
        Made by :func:`~tunedb.storage.engine.connect_reader`.
    where : str
        Name of the database in messages.
    create : bool
        Create the schema, on a connection of its own.

    Returns
    -------
    bool
        True if it was created.
    """
    is_new = False
    with converted_errors(where):
        revision = revision_of(reader, where)
        if revision is None:
            if not create:
                raise SchemaError(f"{where}: an empty database; run: tunedb db init {where}")
            with reader.engine.begin() as writer:
                # Writers take turns (tunedb.storage.engine): another one may have been faster.
                revision = revision_of(writer, where)
                if revision is None:
                    create_schema(writer)
                    revision, is_new = schema.HEAD, True
    require_head(revision, where)
    return is_new
