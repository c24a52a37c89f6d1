# cython: language_level=3
"""Accesses and regions of a scheduled program (``_regions.pyx``)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from tunedb.features._linear cimport Forms, Linear
from tunedb.features._nest cimport Nest

cdef enum:  # reasons why a program cannot be rewritten
    FAILED_MEMORY = 1
    FAILED_TERMS = 2

cdef enum:  # states of a window
    UNTOUCHED = 0
    EXACT = 1
    WHOLE = 2  # accesses differ in the loops around: the dimension keeps its declared size

cdef struct Ref:  # a linear form in the pool of terms
    int32_t first
    int32_t n
    int64_t base

cdef struct Access:
    int32_t buffer  # the accessed buffer; for a window the buffer behind it
    int32_t stmt  # or NO: the region of a window
    int32_t loop
    int32_t first_ref  # one for each dimension
    int32_t ndim

cdef struct Window:  # the part of one dimension that the scope of an allocation touches
    int64_t low
    int64_t high
    int32_t outer_first  # terms of loops around the allocation
    int32_t outer_n
    uint8_t state

cdef struct Place:  # the allocation of a buffer, and its windows
    int32_t loop  # innermost loop around all its accesses, or NO
    uint8_t accessed
    uint8_t relaxed  # threads whose loops count as inside: a scope
    int32_t first_window


cdef class Regions:
    cdef Forms forms
    cdef Access* accesses
    cdef Ref* refs
    cdef Window* windows
    cdef Place* places
    cdef int32_t* access_of_node  # by node: of a load, or NO
    cdef int32_t* first_access  # by statement
    cdef int32_t* cross  # by loop: block whose reduction over threads begins here, or NO
    cdef int32_t n_accesses, room_accesses, n_refs, room_refs, room_windows, room_places
    cdef int32_t room_nodes, room_stmts, room_loops
    cdef int32_t failed

    cdef int outcome(self) noexcept nogil
    cdef int find(self, Nest nest) noexcept nogil


cdef bint is_kept(Regions self, int32_t loop) noexcept nogil
cdef uint64_t inner_bits(Regions self, Nest nest, int32_t buffer, int32_t loop) noexcept nogil
cdef void form_of(Regions self, const Ref* ref, Linear* out) noexcept nogil
cdef void take_apart(Regions self, const Ref* ref, uint64_t inner, Linear* inside, Linear* outside) noexcept nogil
