"""Which database a command means, where none is named.

In this order: what the caller names, the environment variable ``TUNEDB_URL``, ``url`` in a
``tunedb.toml`` of the working directory or one above it, and a file in the user's data directory.

A ``tunedb.toml`` counts where it belongs to the user and nobody else may write it, and what it
names where the user has approved it (:mod:`tunedb.storage.approval`): the folders above may be
anybody's.
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

#: Names the team's server, with which ``tunedb push`` and ``tunedb pull`` exchange.
SERVER_VARIABLE = "TUNEDB_SERVER"

_log = logging.getLogger("tunedb")

_KEYS = ("url", "server", "layers")


@dataclass(frozen=True, slots=True)
class Location:
    """A database and who named it.

    Parameters
    ----------
    url : str
        As :func:`tunedb.open` takes it. May hold a password: show ``Store.location`` instead.
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
        """Whether nobody named it."""
        return self.origin == "default"


def locate(
    url: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Location:
    """Return the database that is meant.

    Parameters
    ----------
    url : str or None
        What the user named; wins over everything else.
    environ : mapping or None
        The environment; that of the process where None.
    folder : Path or None
        Where the search for ``tunedb.toml`` begins; the working directory where None.

    Raises
    ------
    UsageError
        A ``tunedb.toml`` that does not name a database.
    ApprovalError
        A ``tunedb.toml`` that is not the user's, or names a database that is not approved.
    FormatError
        A ``tunedb.toml`` that is not TOML.
    StorageError
        A ``tunedb.toml`` that cannot be read.
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
    """Return the database with which records are exchanged, as :func:`locate`.

    Parameters
    ----------
    url : str or None
        What the user named; wins over ``TUNEDB_SERVER`` and over ``server`` in a ``tunedb.toml``.
    environ, folder
        As for :func:`locate`.

    Raises
    ------
    UsageError
        Nobody names one.
    ApprovalError, FormatError, StorageError
        As :func:`locate`.
    """
    if url is not None:
        return Location(url, "the command")
    named = (os.environ if environ is None else environ).get(SERVER_VARIABLE)
    if named:
        return Location(named, SERVER_VARIABLE)
    file = find_file(folder or Path.cwd())
    found = None if file is None else read_file(file).get("server")
    if file is None or found is None:
        raise UsageError(
            "no server is set; give its URL, set TUNEDB_SERVER, or write "
            'server = "postgresql://HOST/NAME" into tunedb.toml'
        )
    return Location(_approved(file, found), str(file))


def locate_layers(
    urls: Sequence[str] | None = None, *, folder: Path | None = None
) -> tuple[str, ...]:
    """Return the databases that answer behind one's own.

    Parameters
    ----------
    urls : sequence of str or None
        What the user named; wins over ``layers`` in a ``tunedb.toml``.
    folder : Path or None
        As for :func:`locate`.

    Raises
    ------
    UsageError, FormatError, StorageError
        As :func:`locate`.
    ApprovalError
        A layer of the ``tunedb.toml`` is not approved. A file that is not the user's has no layers,
        with a warning: the database may be named elsewhere.
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
    """Return what a ``tunedb.toml`` says.

    Raises
    ------
    ApprovalError
        It belongs to somebody else, or others may write it.
    UsageError
        It has another key, or a value that is no text; ``layers`` are a list of texts.
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
    """Return the bytes of a file of the user's; what is looked at is what was opened."""
    from ..system.files import open_regular
    from .approval import objection

    with open_regular(file) as opened:
        status = os.fstat(opened.fileno())
        reason = objection(status)
        if reason is not None:
            word = shlex.quote(str(file))
            mend = "chmod go-w" if status.st_uid == os.geteuid() else 'sudo chown "$USER"'
            raise ApprovalError(
                f"{file}: {reason}, so it is ignored; name the database with --db, "
                f"or look at the file and run: {mend} {word}"
            )
        return opened.read()


def default_path() -> Path:
    """Return the file in the user's data directory that serves where no database is named."""
    from platformdirs import user_data_path

    return user_data_path("tunedb", appauthor=False) / "tune.db"


def make_folder(location: Location) -> None:
    """Make the folder of the default database; one that somebody named must exist.

    A typing error in a path would otherwise become a new, empty database in a new folder.

    Raises
    ------
    StorageError
        It cannot be made.
    """
    if not location.is_default:
        return
    folder = Path(location.url).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be made ({error.strerror})") from None


def _approved(file: Path, url: str) -> str:
    """Return a database that a ``tunedb.toml`` names, if the user has approved it."""
    from .approval import require_named

    found = _beside(file, url)
    require_named(found, str(file))
    return found


def _beside(file: Path, url: str) -> str:
    """Return a URL of a ``tunedb.toml``, whose relative paths begin at its folder."""
    scheme, separator, path = url.partition(":///")
    if separator and scheme == "sqlite":
        return f"{scheme}{separator}{file.parent / path}" if path and path != ":memory:" else url
    if "://" in url or url == ":memory:":
        return url
    return str(file.parent / Path(url).expanduser())
