# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Ansor's per-store features on the flat form, by TVM's and by Ansor's definitions.

`PerStore.run` goes through the statements in source order, keeps the loops around them, and gives
a row to each stored buffer. The groups of columns: 1 arithmetic (``_counts``), loop kinds and
threads, 2 buffer accesses (``_access``), 3 arithmetic intensity, 4 allocation, 5 outer scope.
"""

from libc.math cimport log2
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

import numpy as np

from ..errors import FormatError, LimitError, UsageError

from tunedb.features._access cimport element_bytes, find_accesses, measure_accesses, shape_of
from tunedb.features._bounds cimport (
    DONE, NO_MEMORY, TOO_LARGE, UNKNOWN_TAG, WRONG_RANK, ZERO_DIVISOR, reserve, wrap_mul,
)
from tunedb.features._counts cimport MAD, N_COUNTS, OTHER_FUNCTION, count_value
from tunedb.features._nest cimport (
    BLOCK_X, BUFFER_ALLOCATED, BUFFER_PARAMETER, NO, OP_FLOAT, OP_INT, PARALLEL, STMT_STORE,
    THREAD_BINDING, UNROLLED, VECTORIZED, VTHREAD,
    Buffer, Nest, Stmt,
)
from tunedb.features._work cimport (
    MIXED, SPATIAL, Access, Work, free_work, go_to, leave, make_room,
)

cdef enum:
    KIND_COLUMNS = 11
    ACCESS_COLUMNS = 18
    FIRST_ACCESS = 57
    LAST_COLUMNS = 7  # groups 4 and 5
    MOST_COLUMNS = 1 << 20

cdef enum Position:  # of an annotated loop, as Ansor's AnnotationPosType
    NONE = 0
    INNER_SPATIAL = 1
    MIDDLE_SPATIAL = 2
    OUTER_SPATIAL = 3
    INNER_REDUCE = 4
    MIXED_POSITION = 7


cdef inline double scaled(double x, bint ansor) noexcept nogil:
    """Return log2(|x| + 1); Ansor keeps the sign."""
    if x == 0:
        return 0
    if x > 0:
        return log2(x + 1)
    return -log2(1 - x) if ansor else log2(-x + 1)


# --- group 1


cdef int position_of(Work* self, int32_t level) noexcept nogil:
    """Return the position of a loop among the loops of its class."""
    cdef int32_t i
    cdef bint outermost = True, innermost = True
    cdef int first = INNER_SPATIAL if self.classes[level] == SPATIAL else INNER_REDUCE
    if self.classes[level] == MIXED:
        return MIXED_POSITION
    for i in range(self.depth):
        if i != level and self.classes[i] == self.classes[level]:
            if i < level:
                outermost = False
            else:
                innermost = False
    if innermost:
        return first
    return first + 2 if outermost else first + 1


cdef void write_kind(Work* self, Nest nest, uint8_t kind, double* out) noexcept nogil:
    """Write number, product, innermost length and position of the loops of a kind."""
    cdef int32_t i, innermost = NO
    cdef int64_t product = 1
    cdef int count = 0, position = NONE
    for i in range(self.depth):
        if nest.loops[self.chain[i]].kind == kind:
            count += 1
            product = wrap_mul(product, self.extents[i])
            innermost = i
    if count:
        out[0] = scaled(count, self.ansor)
        out[1] = scaled(<double>product, self.ansor)
        out[2] = scaled(<double>self.extents[innermost], self.ansor)
        position = position_of(self, innermost) if self.ansor else MIXED_POSITION
    out[3 + position] = 1


cdef void write_threads(Work* self, Nest nest, bint gpu, double* out) noexcept nogil:
    """Write `is_gpu` and the lengths of blockIdx, threadIdx and vthread.

    TVM takes the outermost loop of each tag, and 1 on a CPU; Ansor the innermost, and the product
    of the virtual threads.
    """
    cdef int64_t lengths[7]
    cdef bint found[7]
    cdef int32_t i, tag
    for tag in range(7):
        lengths[tag] = 1
        found[tag] = False
    for i in range(self.depth):
        if nest.loops[self.chain[i]].kind != THREAD_BINDING:
            continue
        tag = nest.loops[self.chain[i]].tag - BLOCK_X
        if not 0 <= tag < 7 or not (self.ansor or gpu and not found[tag]):
            continue
        found[tag] = True
        if self.ansor and tag == VTHREAD - BLOCK_X:
            lengths[tag] = wrap_mul(lengths[tag], self.extents[i])
        else:
            lengths[tag] = self.extents[i]
    out[0] = gpu
    for tag in range(7):
        out[1 + tag] = scaled(<double>lengths[tag], self.ansor)


# --- groups 2 to 5


cdef void write_access(Access* access, bint ansor, double* out) noexcept nogil:
    cdef double reused = <double>access.reuse_count if access.reuse_count > 0 else 0.5
    out[access.type] = 1
    out[3] = scaled(access.bytes, ansor)
    out[4] = scaled(access.unique_bytes, ansor)
    out[5] = scaled(access.lines, ansor)
    out[6] = scaled(access.unique_lines, ansor)
    out[7 + access.reuse] = 1
    out[10] = scaled(access.reuse_iterations, ansor)
    out[11] = scaled(access.reuse_bytes, ansor)
    out[12] = scaled(<double>access.reuse_count, ansor)
    if reused == 1:
        out[13], out[14], out[15], out[16] = out[3], out[4], out[5], out[6]
    else:
        out[13] = scaled(access.bytes / reused, ansor)
        out[14] = scaled(access.unique_bytes / reused, ansor)
        out[15] = scaled(access.lines / reused, ansor)
        out[16] = scaled(access.unique_lines / reused, ansor)
    out[17] = scaled(<double>access.stride, ansor)


cdef double float_operations(Work* self) noexcept nogil:
    """Return the float operations of one iteration of the innermost loop.

    TVM divides the operations of all iterations, which may have wrapped, by their number; for Ansor
    a multiply-add is two operations.
    """
    cdef uint64_t total = 0
    cdef int i
    for i in range(MAD, OTHER_FUNCTION + 1):
        total += <uint64_t>self.tally.counts[i]
    if self.ansor:
        return <double>(total + <uint64_t>self.tally.counts[<int>MAD])
    return <double><int64_t>(total * <uint64_t>self.product) / <double>self.product


cdef double intensity(Work* self, double operations, int32_t level) noexcept nogil:
    if self.ansor and self.touched_bytes[level] == 0:
        return 0
    return operations / <double>self.touched_bytes[level]


cdef void write_curve(Work* self, int32_t samples, double* out) noexcept nogil:
    """Sample operations per byte over operations, the loops from the innermost outwards.

    If the products of a program overflow, the samples are 0; TVM ends in an error.
    """
    cdef double total = float_operations(self)
    cdef double one = total, here, before = 0, wanted, low = 0, high
    cdef int32_t i, level
    for level in range(self.depth - 1, -1, -1):
        total *= <double>self.extents[level]
    if self.depth == 0 or total <= 0:
        return
    level = self.depth - 1
    here = one * <double>self.extents[level]
    high = intensity(self, here, level)
    for i in range(samples):
        wanted = <double>(i + 1) / <double>samples * total
        while not here >= wanted - 1e-4:
            if level == 0:
                return
            level -= 1
            before = here
            low = high
            here *= <double>self.extents[level]
            high = intensity(self, here, level)
        if level == self.depth - 1:
            out[i] = scaled(high, self.ansor)
        else:
            out[i] = scaled(low + (high - low) / (here - before) * (wanted - before), self.ansor)


cdef int64_t product_around(Work* self, Nest nest, const Buffer* buffer) noexcept nogil:
    """Return the product of the loops around an allocation.

    TVM reads it after it has left the loops inside, where its product may have overflowed.
    """
    cdef int32_t loop = NO if buffer.kind == BUFFER_PARAMETER else buffer.alloc_loop
    cdef int64_t around = 1
    if loop == NO:
        return self.ends[nest.n_functions if buffer.function == NO else buffer.function]
    while loop != NO:
        around = wrap_mul(around, self.extent[loop])
        loop = nest.loops[loop].parent
    return around


cdef void write_allocation(Work* self, Nest nest, int32_t buffer, double* out) noexcept nogil:
    """Write bytes, elements times outer product, outer product, and the outer product of the
    store over it.

    For TVM parameters are allocated around all loops, for Ansor they are not allocated.
    """
    cdef const Buffer* one = &nest.buffers[buffer]
    cdef int64_t elements = 1, around = 1, size = 0, total = 0
    cdef int32_t k
    if (one.kind == BUFFER_ALLOCATED and (self.ansor or one.alloc_block != NO)
            or one.kind == BUFFER_PARAMETER and not self.ansor):
        for k in range(one.ndim):
            elements = wrap_mul(elements, shape_of(self, nest, one.first_dim + k))
        around = product_around(self, nest, one)
        size = wrap_mul(elements, element_bytes(nest, buffer))
        total = wrap_mul(elements, around)
    elif self.ansor:
        return
    out[0] = scaled(<double>size, self.ansor)
    out[1] = scaled(<double>total, self.ansor)
    out[2] = scaled(<double>around, self.ansor)
    if self.last_store[buffer] != NO:
        out[3] = scaled(<double>self.outer[self.row[buffer]] / <double>around, self.ansor)


cdef void write_scope(Work* self, Nest nest, double* out) noexcept nogil:
    cdef int32_t i
    cdef int64_t unroll = 0
    for i in range(self.depth):
        if nest.loops[self.chain[i]].auto_unroll > 0:
            unroll = nest.loops[self.chain[i]].auto_unroll
    out[0] = scaled(<double>self.product, self.ansor)
    out[1] = scaled(self.depth, self.ansor)
    out[2] = scaled(<int32_t>unroll, self.ansor)


# --- a program


cdef inline bint is_seen(Work* self, Nest nest, const Stmt* stmt) noexcept nogil:
    """Whether a statement is a store that counts: TVM skips stores of constants."""
    cdef uint8_t op
    if stmt.kind != STMT_STORE:
        return False
    op = nest.nodes[stmt.value].op
    return self.ansor or op != OP_INT and op != OP_FLOAT


cdef int32_t number_rows(Work* self, Nest nest) noexcept nogil:
    """Assign a row to each stored buffer in the order of first stores, then to allocated ones."""
    cdef int32_t i, buffer, count = 0
    for i in range(nest.n_buffers):
        self.row[i] = self.access_of[i] = self.last_store[i] = NO
    for i in range(nest.n_stmts):
        if is_seen(self, nest, &nest.stmts[i]):
            buffer = nest.stmts[i].buffer
            self.last_store[buffer] = i
            if self.row[buffer] == NO:
                self.row[buffer] = count
                count += 1
    if self.ansor:
        for i in range(nest.n_buffers):
            if self.row[i] == NO and nest.buffers[i].kind == BUFFER_ALLOCATED:
                self.row[i] = count
                count += 1
    return count


cdef void add_counts(Work* self, int64_t* kept, bint sum) noexcept nogil:
    """Multiply the counts of a value by the iterations; Ansor adds up those of a buffer."""
    cdef int i
    for i in range(N_COUNTS):
        kept[i] = <int64_t>((<uint64_t>kept[i] if sum else 0)
                            + <uint64_t>self.tally.counts[i] * <uint64_t>self.product)


cdef int take_store(Work* self, Nest nest, int32_t s, const Options* options, double* rows) noexcept nogil:
    """Measure a store, and write its row if it is the last one of its buffer."""
    cdef const Stmt* stmt = &nest.stmts[s]
    cdef bint last = self.last_store[stmt.buffer] == s
    cdef double* out = rows + <size_t>self.row[stmt.buffer] * self.n_columns
    cdef int64_t* kept = self.kept + <size_t>self.row[stmt.buffer] * N_COUNTS
    cdef int32_t i
    cdef int status
    self.analyzer.stamp += 1
    count_value(&self.tally, nest, stmt.value, self.ansor, self.analyzer.seen, self.analyzer.stamp)
    add_counts(self, kept, self.ansor)
    status = find_accesses(self, nest, s)
    if status == DONE:
        status = measure_accesses(self, nest, self.ansor and last, last)
    if status != DONE or not last:
        return status
    for i in range(N_COUNTS):
        out[i] = scaled(<double>kept[i], self.ansor)
    write_kind(self, nest, VECTORIZED, out + N_COUNTS)
    write_kind(self, nest, UNROLLED, out + N_COUNTS + KIND_COLUMNS)
    write_kind(self, nest, PARALLEL, out + N_COUNTS + 2 * KIND_COLUMNS)
    write_threads(self, nest, options.gpu, out + N_COUNTS + 3 * KIND_COLUMNS)
    out += FIRST_ACCESS
    for i in range(min(self.n_accesses, options.buffers_per_store)):
        write_access(&self.accesses[self.by_size[i]], self.ansor, out + i * ACCESS_COLUMNS)
    out += options.buffers_per_store * ACCESS_COLUMNS
    write_curve(self, options.curve_samples, out)
    out += options.curve_samples
    write_scope(self, nest, out + 4)
    self.outer[self.row[stmt.buffer]] = self.product
    return self.analyzer.status


cdef int take_program(Work* self, Nest nest, const Options* options, double* rows) noexcept nogil:
    cdef int32_t i, next_loop = 0, function = 0
    cdef int status = DONE
    for i in range(nest.n_loops):
        self.first_touch[i] = NO
    self.n_touches = 0
    self.depth = 0
    self.product = 1
    for i in range(nest.n_stmts + 1):
        while status == DONE and function < nest.n_functions and nest.functions[function].end_stmt <= i:
            status = leave(self, nest, &next_loop, nest.functions[function].end_loop)
            self.ends[function] = self.product
            function += 1
        if status == DONE and i < nest.n_stmts and is_seen(self, nest, &nest.stmts[i]):
            status = go_to(self, nest, &next_loop, i, nest.stmts[i].loop)
            if status == DONE:
                status = take_store(self, nest, i, options, rows)
        if status != DONE:
            return status
    status = leave(self, nest, &next_loop, nest.n_loops)
    self.ends[nest.n_functions] = self.product
    for i in range(nest.n_buffers):
        if self.row[i] != NO:
            write_allocation(
                self, nest, i, rows + <size_t>(self.row[i] + 1) * self.n_columns - LAST_COLUMNS)
    return self.analyzer.status if status == DONE else status


cdef class PerStore:
    def __cinit__(self):
        self.work = calloc(1, sizeof(Work))
        if self.work == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.work != NULL:
            free_work(<Work*>self.work)
        free(self.work)
        free(self.rows)

    cdef int run(self, Nest nest, const Options* options) noexcept nogil:
        cdef Work* work = <Work*>self.work
        cdef size_t wanted
        cdef int status
        self.n_rows = 0
        self.n_columns = (FIRST_ACCESS + options.buffers_per_store * ACCESS_COLUMNS
                          + options.curve_samples + LAST_COLUMNS)
        work.ansor = options.flavour == ANSOR
        work.cache_line = options.cache_line
        work.n_columns = self.n_columns
        status = make_room(work, nest)
        if status != DONE:
            return status
        self.n_rows = number_rows(work, nest)
        wanted = <size_t>self.n_rows * self.n_columns
        if wanted > self.room_rows:
            if not reserve(<void**>&self.rows, 2 * wanted * sizeof(double)):
                return NO_MEMORY
            self.room_rows = 2 * wanted
        if wanted:
            memset(self.rows, 0, wanted * sizeof(double))
            memset(work.kept, 0, <size_t>self.n_rows * N_COUNTS * sizeof(int64_t))
        return take_program(work, nest, options, self.rows)


cdef Options standard_options(int flavour, bint gpu) noexcept nogil:
    cdef Options options
    options.flavour = flavour
    options.gpu = gpu
    options.buffers_per_store = 5
    options.curve_samples = 10
    options.cache_line = 64
    return options


cdef int raise_status(int status) except -1:
    if status == NO_MEMORY:
        raise MemoryError("the program has too many parts")
    if status == ZERO_DIVISOR:
        raise FormatError("an index of the program divides by zero; TVM refuses such a program")
    if status == WRONG_RANK:
        raise FormatError("a buffer is accessed with another number of indices than it has dimensions")
    if status == UNKNOWN_TAG:
        raise FormatError("a loop is bound to a thread that TVM does not know")
    if status == TOO_LARGE:
        raise LimitError("an index expression of the program is too large to be walked")
    return 0


#: Idle objects of `per_store`, which keep their memory.
cdef list _idle = []


def per_store(Nest nest, *, str flavour, bint gpu, int buffers_per_store=5, int curve_samples=10,
              int64_t cache_line=64):
    """Return the per-store features of a lowered program (``ansor.py`` has the wrappers).

    Parameters
    ----------
    nest : Nest
        The program, as TVM lowers it for its ``PerStoreFeature``.
    flavour : {"tvm", "ansor"}
        The definitions to use.
    gpu : bool
        Whether the target is a GPU.
    buffers_per_store : int, optional
        Buffers with columns of their own in a row.
    curve_samples : int, optional
        Samples of the curve of arithmetic intensity.
    cache_line : int, optional
        Bytes of a cache line.

    Returns
    -------
    ndarray of float64, (n_rows, n_columns)

    Raises
    ------
    UsageError
        An option is out of range.
    FormatError, LimitError
        The program cannot be measured; the message says why.
    """
    cdef Options options
    cdef PerStore one
    cdef double[:, ::1] view
    cdef int status
    if flavour not in ("tvm", "ansor"):
        raise UsageError(f"there is no flavour {flavour!r}; there are tvm, ansor")
    if not (0 <= buffers_per_store <= 1000 and 0 <= curve_samples <= 1000 and cache_line > 0):
        raise UsageError("buffers per store and curve samples are 0 to 1000, a cache line at least 1")
    options = standard_options(ANSOR if flavour == "ansor" else TVM, gpu)
    options.buffers_per_store = buffers_per_store
    options.curve_samples = curve_samples
    options.cache_line = cache_line
    one = _idle.pop() if _idle else PerStore()
    with nogil:
        status = one.run(nest, &options)
    raise_status(status)
    found = np.empty((one.n_rows, one.n_columns))
    if one.n_rows:
        view = found
        memcpy(&view[0, 0], one.rows, <size_t>one.n_rows * one.n_columns * sizeof(double))
    _idle.append(one)
    return found
