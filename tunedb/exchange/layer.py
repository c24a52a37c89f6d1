"""Somebody else's database that answers behind one's own, and is only read."""

from __future__ import annotations

from pathlib import Path

from .. import limits
from ..errors import NotFoundError, UsageError
from ..storage.engine import parse_url, same_database, show_url, sqlite_path
from ..storage.store import Store
from .foreign_file import open_file


def check_layer(url: str | Path) -> str:
    """Return a layer's name for messages, without opening it.

    Raises
    ------
    UsageError
        It is no URL of a database, or of one in memory, which nobody else can fill.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and sqlite_path(parsed) is None:
        raise UsageError(f"{show_url(parsed)} cannot be a layer; give a file or a server")
    return show_url(parsed)


def open_layer(url: str | Path, own: Store) -> Store | None:
    """Open a database as a layer: a server, or a file whose tables are those of tunedb.

    Parameters
    ----------
    url : str or Path
        As for :func:`tunedb.open`.
    own : Store
        The database that it stands behind.

    Returns
    -------
    Store or None
        Read-only; None where it is the database itself.

    Raises
    ------
    NotFoundError
        There is no such file.
    SchemaError
        It is of another program, of another tunedb, or has tables that no database of tunedb has.
    StorageError
        It is damaged, cannot be read, or the server does not answer.
    UsageError
        As :func:`check_layer`.
    """
    where, parsed = check_layer(url), parse_url(url)
    if same_database(own.url, parsed):
        return None
    path = sqlite_path(parsed)
    if path is not None:
        if not path.exists():
            raise NotFoundError(f"{where}: no such file")
        open_file(path, check=False).connection.close()
    return Store(url, create=False, read_only=True, body_limit=limits.MAX_FOREIGN_BYTES)


def left_out(where: str, reason: str) -> str:
    """Return in one line that the layer with that name for messages is left out, and why."""
    return f"{where}: this layer is left out: {reason.removeprefix(f'{where}: ')}"
