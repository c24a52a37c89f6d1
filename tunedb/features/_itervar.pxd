# cython: language_level=3
"""Types of the walk over the axes of a program (``_itervar.pyx``)."""

from libc.math cimport log
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef enum:
    # Slots of the one-hot annotation (v0.19 src/autotvm/feature_visitor.h); blocks and threads
    # have those before.
    SLOT_THREAD_X = 3
    SLOT_UNROLLED = 6
    SLOT_VECTORIZED = 7
    SLOT_PARALLEL = 8
    SLOT_SERIAL = 9
    SLOT_VTHREAD = 10
    SLOTS = 11
    FIELDS = 18  # of an axis: length, nest_level, topdown, bottomup, one-hot, add, mul, div
    TOUCH_FIELDS = 6  # stride, mod, count, reuse, T_count, T_reuse

    # Bounds, far above real programs (a thousand touches): below a second and 250 MB.
    MOST_TOUCHES = 1 << 21
    MOST_WORK = 1 << 28
    MOST_TEXT = 1 << 28

    NUMBER_SIZE = 12  # of "_2097152" and a zero

    CODE_FLOAT = 2  # DLDataTypeCode
    CODE_BFLOAT = 4

    DONE = 0
    NO_MEMORY = 1
    TOO_LARGE = 2
    NOT_FLAT = 3  # `where` is the buffer
    BAD_THREAD = 4  # `where` is the loop

cdef struct Axis:
    int32_t var
    int32_t position  # of its variable on the stack
    int32_t nest_level
    int32_t slot
    int32_t first_access
    int32_t n_touches
    int32_t adds
    int32_t muls
    int32_t divs
    int64_t length
    int64_t topdown
    int64_t bottomup

cdef struct Access:
    int32_t first  # of the touches, one for each place on the stack
    int32_t depth
    int32_t buffer

cdef struct Touch:
    int32_t axis  # NO where the same variable has a place further out
    int64_t stride
    int64_t count
    int64_t reuse
    int64_t t_count
    int64_t t_reuse

cdef struct Known:  # about a variable
    int32_t axis  # that it has now, or NO
    int32_t place  # its first on the stack, or NO
    int32_t met  # number (from 1) of the last access with it in its index
    int64_t stride  # in that index

cdef struct Name:
    const char* text
    int32_t size
    int32_t number  # of the buffer or access with this name


cdef inline int64_t product(int64_t a, int64_t b) noexcept nogil:
    """Return a * b, wrapped as in C++ in practice."""
    return <int64_t>(<uint64_t>a * <uint64_t>b)


cdef inline int64_t quotient(int64_t a, int64_t b) noexcept nogil:
    """Return a / b, truncated; 0 for b = 0, where C++ would trap."""
    if b == 0:
        return 0
    if b == -1:
        return <int64_t>(0 - <uint64_t>a)
    return a // b  # cdivision: C's


cdef inline double scaled(int64_t value, bint take_log) noexcept nogil:
    if not take_log:
        return <double>value
    if value < 0:
        return -log(1.0 - <double>value) / log(2.0)
    return log(1.0 + <double>value) / log(2.0)


cdef inline int parallel_level(int32_t slot) noexcept nogil:
    """Return 2 for a block, 1 for a thread or a parallel loop, 0 for any other axis."""
    if slot < SLOT_THREAD_X:
        return 2
    return 1 if slot < SLOT_UNROLLED or slot == SLOT_PARALLEL else 0
