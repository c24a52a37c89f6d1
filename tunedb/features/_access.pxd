# cython: language_level=3
"""Buffer accesses of a store (``_access.pyx``)."""

from libc.stdint cimport int32_t, int64_t

from tunedb.features._nest cimport Nest
from tunedb.features._work cimport Work

cdef int find_accesses(Work* self, Nest nest, int32_t stmt) noexcept nogil
cdef int measure_accesses(Work* self, Nest nest, bint classify, bint last) noexcept nogil
cdef int64_t shape_of(Work* self, Nest nest, int32_t place) noexcept nogil
cdef int64_t element_bytes(Nest nest, int32_t buffer) noexcept nogil
