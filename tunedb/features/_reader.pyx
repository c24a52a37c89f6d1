# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Reads TVM's IR into the flat form, through tvm-ffi's C ABI and TVM's reflection tables.

The caller (``plugins/metaschedule/features/ir.py``) looks up the offsets of fields in TVM's classes
at run time, and has the self-test.

The caller holds a reference to the module meanwhile, so the reader touches no reference counts and
needs no GIL.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memset

from tunedb.features._expressions cimport *
from tunedb.features._nest cimport *
from tunedb.features._objects cimport *

from ..errors import FormatError, LimitError

#: Roles with the fields to read, in the order of the offsets below. One role may cover many types
#: (``Binary``), whose fields must then have equal offsets. A field that a release lacks has offset 0.
ROLES = {
    "For": ("loop_var", "min", "extent", "kind", "body", "thread_binding", "annotations"),
    "BufferStore": ("buffer", "value", "indices"),
    "SBlockRealize": ("iter_values", "predicate", "block"),
    "SBlock": ("iter_vars", "name_hint", "alloc_buffers", "match_buffers", "init", "body"),
    "SeqStmt": ("seq",),
    "IfThenElse": ("condition", "then_case", "else_case"),
    "Evaluate": ("value",),
    "AttrStmt": ("value", "body"),
    "AllocBuffer": ("buffer",),
    "DeclBuffer": ("buffer",),
    "Bind": ("var", "value"),
    "While": ("condition", "body"),
    "AssertStmt": ("condition",),
    "End": (),
    "IntImm": ("value",),
    "FloatImm": ("value",),
    "StringImm": (),
    "Var": ("name", "type_annotation"),
    "Load": ("source", "indices"),
    "Call": ("op", "args"),
    "Binary": ("a", "b"),
    "Not": ("a",),
    "Select": ("condition", "true_value", "false_value"),
    "Cast": ("value",),
    "Ramp": ("base", "stride", "lanes"),
    "Broadcast": ("value", "lanes"),
    "Shuffle": ("vectors", "indices"),
    "Let": ("var", "value", "body"),
    "IterVar": ("var", "dom", "iter_type", "thread_tag"),
    "Range": ("min", "extent"),
    "MatchBufferRegion": ("buffer", "source"),
    "Region": ("source", "region"),
    "PrimType": ("dtype",),
    "BufferType": ("dtype", "storage_scope", "shape"),
    "PrimFunc": ("params", "body", "buffer_map"),
    "IRModule": ("functions",),
    "GlobalVar": ("name_hint",),
    "Buffer": ("name", "dtype", "shape", "data"),
    "PointerType": ("storage_scope",),
}


# ---- statements ----------------------------------------------------------------------------------


cdef void read_stmt(Walk* walk, Nest nest, Object* object) noexcept nogil:
    """Add a statement and everything under it."""
    cdef Tables* tables = walk.tables
    cdef uint8_t role
    cdef int32_t* at
    cdef Sequence* part
    cdef int64_t i
    cdef int32_t node, number
    if object == NULL or walk.status != OK:
        return
    walk.depth += 1
    if walk.depth > MAX_DEPTH:
        walk.status = TOO_DEEP
        return
    role = role_of(tables, object)
    at = tables.offset[role]
    if role == FOR:
        read_loop(walk, nest, object)
    elif role == STORE:
        read_store(walk, nest, object)
    elif role == SEQ:
        part = <Sequence*>child(object, at[0])
        for i in range(part.size if part != NULL else 0):
            read_stmt(walk, nest, entry(&part.items[i]))
    elif role == REALIZE:
        read_realize(walk, nest, object)
    elif role == BRANCH:
        read_if(walk, nest, object)
    elif role == EVALUATE:
        add_stmt(walk, nest, STMT_EVALUATE, read_expr(walk, nest, child(object, at[0])))
    elif role == ATTR or role == WHILE:
        add_stmt(walk, nest, STMT_OTHER, read_expr(walk, nest, child(object, at[0])))
        read_stmt(walk, nest, child(object, at[1]))
    elif role == ASSERT:
        add_stmt(walk, nest, STMT_OTHER, read_expr(walk, nest, child(object, at[0])))
    elif role == ALLOC:
        number = new_buffer(walk, nest, child(object, at[0]), BUFFER_ALLOCATED)
        if number != NO:
            nest.buffers[number].alloc_block = NO
    elif role == DECLARE:
        new_buffer(walk, nest, child(object, at[0]), BUFFER_UNDECLARED)
    elif role == BIND:
        node = read_expr(walk, nest, child(object, at[1]))
        number = add_stmt(walk, nest, STMT_LET, node)
        node = new_var(walk, nest, child(object, at[0]), VAR_LET, NO, node)
        if walk.status == OK:
            nest.stmts[number].var = node
    elif role != END:
        read_unknown_stmt(walk, nest, object)
    walk.depth -= 1


cdef int32_t add_stmt(Walk* walk, Nest nest, uint8_t kind, int32_t node) noexcept nogil:
    cdef int32_t number
    if walk.status != OK:
        return NO
    number = nest.add_stmt(kind, node)
    if number == NO:
        walk.status = NO_MEMORY
    return number


cdef void read_store(Walk* walk, Nest nest, Object* object) noexcept nogil:
    cdef int32_t* at = walk.tables.offset[STORE]
    cdef Object* indices = child(object, at[2])
    cdef int32_t buffer = buffer_of(walk, nest, child(object, at[0]))
    cdef int32_t first = read_sequence(walk, nest, <Sequence*>indices)
    cdef int32_t value = read_expr(walk, nest, child(object, at[1]))
    cdef int32_t number = add_stmt(walk, nest, STMT_STORE, value)
    if number != NO:
        nest.stmts[number].buffer = buffer
        nest.stmts[number].first_index = first
        nest.stmts[number].n_index = count_of(indices)


cdef void read_if(Walk* walk, Nest nest, Object* object) noexcept nogil:
    cdef int32_t* at = walk.tables.offset[BRANCH]
    cdef int32_t around = nest.condition
    cdef int32_t number = add_stmt(
        walk, nest, STMT_CONDITION, read_expr(walk, nest, child(object, at[0])))
    if number == NO:
        return
    nest.condition = number
    read_stmt(walk, nest, child(object, at[1]))
    read_stmt(walk, nest, child(object, at[2]))
    nest.condition = around


cdef void read_loop(Walk* walk, Nest nest, Object* object) noexcept nogil:
    cdef Tables* tables = walk.tables
    cdef int32_t* at = tables.offset[FOR]
    cdef Map* annotations = <Map*>child(object, at[6])
    cdef int32_t low = read_expr(walk, nest, child(object, at[1]))
    cdef int32_t size = read_expr(walk, nest, child(object, at[2]))
    cdef int32_t number, var
    cdef Loop* loop
    if walk.status != OK:
        return
    number = nest.open_loop()
    if number == NO:
        walk.status = NO_MEMORY
        return
    var = new_var(walk, nest, child(object, at[0]), VAR_LOOP, number, NO)
    loop = &nest.loops[number]
    loop.var = var
    loop.min_node = low
    loop.extent_node = size
    loop.has_min = int_value(tables, child(object, at[1]), &loop.min)
    loop.has_extent = int_value(tables, child(object, at[2]), &loop.extent)
    loop.kind = <uint8_t>(<int32_t*>(<char*>object + at[3]))[0]
    loop.tag = tag_of(tables, child(object, at[5])) if loop.kind == THREAD_BINDING else TAG_NONE
    loop.annotated = annotations != NULL and annotations.size > 0
    loop.auto_unroll = map_int(tables, annotations, b"pragma_auto_unroll_max_step", 27, -1)
    read_stmt(walk, nest, child(object, at[4]))
    nest.close_loop()


cdef uint8_t tag_of(Tables* tables, Object* binding) noexcept nogil:
    """Return the Tag of an IterVar's thread tag."""
    cdef const char* data
    cdef int32_t size
    if role_of(tables, binding) != ITER_VAR:
        return TAG_OTHER
    # 120 is "x", 122 is "z".
    text_of(<Any*>(<char*>binding + tables.offset[ITER_VAR][3]), &data, &size)
    if size == 10 and memcmp(data, b"blockIdx.", 9) == 0 and 120 <= data[9] <= 122:
        return <uint8_t>(BLOCK_X + (data[9] - 120))
    if size == 11 and memcmp(data, b"threadIdx.", 10) == 0 and 120 <= data[10] <= 122:
        return <uint8_t>(THREAD_X + (data[10] - 120))
    if size >= 7 and memcmp(data, b"vthread", 7) == 0:
        return VTHREAD
    return TAG_OTHER


cdef void read_realize(Walk* walk, Nest nest, Object* object) noexcept nogil:
    """Read a block under the bindings of its iterators."""
    cdef Tables* tables = walk.tables
    cdef int32_t* at = tables.offset[BLOCK]
    cdef Object* block = child(object, tables.offset[REALIZE][2])
    cdef Sequence* values = <Sequence*>child(object, tables.offset[REALIZE][0])
    cdef Sequence* iters
    cdef const char* data
    cdef int32_t size, text, predicate, first
    cdef uint8_t init = nest.init
    if role_of(tables, block) != BLOCK:
        walk.status = BAD_NODE
        return
    iters = <Sequence*>child(block, at[0])
    if count_of(<Object*>iters) != count_of(<Object*>values):
        walk.status = BAD_NODE
        return
    predicate = read_expr(walk, nest, child(object, tables.offset[REALIZE][1]))
    first = read_sequence(walk, nest, values)
    text_of(<Any*>(<char*>block + at[1]), &data, &size)
    text = nest.add_text(data, size)
    if walk.status != OK or nest.open_block() == NO:
        walk.status = NO_MEMORY if walk.status == OK else walk.status
        return
    nest.blocks[nest.block].name = text
    nest.blocks[nest.block].name_size = size
    nest.blocks[nest.block].predicate = predicate
    read_iters(walk, nest, iters, first)
    read_buffers(walk, nest, <Sequence*>child(block, at[2]), <Sequence*>child(block, at[3]))
    if child(block, at[4]) != NULL:
        nest.init = 1
        read_stmt(walk, nest, child(block, at[4]))
        nest.init = init
    read_stmt(walk, nest, child(block, at[5]))
    nest.close_block()


cdef void read_iters(Walk* walk, Nest nest, Sequence* iters, int32_t first) noexcept nogil:
    cdef Tables* tables = walk.tables
    cdef int32_t* at = tables.offset[ITER_VAR]
    cdef Object* one
    cdef Object* domain
    cdef int32_t number, var, i
    for i in range(count_of(<Object*>iters)):
        one = entry(&iters.items[i])
        if role_of(tables, one) != ITER_VAR:
            walk.status = BAD_NODE
            return
        number = nest.add_iter()
        if number == NO:
            walk.status = NO_MEMORY
            return
        var = new_var(walk, nest, child(one, at[0]), VAR_BLOCK, nest.block, nest.args[first + i])
        nest.iters[number].var = var
        nest.iters[number].value = nest.args[first + i]
        nest.iters[number].kind = <uint8_t>(<int32_t*>(<char*>one + at[2]))[0]
        domain = child(one, at[1])
        if role_of(tables, domain) == RANGE:
            int_value(tables, child(domain, tables.offset[RANGE][0]), &nest.iters[number].min)
            nest.iters[number].has_extent = int_value(
                tables, child(domain, tables.offset[RANGE][1]), &nest.iters[number].extent)


cdef void read_buffers(Walk* walk, Nest nest, Sequence* allocated, Sequence* matched) noexcept nogil:
    """Add the buffers that a block allocates, and its windows into other buffers."""
    cdef Tables* tables = walk.tables
    cdef Object* region
    cdef Sequence* ranges
    cdef Object* one
    cdef int32_t number, source, first, i, k, node
    for i in range(count_of(<Object*>allocated)):
        new_buffer(walk, nest, entry(&allocated.items[i]), BUFFER_ALLOCATED)
    for i in range(count_of(<Object*>matched)):
        one = entry(&matched.items[i])
        if role_of(tables, one) != MATCH:
            walk.status = BAD_NODE
            return
        region = child(one, tables.offset[MATCH][1])
        number = new_buffer(walk, nest, child(one, tables.offset[MATCH][0]), BUFFER_MATCHED)
        if walk.status != OK or role_of(tables, region) != REGION:
            walk.status = BAD_NODE if walk.status == OK else walk.status
            return
        source = buffer_of(walk, nest, child(region, tables.offset[REGION][0]))
        ranges = <Sequence*>child(region, tables.offset[REGION][1])
        first = nest.add_args(2 * count_of(<Object*>ranges))
        for k in range(2 * count_of(<Object*>ranges)):
            one = entry(&ranges.items[k >> 1])
            if first == NO or role_of(tables, one) != RANGE:
                walk.status = BAD_NODE
                return
            node = read_expr(walk, nest, child(one, tables.offset[RANGE][k & 1]))
            nest.args[first + k] = node
        nest.buffers[number].source = source
        nest.buffers[number].first_region = first
        nest.buffers[number].n_region = 2 * count_of(<Object*>ranges)


cdef void read_unknown_stmt(Walk* walk, Nest nest, Object* object) noexcept nogil:
    """Count a statement of unknown type, and read the statements under it."""
    cdef Tables* tables = walk.tables
    cdef Type* described
    cdef Sequence* part
    cdef Object* one
    cdef int32_t i
    cdef int64_t k
    add_stmt(walk, nest, STMT_OTHER, read_expr_of_stmt(walk, nest, object))
    if not 0 <= object.kind < tables.n_types:
        return
    described = &tables.types[object.kind]
    for i in range(described.n_children):
        one = child(object, described.child[i])
        if one == NULL:
            continue
        if not described.child_is_sequence[i]:
            if is_statement(tables, one):
                read_stmt(walk, nest, one)
            continue
        part = <Sequence*>one
        for k in range(part.size):
            one = entry(&part.items[k])
            if is_statement(tables, one):
                read_stmt(walk, nest, one)


cdef int32_t read_expr_of_stmt(Walk* walk, Nest nest, Object* object) noexcept nogil:
    if walk.status != OK:
        return NO
    cdef int32_t node = read_unknown(walk, nest, object)
    if node == NO and walk.status == OK:
        walk.status = NO_MEMORY
    return node


cdef inline bint is_statement(Tables* tables, Object* object) noexcept nogil:
    return object != NULL and 0 <= object.kind < tables.n_types and tables.types[object.kind].is_stmt


# ---- functions and modules -----------------------------------------------------------------------


cdef void read_function(Walk* walk, Nest nest, Object* object, Any* name) noexcept nogil:
    cdef Tables* tables = walk.tables
    cdef Sequence* parameters = <Sequence*>child(object, tables.offset[FUNCTION][0])
    cdef Object* one
    cdef Object* buffer
    cdef const char* data = b""
    cdef int32_t size = 0, text, i
    if name != NULL:
        text_of(name, &data, &size)
    text = nest.add_text(data, size)
    if nest.open_function(text, size) == NO:
        walk.status = NO_MEMORY
        return
    for i in range(count_of(<Object*>parameters)):
        one = entry(&parameters.items[i])
        if role_of(tables, one) != VAR:
            walk.status = BAD_NODE
            return
        buffer = NULL
        if tables.offset[FUNCTION][2]:
            buffer = map_object(tables, <Map*>child(object, tables.offset[FUNCTION][2]), one)
        elif role_of(tables, child(one, tables.type_offset)) == BUFFER_TYPE:
            buffer = one
        if buffer != NULL:
            new_buffer(walk, nest, buffer, BUFFER_PARAMETER)
        else:
            new_var(walk, nest, one, VAR_FREE, NO, NO)
    read_stmt(walk, nest, child(object, tables.offset[FUNCTION][1]))
    nest.close_function()


cdef void read_module(Walk* walk, Nest nest, Object* object) noexcept nogil:
    """Read a function, or the functions of a module in their order."""
    cdef Tables* tables = walk.tables
    cdef Map* functions
    cdef Any* pairs
    cdef Object* name
    cdef uint64_t i
    if role_of(tables, object) == FUNCTION:
        read_function(walk, nest, object, NULL)
        return
    if role_of(tables, object) != MODULE:
        walk.status = NOT_A_MODULE
        return
    functions = <Map*>child(object, tables.offset[MODULE][0])
    if functions == NULL or functions.size == 0:
        return
    if not functions.slots >> 63:
        walk.status = DENSE_MODULE
        return
    pairs = <Any*>functions.data
    for i in range(functions.size):
        if role_of(tables, entry(&pairs[2 * i + 1])) != FUNCTION:
            continue  # a function of Relax
        name = entry(&pairs[2 * i])
        read_function(
            walk, nest, entry(&pairs[2 * i + 1]),
            <Any*>(<char*>name + tables.offset[GLOBAL_VAR][0])
            if role_of(tables, name) == GLOBAL_VAR else NULL)


cdef class Reader:
    """Reads modules of one version of TVM.

    Parameters
    ----------
    object_type : type
        ``tvm_ffi.Object``; the reader refuses other objects, because it can read no other handle.
    types : dict of str to list of (int, dict of str to int)
        For each of `ROLES` its type indices, with the offsets of their fields.
    ops : dict of int to int
        `Op` of the type indices that are ``Binary`` or ``Not``.
    described : dict of int to (bool, bool, list of (int, bool))
        For each type index whether it is a statement, whether it is an expression, and its fields
        with objects: their offset, and whether they are an array. The reader walks types without a
        role through these.
    type_offset : int
        Offset of ``ty`` in ``ir.Expr``, or of ``dtype`` in ``ir.PrimExpr``.
    dtype_is_inline : bool
        Whether an expression holds its data type itself, as until TVM 0.25.
    int_size : int
        Bytes of ``ir.IntImm.value``: 8, or 16 if it is a TVMFFIAny.
    operators : dict of int to (int, bool, int)
        Address of each ``ir.Op``: its `Call`, whether it may have effects, and the `Op` that a call
        of it is read as, usually ``OP_CALL``.
    function_call, dec_ref, map_get : int
        Addresses of ``TVMFFIFunctionCall``, ``TVMFFIObjectDecRef`` and of the function object
        ``ffi.MapGetItemOrMissing``, for maps with many entries.
    list_functions : callable
        Gets a module and returns its functions as ``[(name, PrimFunc)]``; called only for modules
        with more functions than a small map holds.
    """

    def __cinit__(self):
        memset(&self.tables, 0, sizeof(Tables))

    def __init__(self, object_type, types, ops, described, int type_offset,
                 bint dtype_is_inline, int int_size, operators, uintptr_t function_call, uintptr_t dec_ref, uintptr_t map_get,
                 list_functions):
        if self.tables.types != NULL:
            raise TypeError("a reader is made once")
        if int_size not in (8, 16):
            raise ValueError(f"ir.IntImm.value has {int_size} bytes")
        self.object_type = object_type
        self.list_functions = list_functions
        self.tables.type_offset = type_offset
        self.tables.dtype_is_inline = dtype_is_inline
        self.tables.int_is_any = int_size == 16
        self.tables.function_call = <FunctionCall>function_call
        self.tables.dec_ref = <DecRef>dec_ref
        self.tables.map_get = <void*>map_get
        self._describe(described)
        self._give_roles(types, ops)
        self._learn(operators)

    def __dealloc__(self):
        free(self.tables.types)
        free(self.tables.operators)

    def _describe(self, described):
        cdef Type* type
        self.tables.n_types = max(described) + 1
        self.tables.types = <Type*>calloc(self.tables.n_types, sizeof(Type))
        if self.tables.types == NULL:
            raise MemoryError
        for index, (is_stmt, is_expr, fields) in described.items():
            type = &self.tables.types[index]
            type.is_stmt = is_stmt
            type.is_expr = is_expr
            for offset, is_sequence in fields[:MAX_CHILDREN]:
                type.child[type.n_children] = offset
                type.child_is_sequence[type.n_children] = is_sequence
                type.n_children += 1

    def _give_roles(self, types, ops):
        cdef int32_t role, i, index
        for role, (name, fields) in enumerate(ROLES.items(), start=1):
            first = None
            for index, offsets in types[name]:
                found = [offsets[field] for field in fields]
                if first is not None and found != first:
                    raise ValueError(f"the fields of {name} are not at one place")
                first = found
                self.tables.types[index].role = role
                self.tables.types[index].op = ops.get(index, OP_UNKNOWN)
            for i, offset in enumerate(first or ()):
                self.tables.offset[role][i] = offset

    def _learn(self, operators):
        cdef int32_t i
        self.tables.operators = <Operator*>malloc(max(1, len(operators)) * sizeof(Operator))
        if self.tables.operators == NULL:
            raise MemoryError
        for i, address in enumerate(sorted(operators)):
            self.tables.operators[i].address = address
            call, effects, op = operators[address]
            self.tables.operators[i].call = call
            self.tables.operators[i].effects = effects
            self.tables.operators[i].op = op
        self.tables.n_operators = <int32_t>len(operators)

    def read(self, module, Nest nest=None):
        """Return the flat form of a module or function.

        Parameters
        ----------
        module : tvm.IRModule or tvm.tirx.PrimFunc
            The module or function; nobody may change it meanwhile, because the GIL is released.
        nest : Nest, optional
            A nest to clear and fill, instead of a new one.

        Raises
        ------
        TypeError
            `module` is neither.
        LimitError
            Its statements or expressions are nested too deep, or too many.
        FormatError
            A node lacks a part that TVM requires.
        """
        cdef Walk walk
        cdef Object* root
        if not isinstance(module, self.object_type):
            raise TypeError(f"an IRModule or PrimFunc, not {type(module).__name__}")
        if nest is None:
            nest = Nest()
        root = <Object*><uintptr_t>module.__chandle__()
        with nogil:
            start(&walk, &self.tables, nest)
            if walk.status == OK:
                read_module(&walk, nest, root)
        try:
            if walk.status == DENSE_MODULE:
                walk.status = OK
                self._read_listed(&walk, nest, self.list_functions(module))
            self._check(&walk, nest)
        finally:
            free(walk.keys)
            free(walk.values)
        return nest

    cdef int read_root(self, Nest nest, uintptr_t root) noexcept nogil:
        """Read a module by its address; return 0, or another number if `read` has to raise."""
        cdef Walk walk
        cdef int32_t status
        start(&walk, &self.tables, nest)
        if walk.status == OK:
            read_module(&walk, nest, <Object*>root)
        status = walk.status
        free(walk.keys)
        free(walk.values)
        return status != OK or nest.failed

    cdef _read_listed(self, Walk* walk, Nest nest, functions):
        cdef Any name
        cdef bytes text
        cdef Bytes* held
        cdef Object* root
        for word, function in functions:
            root = <Object*><uintptr_t>function.__chandle__()
            if role_of(&self.tables, root) != FUNCTION:
                continue
            with nogil:
                read_function(walk, nest, root, NULL)
            if walk.status != OK:
                return
            text = word.encode()
            nest.functions[nest.n_functions - 1].name = nest.add_text(text, <int32_t>len(text))
            nest.functions[nest.n_functions - 1].name_size = <int32_t>len(text)

    cdef _check(self, Walk* walk, Nest nest):
        if walk.status == TOO_DEEP:
            raise LimitError(f"the program is nested deeper than {MAX_DEPTH}")
        if walk.status == NOT_A_MODULE:
            raise TypeError("an IRModule or PrimFunc is needed")
        if walk.status == BAD_NODE:
            raise FormatError("a node of the program lacks a part that TVM requires")
        if nest.failed or walk.status == NO_MEMORY:
            raise LimitError("the program has more parts than memory or 2**26 of a kind")

    cdef bint has_unknown(self, Nest nest) noexcept nogil:
        """Whether the program has nodes of types that the reader does not know."""
        cdef int32_t i
        for i in range(nest.n_nodes):
            if nest.nodes[i].op == OP_UNKNOWN and not self._is_known(nest.nodes[i].value):
                return True
        return False

    def unknown(self, Nest nest):
        """Return the number of nodes of unknown types, by type index."""
        cdef int32_t i
        found = {}
        for i in range(nest.n_nodes):
            if nest.nodes[i].op == OP_UNKNOWN and not self._is_known(nest.nodes[i].value):
                found[nest.nodes[i].value] = found.get(nest.nodes[i].value, 0) + 1
        return found

    cdef bint _is_known(self, int64_t index) noexcept nogil:
        return 0 <= index < self.tables.n_types and self.tables.types[index].role != UNKNOWN


cdef void start(Walk* walk, Tables* tables, Nest nest) noexcept nogil:
    memset(walk, 0, sizeof(Walk))
    walk.tables = tables
    nest.reset()
    make_room(walk, 128)
