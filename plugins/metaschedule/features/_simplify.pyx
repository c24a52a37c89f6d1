# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What lowering does to loops and blocks itself, as callbacks of ``ffi.StructuralMutate``.

That function rebuilds a program and calls back for the types that it is told. Python callbacks
take 2 us for each node and hold the GIL; these are C functions with tvm-ffi's calling convention,
which touch no Python object. Nothing is linked and no header is used: addresses and offsets come
from the caller (``lowering.py``), who looks them up at run time.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint16_t, uint8_t, uintptr_t

from tunedb.features._nest cimport *

cdef extern from *:
    """
    #if defined(_MSC_VER)
    static __declspec(thread) int tunedb_found;
    #else
    static _Thread_local int tunedb_found;
    #endif
    """
    # What the callbacks met on this thread: they have no argument to keep it in.
    int tunedb_found

cpdef enum:  # what the callbacks tell
    BOUND = 1  # loops that are bound to threads
    MATCHED = 2  # windows into buffers
    COPIED = 4  # automatic copies

cdef enum:  # type indices that the ABI fixes (TVMFFITypeIndex)
    INT = 1
    BOOL = 2

cdef struct Value:  # TVMFFIAny
    int32_t kind
    uint32_t length
    int64_t bits

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

cdef struct DataType:  # DLDataType
    uint8_t code
    uint8_t bits
    uint16_t lanes

ctypedef int (*FunctionCall)(void*, Value*, int32_t, Value*) noexcept nogil
ctypedef int (*CountRef)(void*) noexcept nogil
ctypedef void (*SetError)(const char*, const char*) noexcept nogil

cdef struct Layout:
    FunctionCall call
    CountRef incref, decref
    SetError set_error
    # Functions of tvm-ffi.
    void* mutate
    void* default_mutate
    void* set_remap
    void* map_size
    void* map_count
    void* make_block
    # Fields of tirx.For, s_tir.SBlock, tirx.Stmt, ir.IntImm, ir.Expr and ir.PrimType.
    int64_t loop_var, low, extent, loop_kind, body, loop_annotations
    int64_t iter_vars, name_hint, block_body, init, alloc_buffers, match_buffers
    int64_t block_annotations, span
    int64_t value, type, dtype
    int32_t integer  # type index of ir.IntImm
    bint value_is_any  # whether IntImm.value is a TVMFFIAny, as since TVM 0.27
    Value* constants

cdef enum:  # places among the constants
    EVALUATE_0 = 0
    AUTO_COPY = 1
    NO_REGIONS = 2
    ZEROS = 3  # int8 to int64, uint8 to uint64

cdef Layout at
cdef object _kept = None  # keeps alive what `at` points to


def prepare(symbols, functions, fields, integer, value_is_any, constants):
    """Tell where things are; once, before any callback is used.

    Parameters
    ----------
    symbols : tuple of int
        Addresses of ``TVMFFIFunctionCall``, ``TVMFFIObjectIncRef``, ``TVMFFIObjectDecRef`` and
        ``TVMFFIErrorSetRaisedFromCStr``.
    functions : tuple of tvm_ffi.Function
        ``ffi.StructuralMutatorMutate``, ``…DefaultMutate``, ``…VarRemapSet``, ``ffi.MapSize``,
        ``ffi.MapCount`` and the constructor of ``SBlock``.
    fields : tuple of int
        Offsets of ``For.loop_var``, ``min``, ``extent``, ``kind``, ``body``, ``annotations``;
        ``SBlock.iter_vars``, ``name_hint``, ``body``, ``init``, ``alloc_buffers``,
        ``match_buffers``, ``annotations``, ``span``; ``IntImm.value``, ``Expr.ty`` and
        ``PrimType.dtype``.
    integer : int
        Type index of ``ir.IntImm``.
    value_is_any : bool
        Whether ``IntImm.value`` is a TVMFFIAny, and not an integer of 64 bits.
    constants : tvm_ffi.Array
        ``Evaluate(0)``, the key ``"auto_copy"``, an empty array, and zeros of types int8, int16,
        int32, int64, uint8, uint16, uint32, uint64.
    """
    global _kept
    at.call = <FunctionCall><uintptr_t>symbols[0]
    at.incref = <CountRef><uintptr_t>symbols[1]
    at.decref = <CountRef><uintptr_t>symbols[2]
    at.set_error = <SetError><uintptr_t>symbols[3]
    addresses = [function.__chandle__() for function in functions]
    at.mutate = <void*><uintptr_t>addresses[0]
    at.default_mutate = <void*><uintptr_t>addresses[1]
    at.set_remap = <void*><uintptr_t>addresses[2]
    at.map_size = <void*><uintptr_t>addresses[3]
    at.map_count = <void*><uintptr_t>addresses[4]
    at.make_block = <void*><uintptr_t>addresses[5]
    at.loop_var, at.low, at.extent, at.loop_kind, at.body, at.loop_annotations = fields[:6]
    at.iter_vars, at.name_hint, at.block_body, at.init, at.alloc_buffers = fields[6:11]
    at.match_buffers, at.block_annotations, at.span = fields[11:14]
    at.value, at.type, at.dtype = fields[14:]
    at.integer = integer
    at.value_is_any = value_is_any
    at.constants = (<Sequence*><void*><uintptr_t>constants.__chandle__()).items
    _kept = (functions, constants)


def addresses():
    """Return the addresses of the callbacks.

    Returns
    -------
    tuple of int
        For a program as it was scheduled: those for ``For``, ``SBlock`` and ``AttrStmt``. To leave
        regions out: those for ``SBlock`` and for statements without statements in them.
    """
    return (
        <uintptr_t>&on_loop,
        <uintptr_t>&on_block,
        <uintptr_t>&on_attribute,
        <uintptr_t>&without_regions,
        <uintptr_t>&as_it_is,
    )


def begin():
    """Forget what the callbacks met on this thread."""
    global tunedb_found
    tunedb_found = 0


def found():
    """Return what the callbacks met on this thread since ``begin``."""
    return tunedb_found


cdef inline Value object_at(char* node, int64_t offset) noexcept nogil:
    cdef Value value
    cdef Header* header = (<Header**>(node + offset))[0]
    value.kind = header.kind if header != NULL else 0
    value.length = 0
    value.bits = <int64_t><uintptr_t>header
    return value


cdef inline bint integer_at(char* node, int64_t offset, int64_t* out) noexcept nogil:
    """Set `out` to the value of the ``IntImm`` in a field; false where it is another expression."""
    cdef char* child = (<char**>(node + offset))[0]
    cdef Value* value
    if child == NULL or (<Header*>child).kind != at.integer:
        return False
    if not at.value_is_any:
        out[0] = (<int64_t*>(child + at.value))[0]
        return True
    value = <Value*>(child + at.value)
    if value.kind != INT and value.kind != BOOL:
        return False
    out[0] = value.bits
    return True


cdef int64_t ask(void* function, Value subject, Value* key) noexcept nogil:
    """Return what a function of a map answers, or -1 with the error set."""
    cdef Value arguments[2]
    cdef Value answer
    arguments[0] = subject
    if key != NULL:
        arguments[1] = key[0]
    answer.kind = 0
    answer.length = 0
    answer.bits = 0
    if at.call(function, arguments, 1 if key == NULL else 2, &answer):
        return -1
    return answer.bits


cdef int zero_of(char* variable, Value* out) noexcept nogil:
    """Set `out` to the constant 0 of a variable's type; -1 with the error set where none fits."""
    cdef DataType* dtype = <DataType*>((<char**>(variable + at.type))[0] + at.dtype)
    cdef int row = 0
    if dtype.code < 2 and dtype.lanes == 1:
        while row < 4 and (8 << row) != dtype.bits:
            row += 1
        if row < 4:
            out[0] = at.constants[ZEROS + 4 * dtype.code + row]
            return 0
    at.set_error(b"TypeError", b"a loop variable is no integer of 8, 16, 32 or 64 bits")
    return -1


cdef int descend(Value* args, Value* result) noexcept nogil:
    """Let TVM rebuild a node whose children may change."""
    cdef Value arguments[2]
    arguments[0] = args[1]
    arguments[1] = args[0]
    return at.call(at.default_mutate, arguments, 2, result)


cdef int leave_out(char* loop, Value mutator, Value* result) noexcept nogil:
    """Replace a loop by its body and its variable by 0."""
    cdef Value arguments[3]
    cdef Value nothing
    nothing.kind = 0
    nothing.length = 0
    nothing.bits = 0
    arguments[0] = mutator
    arguments[1] = object_at(loop, at.loop_var)
    if zero_of(<char*><uintptr_t>arguments[1].bits, &arguments[2]):
        return -1
    if at.call(at.set_remap, arguments, 3, &nothing):
        return -1
    arguments[1] = object_at(loop, at.body)
    return at.call(at.mutate, arguments, 2, result)


cdef int on_loop(void* self, Value* args, int32_t count, Value* result) noexcept nogil:
    """Drop loops of extent 0; replace serial ones from 0 to 1 without annotations by the body."""
    global tunedb_found
    cdef char* loop = <char*><uintptr_t>args[0].bits
    cdef int32_t kind = (<int32_t*>(loop + at.loop_kind))[0]
    cdef int64_t extent, low, size
    if kind == THREAD_BINDING:
        tunedb_found |= BOUND
    if integer_at(loop, at.extent, &extent):
        if extent == 0:
            result[0] = at.constants[EVALUATE_0]
            return at.incref(<void*><uintptr_t>result.bits)
        if extent == 1 and kind == SERIAL and integer_at(loop, at.low, &low) and low == 0:
            size = ask(at.map_size, object_at(loop, at.loop_annotations), NULL)
            if size < 0:
                return -1
            if size == 0:
                return leave_out(loop, args[1], result)
    return descend(args, result)


cdef int on_block(void* self, Value* args, int32_t count, Value* result) noexcept nogil:
    """Look for windows into buffers and automatic copies."""
    global tunedb_found
    cdef char* block = <char*><uintptr_t>args[0].bits
    cdef Sequence* windows = (<Sequence**>(block + at.match_buffers))[0]
    cdef int64_t copies = ask(
        at.map_count, object_at(block, at.block_annotations), &at.constants[AUTO_COPY]
    )
    if copies < 0:
        return -1
    if copies:
        tunedb_found |= COPIED
    if windows.size:
        tunedb_found |= MATCHED
    return descend(args, result)


cdef int on_attribute(void* self, Value* args, int32_t count, Value* result) noexcept nogil:
    """Take an attribute for one that binds a thread, as some do."""
    global tunedb_found
    tunedb_found |= BOUND
    return descend(args, result)


cdef int without_regions(void* self, Value* args, int32_t count, Value* result) noexcept nogil:
    """Leave out which regions a block reads and writes."""
    cdef char* block = <char*><uintptr_t>args[0].bits
    cdef Value arguments[10]
    cdef Value body
    cdef int status
    body.kind = 0
    body.length = 0
    body.bits = 0
    arguments[0] = args[1]
    arguments[1] = object_at(block, at.block_body)
    if at.call(at.mutate, arguments, 2, &body):
        return -1
    arguments[0] = object_at(block, at.iter_vars)
    arguments[1] = at.constants[NO_REGIONS]
    arguments[2] = at.constants[NO_REGIONS]
    arguments[3] = (<Value*>(block + at.name_hint))[0]
    arguments[4] = body
    arguments[5] = object_at(block, at.init)
    arguments[6] = object_at(block, at.alloc_buffers)
    arguments[7] = object_at(block, at.match_buffers)
    arguments[8] = object_at(block, at.block_annotations)
    arguments[9] = object_at(block, at.span)
    status = at.call(at.make_block, arguments, 10, result)
    at.decref(<void*><uintptr_t>body.bits)
    return status


cdef int as_it_is(void* self, Value* args, int32_t count, Value* result) noexcept nogil:
    """Look no further."""
    result[0] = args[0]
    return at.incref(<void*><uintptr_t>result.bits)


def is_settled(Nest nest):
    """Tell whether index arithmetic is so simple that simplifying it again changes nothing.

    Integers of 32 bits and more must be sums and differences with constants, products with
    constants, and floor divisions and remainders of a variable by a constant.
    """
    cdef int32_t i
    cdef bint settled = True
    with nogil:
        for i in range(nest.n_nodes):
            if nest.nodes[i].code > 1 or nest.nodes[i].bits < 32:
                continue
            settled = is_simple(nest, &nest.nodes[i])
            if not settled:
                break
    return settled


cdef inline bint is_simple(Nest nest, const Node* node) noexcept nogil:
    if node.op == OP_SUB or node.op == OP_MUL:
        return nest.nodes[node.b].op == OP_INT
    if node.op == OP_FLOORDIV or node.op == OP_FLOORMOD:
        return nest.nodes[node.b].op == OP_INT and nest.nodes[node.a].op == OP_VAR
    return node.op in (OP_INT, OP_VAR, OP_LOAD, OP_CAST, OP_ADD, OP_RAMP, OP_BROADCAST)
