# cython: language_level=3
"""Bounds of index expressions, as TVM's analyzer gives them (``_bounds.pyx``)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from tunedb.features._nest cimport Nest

cdef extern from * nogil:
    """
    #define POS_INF INT64_MAX
    #define NEG_INF (-INT64_MAX)
    """
    const int64_t POS_INF
    const int64_t NEG_INF

cdef enum:
    ALL_NODES = -1  # `evaluate` every chosen node
    AT_MINIMUM = -2  # the same where every loop is at its minimum
    EXACT_DEPTH = 63  # loops from this depth on share the last bit of `uses`

cdef enum Status:  # results of kernels
    DONE = 0
    NO_MEMORY = 1
    ZERO_DIVISOR = 2  # an index divides by zero, or adds opposite infinities
    WRONG_RANK = 3  # a buffer is accessed with another number of indices than it has dimensions
    UNKNOWN_TAG = 4  # a loop is bound to a thread that TVM does not know
    TOO_LARGE = 5  # shared nodes make an expression too large to walk as a tree

cdef struct Bound:
    int64_t low
    int64_t high

cdef struct Modular:  # the values coeff * x + base
    int64_t coeff
    int64_t base

cdef struct Analyzer:
    Bound* of_var  # the binding of each variable
    Modular* modular_of_var
    Bound* of_node  # valid for chosen nodes, as of their last evaluation
    Modular* modular_of_node
    uint64_t* uses  # by node: loops whose variables occur in it, a bit for each depth
    uint32_t* seen  # by node: the last walk that visited it
    uint32_t* reached  # by node: the last walk whose bounds needed it
    int32_t* chosen  # ascending
    int32_t* stack
    int32_t n_chosen
    int32_t room_vars
    int32_t room_nodes
    int32_t room_args
    uint32_t stamp
    uint8_t exact  # modular sets follow the ranges of loops; TVM's stay those of their minimum
    uint8_t follows_025  # as the nest
    uint8_t has_mod  # among the chosen nodes
    uint8_t status  # a Status; the first error

cdef int analyzer_start(Analyzer* self, Nest nest, bint exact) noexcept nogil
cdef void analyzer_free(Analyzer* self) noexcept nogil
cdef void bind_min(Analyzer* self, Nest nest, int32_t loop) noexcept nogil
cdef void bind_range(Analyzer* self, Nest nest, int32_t loop) noexcept nogil
cdef void choose(Analyzer* self, Nest nest, const int32_t* roots, int32_t n_roots) noexcept nogil
cdef void evaluate(Analyzer* self, Nest nest, int32_t loop) noexcept nogil
cdef Bound bound_of(Analyzer* self, Nest nest, int32_t node) noexcept nogil
cdef bint uses_loop(Analyzer* self, Nest nest, int32_t node, int32_t loop) noexcept nogil
cdef int64_t coefficient(Analyzer* self, Nest nest, int32_t node, int32_t var) noexcept nogil
cdef int64_t upper_extent(Analyzer* self, Nest nest, int32_t node) noexcept nogil
cdef int32_t descending(Nest nest, const int32_t* roots, int32_t n_roots, uint32_t* seen, uint32_t stamp, int32_t* out) noexcept nogil
cdef bint reserve(void** data, size_t size) noexcept nogil

cdef inline int64_t wrap_add(int64_t x, int64_t y) noexcept nogil:
    return <int64_t>(<uint64_t>x + <uint64_t>y)

cdef inline int64_t wrap_mul(int64_t x, int64_t y) noexcept nogil:
    return <int64_t>(<uint64_t>x * <uint64_t>y)

cdef inline void fail(Analyzer* self, uint8_t status) noexcept nogil:
    if self.status == DONE:
        self.status = status
