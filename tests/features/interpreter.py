"""An interpreter of programs in the flat form that records which elements they access."""

from __future__ import annotations

from tunedb.features._nest import Call, Op

_ARITHMETIC = {
    Op.OP_ADD: lambda a, b: a + b,
    Op.OP_SUB: lambda a, b: a - b,
    Op.OP_MUL: lambda a, b: a * b,
    Op.OP_FLOORDIV: lambda a, b: a // b,
    Op.OP_FLOORMOD: lambda a, b: a % b,
    Op.OP_DIV: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    Op.OP_MOD: lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
    Op.OP_MIN: min,
    Op.OP_MAX: max,
    Op.OP_LT: lambda a, b: a < b,
    Op.OP_LE: lambda a, b: a <= b,
    Op.OP_GT: lambda a, b: a > b,
    Op.OP_GE: lambda a, b: a >= b,
    Op.OP_EQ: lambda a, b: a == b,
    Op.OP_NE: lambda a, b: a != b,
    Op.OP_AND: lambda a, b: a and b,
    Op.OP_OR: lambda a, b: a or b,
}


class Interpreter:
    """A run of one program of constant extents, statement by statement.

    Its `accesses` are the buffer, the indices, and the iteration of the loops around its
    allocation, in the order of the program: a store before its loads.
    """

    def __init__(self, nest):
        self.dump = nest.dump()
        self.values = {}
        self.threads = {}
        self.accesses = []
        for function in self.dump["functions"]:
            self._body(self._top(function, None), function["first_stmt"], function["end_stmt"])

    def _top(self, function, parent):
        loops = self.dump["loops"]
        if parent is None:
            first, end = function["first_loop"], function["end_loop"]
        else:
            first, end = parent + 1, loops[parent]["end_loop"]
        found = []
        while first < end:
            found.append(first)
            first = loops[first]["end_loop"]
        return found

    def _body(self, loops, stmt, end):
        inside = {
            self.dump["loops"][loop]["first_stmt"]: loop
            for loop in reversed(loops)
            if self.dump["loops"][loop]["end_stmt"] > self.dump["loops"][loop]["first_stmt"]
        }
        while stmt < end:
            if stmt in inside:
                self._loop(inside[stmt])
                stmt = self.dump["loops"][inside[stmt]]["end_stmt"]
            else:
                self._stmt(self.dump["stmts"][stmt])
                stmt += 1

    def _loop(self, number):
        loop = self.dump["loops"][number]
        tag = loop["tag"]
        known = self.threads.get(tag) if tag else None
        values = range(loop["min"], loop["min"] + loop["extent"]) if known is None else [known]
        for value in values:
            self.values[loop["var"]] = value
            if tag:
                self.threads[tag] = value
            self._body(self._top(None, number), loop["first_stmt"], loop["end_stmt"])
        if tag and known is None:
            del self.threads[tag]

    def _stmt(self, stmt):
        block = self.dump["blocks"][stmt["block"]] if stmt["block"] >= 0 else None
        if block is not None and block["predicate"] >= 0 and not self.value(block["predicate"]):
            return
        if stmt["kind"] == 0:
            self._access(stmt["buffer"], stmt["indices"])
            self._loads(stmt["value"])

    def _loads(self, number):
        node = self.dump["nodes"][number]
        if "arguments" in node:
            if node["op"] == Op.OP_LOAD:
                self._access(node["value"], node["arguments"])
            for one in node["arguments"]:
                self._loads(one)
            return
        for part in ("a", "b", "c"):
            if node[part] >= 0:
                self._loads(node[part])

    def _access(self, number, indices):
        buffer = self.dump["buffers"][number]
        around, loop = [], buffer["alloc_loop"]
        while loop >= 0:
            around.append(self.values[self.dump["loops"][loop]["var"]])
            loop = self.dump["loops"][loop]["parent"]
        self.accesses.append(
            (buffer["name"], tuple(self.value(index) for index in indices), tuple(around))
        )

    def value(self, number):
        """Return the value of an integer expression."""
        node = self.dump["nodes"][number]
        if node["op"] == Op.OP_INT:
            return node["value"]
        if node["op"] == Op.OP_VAR:
            return self.values[node["value"]]
        if node["op"] == Op.OP_CAST:
            return self.value(node["a"])
        if node["op"] == Op.OP_SELECT:
            return self.value(node["b"] if self.value(node["a"]) else node["c"])
        if node["op"] == Op.OP_CALL and node["value"] == Call.CALL_IF_THEN_ELSE:
            condition, first, second = node["arguments"]
            return self.value(first if self.value(condition) else second)
        return _ARITHMETIC[Op(node["op"])](self.value(node["a"]), self.value(node["b"]))
