# cython: language_level=3
"""Scheduled programs that look lowered (``_scheduled.pyx``)."""

from libc.stdint cimport int32_t

from tunedb.features._nest cimport Nest
from tunedb.features._regions cimport Regions


cdef class Scheduler(Regions):
    cdef readonly Nest out
    cdef int32_t in_thread  # during a write: buffer that replaces the block's own

    # Write `nest` as `out`; return 0, or the reason for a failure.
    cdef int run(self, Nest nest) noexcept nogil
