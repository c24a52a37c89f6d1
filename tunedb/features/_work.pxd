# cython: language_level=3
"""The state of a store and the loops around it (``_work.pyx``)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from tunedb.features._bounds cimport Analyzer
from tunedb.features._counts cimport Tally
from tunedb.features._nest cimport Nest

cdef enum AccessType:
    READ = 0
    WRITE = 1
    READ_WRITE = 2

cdef enum LoopClass:
    SPATIAL = 0
    REDUCE = 1
    MIXED = 2

cdef enum Reuse:
    LOOP_MULTIPLE_READ = 0
    SERIAL_MULTIPLE_READ_WRITE = 1
    NO_REUSE = 2

cdef struct Pattern:  # one list of indices with which a buffer is accessed
    int32_t first  # of the nest's `args`
    int32_t next  # pattern of the same access, or NO

cdef struct Access:  # of one buffer by one store
    int32_t buffer
    int32_t pattern
    int32_t region  # place of its extents in `regions`
    uint8_t type
    uint8_t reuse
    uint64_t uses  # loops whose variables occur in its indices
    int64_t element  # bytes
    int64_t touched  # elements, under the outermost loop so far
    int64_t min_stride
    int64_t stride  # of the innermost loop
    int64_t skipped  # product of the extents of the loops inside the one that has `min_stride`
    int64_t continuous  # bytes
    int64_t reuse_count
    double reuse_iterations
    double reuse_bytes
    double bytes
    double unique_bytes
    double lines
    double unique_lines

cdef struct Touch:  # elements of a buffer that stores touched under a loop
    int32_t buffer
    int32_t next  # touch of the same loop, or NO
    int32_t count
    int64_t total  # elements
    int64_t least
    int64_t first

cdef struct Work:  # one store after another of a program; keeps memory for the next program
    Analyzer analyzer
    Tally tally
    # Loops around the store, outermost first
    int32_t* chain
    int64_t* extents
    int64_t* touched_bytes  # under each of them
    int32_t depth
    int64_t product
    # Its accesses
    Pattern* patterns
    Access* accesses
    int32_t* by_size  # accesses in the order of the columns
    int64_t* regions
    int32_t* roots
    int32_t n_patterns
    int32_t n_accesses
    int32_t n_regions
    int32_t n_roots
    int32_t* access_of  # by buffer: place among the accesses, or NO
    # Touches of all stores so far
    Touch* touches
    int32_t* first_touch  # by loop
    int32_t* touch_of  # by place in the chain and access
    int32_t n_touches
    int32_t room_touches
    int32_t room_touch_of
    # By buffer
    int32_t* row
    int32_t* last_store
    # By place in `args`
    int64_t* shape  # extents of buffers
    # By loop, as of its entry
    int64_t* extent
    # By row
    int64_t* kept  # N_COUNTS counts
    int64_t* outer  # product of the loops around the last store
    # By function, and of the whole program at the end
    int64_t* ends  # the product after its loops are left
    # Loops of the chain, classed for the store
    uint8_t* classes
    int32_t room_nodes
    int32_t room_args
    int32_t room_loops
    int32_t room_buffers
    int32_t room_functions
    int32_t n_columns
    uint8_t ansor
    int64_t cache_line

cdef int make_room(Work* self, Nest nest) noexcept nogil
cdef void free_work(Work* self) noexcept nogil
cdef int go_to(Work* self, Nest nest, int32_t* next_loop, int32_t stmt, int32_t loop) noexcept nogil
cdef int leave(Work* self, Nest nest, int32_t* next_loop, int32_t end_loop) noexcept nogil
