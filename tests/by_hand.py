"""Functions written by hand, in the three dialects of graphs that a reader meets.

``nodes``
    The node list of TVM 0.8 to 0.21: all fields are text, a PrimFunc has a ``buffer_map``.
``plain``
    tvm-ffi's graph of 0.22 to 0.25: constants inline, a PrimFunc has a ``buffer_map``.
``boxed``
    That of 0.27: constants are nodes, a parameter's type is its buffer, other type keys.
"""

import orjson

from tunedb.records import Workload, WorkloadFormat

DIALECTS = ("nodes", "plain", "boxed")

_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Max", "FloorDiv", "FloorMod")


class Writer:
    """Collects nodes; every method returns the number of the node that it made."""

    def __init__(self, dialect):
        self.dialect = dialect
        self.is_old = dialect == "nodes"
        self.nodes = [{"type_key": ""} if self.is_old else {"type": "None"}]

    def _put(self, node):
        self.nodes.append(node)
        return len(self.nodes) - 1

    def make(self, kind, **fields):
        if self.is_old:
            text = {key: str(value) for key, value in fields.items()}
            return self._put({"type_key": f"tir.{kind}", "attrs": text})
        space = {"Block": "s_tir", "Var": "ir"}.get(kind, "tirx")
        if self.dialect == "boxed":
            space = "prim" if kind in _ARITHMETIC else space
            kind = {"Block": "SBlock", "BlockRealize": "SBlockRealize"}.get(kind, kind)
            kind = {"BufferLoad": "TensorLoad"}.get(kind, kind)
            if kind == "TensorLoad":
                fields["source"] = fields.pop("buffer")
        return self._put({"type": f"{space}.{kind}", "data": fields})

    def array(self, *items):
        if self.is_old:
            return self._put({"type_key": "Array", **({"data": list(items)} if items else {})})
        return self._put({"type": "ffi.Array", "data": list(items)})

    def map(self, *items):
        kind = {"type_key": "Map"} if self.is_old else {"type": "ffi.Map"}
        return self._put({**kind, "data": list(items)})

    def text(self, value):
        if self.is_old:
            return self._put({"type_key": "runtime.String", "repr_str": value})
        return self._put({"type": "ffi.String", "data": value})

    def constant(self, value):
        if self.is_old:
            return self._put(
                {"type_key": "IntImm", "attrs": {"dtype": "int32", "value": str(value)}}
            )
        if self.dialect == "boxed":
            value = self._put({"type": "int", "data": value})
        return self._put({"type": "ir.IntImm", "data": {"value": value}})

    def variable(self, name, **fields):
        return self.make("Var", name=self.text(name), **fields)

    def buffer(self, name, dtype, *shape):
        """Return ``(what accesses name, what is passed as parameter, entries of buffer_map)``."""
        shape = self.array(*(s if isinstance(s, Dynamic) else self.constant(s) for s in shape))
        if self.dialect == "boxed":
            dtype = self._put({"type": "ir.PrimType", "data": {"dtype": dtype}})
            variable = self.variable(name, ty=self.make("BufferType", dtype=dtype, shape=shape))
            return variable, variable, []
        made = self.make("Buffer", name=self.text(name), dtype=dtype, shape=shape)
        handle = self.variable("var_" + name, dtype="handle")
        return made, handle, [handle, made]

    def load(self, buffer, *indices):
        return self.make("BufferLoad", buffer=buffer, indices=self.array(*indices))

    def store(self, buffer, value, *indices):
        return self.make("BufferStore", buffer=buffer, value=value, indices=self.array(*indices))

    def binary(self, kind, a, b):
        return self.make(kind, a=a, b=b)

    def call(self, operator, *args):
        if self.is_old:
            op = self._put({"type_key": "Op", "repr_str": "tir." + operator})
        else:
            op = self._put({"type": "ir.Op", "data": "tirx." + operator})
        return self.make("Call", op=op, args=self.array(*args))

    def zero(self):
        if self.is_old:
            return self._put({"type_key": "FloatImm", "attrs": {"value": "0"}})
        return self._put({"type": "ir.FloatImm", "data": {"value": 0.0}})

    def block(self, name, iterators, body, init=0):
        """Return the loops around a block. `iterators` are (variable, extent, is_reduction)."""
        made = []
        for variable, extent, is_reduction in iterators:
            dom = self.make("Range", min=self.constant(0), extent=self.constant(extent))
            kind = 2 if is_reduction else 0
            made.append(self.make("IterVar", var=variable, dom=dom, iter_type=kind))
        node = self.make(
            "Block", name_hint=self.text(name), iter_vars=self.array(*made), init=init, body=body
        )
        node = self.make("BlockRealize", block=node)
        for _, extent, _ in reversed(iterators):
            node = self.make("For", extent=self.constant(extent), body=node)
        return node

    def workload(self, buffers, body, name="main"):
        """Return the workload of a module with one function."""
        symbol = self.map(self.text("global_symbol"), self.text(name))
        fields = {
            "params": self.array(*(parameter for _, parameter, _ in buffers)),
            "attrs": self.make("DictAttrs", __dict__=symbol),
            "body": body,
        }
        if self.dialect != "boxed":
            fields["buffer_map"] = self.map(*(node for _, _, pair in buffers for node in pair))
        function = self.make("PrimFunc", **fields)
        variable = self.make("GlobalVar", name_hint=self.text("in_the_module"))
        root = self.make("IRModule", functions=self.map(variable, function))
        return self.finish(root)

    def finish(self, root):
        value = {"root" if self.is_old else "root_index": root, "nodes": self.nodes}
        kind = WorkloadFormat.NODES if self.is_old else WorkloadFormat.GRAPH
        return Workload(kind, orjson.dumps(value))


class Dynamic(int):
    """The number of a node that stands as a dimension."""


def contraction(dialect, extents, reduction, data, kernel, name="compute"):
    """Return ``C[spatial] += A[data] * B[kernel]`` with an initial zero.

    Parameters
    ----------
    extents, reduction : dict
        Extents of spatial and reduction iterators by letter.
    data, kernel : list of str
        Indexes such as ``h*2+r``: sums of letters, with an optional stride or divisor or both:
        ``o//4*8+c``.
    """
    w = Writer(dialect)
    letters = {**extents, **reduction}
    variables = {letter: w.variable("v_" + letter) for letter in letters}

    def term(text):
        for sign, kind in (("*", "Mul"), ("//", "FloorDiv")):
            first, found, number = text.rpartition(sign)
            if found:
                return w.binary(kind, term(first), w.constant(int(number)))
        return variables[text]

    def index(text):
        first, *rest = (term(part) for part in text.split("+"))
        for other in rest:
            first = w.binary("Add", first, other)
        return first

    a = w.buffer("A", "float32", *([64] * len(data)))
    b = w.buffer("B", "float32", *([64] * len(kernel)))
    c = w.buffer("C", "float32", *extents.values())
    place = [variables[letter] for letter in extents]
    product = w.binary("Mul", w.load(a[0], *map(index, data)), w.load(b[0], *map(index, kernel)))
    body = w.store(c[0], w.binary("Add", w.load(c[0], *place), product), *place)
    iterators = [(variables[x], n, x in reduction) for x, n in letters.items()]
    block = w.block(name, iterators, body, init=w.store(c[0], w.zero(), *place))
    return w.workload([a, b, c], block)
