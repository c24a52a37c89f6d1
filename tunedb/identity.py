"""Canonical bytes and digests: the only module that computes identities.

A digest is BLAKE2b with 16 bytes over a version byte, the kind of row and its fields, each
preceded by its length, so that no two different rows share their bytes. The digest covers the
whole payload: a merge then is a set union (``docs/design.md``, "Identity").
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import orjson

from . import limits
from ._digest import digest as _digest

#: Raised when the canonical form of any row changes; digests of different versions never meet.
VERSION = 1

DIGEST_BYTES = 16

_pack_float = struct.Struct("<d").pack
_pack_int = struct.Struct("<q").pack
_INT64 = 2.0**63
_BYTE = tuple(bytes([value]) for value in range(256))


def digest(kind: str, *fields: bytes) -> bytes:
    """Return the 16-byte digest of a row (BLAKE2b, RFC 7693).

    Parameters
    ----------
    kind : str
        Name of the row's table, so that equal bytes in two tables have different digests.
    *fields : bytes
        The row's canonical fields in the order of the data contract.
    """
    return _digest(VERSION, DIGEST_BYTES, kind, fields)


def shared_digest(kind: str, body: bytes) -> bytes:
    """Return the digest of a row with one field, to which many other rows refer.

    Digests of short fields are cached.
    """
    if len(body) > limits.MAX_REMEMBERED_BYTES:
        return digest(kind, body)
    return _remembered_digest(kind, body)


@lru_cache(maxsize=4096)
def _remembered_digest(kind: str, body: bytes) -> bytes:
    return digest(kind, body)


def program_digest(
    workload: bytes, target: bytes, sketch: bytes, tail: bytes | None, decisions: bytes
) -> bytes:
    """Return the identity of a program, given the digests of its parts and its decisions."""
    return digest("program", workload, target, sketch, tail or b"", decisions)


def measurement_digest(
    program: bytes,
    status: int,
    run_secs: bytes | None,
    measured_at: int,
    occurrence: int,
    session: bytes | None,
    args_info: bytes | None,
    origin: str,
    donor: bytes | None,
    all_cost: float | None,
    context: bytes | None,
    extra: bytes | None,
) -> bytes:
    """Return the identity of a measurement, given the digests of the rows that it refers to.

    Parameters are the fields of :class:`tunedb.records.Measurement`; `program` and `session` are
    digests, `run_secs` float64 values, little-endian.
    """
    fields = (
        program,
        _BYTE[status],
        b"-" if run_secs is None else b"+" + run_secs,
        pack_int(measured_at),
        pack_int(occurrence),
        session or b"",
        args_info or b"",
        origin.encode(),
        donor or b"",
    )
    if all_cost is None and context is None and extra is None:
        # Records without these fields keep the digest from before the fields existed.
        return digest("measurement", *fields)
    # SQLite keeps no -0.0.
    cost = b"" if all_cost is None else pack_floats((all_cost + 0.0,))
    return digest("measurement", *fields, cost, context or b"", extra or b"")


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys, no spaces and the shortest form of every float.

    Raises
    ------
    TypeError
        JSON cannot hold the value. NaN and infinities become ``null`` in JSON; callers must refuse
        them before.
    """
    # orjson's own bytes share a buffer of up to 16 KB each, which they would keep alive.
    return bytes(memoryview(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)))


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
    """Return text as both databases can hold it; for labels, never for fields of a digest.

    PostgreSQL refuses NUL, and both refuse the lone surrogates of a file name that is not UTF-8:
    these become escapes.
    """
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def pack_floats(values: Iterable[float]) -> bytes:
    """Return float64 values as little-endian bytes, bit for bit."""
    items = tuple(values)
    if len(items) == 1:
        return _pack_float(items[0])
    return struct.pack(f"<{len(items)}d", *items)


def unpack_floats(data: bytes) -> tuple[float, ...]:
    """Return the float64 values of `pack_floats`."""
    return struct.unpack(f"<{len(data) // 8}d", data)


def pack_int(value: int) -> bytes:
    """Return a signed 64-bit integer as little-endian bytes."""
    return _pack_int(value)
