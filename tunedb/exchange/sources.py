"""From a word of the user to the other side of an exchange."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..storage.engine import parse_url, sqlite_path
from .foreign_file import is_sqlite

if TYPE_CHECKING:
    from .bundle import BundlePeer
    from .database import DatabasePeer


def open_peer(text: str | Path, *, check: bool = True) -> DatabasePeer | BundlePeer:
    """Open another database: a SQLite file, a server or a bundle.

    Parameters
    ----------
    text : str or Path
        A path, a URL, or ``-`` for a bundle from standard input. What a file is, its first bytes
        say and not its name.
    check : bool
        Let SQLite look through the whole of a file for damage first.

    Raises
    ------
    TuneDBError
        It cannot be read.
    """
    if str(text) == "-":
        return _bundle("-")
    path = sqlite_path(parse_url(text))
    # A file that is neither is most likely a bundle that was damaged on its way; a pipe is one.
    if path is not None and path.exists() and not path.is_dir() and not is_sqlite(path):
        return _bundle(path)
    from .database import DatabasePeer

    return DatabasePeer(text, check=check)


def _bundle(path: str | Path) -> BundlePeer:
    from .bundle import BundlePeer

    return BundlePeer(path)
