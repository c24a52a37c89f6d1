# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The accesses of a scheduled program, and the region of each buffer inside its allocation.

The first half of ``_scheduled.pyx``: it decides which loops stay, where each buffer is allocated,
and which region of it the loops inside of its allocation touch.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp

from tunedb.features._linear cimport *
from tunedb.features._memory cimport grown
from tunedb.features._nest cimport *

cdef enum:  # scopes whose threads count as inside of an allocation (TVM's StorageRank)
    RELAX_NONE = 0
    RELAX_THREADS = 1  # shared
    RELAX_ALL = 2  # global


cdef class Regions:
    """The arrays of one program after another; the object keeps its memory."""

    def __dealloc__(self):
        forms_free(&self.forms)
        free(self.forms.loops)
        free(self.accesses)
        free(self.refs)
        free(self.windows)
        free(self.places)
        free(self.access_of_node)
        free(self.first_access)
        free(self.cross)

    cdef int outcome(self) noexcept nogil:
        if self.failed or self.forms.failed == 1:
            return FAILED_MEMORY
        return FAILED_TERMS if self.forms.failed else 0

    cdef int find(self, Nest nest) noexcept nogil:
        """Find the accesses and regions of a program; return 0, or the reason for a failure."""
        cdef int32_t i
        self.n_accesses = self.n_refs = 0
        self.failed = 0
        self.forms.n_atoms = self.forms.n_terms = self.forms.n_constraints = 0
        self.forms.failed = 0
        if not make_room(self, nest):
            return FAILED_MEMORY
        decide_loops(self, nest)
        find_cross(self, nest)
        for i in range(nest.n_stmts):
            if self.outcome() != 0:
                return self.outcome()
            gather(self, nest, i)
        gather_windows(self, nest)
        place_buffers(self, nest)
        if self.outcome() == 0:
            measure_windows(self, nest)
        return self.outcome()


cdef bint make_room(Regions self, Nest nest) noexcept nogil:
    """Allocate the arrays that are as long as those of the program."""
    cdef void* moved
    cdef int32_t room = self.room_loops
    cdef int32_t i
    moved = grown(self.forms.loops, &room, nest.n_loops + 1, sizeof(LoopFate))
    if moved == NULL:
        return False
    self.forms.loops = <LoopFate*>moved
    moved = grown(self.cross, &self.room_loops, nest.n_loops + 1, sizeof(int32_t))
    if moved == NULL:
        return False
    self.cross = <int32_t*>moved
    moved = grown(self.access_of_node, &self.room_nodes, nest.n_nodes + 1, sizeof(int32_t))
    if moved == NULL:
        return False
    self.access_of_node = <int32_t*>moved
    moved = grown(self.first_access, &self.room_stmts, nest.n_stmts + 1, sizeof(int32_t))
    if moved == NULL:
        return False
    self.first_access = <int32_t*>moved
    moved = grown(self.places, &self.room_places, nest.n_buffers + 1, sizeof(Place))
    if moved == NULL:
        return False
    self.places = <Place*>moved
    for i in range(nest.n_loops):
        self.cross[i] = NO
    for i in range(nest.n_nodes):
        self.access_of_node[i] = NO
    return True


# ---- loops ---------------------------------------------------------------------------------------


cdef void decide_loops(Regions self, Nest nest) noexcept nogil:
    """Decide which loops stay: one for each thread of a kernel, and no unit loops."""
    cdef int32_t i, k
    cdef Loop* loop
    cdef LoopFate* fate
    for i in range(nest.n_loops):
        loop = &nest.loops[i]
        fate = &self.forms.loops[i]
        fate.fate = KEPT
        fate.into = i
        fate.new = NO
        fate.is_constant = loop.has_min and loop.has_extent and loop.extent == 1
        fate.kernel = NO if loop.parent == NO else self.forms.loops[loop.parent].kernel
        if loop.tag != TAG_NONE:
            if fate.kernel == NO:
                fate.kernel = i
            for k in range(fate.kernel, i):
                if nest.loops[k].tag == loop.tag and self.forms.loops[k].fate == KEPT:
                    fate.fate = MERGED
                    fate.into = k
                    break
        elif (fate.is_constant and loop.min == 0 and loop.kind == SERIAL
                and not loop.annotated):
            fate.fate = DROPPED


cdef bint is_kept(Regions self, int32_t loop) noexcept nogil:
    return self.forms.loops[loop].fate == KEPT


cdef void find_cross(Regions self, Nest nest) noexcept nogil:
    """Find the reductions whose iterations are threads, and the loop where each begins."""
    cdef int32_t i, k, loop, first
    cdef uint64_t uses
    cdef bint crosses
    cdef Block* block
    for i in range(nest.n_blocks):
        block = &nest.blocks[i]
        uses = 0
        for k in range(block.first_iter, block.first_iter + block.n_iter):
            if nest.iters[k].kind == ITER_REDUCE:
                uses |= uses_of(&self.forms, nest, nest.iters[k].value)
        crosses = False
        first = NO
        loop = block.loop
        while loop != NO:
            if self.forms.loops[loop].fate != DROPPED and uses & loop_bit(&nest.loops[loop]):
                first = loop
                if THREAD_X <= nest.loops[loop].tag <= THREAD_Z:
                    crosses = True
            loop = nest.loops[loop].parent
        if crosses and is_alone(self, nest, i, first, uses):
            self.cross[first] = i


cdef bint is_alone(Regions self, Nest nest, int32_t block, int32_t first, uint64_t uses) noexcept nogil:
    """Whether the loops of a reduction hold nothing else: threads, and loops of the reduction."""
    cdef int32_t i, updates = 0
    cdef Loop* loop
    for i in range(nest.loops[first].first_stmt, nest.loops[first].end_stmt):
        if nest.stmts[i].kind != STMT_STORE or nest.stmts[i].block != block:
            return False
        updates += not nest.stmts[i].init
    for i in range(first, nest.loops[first].end_loop):
        loop = &nest.loops[i]
        if loop.tag == TAG_NONE and is_kept(self, i) and not uses & loop_bit(loop):
            return False
    return updates == 1


# ---- accesses ------------------------------------------------------------------------------------


cdef void gather(Regions self, Nest nest, int32_t number) noexcept nogil:
    """Record the accesses of a statement with the linear forms of their indices."""
    cdef Stmt* stmt = &nest.stmts[number]
    cdef int32_t i
    self.first_access[number] = self.n_accesses
    begin(&self.forms, nest, NO if stmt.block == NO else nest.blocks[stmt.block].predicate)
    if stmt.kind == STMT_STORE:
        add_access(self, nest, number, stmt.buffer, stmt.first_index, stmt.n_index)
        for i in range(stmt.n_index):
            gather_loads(self, nest, number, nest.args[stmt.first_index + i])
    gather_loads(self, nest, number, stmt.value)


cdef void gather_loads(Regions self, Nest nest, int32_t stmt, int32_t node) noexcept nogil:
    cdef Node* found
    cdef int32_t i
    if node < 0:
        return
    found = &nest.nodes[node]
    if found.op in (OP_LOAD, OP_CALL, OP_SHUFFLE, OP_UNKNOWN):
        if found.op == OP_LOAD:
            self.access_of_node[node] = add_access(
                self, nest, stmt, <int32_t>found.value, found.a, found.b)
        for i in range(found.b):
            gather_loads(self, nest, stmt, nest.args[found.a + i])
        return
    if found.op <= OP_VAR:
        return
    gather_loads(self, nest, stmt, found.a)
    gather_loads(self, nest, stmt, found.b)
    gather_loads(self, nest, stmt, found.c)


cdef int32_t add_access(Regions self, Nest nest, int32_t stmt, int32_t buffer, int32_t first, int32_t count) noexcept nogil:
    """Record an access; an access of a window is one of the buffer behind it."""
    cdef int32_t i, skipped, number, behind = buffer
    cdef Linear form, more
    cdef Buffer* window = &nest.buffers[buffer]
    if window.kind == BUFFER_MATCHED and window.source >= 0 and window.n_region >= 2 * count:
        behind = window.source
        skipped = window.n_region // 2 - count
        count = window.n_region // 2
    else:
        skipped = 0
        window = NULL
    number = new_access(self, behind, stmt, nest.stmts[stmt].loop, count)
    if number == NO:
        return NO
    for i in range(count):
        form.base = 0
        form.n = 0
        if window != NULL:
            linear_of(&self.forms, nest, nest.args[window.first_region + 2 * i], &form)
        if i >= skipped:
            linear_of(&self.forms, nest, nest.args[first + i - skipped], &more)
            add_scaled(&self.forms, &form, &more, 1)
        keep(self, &form, self.accesses[number].first_ref + i)
    return number


cdef int32_t new_access(Regions self, int32_t buffer, int32_t stmt, int32_t loop, int32_t ndim) noexcept nogil:
    cdef void* moved = grown(
        self.accesses, &self.room_accesses, self.n_accesses + 1, sizeof(Access))
    cdef Access* found
    if moved == NULL:
        self.failed = 1
        return NO
    self.accesses = <Access*>moved
    moved = grown(self.refs, &self.room_refs, self.n_refs + ndim, sizeof(Ref))
    if moved == NULL:
        self.failed = 1
        return NO
    self.refs = <Ref*>moved
    found = &self.accesses[self.n_accesses]
    found.buffer = buffer
    found.stmt = stmt
    found.loop = loop
    found.ndim = ndim
    found.first_ref = self.n_refs
    self.n_refs += ndim
    self.n_accesses += 1
    return self.n_accesses - 1


cdef void keep(Regions self, const Linear* form, int32_t ref) noexcept nogil:
    self.refs[ref].first = keep_terms(&self.forms, form)
    self.refs[ref].n = form.n
    self.refs[ref].base = form.base


cdef void form_of(Regions self, const Ref* ref, Linear* out) noexcept nogil:
    cdef int32_t i
    out.base = ref.base
    out.n = ref.n
    for i in range(ref.n):
        out.terms[i] = self.forms.terms[ref.first + i]


cdef void gather_windows(Regions self, Nest nest) noexcept nogil:
    """Record the regions of windows, through which instructions access the buffers behind."""
    cdef int32_t i, k, number, loop, ndim
    cdef Buffer* window
    for i in range(nest.n_buffers):
        window = &nest.buffers[i]
        if window.kind != BUFFER_MATCHED or window.source < 0:
            continue
        begin(&self.forms, nest, NO)
        ndim = window.n_region // 2
        loop = NO if window.alloc_block == NO else nest.blocks[window.alloc_block].loop
        for k in range(2):  # its first element, and its last
            number = new_access(self, window.source, NO, loop, ndim)
            if number == NO:
                return
            add_corner(self, nest, window, number, k)


cdef void add_corner(Regions self, Nest nest, Buffer* window, int32_t access, bint last) noexcept nogil:
    cdef Linear form, extent
    cdef int32_t i
    for i in range(window.n_region // 2):
        linear_of(&self.forms, nest, nest.args[window.first_region + 2 * i], &form)
        if last:
            linear_of(&self.forms, nest, nest.args[window.first_region + 2 * i + 1], &extent)
            add_scaled(&self.forms, &form, &extent, 1)
            form.base -= 1
        keep(self, &form, self.accesses[access].first_ref + i)


# ---- places and sizes of buffers -----------------------------------------------------------------


cdef void place_buffers(Regions self, Nest nest) noexcept nogil:
    """Find the innermost loop around all accesses of each allocated buffer."""
    cdef int32_t i, k, loop, n_windows = 0
    cdef void* moved
    cdef Place* place
    for i in range(nest.n_buffers):
        place = &self.places[i]
        place.loop = NO
        place.accessed = 0
        place.relaxed = relaxed_by(nest, &nest.buffers[i])
        place.first_window = n_windows
        n_windows += nest.buffers[i].ndim
    moved = grown(self.windows, &self.room_windows, n_windows + 1, sizeof(Window))
    if moved == NULL:
        self.failed = 1
        return
    self.windows = <Window*>moved
    for i in range(n_windows):
        self.windows[i].state = UNTOUCHED
    for i in range(self.n_accesses):
        place = &self.places[self.accesses[i].buffer]
        loop = self.accesses[i].loop
        place.loop = common_loop(nest, place.loop, loop) if place.accessed else loop
        place.accessed = 1
    for i in range(nest.n_buffers):
        place = &self.places[i]
        if nest.buffers[i].kind != BUFFER_ALLOCATED:
            place.loop = NO
            continue
        if place.relaxed == RELAX_ALL:
            # A buffer in global memory is not allocated inside of a kernel.
            k = place.loop
            while k != NO:
                if nest.loops[k].tag != TAG_NONE:
                    place.loop = nest.loops[k].parent
                k = nest.loops[k].parent
        while place.loop != NO and self.forms.loops[place.loop].fate == DROPPED:
            place.loop = nest.loops[place.loop].parent


cdef uint8_t relaxed_by(Nest nest, Buffer* buffer) noexcept nogil:
    cdef const char* scope = nest.text + buffer.scope
    if buffer.scope_size == 0 or (buffer.scope_size == 6 and memcmp(scope, b"global", 6) == 0):
        return RELAX_ALL
    if buffer.scope_size >= 6 and memcmp(scope, b"shared", 6) == 0:
        return RELAX_THREADS
    return RELAX_NONE


cdef int32_t common_loop(Nest nest, int32_t a, int32_t b) noexcept nogil:
    while a != b:
        if a == NO or b == NO:
            return NO
        if nest.loops[a].depth >= nest.loops[b].depth:
            a = nest.loops[a].parent
        else:
            b = nest.loops[b].parent
    return a


cdef uint64_t inner_bits(Regions self, Nest nest, int32_t buffer, int32_t loop) noexcept nogil:
    """Return the depths of the loops that count as inside of a buffer's allocation."""
    cdef Place* place = &self.places[buffer]
    cdef uint64_t bits = 0
    cdef bint inside = place.loop != NO
    cdef Loop* found
    while loop != NO:
        found = &nest.loops[loop]
        if loop == place.loop:
            inside = False
        if (inside or place.loop == NO) or is_relaxed(place.relaxed, found.tag):
            bits |= loop_bit(found)
        loop = found.parent
    return bits


cdef bint is_relaxed(uint8_t relaxed, uint8_t tag) noexcept nogil:
    if relaxed == RELAX_ALL:
        return tag != TAG_NONE
    return relaxed == RELAX_THREADS and THREAD_X <= tag <= VTHREAD


cdef void measure_windows(Regions self, Nest nest) noexcept nogil:
    """Find the region of each allocated buffer that its scope touches."""
    cdef int32_t i, k
    cdef Access* access
    cdef uint64_t inner
    for i in range(self.n_accesses):
        access = &self.accesses[i]
        if nest.buffers[access.buffer].kind != BUFFER_ALLOCATED:
            continue
        if access.ndim != nest.buffers[access.buffer].ndim:
            continue
        inner = inner_bits(self, nest, access.buffer, access.loop)
        for k in range(access.ndim):
            widen(self, &self.windows[self.places[access.buffer].first_window + k],
                  &self.refs[access.first_ref + k], inner)


cdef void widen(Regions self, Window* window, const Ref* ref, uint64_t inner) noexcept nogil:
    cdef Linear inside, outside
    cdef int64_t low, high
    cdef int32_t i
    if window.state == WHOLE:
        return
    take_apart(self, ref, inner, &inside, &outside)
    range_of(&self.forms, &inside, &low, &high)
    if low <= -UNBOUNDED:
        window.state = WHOLE
    elif window.state == UNTOUCHED:
        window.state = EXACT
        window.low = low
        window.high = high
        window.outer_first = keep_terms(&self.forms, &outside)
        window.outer_n = outside.n
    elif not same_terms(self, window, &outside):
        window.state = WHOLE
    else:
        window.low = min(window.low, low)
        window.high = max(window.high, high)


cdef void take_apart(Regions self, const Ref* ref, uint64_t inner, Linear* inside, Linear* outside) noexcept nogil:
    """Split a form into terms that change inside of an allocation, and terms that do not."""
    cdef int32_t i
    cdef Term term
    inside.base = ref.base
    outside.base = 0
    inside.n = outside.n = 0
    for i in range(ref.n):
        term = self.forms.terms[ref.first + i]
        if self.forms.atoms[term.atom].uses & inner:
            inside.terms[inside.n] = term
            inside.n += 1
        else:
            outside.terms[outside.n] = term
            outside.n += 1


cdef bint same_terms(Regions self, Window* window, const Linear* form) noexcept nogil:
    cdef int32_t i, k
    cdef Term term
    cdef bint found
    if window.outer_n != form.n:
        return False
    for i in range(form.n):
        found = False
        for k in range(window.outer_n):
            term = self.forms.terms[window.outer_first + k]
            if (term.coefficient == form.terms[i].coefficient
                    and same_atom(&self.forms, term.atom, form.terms[i].atom)):
                found = True
                break
        if not found:
            return False
    return True
