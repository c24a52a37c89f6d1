"""Modules as TVM 0.13 stored them: node lists made by hand."""


class Nodes:
    """A node list; a number among the attributes refers to a node, a text is a literal."""

    def __init__(self):
        self.nodes = [{"type_key": ""}]

    def add(self, key, **attrs):
        text = {name: str(value) for name, value in attrs.items()}
        return self._add({"type_key": key, "attrs": {"span": "0", **text}})

    def _add(self, node):
        self.nodes.append(node)
        return len(self.nodes) - 1

    def text(self, text):
        return self._add({"type_key": "runtime.String", "repr_str": text})

    def array(self, *items):
        return self._add({"type_key": "Array", "data": list(items)})

    def map(self, **items):
        keys, data = list(items), list(items.values())
        return self._add({"type_key": "Map", "keys": keys, "data": data})

    def integer(self, value, dtype="int32"):
        return self.add("IntImm", dtype=dtype, value=str(value))

    def real(self, value):
        return self.add("FloatImm", dtype="float32", value=str(value))

    def var(self, name, dtype="int32"):
        type_ = self.add("PrimType", dtype=dtype)
        return self.add("tir.Var", dtype=dtype, name=self.text(name), type_annotation=type_)

    def call(self, name, *args, dtype="float32"):
        op = self._add({"type_key": "Op", "repr_str": f"tir.{name}"})
        return self.add("tir.Call", op=op, args=self.array(*args), dtype=dtype)

    def binary(self, kind, a, b):
        return self.add(f"tir.{kind}", a=a, b=b, dtype="float32")

    def buffer(self, name, shape, strides=(), offset=None, dtype="float32", alignment="64"):
        element = self.add("PrimType", dtype=dtype)
        pointer = self.add("PointerType", element_type=element, storage_scope=self.text("global"))
        name = self.text(name)
        data = self.add("tir.Var", dtype="handle", name=name, type_annotation=pointer)
        return self.add(
            "tir.Buffer",
            **{"data": data, "dtype": dtype, "name": name, "shape": self.array(*shape)},
            **{"strides": self.array(*strides), "axis_separators": self.array()},
            **{"elem_offset": self.integer(0) if offset is None else offset},
            **{"data_alignment": alignment, "offset_factor": "1", "buffer_type": "1"},
        )

    def data_of(self, buffer):
        return int(self.nodes[buffer]["attrs"]["data"])

    def load(self, buffer, *indices):
        return self.add("tir.BufferLoad", buffer=buffer, indices=self.array(*indices))

    def store(self, buffer, value, *indices):
        return self.add("tir.BufferStore", buffer=buffer, value=value, indices=self.array(*indices))

    def region(self, buffer, *points):
        one = [self.range(point, self.integer(1)) for point in points]
        return self.add("tir.BufferRegion", buffer=buffer, region=self.array(*one))

    def range(self, least, extent):
        return self.add("Range", min=least, extent=extent)

    def iterator(self, name, extent, kind="0"):
        dom = self.range(self.integer(0), extent)
        tag = self.text("")
        return self.add("tir.IterVar", dom=dom, var=self.var(name), iter_type=kind, thread_tag=tag)

    def of(self, iterator):
        """Return the variable of an iterator."""
        return int(self.nodes[iterator]["attrs"]["var"])

    def block(self, name, iterators, values, reads, writes, body, **more):
        """Return the realize of a block."""
        lists = {"alloc_buffers": self.array(), "match_buffers": self.array()}
        block = self.add(
            "tir.Block",
            **{"iter_vars": self.array(*iterators), "reads": self.array(*reads)},
            **{"writes": self.array(*writes), "name_hint": self.text(name), "body": body},
            **(lists | {"init": 0, "annotations": self.map()} | more),
        )
        true = self.integer(1, "bool")
        values = self.array(*values)
        return self.add("tir.BlockRealize", iter_values=values, predicate=true, block=block)

    def loop(self, name, extent, body, kind="0"):
        """Return a loop around the statement that a function makes of its variable."""
        variable = self.var(name)
        return self.add(
            "tir.For",
            **{"loop_var": variable, "min": self.integer(0), "extent": extent, "kind": kind},
            **{"body": body(variable), "thread_binding": 0, "annotations": self.map()},
        )

    def module(self, buffers, body, name="main", **attributes):
        """Return the graph of a module with one function of these buffers."""
        params = [self.var(f"p{index}", "handle") for index in range(len(buffers))]
        pairs = [item for pair in zip(params, buffers, strict=True) for item in pair]
        table = self._add({"type_key": "Map", "data": pairs})
        items = {"global_symbol": self.text(name), "tir.noalias": self.integer(1, "bool")}
        attrs = self.add("DictAttrs", __dict__=self.map(**(items | attributes)))
        root = self.block("root", [], [], [], [], body)
        result = self.add("TupleType", fields=self.array())
        function = self.add(
            "tir.PrimFunc",
            **{"params": self.array(*params), "buffer_map": table, "body": root},
            **{"ret_type": result, "attrs": attrs},
        )
        variable = self.add("GlobalVar", name_hint=self.text(name))
        functions = self._add({"type_key": "Map", "data": [variable, function]})
        module = self.add("IRModule", functions=functions, attrs=0, global_infos=self.map())
        return {"root": module, "nodes": self.nodes, "attrs": {"tvm_version": "0.13.0"}}


def matmul(n=16, alignment="64"):
    """A product of square matrices, as ``matmuls.matmul``: a reduction with its initial value."""
    g = Nodes()
    a, b, c = (
        g.buffer(name, [g.integer(n), g.integer(n)], alignment=alignment)
        for name in ("A", "B", "C")
    )
    iterators = [g.iterator("v_i", g.integer(n)), g.iterator("v_j", g.integer(n))]
    iterators.append(g.iterator("v_k", g.integer(n), "2"))
    i, j, k = map(g.of, iterators)
    product = g.binary("Mul", g.load(a, i, k), g.load(b, k, j))
    body = g.store(c, g.binary("Add", g.load(c, i, j), product), i, j)
    reads, writes = [g.region(a, i, k), g.region(b, k, j)], [g.region(c, i, j)]
    init = g.store(c, g.real(0), i, j)

    def block(*values):
        return g.block("C", iterators, values, reads, writes, body, init=init)

    def nest(x):
        return g.loop(
            "j", g.integer(n), lambda y: g.loop("k", g.integer(n), lambda z: block(x, y, z))
        )

    return g.module([a, b, c], g.loop("i", g.integer(n), nest))


def symbolic():
    """A function of a length that its buffers name, with calls and a ``LetStmt``."""
    g = Nodes()
    n = g.var("n")
    a, b = g.buffer("A", [n]), g.buffer("B", [n], dtype="int32")
    it = g.iterator("v", n)
    v, x = g.of(it), g.var("x", "float32")
    small = g.binary("LT", v, g.integer(3))
    chosen = g.call("if_then_else", small, g.call("sqrt", x), g.real(1.5))
    number = g.add("tir.Cast", dtype="int32", value=chosen)
    bits = g.call("bitwise_and", g.call("shift_right", number, g.integer(2)), g.integer(15))
    let = g.add("tir.LetStmt", var=x, value=g.load(a, v), body=g.store(b, bits, v))

    def block(i):
        return g.block("B", [it], [i], [g.region(a, v)], [g.region(b, v)], let)

    return g.module([a, b], g.loop("i", n, block, "1"), op_pattern=g.integer(2))


def matched():
    """A block with a ``match_buffer``, annotations, and a call that gets a buffer's memory."""
    g = Nodes()
    a = g.buffer("A", [g.integer(8), g.integer(8)])
    it = g.iterator("v", g.integer(8))
    v, stride = g.of(it), g.var("s")
    one = g.integer(1)
    view = g.buffer("V", [one, g.integer(8)], [stride, one], g.var("o"))
    ranges = g.array(g.range(v, one), g.range(g.integer(0), g.integer(8)))
    whole = g.add("tir.BufferRegion", buffer=a, region=ranges)
    match = g.add("tir.MatchBufferRegion", buffer=view, source=whole)
    word = g.add("StringImm", value=g.text("fill"))
    call = g.call("call_extern", word, g.data_of(view), stride, dtype="int32")
    notes = g.map(axis=g.integer(1), shape=g.array(g.integer(8)), schedule_rule=g.text("None"))
    body = g.add("tir.Evaluate", value=call)

    def block(i):
        more = {"match_buffers": g.array(match), "annotations": notes}
        return g.block("V", [it], [i], [], [whole], body, **more)

    return g.module([a], g.loop("i", g.integer(8), block))
