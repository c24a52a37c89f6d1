"""Every error that tunedb raises on purpose, with the exit code that the CLI gives it.

Each message is one line that says what went wrong, where, and how to go on.
"""

from __future__ import annotations

from typing import ClassVar


class TuneDBError(Exception):
    """Base of all errors of tunedb."""

    #: Exit status of the command line for this class (see ``tunedb --help``).
    exit_code: ClassVar[int] = 1


class UsageError(TuneDBError):
    """A call or command that cannot be carried out as it was written."""

    exit_code = 2


class ApprovalError(UsageError):
    """TVM was to get something of a database that the user has not approved."""


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
    """The medium refused: disk full, read-only, damaged file, lost connection."""


class UnreachableError(StorageError):
    """A server that does not answer, or that cut the connection; it may come back."""

    # As for a database that is busy: the same command may succeed later.
    exit_code = 5


class FormatError(TuneDBError):
    """Bytes that are not what their format promises (file, line and reason are in the message)."""


class IntegrityError(TuneDBError):
    """A digest does not match the row that carries it."""


class LimitError(TuneDBError):
    """A bound of :mod:`tunedb.limits` was exceeded."""


class TargetError(UsageError):
    """A handle has no target to serve, or was asked for another one."""


class PluginError(TuneDBError):
    """A plugin cannot work in this environment."""
