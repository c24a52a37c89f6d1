# cython: language_level=3
"""Bounds of an operation from those of its operands (``_intervals.pyx``)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from tunedb.features._bounds cimport Analyzer, Bound, Modular
from tunedb.features._nest cimport OP_ADD, OP_BITAND, OP_MAX, OP_SHL, OP_SHR, Nest, Node

cdef enum:
    NO_SET = -1  # coefficient of the missing modular set of a division by zero

cdef Bound everything(uint8_t code, uint8_t bits) noexcept nogil
cdef Modular modular(int64_t coeff, int64_t base) noexcept nogil
cdef Bound node_bound(Analyzer* self, Nest nest, const Node* node) noexcept nogil
cdef Modular node_modular(Analyzer* self, const Node* nodes, int32_t number) noexcept nogil
cdef int64_t inf_add(Analyzer* self, int64_t x, int64_t y) noexcept nogil

cdef inline bint is_arithmetic(uint8_t op) noexcept nogil:
    """Whether the bound of an operation comes from those of its two operands."""
    return OP_ADD <= op <= OP_MAX or op == OP_SHL or op == OP_SHR or op == OP_BITAND
