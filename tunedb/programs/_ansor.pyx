# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Encoder of auto_scheduler's steps: from JSON lists to their stored form in one pass.

A record has about 30 steps with 300 values; a pass in Python takes 60 microseconds, this one 2. The
encoder accepts only exact lists, integers and texts, as a JSON parser returns them. It rejects
anything else without a reason, which ``tunedb.programs.ansor.explain`` finds.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, strlen

import orjson

cdef extern from "Python.h":
    ctypedef struct PyObject
    bint PyList_CheckExact(PyObject*)
    bint PyLong_CheckExact(PyObject*)
    bint PyUnicode_CheckExact(PyObject*)
    PyObject* PyList_GET_ITEM(PyObject*, Py_ssize_t)
    Py_ssize_t PyList_GET_SIZE(PyObject*)
    long long PyLong_AsLongLongAndOverflow(PyObject*, int*)
    const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*) except NULL
    PyObject* Py_None

from .. import limits

cdef enum:
    SKETCH_BYTES = 4096  # the buffers' first sizes, on the stack; real sketches stay below 2,000
    DECISION_BYTES = 512
    MAX_CODES = 16
    MAX_FIELDS = 8
    SLOTS = 256  # of the table of sketches
    MAX_KEPT = 16384  # longest sketch in it
    ANNOTATIONS = 12
    LAYOUT_REWRITES = 3

cdef enum:  # results of functions
    DONE = 0
    REFUSED = 1

cdef const char* UNROLL = b"auto_unroll_max_step$"
cdef size_t UNROLL_SIZE = strlen(UNROLL)

cdef struct Buffer:
    char* data
    size_t size
    size_t room
    bint on_heap

cdef struct Code:
    uint32_t word  # the letters, the first one lowest
    int fields
    char kinds[MAX_FIELDS]


cdef int grow(Buffer* out, size_t size) except -1:
    """Make room for `size` bytes more."""
    cdef size_t room = 2 * (out.size + size)
    cdef char* moved = <char*>(realloc(out.data, room) if out.on_heap else malloc(room))
    if moved == NULL:
        raise MemoryError
    if not out.on_heap:
        memcpy(moved, out.data, out.size)
    out.data = moved
    out.room = room
    out.on_heap = True
    return 0


cdef inline int put(Buffer* out, const char* text, size_t size) except -1:
    if out.size + size > out.room:
        grow(out, size)
    memcpy(out.data + out.size, text, size)
    out.size += size
    return 0


cdef inline int put_byte(Buffer* out, char byte) except -1:
    if out.size == out.room:
        grow(out, 1)
    out.data[out.size] = byte
    out.size += 1
    return 0


cdef int put_int(Buffer* out, int64_t value) except -1:
    """Write a decimal number."""
    if 0 <= value < 10:  # most of them
        return put_byte(out, <char>(48 + value))
    cdef char digits[24]
    cdef int at = 24
    # -2**63 has no positive counterpart in int64
    cdef uint64_t rest = (0 - <uint64_t>value) if value < 0 else <uint64_t>value
    while True:
        at -= 1
        digits[at] = <char>(48 + rest % 10)
        rest //= 10
        if rest == 0:
            break
    if value < 0:
        at -= 1
        digits[at] = 45
    return put(out, &digits[at], 24 - at)


cdef int put_varint(Buffer* out, uint64_t value) except -1:
    """Write an unsigned LEB128 number."""
    while value >= 128:
        put_byte(out, <char>(128 | (value & 127)))
        value >>= 7
    return put_byte(out, <char>value)


cdef int put_text(Buffer* out, const char* text, size_t size) except -1:
    """Write a JSON string, as orjson does."""
    cdef size_t i
    cdef uint8_t c
    for i in range(size):
        c = <uint8_t>text[i]
        if c < 32 or c > 126 or c == 34 or c == 92:
            escaped = orjson.dumps(text[:size].decode())
            return put(out, <const char*><bytes>escaped, len(escaped))
    put_byte(out, 34)
    put(out, text, size)
    return put_byte(out, 34)


cdef inline bint read_int(PyObject* value, int64_t* number) noexcept:
    """Read an integer of 64 bits into `number`; False for any other value."""
    cdef int overflow = 0
    if not PyLong_CheckExact(value):
        return False
    number[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
    return overflow == 0


cdef inline bint has_null(PyObject* values) noexcept:
    cdef Py_ssize_t i
    for i in range(PyList_GET_SIZE(values)):
        if PyList_GET_ITEM(values, i) == Py_None:
            return True
    return False


cdef int put_indexes(Buffer* out, PyObject* values, bint nullable) except -1:
    """Write a list of nonnegative numbers, and of nulls if `nullable`."""
    cdef Py_ssize_t i
    cdef int64_t number
    cdef PyObject* item
    if not PyList_CheckExact(values):
        return REFUSED
    put_byte(out, 91)
    for i in range(PyList_GET_SIZE(values)):
        if i:
            put_byte(out, 44)
        item = PyList_GET_ITEM(values, i)
        if nullable and item == Py_None:
            put(out, b"null", 4)
            continue
        if not read_int(item, &number) or number < 0:
            return REFUSED
        put_int(out, number)
    put_byte(out, 93)
    return DONE


cdef int take_numbers(Buffer* out, Buffer* decisions, PyObject* values) except -1:
    """Write a null per number to `out`, and the numbers to `decisions`."""
    cdef Py_ssize_t i
    cdef int64_t number
    put_byte(out, 91)
    for i in range(PyList_GET_SIZE(values)):
        if not read_int(PyList_GET_ITEM(values, i), &number) or number < 0:
            return REFUSED
        if i:
            put_byte(out, 44)
        put(out, b"null", 4)
        put_varint(decisions, number)
    put_byte(out, 93)
    return DONE


cdef bint read_digits(const char* text, size_t size, uint64_t* number) noexcept:
    """Read a canonical decimal number up to 2**63 - 1; False for any other text."""
    cdef size_t i
    cdef uint64_t value = 0
    if size == 0 or size > 19 or (text[0] == 48 and size > 1):
        return False
    for i in range(size):
        if not 48 <= text[i] <= 57:
            return False
        value = 10 * value + <uint64_t>(text[i] - 48)  # below 2**64: 19 digits at most
    number[0] = value
    return value <= <uint64_t>0x7FFFFFFFFFFFFFFF


cdef int put_pragma(Buffer* out, Buffer* decisions, PyObject* value) except -1:
    """Write a pragma; the number of an unroll pragma goes to `decisions`."""
    cdef Py_ssize_t size = 0
    cdef uint64_t number = 0
    if not PyUnicode_CheckExact(value):
        return REFUSED
    cdef const char* text = PyUnicode_AsUTF8AndSize(value, &size)
    if (
        <size_t>size > UNROLL_SIZE
        and memcmp(text, UNROLL, UNROLL_SIZE) == 0
        and read_digits(text + UNROLL_SIZE, size - UNROLL_SIZE, &number)
    ):
        put_text(out, UNROLL, UNROLL_SIZE)
        put(out, b",null", 5)
        put_varint(decisions, number)
    else:
        put_text(out, text, size)
    return DONE


cdef int put_field(char kind, Buffer* out, Buffer* decisions, PyObject* value) except -1:
    """Write a field that does not depend on other fields (``tunedb.programs.ansor.CODES``)."""
    cdef int64_t number = 0
    cdef Py_ssize_t size = 0
    cdef const char* text
    if kind == b"l":
        return put_indexes(out, value, False)
    if kind == b"p":
        return put_pragma(out, decisions, value)
    if kind == b"s":
        if not PyUnicode_CheckExact(value):
            return REFUSED
        text = PyUnicode_AsUTF8AndSize(value, &size)
        put_text(out, text, size)
        return DONE
    if not read_int(value, &number) or (number < 0 and kind != b"z"):
        return REFUSED
    if (kind == b"b" and number > 1) or (kind == b"a" and number >= ANNOTATIONS):
        return REFUSED
    put_int(out, number)
    return DONE


cdef class Splitter:
    """Encoder of lists of steps, with a cache of sketches, which most records share.

    Parameters
    ----------
    kinds : dict
        The letter of each field's kind by a step's code (``tunedb.programs.ansor.CODES``).
    """

    cdef Code codes[MAX_CODES]
    cdef int count
    cdef list sketches

    def __init__(self, kinds):
        if len(kinds) > MAX_CODES:
            raise ValueError(f"more than {MAX_CODES} codes")
        self.sketches = [b""] * SLOTS
        self.count = 0
        cdef int i
        for code, letters in kinds.items():
            if not 0 < len(code) <= 4 or len(letters) > MAX_FIELDS:
                raise ValueError(f"the code {code!r} with {len(letters)} fields does not fit")
            if "e" in letters.replace("en", ""):
                raise ValueError("the lengths of a split stand behind its extent")
            self.codes[self.count].word = int.from_bytes(code.encode("ascii"), "little")
            self.codes[self.count].fields = len(letters)
            for i in range(len(letters)):
                self.codes[self.count].kinds[i] = <char>ord(letters[i])
            self.count += 1

    def split(self, steps, layout_rewrite):
        """Return ``(sketch, decisions)``, or None for invalid steps."""
        cdef char sketch_room[SKETCH_BYTES]
        cdef char decision_room[DECISION_BYTES]
        cdef Buffer out, decisions
        cdef bytes sketch
        out.data, out.size, out.room, out.on_heap = sketch_room, 0, SKETCH_BYTES, False
        decisions.data, decisions.size = decision_room, 0
        decisions.room, decisions.on_heap = DECISION_BYTES, False
        try:
            if self._walk(<PyObject*>steps, <PyObject*>layout_rewrite, &out, &decisions) != DONE:
                return None
            sketch = self._shared(out.data, out.size)
            return sketch, <bytes>decisions.data[:decisions.size]
        except UnicodeEncodeError:  # a lone surrogate
            return None
        finally:
            if out.on_heap:
                free(out.data)
            if decisions.on_heap:
                free(decisions.data)

    cdef int _walk(
        self, PyObject* steps, PyObject* layout_rewrite, Buffer* out, Buffer* decisions
    ) except -1:
        cdef int64_t number = 0
        cdef Py_ssize_t i
        put(out, b'{"layout_rewrite":', 18)
        if layout_rewrite == Py_None:
            put(out, b"null", 4)
        elif read_int(layout_rewrite, &number) and 0 <= number < LAYOUT_REWRITES:
            put_int(out, number)
        else:
            return REFUSED
        put(out, b',"steps":[', 10)
        if not PyList_CheckExact(steps) or PyList_GET_SIZE(steps) > limits.MAX_INSTRUCTIONS:
            return REFUSED
        for i in range(PyList_GET_SIZE(steps)):
            if i:
                put_byte(out, 44)
            if self._step(PyList_GET_ITEM(steps, i), out, decisions) != DONE:
                return REFUSED
        put(out, b"]}", 2)
        return DONE

    cdef int _step(self, PyObject* step, Buffer* out, Buffer* decisions) except -1:
        cdef Py_ssize_t size = 0
        cdef int i
        cdef const char* text
        cdef PyObject* value
        cdef PyObject* lengths
        cdef char kind
        cdef bint verbatim = False
        if not PyList_CheckExact(step) or PyList_GET_SIZE(step) == 0:
            return REFUSED
        value = PyList_GET_ITEM(step, 0)
        if not PyUnicode_CheckExact(value):
            return REFUSED
        text = PyUnicode_AsUTF8AndSize(value, &size)
        cdef Code* code = self._code(text, size)
        if code == NULL or PyList_GET_SIZE(step) != code.fields + 1:
            return REFUSED
        put(out, b'["', 2)
        put(out, text, size)
        put_byte(out, 34)
        for i in range(code.fields):
            put_byte(out, 44)
            value = PyList_GET_ITEM(step, i + 1)
            kind = code.kinds[i]
            if kind == b"e":  # the lengths come next
                lengths = PyList_GET_ITEM(step, i + 2)
                verbatim = PyList_CheckExact(lengths) and has_null(lengths)
                if self._extent(value, verbatim, out, decisions) != DONE:
                    return REFUSED
            elif kind == b"n":
                if verbatim or not PyList_CheckExact(value):
                    if put_indexes(out, value, True) != DONE:
                        return REFUSED
                elif take_numbers(out, decisions, value) != DONE:
                    return REFUSED
            elif put_field(kind, out, decisions, value) != DONE:
                return REFUSED
        put_byte(out, 93)
        return DONE

    cdef int _extent(
        self, PyObject* value, bint verbatim, Buffer* out, Buffer* decisions
    ) except -1:
        cdef int64_t number = 0
        if not read_int(value, &number) or number < 0:
            return REFUSED
        if verbatim:
            put_int(out, number)
        else:
            put(out, b"null", 4)
            put_varint(decisions, number)
        return DONE

    cdef Code* _code(self, const char* text, Py_ssize_t size) noexcept:
        """Return the code with this name, or NULL."""
        cdef uint32_t word = 0
        cdef int i
        if size > 4:
            return NULL
        for i in range(<int>size):
            word |= <uint32_t><uint8_t>text[i] << (8 * i)
        for i in range(self.count):
            if self.codes[i].word == word:
                return &self.codes[i]
        return NULL

    cdef bytes _shared(self, const char* data, size_t size):
        """Return the cached bytes object if equal, which has its hash computed, or a new one."""
        cdef uint64_t mixed = size
        cdef uint64_t word
        cdef size_t i = 0
        cdef bytes known
        while i + 8 <= size:
            memcpy(&word, data + i, 8)
            mixed = (mixed ^ word) * <uint64_t>0x9E3779B97F4A7C15
            mixed ^= mixed >> 29
            i += 8
        cdef Py_ssize_t slot = <Py_ssize_t>(mixed >> 56)
        known = <bytes>self.sketches[slot]
        if <size_t>len(known) == size and memcmp(<const char*>known, data, size) == 0:
            return known
        known = data[:size]
        if size <= MAX_KEPT:
            self.sketches[slot] = known
        return known
