# cython: language_level=3, boundscheck=False, wraparound=False
"""Columns of a table from the values of many rows, compiled: a table has millions of rows."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

cimport cython

#: Kinds of rows: numbers as LEB128, a JSON list, a JSON list whose first element is the list.
PACKED, LIST, FIRST = 0, 1, 2


@cython.final
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


cdef bytes _zeros(Py_ssize_t size):
    """Return zeros, which the caller alone changes before anybody else has them."""
    cdef bytes found = PyBytes_FromStringAndSize(NULL, size)
    memset(PyBytes_AS_STRING(found), 0, size)
    return found


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


def transpose(rows, Py_ssize_t columns):
    """Return each column of rows of that many values as a tuple.

    Raises
    ------
    ValueError
        A row has another number of values.
    """
    cdef Py_ssize_t at = 0, column
    cdef list found = [PyTuple_New(len(rows)) for column in range(columns)]
    cdef tuple values, target
    cdef object value
    for row in rows:
        values = row if type(row) is tuple else tuple(row)
        if len(values) != columns:
            raise ValueError(f"row {at} has {len(values)} values, not {columns}")
        for column in range(columns):
            value, target = values[column], <tuple>found[column]
            Py_INCREF(value)
            PyTuple_SET_ITEM(target, at, value)
        at += 1
    return found


def join_bytes(values):
    """Return the length of each value as int64, a bit of each that is not None, and all bytes.

    The bits are None if all values are bytes; None has no bytes.
    """
    cdef _Buffer data = _Buffer()
    cdef Py_ssize_t at = 0, count = len(values)
    cdef bytes lengths = _zeros(8 * count), bits = _zeros(count // 8 + 1), text
    cdef long long* length = <long long*>PyBytes_AS_STRING(lengths)
    cdef char* byte = PyBytes_AS_STRING(bits)
    cdef bint has_none = False
    for value in values:
        if value is None:
            has_none = True
        else:
            text = value
            length[at] = PyBytes_GET_SIZE(text)
            data.put(PyBytes_AS_STRING(text), length[at])
            byte[at >> 3] |= 1 << (at & 7)
        at += 1
    return lengths, bits if has_none else None, data.bytes()


def hex_texts(values, Py_ssize_t size):
    """Return all values as hexadecimal digits, one after another; None if one has another size."""
    cdef const char* digits = b"0123456789abcdef"
    cdef Py_ssize_t place
    cdef bytes value, found = PyBytes_FromStringAndSize(NULL, 2 * size * len(values))
    cdef char* to = PyBytes_AS_STRING(found)
    cdef unsigned char byte
    for value in values:
        if value is None:
            raise TypeError("None has no digits")
        if PyBytes_GET_SIZE(value) != size:
            return None
        for place in range(size):
            byte = <unsigned char>PyBytes_AS_STRING(value)[place]
            to[0], to[1] = digits[byte >> 4], digits[byte & 15]
            to += 2
    return found


def name_texts(ids, dict names not None):
    """Return the lengths, as int64, and the bytes of the texts that ids name, one after another.

    The text of an id without a name is ``unknown``.
    """
    cdef _Buffer texts = _Buffer()
    cdef Py_ssize_t at = 0
    cdef bytes lengths = _zeros(8 * len(ids)), text, unknown = b"unknown"
    cdef long long* length = <long long*>PyBytes_AS_STRING(lengths)
    cdef PyObject* entry
    for id_ in ids:
        entry = PyDict_GetItem(names, id_)
        text = unknown if entry == NULL else <object>entry
        length[at] = PyBytes_GET_SIZE(text)
        texts.put(PyBytes_AS_STRING(text), length[at])
        at += 1
    return lengths, texts.bytes()


def pack_numbers(values, bint is_float):
    """Return values as int64 or float64, and a bit of each that is not None; None if all are."""
    cdef Py_ssize_t at = 0, count = len(values)
    cdef bytes numbers = _zeros(8 * count), bits = _zeros(count // 8 + 1)
    cdef long long* integer = <long long*>PyBytes_AS_STRING(numbers)
    cdef double* real = <double*>PyBytes_AS_STRING(numbers)
    cdef char* byte = PyBytes_AS_STRING(bits)
    cdef bint has_none = False
    for value in values:
        if value is None:
            has_none = True
        else:
            if is_float:
                real[at] = value
            else:
                integer[at] = value
            byte[at >> 3] |= 1 << (at & 7)
        at += 1
    return numbers, bits if has_none else None
