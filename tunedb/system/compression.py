"""Bounded zstd for bodies in the database."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from .. import limits
from ..errors import LimitError, StorageError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL = 3


def compress(data: bytes) -> bytes:
    """Return `data` as one zstd frame.

    Raises
    ------
    LimitError
        :func:`decompress` would refuse it.
    """
    if len(data) > limits.MAX_BODY_BYTES:
        raise LimitError(f"a body of {len(data)} bytes is over {limits.MAX_BODY_BYTES}")
    return zstd.compress(data, level=_LEVEL)


def compress_all(bodies: Iterable[bytes]) -> list[bytes]:
    """Return each of many small bodies as one zstd frame.

    A new compressor takes 10 us, which is more than a body of a kilobyte does.
    """
    compressor = zstd.ZstdCompressor(level=_LEVEL)
    return [compressor.compress(body, compressor.FLUSH_FRAME) for body in bodies]


def decompress(data: bytes, limit: int | None = None) -> bytes:
    """Return the bytes of a zstd frame.

    Raises
    ------
    LimitError
        They are more than `limit`, by default :data:`tunedb.limits.MAX_BODY_BYTES`.
    StorageError
        The frame is damaged.
    """
    if limit is None:
        limit = limits.MAX_BODY_BYTES
    # The module's own decompress() has no bound; a decompressor's max_length has.
    decompressor = zstd.ZstdDecompressor()
    try:
        value = decompressor.decompress(data, max_length=limit + 1)
    except zstd.ZstdError as error:
        raise StorageError(f"a compressed body is damaged ({error})") from None
    if len(value) > limit:
        raise LimitError(f"a compressed body is larger than {limit} bytes")
    if not decompressor.eof:
        raise StorageError("a compressed body is damaged (it ends too early)")
    return value
