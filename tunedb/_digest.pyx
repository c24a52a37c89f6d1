# cython: language_level=3, boundscheck=False, wraparound=False
"""The digest of a row, compiled: an import makes two for each record."""

from hashlib import blake2b as _blake2b

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

cdef dict _heads = {}


cdef inline void _put_length(char* at, Py_ssize_t length) noexcept:
    """Write a length as four little-endian bytes."""
    at[0] = <char>(length & 0xFF)
    at[1] = <char>((length >> 8) & 0xFF)
    at[2] = <char>((length >> 16) & 0xFF)
    at[3] = <char>((length >> 24) & 0xFF)


def digest(int version, int size, str kind, tuple fields):
    """Return the digest of :func:`tunedb.identity.digest`.

    Raises
    ------
    TypeError
        A field is not bytes.
    OverflowError
        A field is longer than 2**32 - 1 bytes.
    """
    cdef bytes head = _heads.get(kind)
    cdef bytes message, field
    cdef Py_ssize_t total, length
    cdef char* at
    if head is None:
        head = _heads[kind] = bytes([version]) + kind.encode() + b"\0"
    total = PyBytes_GET_SIZE(head)
    for item in fields:
        if type(item) is not bytes:
            raise TypeError(f"a digest covers bytes, not {type(item).__name__}")
        length = PyBytes_GET_SIZE(<bytes>item)
        if length > <Py_ssize_t>0xFFFFFFFF:
            raise OverflowError("a field of more than 4 GiB")
        total += 4 + length
    message = PyBytes_FromStringAndSize(NULL, total)
    at = PyBytes_AS_STRING(message)
    length = PyBytes_GET_SIZE(head)
    memcpy(at, PyBytes_AS_STRING(head), length)
    at += length
    for item in fields:
        field = <bytes>item
        length = PyBytes_GET_SIZE(field)
        _put_length(at, length)
        memcpy(at + 4, PyBytes_AS_STRING(field), length)
        at += 4 + length
    return _blake2b(message, digest_size=size).digest()
