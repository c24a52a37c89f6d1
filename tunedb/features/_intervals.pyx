# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Bounds and modular sets of an operation from those of its operands.

The rules are those of TVM's ``ConstIntBoundAnalyzer`` and ``ModularSetAnalyzer`` (``src/sym``,
earlier ``src/arith``). Infinity is the largest 64-bit integer, minus infinity its negative; sums
and products stop there.
"""

from libc.stdint cimport int32_t, uint64_t

from tunedb.features._bounds cimport (
    NEG_INF, POS_INF, ZERO_DIVISOR, Analyzer, Bound, Modular, fail, wrap_add, wrap_mul,
)
from tunedb.features._nest cimport (
    NO, OP_ADD, OP_BROADCAST, OP_BITAND, OP_CAST, OP_DIV, OP_FLOORDIV, OP_FLOORMOD, OP_INT, OP_LET,
    OP_MAX, OP_MIN, OP_MOD, OP_MUL, OP_RAMP, OP_SELECT, OP_SHL, OP_SHR, OP_SUB, OP_VAR, Nest, Node,
)

cdef enum:
    CODE_INT = 0
    CODE_UINT = 1
    CODE_BOOL = 6
    SMALL_BITS = 31  # sums and products of smaller numbers cannot overflow


cdef inline int64_t negative(int64_t x) noexcept nogil:
    return <int64_t>(0 - <uint64_t>x)


cdef inline bint is_small(int64_t x) noexcept nogil:
    return -(<int64_t>1 << SMALL_BITS) < x < <int64_t>1 << SMALL_BITS


# --- numbers and infinities


cdef int64_t inf_add(Analyzer* self, int64_t x, int64_t y) noexcept nogil:
    if is_small(x) and is_small(y):
        return x + y
    if x == POS_INF or x == NEG_INF:
        if y == negative(x):
            fail(self, ZERO_DIVISOR)
        return x
    if y == POS_INF or y == NEG_INF:
        return y
    if y > 0 and x > POS_INF - y:
        return POS_INF
    if y < 0 and x < NEG_INF - y:
        return NEG_INF
    return wrap_add(x, y)


cdef int64_t inf_mul(int64_t x, int64_t y) noexcept nogil:
    cdef bint over
    if is_small(x) and is_small(y):
        return x * y
    if y == 0:
        return 0
    if y > 0:
        over = x < NEG_INF / y or x > POS_INF / y
    elif y == -1:
        over = x < NEG_INF
    else:
        over = x > NEG_INF / y or x < POS_INF / y
    if not over:
        return wrap_mul(x, y)
    return POS_INF if (x > 0) == (y > 0) else NEG_INF


cdef inline int64_t floor_div(int64_t x, int64_t y) noexcept nogil:
    cdef int64_t quotient = x / y
    return quotient - 1 if x % y != 0 and (x < 0) != (y < 0) else quotient


cdef int64_t inf_div(Analyzer* self, int64_t x, int64_t y, bint floors) noexcept nogil:
    if y == 0:  # the end of an empty bound
        fail(self, ZERO_DIVISOR)
        return x
    if x == POS_INF or x == NEG_INF:
        return x if y > 0 else negative(x)
    if y == -1:
        return negative(x)
    return floor_div(x, y) if floors else x / y


cdef int64_t inf_shift_left(int64_t x, int64_t y) noexcept nogil:
    cdef int bits = 0
    cdef uint64_t rest = <uint64_t>(negative(x) if x < 0 else x)
    if x == POS_INF or x == NEG_INF:
        return x
    while rest:
        bits += 1
        rest >>= 1
    return <int64_t>(<uint64_t>x << (y & 63)) if y < 64 - bits else POS_INF


cdef inline int64_t inf_shift_right(int64_t x, int64_t y) noexcept nogil:
    return x if x == POS_INF or x == NEG_INF else x >> (y & 63)


cdef inline int64_t gcd(int64_t x, int64_t y) noexcept nogil:
    """Return the greatest common divisor; that of a number and 0 is the number."""
    cdef int64_t rest
    if x < 0:
        x = negative(x)
    if y < 0:
        y = negative(y)
    while y:
        rest = x % y
        x = y
        y = rest
    return x


# --- bounds


cdef inline Bound bound(int64_t low, int64_t high) noexcept nogil:
    cdef Bound made
    made.low = low
    made.high = high
    return made


cdef inline Bound finite_ends(int64_t low, int64_t high) noexcept nogil:
    """Return a bound that infinities do not make empty (TVM's MakeBound)."""
    return bound(POS_INF - 1 if low == POS_INF else low, NEG_INF + 1 if high == NEG_INF else high)


cdef inline Bound union(Bound a, Bound b) noexcept nogil:
    return bound(min(a.low, b.low), max(a.high, b.high))


cdef inline Bound common(Bound a, Bound b) noexcept nogil:
    return bound(max(a.low, b.low), min(a.high, b.high))


cdef Bound everything(uint8_t code, uint8_t bits) noexcept nogil:
    """Return the range of a type."""
    cdef int value_bits = bits - (code == CODE_INT)
    cdef Bound made
    if code == CODE_BOOL:
        return bound(0, 1)
    if code != CODE_INT and code != CODE_UINT or value_bits >= 63:
        return bound(0 if code == CODE_UINT else NEG_INF, POS_INF)
    made.high = (<int64_t>1 << value_bits) - 1 if value_bits >= 0 else 0
    made.low = 0 if code == CODE_UINT else -made.high - 1
    return made


cdef inline Bound corners(int64_t p, int64_t q, int64_t r, int64_t s) noexcept nogil:
    return bound(min(min(p, q), min(r, s)), max(max(p, q), max(r, s)))


cdef Bound product(Bound a, Bound b) noexcept nogil:
    return corners(inf_mul(a.low, b.low), inf_mul(a.high, b.high),
                   inf_mul(a.low, b.high), inf_mul(a.high, b.low))


cdef Bound quotients(Analyzer* self, Bound a, Bound b, bint floors) noexcept nogil:
    return corners(inf_div(self, a.low, b.low, floors), inf_div(self, a.high, b.high, floors),
                   inf_div(self, a.low, b.high, floors), inf_div(self, a.high, b.low, floors))


cdef Bound quotient(Analyzer* self, const Node* node, Bound a, Bound b, bint floors) noexcept nogil:
    """Divide by a bound that may contain 0, but not as its upper end."""
    cdef Bound below, above, all = everything(node.code, node.bits)
    if b.low > 0 or b.high < 0:
        return quotients(self, a, b, floors)
    if node.code != CODE_INT:
        return quotients(self, a, bound(b.low if b.low else 1, b.high if b.high else -1), floors)
    below = bound(b.low, -1) if b.low < 0 else all
    above = bound(1, b.high) if b.high > 0 else all
    below = quotients(self, a, below, floors)
    above = quotients(self, a, above, floors)
    return finite_ends(min(below.low, above.low), max(below.high, above.high))


cdef Bound divisor(Analyzer* self, Bound b) noexcept nogil:
    """Return the bound of a divisor, assuming that programs do not divide by 0."""
    if b.low == 0:
        if b.high < 1:
            fail(self, ZERO_DIVISOR)
            return bound(1, 1)
        b.low = 1
    return b


cdef Bound remainder(Analyzer* self, const Node* node, bint floors) noexcept nogil:
    cdef Bound a = self.of_node[node.a]
    cdef Bound b = divisor(self, self.of_node[node.b])
    cdef Bound found, tight
    cdef int64_t cap, step, base
    if b.low <= 0:
        if not floors:
            return everything(node.code, node.bits)
        return common(finite_ends(min(0, inf_add(self, b.low, 1)), max(0, inf_add(self, b.high, -1))),
                      everything(node.code, node.bits))
    cap = inf_add(self, b.high, -1)
    if a.low >= 0:
        found = a if a.high < b.low else finite_ends(0, min(a.high, cap))
    elif floors:
        found = finite_ends(0, cap)
    elif a.high < 0:
        found = a if a.low > negative(b.low) else finite_ends(max(a.low, negative(cap)), 0)
    else:
        found = finite_ends(max(a.low, negative(cap)), min(a.high, cap))
    if b.low != b.high:
        return found
    if self.modular_of_node[node.a].coeff == NO_SET:
        fail(self, ZERO_DIVISOR)
        return found
    # The remainder of step * x + base by a multiple of step is base again, up to multiples.
    step = gcd(self.modular_of_node[node.a].coeff, b.low)
    if step <= 1:
        return found
    base = self.modular_of_node[node.a].base % step
    if base < 0:
        base += step
    tight = finite_ends(base, b.low - step + base)
    if self.follows_025:
        return tight
    if not floors and a.low < 0:
        tight.low = -(b.low - step + (step - base) % step)
        if a.high < 0:
            tight.high = -((step - base) % step)
    return common(found, tight)


cdef Bound shifted(Analyzer* self, const Node* node) noexcept nogil:
    cdef Bound a = self.of_node[node.a]
    cdef Bound b = self.of_node[node.b]
    if node.op == OP_SHR:
        return corners(inf_shift_right(a.low, b.low), inf_shift_right(a.high, b.high),
                       inf_shift_right(a.low, b.high), inf_shift_right(a.high, b.low))
    if a.low < 0 or b.low < 0:
        return everything(node.code, node.bits)
    return corners(inf_shift_left(a.low, b.low), inf_shift_left(a.high, b.high),
                   inf_shift_left(a.low, b.high), inf_shift_left(a.high, b.low))


cdef Bound masked(const Node* node, Bound a, Bound b) noexcept nogil:
    if a.low >= 0 and b.low >= 0:
        return finite_ends(0, min(a.high, b.high))
    if b.low >= 0:
        return finite_ends(0, b.high)
    if a.low >= 0:
        return finite_ends(0, a.high)
    return everything(node.code, node.bits)


cdef Bound ramp(Analyzer* self, Nest nest, const Node* node) noexcept nogil:
    cdef Bound base = self.of_node[node.a]
    cdef Bound steps = bound(0, 0)
    cdef Bound last
    if node.c != NO and nest.nodes[node.c].op == OP_INT:
        last = bound(nest.nodes[node.c].value - 1, nest.nodes[node.c].value - 1)
    else:
        last = bound(node.lanes - 1, node.lanes - 1)
    steps = product(last, self.of_node[node.b])
    last = bound(inf_add(self, base.low, steps.low), inf_add(self, base.high, steps.high))
    return union(base, last)


cdef Bound node_bound(Analyzer* self, Nest nest, const Node* node) noexcept nogil:
    """Return the bound of a node from those of its operands."""
    cdef uint8_t op = node.op
    cdef Bound* of_node = self.of_node
    cdef Bound a, b
    if op == OP_INT:
        if node.value == POS_INF:
            return bound(POS_INF - 1, POS_INF)
        if node.value <= NEG_INF:
            return bound(NEG_INF, NEG_INF + 1)
        return bound(node.value, node.value)
    if op == OP_VAR:
        return self.of_var[node.value]
    if op == OP_CAST:
        return common(of_node[node.a], everything(node.code, node.bits))
    if op == OP_BROADCAST:
        return of_node[node.a]
    if op == OP_LET:
        return of_node[node.b]
    if op == OP_SELECT:
        return union(of_node[node.b], of_node[node.c])
    if op == OP_RAMP:
        return ramp(self, nest, node)
    if not is_arithmetic(op):
        return everything(node.code, node.bits)
    a = of_node[node.a]
    b = of_node[node.b]
    if op == OP_ADD:
        return bound(inf_add(self, a.low, b.low), inf_add(self, a.high, b.high))
    if op == OP_MUL:
        return product(a, b)
    if op == OP_SUB:
        return bound(inf_add(self, a.low, negative(b.high)), inf_add(self, a.high, negative(b.low)))
    if op == OP_MIN:
        return bound(min(a.low, b.low), min(a.high, b.high))
    if op == OP_MAX:
        return bound(max(a.low, b.low), max(a.high, b.high))
    if op == OP_FLOORDIV or op == OP_DIV:
        return quotient(self, node, a, divisor(self, b), op == OP_FLOORDIV)
    if op == OP_FLOORMOD or op == OP_MOD:
        return remainder(self, node, op == OP_FLOORMOD)
    if op == OP_BITAND:
        return masked(node, a, b)
    return shifted(self, node)


# --- modular sets

#: Deepest nesting of operators that is folded.
cdef enum:
    MOST_FOLDED = 16


cdef Modular modular(int64_t coeff, int64_t base) noexcept nogil:
    cdef Modular made
    if coeff < 0:
        coeff = negative(coeff)
        base = negative(base)
    made.coeff = coeff
    if coeff != 0:
        base %= coeff
        if base < 0:
            base = wrap_add(base, coeff)
    made.base = base
    return made


cdef inline Modular no_set() noexcept nogil:
    """Return the set of a division by zero: TVM ends in an error if it reads the set."""
    cdef Modular made
    made.coeff = NO_SET
    made.base = 0
    return made


cdef Modular modular_union(Modular a, Modular b) noexcept nogil:
    cdef int64_t coeff
    if a.coeff == NO_SET or b.coeff == NO_SET:
        return no_set()
    coeff = gcd(a.coeff, b.coeff)
    if coeff == 0:
        return a if a.base == b.base else modular(1, 0)
    if a.base % coeff == b.base % coeff:
        return modular(coeff, a.base % coeff)
    return modular(gcd(gcd(a.base % coeff, b.base % coeff), coeff), a.base % coeff)


cdef bint is_constant(const Node* nodes, int32_t number, int depth, int64_t* value) noexcept nogil:
    """Tell whether an expression has constants alone, and compute it as TVM folds it."""
    cdef const Node* node = &nodes[number]
    cdef uint8_t op = node.op
    cdef int64_t a, b
    if op == OP_INT:
        value[0] = node.value
        return True
    if depth == 0 or op < OP_ADD or op > OP_MAX:
        return False
    if not (is_constant(nodes, node.a, depth - 1, &a) and is_constant(nodes, node.b, depth - 1, &b)):
        return False
    if op == OP_ADD:
        value[0] = wrap_add(a, b)
    elif op == OP_SUB:
        value[0] = wrap_add(a, negative(b))
    elif op == OP_MUL:
        value[0] = wrap_mul(a, b)
    elif op == OP_MIN or op == OP_MAX:
        value[0] = min(a, b) if op == OP_MIN else max(a, b)
    elif b == 0 or b == -1:  # the least number / -1 overflows
        return False
    elif op == OP_DIV:
        value[0] = a / b
    elif op == OP_MOD:
        value[0] = a % b
    elif op == OP_FLOORDIV:
        value[0] = floor_div(a, b)
    else:
        value[0] = a - floor_div(a, b) * b
    return True


cdef bint is_not_negative(Analyzer* self, const Node* nodes, int32_t number) noexcept nogil:
    """Tell whether TVM proves it: by the bound, or for a constant that its simplifier folds."""
    cdef int64_t value = 0
    if self.of_node[number].low >= 0:
        return True
    return is_constant(nodes, number, MOST_FOLDED, &value) and value >= 0


cdef Modular modular_quotient(
        Analyzer* self, const Node* nodes, int32_t left, int64_t value, bint floors) noexcept nogil:
    cdef Modular a = self.modular_of_node[left]
    if value == 0 or a.coeff == NO_SET:
        return no_set()
    if value == -1:
        return modular(a.coeff, 0) if a.base == 0 else modular(1, 0)
    if a.coeff % value == 0:
        if a.base == 0:
            return modular(a.coeff / value, 0)
        # Truncation rounds down only numbers that are proven not to be negative.
        if a.base > 0 and value > 0 and (floors or is_not_negative(self, nodes, left)):
            return modular(a.coeff / value, a.base / value)
    return modular(1, 0)


cdef Modular modular_remainder(
        Analyzer* self, const Node* nodes, int32_t left, int64_t value, bint floors) noexcept nogil:
    cdef Modular a = self.modular_of_node[left]
    cdef int64_t coeff
    if value == 0 or a.coeff == NO_SET:
        return no_set()
    coeff = gcd(a.coeff, value)
    if coeff == 1 or a.base % coeff == 0 or (
            a.base > 0 and (floors or is_not_negative(self, nodes, left))):
        return modular(coeff, a.base % coeff)
    return modular(1, 0)


cdef Modular node_modular(Analyzer* self, const Node* nodes, int32_t number) noexcept nogil:
    """Return the modular set of a node from those of its operands."""
    cdef const Node* node = &nodes[number]
    cdef uint8_t op = node.op
    cdef Modular a, b
    cdef int64_t power
    if op == OP_INT:
        return modular(0, node.value)
    if op == OP_VAR:
        return self.modular_of_var[node.value]
    if op == OP_CAST:
        return self.modular_of_node[node.a]
    if op == OP_LET:
        return self.modular_of_node[node.b]
    if op == OP_SELECT:
        return modular_union(self.modular_of_node[node.b], self.modular_of_node[node.c])
    if not is_arithmetic(op):
        return modular(1, 0)
    a = self.modular_of_node[node.a]
    b = self.modular_of_node[node.b]
    if b.coeff == NO_SET or a.coeff == NO_SET and (op <= OP_MUL or op == OP_SHL):
        return no_set()
    if op == OP_ADD:
        return modular(gcd(a.coeff, b.coeff), wrap_add(a.base, b.base))
    if op == OP_SUB:
        return modular(gcd(a.coeff, b.coeff), wrap_add(a.base, negative(b.base)))
    if op == OP_MUL:
        return modular(
            gcd(wrap_mul(a.coeff, b.coeff), gcd(wrap_mul(a.coeff, b.base), wrap_mul(a.base, b.coeff))),
            wrap_mul(a.base, b.base))
    if op == OP_MIN or op == OP_MAX:
        return modular_union(a, b)
    if b.coeff != 0:
        return modular(1, 0)
    if op == OP_DIV or op == OP_FLOORDIV:
        return modular_quotient(self, nodes, node.a, b.base, op == OP_FLOORDIV)
    if op == OP_MOD or op == OP_FLOORMOD:
        return modular_remainder(self, nodes, node.a, b.base, op == OP_FLOORMOD)
    if op == OP_SHL:
        return modular(<int64_t>(<uint64_t>a.coeff << (b.base & 63)),
                       <int64_t>(<uint64_t>a.base << (b.base & 63)))
    if op == OP_SHR:
        power = <int64_t>(<uint64_t>1 << (b.base & 63))
        return modular_quotient(self, nodes, node.a, power, True)
    power = wrap_add(b.base, 1)
    if power > 0 and power & (power - 1) == 0:
        return modular_remainder(self, nodes, node.a, power, True)
    return modular(1, 0)
