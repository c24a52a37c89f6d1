# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The flat loop-nest form: growing arrays, building them from Python, and showing them.

The reader fills a nest without the GIL; `NestBuilder` fills one from Python, for tests and for
programs of other origin.
"""

from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from tunedb.features._memory cimport MOST, grown


cdef class Nest:
    """A program as flat arrays (``_nest.pxd``); filled by a reader or a builder, read by kernels."""

    def __cinit__(self):
        self.reset()

    def __dealloc__(self):
        free(self.nodes)
        free(self.args)
        free(self.vars)
        free(self.loops)
        free(self.stmts)
        free(self.buffers)
        free(self.blocks)
        free(self.iters)
        free(self.functions)
        free(self.text)

    cdef void reset(self) noexcept nogil:
        """Clear the program; the memory stays for the next one."""
        self.n_nodes = self.n_args = self.n_vars = self.n_loops = self.n_stmts = 0
        self.n_buffers = self.n_blocks = self.n_iters = self.n_functions = self.n_text = 0
        self.loop = self.block = self.condition = self.function = NO
        self.init = 0
        self.failed = 0

    cdef int32_t add_node(self, uint8_t op, uint8_t code, uint8_t bits, uint16_t lanes, int32_t a, int32_t b, int32_t c, int64_t value) noexcept nogil:
        cdef void* moved
        cdef Node* node
        if self.n_nodes == self.room_nodes:
            moved = grown(self.nodes, &self.room_nodes, self.n_nodes + 1, sizeof(Node))
            if moved == NULL:
                self.failed = 1
                return NO
            self.nodes = <Node*>moved
        node = &self.nodes[self.n_nodes]
        node.op = op
        node.code = code
        node.bits = bits
        node.lanes = lanes
        node.a = a
        node.b = b
        node.c = c
        node.value = value
        self.n_nodes += 1
        return self.n_nodes - 1

    cdef int32_t add_args(self, int32_t count) noexcept nogil:
        """Reserve `count` places in a row and return the first; they hold NO."""
        cdef void* moved
        cdef int32_t first = self.n_args
        cdef int32_t i
        if count > MOST - first:
            self.failed = 1
            return NO
        if first + count > self.room_args:
            moved = grown(self.args, &self.room_args, first + count, sizeof(int32_t))
            if moved == NULL:
                self.failed = 1
                return NO
            self.args = <int32_t*>moved
        for i in range(count):
            self.args[first + i] = NO
        self.n_args = first + count
        return first

    cdef int32_t add_var(self, uint8_t kind, uint8_t code, uint8_t bits, int32_t owner, int32_t node, int32_t name, int32_t name_size, uintptr_t object) noexcept nogil:
        cdef void* moved
        cdef Var* var
        if self.n_vars == self.room_vars:
            moved = grown(self.vars, &self.room_vars, self.n_vars + 1, sizeof(Var))
            if moved == NULL:
                self.failed = 1
                return NO
            self.vars = <Var*>moved
        var = &self.vars[self.n_vars]
        var.kind = kind
        var.code = code
        var.bits = bits
        var.owner = owner
        var.node = node
        var.name = name
        var.name_size = name_size
        var.object = object
        self.n_vars += 1
        return self.n_vars - 1

    cdef int32_t add_text(self, const char* text, int32_t size) noexcept nogil:
        cdef void* moved
        cdef int32_t first = self.n_text
        if size > MOST - first:
            self.failed = 1
            return NO
        if first + size > self.room_text:
            moved = grown(self.text, &self.room_text, first + size, 1)
            if moved == NULL:
                self.failed = 1
                return NO
            self.text = <char*>moved
        if size > 0:
            memcpy(self.text + first, text, size)
        self.n_text = first + size
        return first

    cdef int32_t add_buffer(self) noexcept nogil:
        """Add a buffer without an allocation, at the present place."""
        cdef void* moved
        cdef Buffer* buffer
        if self.n_buffers == self.room_buffers:
            moved = grown(self.buffers, &self.room_buffers, self.n_buffers + 1, sizeof(Buffer))
            if moved == NULL:
                self.failed = 1
                return NO
            self.buffers = <Buffer*>moved
        buffer = &self.buffers[self.n_buffers]
        memset(buffer, 0, sizeof(Buffer))
        buffer.lanes = 1
        buffer.alloc_loop = buffer.alloc_block = NO
        buffer.alloc_stmt = self.n_stmts
        buffer.function = self.function
        buffer.source = NO
        self.n_buffers += 1
        return self.n_buffers - 1

    cdef int32_t add_iter(self) noexcept nogil:
        """Add an iterator to the open block."""
        cdef void* moved
        cdef Iter* found
        if self.n_iters == self.room_iters:
            moved = grown(self.iters, &self.room_iters, self.n_iters + 1, sizeof(Iter))
            if moved == NULL:
                self.failed = 1
                return NO
            self.iters = <Iter*>moved
        found = &self.iters[self.n_iters]
        memset(found, 0, sizeof(Iter))
        found.block = self.block
        found.var = found.value = NO
        self.blocks[self.block].n_iter += 1
        self.n_iters += 1
        return self.n_iters - 1

    cdef int32_t open_function(self, int32_t name, int32_t name_size) noexcept nogil:
        cdef void* moved
        cdef Function* found
        if self.n_functions == self.room_functions:
            moved = grown(self.functions, &self.room_functions, self.n_functions + 1, sizeof(Function))
            if moved == NULL:
                self.failed = 1
                return NO
            self.functions = <Function*>moved
        found = &self.functions[self.n_functions]
        found.name = name
        found.name_size = name_size
        found.first_stmt = found.end_stmt = self.n_stmts
        found.first_loop = found.end_loop = self.n_loops
        self.function = self.n_functions
        self.n_functions += 1
        return self.function

    cdef void close_function(self) noexcept nogil:
        self.functions[self.function].end_stmt = self.n_stmts
        self.functions[self.function].end_loop = self.n_loops
        self.function = NO

    cdef int32_t open_loop(self) noexcept nogil:
        """Open a serial loop of unknown extent; the caller fills in the rest."""
        cdef void* moved
        cdef Loop* loop
        if self.n_loops == self.room_loops:
            moved = grown(self.loops, &self.room_loops, self.n_loops + 1, sizeof(Loop))
            if moved == NULL:
                self.failed = 1
                return NO
            self.loops = <Loop*>moved
        loop = &self.loops[self.n_loops]
        memset(loop, 0, sizeof(Loop))
        loop.parent = self.loop
        loop.block = self.block
        loop.depth = 0 if self.loop == NO else self.loops[self.loop].depth + 1
        loop.var = loop.min_node = loop.extent_node = NO
        loop.auto_unroll = -1
        loop.first_stmt = loop.end_stmt = self.n_stmts
        self.loop = self.n_loops
        self.n_loops += 1
        loop.end_loop = self.n_loops
        return self.loop

    cdef void close_loop(self) noexcept nogil:
        cdef Loop* loop = &self.loops[self.loop]
        loop.end_stmt = self.n_stmts
        loop.end_loop = self.n_loops
        self.loop = loop.parent

    cdef int32_t open_block(self) noexcept nogil:
        cdef void* moved
        cdef Block* block
        if self.n_blocks == self.room_blocks:
            moved = grown(self.blocks, &self.room_blocks, self.n_blocks + 1, sizeof(Block))
            if moved == NULL:
                self.failed = 1
                return NO
            self.blocks = <Block*>moved
        block = &self.blocks[self.n_blocks]
        memset(block, 0, sizeof(Block))
        block.parent = self.block
        block.loop = self.loop
        block.predicate = NO
        block.first_iter = self.n_iters
        block.first_stmt = block.end_stmt = self.n_stmts
        self.block = self.n_blocks
        self.n_blocks += 1
        return self.block

    cdef void close_block(self) noexcept nogil:
        self.blocks[self.block].end_stmt = self.n_stmts
        self.block = self.blocks[self.block].parent

    cdef int32_t add_stmt(self, uint8_t kind, int32_t value) noexcept nogil:
        cdef void* moved
        cdef Stmt* stmt
        if self.n_stmts == self.room_stmts:
            moved = grown(self.stmts, &self.room_stmts, self.n_stmts + 1, sizeof(Stmt))
            if moved == NULL:
                self.failed = 1
                return NO
            self.stmts = <Stmt*>moved
        stmt = &self.stmts[self.n_stmts]
        memset(stmt, 0, sizeof(Stmt))
        stmt.kind = kind
        stmt.init = self.init
        stmt.loop = self.loop
        stmt.block = self.block
        stmt.condition = self.condition
        stmt.value = value
        stmt.buffer = stmt.var = NO
        self.n_stmts += 1
        return self.n_stmts - 1

    def dump(self):
        """Return the program as lists of dictionaries, for test references and people.

        Returns
        -------
        dict of str to list of dict
            ``nodes``, ``vars``, ``loops``, ``stmts``, ``buffers``, ``blocks``, ``iters`` and
            ``functions``, with the fields of the C structures; names and scopes as text, lists of
            nodes (``indices``, ``arguments``, ``shape``, ``region``) as lists of numbers.
        """
        cdef int32_t i
        found = {name: [] for name in (
            "nodes", "vars", "loops", "stmts", "buffers", "blocks", "iters", "functions")}
        for i in range(self.n_nodes):
            found["nodes"].append(self._node(i))
        for i in range(self.n_vars):
            row = dict(self.vars[i])
            row["name"] = self._text(row["name"], row.pop("name_size"))
            found["vars"].append(row)
        for i in range(self.n_loops):
            found["loops"].append(dict(self.loops[i]))
        for i in range(self.n_stmts):
            row = dict(self.stmts[i])
            row["indices"] = self._list(row.pop("first_index"), row.pop("n_index"))
            found["stmts"].append(row)
        for i in range(self.n_buffers):
            row = dict(self.buffers[i])
            row["name"] = self._text(row["name"], row.pop("name_size"))
            row["scope"] = self._text(row["scope"], row.pop("scope_size")) or "global"
            row["shape"] = self._list(row.pop("first_dim"), row.pop("ndim"))
            row["region"] = self._list(row.pop("first_region"), row.pop("n_region"))
            found["buffers"].append(row)
        for i in range(self.n_blocks):
            row = dict(self.blocks[i])
            row["name"] = self._text(row["name"], row.pop("name_size"))
            found["blocks"].append(row)
        for i in range(self.n_iters):
            found["iters"].append(dict(self.iters[i]))
        for i in range(self.n_functions):
            row = dict(self.functions[i])
            row["name"] = self._text(row["name"], row.pop("name_size"))
            found["functions"].append(row)
        return found

    cdef _node(self, int32_t i):
        cdef Node node = self.nodes[i]
        row = dict(node)
        if node.op in (OP_LOAD, OP_CALL, OP_SHUFFLE):
            row["arguments"] = self._list(node.a, node.b)
        return row

    cdef _list(self, int32_t first, int32_t count):
        cdef int32_t i
        return [self.args[first + i] for i in range(count)]

    cdef _text(self, int32_t first, int32_t size):
        return (<bytes>self.text[first:first + size]).decode("utf-8", "replace") if size else ""


cdef class NestBuilder:
    """Fills a `Nest` from Python, statement by statement; expressions are node numbers.

    Examples
    --------
    >>> build = NestBuilder()
    >>> a = build.buffer("A", [8], kind=1)
    >>> i = build.open_loop("i", 8)
    >>> build.store(a, [build.loop_var(i)], build.float_(2.0))
    0
    >>> build.close_loop()
    >>> build.nest.n_stmts
    1
    """

    cdef readonly Nest nest

    def __cinit__(self):
        self.nest = Nest()

    cdef int32_t _checked(self, int32_t number) except -2:
        if self.nest.failed:
            raise MemoryError("the program has too many parts")
        return number

    cdef void _known(self, int32_t node) except *:
        if not 0 <= node < self.nest.n_nodes:
            raise IndexError(f"there is no node {node}")

    cdef int32_t _arguments(self, nodes) except -2:
        cdef int32_t first = self._checked(self.nest.add_args(len(nodes)))
        cdef int32_t i
        for i, node in enumerate(nodes):
            self._known(node)
            self.nest.args[first + i] = node
        return first

    cdef int32_t _name(self, str name) except -2:
        cdef bytes data = name.encode()
        return self._checked(self.nest.add_text(data, <int32_t>len(data)))

    def int_(self, int64_t value, int code=0, int bits=32):
        """Return a new integer constant."""
        return self._checked(self.nest.add_node(OP_INT, code, bits, 1, NO, NO, NO, value))

    def float_(self, double value, int bits=32, int code=2):
        """Return a new float constant."""
        cdef int64_t held
        memcpy(&held, &value, 8)
        return self._checked(self.nest.add_node(OP_FLOAT, code, bits, 1, NO, NO, NO, held))

    def node(self, int op, operands, int code=0, int bits=32, int lanes=1, int64_t value=0):
        """Return a new node with up to three operands (``_nest.pxd``, ``Op``)."""
        for operand in operands:
            self._known(operand)
        a, b, c = (*operands, NO, NO, NO)[:3]
        return self._checked(self.nest.add_node(op, code, bits, lanes, a, b, c, value))

    def load(self, int32_t buffer, indices):
        """Return a new load."""
        cdef Buffer* found = self._buffer(buffer)
        cdef int32_t first = self._arguments(indices)
        found = &self.nest.buffers[buffer]
        return self._checked(self.nest.add_node(
            OP_LOAD, found.code, found.bits, found.lanes, first, <int32_t>len(indices), NO, buffer))

    def call(self, int which, arguments, int code=2, int bits=32, bint effects=False):
        """Return a new call (``_nest.pxd``, ``Call``)."""
        cdef int32_t first = self._arguments(arguments)
        return self._checked(self.nest.add_node(
            OP_CALL, code, bits, 1, first, <int32_t>len(arguments), effects, which))

    def free_var(self, str name, int code=0, int bits=32):
        """Return a node for a new free variable."""
        cdef bytes data = name.encode()
        cdef int32_t text = self._name(name)
        cdef int32_t var = self._checked(self.nest.add_var(
            VAR_FREE, code, bits, NO, NO, text, <int32_t>len(data), 0))
        return self._checked(self.nest.add_node(OP_VAR, code, bits, 1, NO, NO, NO, var))

    def loop_var(self, int32_t loop):
        """Return a new node for the variable of a loop."""
        if not 0 <= loop < self.nest.n_loops:
            raise IndexError(f"there is no loop {loop}")
        cdef int32_t var = self.nest.loops[loop].var
        return self._checked(self.nest.add_node(
            OP_VAR, self.nest.vars[var].code, self.nest.vars[var].bits, 1, NO, NO, NO, var))

    cdef Buffer* _buffer(self, int32_t buffer) except NULL:
        if not 0 <= buffer < self.nest.n_buffers:
            raise IndexError(f"there is no buffer {buffer}")
        return &self.nest.buffers[buffer]

    def buffer(self, str name, shape, int kind=BUFFER_ALLOCATED, int code=2, int bits=32,
               str scope="global"):
        """Return a new buffer; an allocated one is allocated in the open loop and block.

        Parameters
        ----------
        shape : sequence of int
            Constant extents. Other shapes: `set_shape` with nodes.
        """
        cdef int32_t number = self._checked(self.nest.add_buffer())
        cdef Buffer* found = &self.nest.buffers[number]
        cdef bytes data = name.encode()
        cdef bytes where = scope.encode()
        found.kind = kind
        found.code = code
        found.bits = bits
        if kind != BUFFER_PARAMETER:
            found.alloc_loop = self.nest.loop
            found.alloc_block = self.nest.block
        found.name = self._name(name)
        found.name_size = <int32_t>len(data)
        found.scope = self._name(scope)
        found.scope_size = <int32_t>len(where)
        self.set_shape(number, [self.int_(extent) for extent in shape])
        return number

    def set_shape(self, int32_t buffer, nodes):
        """Give a buffer extents that are expressions."""
        self._buffer(buffer)
        cdef int32_t first = self._arguments(nodes)
        self.nest.buffers[buffer].first_dim = first
        self.nest.buffers[buffer].ndim = <int32_t>len(nodes)

    def match(self, int32_t buffer, int32_t source, region):
        """Make a buffer a window into another: min and extent (nodes) of each dimension."""
        self._buffer(buffer)
        self._buffer(source)
        cdef int32_t first = self._arguments(region)
        self.nest.buffers[buffer].kind = BUFFER_MATCHED
        self.nest.buffers[buffer].source = source
        self.nest.buffers[buffer].first_region = first
        self.nest.buffers[buffer].n_region = <int32_t>len(region)

    def open_function(self, str name="main"):
        """Open a function; close it with `close_function`."""
        cdef bytes data = name.encode()
        cdef int32_t text = self._name(name)
        return self._checked(self.nest.open_function(text, <int32_t>len(data)))

    def close_function(self):
        """Close the open function."""
        if self.nest.function == NO:
            raise IndexError("no function is open")
        self.nest.close_function()

    def open_loop(self, str name, extent, min=0, int kind=SERIAL, int tag=TAG_NONE,
                  int64_t auto_unroll=-1, int bits=32, int again=NO):
        """Open a loop and return its number.

        Parameters
        ----------
        extent, min : int or tuple of one int
            A constant, or ``(node,)`` for an expression.
        again : int
            A loop whose variable this loop binds again, as a thread may be bound twice.
        """
        cdef bytes data = name.encode()
        cdef int32_t text = self._name(name)
        cdef int32_t low = min[0] if isinstance(min, tuple) else self.int_(min, 0, bits)
        cdef int32_t size = extent[0] if isinstance(extent, tuple) else self.int_(extent, 0, bits)
        self._known(low)
        self._known(size)
        if again != NO and not 0 <= again < self.nest.n_loops:
            raise IndexError(f"there is no loop {again}")
        cdef int32_t number = self._checked(self.nest.open_loop())
        cdef int32_t var = self.nest.loops[again].var if again != NO else self._checked(
            self.nest.add_var(VAR_LOOP, 0, bits, number, NO, text, <int32_t>len(data), 0))
        cdef Loop* loop = &self.nest.loops[number]
        loop.var = var
        loop.min_node = low
        loop.extent_node = size
        loop.has_min = self.nest.nodes[low].op == OP_INT
        loop.has_extent = self.nest.nodes[size].op == OP_INT
        loop.min = self.nest.nodes[low].value if loop.has_min else 0
        loop.extent = self.nest.nodes[size].value if loop.has_extent else 0
        loop.kind = kind
        loop.tag = tag
        loop.auto_unroll = auto_unroll
        loop.annotated = auto_unroll >= 0
        return number

    def close_loop(self):
        """Close the innermost open loop."""
        if self.nest.loop == NO:
            raise IndexError("no loop is open")
        self.nest.close_loop()

    def open_block(self, str name, iters=()):
        """Open a block and return its number.

        Parameters
        ----------
        iters : sequence of (kind, extent, node)
            Its iterators with their bindings; uses of an iterator are uses of the bound node.
        """
        cdef bytes data = name.encode()
        cdef int32_t text = self._name(name)
        cdef int32_t number = self._checked(self.nest.open_block())
        cdef int32_t one
        self.nest.blocks[number].name = text
        self.nest.blocks[number].name_size = <int32_t>len(data)
        for kind, extent, node in iters:
            self._known(node)
            one = self._checked(self.nest.add_iter())
            self.nest.iters[one].kind = kind
            self.nest.iters[one].has_extent = 1
            self.nest.iters[one].extent = extent
            self.nest.iters[one].value = node
        return number

    def close_block(self):
        """Close the innermost open block."""
        if self.nest.block == NO:
            raise IndexError("no block is open")
        self.nest.close_block()

    def set_predicate(self, int32_t node):
        """Set the predicate of the open block."""
        self._known(node)
        if self.nest.block == NO:
            raise IndexError("no block is open")
        self.nest.blocks[self.nest.block].predicate = node

    def set_init(self, bint init):
        """Set whether the following statements are under the init of their block."""
        self.nest.init = init

    def open_condition(self, int32_t node):
        """Add a condition on the following statements; return its statement."""
        self._known(node)
        cdef int32_t stmt = self._checked(self.nest.add_stmt(STMT_CONDITION, node))
        self.nest.condition = stmt
        return stmt

    def close_condition(self):
        """Leave the innermost condition."""
        if self.nest.condition == NO:
            raise IndexError("no condition is open")
        self.nest.condition = self.nest.stmts[self.nest.condition].condition

    def store(self, int32_t buffer, indices, int32_t value):
        """Add a store and return its statement."""
        self._buffer(buffer)
        self._known(value)
        cdef int32_t first = self._arguments(indices)
        cdef int32_t stmt = self._checked(self.nest.add_stmt(STMT_STORE, value))
        self.nest.stmts[stmt].buffer = buffer
        self.nest.stmts[stmt].first_index = first
        self.nest.stmts[stmt].n_index = <int32_t>len(indices)
        return stmt

    def evaluate(self, int32_t value):
        """Add an evaluated expression and return its statement."""
        self._known(value)
        return self._checked(self.nest.add_stmt(STMT_EVALUATE, value))
