"""Canonical bytes and digests: the only place where identities are made.

A digest is BLAKE2b with 16 bytes over a version byte, the kind of row and its fields, each
preceded by its length, so that no two different rows share their bytes. The digest covers the
whole payload: a merge then is a set union (``docs/design.md``, "Identity").
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import orjson

#: Raised when the canonical form of any row changes; digests of different versions never meet.
VERSION = 1

DIGEST_BYTES = 16

_PREFIX = bytes([VERSION])
_pack_length = struct.Struct("<I").pack
_INT64 = 2.0**63


def digest(kind: str, *fields: bytes) -> bytes:
    """Return the 16-byte digest of a row.

    Parameters
    ----------
    kind : str
        Name of the row's table, so that equal bytes in two tables have different digests.
    *fields : bytes
        The row's canonical fields in the order of the data contract.
    """
    parts = [_PREFIX, kind.encode(), b"\0"]
    for field in fields:
        parts.append(_pack_length(len(field)))
        parts.append(field)
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys, no spaces and the shortest form of every float.

    Raises
    ------
    TypeError
        For what JSON cannot hold. NaN and infinities become ``null`` in JSON and must be
        refused before.
    """
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def canonical_numbers(value: Any) -> Any:
    """Return `value` with integral floats as integers, as TVM's JSON writer prints them.

    TVM writes the float 1.0 as ``1`` (``src/support/json``), so a file cannot tell them apart; a
    record committed live and the same record read from a file must be one row.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _INT64 else value
    if isinstance(value, list):
        return [canonical_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: canonical_numbers(item) for key, item in value.items()}
    return value


def clean_text(text: str) -> str:
    """Return text as both databases can hold it; for labels, never for what a digest must keep.

    PostgreSQL refuses NUL, and both refuse the lone surrogates that stand for the bytes of a file
    name that is no UTF-8: these become escapes.
    """
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def pack_floats(values: Iterable[float]) -> bytes:
    """Return float64 values as little-endian bytes, bit for bit."""
    items = tuple(values)
    return struct.pack(f"<{len(items)}d", *items)


def unpack_floats(data: bytes) -> tuple[float, ...]:
    """Return the float64 values of `pack_floats`."""
    return struct.unpack(f"<{len(data) // 8}d", data)


def pack_int(value: int) -> bytes:
    """Return a signed 64-bit integer as little-endian bytes."""
    return struct.pack("<q", value)
