# cython: language_level=3
"""Arithmetic of a stored value (``_counts.pyx``)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from tunedb.features._nest cimport Nest

cdef enum Count:  # in the order of the columns
    MAD = 0
    ADD_SUB = 1
    MUL = 2
    DIV_MOD = 3
    COMPARE = 4
    MATH_FUNCTION = 5
    OTHER_FUNCTION = 6
    INTEGER = 7  # added to each of the above
    BOOL_OP = 14
    SELECT_OP = 15
    N_COUNTS = 16

cdef struct Tally:
    uint64_t* times  # by node: how often it is evaluated
    uint64_t* absorbed  # by node: how often it is a part of a multiply-add
    int32_t* order  # by rank: nodes of the value, users first
    int32_t size
    int64_t counts[16]

cdef void count_value(Tally* self, Nest nest, int32_t value, bint ansor, uint32_t* seen, uint32_t stamp) noexcept nogil
