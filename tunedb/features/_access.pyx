# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Buffer accesses of a store: regions, strides, reuse (group 2 of Ansor's features).

Both TVM's and Ansor's definitions (`Work.ansor`); a comment explains each difference. Integers wrap
like TVM's; divisions by zero give C++'s results.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp

from tunedb.features._bounds cimport (
    ALL_NODES, AT_MINIMUM, DONE, NO_MEMORY, POS_INF, WRONG_RANK,
    Bound, bind_min, bind_range, choose, coefficient, evaluate, reserve, upper_extent,
    uses_loop, wrap_add, wrap_mul,
)
from tunedb.features._nest cimport (
    NO, OP_INT, OP_LOAD, SERIAL, THREAD_BINDING, Buffer, Nest, Node, Stmt,
)
from tunedb.features._work cimport (
    LOOP_MULTIPLE_READ, MIXED, NO_REUSE, READ, READ_WRITE, REDUCE, SERIAL_MULTIPLE_READ_WRITE,
    SPATIAL, WRITE, Access, Pattern, Touch, Work,
)


cdef int64_t element_bytes(Nest nest, int32_t buffer) noexcept nogil:
    cdef const Buffer* one = &nest.buffers[buffer]
    return (<int64_t>one.bits * (1 if nest.follows_025 else one.lanes) + 7) // 8


cdef int64_t shape_of(Work* self, Nest nest, int32_t place) noexcept nogil:
    """Return an extent of a buffer, given its place in `args`."""
    cdef int32_t node = nest.args[place]
    if nest.nodes[node].op == OP_INT:
        return nest.nodes[node].value
    return upper_extent(&self.analyzer, nest, node)


# --- accesses


cdef void add_pattern(Work* self, int32_t access, int32_t first, int32_t count, Nest nest) noexcept nogil:
    cdef Pattern* pattern = &self.patterns[self.n_patterns]
    cdef int32_t i
    pattern.first = first
    pattern.next = self.accesses[access].pattern
    self.accesses[access].pattern = self.n_patterns
    self.n_patterns += 1
    for i in range(count):
        self.roots[self.n_roots] = nest.args[first + i]
        self.n_roots += 1


cdef int32_t add_access(Work* self, Nest nest, int32_t buffer, uint8_t type) noexcept nogil:
    cdef Access* access = &self.accesses[self.n_accesses]
    access.buffer = buffer
    access.type = type
    access.pattern = NO
    access.uses = 0
    access.element = element_bytes(nest, buffer)
    access.touched = 0
    access.region = self.n_regions
    self.n_regions += nest.buffers[buffer].ndim
    self.access_of[buffer] = self.n_accesses
    self.n_accesses += 1
    return self.n_accesses - 1


cdef int find_accesses(Work* self, Nest nest, int32_t stmt) noexcept nogil:
    """Collect the accesses of a store; the nodes of its value are in `tally.order`.

    The written buffer comes first. If the store reads it too (an update), only the indices of the
    store count.
    """
    cdef const Stmt* store = &nest.stmts[stmt]
    cdef const Node* node
    cdef int32_t i, k, access
    self.n_patterns = self.n_accesses = self.n_regions = self.n_roots = 0
    if store.n_index != nest.buffers[store.buffer].ndim:
        return WRONG_RANK
    access = add_access(self, nest, store.buffer, WRITE)
    add_pattern(self, access, store.first_index, store.n_index, nest)
    for i in range(self.tally.size - 1, -1, -1):
        node = &nest.nodes[self.tally.order[i]]
        if node.op != OP_LOAD:
            continue
        access = self.access_of[node.value]
        if access == 0:
            self.accesses[0].type = READ_WRITE
            continue
        if node.b != nest.buffers[node.value].ndim:
            return WRONG_RANK
        if access == NO:
            access = add_access(self, nest, <int32_t>node.value, READ)
        add_pattern(self, access, node.a, node.b, nest)
    choose(&self.analyzer, nest, self.roots, self.n_roots)
    for i in range(self.n_accesses):
        self.access_of[self.accesses[i].buffer] = NO
        access = self.accesses[i].pattern
        while access != NO:
            for k in range(nest.buffers[self.accesses[i].buffer].ndim):
                self.accesses[i].uses |= self.analyzer.uses[
                    nest.args[self.patterns[access].first + k]]
            access = self.patterns[access].next
    return DONE


cdef bint access_uses(Work* self, Nest nest, const Access* access, int32_t loop) noexcept nogil:
    """Whether the variable of a loop occurs in the indices of an access."""
    cdef int32_t pattern = access.pattern
    cdef int32_t k
    if not access.uses & (<uint64_t>1 << min(nest.loops[loop].depth, 63)):
        return False
    if nest.loops[loop].depth < 63:
        return True
    while pattern != NO:
        for k in range(nest.buffers[access.buffer].ndim):
            if uses_loop(&self.analyzer, nest, nest.args[self.patterns[pattern].first + k], loop):
                return True
        pattern = self.patterns[pattern].next
    return False


# --- regions


cdef int64_t region(Work* self, Nest nest, const Access* access) noexcept nogil:
    """Measure the box around all indices of an access; return its elements."""
    cdef int64_t elements = 1, low, high
    cdef int32_t ndim = nest.buffers[access.buffer].ndim
    cdef int32_t k, pattern
    cdef Bound* found
    for k in range(ndim):
        low = POS_INF
        high = -POS_INF
        pattern = access.pattern
        while pattern != NO:
            found = &self.analyzer.of_node[nest.args[self.patterns[pattern].first + k]]
            low = min(low, found.low)
            high = max(high, found.high)
            pattern = self.patterns[pattern].next
        self.regions[access.region + k] = <int64_t>(<uint64_t>high - <uint64_t>low + 1)
        elements = wrap_mul(elements, self.regions[access.region + k])
    return max(<int64_t>0, elements)


cdef int record_touch(Work* self, int32_t loop, int32_t level, int32_t access) noexcept nogil:
    """Add the elements that an access touches under a loop to those of earlier accesses."""
    cdef int32_t i = self.first_touch[loop]
    cdef int32_t buffer = self.accesses[access].buffer
    cdef int64_t elements = self.accesses[access].touched
    cdef Touch* touch
    while i != NO and self.touches[i].buffer != buffer:
        i = self.touches[i].next
    if i == NO:
        if self.n_touches == self.room_touches:
            if not reserve(<void**>&self.touches, <size_t>(2 * self.room_touches + 64) * sizeof(Touch)):
                return NO_MEMORY
            self.room_touches = 2 * self.room_touches + 64
        i = self.n_touches
        self.n_touches += 1
        touch = &self.touches[i]
        touch.buffer = buffer
        touch.next = self.first_touch[loop]
        touch.count = 0
        touch.total = 0
        touch.least = touch.first = elements
        self.first_touch[loop] = i
    touch = &self.touches[i]
    touch.count += 1
    touch.total = wrap_add(touch.total, elements)
    touch.least = min(touch.least, elements)
    self.touch_of[level * self.n_accesses + access] = i
    return DONE


cdef int find_regions(Work* self, Nest nest) noexcept nogil:
    """Widen the bindings from the innermost loop to the outermost, and record touched elements."""
    cdef int32_t level, i, loop
    cdef bint wider
    cdef size_t wanted = <size_t>self.depth * self.n_accesses
    if wanted > <size_t>self.room_touch_of:
        if not reserve(<void**>&self.touch_of, 2 * wanted * sizeof(int32_t)):
            return NO_MEMORY
        self.room_touch_of = <int32_t>(2 * wanted)
    for level in range(self.depth - 1, -1, -1):
        loop = self.chain[level]
        wider = not (nest.loops[loop].has_extent and nest.loops[loop].extent == 1)
        if wider:
            bind_range(&self.analyzer, nest, loop)
        if level == self.depth - 1:
            evaluate(&self.analyzer, nest, ALL_NODES)
        elif wider:
            evaluate(&self.analyzer, nest, loop)
        self.touched_bytes[level] = 0
        for i in range(self.n_accesses):
            if level == self.depth - 1 or (wider and access_uses(self, nest, &self.accesses[i], loop)):
                self.accesses[i].touched = region(self, nest, &self.accesses[i])
            self.touched_bytes[level] = wrap_add(
                self.touched_bytes[level],
                wrap_mul(self.accesses[i].touched, self.accesses[i].element))
            if record_touch(self, loop, level, i) != DONE:
                return NO_MEMORY
    return DONE


cdef uint8_t loop_class(Work* self, Nest nest, int32_t level) noexcept nogil:
    """Class a loop by the box of the store's indices over this loop alone."""
    cdef const Access* written = &self.accesses[0]
    cdef int64_t elements = 1
    cdef int32_t k
    cdef Bound* found
    if self.analyzer.status != DONE:
        return MIXED
    evaluate(&self.analyzer, nest, ALL_NODES)
    if self.analyzer.status != DONE:  # no bound while the other loops are at their minimum
        self.analyzer.status = DONE
        return MIXED
    for k in range(nest.buffers[written.buffer].ndim):
        found = &self.analyzer.of_node[self.roots[k]]
        elements = wrap_mul(elements, <int64_t>(<uint64_t>found.high - <uint64_t>found.low + 1))
    if elements >= self.extents[level]:
        return SPATIAL
    return MIXED if elements > 1 else REDUCE


cdef bint is_annotated(Work* self, Nest nest) noexcept nogil:
    """Whether a loop around the store needs a position."""
    cdef int32_t i
    for i in range(self.depth):
        if nest.loops[self.chain[i]].kind != SERIAL and nest.loops[self.chain[i]].kind != THREAD_BINDING:
            return True
    return False


cdef void classify_loops(Work* self, Nest nest) noexcept nogil:
    """Class loops as spatial, reduce or mixed by the elements that they write.

    A loop is a reduce loop if its variable is not in the indices of the store, spatial if their box
    has an element for each iteration, else mixed.
    """
    cdef int32_t level, loop
    choose(&self.analyzer, nest, self.roots, nest.buffers[self.accesses[0].buffer].ndim)
    for level in range(self.depth):
        loop = self.chain[level]
        if not access_uses(self, nest, &self.accesses[0], loop):
            self.classes[level] = REDUCE
            continue
        bind_range(&self.analyzer, nest, loop)
        self.classes[level] = loop_class(self, nest, level)
        bind_min(&self.analyzer, nest, loop)
    choose(&self.analyzer, nest, self.roots, self.n_roots)


# --- strides


cdef int64_t stride_of(Work* self, Nest nest, const Access* access, int32_t loop) noexcept nogil:
    """Return the smallest distance in elements of one step of a loop, 0 without any."""
    cdef const Buffer* buffer = &nest.buffers[access.buffer]
    cdef int64_t least = POS_INF, inner, found
    cdef int32_t pattern = access.pattern
    cdef int32_t k, node
    if buffer.ndim == 0:
        return 1 if self.ansor else 0
    if not access_uses(self, nest, access, loop):
        return 0
    while pattern != NO:
        inner = 1
        for k in range(buffer.ndim - 1, -1, -1):
            node = nest.args[self.patterns[pattern].first + k]
            if uses_loop(&self.analyzer, nest, node, loop):
                found = coefficient(&self.analyzer, nest, node, nest.loops[loop].var)
                if found != 0:
                    found = <int64_t>(0 - <uint64_t>found) if found < 0 else found
                    least = min(least, wrap_mul(found, inner))
                    break
            inner = wrap_mul(inner, self.shape[buffer.first_dim + k])
        pattern = self.patterns[pattern].next
    return 0 if least == POS_INF else least


cdef void find_stride(Work* self, Nest nest, Access* access) noexcept nogil:
    cdef const Buffer* buffer = &nest.buffers[access.buffer]
    cdef int32_t level, k
    for k in range(buffer.ndim):
        self.shape[buffer.first_dim + k] = shape_of(self, nest, buffer.first_dim + k)
    # Ansor counts at least one element as continuous, TVM one byte.
    access.continuous = access.element if self.ansor else 1
    for k in range(buffer.ndim - 1, -1, -1):
        if (self.regions[access.region + k] if self.depth else 1) == self.shape[buffer.first_dim + k]:
            access.continuous = wrap_mul(self.shape[buffer.first_dim + k], access.element)
            break
    access.min_stride = 0
    level = self.depth - 1
    access.skipped = 1
    while level >= 0:
        access.min_stride = stride_of(self, nest, access, self.chain[level])
        if access.min_stride != 0:
            break
        access.skipped = wrap_mul(access.skipped, self.extents[level])
        level -= 1
    access.stride = access.min_stride if level == self.depth - 1 else 0


# --- reuse


cdef double bytes_under(Work* self, Nest nest, int32_t loop) noexcept nogil:
    """Return the bytes that all stores so far touched under a loop."""
    cdef int32_t i = self.first_touch[loop]
    cdef double total = 0
    while i != NO:
        total += <double>wrap_mul(self.touches[i].total, element_bytes(nest, self.touches[i].buffer))
        i = self.touches[i].next
    return total


cdef double bytes_at_once(Work* self, Nest nest) noexcept nogil:
    """Return the bytes of one iteration of the innermost loop: an element for each access.

    TVM counts the accesses of this store alone, Ansor those of all stores so far.
    """
    cdef double total = 0
    cdef int32_t i
    if not self.ansor:
        for i in range(self.n_accesses):
            total += <double>self.accesses[i].element
        return total
    i = self.first_touch[self.chain[self.depth - 1]]
    while i != NO:
        total += <double>self.touches[i].count * element_bytes(nest, self.touches[i].buffer)
        i = self.touches[i].next
    return total


cdef void find_reuse(Work* self, Nest nest, int32_t which) noexcept nogil:
    """Find the innermost loop that accesses the same elements again."""
    cdef Access* access = &self.accesses[which]
    cdef int32_t level, inner
    cdef const Touch* touch
    access.reuse = NO_REUSE
    access.reuse_iterations = access.reuse_bytes = 0
    access.reuse_count = 0
    for level in range(self.depth - 1, -1, -1):
        if not access_uses(self, nest, access, self.chain[level]):
            access.reuse = LOOP_MULTIPLE_READ
            access.reuse_count = self.extents[level]
            access.reuse_iterations = 1
            for inner in range(self.depth - 1, level, -1):
                access.reuse_iterations *= <double>self.extents[inner]
            if level == self.depth - 1:
                access.reuse_bytes = bytes_at_once(self, nest)
            else:
                access.reuse_bytes = bytes_under(self, nest, self.chain[level + 1])
            return
        touch = &self.touches[self.touch_of[level * self.n_accesses + which]]
        if touch.count >= 2:
            access.reuse = SERIAL_MULTIPLE_READ_WRITE
            access.reuse_count = touch.count - 1
            access.reuse_iterations = <double>touch.least / <double>self.extents[level]
            access.reuse_bytes = bytes_under(self, nest, self.chain[level]) / <double>self.extents[level]
            return


# --- the features


cdef inline double at_least_one(double x) noexcept nogil:
    """Return ``std::max(1.0, x)``: 1 for NaN."""
    return x if 1.0 < x else 1.0


cdef void find_sizes(Work* self, Access* access, int32_t which) noexcept nogil:
    cdef double part
    access.bytes = <double>wrap_mul(access.element, self.product)
    access.lines = access.unique_lines = 1
    if self.depth == 0:
        access.unique_bytes = <double>access.element if self.ansor else 1
        return
    access.unique_bytes = <double>access.touched * <double>access.element
    if self.ansor:  # touched by the first of the stores under the outermost loop
        access.unique_bytes = <double>self.touches[self.touch_of[which]].first * <double>access.element
    part = 1.0 * <double>access.min_stride * <double>access.element / <double>self.cache_line
    if not part < 1.0:
        part = 1.0
    access.lines = at_least_one(<double>self.product / <double>access.skipped * part)
    access.unique_lines = at_least_one(
        access.unique_bytes / <double>min(self.cache_line, access.continuous))


cdef int name_order(Nest nest, int32_t left, int32_t right) noexcept nogil:
    cdef const Buffer* a = &nest.buffers[left]
    cdef const Buffer* b = &nest.buffers[right]
    cdef int32_t common = min(a.name_size, b.name_size)
    cdef int order = 0
    if common > 0:
        order = memcmp(nest.text + a.name, nest.text + b.name, common)
    if order != 0:
        return order
    return (a.name_size > b.name_size) - (a.name_size < b.name_size)


cdef bint comes_before(Nest nest, const Access* a, const Access* b) noexcept nogil:
    if a.lines != b.lines:
        return a.lines > b.lines
    if a.bytes != b.bytes:
        return a.bytes > b.bytes
    return name_order(nest, a.buffer, b.buffer) <= 0


cdef void sort_accesses(Work* self, Nest nest) noexcept nogil:
    """Order by lines, then bytes, both falling, then name (insertion: there are few).

    Buffers may share a name. TVM orders those by their addresses; most often the one that is
    accessed last comes first, as always here.
    """
    cdef int32_t i, k
    for i in range(self.n_accesses):
        k = i
        while k > 0 and comes_before(nest, &self.accesses[i], &self.accesses[self.by_size[k - 1]]):
            self.by_size[k] = self.by_size[k - 1]
            k -= 1
        self.by_size[k] = i


cdef int measure_accesses(Work* self, Nest nest, bint classify, bint last) noexcept nogil:
    """Measure the accesses that `find_accesses` found; return a Status.

    `last` is 0 if another store replaces this one's row: then only its touched elements count.
    """
    cdef int32_t i
    cdef int status
    for i in range(self.depth):
        bind_min(&self.analyzer, nest, self.chain[i])
    if self.depth:
        if classify and is_annotated(self, nest):
            classify_loops(self, nest)
        if self.analyzer.has_mod:
            evaluate(&self.analyzer, nest, AT_MINIMUM)
        status = find_regions(self, nest)
        if status != DONE:
            return status
    if last:
        for i in range(self.n_accesses):
            find_stride(self, nest, &self.accesses[i])
        for i in range(self.n_accesses):
            find_reuse(self, nest, i)
            find_sizes(self, &self.accesses[i], i)
        sort_accesses(self, nest)
    return self.analyzer.status
