"""Description of a database, even if this version of tunedb cannot open it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import NotFoundError, SchemaError
from . import schema, versions
from .engine import (
    AnyURL,
    connect_reader,
    converted_errors,
    make_engine,
    parse_url,
    show_url,
    sqlite_path,
)


@dataclass(frozen=True, slots=True)
class DatabaseDescription:
    """State of a database, even if this version of tunedb cannot open it.

    Parameters
    ----------
    location : str
        A path, or a URL without its password.
    state : str
        ``current``, ``older``, ``newer``, ``empty`` (no tables yet) or ``foreign`` (of another
        program).
    revision : str or None
        Revision of its schema.
    size : int or None
        Bytes of the file and its write-ahead log; None for a server.
    meta : dict
        Its metadata: ``store``, ``created_by``, ``created_at``.
    advice : str or None
        Next step if it cannot be opened.
    """

    location: str
    state: str
    revision: str | None
    size: int | None
    meta: dict[str, str]
    advice: str | None


def describe(url: AnyURL) -> DatabaseDescription:
    """Return the state of a database.

    Raises
    ------
    NotFoundError
        It does not exist.
    SchemaError
        The file is not a SQLite file.
    StorageError
        It cannot be read.
    """
    parsed = parse_url(url)
    where = show_url(parsed)
    path = sqlite_path(parsed)
    if path is None and parsed.get_backend_name() == "sqlite":
        raise NotFoundError(f"{where}: a database in memory ends with its process")
    if path is not None and path.is_file() and not path.stat().st_size:
        return DatabaseDescription(where, "empty", None, 0, {}, f"run: tunedb db init {where}")
    versions.check_file(parsed, create=False)
    size = _size(path)
    engine = make_engine(parsed, read_only=True)
    try:
        with converted_errors(where), connect_reader(engine) as connection:
            if path is not None:
                connection.exec_driver_sql("PRAGMA schema_version")  # fails if it is not a database
            try:
                revision = versions.revision_of(connection, where)
            except SchemaError as error:
                return DatabaseDescription(where, "foreign", None, size, {}, _advice(error, where))
            if revision is None:
                return DatabaseDescription(
                    where, "empty", None, size, {}, f"run: tunedb db init {where}"
                )
            rows = connection.exec_driver_sql("SELECT key, value FROM meta").all()
            meta = {row.key: row.value for row in rows}
    finally:
        engine.dispose()
    state, advice = "current", None
    try:
        versions.require_head(revision, where)
    except SchemaError as error:
        state = "older" if revision in schema.REVISIONS else "newer"
        advice = _advice(error, where)
    return DatabaseDescription(where, state, revision, size, meta, advice)


def _advice(error: SchemaError, where: str) -> str:
    return str(error).removeprefix(f"{where}: ")


def _size(path: Path | None) -> int | None:
    """Return the bytes of a file and its write-ahead log."""
    if path is None:
        return None
    log = path.with_name(f"{path.name}-wal")
    return path.stat().st_size + (log.stat().st_size if log.exists() else 0)
