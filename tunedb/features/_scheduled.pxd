# cython: language_level=3
"""Scheduled programs that look lowered (``_scheduled.pyx``)."""

from libc.stdint cimport int32_t

from tunedb.features._nest cimport Nest
from tunedb.features._regions cimport Regions


cdef class Scheduler(Regions):
    cdef readonly Nest out
    cdef int32_t in_thread  # while it is written: buffer that takes the place of the block's own

    # Write `nest` as `out`; 0, or why that is not possible.
    cdef int run(self, Nest nest) noexcept nogil
