"""Bundles: a part of a database as one stream of bytes, for mail and object storage.

:mod:`tunedb.sharing.framing` says what the bytes are. A bundle is verified as a whole before its
first row is given, so one that was cut or changed gives nothing. Rows carry no digests: whoever
merges them computes each anyway.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from .. import __version__, limits, schema
from ..errors import (
    FormatError,
    IntegrityError,
    LimitError,
    NotFoundError,
    StorageError,
    UsageError,
)
from ..files import new_file, open_regular
from .filtering import filtered
from .foreign import is_sqlite
from .framing import MAGIC, Sealed, read_frames, read_sealed, write_frames
from .selection import Selection
from .wire import Chunk, Position

__all__ = ["MAGIC", "BundlePeer", "Manifest", "Sealed", "manifest_of", "write_bundle"]

_FORMAT = "tunedb-bundle"

#: What a bundle from standard input is called.
STDIN_NAME = "<stdin>"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says of itself; the merge believes none of it.

    Parameters
    ----------
    tunedb : str
        Version that wrote it.
    revision : str
        Schema revision of that version.
    store : str
        Key of the database that it was made from.
    created_at : int
        Microseconds since 1970, UTC. With the digest it is all that differs between two bundles of
        the same database and selection.
    selection : dict
        What was chosen, as the fields of :class:`tunedb.sharing.selection.Selection`.
    """

    tunedb: str
    revision: str
    store: str
    created_at: int
    selection: dict[str, Any]


def manifest_of(store_key: str, selection: Selection) -> Manifest:
    """Return the manifest of a bundle that is made now."""
    now = time.time_ns() // 1000
    return Manifest(__version__, schema.HEAD, store_key, now, fields_of(selection))


def fields_of(selection: Selection) -> dict[str, Any]:
    """Return a selection as a manifest has it."""
    values = asdict(selection).items()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values}


# ---------------------------------------------------------------------------- writing


def write_bundle(
    out: str | Path | IO[bytes],
    chunks: Iterable[Chunk],
    manifest: Manifest,
    *,
    force: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Sealed:
    """Write a bundle.

    Parameters
    ----------
    out : path or binary file
        A path gets the whole bundle or nothing: it is written beside its place and moved there.
    chunks : iterable of Chunk
        What to write: :meth:`tunedb.sharing.wire.Peer.chunks`.
    manifest : Manifest
        :func:`manifest_of`.
    force : bool
        Replace a file that exists.
    on_progress : callable or None
        Called with the number of measurements that were written so far.

    Returns
    -------
    Sealed
        Counts, size and digest.

    Raises
    ------
    UsageError
        The file exists and `force` is false, it is a database, or it is no place for a file.
    NotFoundError
        There is no row to write; a path is left as it was.
    StorageError
        The medium refused.
    FormatError, LimitError
        A row is none that a bundle can hold.
    """
    said = {"format": _FORMAT, **asdict(manifest)}
    counted = chunks if on_progress is None else _counting(chunks, on_progress)
    if not isinstance(out, str | Path):
        return write_frames(out, said, counted)
    path = Path(out)
    try:
        if path.is_dir():
            raise UsageError(f"{path}: a directory; give the name of a file")
        if is_sqlite(path):
            raise UsageError(f"{path}: a database, which a bundle would replace; give another name")
        with new_file(path, force=force) as made, made.open("wb") as file:
            sealed = write_frames(file, said, counted)
            if not any(sealed.counts.values()):
                raise NotFoundError(f"{path}: no record to bundle; nothing was written")
    except FileExistsError:
        raise UsageError(f"{path} exists; give --force to replace it") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from None
    return sealed


def _counting(chunks: Iterable[Chunk], on_progress: Callable[[int], None]) -> Iterator[Chunk]:
    """Yield chunks, and say how many measurements have gone by."""
    done = 0
    for chunk in chunks:
        yield chunk
        if chunk.table == "measurement":
            done += len(chunk.rows)
            on_progress(done)


# ---------------------------------------------------------------------------- reading


class BundlePeer:
    """A bundle that can be read, as a peer of an exchange.

    It is looked at as a whole first: each byte and each row.

    Parameters
    ----------
    path : str or Path
        A regular file; ``-`` is standard input, which is copied to a temporary file.

    Attributes
    ----------
    location : str
        Its path.
    store_key : str
        The database that it says it was made from.
    total : int
        Measurements in it.
    manifest : Manifest
        What it says of itself.
    sealed : Sealed
        Its counts, size and digest.

    Raises
    ------
    NotFoundError
        There is no such file.
    StorageError
        It cannot be read.
    FormatError
        It is no bundle, one of a newer version, or not written as one.
    IntegrityError
        A byte is missing or has changed.
    LimitError
        It would unpack to more than a bundle may hold.
    """

    def __init__(self, path: str | Path) -> None:
        self.location = STDIN_NAME if str(path) == "-" else str(path)
        self._file = _opened(path, self.location)
        try:
            with _named(self.location):
                self.sealed = read_sealed(self._file)
                self.manifest = _manifest(self.sealed.manifest)
        except BaseException:
            self._file.close()
            raise
        self.store_key = self.manifest.store
        self.total = self.sealed.counts["measurement"]

    def chunks(
        self, selection: Selection, since: Position | None = None, until: Position | None = None
    ) -> Iterator[Chunk]:
        """Yield what is selected, each row after those that it refers to.

        Raises
        ------
        UsageError
            A position is given: a bundle has none.
        NotFoundError
            The selection names what is not in it.
        """
        if since is not None or until is not None:
            raise UsageError(f"{self.location}: a bundle has no positions; merge it as a whole")
        return self._chunks(selection)

    def _chunks(self, selection: Selection) -> Iterator[Chunk]:
        with _named(self.location):
            yield from filtered(self._all, selection)

    def _all(self) -> Iterator[Chunk]:
        return read_frames(self._file)

    def close(self) -> None:
        """Give back the file."""
        self._file.close()

    def __enter__(self) -> BundlePeer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextmanager
def _named(location: str) -> Iterator[None]:
    """Put a bundle's name before what is wrong with its bytes."""
    try:
        yield
    except (FormatError, IntegrityError, LimitError, StorageError) as error:
        raise type(error)(f"{location}: {error}") from None


def _opened(path: str | Path, location: str) -> IO[bytes]:
    """Open a bundle so that it can be read from any place in it."""
    if str(path) == "-":
        return _spooled(sys.stdin.buffer, location)
    try:
        # Before it is opened, which would drop the locks of a database that this process has open.
        if is_sqlite(Path(path)):
            raise FormatError(f"{location}: a database, not a bundle")
        return open_regular(path, advice="give - and pipe the bundle into standard input")
    except IsADirectoryError:
        raise UsageError(f"{location}: a directory; give a bundle's file") from None
    except FileNotFoundError:
        raise NotFoundError(f"{location}: no such file") from None
    except OSError as error:
        raise StorageError(f"{location}: cannot be read ({error.strerror})") from None


def _spooled(file: IO[bytes], location: str) -> IO[bytes]:
    """Return a temporary file with all bytes of a stream."""
    with ExitStack() as stack:
        try:
            kept = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(file, kept, 2**20)
            kept.flush()
        except OSError as error:
            folder = tempfile.gettempdir()
            raise StorageError(
                f"{location}: cannot be kept in {folder} ({error.strerror})"
            ) from None
        stack.pop_all()
    return kept


def _manifest(value: dict[str, Any]) -> Manifest:
    """Return what a bundle says of itself."""
    rest = dict(value)
    if rest.pop("format", None) != _FORMAT:
        raise FormatError("its manifest is that of no bundle")
    types = {"tunedb": str, "revision": str, "store": str, "created_at": int, "selection": dict}
    for field in fields(Manifest):
        found = rest.get(field.name)
        if type(found) is not types[field.name]:
            raise FormatError(f"its manifest has no {field.name}")
        if isinstance(found, str) and not 0 < len(found) <= limits.MAX_NAME_CHARS:
            raise FormatError(f"its manifest has no {field.name} that could be one")
    # What a later version says besides is not looked at.
    return Manifest(**{field.name: rest[field.name] for field in fields(Manifest)})
