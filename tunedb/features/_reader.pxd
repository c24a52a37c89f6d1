# cython: language_level=3
"""Reading TVM's IR (``_reader.pyx``)."""

from libc.stdint cimport int64_t, uintptr_t

from tunedb.features._nest cimport Nest
from tunedb.features._objects cimport Tables, Walk


cdef class Reader:
    cdef Tables tables
    cdef object object_type, list_functions

    cdef int read_root(self, Nest nest, uintptr_t root) noexcept nogil
    cdef _read_listed(self, Walk* walk, Nest nest, functions)
    cdef _check(self, Walk* walk, Nest nest)
    cdef bint has_unknown(self, Nest nest) noexcept nogil
    cdef bint _is_known(self, int64_t index) noexcept nogil
