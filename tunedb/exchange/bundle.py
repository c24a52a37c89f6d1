"""Bundles: records of a database as one stream of bytes, for mail and object storage.

A bundle is verified as a whole before its first row is used, so a truncated or changed one has no
effect. Rows have no digests, because the merge computes them anyway.
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
from ..storage import exchange_types, schema
from ..storage.columns import BUNDLE_VERSION
from ..storage.exchange_types import Chunk, Position, Selection
from ..system.files import new_file, open_regular
from .column_codec import decode, encode
from .foreign_file import is_sqlite
from .selection import filtered

# ---- Format: a head, blocks of rows in one zstd frame, and a digest over all bytes ---------------
#
# ::
#
#     magic (8)  version (2)  length of the manifest (4)  manifest (JSON)
#     zstd frame of
#         table (1)  rows (4)  length (8)  columns          for each block
#         255        0         length      counts (JSON)    at the end
#     BLAKE2b-256 of all previous bytes (32)
#
# Numbers are little-endian. Blocks share one frame, so that each is compressed with the context of
# earlier ones. The number of rows is known only at the end, because a bundle is written while the
# database is read, possibly to a pipe.

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: Like PNG's: bytes that are not text, and line ends that a transfer as text would change.
MAGIC = b"\x89TDB\r\n\x1a\n"

_HEAD = struct.Struct("<HI")
_BLOCK = struct.Struct("<BIQ")
_END = 255
_TABLES = tuple(exchange_types.COLUMNS)

#: Tables in bundles of each version, in the order of their numbers.
_TABLES_OF = {
    **dict.fromkeys(range(1, BUNDLE_VERSION + 1), _TABLES),
    1: _TABLES[: _TABLES.index("counter_set")],
}

DIGEST_BYTES = 32

#: 27,000 records of old logs and 2,300 of a processor take 25 and 56 bytes each, and 5 and 19 us;
#: with level 3 28 and 80 in 4 us, with level 19 23 and 50 in 46 and 203 us.
_LEVEL = 12

#: A window of 8 MiB, which is also the memory needed for reading.
_WINDOW_LOG = 23

_PIECE_BYTES = 2**16
_HASHED_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """Manifest, counts, size and digest of a bundle.

    Parameters
    ----------
    manifest : dict
        Description by the writer.
    counts : dict
        Number of rows by table.
    size : int
        Total bytes.
    digest : bytes
        BLAKE2b-256 of all bytes before it.
    """

    manifest: dict[str, Any]
    counts: dict[str, int]
    size: int
    digest: bytes


# ---------------------------------------------------------------------------- writing


class _HashingWriter:
    """A writer that hashes its bytes."""

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
    chunks: Iterable[exchange_types.Chunk],
    *,
    level: int = _LEVEL,
) -> BundleInfo:
    """Write a bundle.

    Parameters
    ----------
    out : binary file
        Output; it need not be seekable.
    manifest : dict
        Description of the bundle.
    chunks : iterable of Chunk
        Rows.
    level : int
        Compression level of zstd.

    Returns
    -------
    BundleInfo

    Raises
    ------
    FormatError
        A row cannot be encoded.
    LimitError
        A row is larger than :data:`tunedb.limits.MAX_BLOCK_BYTES`, or :func:`read_info` would
        reject the bundle.
    """
    writer = _HashingWriter(out)
    head = canonical_json(manifest)
    if len(head) > limits.MAX_MANIFEST_BYTES:
        raise LimitError(f"a manifest of {len(head)} bytes is over {limits.MAX_MANIFEST_BYTES}")
    writer.write(MAGIC + _HEAD.pack(BUNDLE_VERSION, len(head)) + head)
    parameter = zstd.CompressionParameter
    options = {int(parameter.compression_level): level, int(parameter.window_log): _WINDOW_LOG}
    compressor = zstd.ZstdCompressor(options=options)
    counts = dict.fromkeys(_TABLES, 0)
    for chunk in chunks:
        for count, data in _blocks(chunk.table, chunk.rows):
            counts[chunk.table] += count
            header = _BLOCK.pack(_TABLES.index(chunk.table), count, len(data))
            writer.write(compressor.compress(header + data))
    end = canonical_json(counts)
    header = _BLOCK.pack(_END, 0, len(end))
    writer.write(compressor.compress(header + end, compressor.FLUSH_FRAME))
    _check_rows(sum(counts.values()), writer.size)
    digest = writer.seal()
    return BundleInfo(manifest, counts, writer.size, digest)


def _blocks(table: str, rows: list[tuple[Any, ...]]) -> Iterator[tuple[int, bytes]]:
    """Yield the number of rows and the encoded columns of each block."""
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
    """Raise LimitError for more rows than that many bytes can hold."""
    if rows > limits.MIN_BUNDLE_ROWS and rows > limits.MAX_ROWS_PER_BYTE * size:
        raise LimitError(f"more than {limits.MAX_ROWS_PER_BYTE} rows for each byte")


# ---------------------------------------------------------------------------- reading


def read_info(file: IO[bytes]) -> BundleInfo:
    """Verify all bytes and rows of a bundle, and return its description.

    Parameters
    ----------
    file : binary file
        A regular file; its position is neither used nor changed.

    Returns
    -------
    BundleInfo

    Raises
    ------
    FormatError
        It is not a bundle, or one of a newer version, or malformed.
    IntegrityError
        Bytes are missing or changed.
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
    stream = _FrameReader(file, len(head) + length, size - DIGEST_BYTES)
    blocks = _BlockReader(stream, version)
    for _ in blocks:
        pass
    return BundleInfo(manifest, dict.fromkeys(_TABLES, 0) | blocks.counts, size, digest)


def _checked_digest(file: IO[bytes], size: int) -> bytes:
    """Return the digest at the end after comparing it with that of all previous bytes."""
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


def read_frames(file: IO[bytes]) -> Iterator[exchange_types.Chunk]:
    """Yield the rows of a bundle verified by :func:`read_info`.

    Parameters
    ----------
    file : binary file
        A regular file; its position is neither used nor changed.

    Raises
    ------
    FormatError, LimitError
        The file was replaced meanwhile.
    """
    start = len(MAGIC) + _HEAD.size
    version, length = _HEAD.unpack(_read(file, len(MAGIC), _HEAD.size))
    if version not in _TABLES_OF:
        raise FormatError("another file replaced it")
    size = os.fstat(file.fileno()).st_size
    stream = _FrameReader(file, start + length, size - DIGEST_BYTES)
    yield from _BlockReader(stream, version)


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


class _FrameReader:
    """The unpacked bytes of a bundle's zstd frame, read on demand."""

    def __init__(self, file: IO[bytes], start: int, end: int) -> None:
        self._file, self._at, self._end = file, start, end
        option = int(zstd.DecompressionParameter.window_log_max)
        self._frame = zstd.ZstdDecompressor(options={option: _WINDOW_LOG})
        self._held = bytearray()
        self._unpacked = 0
        #: Number of compressed bytes read.
        self.consumed = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        while len(self._held) < size:
            self._more()
        data = bytes(memoryview(self._held)[:size])
        del self._held[:size]
        return data

    def finish(self) -> None:
        """Raise FormatError unless frame and file end here."""
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
        if self._unpacked > max(limits.MIN_EXPANDED_BYTES, limits.MAX_EXPANSION * self.consumed):
            raise LimitError(
                f"it expands more than {limits.MAX_EXPANSION} times, as a decompression bomb does"
            )


class _BlockReader:
    """The chunks of a bundle's zstd frame.

    Parameters
    ----------
    stream : _FrameReader
        Bytes of the frame.
    version : int
        Version of the bundle.

    Attributes
    ----------
    counts : dict
        Number of rows read so far by table; compared with the stated counts at the end.
    """

    def __init__(self, stream: _FrameReader, version: int) -> None:
        self._stream = stream
        self._version = version
        self._tables = _TABLES_OF[version]
        self.counts = dict.fromkeys(self._tables, 0)

    def __iter__(self) -> Iterator[exchange_types.Chunk]:
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
            # Checked before decoding: a column of equal numbers takes no bytes at all.
            _check_rows(total, self._stream.consumed)
            table = self._tables[number]
            self.counts[table] += rows
            yield exchange_types.Chunk(
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

__all__ = ["MAGIC", "BundleInfo", "BundlePeer", "Manifest", "new_manifest", "write_bundle"]

_FORMAT = "tunedb-bundle"

#: Name of a bundle from standard input.
STDIN_NAME = "<stdin>"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of a bundle by its writer; a merge trusts none of it.

    Parameters
    ----------
    tunedb : str
        Version of tunedb.
    revision : str
        Schema revision of that version.
    store : str
        Key of the database.
    created_at : int
        Microseconds since 1970, UTC. Two bundles of the same database and selection differ only in
        this and the digest.
    selection : dict
        Fields of :class:`tunedb.storage.exchange_types.Selection`.
    card : dict or None
        Card of a prior (:mod:`.prior`); None for other bundles.
    """

    tunedb: str
    revision: str
    store: str
    created_at: int
    selection: dict[str, Any]
    card: dict[str, Any] | None = None


def new_manifest(
    store_key: str, selection: Selection, card: dict[str, Any] | None = None
) -> Manifest:
    """Return the manifest of a new bundle, with the card of a prior."""
    now = time.time_ns() // 1000
    return Manifest(__version__, schema.HEAD, store_key, now, selection_fields(selection), card)


def selection_fields(selection: Selection) -> dict[str, Any]:
    """Return a selection in the form of a manifest."""
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
) -> BundleInfo:
    """Write a bundle.

    Parameters
    ----------
    out : path or binary file
        A path gets the whole bundle or nothing.
    chunks : iterable of Chunk
        Rows (:meth:`tunedb.storage.exchange_types.Peer.chunks`).
    manifest : Manifest
        As from :func:`new_manifest`.
    force : bool
        Replace an existing file.
    on_progress : callable or None
        Called with the number of measurements written so far.

    Returns
    -------
    BundleInfo

    Raises
    ------
    UsageError
        The file exists and `force` is false, or it is a database or a directory.
    NotFoundError
        There are no rows; a path is not changed.
    StorageError
        The file cannot be written.
    FormatError, LimitError
        A row cannot be encoded.
    """
    header = {"format": _FORMAT, **asdict(manifest)}
    if manifest.card is None:
        del header["card"]
    counted = chunks if on_progress is None else _counted(chunks, on_progress)
    if not isinstance(out, str | Path):
        return write_frames(out, header, counted)
    path = Path(out)
    try:
        if path.is_dir():
            raise UsageError(f"{path}: a directory; give the name of a file")
        if is_sqlite(path):
            raise UsageError(f"{path}: a database, which a bundle would replace; give another name")
        with new_file(path, force=force) as temporary, temporary.open("wb") as file:
            info = write_frames(file, header, counted)
            if not any(info.counts.values()):
                raise NotFoundError(f"{path}: no record to bundle; nothing was written")
    except FileExistsError:
        raise UsageError(f"{path} exists; give --force to replace it") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from None
    return info


def _counted(chunks: Iterable[Chunk], on_progress: Callable[[int], None]) -> Iterator[Chunk]:
    """Yield chunks, reporting the number of measurements."""
    done = 0
    for chunk in chunks:
        yield chunk
        if chunk.table == "measurement":
            done += len(chunk.rows)
            on_progress(done)


# ---------------------------------------------------------------------------- reading


class BundlePeer:
    """A bundle as a peer of an exchange; all of its bytes and rows are verified first.

    Parameters
    ----------
    path : str or Path
        A regular file, or ``-`` for standard input, which is copied to a temporary file.

    Attributes
    ----------
    location : str
        Its path.
    store_key : str
        Stated key of the database from which it was made.
    total : int
        Number of measurements.
    manifest : Manifest
        Description by the writer.
    info : BundleInfo
        Counts, size and digest.

    Raises
    ------
    NotFoundError
        The file does not exist.
    StorageError
        It cannot be read.
    FormatError
        It is not a bundle, or one of a newer version, or malformed.
    IntegrityError
        Bytes are missing or changed.
    LimitError
        It would unpack to more than a bundle may hold.
    """

    def __init__(self, path: str | Path) -> None:
        self.location: str = STDIN_NAME if str(path) == "-" else str(path)
        self._file = _open(path, self.location)
        try:
            with _prefixed_errors(self.location):
                self.info: BundleInfo = read_info(self._file)
                self.manifest: Manifest = _manifest(self.info.manifest)
        except BaseException:
            self._file.close()
            raise
        self.store_key: str = self.manifest.store
        self.total: int = self.info.counts["measurement"]

    def chunks(
        self, selection: Selection, since: Position | None = None, until: Position | None = None
    ) -> Iterator[Chunk]:
        """Yield the selected rows, each after the rows to which it refers.

        Raises
        ------
        UsageError
            A position is given: a bundle has none.
        NotFoundError
            No row matches a name of the selection.
        """
        if since is not None or until is not None:
            raise UsageError(f"{self.location}: a bundle has no positions; merge it as a whole")
        return self._chunks(selection)

    def _chunks(self, selection: Selection) -> Iterator[Chunk]:
        with _prefixed_errors(self.location):
            yield from filtered(self._all, selection)

    def _all(self) -> Iterator[Chunk]:
        return read_frames(self._file)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> BundlePeer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextmanager
def _prefixed_errors(location: str) -> Iterator[None]:
    """Prefix errors with the bundle's name."""
    try:
        yield
    except (FormatError, IntegrityError, LimitError, StorageError) as error:
        raise type(error)(f"{location}: {error}") from None


def _open(path: str | Path, location: str) -> IO[bytes]:
    """Open a bundle as a seekable file."""
    if str(path) == "-":
        return _spooled(sys.stdin.buffer, location)
    try:
        # Checked first: opening would drop the locks of a database that this process has open.
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
            copy = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(file, copy, 2**20)
            copy.flush()
        except OSError as error:
            folder = tempfile.gettempdir()
            raise StorageError(
                f"{location}: cannot be kept in {folder} ({error.strerror})"
            ) from None
        stack.pop_all()
    return copy


def _manifest(value: dict[str, Any]) -> Manifest:
    """Return the manifest of parsed JSON."""
    rest = dict(value)
    if rest.pop("format", None) != _FORMAT:
        raise FormatError("its manifest does not belong to a bundle")
    types = {"tunedb": str, "revision": str, "store": str, "created_at": int, "selection": dict}
    types["card"] = dict
    for field in fields(Manifest):
        content = rest.setdefault(field.name)
        if content is None and field.name == "card":
            continue
        if type(content) is not types[field.name]:
            raise FormatError(f"its manifest has no {field.name}")
        if isinstance(content, str) and not 0 < len(content) <= limits.MAX_NAME_CHARS:
            raise FormatError(f"its manifest has an invalid {field.name}")
    # Fields of later versions are ignored.
    return Manifest(**{field.name: rest[field.name] for field in fields(Manifest)})
