# cython: language_level=3
"""The flat loop-nest form, the input of every extractor (docs/features.md, "The flat form").

A program is a handful of C arrays. Expressions are nodes whose children have smaller numbers
(static single assignment), so one pass from the left sees operands before their users. Nodes may be
shared: all uses of a block's iterator are the node of its binding. Loops, statements and blocks are
numbered in source order. This module is independent of TVM.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uintptr_t

cpdef enum Op:
    OP_UNKNOWN = 0  # a node type unknown to the reader; `value` is its type index
    OP_INT = 1  # value
    OP_FLOAT = 2  # value holds the bits of a double
    OP_STRING = 3
    OP_VAR = 4  # value: number of the variable
    OP_LOAD = 5  # value: number of the buffer; a, b: indices
    OP_CALL = 6  # value: a Call (below); a, b: arguments; c: 1 if it may have effects
    OP_CAST = 7  # a
    OP_ADD = 8  # a, b; the same down to OP_BITXOR
    OP_SUB = 9
    OP_MUL = 10
    OP_DIV = 11  # truncating
    OP_MOD = 12
    OP_FLOORDIV = 13
    OP_FLOORMOD = 14
    OP_MIN = 15
    OP_MAX = 16
    OP_EQ = 17
    OP_NE = 18
    OP_LT = 19
    OP_LE = 20
    OP_GT = 21
    OP_GE = 22
    OP_AND = 23
    OP_OR = 24
    OP_SHL = 25
    OP_SHR = 26
    OP_BITAND = 27
    OP_BITOR = 28
    OP_BITXOR = 29
    OP_NOT = 30  # a
    OP_BITNOT = 31  # a
    OP_SELECT = 32  # a: condition, b, c
    OP_RAMP = 33  # a: base, b: stride, c: lanes
    OP_BROADCAST = 34  # a: value, b: lanes
    OP_SHUFFLE = 35  # a, b: vectors and then indices
    OP_LET = 36  # value: number of the variable; a: its value, b: body
    OP_END = 37

cpdef enum Call:  # calls that the arithmetic on indices handles
    CALL_OTHER = 0
    CALL_IF_THEN_ELSE = 1
    CALL_LIKELY = 2

cpdef enum ForKind:  # TVM's
    SERIAL = 0
    PARALLEL = 1
    VECTORIZED = 2
    UNROLLED = 3
    THREAD_BINDING = 4

cpdef enum Tag:  # binding of a loop
    TAG_NONE = 0
    BLOCK_X = 1
    BLOCK_Y = 2
    BLOCK_Z = 3
    THREAD_X = 4
    THREAD_Y = 5
    THREAD_Z = 6
    VTHREAD = 7
    TAG_OTHER = 8

cpdef enum VarKind:
    VAR_FREE = 0  # a parameter, a symbolic shape
    VAR_LOOP = 1  # owner: its loop
    VAR_LET = 2  # node: its value
    VAR_BLOCK = 3  # iterator of a block: never in an expression; node: the value bound to it

cpdef enum StmtKind:
    STMT_STORE = 0
    STMT_EVALUATE = 1
    STMT_CONDITION = 2  # of an if; statements under it name it in `condition`
    STMT_LET = 3  # value of a variable
    STMT_OTHER = 4  # assertion, condition of a while loop, value of an attribute

cpdef enum BufferKind:
    BUFFER_UNDECLARED = 0
    BUFFER_PARAMETER = 1
    BUFFER_ALLOCATED = 2
    BUFFER_MATCHED = 3  # a window into `source`

cpdef enum IterKind:  # TVM's IterVarType
    ITER_SPATIAL = 0
    ITER_THREAD = 1
    ITER_REDUCE = 2
    ITER_ORDERED = 3
    ITER_OPAQUE = 4

cdef enum:
    NO = -1  # no such loop, block, node, …

cdef struct Node:
    uint8_t op
    uint8_t code  # DLDataTypeCode of the result: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool, …
    uint8_t bits
    uint16_t lanes
    int32_t a
    int32_t b
    int32_t c
    int64_t value

cdef struct Var:
    uint8_t kind
    uint8_t code
    uint8_t bits
    int32_t owner  # loop, or block
    int32_t node
    int32_t name  # offset into `text`
    int32_t name_size
    uintptr_t object  # address of TVM's, only to tell variables apart

cdef struct Loop:
    int32_t parent  # innermost loop around it, or NO
    int32_t block  # innermost block around it, or NO
    int32_t depth  # loops around it
    int32_t var
    int32_t min_node
    int32_t extent_node
    int64_t min  # where constant
    int64_t extent  # where constant
    uint8_t has_min
    uint8_t has_extent
    uint8_t kind  # ForKind
    uint8_t tag  # Tag
    uint8_t annotated  # has annotations
    int64_t auto_unroll  # pragma_auto_unroll_max_step, or -1
    int32_t first_stmt  # statements first_stmt <= s < end_stmt are under it
    int32_t end_stmt
    int32_t end_loop  # loops n < l < end_loop are under loop n

cdef struct Stmt:
    uint8_t kind
    uint8_t init  # under the init of its block
    int32_t loop
    int32_t block
    int32_t condition  # innermost condition around it (a statement), or NO
    int32_t value  # node: stored, evaluated or tested value
    int32_t buffer  # stores
    int32_t first_index  # of `args`: nodes
    int32_t n_index
    int32_t var  # STMT_LET

cdef struct Buffer:
    uint8_t kind
    uint8_t code
    uint8_t bits
    uint16_t lanes
    int32_t name
    int32_t name_size
    int32_t scope  # offset into `text`; "" is "global"
    int32_t scope_size
    int32_t first_dim  # of `args`: nodes
    int32_t ndim
    int32_t alloc_loop  # innermost loop around its allocation, or NO
    int32_t alloc_block  # block that allocates it, or NO
    int32_t alloc_stmt  # statements before its allocation
    int32_t function
    int32_t source  # BUFFER_MATCHED: buffer of which it is a window
    int32_t first_region  # of `args`: min and extent of each dimension of `source`
    int32_t n_region
    uintptr_t object

cdef struct Block:
    int32_t parent
    int32_t loop
    int32_t name
    int32_t name_size
    int32_t first_iter
    int32_t n_iter
    int32_t predicate  # node
    int32_t first_stmt
    int32_t end_stmt

cdef struct Iter:
    int32_t block
    int32_t var
    int32_t value  # node
    uint8_t kind  # IterKind
    uint8_t has_extent
    int64_t min  # of its domain
    int64_t extent

cdef struct Function:
    int32_t name
    int32_t name_size
    int32_t first_stmt
    int32_t end_stmt
    int32_t first_loop
    int32_t end_loop


cdef class Nest:
    cdef Node* nodes
    cdef int32_t* args
    cdef Var* vars
    cdef Loop* loops
    cdef Stmt* stmts
    cdef Buffer* buffers
    cdef Block* blocks
    cdef Iter* iters
    cdef Function* functions
    cdef char* text
    cdef readonly int32_t n_nodes, n_args, n_vars, n_loops, n_stmts, n_buffers, n_blocks
    cdef readonly int32_t n_iters, n_functions, n_text
    cdef int32_t room_nodes, room_args, room_vars, room_loops, room_stmts, room_buffers
    cdef int32_t room_blocks, room_iters, room_functions, room_text
    # Place of the next loop or statement.
    cdef int32_t loop, block, condition, function
    cdef uint8_t init
    cdef int failed  # a malloc failed
    # Kernels follow TVM 0.25: modular sets alone bound remainders, and of a vector one lane counts;
    # `reset` keeps it.
    cdef public bint follows_025

    cdef void reset(self) noexcept nogil
    # Each returns the number of the added item, or NO and sets `failed`.
    cdef int32_t add_node(self, uint8_t op, uint8_t code, uint8_t bits, uint16_t lanes, int32_t a, int32_t b, int32_t c, int64_t value) noexcept nogil
    cdef int32_t add_args(self, int32_t count) noexcept nogil
    cdef int32_t add_var(self, uint8_t kind, uint8_t code, uint8_t bits, int32_t owner, int32_t node, int32_t name, int32_t name_size, uintptr_t object) noexcept nogil
    cdef int32_t add_text(self, const char* text, int32_t size) noexcept nogil
    cdef int32_t add_buffer(self) noexcept nogil
    cdef int32_t add_iter(self) noexcept nogil
    cdef int32_t open_function(self, int32_t name, int32_t name_size) noexcept nogil
    cdef void close_function(self) noexcept nogil
    cdef int32_t open_loop(self) noexcept nogil
    cdef void close_loop(self) noexcept nogil
    cdef int32_t open_block(self) noexcept nogil
    cdef void close_block(self) noexcept nogil
    cdef int32_t add_stmt(self, uint8_t kind, int32_t value) noexcept nogil

    cdef _node(self, int32_t i)
    cdef _list(self, int32_t first, int32_t count)
    cdef _text(self, int32_t first, int32_t size)
