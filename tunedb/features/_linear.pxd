# cython: language_level=3
"""Linear forms of index expressions (``_linear.pyx``)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from tunedb.features._nest cimport Loop, Nest

cdef enum:
    MAX_TERMS = 24
    MAX_CONSTRAINTS = 4
    ATOM_LOOP = 0  # the variable of a loop
    ATOM_DIV = 1  # floordiv of a linear form by a constant
    ATOM_MOD = 2  # floormod
    ATOM_OPAQUE = 3  # anything else; `source` is its node

cdef int64_t UNBOUNDED  # larger than any bounded value

cdef struct Term:
    int32_t atom
    int64_t coefficient

cdef struct Linear:  # base + sum of coefficient * atom
    int64_t base
    int32_t n
    Term terms[MAX_TERMS]

cdef struct Atom:
    uint8_t kind
    uint8_t code
    uint8_t bits
    int32_t source  # loop, or node
    int32_t first_term  # of the numerator
    int32_t n_terms
    int64_t base
    int64_t divisor
    int64_t low
    int64_t high
    uint64_t uses  # loops in it (`loop_bit`)
    int32_t node  # in the output program, or NO

cdef enum Fate:  # of a loop
    KEPT = 0
    DROPPED = 1  # of one iteration, without binding or annotation
    MERGED = 2  # bound to the same thread of the kernel as `into`

cdef struct LoopFate:
    uint8_t fate
    uint8_t is_constant  # of one iteration: its variable is its min
    int32_t into
    int32_t kernel  # outermost loop around it that is bound to a thread, or NO
    int32_t new  # number of the loop in the output program

cdef struct Forms:
    Atom* atoms
    Term* terms
    int32_t n_atoms, room_atoms
    int32_t n_terms, room_terms
    int32_t first_atom  # atoms before it belong to other statements
    LoopFate* loops
    Linear constraints[MAX_CONSTRAINTS]  # forms that are negative when the statement runs
    int32_t n_constraints
    int32_t failed

cdef void forms_free(Forms* self) noexcept nogil
cdef void begin(Forms* self, Nest nest, int32_t predicate) noexcept nogil
cdef void linear_of(Forms* self, Nest nest, int32_t node, Linear* out) noexcept nogil
cdef void add_scaled(Forms* self, Linear* out, const Linear* more, int64_t factor) noexcept nogil
cdef void range_of(Forms* self, const Linear* form, int64_t* low, int64_t* high) noexcept nogil
cdef bint same_atom(Forms* self, int32_t a, int32_t b) noexcept nogil
cdef int32_t keep_terms(Forms* self, const Linear* form) noexcept nogil
cdef uint64_t loop_bit(const Loop* loop) noexcept nogil
cdef uint64_t uses_of(Forms* self, Nest nest, int32_t node) noexcept nogil
