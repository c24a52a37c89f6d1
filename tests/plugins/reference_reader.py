"""Programs as lines of text, from TVM's objects and from the flat form: they must be equal."""

from __future__ import annotations

import struct

from tvm import ir, tirx
from tvm.tirx import expr as E

from tunedb.features._nest import Op

BINARY = {
    "Add": Op.OP_ADD, "Sub": Op.OP_SUB, "Mul": Op.OP_MUL, "Div": Op.OP_DIV, "Mod": Op.OP_MOD,
    "FloorDiv": Op.OP_FLOORDIV, "FloorMod": Op.OP_FLOORMOD, "Min": Op.OP_MIN, "Max": Op.OP_MAX,
    "EQ": Op.OP_EQ, "NE": Op.OP_NE, "LT": Op.OP_LT, "LE": Op.OP_LE, "GT": Op.OP_GT, "GE": Op.OP_GE,
    "And": Op.OP_AND, "Or": Op.OP_OR, "LShift": Op.OP_SHL, "RShift": Op.OP_SHR,
    "BitwiseAnd": Op.OP_BITAND, "BitwiseOr": Op.OP_BITOR, "BitwiseXor": Op.OP_BITXOR,
}  # fmt: skip
#: Calls up to TVM 0.26, nodes later.
BITS = {
    "tirx.shift_left": Op.OP_SHL, "tirx.shift_right": Op.OP_SHR, "tirx.bitwise_and": Op.OP_BITAND,
    "tirx.bitwise_or": Op.OP_BITOR, "tirx.bitwise_xor": Op.OP_BITXOR,
    "tirx.bitwise_not": Op.OP_BITNOT,
}  # fmt: skip
TAGS = ["", *(f"{k}Idx.{d}" for k in ("block", "thread") for d in "xyz")]


#: Buffers are variables from TVM 0.26 on, and objects of their own before.
HAS_VARS = hasattr(tirx, "BufferType")
VAR, CALL = (ir.Var, ir.Call) if HAS_VARS else (tirx.Var, tirx.Call)


def buffer_of(node):
    """Return the buffer of a load or region, which 0.27 calls its source."""
    return node.source if hasattr(node, "source") else node.buffer


class FromTVM:
    """The lines of a module, walked object by object in Python."""

    def __init__(self, mod):
        self.lines = []
        self.bound = {}  # iterators of blocks: what is bound to them
        for name, function in mod.functions.items():
            self.lines.append(f"function {name.name_hint}")
            self.names = {}
            parameters = (
                [one for one in function.params if isinstance(one.ty, tirx.BufferType)]
                if HAS_VARS
                else [function.buffer_map[one] for one in function.params]
            )
            for one in parameters:
                self.buffer(one, "parameter")
            self.stmt(function.body)

    def buffer(self, var, what):
        one = var.ty if HAS_VARS else var
        shape = [self.expr(extent) for extent in one.shape]
        scope = str(one.storage_scope if HAS_VARS else one.scope()) or "global"
        name = one.dtype.dtype if HAS_VARS else one.dtype
        self.lines.append(f"{what} {var.name} {name} {scope} {shape}")

    def stmt(self, stmt):
        match type(stmt).__name__:
            case "For":
                tag = str(stmt.thread_binding.thread_tag) if stmt.thread_binding is not None else ""
                pragma = stmt.annotations.get("pragma_auto_unroll_max_step", -1)
                low, extent = self.expr(stmt.min), self.expr(stmt.extent)
                notes = len(stmt.annotations) > 0
                what = f"{stmt.loop_var.name} {low} {extent} {int(stmt.kind)}"
                self.lines.append(f"for {what} {tag} {notes} {pragma}")
                self.stmt(stmt.body)
                self.lines.append("end")
            case "BufferStore":
                indices = [self.expr(index) for index in stmt.indices]
                self.lines.append(f"{stmt.buffer.name}{indices} = {self.expr(stmt.value)}")
            case "SeqStmt":
                for one in stmt.seq:
                    self.stmt(one)
            case "SBlockRealize":
                self.block(stmt)
            case "IfThenElse":
                self.lines.append(f"if {self.expr(stmt.condition)}")
                self.stmt(stmt.then_case)
                if stmt.else_case is not None:
                    self.stmt(stmt.else_case)
            case "Evaluate":
                self.lines.append(f"evaluate {self.expr(stmt.value)}")
            case "AttrStmt" | "While":
                self.lines.append(
                    f"other {self.expr(getattr(stmt, 'value', None) or stmt.condition)}"
                )
                self.stmt(stmt.body)
            case "Bind":
                self.lines.append(f"let {stmt.var.name} {self.expr(stmt.value)}")
            case "AllocBuffer":
                pass  # outside of blocks; its name is in the accesses
            case other:
                raise NotImplementedError(other)

    def block(self, realize):
        block = realize.block
        predicate = self.expr(realize.predicate)
        values = [self.expr(value) for value in realize.iter_values]
        kinds = [(int(one.iter_type), self.expr(one.dom.extent)) for one in block.iter_vars]
        self.lines.append(f"block {block.name_hint} {predicate} {kinds} {values}")
        for one, value in zip(block.iter_vars, values, strict=True):
            self.bound[one.var] = value
        for buffer in block.alloc_buffers:
            self.buffer(buffer, "allocate")
        for one in block.match_buffers:
            self.buffer(one.buffer, "match")
            region = [(self.expr(r.min), self.expr(r.extent)) for r in one.source.region]
            self.lines.append(f"of {buffer_of(one.source).name} {region}")
        if block.init is not None:
            self.lines.append("init")
            self.stmt(block.init)
            self.lines.append("update")
        self.stmt(block.body)
        self.lines.append("end block")

    def expr(self, node):
        name = type(node).__name__
        match node:
            case tirx.IntImm():
                return f"{int(node.value)}:{dtype(node)}"
            case tirx.FloatImm():
                return f"{float(node.value)!r}:{dtype(node)}"
            case _ if isinstance(node, VAR):
                if node in self.bound:
                    return self.bound[node]
                if HAS_VARS and isinstance(node.ty, tirx.BufferType):
                    return "?"  # an argument of an instruction
                return f"{node.name}:{dtype(node)}"
            case _ if isinstance(node, CALL):
                op = BITS.get(getattr(node.op, "name", None))
                word = "call" if op is None else int(op)
                return f"{word}({self.several(node.args)}):{dtype(node)}"
            case tirx.Select():
                parts = (node.condition, node.true_value, node.false_value)
                return f"select({self.several(parts)}):{dtype(node)}"
            case tirx.Cast():
                return f"cast({self.expr(node.value)}):{dtype(node)}"
            case tirx.Ramp():
                return f"ramp({self.several((node.base, node.stride, node.lanes))}):{dtype(node)}"
            case tirx.Broadcast():
                return f"broadcast({self.several((node.value, node.lanes))}):{dtype(node)}"
            case E.Not():
                return f"not({self.expr(node.a)}):{dtype(node)}"
        if name in BINARY:
            return f"{int(BINARY[name])}({self.several((node.a, node.b))}):{dtype(node)}"
        if hasattr(node, "indices"):
            return f"{buffer_of(node).name}[{self.several(node.indices)}]:{dtype(node)}"
        return "?"

    def several(self, nodes):
        return ", ".join(self.expr(node) for node in nodes)


def dtype(node):
    if not hasattr(node, "ty"):  # TVM 0.25
        return str(node.dtype).replace("void", "") or "handle"
    found = getattr(node.ty, "dtype", None)
    text = str(found) if isinstance(node.ty, ir.PrimType) else "handle"
    return text or "handle"  # void has no name


CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}


class FromNest:
    """The same lines from a program in the flat form."""

    def __init__(self, nest):
        self.dump = d = nest.dump()
        self.lines = []
        for f, function in enumerate(d["functions"]):
            self.lines.append(f"function {function['name']}")
            for buffer in d["buffers"]:
                if buffer["kind"] == 1 and buffer["function"] == f:
                    self.lines.append(self.buffer(buffer, "parameter"))
            self._statements(function)

    def _statements(self, function):
        """Add each statement, and loops and blocks where they begin and end."""
        d, first, end = self.dump, function["first_stmt"], function["end_stmt"]
        waiting = [
            ("loop", i, d["loops"][i]) for i in range(function["first_loop"], function["end_loop"])
        ]
        waiting += [
            ("block", i, block)
            for i, block in enumerate(d["blocks"])
            if first <= block["first_stmt"] <= block["end_stmt"] <= end
        ]
        waiting.sort(key=lambda one: (one[2]["first_stmt"], self._depth(one[0], one[2])))
        opened, inited = [], {}
        for s in range(first, end + 1):
            while opened and opened[-1][2]["end_stmt"] <= s:
                self.lines.append("end" if opened.pop()[0] == "loop" else "end block")
            if s == end:
                break
            while waiting and waiting[0][2]["first_stmt"] == s:
                opened.append(waiting.pop(0))
                kind, number, node = opened[-1]
                self.lines += [self._loop(node)] if kind == "loop" else self._block(number, node)
            stmt = d["stmts"][s]
            block = stmt["block"]
            if stmt["init"] and block not in inited:
                inited[block] = "init"
                self.lines.append("init")
            elif not stmt["init"] and inited.get(block) == "init":
                inited[block] = "update"
                self.lines.append("update")
            self.lines.append(self._stmt(stmt))

    def _depth(self, kind, node):
        """Return the number of loops and blocks around a loop or block."""
        names = ("parent", "block") if kind == "loop" else ("loop", "parent")
        depth = 0
        for number, nodes in zip(map(node.get, names), ("loops", "blocks"), strict=True):
            while number >= 0:
                depth, number = depth + 1, self.dump[nodes][number]["parent"]
        return depth

    def _loop(self, loop):
        tag = "vthread.x" if loop["tag"] == 7 else TAGS[loop["tag"]]
        return (
            f"for {self.dump['vars'][loop['var']]['name']} {self.expr(loop['min_node'])} "
            f"{self.expr(loop['extent_node'])} {loop['kind']} {tag} "
            f"{bool(loop['annotated'])} {loop['auto_unroll']}"
        )

    def _block(self, number, block):
        """Yield the line of a block, and those of its buffers."""
        d = self.dump
        iters = d["iters"][block["first_iter"] : block["first_iter"] + block["n_iter"]]
        kinds = [(one["kind"], f"{one['extent']}:int32") for one in iters]
        values = [self.expr(one["value"]) for one in iters]
        yield f"block {block['name']} {self.expr(block['predicate'])} {kinds} {values}"
        own = [buffer for buffer in d["buffers"] if buffer["alloc_block"] == number]
        for buffer in own:
            if buffer["kind"] == 2:
                yield self.buffer(buffer, "allocate")
        for buffer in own:
            if buffer["kind"] == 3:
                yield self.buffer(buffer, "match")
                region = [self.expr(node) for node in buffer["region"]]
                pairs = list(zip(region[::2], region[1::2], strict=True))
                yield f"of {d['buffers'][buffer['source']]['name']} {pairs}"

    def _stmt(self, stmt):
        value = self.expr(stmt["value"])
        if stmt["kind"] == 0:
            indices = [self.expr(node) for node in stmt["indices"]]
            return f"{self.dump['buffers'][stmt['buffer']]['name']}{indices} = {value}"
        if stmt["kind"] == 3:
            return f"let {self.dump['vars'][stmt['var']]['name']} {value}"
        return f"{['', 'evaluate', 'if', '', 'other'][stmt['kind']]} {value}"

    def buffer(self, buffer, what):
        shape = [self.expr(node) for node in buffer["shape"]]
        name = f"{CODES[buffer['code']]}{buffer['bits']}"
        return f"{what} {buffer['name']} {name} {buffer['scope']} {shape}"

    def expr(self, number):
        node = self.dump["nodes"][number]
        op = node["op"]
        name = "handle" if node["code"] == 3 else CODES[node["code"]]
        if node["code"] not in (3, 6):
            name += str(node["bits"])
        if node["lanes"] > 1:
            name += f"x{node['lanes']}"
        parts = (
            ", ".join(
                self.expr(one)
                for one in node.get("arguments", (node["a"], node["b"], node["c"]))
                if one >= 0
            )
            if op not in (1, 2, 4)
            else ""
        )
        match op:
            case Op.OP_INT:
                return f"{node['value']}:{name}"
            case Op.OP_FLOAT:
                return f"{struct.unpack('d', struct.pack('q', node['value']))[0]!r}:{name}"
            case Op.OP_VAR:
                return f"{self.dump['vars'][node['value']]['name']}:{name}"
            case Op.OP_LOAD:
                return f"{self.dump['buffers'][node['value']]['name']}[{parts}]:{name}"
            case Op.OP_UNKNOWN | Op.OP_STRING:
                return "?"
        words = {6: "call", 7: "cast", 30: "not", 32: "select", 33: "ramp", 34: "broadcast"}
        return f"{words.get(op, op)}({parts}):{name}"
