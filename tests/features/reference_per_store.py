"""Ansor's per-store features in plain Python, from their definition (docs/features.md).

Written over `Nest.dump()`, a store at a time, everything computed anew at each loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isnan, log2, nan

from reference_bounds import INF, Reference, Refused, coefficient, wrap

from tunedb.features._nest import BufferKind, ForKind, Op, StmtKind, Tag

_FLOAT_CODES = {"tvm": {2}, "ansor": {2, 4, *range(7, 18)}}
_ADDING = (Op.OP_ADD, Op.OP_SUB)
_DIVIDING = (Op.OP_DIV, Op.OP_MOD, Op.OP_FLOORDIV, Op.OP_FLOORMOD)
_COMPARING = (*(Op.OP_MIN, Op.OP_MAX, Op.OP_EQ, Op.OP_NE, Op.OP_LT, Op.OP_LE, Op.OP_GT, Op.OP_GE),)
_BITS = (*(Op.OP_SHL, Op.OP_SHR, Op.OP_BITAND, Op.OP_BITOR, Op.OP_BITXOR), Op.OP_BITNOT)
_KINDS = ("mad", "addsub", "mul", "divmod", "cmp", "mathfunc", "otherfunc")
_TAGS = (
    *(Tag.BLOCK_X, Tag.BLOCK_Y, Tag.BLOCK_Z, Tag.THREAD_X, Tag.THREAD_Y, Tag.THREAD_Z),
    Tag.VTHREAD,
)


def ratio(x, y):
    """Divide as C++ divides doubles."""
    x, y = float(x), float(y)
    if y:
        return x / y
    return nan if x == 0 or isnan(x) else inf if x > 0 else -inf


def at_least_one(x):
    return x if x > 1 else 1.0


@dataclass
class Access:
    """Accesses of a store to a buffer."""

    buffer: int
    kind: str
    patterns: list[list[int]]
    shape: list[int] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)  # by level
    values: dict = field(default_factory=dict)


class PerStore:
    """One program's rows, in one of the two flavours."""

    def __init__(self, dump, flavour, gpu, buffers=5, samples=10, cache_line=64, follows_025=False):
        self.nodes, self.loops = dump["nodes"], dump["loops"]
        self.stmts, self.buffers = dump["stmts"], dump["buffers"]
        self.functions = dump["functions"]
        self.tvm = flavour == "tvm"
        self.floats = _FLOAT_CODES[flavour]
        self.gpu, self.room, self.samples = gpu, buffers, samples
        self.cache_line = cache_line
        self.state = Reference(dump, exact=not self.tvm, follows_025=follows_025)
        self.follows_025 = follows_025
        self.touches = {}  # loop → buffer → elements of each store
        self.counts = {}  # buffer → name → number
        self.found = {}  # buffer → columns
        self.outer = {}
        self.extents = {}

    # ---- small things

    def log(self, x):
        if self.tvm:
            return log2(abs(x) + 1)
        return log2(x + 1) if x >= 0 else -log2(1 - x)

    def element(self, buffer):
        one = self.buffers[buffer]
        return (one["bits"] * (1 if self.follows_025 else one["lanes"]) + 7) // 8

    def upper(self, node):
        if self.nodes[node]["op"] == Op.OP_INT:
            return self.nodes[node]["value"]
        high = self.state.bound(node)[1]
        return high if 0 <= high < INF else 1

    def extent(self, loop):
        """Return an extent: the constant, or 1, or the bound when the loop was entered."""
        one = self.loops[loop]
        if one["has_extent"]:
            return one["extent"]
        if self.tvm:
            return 1
        if loop not in self.extents:
            for other in self.chain(loop)[:-1]:
                self.state.bind_range(other)
            self.extents[loop] = self.upper(one["extent_node"])
        return self.extents[loop]

    def chain(self, loop):
        found = []
        while loop >= 0:
            found.insert(0, loop)
            loop = self.loops[loop]["parent"]
        return found

    def product(self, loops):
        found = 1
        for loop in loops:
            found = wrap(found * self.extent(loop))
        return found

    def operands(self, number):
        node = self.nodes[number]
        every = node.get("arguments", [node["a"], node["b"], node["c"]])
        return [operand for operand in every if operand >= 0]

    def mentions(self, number, var):
        node = self.nodes[number]
        if node["op"] == Op.OP_VAR:
            return node["value"] == var
        return any(self.mentions(one, var) for one in self.operands(number))

    # ---- group 1

    def is_float(self, code):
        return code in self.floats

    def kind(self, node):
        op, code = Op(node["op"]), node["code"]
        if op in _ADDING:
            name = "addsub"
        elif op == Op.OP_MUL:
            name = "mul"
        elif op in _DIVIDING:
            name = "divmod"
        elif op in _COMPARING:
            name = "cmp"
            if not self.tvm:
                code = self.nodes[node["a"]]["code"]
        elif op == Op.OP_CALL:
            if code == 3:
                return None
            name = "otherfunc" if node["c"] == 1 else "mathfunc"
        elif op in _BITS:
            name = "mathfunc"
        elif op in (Op.OP_AND, Op.OP_OR, Op.OP_NOT):
            return "bool_op"
        else:
            return "select_op" if op == Op.OP_SELECT else None
        return f"{'float' if self.is_float(code) else 'int'}_{name}"

    def count(self, number, into, part_of_mad=False):
        """Count an expression as a tree."""
        node = self.nodes[number]
        name = self.kind(node)
        lanes = 1 if self.tvm else node["lanes"]
        product = None
        if name and name.endswith("addsub") and not self.tvm:
            for i, side in enumerate((node["a"], node["b"])):
                other = self.nodes[side]
                same = self.is_float(other["code"]) == self.is_float(node["code"])
                if other["op"] == Op.OP_MUL and same:
                    product = i
                    name = name.replace("addsub", "mad")
                    break
        if name and not part_of_mad:
            into[name] = into.get(name, 0) + lanes
        for i, operand in enumerate(self.operands(number)):
            self.count(operand, into, part_of_mad=i == product)

    def loop_class(self, loop, chain, indices):
        """Say whether the iterations of a loop write other elements, the same, or some of both."""
        var = self.loops[loop]["var"]
        if not any(self.mentions(index, var) for index in indices):
            return "reduce"
        for other in chain:
            self.state.bind_min(other)
        self.state.bind_range(loop)
        elements = 1
        try:
            for index in indices:
                low, high = self.state.bound(index)
                elements = wrap(elements * wrap(high - low + 1))
        except Refused:  # where the others are, the store divides by zero
            return "mixed"
        if elements >= self.extent(loop):
            return "spatial"
        return "mixed" if elements > 1 else "reduce"

    def loop_kind(self, kind, chain, indices):
        loops = [loop for loop in chain if self.loops[loop]["kind"] == kind]
        one_hot = [0.0] * 8
        if not loops:
            one_hot[0] = 1.0
            return [0.0, 0.0, 0.0, *one_hot]
        where = 7
        if not self.tvm:
            classes = [self.loop_class(loop, chain, indices) for loop in chain]
            mine = classes[chain.index(loops[-1])]
            same = [loop for loop, one in zip(chain, classes, strict=True) if one == mine]
            if mine != "mixed":
                first = 1 if mine == "spatial" else 4
                last = same[-1] == loops[-1]
                where = first if last else first + 2 if same[0] == loops[-1] else first + 1
        one_hot[where] = 1.0
        sizes = len(loops), self.product(loops), self.extent(loops[-1])
        return [*(self.log(x) for x in sizes), *one_hot]

    def threads(self, chain):
        found = [float(self.gpu)]
        for tag in _TAGS:
            lengths = [
                self.extent(loop)
                for loop in chain
                if self.loops[loop]["kind"] == ForKind.THREAD_BINDING
                and self.loops[loop]["tag"] == tag
            ]
            length = 1
            if lengths and self.tvm:
                length = lengths[0] if self.gpu else 1
            elif lengths:
                length = lengths[-1]
                if tag == Tag.VTHREAD:
                    length = 1
                    for one in lengths:
                        length = wrap(length * one)
            found.append(self.log(length))
        return found

    # ---- group 2

    def accesses(self, store):
        found = {store["buffer"]: Access(store["buffer"], "write", [store["indices"]])}
        loads = []

        def collect(number):
            for operand in self.operands(number):
                collect(operand)
            if self.nodes[number]["op"] == Op.OP_LOAD and number not in loads:
                loads.append(number)

        collect(store["value"])
        for number in sorted(loads):
            load = self.nodes[number]
            buffer = load["value"]
            if buffer == store["buffer"]:
                found[buffer].kind = "both"
            elif buffer in found:
                found[buffer].patterns.append(load["arguments"])
            else:
                found[buffer] = Access(buffer, "read", [load["arguments"]])
        return list(found.values())

    def regions(self, accesses, chain):
        for loop in chain:
            self.state.bind_min(loop)
        self.state.minima = dict(self.state.bounds) if self.tvm else {}
        for one in accesses:
            one.touched = [0] * len(chain)
            one.shape = [1] * len(self.buffers[one.buffer]["shape"])
        touched = [0] * len(chain)
        for level in reversed(range(len(chain))):
            loop = chain[level]
            self.state.bind_range(loop)
            for one in accesses:
                elements = 1
                for k in range(len(one.shape)):
                    ends = [self.state.bound(pattern[k]) for pattern in one.patterns]
                    width = max(high for _, high in ends) - min(low for low, _ in ends) + 1
                    one.shape[k] = wrap(width)
                    elements = wrap(elements * one.shape[k])
                one.touched[level] = max(0, elements)
                size = wrap(one.touched[level] * self.element(one.buffer))
                touched[level] = wrap(touched[level] + size)
                under = self.touches.setdefault(loop, {}).setdefault(one.buffer, [])
                under.append(one.touched[level])
        return touched

    def stride(self, one, shape, loop):
        var = self.loops[loop]["var"]
        if not shape:
            return 0 if self.tvm else 1
        found = []
        for pattern in one.patterns:
            for k in reversed(range(len(shape))):
                factor = coefficient({"nodes": self.nodes}, pattern[k], var)
                if factor:
                    inner = 1
                    for extent in shape[k + 1 :]:
                        inner = wrap(inner * extent)
                    found.append(wrap(abs(factor) * inner))
                    break
        return min(found, default=0)

    def bytes_under(self, loop):
        return sum(
            float(wrap(sum(elements) * self.element(buffer)))
            for buffer, elements in self.touches[loop].items()
        )

    def reuse(self, one, chain, accesses):
        for level in reversed(range(len(chain))):
            loop = chain[level]
            extent = self.extent(loop)
            var = self.loops[loop]["var"]
            if not any(self.mentions(i, var) for pattern in one.patterns for i in pattern):
                inner = 1.0
                for other in chain[level + 1 :]:
                    inner *= self.extent(other)
                if level < len(chain) - 1:
                    return 0, inner, self.bytes_under(chain[level + 1]), extent
                if self.tvm:
                    return 0, inner, sum(self.element(other.buffer) for other in accesses), extent
                under = self.touches[loop]
                size = sum(self.element(buffer) * len(seen) for buffer, seen in under.items())
                return 0, inner, size, extent
            seen = self.touches[loop][one.buffer]
            if len(seen) >= 2:
                size = self.bytes_under(loop)
                return 1, ratio(min(seen), extent), ratio(size, extent), len(seen) - 1
        return 2, 0.0, 0.0, 0

    def measure(self, one, chain, product, accesses):
        element = self.element(one.buffer)
        shape = [self.upper(node) for node in self.buffers[one.buffer]["shape"]]
        continuous = 1 if self.tvm else element
        for have, full in zip(reversed(one.shape), reversed(shape), strict=True):
            if have == full:
                continuous = wrap(full * element)
                break
        stride, skipped, at = 0, 1, len(chain) - 1
        while at >= 0:
            stride = self.stride(one, shape, chain[at])
            if stride:
                break
            skipped = wrap(skipped * self.extent(chain[at]))
            at -= 1
        reuse, iterations, distance, count = self.reuse(one, chain, accesses)
        lines = unique_lines = 1.0
        unique = 1.0 if self.tvm else float(element)
        if chain:
            unique = float(one.touched[0]) * element
            if not self.tvm:
                unique = float(self.touches[chain[0]][one.buffer][0]) * element
            part = min(1.0, float(stride) * element / self.cache_line)
            lines = at_least_one(ratio(product, skipped) * part)
            unique_lines = at_least_one(ratio(unique, min(self.cache_line, continuous)))
        sizes = [float(wrap(element * product)), unique, lines, unique_lines]
        times = count if count > 0 else 0.5
        one.values = {"lines": lines, "bytes": sizes[0]}
        return [
            *(float(one.kind == kind) for kind in ("read", "write", "both")),
            *(self.log(x) for x in sizes),
            *(float(reuse == kind) for kind in range(3)),
            *(self.log(x) for x in (iterations, distance, count)),
            *(self.log(x / times) for x in sizes),
            self.log(stride if at == len(chain) - 1 else 0),
        ]

    def access_columns(self, accesses, chain, product):
        columns = [self.measure(one, chain, product, accesses) for one in accesses]
        names = [self.buffers[one.buffer]["name"].encode() for one in accesses]
        order = sorted(
            range(len(accesses)),
            key=lambda i: (-accesses[i].values["lines"], -accesses[i].values["bytes"], names[i]),
        )
        found = [value for i in order[: self.room] for value in columns[i]]
        return found + [0.0] * (18 * self.room - len(found))

    # ---- groups 3 to 5

    def curve(self, counts, chain, product, touched):
        operations = sum(counts.get(f"float_{name}", 0) for name in _KINDS)
        if self.tvm:
            each = ratio(wrap(operations * product), product)
        else:
            each = float(operations + counts.get("float_mad", 0))
        points = []
        for level in reversed(range(len(chain))):
            each *= self.extent(chain[level])
            if not self.tvm and touched[level] == 0:
                points.append((each, 0.0))
            else:
                points.append((each, ratio(each, touched[level])))
        found = [0.0] * self.samples
        if not chain or each <= 0:
            return found
        for i in range(self.samples):
            wanted = (i + 1) / self.samples * each
            at = next((p for p, one in enumerate(points) if one[0] >= wanted - 1e-4), None)
            if at is None:  # TVM ends in an error
                break
            here, high = points[at]
            if at:
                before, low = points[at - 1]
                high = low + ratio(high - low, here - before) * (wanted - before)
            found[i] = self.log(high)
        return found

    def allocation(self, buffer, ends):
        one = self.buffers[buffer]
        kind = one["kind"]
        parameter = kind == BufferKind.BUFFER_PARAMETER
        allocated = kind == BufferKind.BUFFER_ALLOCATED and (
            not self.tvm or one["alloc_block"] >= 0
        )
        size = total = 0
        around = 1
        if allocated or (parameter and self.tvm):
            elements = 1
            for node in one["shape"]:
                elements = wrap(elements * self.upper(node))
            loop = -1 if parameter else one["alloc_loop"]
            around = self.product(self.chain(loop)) if loop >= 0 else ends[one["function"]]
            size, total = wrap(elements * self.element(buffer)), wrap(elements * around)
        elif not self.tvm:
            return [0.0] * 4
        inner = self.log(ratio(self.outer[buffer], around)) if buffer in self.outer else 0.0
        return [self.log(size), self.log(total), self.log(around), inner]

    def scope(self, chain, product):
        steps = [self.loops[loop]["auto_unroll"] for loop in chain]
        unroll = next((step for step in reversed(steps) if step > 0), 0)
        return [self.log(product), self.log(len(chain)), self.log(unroll)]

    # ---- a program

    def store(self, store, product):
        chain = self.chain(store["loop"])
        buffer = store["buffer"]
        counts = {}
        self.count(store["value"], counts)
        kept = {} if self.tvm else self.counts.get(buffer, {})
        names = {*kept, *counts}
        kept = {x: wrap(kept.get(x, 0) + counts.get(x, 0) * product) for x in names}
        self.counts[buffer] = kept
        self.outer[buffer] = product
        kinds = (ForKind.VECTORIZED, ForKind.UNROLLED, ForKind.PARALLEL)
        loop_kinds = [self.loop_kind(kind, chain, store["indices"]) for kind in kinds]
        accesses = self.accesses(store)
        touched = self.regions(accesses, chain)
        self.found[buffer] = (
            [
                *(
                    self.log(kept.get(f"{dtype}_{name}", 0))
                    for dtype in ("float", "int")
                    for name in _KINDS
                ),
                *(self.log(kept.get(name, 0)) for name in ("bool_op", "select_op")),
                *(value for columns in loop_kinds for value in columns),
                *self.threads(chain),
                *self.access_columns(accesses, chain, product),
                *self.curve(counts, chain, product, touched),
            ],
            self.scope(chain, product),
        )

    def rows(self):
        """Return the rows as lists of numbers."""
        ends = self.walk()
        found = [
            [*first, *self.allocation(buffer, ends), *last]
            for buffer, (first, last) in self.found.items()
        ]
        width = 57 + 18 * self.room + self.samples
        for buffer, one in enumerate(self.buffers):
            if not self.tvm and buffer not in self.found and one["kind"] == 2:
                found.append([0.0] * width + self.allocation(buffer, ends) + [0.0] * 3)
        return found

    def is_seen(self, stmt):
        if stmt["kind"] != StmtKind.STMT_STORE:
            return False
        constant = self.nodes[stmt["value"]]["op"] in (Op.OP_INT, Op.OP_FLOAT)
        return not (constant and self.tvm)

    def walk(self):
        """Look at all stores; return the product of loops at the end of each function.

        TVM multiplies on the way in and divides on the way out, overflow or not.
        """
        ends = {}
        product, around = 1, []

        def leave(chain):
            nonlocal product
            while around and around != chain[: len(around)]:
                extent = self.extent(around.pop())
                if self.tvm and extent:
                    quotient = abs(product) // abs(extent)
                    product = quotient if (product < 0) == (extent < 0) else -quotient
                else:
                    product = self.product(around)

        def enter(chain):
            nonlocal product
            leave(chain)
            for loop in chain[len(around) :]:
                around.append(loop)
                product = wrap(product * self.extent(loop))

        for number, function in enumerate(self.functions):
            events = [(loop["first_stmt"], 0, i) for i, loop in enumerate(self.loops)]
            mine = range(function["first_loop"], function["end_loop"])
            events = [event for event in events if event[2] in mine]
            mine = range(function["first_stmt"], function["end_stmt"])
            events += [(i, 1, i) for i in mine if self.is_seen(self.stmts[i])]
            for _, is_stmt, i in sorted(events):
                enter(self.chain(self.stmts[i]["loop"] if is_stmt else i))
                if is_stmt:
                    self.store(self.stmts[i], product)
            leave([])
            ends[number] = product
        return ends


def per_store(dump, flavour, gpu, **options):
    """Return the rows of a program as a list of lists."""
    return PerStore(dump, flavour, gpu, **options).rows()
