# cython: language_level=3, boundscheck=False, wraparound=False
"""Columns of a table from the values of many rows, compiled: a table has millions of rows."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

#: Kinds of rows: numbers as LEB128, a JSON list, a JSON list whose first element is the list.
PACKED, LIST, FIRST = 0, 1, 2


cdef class _Buffer:
    """Bytes that grow."""

    cdef char* data
    cdef Py_ssize_t size, room

    def __dealloc__(self):
        free(self.data)

    cdef int put(self, const char* source, Py_ssize_t length) except -1:
        cdef char* larger
        cdef Py_ssize_t room
        if self.size + length > self.room:
            room = 2 * (self.size + length) + 4096
            larger = <char*>realloc(self.data, room)
            if larger == NULL:
                raise MemoryError
            self.data, self.room = larger, room
        if length:
            memcpy(self.data + self.size, source, length)
        self.size += length
        return 0

    cdef bytes bytes(self):
        return self.data[: self.size] if self.size else b""


cdef int _put_length(_Buffer lengths, Py_ssize_t length) except -1:
    cdef long long value = length
    return lengths.put(<const char*>&value, sizeof(value))


cdef Py_ssize_t _split_json(
    const char* at, const char* end, int level, _Buffer texts, _Buffer lengths
) except -2:
    """Append the elements of a list; return their number, or -1 if the row is no list."""
    cdef Py_ssize_t count = 0
    cdef int depth = level
    cdef bint in_text = False
    cdef const char* start
    if end - at < 2 or at[0] != b"[" or end[-1] != b"]":
        return -1
    at += 1
    if level == 2:
        if at[0] == b"]":
            return 0
        if at[0] != b"[":
            return -1
        at += 1
    start = at
    while at < end:
        if in_text:
            if at[0] == b"\\":
                at += 1
            elif at[0] == b'"':
                in_text = False
        elif at[0] == b'"':
            in_text = True
        elif at[0] == b"[" or at[0] == b"{":
            depth += 1
        elif at[0] == b"]" or at[0] == b"}":
            depth -= 1
            if depth < level:
                if at > start or count:
                    texts.put(start, at - start)
                    _put_length(lengths, at - start)
                    count += 1
                return count
        elif at[0] == b"," and depth == level:
            texts.put(start, at - start)
            _put_length(lengths, at - start)
            count += 1
            start = at + 1
        at += 1
    return -1


cdef Py_ssize_t _split_numbers(
    const unsigned char* at, const unsigned char* end, _Buffer texts, _Buffer lengths
) except -2:
    """Append the numbers of a row; return how many they are, or -1 if the row is damaged."""
    cdef char digits[24]
    cdef unsigned long long value = 0
    cdef int shift = 0, place
    cdef Py_ssize_t count = 0
    while at < end:
        if shift > 56:
            return -1
        value |= <unsigned long long>(at[0] & 127) << shift
        if at[0] & 128:
            shift += 7
        else:
            place = 24
            while True:
                place -= 1
                digits[place] = 48 + value % 10
                value //= 10
                if not value:
                    break
            texts.put(digits + place, 24 - place)
            _put_length(lengths, 24 - place)
            count += 1
            shift = 0
        at += 1
    return -1 if shift else count


cdef bint _is_utf8(bytes row) except -1:
    """Return true if a row is UTF-8, as Arrow's readers expect without a check."""
    if row.isascii():
        return True
    try:
        row.decode()
    except UnicodeDecodeError:
        return False
    return True


def split_lists(rows, const unsigned char[::1] kinds):
    """Return the elements of decisions as JSON texts.

    Parameters
    ----------
    rows : sequence of bytes or None
        Decisions as stored, in compact JSON or packed.
    kinds : bytes
        :data:`PACKED`, :data:`LIST` or :data:`FIRST` for each row.

    Returns
    -------
    tuple of bytes
        The number of elements of each row as int64, or -1 for a row that cannot be read; the length
        of each element as int64; the texts of all elements, one after another.
    """
    cdef _Buffer counts = _Buffer(), lengths = _Buffer(), texts = _Buffer()
    cdef Py_ssize_t at = 0, count, texts_before, lengths_before, size
    cdef const char* data
    cdef bytes row
    for value in rows:
        count = -1
        if value is not None:
            row = value
            data, size = PyBytes_AS_STRING(row), PyBytes_GET_SIZE(row)
            texts_before, lengths_before = texts.size, lengths.size
            if kinds[at] == PACKED:
                count = _split_numbers(
                    <const unsigned char*>data, <const unsigned char*>data + size, texts, lengths
                )
            else:
                count = _split_json(data, data + size, kinds[at], texts, lengths)
                if count > 0 and not _is_utf8(row):
                    count = -1
            if count < 0:
                texts.size, lengths.size = texts_before, lengths_before
        _put_length(counts, count)
        at += 1
    return counts.bytes(), lengths.bytes(), texts.bytes()


def name_texts(ids, dict names not None):
    """Return the lengths, as int64, and the bytes of the texts that ids name, one after another.

    The text of an id without a name is ``unknown``.
    """
    cdef _Buffer lengths = _Buffer(), texts = _Buffer()
    cdef PyObject* entry
    cdef bytes text, unknown = b"unknown"
    for id_ in ids:
        entry = PyDict_GetItem(names, id_)
        text = unknown if entry == NULL else <object>entry
        texts.put(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
        _put_length(lengths, PyBytes_GET_SIZE(text))
    return lengths.bytes(), texts.bytes()


def pack_numbers(values, bint is_float):
    """Return values as int64 or float64, and a bit of each that is not None; None if all are."""
    cdef _Buffer numbers = _Buffer(), bits = _Buffer()
    cdef long long integer
    cdef double real
    cdef char byte = 0
    cdef int place = 0
    cdef bint has_none = False
    for value in values:
        if value is None:
            has_none, integer = True, 0
            numbers.put(<const char*>&integer, sizeof(integer))
        else:
            byte |= 1 << place
            if is_float:
                real = value
                numbers.put(<const char*>&real, sizeof(real))
            else:
                integer = value
                numbers.put(<const char*>&integer, sizeof(integer))
        place += 1
        if place == 8:
            bits.put(&byte, 1)
            byte, place = 0, 0
    bits.put(&byte, 1)
    return numbers.bytes(), bits.bytes() if has_none else None
