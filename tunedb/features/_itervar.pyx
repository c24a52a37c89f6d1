# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""AutoTVM's features of the axes of a program (docs/features.md, "autotvm.itervar").

One walk over the flat form, in source order. Every opened loop becomes an axis. Every access is
recorded with each axis around it. A closed loop multiplies its extent into the accesses under it:
into the count if it moves through the buffer, into the reuse if it does not.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy

import numpy as np

from tunedb.features._nest cimport (
    BLOCK_X, NO, OP_ADD, OP_BITNOT, OP_BITXOR, OP_BROADCAST, OP_CALL, OP_CAST, OP_DIV, OP_INT,
    OP_LET, OP_LOAD, OP_MOD, OP_MUL, OP_NOT, OP_RAMP, OP_SELECT, OP_SHUFFLE, OP_SUB, OP_UNKNOWN,
    OP_VAR, PARALLEL, STMT_STORE, TAG_NONE, THREAD_BINDING, THREAD_Z, UNROLLED, VECTORIZED,
    VTHREAD, Buffer, Loop, Nest, Node, Stmt,
)

from ..errors import LimitError, UsageError


cdef int compare_names(const void* left, const void* right) noexcept nogil:
    cdef const Name* a = <const Name*>left
    cdef const Name* b = <const Name*>right
    cdef int32_t size = a.size if a.size < b.size else b.size
    cdef int order = memcmp(a.text, b.text, size) if size > 0 else 0
    if order != 0:
        return order
    if a.size != b.size:
        return -1 if a.size < b.size else 1
    return -1 if a.number < b.number else 1


cdef inline bint same_text(const Name* a, const Name* b) noexcept nogil:
    return a.size == b.size and (a.size == 0 or memcmp(a.text, b.text, a.size) == 0)


cdef class Walk:
    """A walk over a program: its axes and their touches."""

    cdef Nest nest
    cdef Axis* axes  # in order of appearance, at most one for each loop
    cdef Access* accesses
    cdef Touch* touches
    cdef int32_t* todo  # nodes to visit
    cdef int32_t n_axes, n_accesses, room_accesses, n_touches, room_touches, n_todo, room_todo
    cdef Known* known  # of each variable
    cdef int32_t* stack  # variables
    cdef int32_t depth
    cdef uint8_t* skipped  # of each loop: it opened a known virtual thread
    cdef int64_t topdown
    cdef int64_t work
    cdef int status
    cdef int32_t where
    cdef Name* names  # of the accesses, sorted
    cdef char* name_text

    def __cinit__(self, Nest nest not None):
        cdef size_t n_loops = nest.n_loops + 1
        cdef int32_t i
        self.nest = nest
        self.topdown = 1
        self.axes = <Axis*>calloc(n_loops, sizeof(Axis))
        self.stack = <int32_t*>calloc(n_loops, sizeof(int32_t))
        self.skipped = <uint8_t*>calloc(n_loops, 1)
        self.known = <Known*>calloc(nest.n_vars + 1, sizeof(Known))
        if not (self.axes and self.stack and self.skipped and self.known):
            raise MemoryError("the axes of a program")
        for i in range(nest.n_vars):
            self.known[i].axis = self.known[i].place = NO

    def __dealloc__(self):
        free(self.axes)
        free(self.accesses)
        free(self.touches)
        free(self.todo)
        free(self.known)
        free(self.stack)
        free(self.skipped)
        free(self.names)
        free(self.name_text)

    # ---- the walk --------------------------------------------------------------------------------

    cdef void run(self) noexcept nogil:
        """Walk over the program; `status` is the outcome."""
        cdef Loop* loops = self.nest.loops
        cdef int32_t loop = 0
        cdef int32_t stmt = 0
        cdef int32_t inside = NO
        while self.status == DONE:
            if inside != NO and loop >= loops[inside].end_loop and stmt >= loops[inside].end_stmt:
                if not self.skipped[inside]:
                    self.close()
                inside = loops[inside].parent
            elif loop < self.nest.n_loops and loops[loop].first_stmt <= stmt:
                inside = loop
                loop += 1
                self.open(inside)
            elif stmt < self.nest.n_stmts:
                self.visit_stmt(&self.nest.stmts[stmt])
                stmt += 1
            else:
                break
        if self.status == DONE:
            self.sort_names()

    cdef int32_t slot_of(self, Loop* loop) noexcept nogil:
        if BLOCK_X <= loop.tag <= THREAD_Z:
            return loop.tag - BLOCK_X
        if loop.tag == VTHREAD:
            return SLOT_VTHREAD
        if loop.tag != TAG_NONE or loop.kind == THREAD_BINDING:
            return NO
        if loop.kind == PARALLEL:
            return SLOT_PARALLEL
        if loop.kind == VECTORIZED:
            return SLOT_VECTORIZED
        return SLOT_UNROLLED if loop.kind == UNROLLED else SLOT_SERIAL

    cdef void open(self, int32_t number) noexcept nogil:
        """Open a loop: a new axis, unless it is a known virtual thread."""
        cdef Loop* loop = &self.nest.loops[number]
        cdef int32_t slot = self.slot_of(loop)
        cdef Axis* axis
        if slot == NO:
            self.status = BAD_THREAD
            self.where = number
            return
        if slot == SLOT_VTHREAD and self.known[loop.var].axis != NO:
            self.skipped[number] = 1
        else:
            # An earlier axis of this variable keeps its values: nothing refers to it any more.
            axis = &self.axes[self.n_axes]
            if self.known[loop.var].place == NO:
                self.known[loop.var].place = self.depth
            self.stack[self.depth] = loop.var
            self.depth += 1
            axis.var = loop.var
            axis.position = self.known[loop.var].place
            axis.nest_level = self.depth
            axis.slot = slot
            axis.first_access = self.n_accesses
            axis.length = loop.extent if loop.has_extent else -1
            self.topdown = product(self.topdown, axis.length)
            axis.topdown = self.topdown
            axis.bottomup = -1
            self.known[loop.var].axis = self.n_axes
            self.n_axes += 1
        self.visit(loop.min_node)
        self.visit(loop.extent_node)

    cdef void close(self) noexcept nogil:
        """Close the innermost axis."""
        cdef int32_t var = self.stack[self.depth - 1]
        cdef Axis* axis = &self.axes[self.known[var].axis]
        cdef Touch* own
        cdef int64_t bottomup = -1
        cdef int32_t m
        self.work += <int64_t>(self.n_accesses - axis.first_access) * self.depth
        if self.work > MOST_WORK:
            self.status = TOO_LARGE
            return
        for m in range(axis.first_access, self.n_accesses):
            self.multiply(m, axis)
        self.depth -= 1
        if self.known[var].place == self.depth:
            self.known[var].place = NO
        self.topdown = quotient(self.topdown, axis.length)
        for m in range(axis.first_access, self.n_accesses):
            own = &self.touches[self.accesses[m].first + axis.position]
            bottomup = max(bottomup, product(own.count, own.reuse))
            self.push_base(m, axis, own)
            if own.t_count < 0:
                own.t_count = quotient(own.count, product(own.t_count, -1))
                own.t_reuse = quotient(own.reuse, product(own.t_reuse, -1))
        axis.bottomup = bottomup

    cdef void multiply(self, int32_t m, Axis* axis) noexcept nogil:
        """Multiply the extent of the innermost axis into an access, for all axes around it."""
        cdef Touch* touches = &self.touches[self.accesses[m].first]
        cdef bint moves = touches[axis.position].stride != 0
        cdef Axis* outer
        cdef int32_t place
        for place in range(self.depth):
            outer = &self.axes[self.known[self.stack[place]].axis]
            if m < outer.first_access:
                continue  # its variable was bound again: C++ would stop here
            if moves:
                touches[outer.position].count = product(touches[outer.position].count, axis.length)
            else:
                touches[outer.position].reuse = product(touches[outer.position].reuse, axis.length)

    cdef void push_base(self, int32_t m, Axis* axis, Touch* own) noexcept nogil:
        """Store the elements of one thread in the axes of the next parallel level, negated."""
        cdef Touch* touches = &self.touches[self.accesses[m].first]
        cdef int level = parallel_level(axis.slot) + 1
        cdef Axis* outer
        cdef int32_t place
        if self.depth == 0:
            return
        if parallel_level(self.axes[self.known[self.stack[self.depth - 1]].axis].slot) != level:
            return
        for place in range(self.depth):
            outer = &self.axes[self.known[self.stack[place]].axis]
            if parallel_level(outer.slot) == level and m >= outer.first_access:
                touches[outer.position].t_count = product(own.count, -1)
                touches[outer.position].t_reuse = product(own.reuse, -1)

    # ---- statements and expressions --------------------------------------------------------------

    cdef void visit_stmt(self, Stmt* stmt) noexcept nogil:
        """Visit a statement: its buffer, its value, its index."""
        if stmt.kind == STMT_STORE:
            self.access(stmt.buffer, stmt.first_index, stmt.n_index)
        self.visit(stmt.value)
        if stmt.kind == STMT_STORE and stmt.n_index == 1 and self.status == DONE:
            self.visit(self.nest.args[stmt.first_index])

    cdef void push(self, int32_t number) noexcept nogil:
        cdef int32_t* moved
        if number < 0:
            return
        if self.n_todo == self.room_todo:
            moved = <int32_t*>realloc(self.todo, (2 * self.room_todo + 64) * sizeof(int32_t))
            if moved == NULL:
                self.status = NO_MEMORY
                return
            self.todo = moved
            self.room_todo = 2 * self.room_todo + 64
        self.todo[self.n_todo] = number
        self.n_todo += 1

    cdef void push_children(self, Node* node) noexcept nogil:
        """Push the operands of a node so that the first one comes out first."""
        cdef int32_t i
        if node.op in (OP_LOAD, OP_CALL, OP_SHUFFLE, OP_UNKNOWN):
            for i in range(node.b):
                self.push(self.nest.args[node.a + node.b - 1 - i])
        elif node.op == OP_SELECT:
            self.push(node.c)
            self.push(node.b)
            self.push(node.a)
        elif OP_ADD <= node.op <= OP_BITXOR or node.op in (OP_LET, OP_RAMP):
            self.push(node.b)
            self.push(node.a)
        elif node.op in (OP_CAST, OP_NOT, OP_BITNOT, OP_BROADCAST):
            self.push(node.a)

    cdef Node* pop(self) noexcept nogil:
        """Return the next node, or NULL to end the walk. One visit is one unit of work."""
        self.work += 1
        if self.work > MOST_WORK or self.n_todo > MOST_TOUCHES:
            self.status = TOO_LARGE
        if self.status != DONE:
            return NULL
        self.n_todo -= 1
        return &self.nest.nodes[self.todo[self.n_todo]]

    cdef void visit(self, int32_t root) noexcept nogil:
        """Count the arithmetic of an expression on the innermost axis, and record its loads."""
        cdef Axis* axis = NULL
        cdef Node* node
        cdef int32_t base = self.n_todo
        if self.depth > 0:
            axis = &self.axes[self.known[self.stack[self.depth - 1]].axis]
        self.push(root)
        while self.status == DONE and self.n_todo > base:
            node = self.pop()
            if node == NULL:
                return
            if node.op == OP_LOAD:
                self.access(<int32_t>node.value, node.a, node.b)
            elif axis != NULL and (node.code == CODE_FLOAT or node.code == CODE_BFLOAT):
                if node.op == OP_ADD or node.op == OP_SUB:
                    axis.adds += 1
                elif node.op == OP_MUL:
                    axis.muls += 1
                elif node.op == OP_DIV or node.op == OP_MOD:
                    axis.divs += 1
            self.push_children(node)

    cdef void access(self, int32_t buffer, int32_t first_index, int32_t n_index) noexcept nogil:
        """Record an access with all open axes."""
        cdef Access* access
        cdef Touch* touch
        cdef int32_t place, var
        if n_index > 1:
            self.status = NOT_FLAT
            self.where = buffer
        if self.status != DONE or not self.make_room():
            return
        access = &self.accesses[self.n_accesses]
        access.first = self.n_touches
        access.depth = self.depth
        access.buffer = buffer
        self.n_accesses += 1
        if n_index == 1:
            self.parse_index(self.nest.args[first_index])
        for place in range(self.depth):
            var = self.stack[place]
            touch = &self.touches[self.n_touches + place]
            touch.stride = self.known[var].stride if self.known[var].met == self.n_accesses else 0
            touch.count = touch.reuse = 1
            touch.t_count = touch.t_reuse = 0
            touch.axis = NO
            if self.known[var].place == place:
                touch.axis = self.known[var].axis
                self.axes[touch.axis].n_touches += 1
        self.n_touches += self.depth

    cdef void parse_index(self, int32_t root) noexcept nogil:
        """Find the stride of each variable of an index, as naively as AutoTVM.

        A product `variable * constant` sets the stride of the next new variable; any other new
        variable has 1. A variable that occurred before does not take the stride, which waits for
        the next new one.
        """
        cdef Node* nodes = self.nest.nodes
        cdef Node* node
        cdef int32_t base = self.n_todo
        cdef int64_t next_stride = 1
        self.push(root)
        while self.status == DONE and self.n_todo > base:
            node = self.pop()
            if node == NULL:
                return
            if node.op == OP_VAR:
                if self.known[node.value].met != self.n_accesses:
                    self.known[node.value].met = self.n_accesses
                    self.known[node.value].stride = next_stride
                    next_stride = 1
            elif node.op == OP_MUL and nodes[node.a].op == OP_VAR and nodes[node.b].op == OP_INT:
                next_stride = nodes[node.b].value
            self.push_children(node)

    cdef bint make_room(self) noexcept nogil:
        """Tell whether there is room for one more access; otherwise set `status`."""
        cdef void* moved
        cdef int64_t wanted = <int64_t>self.n_touches + self.depth + 1
        if wanted > MOST_TOUCHES or self.n_accesses >= MOST_TOUCHES:
            self.status = TOO_LARGE
            return False
        if self.n_accesses == self.room_accesses:
            moved = realloc(self.accesses, (2 * self.room_accesses + 16) * sizeof(Access))
            if moved == NULL:
                self.status = NO_MEMORY
                return False
            self.accesses = <Access*>moved
            self.room_accesses = 2 * self.room_accesses + 16
        if wanted > self.room_touches:
            moved = realloc(self.touches, (2 * wanted + 64) * sizeof(Touch))
            if moved == NULL:
                self.status = NO_MEMORY
                return False
            self.touches = <Touch*>moved
            self.room_touches = <int32_t>(2 * wanted + 64)
        return True

    # ---- results ---------------------------------------------------------------------------------

    cdef void sort_names(self) noexcept nogil:
        """Name each access `<buffer>_<n>`, counted over buffers of one name, and sort as text."""
        cdef Buffer* buffer
        cdef int64_t size = 1
        cdef int32_t n = 0
        cdef int32_t i
        cdef char* at
        cdef Name last
        self.names = <Name*>malloc((self.n_accesses + 1) * sizeof(Name))
        if self.names == NULL:
            self.status = NO_MEMORY
            return
        for i in range(self.n_accesses):
            buffer = &self.nest.buffers[self.accesses[i].buffer]
            self.names[i] = Name(self.nest.text + buffer.name, buffer.name_size, i)
            size += buffer.name_size + NUMBER_SIZE
        if size > MOST_TEXT:
            self.status = TOO_LARGE
            return
        self.name_text = <char*>malloc(size)
        if self.name_text == NULL:
            self.status = NO_MEMORY
            return
        if self.n_accesses > 0:
            qsort(self.names, self.n_accesses, sizeof(Name), compare_names)
        at = self.name_text
        for i in range(self.n_accesses):
            n = n + 1 if i > 0 and same_text(&self.names[i], &last) else 0
            last = self.names[i]
            if last.size > 0:
                memcpy(at, last.text, last.size)
            self.names[i].text = at
            self.names[i].size = last.size + snprintf(at + last.size, NUMBER_SIZE, "_%d", n)
            at += self.names[i].size
        if self.n_accesses > 0:
            qsort(self.names, self.n_accesses, sizeof(Name), compare_names)

    cdef int64_t flat_size(self) noexcept nogil:
        cdef int64_t size = 0
        cdef int32_t i
        for i in range(self.n_axes):
            size += FIELDS + <int64_t>TOUCH_FIELDS * self.axes[i].n_touches
        return size

    cdef double* flatten(self, bint take_log) noexcept nogil:
        """Return all rows one after another, or NULL without memory; the caller frees them."""
        cdef double* out = <double*>malloc((self.flat_size() + 1) * sizeof(double))
        cdef int64_t* end = <int64_t*>malloc((self.n_axes + 1) * sizeof(int64_t))
        cdef int64_t at = 0
        cdef Access* access
        cdef Touch* touch
        cdef int32_t i, place
        if out == NULL or end == NULL:
            free(out)
            free(end)
            return NULL
        for i in range(self.n_axes):
            write_axis(out + at, &self.axes[i], take_log)
            end[i] = at + FIELDS
            at += FIELDS + <int64_t>TOUCH_FIELDS * self.axes[i].n_touches
        for i in range(self.n_accesses):
            access = &self.accesses[self.names[i].number]
            for place in range(access.depth):
                touch = &self.touches[access.first + place]
                if touch.axis != NO:
                    write_touch(out + end[touch.axis], touch, take_log)
                    end[touch.axis] += TOUCH_FIELDS
        free(end)
        return out

    def check(self):
        """Raise the error of `status`."""
        if self.status == NO_MEMORY:
            raise MemoryError("the axes of a program")
        if self.status == TOO_LARGE:
            raise LimitError(
                "the program has too many accesses under too many loops, or expressions that share "
                "too many parts, for autotvm.itervar; split it into smaller functions"
            )
        if self.status == NOT_FLAT:
            name = self.nest._text(
                self.nest.buffers[self.where].name, self.nest.buffers[self.where].name_size)
            raise UsageError(
                f"buffer {name!r} is accessed with several indices; flatten the program first "
                "(tunedb.plugins.metaschedule.features.flat.flatten)"
            )
        if self.status == BAD_THREAD:
            raise UsageError(
                f"loop {self._var_name(self.nest.loops[self.where].var)!r} is bound to a thread "
                "that AutoTVM does not know; bind it to blockIdx, threadIdx or vthread"
            )

    cdef _var_name(self, int32_t var):
        return self.nest._text(self.nest.vars[var].name, self.nest.vars[var].name_size)

    cdef list rows(self):
        """Return the axes as Python objects."""
        cdef Axis* axis
        cdef Access* access
        cdef Touch* touch
        cdef int32_t i, place
        found = [[] for _ in range(self.n_axes)]
        for i in range(self.n_accesses):
            access = &self.accesses[self.names[i].number]
            name = (<bytes>self.names[i].text[:self.names[i].size]).decode("utf-8", "replace")
            for place in range(access.depth):
                touch = &self.touches[access.first + place]
                if touch.axis != NO:
                    found[touch.axis].append((
                        name, touch.stride, -1, touch.count, touch.reuse, touch.t_count,
                        touch.t_reuse))
        rows = []
        for i in range(self.n_axes):
            axis = &self.axes[i]
            rows.append((
                self._var_name(axis.var), axis.length, axis.nest_level, axis.topdown,
                axis.bottomup, axis.slot, (axis.adds, axis.muls, axis.divs), found[i]))
        return rows


cdef void write_axis(double* out, Axis* axis, bint take_log) noexcept nogil:
    cdef int32_t i
    out[0] = scaled(axis.length, take_log)
    out[1] = axis.nest_level
    out[2] = scaled(axis.topdown, take_log)
    out[3] = scaled(axis.bottomup, take_log)
    for i in range(SLOTS):
        out[4 + i] = i == axis.slot
    out[4 + SLOTS] = scaled(axis.adds, take_log)
    out[5 + SLOTS] = scaled(axis.muls, take_log)
    out[6 + SLOTS] = scaled(axis.divs, take_log)


cdef void write_touch(double* out, Touch* touch, bint take_log) noexcept nogil:
    out[0] = scaled(touch.stride, take_log)
    out[1] = scaled(-1, take_log)
    out[2] = scaled(touch.count, take_log)
    out[3] = scaled(touch.reuse, take_log)
    out[4] = scaled(touch.t_count, take_log)
    out[5] = scaled(touch.t_reuse, take_log)


def axes(Nest nest not None):
    """Return the axes of a program in order of appearance, with their touches.

    Parameters
    ----------
    nest : Nest
        A program with flat buffers.

    Returns
    -------
    list of tuple
        (name, length, nest_level, topdown, bottomup, slot of the annotation, (adds, muls, divs),
        touches); touches is a list of (name, stride, mod, count, reuse, T_count, T_reuse), sorted
        by name.

    Raises
    ------
    UsageError
        A buffer is accessed with several indices, or a loop is bound to an unknown thread.
    LimitError
        The program is too large.
    """
    cdef Walk walk = Walk(nest)
    with nogil:
        walk.run()
    walk.check()
    return walk.rows()


def flat(Nest nest not None, bint take_log=True):
    """Return all features of all axes in a row.

    Parameters
    ----------
    nest : Nest
        A program with flat buffers.
    take_log : bool
        Whether values other than nest_level and the annotation are scaled to ±log2(1 + abs(x)).

    Returns
    -------
    numpy.ndarray
        float64, one dimension, 18 for each axis and 6 for each of its accesses.

    Raises
    ------
    UsageError, LimitError
        As :func:`axes`.
    """
    cdef Walk walk = Walk(nest)
    cdef double* values = NULL
    cdef double[::1] view
    cdef int64_t size = 0
    with nogil:
        walk.run()
        if walk.status == DONE:
            values = walk.flatten(take_log)
            size = walk.flat_size()
    walk.check()
    if values == NULL:
        raise MemoryError("the features of a program")
    try:
        found = np.empty(size, np.float64)
        view = found
        if size > 0:
            memcpy(&view[0], values, size * sizeof(double))
    finally:
        free(values)
    return found
