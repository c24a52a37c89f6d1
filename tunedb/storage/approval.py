"""Approvals: the databases whose content may reach TVM.

A database is approved when it is created, and by ``tunedb db trust``. An approval covers a place
(the real path of a file, or the host and name of a server's database) together with the store key
found there. A database put in the place of another is therefore not approved, and neither is a
copy elsewhere.

Each approval is a file of its own in the user's configuration folder and is written atomically:
writers need no lock, and a killed one leaves nothing half written.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from .. import identity
from ..errors import ApprovalError, FormatError, StorageError, TuneDBError
from .describe import describe
from .engine import AnyURL, canonical_location, parse_url, shell_word, sqlite_path

_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Approval:
    """A database approved by the user.

    Parameters
    ----------
    location : str
        Real path of a file, or URL of a server's database without the account.
    store : str
        Key of the database.
    owner : int or None
        User id of the file's owner; None for a server.
    approved_at : int
        Microseconds since 1970, UTC.
    """

    location: str
    store: str
    owner: int | None
    approved_at: int


def folder() -> Path:
    """Return the folder with the user's approvals; it need not exist."""
    from platformdirs import user_config_path

    return user_config_path("tunedb", appauthor=False) / "approved"


def approve(url: AnyURL, store_key: str) -> Approval:
    """Approve a database, replacing the approval of its place.

    Parameters
    ----------
    url : str, Path or URL
        Database, as for :func:`tunedb.open`.
    store_key : str
        Key of the database that is there now.

    Returns
    -------
    Approval

    Raises
    ------
    StorageError
        The approval cannot be written, or others can write to its folder.
    """
    location = canonical_location(parse_url(url))
    approval = Approval(location, store_key, _owner(url), time.time_ns() // 1000)
    where = folder()
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_private(where)
        # The next process with this id reuses the name: leftovers of killed ones do not pile up.
        temporary = where / f".{os.getpid()}-{threading.get_ident()}.new"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as out:
            json.dump(asdict(approval), out)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(_file(where, location))
    except OSError as error:
        raise StorageError(f"{where}: cannot be written ({error.strerror})") from None
    return approval


def forget(url: AnyURL) -> bool:
    """Remove an approval; return true if there was one."""
    where = folder()
    try:
        _file(where, canonical_location(parse_url(url))).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{where}: cannot be written ({error.strerror})") from None
    return True


def approvals() -> tuple[list[Approval], list[TuneDBError]]:
    """Return all approvals, sorted by location, and the errors of unreadable ones."""
    where = folder()
    readable: list[Approval] = []
    errors: list[TuneDBError] = []
    try:
        _require_private(where)
        for path in where.glob(f"*{_SUFFIX}"):
            try:
                readable.append(_read(path))
            except (FormatError, StorageError) as error:
                errors.append(error)
    except FileNotFoundError:
        pass
    except StorageError as error:
        errors.append(error)
    return sorted(readable, key=lambda approval: approval.location), errors


def require(url: AnyURL, store_key: str) -> None:
    """Check that the user has approved the database found behind a URL.

    Raises
    ------
    ApprovalError
        It is not approved, or the approval is of a different database.
    """
    reason = _objection(url, store_key)
    if reason is not None:
        word = shell_word(parse_url(url))
        raise ApprovalError(f"{word}: {reason}; to let TVM use it, run: tunedb db trust {word}")


def require_named(url: AnyURL, named_by: str) -> None:
    """Check that a database named by a configuration file is approved, or does not exist yet.

    For a server only the place is checked here; its key is checked before TVM gets anything.

    Parameters
    ----------
    url : str, Path or URL
        The database.
    named_by : str
        The file, for the message.

    Raises
    ------
    ApprovalError
        The database exists and is not approved.
    """
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    # Creating a database approves it. lexists: a dangling link may be an attack.
    if path is not None and not os.path.lexists(path):
        return
    reason = _objection(parsed, _key_of(parsed))
    if reason is not None:
        word = shell_word(parsed)
        raise ApprovalError(
            f"{named_by} names {word}: {reason}; check it and run: tunedb db trust {word}"
        )


def owner_of(url: AnyURL) -> str | None:
    """Return the name of the user who owns a database's file; None for a server."""
    owner = _owner(url)
    return None if owner is None else _name(owner)


def is_own_file(url: AnyURL) -> bool:
    """Return true if the user owns the database's file; true if there is no file."""
    return _owner(url) in (None, os.geteuid())


def ownership_problem(status: os.stat_result) -> str | None:
    """Return why a file is not the user's alone, or None if it is."""
    if status.st_uid != os.geteuid():
        return f"it belongs to {_name(status.st_uid)}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write it"
    return None


def _objection(url: AnyURL, store_key: str | None) -> str | None:
    """Return why a database is not approved, or None; without a key any at that place counts."""
    parsed = parse_url(url)
    if sqlite_path(parsed) is None and parsed.get_backend_name() == "sqlite":
        return None  # in memory
    where, location = folder(), canonical_location(parsed)
    try:
        _require_private(where)
        approval = _read(_file(where, location))
    except FileNotFoundError:
        return "you have not approved it"
    except TuneDBError as error:
        return f"its approval does not count ({error})"
    if store_key is not None and approval.store != store_key:
        return f"it is not the database that you approved there (store {approval.store[:8]})"
    if approval.owner != _owner(parsed):
        return "its file does not belong to the user who had it when you approved it"
    return None


def _key_of(url: AnyURL) -> str | None:
    """Return the store key of a file, or None; opening the file reports its problems."""
    if sqlite_path(parse_url(url)) is None:
        return None
    try:
        return describe(parse_url(url)).meta.get("store")
    except TuneDBError:
        return None


def _file(where: Path, location: str) -> Path:
    """Return the file of an approval; a path would be too long for a name."""
    name = identity.digest("approval", os.fsencode(location)).hex()
    return where / f"{name}{_SUFFIX}"


def _read(path: Path) -> Approval:
    """Read an approval; raises FileNotFoundError, FormatError or StorageError."""
    try:
        with path.open("rb") as file:
            reason = ownership_problem(os.fstat(file.fileno()))
            if reason is not None:
                raise StorageError(f"{path}: {reason}")
            values = json.load(file)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise FormatError(f"{path}: not JSON") from None
    names = [field.name for field in fields(Approval)]
    if not isinstance(values, dict) or sorted(values) != sorted(names):
        raise FormatError(f"{path}: no approval")
    approval = Approval(**values)
    if not isinstance(approval.location, str) or not isinstance(approval.store, str):
        raise FormatError(f"{path}: no approval")
    return approval


def _require_private(where: Path) -> None:
    """Raise StorageError if others own or may write a folder, or it cannot be read."""
    try:
        reason = ownership_problem(where.stat())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"{where}: cannot be read ({error.strerror})") from None
    if reason is not None:
        raise StorageError(f"{where}: {reason}; run: chmod go-w {where}, or remove it")


def _owner(url: AnyURL) -> int | None:
    """Return the user id of a file's owner; None if there is no file."""
    path = sqlite_path(parse_url(url))
    if path is not None:
        with suppress(OSError):
            return path.stat().st_uid
    return None


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
