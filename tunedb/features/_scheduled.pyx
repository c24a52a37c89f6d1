# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A scheduled program rewritten as TVM's lowering would leave it, for the effects on features.

TVM lowers a deep copy through twelve passes before it extracts features, which takes nine tenths of
the time of its extraction. Here one pass over the flat form has the same effects on features:

* unit loops are removed, and a loop bound to the thread of a loop around it is merged with that
  loop (``SimplifyForFeatureExtraction``, ``UnifyThreadBinding``);
* indices, whose iterators the reader replaced by their bindings, are simplified (``_linear.pyx``);
* buffers are allocated in the innermost loop around all their accesses, in the shape of the region
  inside that loop, with indices that begin at 0 (``PlanAndUpdateBufferAllocationLocation``,
  ``CompactBufferAllocation``);
* windows into buffers become accesses of those (``LowerMatchBuffer``);
* a reduction over threads becomes a sum inside of each thread and a write-back
  (``LowerCrossThreadReduction``).

The result has stores alone: no other statement has features.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from tunedb.features._linear cimport *
from tunedb.features._nest cimport *
from tunedb.features._regions cimport *


cdef class Scheduler(Regions):
    """Rewrites one program after another and keeps its memory. Each thread needs its own object."""

    def __cinit__(self):
        self.out = Nest()

    def rewrite(self, Nest nest):
        """Return the lowered program; valid until the next call.

        Raises
        ------
        MemoryError
            There is not enough memory.
        ValueError
            An index has more terms than are kept.
        """
        cdef int status
        with nogil:
            status = self.run(nest)
        if status == FAILED_MEMORY:
            raise MemoryError("the program has too many parts")
        if status != 0:
            raise ValueError(f"an index has more than {MAX_TERMS} terms")
        return self.out

    cdef int run(self, Nest nest) noexcept nogil:
        cdef int status = self.find(nest)
        self.out.reset()
        self.in_thread = NO
        if status == 0:
            write(self, nest)
            status = FAILED_MEMORY if self.out.failed else self.outcome()
        return status


# ---- writing -------------------------------------------------------------------------------------


cdef void write(Scheduler self, Nest nest) noexcept nogil:
    """Write the functions, loops and stores that stay."""
    cdef int32_t i, k, loop
    cdef Function* function
    for i in range(nest.n_functions):
        function = &nest.functions[i]
        self.out.open_function(0, 0)
        if self.out.failed:
            return
        self.out.functions[i].name_size = 0
        if i == 0:
            self.out.open_block()
            write_buffers(self, nest)
            if self.out.failed:
                return
        write_body(self, nest, function.first_loop, function.end_loop,
                   function.first_stmt, function.end_stmt)
        self.out.close_function()
    for i in range(nest.n_buffers):
        if nest.buffers[i].kind != BUFFER_ALLOCATED or self.out.failed:
            continue
        loop = self.places[i].loop
        if loop != NO and nest.loops[loop].tag != TAG_NONE:
            loop = last_thread(self, nest, self.forms.loops[loop].kernel)
        self.out.buffers[i].alloc_loop = NO if loop == NO else self.forms.loops[loop].new


cdef int32_t last_thread(Scheduler self, Nest nest, int32_t kernel) noexcept nogil:
    """Return the innermost of a kernel's threads, which are all around its body."""
    cdef int32_t i, last = kernel
    for i in range(kernel, nest.loops[kernel].end_loop):
        if nest.loops[i].tag != TAG_NONE and is_kept(self, i):
            last = i
    return last


cdef void write_buffers(Scheduler self, Nest nest) noexcept nogil:
    """Write all buffers, allocated ones in the shape of their touched region."""
    cdef int32_t i, k, number, first, node, text, scope
    cdef int64_t extent
    cdef Buffer* old
    cdef Buffer* new
    cdef Window* window
    for i in range(nest.n_buffers):
        old = &nest.buffers[i]
        number = self.out.add_buffer()
        text = self.out.add_text(nest.text + old.name, old.name_size)
        scope = self.out.add_text(nest.text + old.scope, old.scope_size)
        first = self.out.add_args(old.ndim)
        if self.out.failed:
            return
        for k in range(old.ndim):
            window = &self.windows[self.places[i].first_window + k]
            node = nest.args[old.first_dim + k]
            if nest.nodes[node].op == OP_INT:
                extent = nest.nodes[node].value
                if old.kind == BUFFER_ALLOCATED and window.state == EXACT:
                    extent = min(extent, window.high - window.low + 1)
                node = self.out.add_node(OP_INT, 0, 32, 1, NO, NO, NO, extent)
            else:
                node = copy(self, nest, node)
            if node == NO or self.out.failed:
                self.out.failed = 1
                return
            self.out.args[first + k] = node
        new = &self.out.buffers[number]
        new.kind = old.kind
        new.code = old.code
        new.bits = old.bits
        new.lanes = old.lanes
        new.name = text
        new.name_size = old.name_size
        new.scope = scope
        new.scope_size = old.scope_size
        new.first_dim = first
        new.ndim = old.ndim
        new.function = old.function
        new.alloc_block = 0 if old.kind == BUFFER_ALLOCATED and old.alloc_block != NO else NO
        new.object = old.object


cdef void write_body(Scheduler self, Nest nest, int32_t loop, int32_t end_loop, int32_t stmt, int32_t end_stmt) noexcept nogil:
    """Write the statements and loops of a body in their order."""
    while stmt < end_stmt and not self.out.failed and not self.forms.failed:
        while loop < end_loop and nest.loops[loop].end_stmt <= stmt:
            loop = nest.loops[loop].end_loop
        if loop < end_loop and nest.loops[loop].first_stmt == stmt:
            write_loop(self, nest, loop)
            stmt = nest.loops[loop].end_stmt
            loop = nest.loops[loop].end_loop
        else:
            if nest.stmts[stmt].kind == STMT_STORE:
                write_store(self, nest, stmt, NO)
            stmt += 1


cdef void write_loop(Scheduler self, Nest nest, int32_t loop) noexcept nogil:
    """Write a loop and its body; all threads of a kernel at the outermost one."""
    cdef Loop* found = &nest.loops[loop]
    cdef int32_t opened = 0, i
    if found.has_extent and found.extent == 0:
        return
    if self.forms.loops[loop].kernel == loop:
        for i in range(loop, found.end_loop):
            if nest.loops[i].tag != TAG_NONE and is_kept(self, i):
                open_loop(self, nest, i)
                opened += 1
    elif found.tag == TAG_NONE and is_kept(self, loop) and self.cross[loop] == NO:
        open_loop(self, nest, loop)
        opened = 1
    if self.out.failed:
        return
    if self.cross[loop] != NO:
        write_cross(self, nest, loop)
    else:
        write_body(self, nest, loop + 1, found.end_loop, found.first_stmt, found.end_stmt)
    for i in range(opened):
        self.out.close_loop()


cdef void open_loop(Scheduler self, Nest nest, int32_t loop) noexcept nogil:
    cdef Loop* old = &nest.loops[loop]
    cdef Loop* new
    cdef Var* var = &nest.vars[old.var]
    cdef int32_t low, size, number, text, made
    low = copy(self, nest, old.min_node)
    size = copy(self, nest, old.extent_node)
    number = self.out.open_loop()
    if number == NO:
        return
    text = self.out.add_text(nest.text + var.name, var.name_size)
    made = self.out.add_var(
        VAR_LOOP, var.code, var.bits, number, NO, text, var.name_size, var.object)
    new = &self.out.loops[number]
    new.var = made
    new.min_node = low
    new.extent_node = size
    new.min = old.min
    new.extent = old.extent
    new.has_min = old.has_min
    new.has_extent = old.has_extent
    new.kind = old.kind
    new.tag = old.tag
    new.annotated = old.annotated
    new.auto_unroll = old.auto_unroll
    new.block = self.out.block
    self.forms.loops[loop].new = number


cdef void write_store(Scheduler self, Nest nest, int32_t number, int32_t instead) noexcept nogil:
    """Write a store; `instead` replaces the buffer that it writes and reads."""
    cdef Stmt* stmt = &nest.stmts[number]
    cdef int32_t first, value, made
    cdef Access* access = &self.accesses[self.first_access[number]]
    begin(&self.forms, nest, NO if stmt.block == NO else nest.blocks[stmt.block].predicate)
    self.in_thread = instead
    if instead == NO:
        first = write_indices(self, nest, access)
    else:
        first = zero_index(self)
    value = copy(self, nest, stmt.value)
    self.in_thread = NO
    if value == NO or first == NO:
        return
    made = self.out.add_stmt(STMT_STORE, value)
    if made == NO:
        return
    self.out.stmts[made].buffer = access.buffer if instead == NO else instead
    self.out.stmts[made].first_index = first
    self.out.stmts[made].n_index = access.ndim if instead == NO else 1


cdef int32_t zero_index(Scheduler self) noexcept nogil:
    cdef int32_t first = self.out.add_args(1)
    cdef int32_t node = self.out.add_node(OP_INT, 0, 32, 1, NO, NO, NO, 0)
    if first == NO or node == NO:
        return NO
    self.out.args[first] = node
    return first


cdef int32_t write_indices(Scheduler self, Nest nest, Access* access) noexcept nogil:
    """Write the indices of an access, relative to the start of the touched region."""
    cdef int32_t first = self.out.add_args(access.ndim)
    cdef int32_t i, node
    cdef uint64_t inner = 0
    cdef bint allocated = nest.buffers[access.buffer].kind == BUFFER_ALLOCATED
    cdef Linear form, rest
    cdef Window* window
    if first == NO:
        return NO
    if allocated:
        inner = inner_bits(self, nest, access.buffer, access.loop)
    for i in range(access.ndim):
        form_of(self, &self.refs[access.first_ref + i], &form)
        if allocated and access.ndim == nest.buffers[access.buffer].ndim:
            window = &self.windows[self.places[access.buffer].first_window + i]
            if window.state == EXACT:
                take_apart(self, &self.refs[access.first_ref + i], inner, &form, &rest)
                form.base -= window.low
        node = write_form(self, nest, &form, 32)
        if node == NO:
            return NO
        self.out.args[first + i] = node
    return first


cdef int32_t write_form(Scheduler self, Nest nest, const Linear* form, uint8_t bits) noexcept nogil:
    """Write a linear form as sums and products and return its node."""
    cdef int32_t i, atom, total = NO, term
    cdef int64_t factor
    if form.n == 0:
        return self.out.add_node(OP_INT, 0, bits, 1, NO, NO, NO, form.base)
    for i in range(form.n):
        factor = form.terms[i].coefficient
        term = write_atom(self, nest, form.terms[i].atom)
        if term == NO:
            return NO
        if total == NO and factor < 0:
            total = self.out.add_node(OP_INT, 0, bits, 1, NO, NO, NO, form.base)
        if factor not in (1, -1):
            atom = self.out.add_node(
                OP_INT, 0, bits, 1, NO, NO, NO, factor if factor > 0 else -factor)
            term = self.out.add_node(OP_MUL, 0, bits, 1, term, atom, NO, 0)
        if total == NO:
            total = term
        else:
            total = self.out.add_node(
                OP_ADD if factor > 0 else OP_SUB, 0, bits, 1, total, term, NO, 0)
    if form.base != 0 and form.terms[0].coefficient > 0:
        term = self.out.add_node(
            OP_INT, 0, bits, 1, NO, NO, NO, form.base if form.base > 0 else -form.base)
        total = self.out.add_node(
            OP_ADD if form.base > 0 else OP_SUB, 0, bits, 1, total, term, NO, 0)
    return total


cdef int32_t write_atom(Scheduler self, Nest nest, int32_t number) noexcept nogil:
    cdef Atom* atom = &self.forms.atoms[number]
    cdef Linear numerator
    cdef int32_t a, b, i, made
    if atom.node != NO:
        return atom.node
    if atom.kind == ATOM_LOOP:
        i = self.forms.loops[atom.source].new
        if i == NO:
            made = self.out.add_node(OP_INT, 0, atom.bits, 1, NO, NO, NO, 0)
        else:
            made = self.out.add_node(
                OP_VAR, 0, atom.bits, 1, NO, NO, NO, self.out.loops[i].var)
    elif atom.kind == ATOM_OPAQUE:
        made = copy_parts(self, nest, atom.source)
    else:
        numerator.base = atom.base
        numerator.n = atom.n_terms
        for i in range(atom.n_terms):
            numerator.terms[i] = self.forms.terms[atom.first_term + i]
        a = write_form(self, nest, &numerator, atom.bits)
        atom = &self.forms.atoms[number]
        b = self.out.add_node(OP_INT, 0, atom.bits, 1, NO, NO, NO, atom.divisor)
        if a == NO or b == NO:
            return NO
        made = self.out.add_node(
            OP_FLOORDIV if atom.kind == ATOM_DIV else OP_FLOORMOD, 0, atom.bits, 1, a, b, NO, 0)
    self.forms.atoms[number].node = made
    return made


cdef int32_t copy(Scheduler self, Nest nest, int32_t node) noexcept nogil:
    """Write an expression with its integer parts simplified, and return its node."""
    cdef Node* found
    cdef Linear form
    if node < 0:
        return NO
    found = &nest.nodes[node]
    if found.code <= 1 and found.lanes == 1 and OP_ADD <= found.op <= OP_MAX:
        linear_of(&self.forms, nest, node, &form)
        return write_form(self, nest, &form, found.bits)
    return copy_parts(self, nest, node)


cdef int32_t copy_parts(Scheduler self, Nest nest, int32_t node) noexcept nogil:
    """Write a node over copies of its parts."""
    cdef Node* found = &nest.nodes[node]
    cdef int32_t a = NO, b = NO, c = NO, i, part
    cdef Node old = found[0]
    cdef Linear form
    if old.op == OP_VAR:
        return copy_var(self, nest, node)
    if old.op == OP_SELECT and not has_load(nest, node):
        return self.out.add_node(
            OP_INT if old.code <= 1 else OP_FLOAT, old.code, old.bits, 1, NO, NO, NO, 1)
    if old.op == OP_LOAD:
        return copy_load(self, nest, node)
    if old.op in (OP_CALL, OP_SHUFFLE, OP_UNKNOWN):
        a = self.out.add_args(old.b)
        for i in range(old.b):
            part = copy(self, nest, nest.args[old.a + i])
            if part == NO or a == NO:
                return NO
            self.out.args[a + i] = part
        return self.out.add_node(old.op, old.code, old.bits, old.lanes, a, old.b, old.c, old.value)
    if old.op > OP_VAR:
        if old.a >= 0:
            a = copy(self, nest, old.a)
        if old.b >= 0:
            b = copy(self, nest, old.b)
        if old.c >= 0:
            c = copy(self, nest, old.c)
    return self.out.add_node(old.op, old.code, old.bits, old.lanes, a, b, c, old.value)


cdef int32_t copy_var(Scheduler self, Nest nest, int32_t node) noexcept nogil:
    cdef Var* var = &nest.vars[nest.nodes[node].value]
    cdef Linear form
    cdef int32_t number, text
    if var.kind == VAR_LOOP:
        linear_of(&self.forms, nest, node, &form)
        return write_form(self, nest, &form, var.bits)
    text = self.out.add_text(nest.text + var.name, var.name_size)
    number = self.out.add_var(
        VAR_FREE, var.code, var.bits, NO, NO, text, var.name_size, var.object)
    return self.out.add_node(OP_VAR, var.code, var.bits, 1, NO, NO, NO, number)


cdef int32_t copy_load(Scheduler self, Nest nest, int32_t node) noexcept nogil:
    cdef Node* found = &nest.nodes[node]
    cdef int32_t first, buffer, ndim
    cdef Access* access
    if self.access_of_node[node] == NO:  # in an extent, or where a window begins
        return self.out.add_node(OP_UNKNOWN, found.code, found.bits, found.lanes, 0, 0, NO, 0)
    access = &self.accesses[self.access_of_node[node]]
    buffer = access.buffer
    ndim = access.ndim
    if self.in_thread != NO and buffer == nest.stmts[access.stmt].buffer:
        buffer = self.in_thread
        ndim = 1
        first = zero_index(self)
    else:
        first = write_indices(self, nest, access)
    if first == NO:
        return NO
    return self.out.add_node(
        OP_LOAD, found.code, found.bits, found.lanes, first, ndim, NO, buffer)


cdef bint has_load(Nest nest, int32_t node) noexcept nogil:
    cdef Node* found
    cdef int32_t i
    if node < 0:
        return False
    found = &nest.nodes[node]
    if found.op == OP_LOAD:
        return True
    if found.op in (OP_CALL, OP_SHUFFLE, OP_UNKNOWN):
        for i in range(found.b):
            if has_load(nest, nest.args[found.a + i]):
                return True
        return False
    if found.op <= OP_VAR:
        return False
    return has_load(nest, found.a) or has_load(nest, found.b) or has_load(nest, found.c)


# ---- reductions over threads ---------------------------------------------------------------------


cdef void write_cross(Scheduler self, Nest nest, int32_t first) noexcept nogil:
    """Write a reduction over threads: the sum inside of each thread, and the write-back."""
    cdef int32_t i, stmt = NO, serial = 0, inside, cross, made, index, value
    cdef Access* access
    for i in range(nest.loops[first].first_stmt, nest.loops[first].end_stmt):
        if not nest.stmts[i].init:
            stmt = i
    access = &self.accesses[self.first_access[stmt]]
    for i in range(first, nest.loops[first].end_loop):
        serial += is_kept(self, i) and nest.loops[i].tag == TAG_NONE
    if serial > 0 or not is_true(nest, nest.blocks[self.cross[first]].predicate):
        inside = new_scalar(self, nest, access.buffer, b"in_thread_", 10)
        for i in range(first, nest.loops[first].end_loop):
            if is_kept(self, i) and nest.loops[i].tag == TAG_NONE:
                open_loop(self, nest, i)
        if self.out.failed:
            return
        write_store(self, nest, stmt, inside)
        for i in range(serial):
            self.out.close_loop()
    cross = new_scalar(self, nest, access.buffer, b"cross_thread_", 13)
    index = zero_index(self)
    if self.out.failed:
        return
    value = self.out.add_node(
        OP_LOAD, nest.buffers[access.buffer].code, nest.buffers[access.buffer].bits, 1,
        index, 1, NO, cross)
    index = write_indices(self, nest, access)
    made = self.out.add_stmt(STMT_STORE, value)
    if not self.out.failed:
        self.out.stmts[made].buffer = access.buffer
        self.out.stmts[made].first_index = index
        self.out.stmts[made].n_index = access.ndim


cdef bint is_true(Nest nest, int32_t node) noexcept nogil:
    return node == NO or (nest.nodes[node].op == OP_INT and nest.nodes[node].value != 0)


cdef int32_t new_scalar(Scheduler self, Nest nest, int32_t like, const char* prefix, int32_t size) noexcept nogil:
    """Write a buffer of one element, allocated here, named after another."""
    cdef Buffer* old = &nest.buffers[like]
    cdef int32_t number = self.out.add_buffer()
    cdef int32_t text = self.out.add_text(prefix, size)
    cdef int32_t first = self.out.add_args(1)
    cdef int32_t one = self.out.add_node(OP_INT, 0, 32, 1, NO, NO, NO, 1)
    cdef Buffer* new
    self.out.add_text(nest.text + old.name, old.name_size)
    if self.out.failed:
        return NO
    self.out.args[first] = one
    new = &self.out.buffers[number]
    new.kind = BUFFER_ALLOCATED
    new.code = old.code
    new.bits = old.bits
    new.name = text
    new.name_size = size + old.name_size
    new.first_dim = first
    new.ndim = 1
    new.alloc_loop = self.out.loop
    new.alloc_block = 0
    return number
