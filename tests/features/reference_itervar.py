"""AutoTVM's loop features in plain Python, over ``Nest.dump()``.

Written from the definition (docs/features.md), not from the kernel: a dictionary of axes that are
found by their variable, a stack of variables, a recursion over statements and expressions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tunedb.features._nest import ForKind, Op, StmtKind, Tag

SLOTS = 11
_TAGS = {
    Tag.BLOCK_X: 0,
    Tag.BLOCK_Y: 1,
    Tag.BLOCK_Z: 2,
    Tag.THREAD_X: 3,
    Tag.THREAD_Y: 4,
    Tag.THREAD_Z: 5,
    Tag.VTHREAD: 10,
}
_KINDS = {ForKind.UNROLLED: 6, ForKind.VECTORIZED: 7, ForKind.PARALLEL: 8, ForKind.SERIAL: 9}
_LEVELS = {0: 2, 1: 2, 2: 2, 3: 1, 4: 1, 5: 1, 8: 1}
_PAIRS = range(Op.OP_ADD, Op.OP_BITXOR + 1)


def wrap(value):
    """Return an integer as 64 bits hold it."""
    return (value + 2**63) % 2**64 - 2**63


def divide(a, b):
    """Return the quotient as C truncates it, 0 for a division by 0."""
    if b == 0:
        return 0
    size = abs(a) // abs(b)
    return wrap(size if (a < 0) == (b < 0) else -size)


@dataclass
class Axis:
    name: str
    length: int
    level: int
    slot: int
    topdown: int
    bottomup: int = -1
    arithmetic: list = field(default_factory=lambda: [0, 0, 0])
    touch: dict = field(default_factory=dict)  # name → [stride, mod, count, reuse, T_c, T_r]

    @property
    def parallel(self):
        return _LEVELS.get(self.slot, 0)


class Reference:
    def __init__(self, program):
        self.program = program
        self.nodes = program["nodes"]
        self.axes = []
        self.of_variable = {}
        self.stack = []
        self.topdown = 1
        self.counters = {}
        self.body(-1, range(len(program["loops"])), range(len(program["stmts"])))

    def body(self, parent, loops, stmts):
        """Walk over what is directly in a loop, statements and loops in source order."""
        events = [
            (loop["first_stmt"], 0, number)
            for number in loops
            if (loop := self.program["loops"][number])["parent"] == parent
        ]
        events += [(n, 1, n) for n in stmts if self.program["stmts"][n]["loop"] == parent]
        for _, is_stmt, number in sorted(events):
            if is_stmt:
                self.stmt(self.program["stmts"][number])
            else:
                self.loop(number)

    def loop(self, number):
        loop = self.program["loops"][number]
        slot = _TAGS.get(loop["tag"]) if loop["tag"] else _KINDS[loop["kind"]]
        var = loop["var"]
        known_vthread = slot == _TAGS[Tag.VTHREAD] and var in self.of_variable
        if not known_vthread:
            self.stack.append(var)
            length = loop["extent"] if loop["has_extent"] else -1
            self.topdown = wrap(self.topdown * length)
            name = self.program["vars"][var]["name"]
            axis = Axis(name, length, len(self.stack), slot, self.topdown)
            self.of_variable[var] = axis
            self.axes.append(axis)
        self.expr(loop["min_node"])
        self.expr(loop["extent_node"])
        inner = range(number + 1, loop["end_loop"])
        self.body(number, inner, range(loop["first_stmt"], loop["end_stmt"]))
        if not known_vthread:
            self.leave()

    def leave(self):
        var = self.stack[-1]
        axis = self.of_variable[var]
        for name, pattern in axis.touch.items():
            place = 2 if pattern[0] != 0 else 3
            for outer in self.stack:
                touch = self.of_variable[outer].touch
                if name in touch:
                    touch[name][place] = wrap(touch[name][place] * axis.length)
        self.stack.pop()
        if axis.length:
            self.topdown = divide(self.topdown, axis.length)
        axis.bottomup = max([-1] + [wrap(t[2] * t[3]) for t in axis.touch.values()])
        above = [self.of_variable[outer] for outer in self.stack]
        if above and above[-1].parallel == axis.parallel + 1:
            for name, pattern in axis.touch.items():
                for outer in above:
                    if outer.parallel == axis.parallel + 1 and name in outer.touch:
                        outer.touch[name][4:] = [wrap(-pattern[2]), wrap(-pattern[3])]
        for pattern in axis.touch.values():
            if pattern[4] < 0:
                pattern[4:] = [
                    divide(pattern[2], wrap(-pattern[4])),
                    divide(pattern[3], wrap(-pattern[5])),
                ]

    def stmt(self, stmt):
        if stmt["kind"] == StmtKind.STMT_STORE:
            self.access(stmt["buffer"], stmt["indices"])
        self.expr(stmt["value"])
        if stmt["kind"] == StmtKind.STMT_STORE:
            for index in stmt["indices"]:
                self.expr(index)

    def children(self, number):
        node = self.nodes[number]
        if "arguments" in node:
            return node["arguments"]
        if node["op"] == Op.OP_SELECT:
            return [node["a"], node["b"], node["c"]]
        if node["op"] in _PAIRS or node["op"] in (Op.OP_LET, Op.OP_RAMP):
            return [node["a"], node["b"]]
        if node["op"] in (Op.OP_CAST, Op.OP_NOT, Op.OP_BITNOT, Op.OP_BROADCAST):
            return [node["a"]]
        return []

    def expr(self, number):
        node = self.nodes[number]
        if node["op"] == Op.OP_LOAD:
            self.access(node["value"], node["arguments"])
        elif node["code"] in (2, 4) and self.stack:
            counts = self.of_variable[self.stack[-1]].arithmetic
            if node["op"] in (Op.OP_ADD, Op.OP_SUB):
                counts[0] += 1
            elif node["op"] == Op.OP_MUL:
                counts[1] += 1
            elif node["op"] in (Op.OP_DIV, Op.OP_MOD):
                counts[2] += 1
        for child in self.children(number):
            self.expr(child)

    def access(self, buffer, indices):
        name = self.program["buffers"][buffer]["name"]
        count = self.counters.get(name, 0)
        self.counters[name] = count + 1
        strides = self.strides(indices)
        for var in self.stack:
            pattern = [strides.get(var, 0), -1, 1, 1, 0, 0]
            self.of_variable[var].touch[f"{name}_{count}"] = pattern

    def strides(self, indices):
        found = {}
        waiting = 1

        def walk(number):
            nonlocal waiting
            node = self.nodes[number]
            if node["op"] == Op.OP_VAR and node["value"] not in found:
                found[node["value"]] = waiting
                waiting = 1
            if node["op"] == Op.OP_MUL:
                left, right = self.nodes[node["a"]], self.nodes[node["b"]]
                if left["op"] == Op.OP_VAR and right["op"] == Op.OP_INT:
                    waiting = right["value"]
            for child in self.children(number):
                walk(child)

        for index in indices:
            walk(index)
        return found


def features(program, take_log=False):
    """Return the rows of a dumped program, as ``get_itervar_feature`` of a nest."""
    scaled = log if take_log else int
    return [
        (
            ("_itervar_", axis.name),
            (
                "_attr_",
                scaled(axis.length),
                axis.level,
                scaled(axis.topdown),
                scaled(axis.bottomup),
                *(int(i == axis.slot) for i in range(SLOTS)),
            ),
            ("_arith_", *map(scaled, axis.arithmetic)),
            *((name, *map(scaled, axis.touch[name])) for name in sorted(axis.touch)),
        )
        for axis in Reference(program).axes
    ]


def log(value):
    return math.log2(value + 1) if value >= 0 else -math.log2(1 - value)
