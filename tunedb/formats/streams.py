"""Byte streams of logs: files and standard input, decompressed while they are read.

A compressed stream is recognised by its first bytes, never by its name: gzip, bzip2, xz, .lzma
and Zstandard, also several members one after another (appending to a compressed log gives such
files). Memory is bounded for hostile input too: output comes in pieces, and streams are rejected
that need a larger window than :data:`tunedb.limits.MAX_WINDOW_BYTES` or expand more than
:data:`tunedb.limits.MAX_EXPANSION` times.

A truncated or damaged stream delivers all data before the damage, and the next read fails: the
lines before the damage are kept.
"""

from __future__ import annotations

import io
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from .. import limits
from ..errors import FormatError, NotFoundError, StorageError
from ..system.files import open_regular

# bz2 and lzma are imported on use: some builds of Python lack them.
if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: Name of standard input in messages.
STDIN_NAME = "<stdin>"

#: Bytes that identify the type of a stream; the first read delivers at least as many.
HEAD_BYTES = 4096

#: Buffer size; it keeps the cost of a read far below that of a line.
_BUFFER_BYTES = 2**20

#: Compressed bytes per step. Steps are small, because the output of a step that hits damage is
#: lost, and the bytes after a member's end are copied.
_STEP_BYTES = 4096

_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    # The dictionary size follows; its low bytes are zero in every file that tools write.
    (b"\x5d\x00\x00", "lzma"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    # pzstd and seekable zstd put frames without content before and after the others.
    *((bytes((0x50 + n, 0x2A, 0x4D, 0x18)), "zstd") for n in range(16)),
)

_MAGIC_BYTES = max(len(magic) for magic, _ in _MAGIC)

_ARCHIVES = (
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
)

#: Offset and value of a tar archive's magic.
_TAR_AT, _TAR = 257, b"ustar"


@contextmanager
def open_log(path: Path | None) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """Open a log for reading, decompressed if necessary.

    Parameters
    ----------
    path : Path or None
        The file; None for standard input, which stays open.

    Yields
    ------
    stream : binary file
        Buffered; ``peek(1)`` gives the first :data:`HEAD_BYTES` bytes, or all of a shorter file.
        Its reads raise :class:`FormatError` if the compressed data is damaged, truncated or expands
        too much, and :class:`StorageError`, which names the file, for errors of the medium.
    position : callable
        Returns the bytes read so far from the file itself; compressed bytes for a compressed file.

    Raises
    ------
    FormatError
        The file is an archive of files, compressed twice, or damaged before its first output.
    NotFoundError
        The file does not exist.
    StorageError
        The file cannot be opened or read.
    """
    name = STDIN_NAME if path is None else str(path)
    if path is None:
        with _unpacked(_Counted(_standard_input(), name)) as opened:
            yield opened
        return
    try:
        file = open_regular(path, advice="pipe its data into: tunedb import logs -", buffering=0)
    except FileNotFoundError:
        raise NotFoundError(f"{name}: no such file") from None
    except OSError as error:
        raise StorageError(f"{name}: cannot be opened ({error.strerror})") from None
    with file, _unpacked(_Counted(file, name)) as opened:
        yield opened


def _standard_input() -> BinaryIO:
    """Return standard input as bytes."""
    if sys.stdin is None:
        raise NotFoundError("there is no standard input; give a file")
    return sys.stdin.buffer


@contextmanager
def _unpacked(counted: _Counted) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """Yield the decompressed stream of a file, and its position function."""
    packed = io.BufferedReader(counted, _BUFFER_BYTES)
    head = packed.peek(1)
    _refuse_archive(head)
    if _codec_of(head) is None:
        yield packed, counted.position
        return
    stream = io.BufferedReader(_Unpacked(packed, counted.position), _BUFFER_BYTES)
    head = stream.peek(1)
    _refuse_archive(head)
    if (codec := _codec_of(head)) is not None:
        raise FormatError(f"{codec} inside a compressed file; unpack the outer file first")
    yield stream, counted.position


def _codec_of(head: bytes) -> str | None:
    """Return the compression that the first bytes show, or None."""
    return next((codec for magic, codec in _MAGIC if head.startswith(magic)), None)


def _refuse_archive(head: bytes) -> None:
    """Raise FormatError for an archive: the user has to select the logs in it."""
    kind = next((kind for magic, kind in _ARCHIVES if head.startswith(magic)), None)
    if kind is None and head.startswith(_TAR, _TAR_AT):
        kind = "tar"
    if kind is not None:
        raise FormatError(f"a {kind} archive; unpack it and import the directory")


class _RawStream(io.RawIOBase):
    """A raw stream whose first read fills a whole head; errors come after the data before them."""

    def __init__(self) -> None:
        self._least = HEAD_BYTES
        self._error: FormatError | StorageError | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if self._error is not None:
            raise self._error
        view = memoryview(buffer).cast("B")
        done = 0
        try:
            while done < min(self._least, len(view)) and (data := self._more(len(view) - done)):
                view[done : done + len(data)] = data
                done += len(data)
        except (FormatError, StorageError) as error:
            self._error = error
            if not done:
                raise
        self._least = 1
        return done

    def _more(self, most: int) -> bytes:
        """Return the next bytes, empty at the end."""
        raise NotImplementedError


class _Counted(_RawStream):
    """A file that counts the bytes read from it, and whose errors give its name."""

    def __init__(self, file: io.RawIOBase | BinaryIO, name: str) -> None:
        super().__init__()
        self._file = file
        # read() of a buffered pipe would block until it has all `most` bytes.
        self._read = file.read1 if isinstance(file, io.BufferedIOBase) else file.read
        self._name = name
        self._count = 0

    def position(self) -> int:
        return self._count

    def _more(self, most: int) -> bytes:
        try:
            data = self._read(most) or b""
        except OSError as error:
            raise StorageError(f"{self._name}: cannot be read ({error.strerror})") from None
        self._count += len(data)
        return data


class _Decompressor(Protocol):
    """The common interface of the decompressors of :mod:`bz2`, :mod:`lzma` and zstd."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes: ...


class _Unpacked(_RawStream):
    """The decompressed bytes of a stream, its members one after another."""

    def __init__(self, packed: io.BufferedReader[_Counted], position: Callable[[], int]) -> None:
        super().__init__()
        self._packed = packed
        self._position = position
        self._codec = ""
        self._member: _Decompressor | None = None
        self._damage: tuple[type[Exception], ...] = ()
        self._rest = b""
        self._expanded = 0

    def _more(self, most: int) -> bytes:
        while True:
            if self._member is None and not self._begin_member():
                return b""
            data = self._step(most)
            self._expanded += len(data)
            if (
                self._expanded > limits.MIN_EXPANDED_BYTES
                and self._expanded > limits.MAX_EXPANSION * self._position()
            ):
                raise FormatError(
                    f"expands more than {limits.MAX_EXPANSION} times, as a "
                    "decompression bomb does; if it is a log, unpack it and import the result"
                )
            if data:
                return data

    def _begin_member(self) -> bool:
        """Start the next member; False at the end of the file."""
        while not (head := self._rest.lstrip(b"\0")):
            # Zeros between members are padding of tapes and xz.
            self._rest = self._packed.read1(_STEP_BYTES)
            if not self._rest:
                return False
        if len(head) < _MAGIC_BYTES:
            head += self._packed.read(_STEP_BYTES)
        codec = _codec_of(head)
        if codec is None:
            raise FormatError(
                f"other bytes follow the end of the {self._codec} data; "
                "the data before them was read"
            )
        try:
            self._member, self._damage = _decompressor(codec)
        except ImportError:
            raise FormatError(f"this Python cannot unpack {codec}; unpack the file first") from None
        self._codec, self._rest = codec, head
        return True

    def _step(self, most: int) -> bytes:
        """Return the next decompressed piece of the current member."""
        member = self._member
        assert member is not None  # noqa: S101 - _more() started it
        if member.needs_input and not self._rest:
            self._rest = self._packed.read1(_STEP_BYTES)
            if not self._rest:
                raise FormatError(
                    f"truncated (the {self._codec} data has no end); the unpacked part was read"
                )
        data, self._rest = self._rest, b""
        try:
            unpacked = member.decompress(data, most)
        except self._damage as error:
            raise FormatError(
                f"cannot be unpacked further ({self._codec}: {error}); what came "
                "before was read. If it is not damaged, unpack it and import the result"
            ) from None
        if member.eof:
            self._rest, self._member = member.unused_data, None
        return unpacked


class _Gzip:
    """A gzip member with the interface of the other decompressors."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=31)  # 31: with gzip's header and checksum
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        unpacked = self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)
        # If the output is full, zlib may hold more output without any input left.
        self.needs_input = not self._inflate.unconsumed_tail and len(unpacked) < max_length
        return unpacked


def _decompressor(codec: str) -> tuple[_Decompressor, tuple[type[Exception], ...]]:
    """Return a decompressor with bounded memory, and its exceptions for damaged data.

    Raises
    ------
    ImportError
        Python was built without the library.
    """
    if codec == "gzip":
        return _Gzip(), (zlib.error,)
    if codec == "zstd":
        log2 = limits.MAX_WINDOW_BYTES.bit_length() - 1
        options = {int(zstd.DecompressionParameter.window_log_max): log2}
        return zstd.ZstdDecompressor(options=options), (zstd.ZstdError,)
    if codec == "bzip2":
        import bz2

        return bz2.BZ2Decompressor(), (OSError, ValueError)
    import lzma

    kind = lzma.FORMAT_XZ if codec == "xz" else lzma.FORMAT_ALONE
    return lzma.LZMADecompressor(kind, memlimit=limits.MAX_WINDOW_BYTES), (lzma.LZMAError,)
