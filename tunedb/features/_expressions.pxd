# cython: language_level=3
"""Variables, buffers and expressions of TVM's IR into the flat form (``_expressions.pyx``)."""

from libc.stdint cimport int32_t, uint8_t, uintptr_t

from tunedb.features._nest cimport Nest
from tunedb.features._objects cimport Object, Sequence, Tables, Walk

cdef bint make_room(Walk* walk, int32_t room) noexcept nogil
cdef int32_t new_var(Walk* walk, Nest nest, Object* object, uint8_t kind, int32_t owner, int32_t node) noexcept nogil
cdef int32_t new_buffer(Walk* walk, Nest nest, Object* object, uint8_t kind) noexcept nogil
cdef int32_t buffer_of(Walk* walk, Nest nest, Object* object) noexcept nogil
cdef int32_t read_sequence(Walk* walk, Nest nest, Sequence* sequence) noexcept nogil
cdef int32_t read_expr(Walk* walk, Nest nest, Object* object) noexcept nogil
cdef int32_t read_unknown(Walk* walk, Nest nest, Object* object) noexcept nogil
