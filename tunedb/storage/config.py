"""Location of the database when a command names none.

In this order: the caller's choice, the environment variable ``TUNEDB_URL``, ``url`` in a
``tunedb.toml`` of the working directory or a folder above it, and a file in the user's data
directory.

Folders above may belong to anybody. A ``tunedb.toml`` is therefore read only if the user owns it
and nobody else may write it, and the databases that it names must be approved
(:mod:`tunedb.storage.approval`).
"""

from __future__ import annotations

import logging
import os
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ApprovalError, FormatError, StorageError, UsageError

VARIABLE = "TUNEDB_URL"
FILE = "tunedb.toml"

#: Environment variable with the team's server, for ``tunedb push`` and ``tunedb pull``.
SERVER_VARIABLE = "TUNEDB_SERVER"

_log = logging.getLogger("tunedb")

_KEYS = ("url", "server", "layers")


@dataclass(frozen=True, slots=True)
class Location:
    """A database and where its name came from.

    Parameters
    ----------
    url : str
        Database, as for :func:`tunedb.open`. May hold a password: print ``Store.location`` instead.
    origin : str
        For messages: ``--db``, ``TUNEDB_URL``, the path of a ``tunedb.toml``, or ``default``.
    """

    url: str
    origin: str

    def __repr__(self) -> str:
        # The URL may hold a password, and tracebacks show representations.
        return f"Location(origin={self.origin!r})"

    @property
    def is_default(self) -> bool:
        """True if the user named no database."""
        return self.origin == "default"


def locate(
    url: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Location:
    """Return the database to use.

    Parameters
    ----------
    url : str or None
        The user's choice, which overrides everything else.
    environ : mapping or None
        Environment variables; None for those of the process.
    folder : Path or None
        Folder where the search for ``tunedb.toml`` begins; None for the working directory.

    Raises
    ------
    UsageError
        The ``tunedb.toml`` has an unknown key or a wrong value.
    ApprovalError
        The ``tunedb.toml`` is not the user's, or names a database that is not approved.
    FormatError
        The ``tunedb.toml`` is not TOML.
    StorageError
        The ``tunedb.toml`` cannot be read.
    """
    if url is not None:
        return Location(url, "--db")
    named = (os.environ if environ is None else environ).get(VARIABLE)
    if named:
        return Location(named, VARIABLE)
    file = find_file(folder or Path.cwd())
    if file is not None:
        named = read_file(file).get("url")
        if named is not None:
            return Location(_approved(file, named), str(file))
    return Location(str(default_path()), "default")


def locate_server(
    url: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Location:
    """Return the database to exchange records with.

    Parameters
    ----------
    url : str or None
        The user's choice, which overrides ``TUNEDB_SERVER`` and ``server`` in a ``tunedb.toml``.
    environ, folder
        As for :func:`locate`.

    Raises
    ------
    UsageError
        No server is named.
    ApprovalError, FormatError, StorageError
        As for :func:`locate`.
    """
    if url is not None:
        return Location(url, "the command")
    named = (os.environ if environ is None else environ).get(SERVER_VARIABLE)
    if named:
        return Location(named, SERVER_VARIABLE)
    file = find_file(folder or Path.cwd())
    server = None if file is None else read_file(file).get("server")
    if file is None or server is None:
        raise UsageError(
            "no server is set; give its URL, set TUNEDB_SERVER, or write "
            'server = "postgresql://HOST/NAME" into tunedb.toml'
        )
    return Location(_approved(file, server), str(file))


def locate_layers(
    urls: Sequence[str] | None = None, *, folder: Path | None = None
) -> tuple[str, ...]:
    """Return the databases to query after the user's own.

    Parameters
    ----------
    urls : sequence of str or None
        The user's choice, which overrides ``layers`` in a ``tunedb.toml``.
    folder : Path or None
        As for :func:`locate`.

    Raises
    ------
    UsageError, FormatError, StorageError
        As for :func:`locate`.
    ApprovalError
        A layer of the ``tunedb.toml`` is not approved. The layers of a file that is not the user's
        are ignored with a warning, because the database itself may be named elsewhere.
    """
    if urls:
        return tuple(urls)
    file = find_file(folder or Path.cwd())
    if file is None:
        return ()
    try:
        values = read_file(file)
    except ApprovalError as error:
        _log.warning("its layers are ignored: %s", error)
        return ()
    return tuple(_approved(file, url) for url in values.get("layers", ()))


def find_file(folder: Path) -> Path | None:
    """Return the ``tunedb.toml`` of a folder or the nearest one above it, or None."""
    folder = folder.absolute()
    candidates = (parent / FILE for parent in (folder, *folder.parents))
    return next((path for path in candidates if path.is_file()), None)


def read_file(file: Path) -> dict[str, Any]:
    """Return the values of a ``tunedb.toml``.

    Raises
    ------
    ApprovalError
        It belongs to another user, or others may write it.
    UsageError
        It has an unknown key or a wrong value; ``layers`` is a list of texts, the others are texts.
    FormatError
        It is not TOML.
    StorageError
        It cannot be read.
    """
    try:
        values: dict[str, Any] = tomllib.loads(_read_own(file).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{file}: not TOML ({error})") from None
    except OSError as error:
        raise StorageError(f"{file}: cannot be read ({error.strerror})") from None
    for key, value in values.items():
        if key not in _KEYS:
            raise UsageError(f"{file}: unknown key {key!r}; known: {', '.join(_KEYS)}")
        if key == "layers":
            if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
                raise UsageError(f'{file}: layers must be texts, e.g. layers = ["team.db"]')
        elif not isinstance(value, str) or not value:
            raise UsageError(f'{file}: {key} must be text, e.g. {key} = "tune.db"')
    return values


def _read_own(file: Path) -> bytes:
    """Return the bytes of the user's file; its ownership is checked after opening."""
    from ..system.files import open_regular
    from .approval import ownership_problem

    with open_regular(file) as opened:
        status = os.fstat(opened.fileno())
        reason = ownership_problem(status)
        if reason is not None:
            word = shlex.quote(str(file))
            mend = "chmod go-w" if status.st_uid == os.geteuid() else 'sudo chown "$USER"'
            raise ApprovalError(
                f"{file}: {reason}, so it is ignored; name the database with --db, "
                f"or look at the file and run: {mend} {word}"
            )
        return opened.read()


def default_path() -> Path:
    """Return the default database: a file in the user's data directory."""
    from platformdirs import user_data_path

    return user_data_path("tunedb", appauthor=False) / "tune.db"


def make_folder(location: Location) -> None:
    """Create the folder of the default database; other folders must exist.

    Otherwise a typing error in a path would silently create a new, empty database.

    Raises
    ------
    StorageError
        The folder cannot be created.
    """
    if not location.is_default:
        return
    folder = Path(location.url).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be made ({error.strerror})") from None


def _approved(file: Path, url: str) -> str:
    """Return a database named by a ``tunedb.toml`` after checking its approval."""
    from .approval import require_named

    resolved = _resolved(file, url)
    require_named(resolved, str(file))
    return resolved


def _resolved(file: Path, url: str) -> str:
    """Resolve the relative path of a URL in a ``tunedb.toml`` against its folder."""
    scheme, separator, path = url.partition(":///")
    if separator and scheme == "sqlite":
        return f"{scheme}{separator}{file.parent / path}" if path and path != ":memory:" else url
    if "://" in url or url == ":memory:":
        return url
    return str(file.parent / Path(url).expanduser())
