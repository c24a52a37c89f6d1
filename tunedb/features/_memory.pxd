# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Arrays that grow."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport realloc

cdef enum:
    FIRST_ROOM = 64
    MOST = 1 << 26  # elements of an array; above it the program is refused


cdef inline void* grown(void* data, int32_t* room, int64_t wanted, size_t size) noexcept nogil:
    """Return an array with room for `wanted` elements, or NULL; then `data` is as it was."""
    cdef int64_t more = room[0] if room[0] > 0 else FIRST_ROOM
    cdef void* moved
    if wanted <= room[0] and data != NULL:
        return data
    if wanted > MOST:
        return NULL
    while more < wanted:
        more *= 2
    moved = realloc(data, <size_t>more * size)
    if moved != NULL:
        room[0] = <int32_t>more
    return moved
