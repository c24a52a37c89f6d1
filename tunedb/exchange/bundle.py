"""Bundles: a part of a database as one stream of bytes, for mail and object storage.

:mod:`tunedb.exchange.bundle` says what the bytes are. A bundle is verified as a whole before its
first row is given, so one that was cut or changed gives nothing. Rows carry no digests: whoever
merges them computes each anyway.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from .. import __version__, limits
from ..errors import (
    FormatError,
    IntegrityError,
    LimitError,
    NotFoundError,
    StorageError,
    UsageError,
)
from ..identity import canonical_json
from ..json_checks import check_value, parse_json
from ..storage import exchanged, schema
from ..storage.columns import BUNDLE_VERSION
from ..storage.exchanged import Chunk, Position, Selection
from ..system.files import new_file, open_regular
from .columns import decode, encode
from .foreign_file import is_sqlite
from .selection import filtered

# ---- A bundle's bytes: a head, blocks of rows in one zstd frame, and a digest over all of it -----
#
# ::
#
#     magic (8)  version (2)  length of the manifest (4)  manifest (JSON)
#     zstd frame of
#         table (1)  rows (4)  length (8)  columns          once for each block
#         255        0         length      counts (JSON)    the last one
#     BLAKE2b-256 of all bytes before it (32)
#
# Numbers are little-endian. Blocks share one frame, so that each is compressed against those before
# it. How many rows there are is known at the end only, because a bundle is written as it is read,
# to a pipe too.

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: As PNG's: what is no text, and line ends that a transfer as text would change.
MAGIC = b"\x89TDB\r\n\x1a\n"

_HEAD = struct.Struct("<HI")
_BLOCK = struct.Struct("<BIQ")
_END = 255
_TABLES = tuple(exchanged.COLUMNS)

#: Version → the tables that its bundles may hold, in the order of their numbers.
_TABLES_OF = {
    **dict.fromkeys(range(1, BUNDLE_VERSION + 1), _TABLES),
    1: _TABLES[: _TABLES.index("counter_set")],
}

DIGEST_BYTES = 32

#: 27,000 records of old logs and 2,300 of a processor take 25 and 56 bytes each, and 5 and 19 us;
#: with level 3 28 and 80 in 4 us, with level 19 23 and 50 in 46 and 203 us.
_LEVEL = 12

#: A window of 8 MiB, which is also what reading takes in memory.
_WINDOW_LOG = 23

_PIECE_BYTES = 2**16
_HASHED_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Sealed:
    """What stands around the rows of a bundle.

    Parameters
    ----------
    manifest : dict
        What the writer says of it.
    counts : dict
        Table → its rows.
    size : int
        Bytes of all.
    digest : bytes
        BLAKE2b-256 of all bytes before it.
    """

    manifest: dict[str, Any]
    counts: dict[str, int]
    size: int
    digest: bytes


# ---------------------------------------------------------------------------- writing


class _Digested:
    """Writes bytes and hashes them."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.size = 0

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._out.write(data)
        self.size += len(data)

    def seal(self) -> bytes:
        digest = self._hash.digest()
        self._out.write(digest)
        self.size += len(digest)
        return digest


def write_frames(
    out: IO[bytes],
    manifest: dict[str, Any],
    chunks: Iterable[exchanged.Chunk],
    *,
    level: int = _LEVEL,
) -> Sealed:
    """Write a bundle, and return what stands around its rows.

    Parameters
    ----------
    out : binary file
        Where to; it need not be seekable.
    manifest : dict
        What to say of it.
    chunks : iterable of Chunk
        What to write.
    level : int
        Of zstd.

    Raises
    ------
    FormatError
        A row is none that a bundle can hold.
    LimitError
        A row is larger than :data:`tunedb.limits.MAX_BLOCK_BYTES`, or :func:`read_sealed` would
        refuse the bundle.
    """
    digested = _Digested(out)
    head = canonical_json(manifest)
    if len(head) > limits.MAX_MANIFEST_BYTES:
        raise LimitError(f"a manifest of {len(head)} bytes is over {limits.MAX_MANIFEST_BYTES}")
    digested.write(MAGIC + _HEAD.pack(BUNDLE_VERSION, len(head)) + head)
    parameter = zstd.CompressionParameter
    options = {int(parameter.compression_level): level, int(parameter.window_log): _WINDOW_LOG}
    compressor = zstd.ZstdCompressor(options=options)
    counts = dict.fromkeys(_TABLES, 0)
    for chunk in chunks:
        for count, data in _blocks(chunk.table, chunk.rows):
            counts[chunk.table] += count
            header = _BLOCK.pack(_TABLES.index(chunk.table), count, len(data))
            digested.write(compressor.compress(header + data))
    end = canonical_json(counts)
    header = _BLOCK.pack(_END, 0, len(end))
    digested.write(compressor.compress(header + end, compressor.FLUSH_FRAME))
    _check_rows(sum(counts.values()), digested.size)
    digest = digested.seal()
    return Sealed(manifest, counts, digested.size, digest)


def _blocks(table: str, rows: list[tuple[Any, ...]]) -> Iterator[tuple[int, bytes]]:
    """Yield the number of rows and the columns of each block that rows need."""
    if not rows:
        return
    if len(rows) <= limits.BATCH_ROWS:
        data = encode(table, rows)
        if len(data) <= limits.BLOCK_BYTES or len(rows) == 1:
            if len(data) > limits.MAX_BLOCK_BYTES:
                raise LimitError(
                    f"a row of table {table} has {len(data)} bytes, over "
                    f"{limits.MAX_BLOCK_BYTES}; merge the database itself"
                )
            yield len(rows), data
            return
    half = min(len(rows) // 2, limits.BATCH_ROWS)
    yield from _blocks(table, rows[:half])
    yield from _blocks(table, rows[half:])


def _check_rows(rows: int, size: int) -> None:
    """Raise LimitError for more rows than so many bytes may hold."""
    if rows > limits.MIN_BUNDLE_ROWS and rows > limits.MAX_ROWS_PER_BYTE * size:
        raise LimitError(f"more than {limits.MAX_ROWS_PER_BYTE} rows for each byte")


# ---------------------------------------------------------------------------- reading


def read_sealed(file: IO[bytes]) -> Sealed:
    """Return what stands around the rows of a bundle, after looking at each of its bytes and rows.

    Parameters
    ----------
    file : binary file
        A regular one; its position does not matter and is not changed.

    Raises
    ------
    FormatError
        It is no bundle, one of a newer version, or not written as one.
    IntegrityError
        A byte is missing or has changed.
    LimitError
        It would unpack to more than a bundle may hold.
    """
    size = os.fstat(file.fileno()).st_size
    head = _read(file, 0, len(MAGIC) + _HEAD.size)
    if head[: len(MAGIC)] != MAGIC[: len(head)] or not head:
        raise FormatError("not a bundle of tunedb; give another file")
    if len(head) < len(MAGIC) + _HEAD.size:
        raise FormatError("truncated; get it again")
    version, length = _HEAD.unpack(head[len(MAGIC) :])
    if version not in _TABLES_OF:
        raise FormatError(
            f"a bundle of version {version}; this tunedb reads versions 1 to {BUNDLE_VERSION}: "
            + ("upgrade tunedb" if version > BUNDLE_VERSION else "get it again")
        )
    digest = _checked_digest(file, size)
    if length > limits.MAX_MANIFEST_BYTES:
        raise LimitError(f"a manifest of {length} bytes is over {limits.MAX_MANIFEST_BYTES}")
    if len(head) + length > size - DIGEST_BYTES:
        raise FormatError("its manifest is longer than the file")
    manifest = _read_object(_read(file, len(head), length), "the manifest")
    stream = _Stream(file, len(head) + length, size - DIGEST_BYTES)
    blocks = _Blocks(stream, version)
    for _ in blocks:
        pass
    return Sealed(manifest, dict.fromkeys(_TABLES, 0) | blocks.counts, size, digest)


def _checked_digest(file: IO[bytes], size: int) -> bytes:
    """Return the digest at the end, which must be that of all bytes before it."""
    hashed, at, end = hashlib.blake2b(digest_size=DIGEST_BYTES), 0, size - DIGEST_BYTES
    while at < end:
        piece = _read(file, at, min(_HASHED_BYTES, end - at))
        if not piece:
            raise StorageError("it was truncated while it was read")
        hashed.update(piece)
        at += len(piece)
    stated = _read(file, max(end, 0), DIGEST_BYTES)
    if hashed.digest() != stated:
        raise IntegrityError("truncated or changed (its digest does not match); get it again")
    return stated


def read_frames(file: IO[bytes]) -> Iterator[exchanged.Chunk]:
    """Yield the rows of a bundle that :func:`read_sealed` has looked at.

    Parameters
    ----------
    file : binary file
        A regular one; its position does not matter and is not changed.

    Raises
    ------
    FormatError, LimitError
        It is another file by now.
    """
    start = len(MAGIC) + _HEAD.size
    version, length = _HEAD.unpack(_read(file, len(MAGIC), _HEAD.size))
    if version not in _TABLES_OF:
        raise FormatError("another file replaced it")
    size = os.fstat(file.fileno()).st_size
    stream = _Stream(file, start + length, size - DIGEST_BYTES)
    yield from _Blocks(stream, version)


def _read(file: IO[bytes], at: int, size: int) -> bytes:
    if file.closed:
        raise StorageError("it was closed")
    try:
        return os.pread(file.fileno(), size, at)
    except OSError as error:
        raise StorageError(f"cannot be read ({error.strerror})") from None


def _read_object(data: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object of bounded depth."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise FormatError(f"{what} is not an object")
    check_value(value, what)
    return value


class _Stream:
    """The bytes that a bundle's frame holds, unpacked as they are asked for."""

    def __init__(self, file: IO[bytes], start: int, end: int) -> None:
        self._file, self._at, self._end = file, start, end
        option = int(zstd.DecompressionParameter.window_log_max)
        self._frame = zstd.ZstdDecompressor(options={option: _WINDOW_LOG})
        self._held = bytearray()
        self._unpacked = 0
        #: Compressed bytes that were read.
        self.consumed = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        while len(self._held) < size:
            self._more()
        data = bytes(memoryview(self._held)[:size])
        del self._held[:size]
        return data

    def finish(self) -> None:
        """Raise FormatError unless the frame and the file end here."""
        while not (self._held or self._frame.eof):
            self._more()
        if self._held or self._frame.unused_data or self._at < self._end:
            raise FormatError("bytes follow its end")

    def _more(self) -> None:
        """Unpack a piece."""
        data = b""
        if self._frame.eof:
            raise FormatError("its rows end too early")
        if self._frame.needs_input:
            data = _read(self._file, self._at, min(_PIECE_BYTES, self._end - self._at))
            if not data:
                raise FormatError("its rows end too early")
            self._at += len(data)
            self.consumed += len(data)
        try:
            piece = self._frame.decompress(data, _HASHED_BYTES)
        except zstd.ZstdError as error:
            raise FormatError(f"cannot be unpacked ({error})") from None
        self._held += piece
        self._unpacked += len(piece)
        most = max(limits.MIN_EXPANDED_BYTES, limits.MAX_EXPANSION * self.consumed)
        if self._unpacked > most:
            raise LimitError(
                f"it expands more than {limits.MAX_EXPANSION} times, as a decompression bomb does"
            )


class _Blocks:
    """The chunks that a frame holds, in order.

    Parameters
    ----------
    stream : _Stream
        The bytes.
    version : int
        Version of the bundle.

    Attributes
    ----------
    counts : dict
        Table → rows so far; at the end they are those that the frame says.
    """

    def __init__(self, stream: _Stream, version: int) -> None:
        self._stream = stream
        self._version = version
        self._tables = _TABLES_OF[version]
        self.counts = dict.fromkeys(self._tables, 0)

    def __iter__(self) -> Iterator[exchanged.Chunk]:
        total = 0
        while True:
            number, rows, length = _BLOCK.unpack(self._stream.take(_BLOCK.size))
            if number == _END:
                self._finish(length)
                return
            if number >= len(self._tables):
                raise FormatError(f"unknown table number {number}")
            if not 0 < rows <= limits.BATCH_ROWS:
                raise LimitError(f"a block of {rows} rows is over {limits.BATCH_ROWS}")
            if length > limits.MAX_BLOCK_BYTES:
                raise LimitError(f"a block of {length} bytes is over {limits.MAX_BLOCK_BYTES}")
            total += rows
            # Before they are unpacked: a column of equal numbers takes no bytes at all.
            _check_rows(total, self._stream.consumed)
            table = self._tables[number]
            self.counts[table] += rows
            yield exchanged.Chunk(
                table, decode(table, rows, self._stream.take(length), self._version)
            )

    def _finish(self, length: int) -> None:
        if length > limits.MAX_MANIFEST_BYTES:
            raise LimitError(f"counts of {length} bytes are over {limits.MAX_MANIFEST_BYTES}")
        stated = _read_object(self._stream.take(length), "what it says of its rows")
        self._stream.finish()
        if stated != self.counts:
            raise FormatError("it does not hold the rows that its counts state")


# ---- Bundles -------------------------------------------------------------------------------------

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
        What was chosen, as the fields of :class:`tunedb.storage.exchanged.Selection`.
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
        What to write: :meth:`tunedb.storage.exchanged.Peer.chunks`.
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
        raise FormatError("its manifest does not belong to a bundle")
    types = {"tunedb": str, "revision": str, "store": str, "created_at": int, "selection": dict}
    for field in fields(Manifest):
        found = rest.get(field.name)
        if type(found) is not types[field.name]:
            raise FormatError(f"its manifest has no {field.name}")
        if isinstance(found, str) and not 0 < len(found) <= limits.MAX_NAME_CHARS:
            raise FormatError(f"its manifest has an invalid {field.name}")
    # What a later version says besides is not looked at.
    return Manifest(**{field.name: rest[field.name] for field in fields(Manifest)})
