"""Bundles by their bytes: taken apart, changed, and sealed again as a hostile writer would."""

from __future__ import annotations

import hashlib
import io
import struct

from tunedb.exchange import bundle
from tunedb.exchange.bundle import new_manifest, write_bundle, zstd
from tunedb.identity import canonical_json
from tunedb.storage import exchange_types
from tunedb.storage.columns import BUNDLE_VERSION
from tunedb.storage.exchange_types import EVERYTHING

TABLES = tuple(exchange_types.COLUMNS)
MANIFEST = new_manifest("5" * 32, EVERYTHING)


def bundle_of(chunks, manifest=MANIFEST):
    """Return the bytes of a bundle."""
    out = io.BytesIO()
    write_bundle(out, chunks, manifest)
    return out.getvalue()


def take_apart(data):
    """Return the manifest and the unpacked frame."""
    at = len(bundle.MAGIC) + 6
    _, length = struct.unpack("<HI", data[len(bundle.MAGIC) : at])
    return data[at : at + length], zstd.decompress(data[at + length : -bundle.DIGEST_BYTES])


def seal(head, frame, *, version=BUNDLE_VERSION, length=None):
    """Return a bundle of a manifest and a compressed frame, with the digest that fits."""
    length = len(head) if length is None else length
    data = bundle.MAGIC + struct.pack("<HI", version, length) + head + frame
    return data + hashlib.blake2b(data, digest_size=bundle.DIGEST_BYTES).digest()


def put_together(head, unpacked):
    """Return the bundle of a manifest and an unpacked frame."""
    return seal(head, zstd.compress(unpacked))


def block(table, rows, data):
    """Return a block; `table` may be a number."""
    number = TABLES.index(table) if isinstance(table, str) else table
    return struct.pack("<BIQ", number, rows, len(data)) + data


def end(**counts):
    """Return the last block."""
    data = canonical_json(dict.fromkeys(TABLES, 0) | counts)
    return block(255, 0, data)
