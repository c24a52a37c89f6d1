# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Arithmetic of a stored value: the number of operations of each kind in one evaluation.

A value counts as a tree, as if printed: a node that two operands share counts twice. The indices of
its loads belong to it. For TVM the type of the result decides between float and int, and only IEEE
floats are floats; for Ansor, comparisons go by their operands, bfloat16 and the narrow floats are
floats, a vector operation counts once for each lane, and a sum of a product is one multiply-add.
"""

from tunedb.features._bounds cimport descending
from tunedb.features._nest cimport (
    NO, OP_ADD, OP_AND, OP_BITNOT, OP_BITXOR, OP_CALL, OP_DIV, OP_EQ, OP_FLOORMOD, OP_GE, OP_LOAD,
    OP_MAX, OP_MIN, OP_MUL, OP_NOT, OP_OR, OP_SELECT, OP_SHL, OP_SHUFFLE, OP_SUB, OP_UNKNOWN,
    Nest, Node,
)

cdef enum:
    CODE_FLOAT = 2
    CODE_HANDLE = 3
    CODE_BFLOAT = 4
    CODE_NARROW_FLOATS = 7  # float8_e3m4 and the following ones in DLPack's enumeration


cdef inline bint is_float(uint8_t code, bint ansor) noexcept nogil:
    if code == CODE_FLOAT:
        return True
    return ansor and (code == CODE_BFLOAT or code >= CODE_NARROW_FLOATS)


cdef inline bint is_product_for(Nest nest, int32_t node, const Node* sum) noexcept nogil:
    return (nest.nodes[node].op == OP_MUL
            and is_float(nest.nodes[node].code, True) == is_float(sum.code, True))


cdef int kind_of(Nest nest, const Node* node, bint ansor) noexcept nogil:
    """Return the Count that a node adds to, regardless of multiply-adds, or -1."""
    cdef uint8_t op = node.op
    cdef uint8_t code = node.code
    cdef int kind
    if OP_ADD <= op <= OP_GE:
        if op <= OP_SUB:
            kind = ADD_SUB
        elif op == OP_MUL:
            kind = MUL
        elif OP_DIV <= op <= OP_FLOORMOD:
            kind = DIV_MOD
        else:
            kind = COMPARE
            if ansor:
                code = nest.nodes[node.a].code
    elif op == OP_CALL:
        if code == CODE_HANDLE:
            return -1
        kind = OTHER_FUNCTION if node.c == 1 else MATH_FUNCTION
    elif op == OP_AND or op == OP_OR or op == OP_NOT:
        return BOOL_OP
    elif op == OP_SELECT:
        return SELECT_OP
    elif OP_SHL <= op <= OP_BITXOR or op == OP_BITNOT:
        kind = MATH_FUNCTION  # they were calls when Ansor was written
    else:
        return -1
    return kind if is_float(code, ansor) else kind + INTEGER


cdef void count_node(Tally* self, Nest nest, int32_t n, bint ansor) noexcept nogil:
    cdef const Node* node = &nest.nodes[n]
    cdef uint64_t times = self.times[n]
    cdef int kind = kind_of(nest, node, ansor)
    cdef int32_t product = NO
    if kind < 0:
        return
    if ansor:
        if node.op == OP_ADD or node.op == OP_SUB:
            if is_product_for(nest, node.a, node):
                product = node.a
            elif is_product_for(nest, node.b, node):
                product = node.b
            if product != NO:
                self.absorbed[product] += times
                kind -= ADD_SUB - MAD
        elif node.op == OP_MUL:
            times -= self.absorbed[n]
        times *= node.lanes
    self.counts[kind] = <int64_t>(<uint64_t>self.counts[kind] + times)


cdef void count_value(
    Tally* self, Nest nest, int32_t value, bint ansor, uint32_t* seen, uint32_t stamp
) noexcept nogil:
    """Count the operations of one evaluation; `order` holds the nodes afterwards.

    Counts wrap like TVM's 64-bit integers.
    """
    cdef int32_t i, k, n
    cdef const Node* node
    cdef uint64_t times
    for i in range(N_COUNTS):
        self.counts[i] = 0
    self.size = descending(nest, &value, 1, seen, stamp, self.order)
    for i in range(self.size):
        n = self.order[i]
        self.times[n] = 0
        self.absorbed[n] = 0
    self.times[value] = 1
    for i in range(self.size):
        n = self.order[i]
        node = &nest.nodes[n]
        times = self.times[n]
        count_node(self, nest, n, ansor)
        if node.op == OP_LOAD or node.op == OP_CALL or node.op == OP_SHUFFLE or node.op == OP_UNKNOWN:
            for k in range(node.b if node.a != NO else 0):
                self.times[nest.args[node.a + k]] += times
            continue
        if node.a != NO:
            self.times[node.a] += times
            if node.b != NO:
                self.times[node.b] += times
                if node.c != NO:
                    self.times[node.c] += times
