"""Which databases the user has approved, so that TVM may get what they hold.

A database is approved where it is made, and by ``tunedb db trust``. An approval is of a place (the
real path of a file, or the host and name of a server's database) and of the store key that was
found there. So neither a database that is put in the place of another, nor a copy of one elsewhere,
is approved.

Each approval is a file of its own in the user's configuration folder, which appears as a whole: no
writer waits for another, and one that is killed leaves nothing half done.
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
from .engine import AnyURL, command_word, parse_url, place_of, sqlite_path

_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Approval:
    """A database that the user believes.

    Parameters
    ----------
    location : str
        The real path of a file, or the URL of a server's database without the account.
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
    """Return the folder with the user's approvals, which need not exist."""
    from platformdirs import user_config_path

    return user_config_path("tunedb", appauthor=False) / "approved"


def approve(url: AnyURL, store_key: str) -> Approval:
    """Approve a database; replaces what was approved at its place.

    Parameters
    ----------
    url : str, Path or URL
        As :func:`tunedb.open` takes it.
    store_key : str
        Key of the database that is there now.

    Raises
    ------
    StorageError
        The approval cannot be written, or others can write where it would be.
    """
    location = place_of(parse_url(url))
    made = Approval(location, store_key, _owner(url), time.time_ns() // 1000)
    where = folder()
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_private(where)
        # A name that the next writer of this number takes again, so that nothing piles up.
        temporary = where / f".{os.getpid()}-{threading.get_ident()}.new"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as out:
            json.dump(asdict(made), out)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(_file(where, location))
    except OSError as error:
        raise StorageError(f"{where}: cannot be written ({error.strerror})") from None
    return made


def forget(url: AnyURL) -> bool:
    """Take an approval back; return whether there was one."""
    where = folder()
    try:
        _file(where, place_of(parse_url(url))).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{where}: cannot be written ({error.strerror})") from None
    return True


def approvals() -> tuple[list[Approval], list[TuneDBError]]:
    """Return all approvals in order of their locations, and why others cannot be read."""
    where = folder()
    found: list[Approval] = []
    errors: list[TuneDBError] = []
    try:
        _require_private(where)
        for path in where.glob(f"*{_SUFFIX}"):
            try:
                found.append(_read(path))
            except (FormatError, StorageError) as error:
                errors.append(error)
    except FileNotFoundError:
        pass
    except StorageError as error:
        errors.append(error)
    return sorted(found, key=lambda one: one.location), errors


def require(url: AnyURL, store_key: str) -> None:
    """Raise unless the user has approved the database that was found behind a URL.

    Raises
    ------
    ApprovalError
        The user has not, or another one was there.
    """
    reason = _why_not(url, store_key)
    if reason is not None:
        word = command_word(parse_url(url))
        raise ApprovalError(f"{word}: {reason}; to let TVM use it, run: tunedb db trust {word}")


def require_named(url: AnyURL, named_by: str) -> None:
    """Raise unless a database that a file names is approved, or a file that is still to be made.

    Of a server only the place is looked at; its key is, before TVM gets anything.

    Parameters
    ----------
    url : str, Path or URL
        The database.
    named_by : str
        The file, for the message.

    Raises
    ------
    ApprovalError
        It is there and not approved.
    """
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    # Whoever makes it approves it. lexists: a link to nowhere is somebody's, too.
    if path is not None and not os.path.lexists(path):
        return
    reason = _why_not(parsed, _key_of(parsed))
    if reason is not None:
        word = command_word(parsed)
        raise ApprovalError(
            f"{named_by} names {word}: {reason}; check it and run: tunedb db trust {word}"
        )


def owner_of(url: AnyURL) -> str | None:
    """Return the name of the user whom a database's file belongs to; None for a server."""
    owner = _owner(url)
    return None if owner is None else _name(owner)


def is_own_file(url: AnyURL) -> bool:
    """Tell whether the file of a database belongs to the user; True where there is no file."""
    return _owner(url) in (None, os.geteuid())


def objection(status: os.stat_result) -> str | None:
    """Return why a file is not the user's own word, or None where it is."""
    if status.st_uid != os.geteuid():
        return f"it belongs to {_name(status.st_uid)}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write it"
    return None


def _why_not(url: AnyURL, store_key: str | None) -> str | None:
    """Return why a database is not approved, or None; without a key any at that place is meant."""
    parsed = parse_url(url)
    if sqlite_path(parsed) is None and parsed.get_backend_name() == "sqlite":
        return None  # in memory
    where, location = folder(), place_of(parsed)
    try:
        _require_private(where)
        known = _read(_file(where, location))
    except FileNotFoundError:
        return "you have not approved it"
    except TuneDBError as error:
        return f"its approval does not count ({error})"
    if store_key is not None and known.store != store_key:
        return f"it is not the database that you approved there (store {known.store[:8]})"
    if known.owner != _owner(parsed):
        return "its file does not belong to the user who had it when you approved it"
    return None


def _key_of(url: AnyURL) -> str | None:
    """Return the store key of a file; None where it has none, which whoever opens it will say."""
    if sqlite_path(parse_url(url)) is None:
        return None
    try:
        return describe(parse_url(url)).meta.get("store")
    except TuneDBError:
        return None


def _file(where: Path, location: str) -> Path:
    """Return the file of an approval; paths are too long for names."""
    name = identity.digest("approval", os.fsencode(location)).hex()
    return where / f"{name}{_SUFFIX}"


def _read(path: Path) -> Approval:
    """Return an approval.

    Raises
    ------
    FileNotFoundError
        There is none.
    FormatError, StorageError
        It cannot be read, or others could write it.
    """
    try:
        with path.open("rb") as file:
            reason = objection(os.fstat(file.fileno()))
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
    made = Approval(**values)
    if not isinstance(made.location, str) or not isinstance(made.store, str):
        raise FormatError(f"{path}: no approval")
    return made


def _require_private(where: Path) -> None:
    """Raise StorageError for a folder that others own or may write, or that cannot be read."""
    try:
        reason = objection(where.stat())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"{where}: cannot be read ({error.strerror})") from None
    if reason is not None:
        raise StorageError(f"{where}: {reason}; run: chmod go-w {where}, or remove it")


def _owner(url: AnyURL) -> int | None:
    """Return the user id of a file's owner; None where there is no file."""
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
