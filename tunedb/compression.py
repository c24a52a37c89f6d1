"""Bounded zstd for bodies in the database."""

from __future__ import annotations

import sys

from . import limits
from .errors import LimitError, StorageError

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


def decompress(data: bytes) -> bytes:
    """Return the bytes of a zstd frame.

    Raises
    ------
    LimitError
        They are more than :data:`tunedb.limits.MAX_BODY_BYTES`.
    StorageError
        The frame is damaged.
    """
    # The module's own decompress() has no bound; a decompressor's max_length has.
    decompressor = zstd.ZstdDecompressor()
    try:
        value = decompressor.decompress(data, max_length=limits.MAX_BODY_BYTES + 1)
    except zstd.ZstdError as error:
        raise StorageError(f"a compressed body is damaged ({error})") from None
    if len(value) > limits.MAX_BODY_BYTES:
        raise LimitError(f"a compressed body is larger than {limits.MAX_BODY_BYTES} bytes")
    if not decompressor.eof:
        raise StorageError("a compressed body is damaged (it ends too early)")
    return value
