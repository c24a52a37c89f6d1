# cython: language_level=3
"""Ansor's per-store features on the flat form (``_per_store.pyx``)."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from tunedb.features._nest cimport Nest

cdef enum Flavour:
    TVM = 0  # the values of TVM's PerStoreFeature
    ANSOR = 1  # the definitions of Ansor

cdef struct Options:
    uint8_t flavour
    uint8_t gpu
    int32_t buffers_per_store
    int32_t curve_samples
    int64_t cache_line  # bytes


cdef class PerStore:
    """Rows of one program after another; keeps its memory. Each thread needs its own object."""

    cdef double* rows  # n_rows * n_columns, valid until the next `run`
    cdef readonly int32_t n_rows, n_columns
    cdef void* work
    cdef size_t room_rows

    # Compute the rows of a lowered nest; return a Status (`_bounds.pxd`), DONE is 0.
    cdef int run(self, Nest nest, const Options* options) noexcept nogil

# Return the default options.
cdef Options standard_options(int flavour, bint gpu) noexcept nogil
# Raise the error of a Status other than DONE.
cdef int raise_status(int status) except -1
