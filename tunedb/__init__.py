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
        """Look the version up when it is asked for: importlib.metadata is slow to import."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import metadata

        return metadata.version("tunedb")


logging.getLogger("tunedb").addHandler(logging.NullHandler())


def open(url: str | Path, *, create: bool = True, read_only: bool = False) -> Store:
    """Open a database, and make it where there is none.

    Parameters
    ----------
    url : str or Path
        A path, ``sqlite:///path``, ``:memory:`` or ``postgresql+psycopg://…``.
    create : bool
        Make the file (or the tables of an empty server database) where it is missing.
    read_only : bool
        Never write; the file must exist.

    Returns
    -------
    Store
        A context manager; close it when done.

    Raises
    ------
    NotFoundError
        The file is missing and may not be made.
    SchemaError
        The file is no database, belongs to another program, or has another schema.
    StorageError
        The medium refuses.

    Examples
    --------
    >>> with tunedb.open(":memory:") as store:
    ...     store.counts().measurements
    0
    """
    from .storage.store import Store

    return Store(url, create=create, read_only=read_only)
