# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Bounds of index expressions under bindings of loop variables, as TVM's analyzer gives them.

An expression is evaluated from the left, each node once, so the cost of shared nodes and deep
expressions is their number of nodes. When the binding of one loop changes, only the nodes that use
its variable are evaluated again.

TVM binds every loop variable to its minimum first and to its range afterwards. The second binding
keeps the modular set of the first, so ``i % 8`` is a constant for TVM, whatever the range of ``i``.
So it is here unless `exact` is set.
"""

from libc.stdlib cimport free, realloc
from libc.string cimport memset

from tunedb.features._intervals cimport (
    NO_SET, everything, inf_add, is_arithmetic, modular, node_bound, node_modular,
)
from tunedb.features._nest cimport (
    NO, OP_ADD, OP_BROADCAST, OP_CALL, OP_CAST, OP_FLOORMOD, OP_INT, OP_LET, OP_LOAD, OP_MOD,
    OP_MUL, OP_RAMP, OP_SELECT, OP_SHUFFLE, OP_UNKNOWN, OP_VAR, VAR_LOOP, Loop, Nest, Node, Var,
)

from ..errors import FormatError, LimitError

cdef enum:
    WALK_LIMIT = 1 << 20  # steps of a walk over a tree whose nodes may be shared


# --- walking expressions


cdef inline bint has_arguments(const Node* node) noexcept nogil:
    """Whether the operands are in the nest's `args`."""
    return node.op == OP_LOAD or node.op == OP_CALL or node.op == OP_SHUFFLE or node.op == OP_UNKNOWN


cdef inline int32_t operand(Nest nest, const Node* node, int32_t i) noexcept nogil:
    """Return an operand, or NO after the last one."""
    if has_arguments(node):
        return nest.args[node.a + i] if node.a != NO and i < node.b else NO
    if i == 0:
        return node.a
    if i == 1:
        return node.b
    return node.c if i == 2 else NO


cdef int32_t descending(
    Nest nest, const int32_t* roots, int32_t n_roots, uint32_t* seen, uint32_t stamp, int32_t* out
) noexcept nogil:
    """Write the nodes of some expressions, users before operands, and return their number.

    `stamp` is a value that no entry of `seen` has; the entries of the written nodes get it.
    """
    cdef int32_t n = NO, i, child, count = 0, pending = 0
    cdef const Node* node
    for i in range(n_roots):
        if seen[roots[i]] != stamp:
            seen[roots[i]] = stamp
            pending += 1
            n = max(n, roots[i])
    while pending:
        if seen[n] == stamp:
            out[count] = n
            count += 1
            pending -= 1
            node = &nest.nodes[n]
            i = 0
            child = operand(nest, node, 0)
            while child != NO:
                if seen[child] != stamp:
                    seen[child] = stamp
                    pending += 1
                i += 1
                child = operand(nest, node, i)
        n -= 1
    return count


cdef inline uint64_t loop_bit(Nest nest, int32_t loop) noexcept nogil:
    return <uint64_t>1 << min(nest.loops[loop].depth, EXACT_DEPTH)


cdef uint64_t node_uses(Analyzer* self, Nest nest, const Node* node) noexcept nogil:
    cdef uint64_t uses = 0
    cdef int32_t i = 0, child
    cdef const Var* var
    if node.op == OP_VAR:
        var = &nest.vars[node.value]
        return loop_bit(nest, var.owner) if var.kind == VAR_LOOP and var.owner != NO else 0
    child = operand(nest, node, 0)
    while child != NO:
        uses |= self.uses[child]
        i += 1
        child = operand(nest, node, i)
    return uses


cdef inline void reach(Analyzer* self, int32_t node) noexcept nogil:
    self.reached[node] = self.stamp


cdef void reach_operands(Analyzer* self, const Node* node) noexcept nogil:
    """Mark the operands that determine the bound of a node."""
    cdef uint8_t op = node.op
    if is_arithmetic(op) or op == OP_RAMP or op == OP_LET:
        reach(self, node.a)
        reach(self, node.b)
    elif op == OP_CAST or op == OP_BROADCAST:
        reach(self, node.a)
    elif op == OP_SELECT:
        reach(self, node.b)
        reach(self, node.c)


cdef void choose(Analyzer* self, Nest nest, const int32_t* roots, int32_t n_roots) noexcept nogil:
    """Choose the nodes of some expressions for `evaluate`, and find the loops that they use.

    Only nodes that determine bounds are chosen, no arguments of loads and calls and no conditions.
    """
    cdef int32_t* order = self.stack
    cdef int32_t i, n, count
    cdef const Node* node
    self.stamp += 1
    count = descending(nest, roots, n_roots, self.seen, self.stamp, order)
    for i in range(n_roots):
        reach(self, roots[i])
    for i in range(count):
        if self.reached[order[i]] == self.stamp:
            reach_operands(self, &nest.nodes[order[i]])
    self.has_mod = 0
    self.n_chosen = 0
    for i in range(count - 1, -1, -1):
        n = order[i]
        node = &nest.nodes[n]
        self.uses[n] = node_uses(self, nest, node)
        if self.reached[n] == self.stamp:
            self.chosen[self.n_chosen] = n
            self.n_chosen += 1
            if node.op == OP_MOD or node.op == OP_FLOORMOD:
                self.has_mod = 1


cdef void evaluate(Analyzer* self, Nest nest, int32_t loop) noexcept nogil:
    """Evaluate the chosen nodes that use the variable of `loop`, or all of them.

    Call it with AT_MINIMUM while all loops are at their minimum, with ALL_NODES after the first
    change of a binding, and then with the loop of each change, so that `of_node` follows the
    bindings. Modular sets stay those of the minimum unless they are exact; TVM does not see a
    division by zero that occurs only there.
    """
    cdef uint64_t bit = loop_bit(nest, loop) if loop >= 0 else 0
    cdef bint sets = self.has_mod and (self.exact or loop == AT_MINIMUM)
    cdef uint8_t before = self.status
    cdef int32_t i, n
    for i in range(self.n_chosen):
        n = self.chosen[i]
        if loop < 0 or self.uses[n] & bit:
            self.of_node[n] = node_bound(self, nest, &nest.nodes[n])
            if sets:
                self.modular_of_node[n] = node_modular(self, nest.nodes, n)
    if loop == AT_MINIMUM:
        self.status = before


cdef Bound bound_of(Analyzer* self, Nest nest, int32_t node) noexcept nogil:
    """Return the bound of an expression under the bindings; the chosen nodes stay."""
    cdef int32_t* order = self.stack
    cdef int32_t i, n, count
    if nest.nodes[node].op == OP_INT:
        return node_bound(self, nest, &nest.nodes[node])
    self.stamp += 1
    count = descending(nest, &node, 1, self.seen, self.stamp, order)
    reach(self, node)
    for i in range(count):
        if self.reached[order[i]] == self.stamp:
            reach_operands(self, &nest.nodes[order[i]])
    for i in range(count - 1, -1, -1):
        n = order[i]
        if self.reached[n] == self.stamp:
            self.of_node[n] = node_bound(self, nest, &nest.nodes[n])
            self.modular_of_node[n] = node_modular(self, nest.nodes, n)
    return self.of_node[node]


# --- bindings


cdef bint reserve(void** data, size_t size) noexcept nogil:
    """Resize an array; without memory its contents and `data` stay."""
    cdef void* moved = realloc(data[0], size)
    if moved == NULL:
        return False
    data[0] = moved
    return True


cdef int analyzer_start(Analyzer* self, Nest nest, bint exact) noexcept nogil:
    """Begin with a nest, all variables unbound; return DONE or NO_MEMORY."""
    cdef size_t room
    cdef int32_t i
    if nest.n_vars > self.room_vars:
        room = <size_t>nest.n_vars * 2
        self.room_vars = 0
        if not (reserve(<void**>&self.of_var, room * sizeof(Bound))
                and reserve(<void**>&self.modular_of_var, room * sizeof(Modular))):
            return NO_MEMORY
        self.room_vars = <int32_t>room
    if nest.n_nodes > self.room_nodes or nest.n_args > self.room_args:
        room = <size_t>nest.n_nodes * 2
        self.room_nodes = 0
        if not (reserve(<void**>&self.of_node, room * sizeof(Bound))
                and reserve(<void**>&self.modular_of_node, room * sizeof(Modular))
                and reserve(<void**>&self.uses, room * sizeof(uint64_t))
                and reserve(<void**>&self.seen, room * sizeof(uint32_t))
                and reserve(<void**>&self.reached, room * sizeof(uint32_t))
                and reserve(<void**>&self.chosen, room * sizeof(int32_t))
                # A walk holds the siblings of the nodes on one path: at most all operands.
                and reserve(<void**>&self.stack, (4 * room + 2 * nest.n_args) * sizeof(int32_t))):
            return NO_MEMORY
        memset(self.seen, 0, room * sizeof(uint32_t))
        memset(self.reached, 0, room * sizeof(uint32_t))
        self.stamp = 0
        self.room_nodes = <int32_t>room
        self.room_args = nest.n_args * 2
    if self.stamp > 0x7FFFFFFF:
        memset(self.seen, 0, <size_t>self.room_nodes * sizeof(uint32_t))
        memset(self.reached, 0, <size_t>self.room_nodes * sizeof(uint32_t))
        self.stamp = 0
    for i in range(nest.n_vars):
        self.of_var[i] = everything(nest.vars[i].code, nest.vars[i].bits)
        self.modular_of_var[i] = modular(1, 0)
    self.exact = exact
    self.follows_025 = nest.follows_025
    self.status = DONE
    self.n_chosen = 0
    return DONE


cdef void analyzer_free(Analyzer* self) noexcept nogil:
    free(self.of_var)
    free(self.modular_of_var)
    free(self.of_node)
    free(self.modular_of_node)
    free(self.uses)
    free(self.seen)
    free(self.reached)
    free(self.chosen)
    free(self.stack)


cdef void bind_min(Analyzer* self, Nest nest, int32_t loop) noexcept nogil:
    """Bind a loop's variable to its minimum (TVM's ``Bind(var, expr)``)."""
    cdef const Loop* one = &nest.loops[loop]
    self.of_var[one.var] = bound_of(self, nest, one.min_node)
    if nest.nodes[one.min_node].op == OP_INT:
        self.modular_of_var[one.var] = modular(0, nest.nodes[one.min_node].value)
    else:
        self.modular_of_var[one.var] = self.modular_of_node[one.min_node]
        if self.modular_of_var[one.var].coeff == NO_SET:
            fail(self, ZERO_DIVISOR)


cdef void bind_range(Analyzer* self, Nest nest, int32_t loop) noexcept nogil:
    """Bind a loop's variable to its range (TVM's ``Bind(var, range)``)."""
    cdef const Loop* one = &nest.loops[loop]
    cdef Bound low, extent
    if one.has_extent and one.extent == 1:
        bind_min(self, nest, loop)
        return
    low = bound_of(self, nest, one.min_node)
    extent = bound_of(self, nest, one.extent_node)
    self.of_var[one.var].low = low.low
    self.of_var[one.var].high = inf_add(self, low.high, inf_add(self, extent.high, -1))
    if self.exact:
        self.modular_of_var[one.var] = modular(1, 0)


cdef int64_t upper_extent(Analyzer* self, Nest nest, int32_t node) noexcept nogil:
    """Return a constant, or the largest value of an expression if it is finite, or else 1."""
    cdef Bound found
    if nest.nodes[node].op == OP_INT:
        return nest.nodes[node].value
    found = bound_of(self, nest, node)
    return found.high if 0 <= found.high < POS_INF else 1


# --- variables in expressions


cdef bint uses_loop(Analyzer* self, Nest nest, int32_t node, int32_t loop) noexcept nogil:
    """Whether the variable of a loop occurs in a chosen node."""
    cdef int32_t i, count, var = nest.loops[loop].var
    cdef const Node* one
    if not self.uses[node] & loop_bit(nest, loop):
        return False
    if nest.loops[loop].depth < EXACT_DEPTH:
        return True
    self.stamp += 1
    count = descending(nest, &node, 1, self.seen, self.stamp, self.stack)
    for i in range(count):
        one = &nest.nodes[self.stack[i]]
        if one.op == OP_VAR and one.value == var:
            return True
    return False


cdef int64_t coefficient(Analyzer* self, Nest nest, int32_t node, int32_t var) noexcept nogil:
    """Return the coefficient of a variable in TVM's stride analysis, 0 without the variable.

    TVM walks the expression from left to right, operands first. After the variable, the first
    product with a constant gives that constant, the first sum gives 1, whichever comes first; a
    second occurrence of the variable sets it to 2 (``GetVarStride`` in per_store_feature.cc). So
    ``i * 4 + j`` has 4 for ``i`` and 1 for ``j``, but ``j + i * 4`` has 4 for both.
    """
    cdef int32_t* stack = self.stack
    cdef int32_t size = 1, i, child, steps = 0
    cdef int64_t stride = 0
    cdef bint seen = False, added = False, multiplied = False
    cdef const Node* one
    stack[0] = node
    while size:
        size -= 1
        steps += 1
        if steps > WALK_LIMIT:
            fail(self, TOO_LARGE)
            return 0
        if stack[size] < 0:  # the operands of this sum or product are done
            one = &nest.nodes[-1 - stack[size]]
            if not seen:
                continue
            if one.op == OP_ADD:
                if not multiplied:
                    added = True
                    stride = 1
            elif not added:
                if nest.nodes[one.a].op == OP_INT:
                    multiplied = True
                    stride = nest.nodes[one.a].value
                elif nest.nodes[one.b].op == OP_INT:
                    multiplied = True
                    stride = nest.nodes[one.b].value
            continue
        one = &nest.nodes[stack[size]]
        if one.op == OP_VAR:
            if one.value == var:
                seen = True
                stride = 2
            continue
        if one.op == OP_ADD or one.op == OP_MUL:
            stack[size] = -1 - stack[size]
            stack[size + 1] = one.b
            stack[size + 2] = one.a
            size += 3
            continue
        i = one.b if has_arguments(one) else 3
        while i > 0:
            i -= 1
            child = operand(nest, one, i)
            if child != NO:
                stack[size] = child
                size += 1
    if not seen:
        return 0
    return stride if added or multiplied else 1


# --- for tests


def bounds(Nest nest, int32_t node, at_range=None, *, bint exact=False):
    """Return the bound of an expression of a nest.

    Parameters
    ----------
    nest : Nest
    node : int
        The expression.
    at_range : sequence of int, optional
        Loops whose variables have their range; all others are at their minimum. The order of
        binding is that of ``PerStoreFeature``: all to the minimum from the outermost, then these to
        their range from the innermost.
    exact : bool, optional
        Whether modular sets follow the ranges; TVM's stay those of the minimum.

    Returns
    -------
    tuple of int
        Smallest and largest value, and the modular set as coefficient and base.

    Raises
    ------
    LimitError
        The expression divides by 0 or is too large.
    """
    cdef Analyzer self
    cdef int status
    cdef int32_t loop
    if not 0 <= node < nest.n_nodes:
        raise IndexError(f"there is no node {node}")
    memset(&self, 0, sizeof(Analyzer))
    status = analyzer_start(&self, nest, exact)
    try:
        if status != DONE:
            raise MemoryError("the program has too many parts")
        for loop in range(nest.n_loops):
            bind_min(&self, nest, loop)
        choose(&self, nest, &node, 1)
        self.has_mod = 1  # the caller wants the modular set
        evaluate(&self, nest, AT_MINIMUM)
        for loop in sorted(at_range or (), reverse=True):
            if not 0 <= loop < nest.n_loops:
                raise IndexError(f"there is no loop {loop}")
            bind_range(&self, nest, loop)
        evaluate(&self, nest, ALL_NODES)
        if self.modular_of_node[node].coeff == NO_SET:
            fail(&self, ZERO_DIVISOR)
        if self.status != DONE:
            raise FormatError(f"node {node} has no bound: it divides by zero")
        return (self.of_node[node].low, self.of_node[node].high,
                self.modular_of_node[node].coeff, self.modular_of_node[node].base)
    finally:
        analyzer_free(&self)


def coefficient_of(Nest nest, int32_t node, int32_t loop):
    """Return the coefficient of a loop's variable in an expression (`coefficient`)."""
    cdef Analyzer self
    if not 0 <= node < nest.n_nodes or not 0 <= loop < nest.n_loops:
        raise IndexError(f"there is no node {node} or no loop {loop}")
    memset(&self, 0, sizeof(Analyzer))
    try:
        if analyzer_start(&self, nest, False) != DONE:
            raise MemoryError("the program has too many parts")
        found = coefficient(&self, nest, node, nest.loops[loop].var)
        if self.status != DONE:
            raise LimitError(f"node {node} is too large to be walked as a tree")
        return found
    finally:
        analyzer_free(&self)
