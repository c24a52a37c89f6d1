"""Loop nests for tests: a builder with operators, and small programs with unusual constructs."""

from __future__ import annotations

from hypothesis import strategies as st

from tunedb.features._nest import BufferKind, Call, ForKind, NestBuilder, Op, StmtKind, Tag

#: DLPack codes and bits of what buffers hold.
DTYPES = [(2, 32), (2, 32), (2, 16), (0, 32), (0, 8), (1, 8), (4, 16), (10, 8), (6, 8), (0, 4)]
_KINDS = [ForKind.SERIAL, ForKind.SERIAL, ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.UNROLLED]
_TAGS = [tag for tag in Tag if tag not in (Tag.TAG_NONE, Tag.TAG_OTHER)]
_INDEX = [
    *(Op.OP_ADD, Op.OP_ADD, Op.OP_SUB, Op.OP_MUL, Op.OP_FLOORDIV, Op.OP_FLOORMOD, Op.OP_DIV),
    *(Op.OP_MOD, Op.OP_MIN, Op.OP_MAX, Op.OP_SHL, Op.OP_SHR, Op.OP_BITAND),
]
_VALUE = [
    *(Op.OP_ADD, Op.OP_MUL, Op.OP_SUB, Op.OP_DIV, Op.OP_FLOORDIV, Op.OP_MIN, Op.OP_MAX),
    *(Op.OP_ADD, Op.OP_MUL, Op.OP_LT, Op.OP_EQ, Op.OP_AND, Op.OP_SHL, Op.OP_BITXOR),
]
_BOOLS = range(Op.OP_EQ, Op.OP_OR + 1)


class Node(int):
    """The number of a node: Python's operators make nodes of its type, numbers are constants."""

    def __new__(cls, build, number, code=0, bits=32):
        self = super().__new__(cls, number)
        self.build, self.code, self.bits = build, code, bits
        return self

    def __add__(self, other):
        return self.build.op(Op.OP_ADD, self, other)

    def __sub__(self, other):
        return self.build.op(Op.OP_SUB, self, other)

    def __mul__(self, other):
        return self.build.op(Op.OP_MUL, self, other)

    def __floordiv__(self, other):
        return self.build.op(Op.OP_FLOORDIV, self, other)

    def __mod__(self, other):
        return self.build.op(Op.OP_FLOORMOD, self, other)

    def __lt__(self, other):
        return self.build.op(Op.OP_LT, self, other, code=6, bits=8)


class Array(int):
    """The number of a buffer: an item is loaded, or stored by an assignment."""

    def __new__(cls, build, number, code, bits):
        self = super().__new__(cls, number)
        self.build, self.code, self.bits = build, code, bits
        return self

    def __getitem__(self, at):
        number = self.build.load(self, self.build.constants(at))
        return Node(self.build, number, self.code, self.bits)

    def __setitem__(self, at, value):
        self.build.store(self, self.build.constants(at), *self.build.constants(value))


class Build(NestBuilder):
    """A builder for programs in few characters, which knows what is open."""

    def __init__(self, *, function=False):
        self.opened = []
        if function:
            self.open("function")

    def open(self, what, *args, **options):
        """Open a loop, block, condition or function; return its number."""
        self.opened.append(getattr(self, f"close_{what}"))
        return getattr(self, f"open_{what}")(*args, **options)

    def close(self, count=1):
        """Close what was opened last."""
        for _ in range(count):
            self.opened.pop()()

    def done(self):
        """Close everything and return the program."""
        self.close(len(self.opened))
        return self.nest

    def loop(self, name, extent, **options):
        """Open a loop and return its variable."""
        return self.var(self.open("loop", name, extent, **options))

    def thread(self, tag, extent, **options):
        """Open a loop that is bound to a thread and return its variable."""
        return self.loop(tag.name, extent, kind=ForKind.THREAD_BINDING, tag=tag, **options)

    def var(self, loop):
        return Node(self, self.loop_var(loop))

    def array(self, name, *shape, kind=BufferKind.BUFFER_PARAMETER, code=2, bits=32, **options):
        return Array(self, self.buffer(name, shape, kind, code, bits, **options), code, bits)

    def op(self, kind, *operands, **type):
        """Return a node of operands, whose type is by default that of the first."""
        operands = self.constants(operands)
        type = {"code": operands[0].code, "bits": operands[0].bits} | type
        return Node(self, self.node(kind, operands, **type), type["code"], type["bits"])

    def call(self, which, arguments, code=2, bits=32, **options):
        return Node(self, super().call(which, arguments, code, bits, **options), code, bits)

    def free_var(self, name, code=0, bits=32):
        return Node(self, super().free_var(name, code, bits), code, bits)

    def constant(self, value, **type):
        if isinstance(value, float):
            return Node(self, self.float_(value, **type), 2)
        return Node(self, self.int_(value, **type), **type)

    def constants(self, values):
        """Return a node or number, or several, as a list of nodes."""
        values = values if isinstance(values, list | tuple) else [values]
        return [one if isinstance(one, Node) else self.constant(one) for one in values]


def with_array(*shape, function=False, **options):
    """Return a builder and its first buffer, A."""
    build = Build(function=function)
    return build, build.array("A", *shape, **options)


class Program:
    """Draws a program into a `NestBuilder`."""

    def __init__(self, draw, tame, fixed):
        self.draw = draw
        self.tame = tame
        self.fixed = fixed or tame
        self.build = NestBuilder()
        self.buffers = []
        self.open = []  # loops around
        self.size = None  # of a free variable
        self.room = 14  # statements and loops that may still come

    def one_of(self, values):
        return self.draw(st.sampled_from(values))

    def number(self, low, high):
        return self.draw(st.integers(low, high))

    # ---- expressions

    def start(self):
        """Draw where a loop starts."""
        if not self.fixed:
            return self.index(1)
        if not self.open:
            return self.build.int_(self.number(-3, 9))
        # TVM simplifies it under its bindings, so it must have one value under them.
        op = self.one_of([Op.OP_ADD, Op.OP_SUB, Op.OP_MUL, Op.OP_FLOORDIV, Op.OP_FLOORMOD])
        left = self.build.loop_var(self.one_of(self.open))
        return self.build.node(op, [left, self.build.int_(self.number(1, 9))])

    def leaf(self):
        kind = self.number(0, 9)
        if kind < 7 and self.open:
            return self.build.loop_var(self.one_of(self.open))
        if kind == 9 and not self.tame:
            return self.free()
        return self.build.int_(self.number(-3, 9))

    def free(self):
        if self.size is None:
            self.size = self.build.free_var("n")
        return self.size

    def symbolic(self):
        """Draw an extent that depends on nothing but a free variable."""
        op = self.one_of([Op.OP_ADD, Op.OP_MUL, Op.OP_MIN, Op.OP_FLOORMOD])
        return self.build.node(op, [self.free(), self.build.int_(self.number(1, 20))])

    def index(self, depth=2):
        """Draw an index, rarely one that is loaded."""
        if depth == 0 or self.number(0, 2) == 0:
            return self.leaf()
        kind = self.number(0, 11)
        if kind == 0 and not self.tame:
            return self.load(self.one_of(self.buffers), depth - 1, code=0)
        if kind == 1:
            test = self.build.node(Op.OP_LT, [self.index(0), self.index(0)], code=6, bits=8)
            return self.build.node(Op.OP_SELECT, [test, self.index(depth - 1), self.index(0)])
        if kind == 2:
            return self.build.node(Op.OP_CAST, [self.index(depth - 1)], bits=self.one_of([8, 64]))
        op = self.one_of(_INDEX)
        left = self.index(depth - 1)
        if op in (Op.OP_ADD, Op.OP_SUB, Op.OP_MIN, Op.OP_MAX):
            return self.build.node(op, [left, self.index(depth - 1)])
        if op in (Op.OP_SHL, Op.OP_SHR):
            return self.build.node(op, [left, self.build.int_(self.number(0, 4))])
        if self.number(0, 5) == 0 and not self.tame:
            return self.build.node(op, [left, self.index(0)])
        return self.build.node(op, [left, self.build.int_(self.one_of([1, 2, 3, 4, 8, 16, -2]))])

    def load(self, buffer, depth=2, code=None):
        number, ndim, dtype = buffer
        found = self.build.load(number, [self.index(depth) for _ in range(ndim)])
        if code is not None and dtype[0] != code:
            found = self.build.node(Op.OP_CAST, [found], code=code, bits=32)
        return found

    def value(self, code, bits, depth=3):
        """Draw a value of a type."""
        kind = self.number(0, 9)
        if depth == 0 or kind < 2:
            return self.load(self.one_of(self.buffers))
        if kind == 2:
            return self.build.int_(7) if code in (0, 1) else self.build.float_(1.5, bits, code)
        if kind == 3:
            which = self.one_of([Call.CALL_OTHER, Call.CALL_IF_THEN_ELSE])
            effects = self.draw(st.booleans())
            arguments = [self.value(code, bits, depth - 1) for _ in range(self.number(0, 2))]
            return self.build.call(which, arguments, code, bits, effects=effects)
        if kind == 4:
            test = self.build.node(Op.OP_NOT, [self.value(6, 8, 0)], code=6, bits=8)
            parts = [self.value(code, bits, depth - 1) for _ in range(2)]
            return self.build.node(Op.OP_SELECT, [test, *parts], code=code, bits=bits)
        op = self.one_of(_VALUE)
        left = self.value(code, bits, depth - 1)
        right = left if kind == 5 else self.value(code, bits, depth - 1)
        lanes = self.one_of([1, 1, 1, 4])
        if op in _BOOLS:
            return self.build.node(op, [left, right], code=6, bits=8, lanes=lanes)
        return self.build.node(op, [left, right], code=code, bits=bits, lanes=lanes)

    # ---- statements

    def buffer(self, kind):
        code, bits = self.one_of(DTYPES)
        shape = [self.number(1, 20) for _ in range(self.one_of([1, 2, 2, 3, 0]))]
        name = self.one_of(["A", "B", "AB", "C"]) + str(self.build.nest.n_buffers)
        number = self.build.buffer(name, shape, kind, code, bits)
        if shape and not self.tame and self.number(0, 5) == 0:
            self.build.set_shape(number, [self.symbolic() for _ in shape])
        self.buffers.append((number, len(shape), (code, bits)))

    def store(self):
        number, ndim, (code, bits) = self.one_of(self.buffers)
        indices = [self.index() for _ in range(ndim)]
        constant = self.number(0, 5) == 0
        value = self.build.float_(0.0) if constant else self.value(code, bits)
        self.build.store(number, indices, value)

    def loop(self):
        low, extent = self.one_of([0, 0, 0, 1, -2]), self.one_of([1, 2, 3, 4, 7, 16, 64])
        bound = self.number(0, 3) == 0
        if not self.tame and not bound and self.number(0, 7) == 0:
            low = (self.start(),)
        if not self.fixed and self.number(0, 7) == 0:
            extent = (self.index(1),)
        kind, tag = self.one_of(_KINDS), Tag.TAG_NONE
        if bound:
            kind, tag = ForKind.THREAD_BINDING, self.one_of(_TAGS)
        unroll = self.one_of([-1, -1, -1, 0, 16, 512])
        name = f"i{len(self.open)}"
        return self.build.open_loop(name, extent, low, kind, tag, unroll)

    def body(self, depth):
        for _ in range(self.number(1, 3)):
            if self.room <= 0:
                return
            self.room -= 1
            kind = self.number(0, 9)
            if kind < 5 and depth < 6:
                self.open.append(self.loop())
                self.body(depth + 1)
                self.build.close_loop()
                self.open.pop()
            elif kind == 5:
                outside = list(self.buffers)
                self.build.open_block("block")
                self.buffer(BufferKind.BUFFER_ALLOCATED)
                self.body(depth)
                self.build.close_block()
                self.buffers = outside
            elif kind == 6:
                self.build.evaluate(self.value(2, 32, 1))
            else:
                self.store()

    def function(self, name):
        self.build.open_function(name)
        self.buffers = []
        for _ in range(self.number(1, 3)):
            self.buffer(BufferKind.BUFFER_PARAMETER)
        self.body(0)
        self.store()
        self.build.close_function()


@st.composite
def nests(draw, *, tame=False, fixed=False):
    """Draw a lowered program of one or two functions.

    All loops of a `fixed` one have constant extents. A `tame` one also has no symbolic extents,
    indices that are loaded, or divisors that may be zero.
    """
    program = Program(draw, tame, fixed)
    for name in ["main", "other"][: draw(st.sampled_from([1, 1, 1, 2]))]:
        program.function(name)
    return program.build.nest


def stores(nest):
    """Return the dump of a nest, and its stores."""
    dump = nest.dump()
    return dump, [one for one in dump["stmts"] if one["kind"] == StmtKind.STMT_STORE]
