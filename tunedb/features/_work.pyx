# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The state of a store and the loops around it: memory, and the steps from store to store."""

from libc.stdlib cimport free

from tunedb.features._bounds cimport (
    DONE, NO_MEMORY, UNKNOWN_TAG,
    analyzer_free, analyzer_start, bind_range, reserve, upper_extent, wrap_mul,
)
from tunedb.features._counts cimport N_COUNTS
from tunedb.features._nest cimport BLOCK_X, THREAD_BINDING, VTHREAD, Loop, Nest

# --- memory


cdef int make_room(Work* self, Nest nest) noexcept nogil:
    cdef size_t n
    if nest.n_nodes > self.room_nodes:
        n = <size_t>nest.n_nodes * 2
        self.room_nodes = 0
        if not (reserve(<void**>&self.tally.times, n * sizeof(uint64_t))
                and reserve(<void**>&self.tally.absorbed, n * sizeof(uint64_t))
                and reserve(<void**>&self.tally.order, n * sizeof(int32_t))
                and reserve(<void**>&self.patterns, (n + 1) * sizeof(Pattern))
                and reserve(<void**>&self.accesses, (n + 1) * sizeof(Access))
                and reserve(<void**>&self.by_size, (n + 1) * sizeof(int32_t))):
            return NO_MEMORY
        self.room_nodes = <int32_t>n
    if nest.n_args > self.room_args or self.room_args == 0:
        n = <size_t>nest.n_args * 2 + 1
        self.room_args = 0
        if not (reserve(<void**>&self.regions, n * sizeof(int64_t))
                and reserve(<void**>&self.roots, n * sizeof(int32_t))
                and reserve(<void**>&self.shape, n * sizeof(int64_t))):
            return NO_MEMORY
        self.room_args = <int32_t>n
    if nest.n_loops > self.room_loops or self.room_loops == 0:
        n = <size_t>nest.n_loops * 2 + 1
        self.room_loops = 0
        if not (reserve(<void**>&self.chain, n * sizeof(int32_t))
                and reserve(<void**>&self.extents, n * sizeof(int64_t))
                and reserve(<void**>&self.extent, n * sizeof(int64_t))
                and reserve(<void**>&self.touched_bytes, n * sizeof(int64_t))
                and reserve(<void**>&self.first_touch, n * sizeof(int32_t))
                and reserve(<void**>&self.classes, n)):
            return NO_MEMORY
        self.room_loops = <int32_t>n
    if nest.n_buffers > self.room_buffers or self.room_buffers == 0:
        n = <size_t>nest.n_buffers * 2 + 1
        self.room_buffers = 0
        if not (reserve(<void**>&self.access_of, n * sizeof(int32_t))
                and reserve(<void**>&self.row, n * sizeof(int32_t))
                and reserve(<void**>&self.last_store, n * sizeof(int32_t))
                and reserve(<void**>&self.outer, n * sizeof(int64_t))
                and reserve(<void**>&self.kept, n * N_COUNTS * sizeof(int64_t))):
            return NO_MEMORY
        self.room_buffers = <int32_t>n
    if nest.n_functions >= self.room_functions:
        n = <size_t>nest.n_functions * 2 + 1
        self.room_functions = 0
        if not reserve(<void**>&self.ends, n * sizeof(int64_t)):
            return NO_MEMORY
        self.room_functions = <int32_t>n
    return analyzer_start(&self.analyzer, nest, self.ansor)


cdef void free_work(Work* self) noexcept nogil:
    analyzer_free(&self.analyzer)
    free(self.tally.times)
    free(self.tally.absorbed)
    free(self.tally.order)
    free(self.patterns)
    free(self.accesses)
    free(self.by_size)
    free(self.regions)
    free(self.roots)
    free(self.shape)
    free(self.chain)
    free(self.extents)
    free(self.extent)
    free(self.touched_bytes)
    free(self.first_touch)
    free(self.classes)
    free(self.access_of)
    free(self.row)
    free(self.last_store)
    free(self.kept)
    free(self.outer)
    free(self.ends)
    free(self.touches)
    free(self.touch_of)


# --- loops


cdef int64_t extent_of(Work* self, Nest nest, int32_t loop) noexcept nogil:
    """Return the extent of a loop directly under the open ones.

    An extent that is not constant counts 1 for TVM; for Ansor it is its largest value over the
    ranges of the loops around.
    """
    cdef const Loop* one = &nest.loops[loop]
    cdef int32_t i
    if one.has_extent:
        return one.extent
    if not self.ansor:
        return 1
    for i in range(self.depth):
        bind_range(&self.analyzer, nest, self.chain[i])
    return upper_extent(&self.analyzer, nest, one.extent_node)


cdef int push_loop(Work* self, Nest nest, int32_t loop) noexcept nogil:
    cdef const Loop* one = &nest.loops[loop]
    self.extents[self.depth] = self.extent[loop] = extent_of(self, nest, loop)
    self.chain[self.depth] = loop
    self.product = wrap_mul(self.product, self.extents[self.depth])
    self.depth += 1
    if one.kind == THREAD_BINDING and not BLOCK_X <= one.tag <= VTHREAD and not self.ansor:
        return UNKNOWN_TAG
    return DONE


cdef void pop_loop(Work* self) noexcept nogil:
    """Leave a loop. TVM divides, so a product that overflowed does not come back."""
    cdef int32_t i
    self.depth -= 1
    if self.ansor or self.extents[self.depth] == 0:
        self.product = 1
        for i in range(self.depth):
            self.product = wrap_mul(self.product, self.extents[i])
    elif self.extents[self.depth] == -1:
        self.product = <int64_t>(0 - <uint64_t>self.product)
    else:
        self.product //= self.extents[self.depth]


cdef int open_next(Work* self, Nest nest, int32_t* next_loop) noexcept nogil:
    """Open the next loop of the program, after closing the loops that are not around it."""
    cdef int32_t loop = next_loop[0]
    next_loop[0] += 1
    while self.depth and self.chain[self.depth - 1] != nest.loops[loop].parent:
        pop_loop(self)
    return push_loop(self, nest, loop)


cdef int go_to(Work* self, Nest nest, int32_t* next_loop, int32_t stmt, int32_t loop) noexcept nogil:
    """Open and close loops on the way to a statement directly under `loop`."""
    cdef int status
    while next_loop[0] < nest.n_loops and nest.loops[next_loop[0]].first_stmt <= stmt:
        status = open_next(self, nest, next_loop)
        if status != DONE:
            return status
    while self.depth and self.chain[self.depth - 1] != loop:
        pop_loop(self)
    return DONE


cdef int leave(Work* self, Nest nest, int32_t* next_loop, int32_t end_loop) noexcept nogil:
    """Go to the end of a function."""
    cdef int status
    while next_loop[0] < end_loop:
        status = open_next(self, nest, next_loop)
        if status != DONE:
            return status
    while self.depth:
        pop_loop(self)
    return DONE
