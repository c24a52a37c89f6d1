"""The errors that tunedb raises on purpose, with their exit codes.

Each message is one line: what went wrong, where, and how to go on.
"""

from __future__ import annotations

from typing import ClassVar


class TuneDBError(Exception):
    """Base of all errors of tunedb."""

    #: Exit status of the command line for this class (see ``tunedb --help``).
    exit_code: ClassVar[int] = 1


class UsageError(TuneDBError):
    """An invalid call or command."""

    exit_code = 2


class ApprovalError(UsageError):
    """The user has not approved the database from which TVM would get data."""


class NotFoundError(TuneDBError):
    """A workload, target, record or file that does not exist."""

    exit_code = 3


class SchemaError(TuneDBError):
    """The database has another schema than this version of tunedb, or is no tunedb database."""

    exit_code = 4


class BusyError(TuneDBError):
    """Another process held the database for longer than the time limit."""

    exit_code = 5


class StorageError(TuneDBError):
    """The storage failed: disk full, read-only, damaged file, lost connection."""


class UnreachableError(StorageError):
    """A server that does not answer, or that cut the connection; it may come back."""

    # As for a busy database: the same command may succeed later.
    exit_code = 5


class FormatError(TuneDBError):
    """Bytes that do not follow their format; the message has file, line and reason."""


class IntegrityError(TuneDBError):
    """A digest does not match the row that carries it."""


class LimitError(TuneDBError):
    """A value exceeds a bound of :mod:`tunedb.limits`."""


class TargetError(UsageError):
    """A handle is not bound to a target, or a query names another one."""


class PluginError(TuneDBError):
    """A plugin cannot work in this environment."""
