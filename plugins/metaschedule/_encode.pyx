# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""From TVM's object tree to the stored form of a trace, without a Python object per node.

The tree is read through the part of tvm-ffi's C ABI that ``tvm/ffi/c_api.h`` fixes (``TVMFFIAny``,
the object header, the cell of a sequence, the bytes of a string). Nothing is linked and no header
is used: offsets of TVM's own classes are looked up in its reflection tables when the encoder is
made (``trace_codec``), and a self-test decides whether the encoder is used at all.

The GIL is held: a trace takes some 8 microseconds, less than it costs to wait for the GIL again,
and floats, escapes and rare objects are left to Python. The arrays are immutable, so nobody else
can change them meanwhile.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

import orjson

# Type indices that the ABI fixes (TVMFFITypeIndex).
cdef enum:
    NONE = 0
    INT = 1
    BOOL = 2
    FLOAT = 3
    SMALL_STR = 11
    STR = 65
    ARRAY = 71
    FIRST_OBJECT = 64

cdef enum:  # real traces nest six deep; the bound keeps a hostile tree from using up the C stack
    MAX_DEPTH = 64

cdef double INT64_END = 9223372036854775808.0  # 2**63, as identity.canonical_numbers

cdef struct Value:  # TVMFFIAny
    int32_t kind
    uint32_t length  # of a small string
    int64_t bits

cdef struct Text:  # TVMFFIByteArray
    const char* data
    size_t size

cdef struct Header:  # TVMFFIObject
    uint64_t references
    int32_t kind
    uint32_t padding
    void* deleter

cdef struct Sequence:  # TVMFFIObject, TVMFFISeqCell
    Header header
    Value* items
    int64_t size
    int64_t capacity
    void* data_deleter

cdef struct Place:  # where in the tree the walk is, for objects that only Python understands
    int64_t path[MAX_DEPTH]
    int depth


cdef class _Buffer:
    """Bytes that grow; freed with the object, also after an exception."""

    cdef char* data
    cdef size_t size, room

    def __cinit__(self):
        self.room = 4096
        self.size = 0
        self.data = <char*>malloc(self.room)
        if self.data == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.data)

    cdef int put(self, const char* text, size_t size) except -1:
        cdef char* moved
        cdef size_t room
        if self.size + size > self.room:
            room = 2 * self.room + size
            moved = <char*>realloc(self.data, room)
            if moved == NULL:
                raise MemoryError
            self.data = moved
            self.room = room
        memcpy(self.data + self.size, text, size)
        self.size += size
        return 0

    cdef int put_bytes(self, bytes text) except -1:
        return self.put(<const char*>text, len(text))

    cdef int separate(self) except -1:
        """Put a comma unless a list has just been opened or the buffer is empty."""
        if self.size and self.data[self.size - 1] != b"[":
            self.put(b",", 1)
        return 0

    cdef bytes get(self):
        return self.data[:self.size]


cdef int put_int(_Buffer out, int64_t value) except -1:
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
    return out.put(&digits[at], 24 - at)


cdef int put_float(_Buffer out, double value) except -1:
    if value != value or value - value != 0.0:
        raise ValueError("NaN and infinities have no JSON form")
    if -INT64_END < value < INT64_END and value == <double><int64_t>value:
        return put_int(out, <int64_t>value)
    return out.put_bytes(orjson.dumps(value))


cdef int put_text(_Buffer out, const char* text, size_t size) except -1:
    cdef size_t i
    cdef uint8_t c
    for i in range(size):
        c = <uint8_t>text[i]
        if c < 32 or c > 127 or c == 34 or c == 92:
            return out.put_bytes(orjson.dumps(text[:size].decode()))
    out.put(b'"', 1)
    out.put(text, size)
    return out.put(b'"', 1)


cdef inline Text text_of(Value* value) noexcept:
    """The bytes of a string; of another value NULL."""
    cdef Text text
    if value.kind == SMALL_STR:
        text.data = <const char*>&value.bits
        text.size = value.length
    elif value.kind == STR:
        text = (<Text*>(<char*><void*>value.bits + sizeof(Header)))[0]
    else:
        text.data = NULL
        text.size = 0
    return text


cdef Sequence* array_of(Value* value, int64_t size, str what) except NULL:
    """The array in `value`, of `size` elements where that is not negative."""
    if value.kind != ARRAY:
        raise ValueError(f"{what} is no array but has type index {value.kind}")
    cdef Sequence* array = <Sequence*><void*>value.bits
    if size >= 0 and array.size != size:
        raise ValueError(f"{what} has {array.size} elements, not {size}")
    return array


cdef class Encoder:
    """Encodes trees of arrays, strings and numbers of one version of TVM.

    Parameters
    ----------
    object_type : type
        ``tvm_ffi.Object``; anything else is refused, because only its handle can be read.
    integer : tuple of int
        Type index of ``ir.IntImm``, offset and size of its ``value``, offset of its ``ty`` or
        ``dtype``.
    real : tuple of int
        Type index of ``ir.FloatImm`` and offset of its ``value``.
    dtype_offset : int or None
        Offset of ``dtype`` in ``ir.PrimType``; None if ``ir.IntImm`` holds its ``dtype`` itself.
    bool_dtype : int
        The four bytes of the data type ``bool``, little-endian.
    foreign : callable
        Gets an object of another type and returns its JSON, or raises TypeError.
    """

    cdef object object_type, foreign
    cdef int32_t int_kind, float_kind
    cdef int64_t int_offset, float_offset, type_offset, dtype_offset
    cdef bint int_is_any, dtype_is_inline
    cdef uint32_t bool_dtype

    def __init__(self, object_type, integer, real, dtype_offset, bool_dtype, foreign):
        self.object_type = object_type
        self.foreign = foreign
        self.int_kind, self.int_offset, int_size, self.type_offset = integer
        if int_size not in (8, 16):
            raise ValueError(f"ir.IntImm.value has {int_size} bytes")
        self.int_is_any = int_size == 16
        self.float_kind, self.float_offset = real
        self.dtype_is_inline = dtype_offset is None
        self.dtype_offset = dtype_offset or 0
        self.bool_dtype = bool_dtype

    def encode(self, root):
        """Return ``(sketch, tail, decisions)`` of what ``TraceAsJSON`` returned.

        The bytes are those of ``tunedb.programs.metaschedule.trace.split_trace``.

        Raises
        ------
        ValueError
            For a tree that is no trace, NaN, infinities, text that is not UTF-8, deep nesting.
        TypeError
            For an object that JSON cannot hold.
        """
        cdef Value top
        self._open(root, &top)
        cdef Sequence* pair = array_of(&top, 2, "the trace")
        cdef _Buffer sketch_literals = _Buffer()
        cdef _Buffer tail_literals = _Buffer()
        cdef _Buffer sketch = _Buffer()
        cdef _Buffer tail = self._instructions(root, pair, sketch, sketch_literals, tail_literals)
        cdef _Buffer out = _Buffer()
        out.put(b"[", 1)
        self._decisions(root, pair, out)
        out.put(b",[", 2)
        out.put(sketch_literals.data, sketch_literals.size)
        out.put(b"],[", 3)
        out.put(tail_literals.data, tail_literals.size)
        out.put(b"]]", 2)
        return sketch.get(), None if tail is None else tail.get(), out.get()

    def dumps(self, root):
        """Return canonical JSON of a tree; raises what :meth:`encode` raises."""
        cdef Value top
        cdef Place place
        cdef _Buffer out = _Buffer()
        place.depth = 0
        self._open(root, &top)
        self._put(root, &top, out, None, &place)
        return out.get()

    cdef int _open(self, root, Value* out) except -1:
        """Set `out` to the object; the caller's reference keeps it alive during the walk."""
        if not isinstance(root, self.object_type):
            raise TypeError(f"{type(root).__name__} is no object of tvm-ffi")
        cdef Header* header = <Header*><void*><uintptr_t>root.__chandle__()
        if header == NULL:
            raise ValueError("the object is empty")
        out.kind = header.kind
        out.length = 0
        out.bits = <int64_t><uintptr_t>header
        return 0

    cdef _Buffer _instructions(
        self, root, Sequence* pair, _Buffer sketch, _Buffer literals, _Buffer tail_literals
    ):
        """Write the instructions and return the buffer of the tail, or None."""
        cdef Sequence* instructions = array_of(&pair.items[0], -1, "the instructions")
        cdef Sequence* instruction
        cdef _Buffer tail = None
        cdef _Buffer out = sketch
        cdef Place place
        cdef Text name
        cdef int64_t i, field
        place.path[0] = 0
        out.put(b"[", 1)
        for i in range(instructions.size):
            instruction = array_of(&instructions.items[i], 4, "an instruction")
            name = text_of(&instruction.items[0])
            if tail is None and name.size == 13 and memcmp(name.data, b"EnterPostproc", 13) == 0:
                sketch.put(b"]", 1)
                tail = _Buffer()
                out = tail
                literals = tail_literals
                out.put(b"[", 1)
            out.separate()
            out.put(b"[", 1)
            for field in range(4):
                out.separate()
                place.path[1] = i
                place.path[2] = field
                place.depth = 3
                self._put(
                    root, &instruction.items[field], out, literals if field == 1 else None, &place
                )
            out.put(b"]", 1)
        out.put(b"]", 1)
        return tail

    cdef int _decisions(self, root, Sequence* pair, _Buffer out) except -1:
        """Write the decisions in ascending order of their instructions."""
        cdef Sequence* decisions = array_of(&pair.items[1], -1, "the decisions")
        cdef Sequence* decision
        cdef Place place
        cdef int64_t i
        order = []
        for i in range(decisions.size):
            decision = array_of(&decisions.items[i], 2, "a decision")
            order.append((self._index(&decision.items[0]), i))
        order.sort()  # one index cannot stand twice in a trace; equal ones would keep their order
        place.path[0] = 1
        out.put(b"[", 1)
        for index, position in order:
            i = position
            decision = <Sequence*><void*>decisions.items[i].bits
            out.separate()
            out.put(b"[", 1)
            put_int(out, index)
            out.put(b",", 1)
            place.path[1] = i
            place.path[2] = 1
            place.depth = 3
            self._put(root, &decision.items[1], out, None, &place)
            out.put(b"]", 1)
        return out.put(b"]", 1)

    cdef int64_t _index(self, Value* value) except? -1:
        cdef Value integer = value[0]
        if value.kind == self.int_kind:
            self._integer(<char*><void*>value.bits, &integer)
        if integer.kind != INT:
            raise ValueError(f"a decision's index has type index {value.kind}")
        return integer.bits

    cdef int _integer(self, char* node, Value* out) except -1:
        """Set `out` to the value of an ``ir.IntImm``."""
        if self.int_is_any:
            out[0] = (<Value*>(node + self.int_offset))[0]
            if out.kind != INT and out.kind != BOOL:
                raise TypeError(f"an IntImm holds type index {out.kind}, more than 64 bits")
        else:
            out.bits = (<int64_t*>(node + self.int_offset))[0]
        out.kind = INT
        return 0

    cdef inline bint _is_bool(self, char* node) noexcept:
        """Tell whether an ``ir.IntImm`` has the data type bool, which TVM writes as true/false."""
        cdef char* kind
        if self.dtype_is_inline:
            return (<uint32_t*>(node + self.type_offset))[0] == self.bool_dtype
        kind = (<char**>(node + self.type_offset))[0]
        return kind != NULL and (<uint32_t*>(kind + self.dtype_offset))[0] == self.bool_dtype

    cdef int _put(self, root, Value* value, _Buffer out, _Buffer literals, Place* place) except -1:
        """Write a value; numbers go to `literals`, where given, and leave ``{}`` behind."""
        cdef Value integer
        cdef Text text
        cdef char* node
        cdef double real
        if value.kind == SMALL_STR or value.kind == STR:
            text = text_of(value)
            return put_text(out, text.data, text.size)
        if value.kind == ARRAY:
            return self._put_array(root, value, out, literals, place)
        if value.kind == NONE:
            return out.put(b"null", 4)
        node = <char*><void*>value.bits
        if value.kind == self.int_kind and self._is_bool(node):
            self._integer(node, &integer)
            return out.put(b"true", 4) if integer.bits else out.put(b"false", 5)
        # A bool outside of an IntImm is a number to TVM's JSON writer.
        if value.kind != INT and value.kind != BOOL and value.kind != FLOAT and (
            value.kind != self.int_kind and value.kind != self.float_kind
        ):
            return self._put_foreign(root, value, out, literals, place)
        if literals is not None:
            out.put(b"{}", 2)
            literals.separate()
            out = literals
        if value.kind == FLOAT:
            memcpy(&real, &value.bits, sizeof(real))
            return put_float(out, real)
        if value.kind == self.float_kind:
            return put_float(out, (<double*>(node + self.float_offset))[0])
        if value.kind == self.int_kind:
            self._integer(node, &integer)
            return put_int(out, integer.bits)
        return put_int(out, value.bits)

    cdef int _put_array(
        self, root, Value* value, _Buffer out, _Buffer literals, Place* place
    ) except -1:
        cdef Sequence* array = <Sequence*><void*>value.bits
        cdef int64_t i
        cdef int level = place.depth
        if level == MAX_DEPTH:
            raise ValueError("the tree is nested too deep")
        place.depth = level + 1
        out.put(b"[", 1)
        for i in range(array.size):
            if i:
                out.put(b",", 1)
            place.path[level] = i
            self._put(root, &array.items[i], out, literals, place)
        place.depth = level
        return out.put(b"]", 1)

    cdef int _put_foreign(
        self, root, Value* value, _Buffer out, _Buffer literals, Place* place
    ) except -1:
        """Let Python write an index map or a map: fetch the object along the path from the root."""
        if value.kind < FIRST_OBJECT:
            raise TypeError(f"a value of type index {value.kind} has no JSON form")
        found = root
        cdef int level
        for level in range(place.depth):
            found = found[place.path[level]]
        cdef bytes text = self.foreign(found)
        if literals is not None and text == b"{}":  # an empty map would look like a literal's place
            literals.separate()
            literals.put(b"{}", 2)
        return out.put_bytes(text)
