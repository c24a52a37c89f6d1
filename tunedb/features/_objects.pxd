# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""TVM's objects through tvm-ffi's C ABI, as the reader sees them.

The reader uses no header and links nothing. This module declares the fixed parts of
``tvm/ffi/c_api.h`` (the object header, ``TVMFFIAny``, the cell of a sequence, the bytes of a text);
`Tables` has the offsets of fields in TVM's own classes. The small layout of a map is not part of
``c_api.h``: the self-test of ``plugins/metaschedule/features/ir.py`` checks it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memset

from tunedb.features._nest cimport Node

# Type indices of the ABI (TVMFFITypeIndex).
cdef enum:
    INT = 1
    BOOL = 2
    RAW_TEXT = 8
    SMALL_TEXT = 11
    FIRST_OBJECT = 64
    TEXT = 65
    ARRAY = 71

cdef enum:
    MAX_DEPTH = 2000  # nested nodes; TVM itself survives some 6000
    MAX_FIELDS = 8
    MAX_CHILDREN = 10

cdef struct Any:  # TVMFFIAny
    int32_t kind
    uint32_t length  # of a small text
    int64_t bits

cdef struct Object:  # TVMFFIObject
    uint64_t references
    int32_t kind
    uint32_t padding
    void* deleter

cdef struct Bytes:  # TVMFFIByteArray
    const char* data
    size_t size

cdef struct Sequence:  # TVMFFIObject, TVMFFISeqCell
    Object header
    Any* items
    int64_t size
    int64_t capacity
    void* data_deleter

cdef struct Map:  # ffi::MapObj; pairs in order where the highest bit of slots is set
    Object header
    void* data
    uint64_t size
    uint64_t slots

ctypedef int (*FunctionCall)(void*, Any*, int32_t, Any*) noexcept nogil
ctypedef int (*DecRef)(void*) noexcept nogil

cdef enum:  # roles of types for the reader, in the order of ROLES
    UNKNOWN
    FOR
    STORE
    REALIZE
    BLOCK
    SEQ
    BRANCH
    EVALUATE
    ATTR
    ALLOC
    DECLARE
    BIND
    WHILE
    ASSERT
    END
    INT_IMM
    FLOAT_IMM
    STRING_IMM
    VAR
    LOAD
    CALL
    BINARY
    NOT
    SELECT
    CAST
    RAMP
    BROADCAST
    SHUFFLE
    LET
    ITER_VAR
    RANGE
    MATCH
    REGION
    PRIM_TYPE
    BUFFER_TYPE
    FUNCTION
    MODULE
    GLOBAL_VAR
    BUFFER
    POINTER_TYPE
    N_ROLES

cdef enum:  # outcomes of a walk
    OK = 0
    NO_MEMORY = 1
    TOO_DEEP = 2
    NOT_A_MODULE = 3
    DENSE_MODULE = 4  # more functions than the small layout of a map holds
    BAD_NODE = 5

cdef struct Type:
    uint8_t role
    uint8_t op  # Op of BINARY and NOT
    uint8_t is_stmt
    uint8_t is_expr
    uint8_t n_children
    int32_t child[MAX_CHILDREN]  # offsets of the fields to walk in an unknown type
    uint8_t child_is_sequence[MAX_CHILDREN]

cdef struct Operator:  # an ir.Op: the kind of its calls, and the Op that they are read as
    uintptr_t address
    uint8_t call
    uint8_t effects
    uint8_t op

cdef struct Tables:
    Type* types
    int32_t n_types
    int32_t offset[N_ROLES][MAX_FIELDS]
    int32_t type_offset  # of `ty` in ir.Expr, or of the data type itself
    bint dtype_is_inline  # whether an expression holds its data type, as until TVM 0.25
    int32_t int_is_any
    Operator* operators
    int32_t n_operators
    FunctionCall function_call
    DecRef dec_ref
    void* map_get

cdef struct Walk:
    Tables* tables
    uintptr_t* keys  # addresses of variables and buffers, open addressing
    int32_t* values  # number of the variable, or -2 - number of the buffer
    int32_t room  # a power of two
    int32_t used
    int32_t depth
    int32_t status


# ---- reading fields ------------------------------------------------------------------------------


cdef inline Object* child(Object* of, int32_t offset) noexcept nogil:
    return (<Object**>(<char*>of + offset))[0]


cdef inline uint8_t role_of(Tables* tables, Object* object) noexcept nogil:
    if object == NULL or object.kind < 0 or object.kind >= tables.n_types:
        return UNKNOWN
    return tables.types[object.kind].role


cdef inline Object* entry(Any* value) noexcept nogil:
    return <Object*><void*>value.bits if value.kind >= FIRST_OBJECT else NULL


cdef inline void text_of(Any* value, const char** data, int32_t* size) noexcept nogil:
    cdef Bytes* held
    if value.kind == SMALL_TEXT:
        data[0] = <const char*>&value.bits
        size[0] = <int32_t>value.length
    elif value.kind == TEXT:
        held = <Bytes*>(<char*><void*>value.bits + sizeof(Object))
        data[0] = held.data
        size[0] = <int32_t>held.size if held.size < 65536 else 65536
    else:
        data[0] = b""
        size[0] = 0


cdef inline bint is_text(Any* value, const char* text, int32_t length) noexcept nogil:
    cdef const char* data
    cdef int32_t size
    text_of(value, &data, &size)
    return size == length and memcmp(data, text, length) == 0


cdef inline bint int_value(Tables* tables, Object* object, int64_t* value) noexcept nogil:
    """Whether an expression is an integer constant of 64 bits; write its value."""
    cdef Any* held
    if role_of(tables, object) != INT_IMM:
        return False
    if not tables.int_is_any:
        value[0] = (<int64_t*>(<char*>object + tables.offset[INT_IMM][0]))[0]
        return True
    held = <Any*>(<char*>object + tables.offset[INT_IMM][0])
    value[0] = held.bits
    return held.kind == INT or held.kind == BOOL


cdef inline void dtype_at(uint8_t* dtype, Node* into) noexcept nogil:
    """Write code, bits and lanes of a data type."""
    into.code = dtype[0]
    into.bits = dtype[1]
    into.lanes = (<uint16_t*>(dtype + 2))[0]


cdef inline void expr_type(Tables* tables, Object* object, Node* into) noexcept nogil:
    """Write code, bits and lanes of an expression's type."""
    if tables.dtype_is_inline:
        dtype_at(<uint8_t*>object + tables.type_offset, into)
    else:
        type_of(tables, child(object, tables.type_offset), into)


cdef inline void type_of(Tables* tables, Object* type, Node* into) noexcept nogil:
    """Write code, bits and lanes of a type; other than primitive types are handles."""
    if role_of(tables, type) == PRIM_TYPE:
        dtype_at(<uint8_t*>type + tables.offset[PRIM_TYPE][0], into)
    else:
        into.code = 3
        into.bits = 64
        into.lanes = 1


cdef inline int64_t map_int(Tables* tables, Map* map, const char* key, int32_t size, int64_t missing) noexcept nogil:
    """Return an integer of a map from texts, or `missing`."""
    cdef Any* pairs
    cdef Any arguments[2]
    cdef Any found
    cdef int64_t value = missing
    cdef uint64_t i
    if map == NULL or map.size == 0:
        return missing
    memset(&found, 0, sizeof(Any))
    if map.slots >> 63:
        pairs = <Any*>map.data
        for i in range(map.size):
            if is_text(&pairs[2 * i], key, size):
                found = pairs[2 * i + 1]
                break
        if found.kind == INT or found.kind == BOOL:
            return found.bits
        return value if int_value(tables, entry(&found), &value) else missing
    arguments[0].kind = map.header.kind
    arguments[0].length = 0
    arguments[0].bits = <int64_t><uintptr_t>map
    arguments[1].kind = RAW_TEXT
    arguments[1].length = 0
    arguments[1].bits = <int64_t><uintptr_t>key
    if tables.function_call(tables.map_get, &arguments[0], 2, &found) != 0:
        return missing
    if found.kind == INT or found.kind == BOOL:
        return found.bits
    if found.kind >= FIRST_OBJECT:
        if not int_value(tables, entry(&found), &value):
            value = missing
        tables.dec_ref(<void*>found.bits)
    return value


cdef inline Object* map_object(Tables* tables, Map* map, Object* key) noexcept nogil:
    """Return the object of a map under an object, or NULL; the map keeps it alive."""
    cdef Any* pairs
    cdef Any arguments[2]
    cdef Any found
    cdef uint64_t i
    if map == NULL or map.size == 0:
        return NULL
    if map.slots >> 63:
        pairs = <Any*>map.data
        for i in range(map.size):
            if entry(&pairs[2 * i]) == key:
                return entry(&pairs[2 * i + 1])
        return NULL
    memset(&found, 0, sizeof(Any))
    arguments[0].kind = map.header.kind
    arguments[0].length = 0
    arguments[0].bits = <int64_t><uintptr_t>map
    arguments[1].kind = key.kind
    arguments[1].length = 0
    arguments[1].bits = <int64_t><uintptr_t>key
    if tables.function_call(tables.map_get, &arguments[0], 2, &found) != 0:
        return NULL
    if entry(&found) != NULL:
        tables.dec_ref(<void*>found.bits)
    return entry(&found)


cdef inline int32_t count_of(Object* sequence) noexcept nogil:
    return 0 if sequence == NULL else <int32_t>(<Sequence*>sequence).size
