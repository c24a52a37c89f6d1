"""Encoding of a table's rows as columns of bytes, which compress far better than rows.

A column begins with a byte that tells which values are None, followed by the others: integers as
offsets from the minimum, in the smallest width; mostly growing ones as differences; text and bytes
as lengths and one run of bytes. The bytes of numbers are stored in planes, first all lowest bytes,
because neighbours differ only in those.

Encoded bytes are not trusted: every length is checked against the remaining bytes, and
decoded values are plain ``int``, ``float``, ``str``, ``bytes`` and ``None``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import limits
from ..errors import FormatError, LimitError, StorageError
from ..storage import exchange_types
from ..storage.columns import BUNDLE_VERSION, MEASUREMENT
from ..system.compression import compress_all, decompress

Rows = Sequence[tuple[Any, ...]]

_BASE = struct.Struct("<qB")
_FIRST = struct.Struct("<q")
_WIDTHS = (0, 1, 2, 4, 8)

#: Values of a column that are None: none, all, or those of a bit mask that follows.
_NONE, _ALL, _SOME = range(3)


class _ByteReader:
    """Bytes of a block, read from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.left = len(data)

    def take(self, size: int) -> memoryview:
        """Return the next bytes."""
        if not 0 <= size <= self.left:
            raise FormatError("it ends too early")
        at = len(self._data) - self.left
        self.left -= size
        return self._data[at : at + size]


# ---------------------------------------------------------------------------- numbers


def _planes(values: NDArray[Any]) -> bytes:
    """Return the bytes of numbers: all lowest bytes, then all next ones."""
    width = values.dtype.itemsize
    return values.view(np.uint8).reshape(-1, width).T.tobytes()


def _from_planes(source: _ByteReader, count: int, dtype: str) -> NDArray[Any]:
    """Return `count` numbers of a type such as ``<u8``."""
    kind = np.dtype(dtype)
    raw = np.frombuffer(source.take(count * kind.itemsize), np.uint8)
    return np.ascontiguousarray(raw.reshape(kind.itemsize, count).T).view(kind).reshape(count)


def _pack(values: NDArray[np.int64]) -> bytes:
    """Return integers as offsets from the minimum."""
    if not values.size:
        return _BASE.pack(0, 0)
    base = values.min()
    # In unsigned arithmetic no difference of two 64-bit integers overflows.
    offsets = values.view(np.uint64) - base.view(np.uint64)
    top = int(offsets.max())
    width = next(width for width in _WIDTHS if top < 1 << 8 * width)
    packed = _planes(offsets.astype(f"<u{width}")) if width else b""
    return _BASE.pack(int(base), width) + packed


def _unpack(source: _ByteReader, count: int) -> NDArray[np.int64]:
    """Return `count` integers of :func:`_pack`."""
    base, width = _BASE.unpack(source.take(_BASE.size))
    if width not in _WIDTHS:
        raise FormatError(f"integers of {width} bytes")
    if not width:
        return np.full(count, base, np.int64)
    offsets = _from_planes(source, count, f"<u{width}").astype(np.uint64)
    return (offsets + np.array(base, np.int64).view(np.uint64)).view(np.int64)


def _integers(values: Sequence[int]) -> NDArray[np.int64]:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise FormatError("an integer beyond 64 bits") from None


def _write_integers(values: Sequence[int]) -> bytes:
    return _pack(_integers(values))


def _read_integers(source: _ByteReader, count: int) -> list[int]:
    values: list[int] = _unpack(source, count).tolist()
    return values


def _write_steps(values: Sequence[int]) -> bytes:
    numbers = _integers(values)
    steps = np.diff(numbers.view(np.uint64)).view(np.int64)
    return _FIRST.pack(values[0]) + _pack(steps)


def _read_steps(source: _ByteReader, count: int) -> list[int]:
    (first,) = _FIRST.unpack(source.take(_FIRST.size))
    numbers = np.empty(count, np.int64)
    numbers[0] = first
    numbers[1:] = _unpack(source, count - 1)
    values: list[int] = np.cumsum(numbers.view(np.uint64)).view(np.int64).tolist()
    return values


def _write_floats(values: Sequence[float]) -> bytes:
    return _planes(np.array(values, "<f8"))


def _read_floats(source: _ByteReader, count: int) -> list[float]:
    values: list[float] = _from_planes(source, count, "<f8").tolist()
    return values


# ---------------------------------------------------------------------------- bytes and texts


def _lengths(values: Sequence[bytes]) -> NDArray[np.int64]:
    return np.fromiter(map(len, values), np.int64, len(values))


def _read_ends(source: _ByteReader, count: int, size: int = 1) -> list[int]:
    """Return 0 and the end of each value in bytes, from lengths in units of `size` bytes."""
    lengths = _unpack(source, count)
    if int(lengths.min()) < 0 or int(lengths.max()) * size > source.left:
        raise FormatError("a value is longer than the data")
    return [0, *np.cumsum(lengths * size).tolist()]


def _write_bytes(values: Sequence[bytes]) -> bytes:
    return b"".join((_pack(_lengths(values)), *values))


def _read_bytes(source: _ByteReader, count: int) -> list[bytes]:
    ends = _read_ends(source, count)
    data = bytes(source.take(ends[-1]))
    return [data[start:end] for start, end in pairwise(ends)]


def _write_texts(values: Sequence[str]) -> bytes:
    try:
        return _write_bytes([value.encode() for value in values])
    except UnicodeEncodeError:
        raise FormatError("a text with an incomplete character") from None


def _read_texts(source: _ByteReader, count: int) -> list[str]:
    try:
        return [value.decode() for value in _read_bytes(source, count)]
    except UnicodeDecodeError:
        raise FormatError("a text that is not UTF-8") from None


def _write_times(values: Sequence[bytes]) -> bytes:
    lengths = _lengths(values)
    if (lengths % 8).any():
        raise FormatError("run times that are not float64")
    return _pack(lengths // 8) + _planes(np.frombuffer(b"".join(values), "<f8"))


def _read_times(source: _ByteReader, count: int) -> list[bytes]:
    ends = _read_ends(source, count, 8)
    data = _from_planes(source, ends[-1] // 8, "<f8").tobytes()
    return [data[start:end] for start, end in pairwise(ends)]


def _write_frames(values: Sequence[bytes]) -> bytes:
    """Return unpacked features: together they compress four times better than each alone."""
    try:
        return _write_bytes([decompress(value, limits.MAX_FEATURE_BYTES) for value in values])
    except (LimitError, StorageError) as error:
        raise FormatError(str(error)) from None


def _read_frames(source: _ByteReader, count: int) -> list[bytes]:
    return compress_all(_read_bytes(source, count))


# ---------------------------------------------------------------------------- columns

_Write = Callable[[Sequence[Any]], bytes]
_Read = Callable[[_ByteReader, int], list[Any]]

#: Type, writer and reader of each kind of column.
_KINDS: dict[str, tuple[type, _Write, _Read]] = {
    "integer": (int, _write_integers, _read_integers),
    "steps": (int, _write_steps, _read_steps),
    "real": (float, _write_floats, _read_floats),
    "bytes": (bytes, _write_bytes, _read_bytes),
    "text": (str, _write_texts, _read_texts),
    "times": (bytes, _write_times, _read_times),
    "frames": (bytes, _write_frames, _read_frames),
}

#: Kinds of the columns :data:`tunedb.storage.exchange_types.COLUMNS` of each table: "?" marks those
#: that may be None, an empty kind those that are omitted, because a merge computes digests anyway.
LAYOUT: dict[str, tuple[str, ...]] = {
    "source": ("steps", "", "text", "text", "text"),
    "session": ("steps", "", "text", "integer", "text"),
    "workload": ("steps", "", "text", "bytes", "text", "text?"),
    "workload_alias": ("steps", "text", "text", "integer?"),
    "target": ("steps", "", "text", "text", "text?"),
    "sketch": ("steps", "", "bytes"),
    "tail": ("steps", "", "bytes"),
    "args_info": ("steps", "", "text"),
    "context": ("steps", "", "text"),
    "feature_set": ("steps", "text", "integer", "text"),
    "measurement": tuple(column.wire for column in MEASUREMENT),
    # Both digests identify a measurement that is not in the bundle.
    "failure": (
        *("steps", "", "steps?", "bytes?", "bytes?"),
        *("text", "text", "text", "real?", "integer?"),
    ),
    "feature": ("steps", "integer", "integer", "integer", "frames"),
    "retraction": ("bytes", "text", "text", "text"),
    "counter_set": ("steps", "", "text", "text?", "text?", "text"),
    "launch": (
        *("steps", "", "steps?", "bytes?", "bytes?"),
        *("integer", "text", "integer"),
        *("integer?", "integer?", "integer?", "integer?", "integer?", "integer?"),
        *("integer?", "integer?", "integer?", "real?"),
        *("integer?", "times?", "integer?"),
    ),
}

#: Tables whose last column, the source, was added by version 3 of bundles.
_ATTRIBUTED = frozenset({"workload_alias", "failure", "launch"})


def layout_of(table: str, version: int) -> tuple[str, ...]:
    """Return the kinds of a table's columns in bundles of a version."""
    if table == "measurement":
        return tuple(column.wire if column.bundle <= version else "" for column in MEASUREMENT)
    kinds = LAYOUT[table]
    return (*kinds[:-1], "") if version < 3 and table in _ATTRIBUTED else kinds


def encode(table: str, rows: Rows) -> bytes:
    """Return rows as encoded columns.

    Parameters
    ----------
    table : str
        A key of :data:`tunedb.storage.exchange_types.COLUMNS`.
    rows : sequence of tuple
        At least one row.

    Raises
    ------
    FormatError
        A value is not valid for its column.
    """
    encoded = []
    names = exchange_types.COLUMNS[table]
    for name, kind, values in zip(names, LAYOUT[table], zip(*rows, strict=True), strict=True):
        if not kind:
            continue
        try:
            encoded.append(_encode(kind, values))
        except FormatError as error:
            raise FormatError(f"table {table}, column {name}: {error}") from None
    return b"".join(encoded)


def _encode(kind: str, values: Sequence[Any]) -> bytes:
    type_, write, _ = _KINDS[kind.removesuffix("?")]
    present = [value for value in values if value is not None]
    if set(map(type, present)) - {type_}:
        raise FormatError(f"a value that is not of type {type_.__name__}")
    if len(present) == len(values):
        return bytes((_NONE,)) + write(present)
    if not kind.endswith("?"):
        raise FormatError("a value is missing")
    if not present:
        return bytes((_ALL,))
    missing = np.packbits(np.fromiter((value is None for value in values), bool, len(values)))
    return bytes((_SOME,)) + missing.tobytes() + write(present)


def decode(
    table: str, count: int, data: bytes, version: int = BUNDLE_VERSION
) -> list[tuple[Any, ...]]:
    """Return the rows of :func:`encode`; omitted columns are None.

    Parameters
    ----------
    table : str
        A key of :data:`tunedb.storage.exchange_types.COLUMNS`.
    count : int
        Number of rows, at least one.
    data : bytes
        Encoded columns.
    version : int
        Version of the bundle.

    Raises
    ------
    FormatError
        The bytes are not columns of that many rows.
    """
    source, columns = _ByteReader(data), []
    for name, kind in zip(exchange_types.COLUMNS[table], layout_of(table, version), strict=True):
        try:
            columns.append(_decode(kind, source, count) if kind else [None] * count)
        except FormatError as error:
            raise FormatError(f"table {table}, column {name}: {error}") from None
    if source.left:
        raise FormatError(f"table {table}: {source.left} bytes follow its columns")
    return list(zip(*columns, strict=True))


def _decode(kind: str, source: _ByteReader, count: int) -> list[Any]:
    _, _, read = _KINDS[kind.removesuffix("?")]
    which = source.take(1)[0]
    if which == _NONE:
        return read(source, count)
    if not kind.endswith("?") or which not in (_ALL, _SOME):
        raise FormatError("a value is missing")
    if which == _ALL:
        return [None] * count
    bits = np.unpackbits(np.frombuffer(source.take((count + 7) // 8), np.uint8), count=count)
    present = count - int(bits.sum())
    if not present:
        raise FormatError("a value is missing")
    values = np.full(count, None, object)
    values[bits == 0] = read(source, present)
    return values.tolist()
