"""Opening of other databases: peers of an exchange, and layers behind the user's own database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .. import limits
from ..errors import NotFoundError, UsageError
from ..storage.engine import parse_url, same_database, show_url, sqlite_path
from ..storage.store import Store
from .foreign_file import is_sqlite, open_file

if TYPE_CHECKING:
    from .bundle import BundlePeer
    from .database_peer import DatabasePeer


def check_layer(url: str | Path) -> str:
    """Return a layer's name for messages, without opening it.

    Raises
    ------
    UsageError
        It is not the URL of a database, or names one in memory.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and sqlite_path(parsed) is None:
        raise UsageError(f"{show_url(parsed)} cannot be a layer; give a file or a server")
    return show_url(parsed)


def open_layer(url: str | Path, own: Store) -> Store | None:
    """Open a database as a layer: a server, or a file that has exactly tunedb's tables.

    Parameters
    ----------
    url : str or Path
        Database, as for :func:`tunedb.open`.
    own : Store
        The user's database, which is queried first.

    Returns
    -------
    Store or None
        Read-only store; None for the user's database itself.

    Raises
    ------
    NotFoundError
        The file does not exist.
    SchemaError
        It belongs to another program or version of tunedb, or has other tables.
    StorageError
        It is damaged, cannot be read, or the server does not answer.
    UsageError
        As for :func:`check_layer`.
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


def skipped_message(where: str, reason: str) -> str:
    """Return a one-line message about a layer that is skipped."""
    return f"{where}: this layer is left out: {reason.removeprefix(f'{where}: ')}"


def open_peer(text: str | Path, *, check: bool = True) -> DatabasePeer | BundlePeer:
    """Open another database for an exchange: a SQLite file, a server or a bundle.

    Parameters
    ----------
    text : str or Path
        A path, a URL, or ``-`` for a bundle from standard input. The type of a file is decided by
        its first bytes, not its name.
    check : bool
        Let SQLite check the whole file for damage first.

    Raises
    ------
    TuneDBError
        It cannot be read.
    """
    if str(text) == "-":
        return _bundle("-")
    path = sqlite_path(parse_url(text))
    # A file of neither type is most likely a damaged bundle; a pipe is read as one.
    if path is not None and path.exists() and not path.is_dir() and not is_sqlite(path):
        return _bundle(path)
    from .database_peer import DatabasePeer

    return DatabasePeer(text, check=check)


def _bundle(path: str | Path) -> BundlePeer:
    from .bundle import BundlePeer

    return BundlePeer(path)
