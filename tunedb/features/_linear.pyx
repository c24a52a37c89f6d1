# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Linear forms of index expressions: sums of loops, quotients and remainders with coefficients.

The reader substitutes the bindings of a block's iterators into its indices without simplifying
them, so this module simplifies indices such as ``(i * 256 + t * 2 + v) // 32`` to
``i * 8 + t // 16``. The rules are those of TVM's simplifiers for constant divisors
(``src/arith/canonical_simplify.cc``, ``SplitDivConst``): multiples of the divisor leave the
numerator, and terms that cannot reach the common divisor of the rest are dropped.

A form with a number beyond ``UNBOUNDED`` stays unsimplified.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free

from tunedb.features._memory cimport grown
from tunedb.features._nest cimport *

UNBOUNDED = 1 << 40

cdef enum:
    THREAD_BITS = 54  # first bit of threads; those before are depths of loops
    NO_MEMORY = 1  # a value of `failed`
    TOO_MANY_TERMS = 2


cdef void forms_free(Forms* self) noexcept nogil:
    free(self.atoms)
    free(self.terms)
    self.atoms = NULL
    self.terms = NULL
    self.room_atoms = self.room_terms = self.n_atoms = self.n_terms = 0


cdef inline int64_t clipped(int64_t value) noexcept nogil:
    if value > UNBOUNDED:
        return UNBOUNDED
    if value < -UNBOUNDED:
        return -UNBOUNDED
    return value


cdef inline int64_t times(int64_t a, int64_t b) noexcept nogil:
    """Return a product, clipped; both factors are at most UNBOUNDED."""
    cdef double product = <double>a * <double>b
    if product > <double>UNBOUNDED:
        return UNBOUNDED
    if product < -<double>UNBOUNDED:
        return -UNBOUNDED
    return a * b


cdef inline int64_t floor_div(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t quotient = a / b
    return quotient - 1 if (a % b != 0 and (a < 0) != (b < 0)) else quotient


cdef inline int64_t gcd(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t rest
    if a < 0:
        a = -a
    if b < 0:
        b = -b
    while b != 0:
        rest = a % b
        a = b
        b = rest
    return a


cdef int32_t new_atom(Forms* self, uint8_t kind, int32_t source) noexcept nogil:
    cdef Atom* atom
    cdef void* moved = grown(self.atoms, &self.room_atoms, self.n_atoms + 1, sizeof(Atom))
    if moved == NULL:
        self.failed = NO_MEMORY
        return 0
    self.atoms = <Atom*>moved
    atom = &self.atoms[self.n_atoms]
    atom.kind = kind
    atom.code = 0
    atom.bits = 32
    atom.source = source
    atom.first_term = atom.n_terms = 0
    atom.base = 0
    atom.divisor = 1
    atom.low = -UNBOUNDED
    atom.high = UNBOUNDED
    atom.uses = 0
    atom.node = NO
    self.n_atoms += 1
    return self.n_atoms - 1


cdef int32_t keep_terms(Forms* self, const Linear* form) noexcept nogil:
    """Copy the terms of a form into the pool and return the place of the first."""
    cdef int32_t first = self.n_terms
    cdef int32_t i
    cdef void* moved = grown(self.terms, &self.room_terms, first + form.n, sizeof(Term))
    if moved == NULL:
        self.failed = NO_MEMORY
        return 0
    self.terms = <Term*>moved
    for i in range(form.n):
        self.terms[first + i] = form.terms[i]
    self.n_terms = first + form.n
    return first


cdef bint same_atom(Forms* self, int32_t a, int32_t b) noexcept nogil:
    """Whether two atoms, of any statements, are the same function of the same loops."""
    cdef Atom* x = &self.atoms[a]
    cdef Atom* y = &self.atoms[b]
    cdef int32_t i
    if a == b:
        return True
    if x.kind != y.kind or x.source != y.source or x.divisor != y.divisor:
        return False
    if x.base != y.base or x.n_terms != y.n_terms:
        return False
    for i in range(x.n_terms):
        if self.terms[x.first_term + i].coefficient != self.terms[y.first_term + i].coefficient:
            return False
        if not same_atom(self, self.terms[x.first_term + i].atom, self.terms[y.first_term + i].atom):
            return False
    return True


cdef int32_t loop_atom(Forms* self, Nest nest, int32_t loop) noexcept nogil:
    cdef Loop* found = &nest.loops[loop]
    cdef int32_t i, atom
    for i in range(self.first_atom, self.n_atoms):
        if self.atoms[i].kind == ATOM_LOOP and self.atoms[i].source == loop:
            return i
    atom = new_atom(self, ATOM_LOOP, loop)
    if self.failed:
        return atom
    self.atoms[atom].bits = nest.vars[found.var].bits
    self.atoms[atom].uses = loop_bit(found)
    if found.has_min and found.has_extent and found.extent > 0:
        self.atoms[atom].low = clipped(found.min)
        self.atoms[atom].high = clipped(clipped(found.min) + clipped(found.extent) - 1)
    return atom


cdef uint64_t loop_bit(const Loop* loop) noexcept nogil:
    """Return the bit of a loop among those around a statement.

    Loops that are bound to one thread share a bit, wherever they are; the others have a bit for
    their depth, and all of the deepest share the last one.
    """
    if loop.tag != TAG_NONE:
        return <uint64_t>1 << (THREAD_BITS + loop.tag)
    return <uint64_t>1 << (loop.depth if loop.depth < THREAD_BITS else THREAD_BITS)


cdef int32_t opaque_atom(Forms* self, Nest nest, int32_t node, int64_t low, int64_t high) noexcept nogil:
    cdef int32_t i, atom
    cdef Node* found = &nest.nodes[node]
    for i in range(self.first_atom, self.n_atoms):
        if self.atoms[i].kind != ATOM_OPAQUE:
            continue
        if self.atoms[i].source == node:
            return i
        # A variable has a node for each of its uses.
        if found.op == OP_VAR and nest.nodes[self.atoms[i].source].op == OP_VAR and (
                nest.nodes[self.atoms[i].source].value == found.value):
            return i
    atom = new_atom(self, ATOM_OPAQUE, node)
    if self.failed:
        return atom
    self.atoms[atom].code = found.code
    self.atoms[atom].bits = found.bits
    self.atoms[atom].low = low
    self.atoms[atom].high = high
    self.atoms[atom].uses = uses_of(self, nest, node)
    return atom


cdef uint64_t uses_of(Forms* self, Nest nest, int32_t node) noexcept nogil:
    """Return the loops that occur in an expression of the input program."""
    cdef Node* found = &nest.nodes[node]
    cdef uint64_t uses = 0
    cdef int32_t i, loop
    if node < 0:
        return 0
    if found.op == OP_VAR:
        if nest.vars[found.value].kind == VAR_LOOP:
            loop = nest.vars[found.value].owner
            if self.loops[loop].fate == MERGED:
                loop = self.loops[loop].into
            return 0 if self.loops[loop].is_constant else loop_bit(&nest.loops[loop])
        if nest.vars[found.value].kind == VAR_LET:
            return uses_of(self, nest, nest.vars[found.value].node)
        return 0
    if found.op in (OP_LOAD, OP_CALL, OP_SHUFFLE, OP_UNKNOWN):
        for i in range(found.b):
            uses |= uses_of(self, nest, nest.args[found.a + i])
        return uses
    if found.a >= 0:
        uses = uses_of(self, nest, found.a)
    if found.b >= 0:
        uses |= uses_of(self, nest, found.b)
    if found.c >= 0:
        uses |= uses_of(self, nest, found.c)
    return uses


cdef void add_term(Forms* self, Linear* out, int32_t atom, int64_t coefficient) noexcept nogil:
    """Add coefficient * atom."""
    cdef int32_t i, k
    if coefficient == 0:
        return
    for i in range(out.n):
        if out.terms[i].atom == atom:
            out.terms[i].coefficient += coefficient
            if out.terms[i].coefficient == 0:
                for k in range(i, out.n - 1):
                    out.terms[k] = out.terms[k + 1]
                out.n -= 1
            return
    if out.n == MAX_TERMS:
        self.failed = TOO_MANY_TERMS
        return
    out.terms[out.n].atom = atom
    out.terms[out.n].coefficient = coefficient
    out.n += 1


cdef void add_scaled(Forms* self, Linear* out, const Linear* more, int64_t factor) noexcept nogil:
    """Add factor * more."""
    cdef int32_t i
    out.base = clipped(out.base + times(more.base, factor))
    for i in range(more.n):
        add_term(self, out, more.terms[i].atom, times(more.terms[i].coefficient, factor))


cdef void range_of(Forms* self, const Linear* form, int64_t* low, int64_t* high) noexcept nogil:
    """Write the least and the largest value, or -UNBOUNDED and UNBOUNDED."""
    cdef int32_t i
    plain_range(self, form, low, high)
    if high[0] < UNBOUNDED:
        for i in range(self.n_constraints):
            high[0] = min(high[0], constrained(self, form, &self.constraints[i]))


cdef void plain_range(Forms* self, const Linear* form, int64_t* low, int64_t* high) noexcept nogil:
    cdef int64_t least = form.base, most = form.base, c
    cdef int32_t i
    cdef Atom* atom
    for i in range(form.n):
        atom = &self.atoms[form.terms[i].atom]
        c = form.terms[i].coefficient
        if atom.low <= -UNBOUNDED or atom.high >= UNBOUNDED:
            least, most = -UNBOUNDED, UNBOUNDED
            break
        least = clipped(least + times(c, atom.low if c > 0 else atom.high))
        most = clipped(most + times(c, atom.high if c > 0 else atom.low))
    if least <= -UNBOUNDED or most >= UNBOUNDED:
        least, most = -UNBOUNDED, UNBOUNDED
    low[0] = least
    high[0] = most


cdef int64_t constrained(Forms* self, const Linear* form, const Linear* negative) noexcept nogil:
    """Return the largest value of a form while another one is negative.

    negative = k * form + rest and negative <= -1, so k * form <= -1 - min(rest).
    """
    cdef Linear rest
    cdef int64_t k, low, high
    cdef int32_t i
    if form.n == 0:
        return UNBOUNDED
    for i in range(negative.n):
        if negative.terms[i].atom == form.terms[0].atom:
            k = negative.terms[i].coefficient / form.terms[0].coefficient
            if k <= 0 or negative.n + form.n > MAX_TERMS:
                return UNBOUNDED
            rest = negative[0]
            add_scaled(self, &rest, form, -k)
            plain_range(self, &rest, &low, &high)
            return UNBOUNDED if low <= -UNBOUNDED else floor_div(-1 - low, k)
    return UNBOUNDED


cdef void begin(Forms* self, Nest nest, int32_t predicate) noexcept nogil:
    """Begin a statement, which runs if a predicate of its block holds."""
    self.first_atom = self.n_atoms
    self.n_constraints = 0
    add_constraints(self, nest, predicate)


cdef void add_constraints(Forms* self, Nest nest, int32_t node) noexcept nogil:
    """Add the constraints of a predicate of the form ``a < b and ...``."""
    cdef Linear form, other
    cdef Node* found
    if node < 0 or self.n_constraints == MAX_CONSTRAINTS:
        return
    found = &nest.nodes[node]
    if found.op == OP_AND:
        add_constraints(self, nest, found.a)
        add_constraints(self, nest, found.b)
    elif found.op == OP_LT and is_integer(&nest.nodes[found.a]):
        linear_of(self, nest, found.a, &form)
        linear_of(self, nest, found.b, &other)
        add_scaled(self, &form, &other, -1)
        if self.n_constraints < MAX_CONSTRAINTS and not self.failed:
            self.constraints[self.n_constraints] = form
            self.n_constraints += 1


cdef void take_atom(Forms* self, Linear* out, int32_t atom) noexcept nogil:
    out.base = 0
    out.n = 0
    add_term(self, out, atom, 1)


cdef void linear_of(Forms* self, Nest nest, int32_t node, Linear* out) noexcept nogil:
    """Write the linear form of an integer expression of the input program."""
    cdef Node* found = &nest.nodes[node]
    cdef Linear other
    cdef int32_t loop
    out.base = 0
    out.n = 0
    if self.failed:
        return
    if found.op == OP_INT and -UNBOUNDED < found.value < UNBOUNDED:
        out.base = found.value
    elif found.op == OP_VAR and nest.vars[found.value].kind == VAR_LOOP:
        loop = nest.vars[found.value].owner
        if self.loops[loop].fate == MERGED:
            loop = self.loops[loop].into
        if self.loops[loop].is_constant:
            out.base = clipped(nest.loops[loop].min)
        else:
            take_atom(self, out, loop_atom(self, nest, loop))
    elif found.op == OP_ADD or found.op == OP_SUB:
        linear_of(self, nest, found.a, out)
        linear_of(self, nest, found.b, &other)
        add_scaled(self, out, &other, 1 if found.op == OP_ADD else -1)
    elif found.op == OP_MUL:
        product(self, nest, node, out)
    elif found.op in (OP_FLOORDIV, OP_FLOORMOD, OP_DIV, OP_MOD):
        quotient(self, nest, node, out)
    elif found.op == OP_CAST and is_integer(&nest.nodes[found.a]):
        linear_of(self, nest, found.a, out)
    elif found.op == OP_MIN or found.op == OP_MAX:
        extreme(self, nest, node, out)
    else:
        take_atom(self, out, opaque_atom(self, nest, node, -UNBOUNDED, UNBOUNDED))
    if self.failed == TOO_MANY_TERMS:
        self.failed = 0
        take_atom(self, out, opaque_atom(self, nest, node, -UNBOUNDED, UNBOUNDED))


cdef inline bint is_integer(Node* node) noexcept nogil:
    return node.code <= 1 and node.lanes == 1


cdef void product(Forms* self, Nest nest, int32_t node, Linear* out) noexcept nogil:
    cdef Linear a, b
    linear_of(self, nest, nest.nodes[node].a, &a)
    linear_of(self, nest, nest.nodes[node].b, &b)
    out.base = 0
    out.n = 0
    if b.n == 0:
        add_scaled(self, out, &a, b.base)
    elif a.n == 0:
        add_scaled(self, out, &b, a.base)
    else:
        take_atom(self, out, opaque_atom(self, nest, node, -UNBOUNDED, UNBOUNDED))


cdef void extreme(Forms* self, Nest nest, int32_t node, Linear* out) noexcept nogil:
    """Take the operand that a min or max always equals, or the whole as an atom."""
    cdef bint is_min = nest.nodes[node].op == OP_MIN
    cdef Linear a, b, difference
    cdef int64_t low, high, a_low, a_high, b_low, b_high
    linear_of(self, nest, nest.nodes[node].a, &a)
    linear_of(self, nest, nest.nodes[node].b, &b)
    difference = a
    add_scaled(self, &difference, &b, -1)
    range_of(self, &difference, &low, &high)
    if high <= 0:
        out[0] = a if is_min else b
        return
    if low >= 0:
        out[0] = b if is_min else a
        return
    range_of(self, &a, &a_low, &a_high)
    range_of(self, &b, &b_low, &b_high)
    if is_min:
        low = min(a_low, b_low)
        high = min(a_high, b_high)
    else:
        low = max(a_low, b_low)
        high = max(a_high, b_high)
    if low <= -UNBOUNDED or high >= UNBOUNDED:
        low, high = -UNBOUNDED, UNBOUNDED
    take_atom(self, out, opaque_atom(self, nest, node, low, high))


cdef void quotient(Forms* self, Nest nest, int32_t node, Linear* out) noexcept nogil:
    """Split floordiv or floormod, and truncating ones if the numerator is not negative."""
    cdef uint8_t op = nest.nodes[node].op
    cdef Linear numerator, divisor
    cdef int64_t low, high
    linear_of(self, nest, nest.nodes[node].a, &numerator)
    linear_of(self, nest, nest.nodes[node].b, &divisor)
    range_of(self, &numerator, &low, &high)
    if divisor.n > 0 or divisor.base <= 0 or (op in (OP_DIV, OP_MOD) and low < 0):
        take_atom(self, out, opaque_atom(self, nest, node, -UNBOUNDED, UNBOUNDED))
        return
    divided(self, &numerator, divisor.base, op == OP_FLOORDIV or op == OP_DIV,
            nest.nodes[node].bits, out)


cdef void divided(Forms* self, Linear* numerator, int64_t c, bint is_div, uint8_t bits, Linear* out) noexcept nogil:
    """Write floordiv(numerator, c) or floormod(numerator, c) for c > 0."""
    cdef Linear whole, rest, small
    cdef int64_t low, high, g
    cdef int32_t i
    whole.n = rest.n = 0
    whole.base = floor_div(numerator.base, c)
    rest.base = numerator.base - whole.base * c
    for i in range(numerator.n):
        if numerator.terms[i].coefficient % c == 0:
            whole.terms[whole.n] = numerator.terms[i]
            whole.terms[whole.n].coefficient /= c
            whole.n += 1
        else:
            rest.terms[rest.n] = numerator.terms[i]
            rest.n += 1
    range_of(self, &rest, &low, &high)
    if low > -UNBOUNDED and floor_div(low, c) == floor_div(high, c):
        if is_div:
            out[0] = whole
            out.base += floor_div(low, c)
        else:
            out[0] = rest
            out.base -= floor_div(low, c) * c
        return
    g = common_factor(self, &rest, c)
    small.n = 0
    small.base = rest.base - floor_div(rest.base, g) * g
    rest.base = floor_div(rest.base, g)
    split_small(&rest, &small, g)
    if is_div:
        out[0] = whole
        add_term(self, out, ratio_atom(self, &rest, c / g, True, bits), 1)
    else:
        take_atom(self, out, ratio_atom(self, &rest, c / g, False, bits))
        out.terms[0].coefficient = g
        add_scaled(self, out, &small, 1)


cdef void split_small(Linear* rest, Linear* small, int64_t g) noexcept nogil:
    """Move the terms that g does not divide to `small`, and divide the others by it."""
    cdef int32_t i, kept = 0
    for i in range(rest.n):
        if rest.terms[i].coefficient % g != 0:
            small.terms[small.n] = rest.terms[i]
            small.n += 1
        else:
            rest.terms[kept] = rest.terms[i]
            rest.terms[kept].coefficient /= g
            kept += 1
    rest.n = kept


cdef int64_t common_factor(Forms* self, const Linear* rest, int64_t c) noexcept nogil:
    """Return the largest g that divides c such that the terms it does not divide stay below it."""
    cdef int64_t best = 1, g, low, high
    cdef Linear small
    cdef int32_t i, k
    for i in range(rest.n):
        g = gcd(rest.terms[i].coefficient, c)
        if g <= best:
            continue
        small.n = 0
        small.base = rest.base - floor_div(rest.base, g) * g
        for k in range(rest.n):
            if rest.terms[k].coefficient % g != 0:
                small.terms[small.n] = rest.terms[k]
                small.n += 1
        range_of(self, &small, &low, &high)
        if 0 <= low and high < g:
            best = g
    return best


cdef int32_t ratio_atom(Forms* self, const Linear* numerator, int64_t c, bint is_div, uint8_t bits) noexcept nogil:
    """Return the atom of floordiv or floormod of a form by a constant."""
    cdef uint8_t kind = ATOM_DIV if is_div else ATOM_MOD
    cdef int32_t i, k, atom
    cdef int64_t low, high
    cdef bint equal
    for i in range(self.first_atom, self.n_atoms):
        if self.atoms[i].kind != kind or self.atoms[i].divisor != c:
            continue
        equal = self.atoms[i].n_terms == numerator.n and self.atoms[i].base == numerator.base
        for k in range(numerator.n if equal else 0):
            if (self.terms[self.atoms[i].first_term + k].atom != numerator.terms[k].atom
                    or self.terms[self.atoms[i].first_term + k].coefficient
                    != numerator.terms[k].coefficient):
                equal = False
                break
        if equal:
            return i
    range_of(self, numerator, &low, &high)
    atom = new_atom(self, kind, NO)
    if self.failed:
        return atom
    self.atoms[atom].first_term = keep_terms(self, numerator)
    self.atoms[atom].n_terms = numerator.n
    self.atoms[atom].base = numerator.base
    self.atoms[atom].divisor = c
    self.atoms[atom].bits = bits
    for i in range(numerator.n):
        self.atoms[atom].uses |= self.atoms[numerator.terms[i].atom].uses
    if not is_div:
        self.atoms[atom].low = 0
        self.atoms[atom].high = high if 0 <= low and high < c else c - 1
    elif low > -UNBOUNDED:
        self.atoms[atom].low = floor_div(low, c)
        self.atoms[atom].high = floor_div(high, c)
    return atom
