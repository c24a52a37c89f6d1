# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Reads variables, buffers and expressions of TVM's IR into the flat form (``_reader.pyx``)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc

from tunedb.features._nest cimport *
from tunedb.features._objects cimport *

# ---- variables and buffers by address ------------------------------------------------------------


cdef inline uint32_t slot_of(uintptr_t key, int32_t room) noexcept nogil:
    return <uint32_t>(((<uint64_t>key >> 4) * <uint64_t>0x9E3779B97F4A7C15) >> 40) & <uint32_t>(room - 1)


cdef int32_t lookup(Walk* walk, uintptr_t key) noexcept nogil:
    """Return the number stored under an address, or NO."""
    cdef uint32_t slot = slot_of(key, walk.room)
    while walk.keys[slot] != 0:
        if walk.keys[slot] == key:
            return walk.values[slot]
        slot = (slot + 1) & <uint32_t>(walk.room - 1)
    return NO


cdef bint make_room(Walk* walk, int32_t room) noexcept nogil:
    cdef uintptr_t* old_keys = walk.keys
    cdef int32_t* old_values = walk.values
    cdef int32_t old_room = walk.room
    cdef int32_t i
    cdef uintptr_t* keys = <uintptr_t*>calloc(room, sizeof(uintptr_t))
    cdef int32_t* values = <int32_t*>malloc(room * sizeof(int32_t))
    if keys == NULL or values == NULL:
        free(keys)
        free(values)
        walk.status = NO_MEMORY
        return False
    walk.keys = keys
    walk.values = values
    walk.room = room
    walk.used = 0
    for i in range(old_room):
        if old_keys[i] != 0:
            insert(walk, old_keys[i], old_values[i])
    free(old_keys)
    free(old_values)
    return True


cdef void insert(Walk* walk, uintptr_t key, int32_t value) noexcept nogil:
    """Store a number under an address; the latest one counts."""
    cdef uint32_t slot
    if 2 * walk.used >= walk.room and not make_room(walk, 2 * walk.room):
        return
    slot = slot_of(key, walk.room)
    while walk.keys[slot] != 0 and walk.keys[slot] != key:
        slot = (slot + 1) & <uint32_t>(walk.room - 1)
    if walk.keys[slot] == 0:
        walk.used += 1
    walk.keys[slot] = key
    walk.values[slot] = value


cdef int32_t new_var(Walk* walk, Nest nest, Object* object, uint8_t kind, int32_t owner, int32_t node) noexcept nogil:
    """Add a variable and store its number under its address."""
    cdef Tables* tables = walk.tables
    cdef const char* data
    cdef int32_t size, text, number
    cdef Node type
    if object == NULL:
        walk.status = BAD_NODE
        return NO
    text_of(<Any*>(<char*>object + tables.offset[VAR][0]), &data, &size)
    text = nest.add_text(data, size)
    expr_type(tables, object, &type)
    number = nest.add_var(kind, type.code, type.bits, owner, node, text, size, <uintptr_t>object)
    insert(walk, <uintptr_t>object, number)
    return number


cdef int32_t new_buffer(Walk* walk, Nest nest, Object* object, uint8_t kind) noexcept nogil:
    """Add a buffer, allocated at the present place, and store its number under its address."""
    cdef Tables* tables = walk.tables
    cdef const char* data
    cdef int32_t size, text, number, first, i, node
    cdef Sequence* shape
    cdef Object* type
    cdef Any* scope
    cdef bint is_class
    cdef Node dtype
    if object == NULL:
        walk.status = BAD_NODE
        return NO
    number = nest.add_buffer()
    if number == NO:
        walk.status = NO_MEMORY
        return NO
    insert(walk, <uintptr_t>object, -2 - number)
    nest.buffers[number].kind = kind
    nest.buffers[number].object = <uintptr_t>object
    if kind == BUFFER_ALLOCATED or kind == BUFFER_MATCHED:
        nest.buffers[number].alloc_loop = nest.loop
        nest.buffers[number].alloc_block = nest.block
    is_class = role_of(tables, object) == BUFFER  # until TVM 0.25; later the type of a variable
    text_of(<Any*>(<char*>object + tables.offset[BUFFER if is_class else VAR][0]), &data, &size)
    text = nest.add_text(data, size)
    nest.buffers[number].name = text
    nest.buffers[number].name_size = size
    if is_class:
        dtype_at(<uint8_t*>object + tables.offset[BUFFER][1], &dtype)
        shape = <Sequence*>child(object, tables.offset[BUFFER][2])
        type = child(child(object, tables.offset[BUFFER][3]), tables.offset[VAR][1])
        if role_of(tables, type) != POINTER_TYPE:
            return number
        scope = <Any*>(<char*>type + tables.offset[POINTER_TYPE][0])
    else:
        type = child(object, tables.type_offset)
        if role_of(tables, type) != BUFFER_TYPE:
            return number
        type_of(tables, child(type, tables.offset[BUFFER_TYPE][0]), &dtype)
        shape = <Sequence*>child(type, tables.offset[BUFFER_TYPE][2])
        scope = <Any*>(<char*>type + tables.offset[BUFFER_TYPE][1])
    nest.buffers[number].code = dtype.code
    nest.buffers[number].bits = dtype.bits
    nest.buffers[number].lanes = dtype.lanes
    text_of(scope, &data, &size)
    if is_class and size == 0:
        data, size = b"global", 6
    text = nest.add_text(data, size)
    nest.buffers[number].scope = text
    nest.buffers[number].scope_size = size
    first = read_sequence(walk, nest, shape)
    nest.buffers[number].first_dim = first
    nest.buffers[number].ndim = 0 if shape == NULL else <int32_t>shape.size
    return number


cdef int32_t buffer_of(Walk* walk, Nest nest, Object* object) noexcept nogil:
    """Return the number of a buffer; an undeclared buffer is added."""
    cdef int32_t number = lookup(walk, <uintptr_t>object)
    if number <= -2:
        return -2 - number
    return new_buffer(walk, nest, object, BUFFER_UNDECLARED)


# ---- expressions ---------------------------------------------------------------------------------


cdef int32_t read_sequence(Walk* walk, Nest nest, Sequence* sequence) noexcept nogil:
    """Read the expressions of an array and return the place of the first in `args`."""
    cdef int64_t i, size
    cdef int32_t first, node
    if sequence == NULL or sequence.size <= 0:
        return 0
    size = sequence.size
    first = nest.add_args(<int32_t>size if size < 1 << 26 else 1 << 26)
    if first == NO:
        walk.status = NO_MEMORY
        return 0
    for i in range(size):
        node = read_expr(walk, nest, entry(&sequence.items[i]))
        if walk.status != OK:
            return 0
        nest.args[first + i] = node
    return first


cdef int32_t read_expr(Walk* walk, Nest nest, Object* object) noexcept nogil:
    """Add the nodes of an expression and return the number of its root."""
    cdef int32_t node
    if walk.status != OK:
        return NO
    if object == NULL:
        walk.status = BAD_NODE
        return NO
    walk.depth += 1
    if walk.depth > MAX_DEPTH:
        walk.status = TOO_DEEP
        return NO
    node = read_node(walk, nest, object)
    walk.depth -= 1
    if node == NO and walk.status == OK:
        walk.status = NO_MEMORY
    return node


cdef int32_t read_node(Walk* walk, Nest nest, Object* object) noexcept nogil:
    cdef Tables* tables = walk.tables
    cdef uint8_t role = role_of(tables, object)
    cdef int32_t* at = tables.offset[role]
    cdef int32_t a, b = NO, c = NO
    cdef int64_t value = 0
    cdef Node type
    cdef Object* arguments
    if role == VAR:
        return read_var(walk, nest, object)
    if role < INT_IMM or role > LET:
        return read_unknown(walk, nest, object)
    expr_type(tables, object, &type)
    if role == BINARY:
        a = read_expr(walk, nest, child(object, at[0]))
        b = read_expr(walk, nest, child(object, at[1]))
        return nest.add_node(tables.types[object.kind].op, type.code, type.bits, type.lanes, a, b, NO, 0)
    if role == INT_IMM:
        if not int_value(tables, object, &value):
            value = 0x7FFFFFFFFFFFFFFF  # beyond 64 bits
        return nest.add_node(OP_INT, type.code, type.bits, type.lanes, NO, NO, NO, value)
    if role == FLOAT_IMM:
        value = (<int64_t*>(<char*>object + at[0]))[0]
        return nest.add_node(OP_FLOAT, type.code, type.bits, type.lanes, NO, NO, NO, value)
    if role == STRING_IMM:
        return nest.add_node(OP_STRING, type.code, type.bits, type.lanes, NO, NO, NO, 0)
    if role == LOAD:
        value = buffer_of(walk, nest, child(object, at[0]))
        arguments = child(object, at[1])
        a = read_sequence(walk, nest, <Sequence*>arguments)
        return nest.add_node(OP_LOAD, type.code, type.bits, type.lanes, a, count_of(arguments), NO, value)
    if role == CALL:
        return read_call(walk, nest, object, &type)
    if role == SHUFFLE:
        return read_shuffle(walk, nest, object, &type)
    if role == LET:
        a = read_expr(walk, nest, child(object, at[1]))
        value = new_var(walk, nest, child(object, at[0]), VAR_LET, NO, a)
        b = read_expr(walk, nest, child(object, at[2]))
        return nest.add_node(OP_LET, type.code, type.bits, type.lanes, a, b, NO, value)
    # All other types have one to three operands.
    a = read_expr(walk, nest, child(object, at[0]))
    if role == NOT:
        return nest.add_node(tables.types[object.kind].op, type.code, type.bits, type.lanes, a, NO, NO, 0)
    if role == CAST:
        return nest.add_node(OP_CAST, type.code, type.bits, type.lanes, a, NO, NO, 0)
    b = read_expr(walk, nest, child(object, at[1]))
    if role == BROADCAST:
        return nest.add_node(OP_BROADCAST, type.code, type.bits, type.lanes, a, b, NO, 0)
    c = read_expr(walk, nest, child(object, at[2]))
    return nest.add_node(
        OP_SELECT if role == SELECT else OP_RAMP, type.code, type.bits, type.lanes, a, b, c, 0)


cdef int32_t read_var(Walk* walk, Nest nest, Object* object) noexcept nogil:
    """Return the node of a variable; for an iterator of a block that of its binding."""
    cdef int32_t number = lookup(walk, <uintptr_t>object)
    if number == NO:
        number = new_var(walk, nest, object, VAR_FREE, NO, NO)
    if number <= -2:  # a buffer as an argument of a call
        return nest.add_node(OP_UNKNOWN, 3, 64, 1, NO, NO, NO, object.kind)
    if number == NO:
        return NO
    if nest.vars[number].kind == VAR_BLOCK:
        return nest.vars[number].node
    return nest.add_node(
        OP_VAR, nest.vars[number].code, nest.vars[number].bits, 1, NO, NO, NO, number)


cdef int32_t read_call(Walk* walk, Nest nest, Object* object, Node* type) noexcept nogil:
    cdef Tables* tables = walk.tables
    cdef uintptr_t address = <uintptr_t>child(object, tables.offset[CALL][0])
    cdef Object* arguments = child(object, tables.offset[CALL][1])
    cdef int32_t low = 0, high = tables.n_operators, middle, first, count
    cdef uint8_t effects = 1, op = OP_CALL
    cdef int64_t which = CALL_OTHER
    while low < high:
        middle = (low + high) >> 1
        if tables.operators[middle].address < address:
            low = middle + 1
        else:
            high = middle
    if low < tables.n_operators and tables.operators[low].address == address:
        effects = tables.operators[low].effects
        which = tables.operators[low].call
        op = tables.operators[low].op
    first = read_sequence(walk, nest, <Sequence*>arguments)
    count = count_of(arguments)
    if op != OP_CALL and walk.status == OK and count == (1 if op == OP_BITNOT else 2):
        return nest.add_node(op, type.code, type.bits, type.lanes, nest.args[first],
                             nest.args[first + 1] if count == 2 else NO, NO, 0)
    return nest.add_node(
        OP_CALL, type.code, type.bits, type.lanes, first, count, effects, which)


cdef int32_t read_shuffle(Walk* walk, Nest nest, Object* object, Node* type) noexcept nogil:
    cdef Sequence* part
    cdef int32_t first, count = 0, i, half, node
    for half in range(2):
        count += count_of(child(object, walk.tables.offset[SHUFFLE][half]))
    first = nest.add_args(count)
    count = 0
    for half in range(2):
        part = <Sequence*>child(object, walk.tables.offset[SHUFFLE][half])
        for i in range(count_of(<Object*>part)):
            node = read_expr(walk, nest, entry(&part.items[i]))
            if walk.status != OK or first == NO:
                return NO
            nest.args[first + count] = node
            count += 1
    return nest.add_node(OP_SHUFFLE, type.code, type.bits, type.lanes, first, count, NO, 0)


cdef int32_t read_unknown(Walk* walk, Nest nest, Object* object) noexcept nogil:
    """Add a node of an unknown type over the nodes in its fields."""
    cdef Tables* tables = walk.tables
    cdef Node type
    cdef Type* described
    cdef Sequence* part
    cdef Object* one
    cdef int32_t found[MAX_CHILDREN]
    cdef int32_t count = 0, i, first
    cdef int64_t k
    type.code, type.bits, type.lanes = 3, 64, 1
    if 0 <= object.kind < tables.n_types:
        described = &tables.types[object.kind]
        if described.is_expr:
            expr_type(tables, object, &type)
        for i in range(described.n_children):
            one = child(object, described.child[i])
            if one == NULL:
                continue
            if not described.child_is_sequence[i]:
                if is_expression(tables, one) and count < MAX_CHILDREN:
                    found[count] = read_expr(walk, nest, one)
                    count += 1
                continue
            part = <Sequence*>one
            for k in range(part.size):
                one = entry(&part.items[k])
                if is_expression(tables, one) and count < MAX_CHILDREN:
                    found[count] = read_expr(walk, nest, one)
                    count += 1
    first = nest.add_args(count)
    if first == NO or walk.status != OK:
        return NO
    for i in range(count):
        nest.args[first + i] = found[i]
    return nest.add_node(OP_UNKNOWN, type.code, type.bits, type.lanes, first, count, NO, object.kind)


cdef inline bint is_expression(Tables* tables, Object* object) noexcept nogil:
    return object != NULL and 0 <= object.kind < tables.n_types and tables.types[object.kind].is_expr
