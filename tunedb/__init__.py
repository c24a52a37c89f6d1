"""tunedb: the tuning database for Apache TVM."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import (
    ApprovalError,
    BusyError,
    FormatError,
    IntegrityError,
    LimitError,
    NotFoundError,
    PluginError,
    SchemaError,
    StorageError,
    TargetError,
    TuneDBError,
    UnreachableError,
    UsageError,
)

if TYPE_CHECKING:
    from .storage.store import Store

__all__ = [
    "ApprovalError",
    "BusyError",
    "FormatError",
    "IntegrityError",
    "LimitError",
    "NotFoundError",
    "PluginError",
    "SchemaError",
    "StorageError",
    "TargetError",
    "TuneDBError",
    "UnreachableError",
    "UsageError",
    "__version__",
    "open",
]

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """Look the version up on first use: importlib.metadata is slow to import."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import metadata

        version = globals()[name] = metadata.version("tunedb")
        return version


logging.getLogger("tunedb").addHandler(logging.NullHandler())


def open(url: str | Path, *, create: bool = True, read_only: bool = False) -> Store:
    """Open a database, creating it if there is none.

    Parameters
    ----------
    url : str or Path
        A path, ``sqlite:///path``, ``:memory:`` or ``postgresql+psycopg://…``.
    create : bool
        Create a missing file (or the tables of an empty server database).
    read_only : bool
        Never write; the file must exist.

    Returns
    -------
    Store
        A context manager; close it when done.

    Raises
    ------
    NotFoundError
        The file is missing, and `create` is false.
    SchemaError
        The file is no database, belongs to another program, or has another schema.
    StorageError
        The storage fails.

    Examples
    --------
    >>> with tunedb.open(":memory:") as store:
    ...     store.counts().measurements
    0
    """
    from .storage.store import Store

    return Store(url, create=create, read_only=read_only)
