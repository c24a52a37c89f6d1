"""Modules of today's TVM from the object graphs of TVM 0.8 and later.

TVM itself loads the graphs of its own release alone: the encoding changed in 0.22, type keys moved
in 0.24 and 0.27, and buffers became variables in 0.26. A graph's nodes are read here as data
(:mod:`tunedb.programs.workload_info.graphs`), and TVM's constructors make each again; no text is
evaluated. What changed between releases:

=========================================  =====================================================
Graph                                      Module
=========================================  =====================================================
a handle with an entry in ``buffer_map``   the buffer, which is the parameter
a buffer's ``data`` in an expression       ``buffer_data``
``LetStmt`` with a body                    ``Bind`` and the body, in a sequence
``tir.bitwise_and`` and its like, calls    nodes
``tir.*`` operators and attributes         ``tirx.*``, or ``prim.*``
constants as attributes                    numbers
no ``s_tir`` attribute                     the attribute, as TVMScript's decorator adds it
alignment of 128 bytes in a node list      64 bytes; each was the default of its time
=========================================  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.ir import Op, prim
from tvm.s_tir import MatchBufferRegion, SBlock, SBlockRealize

from ...errors import FormatError
from ...programs.workload_info.graphs import Graph, NodeList, Unreadable, graph_of
from .targets import first_line

__all__ = ["module_of"]

#: Deepest nesting of nodes. TVM's own passes recurse; real modules nest less than 40 deep.
MAX_NESTING = 400

#: Most nodes of a module, shared ones counted once for each use, since TVM's passes walk them so.
#: Those of real modules have less than 10,000.
MAX_NODES = 200_000

#: Default alignment of buffers until TVM 0.9, and today's.
_OLD_ALIGNMENT, _ALIGNMENT = 128, 64

_BINARY = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max", "EQ"),
        *("NE", "LT", "LE", "GT", "GE", "And", "Or", "BitwiseAnd", "BitwiseOr"),
        *("BitwiseXor", "LShift", "RShift"),
    }
)

_UNARY = frozenset(["Not", "BitwiseNot"])

#: Operators that have become nodes.
_NODE_OF = {
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "bitwise_not": "BitwiseNot",
    "shift_left": "LShift",
    "shift_right": "RShift",
}

#: Operators with the same arguments in all releases.
_OPERATORS = frozenset(
    {
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "clz"),
        *("copysign", "cos", "cosh", "erf", "exp", "exp10", "exp2", "fabs", "floor"),
        *("fma", "fmod", "hypot", "isfinite", "isinf", "isnan", "ldexp", "log", "log10"),
        *("log1p", "log2", "nearbyint", "nextafter", "pow", "popcount", "reinterpret"),
        *("round", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
        *("q_multiply_shift", "q_multiply_shift_per_axis", "if_then_else", "likely"),
        *("address_of", "call_extern", "call_pure_extern"),
    }
)

#: A request for a node: the method that makes it, and its number. The answer is the object.
_Request = tuple[Callable[[int], "_Steps"], int]
_Steps = Generator[_Request, Any, Any]


def module_of(value: Any) -> Any:
    """Return the module of a graph; the graph must be of an own source.

    Parameters
    ----------
    value : Any
        Parsed JSON of a graph in either of TVM's encodings.

    Returns
    -------
    tvm.IRModule
        PrimFuncs for TVM's schedules.

    Raises
    ------
    FormatError
        The graph is damaged, or has a node without a form in today's schedulable modules. The
        message names the node in one line.
    """
    try:
        graph = graph_of(value)
    except Unreadable as error:
        raise FormatError(f"a workload's graph: {error}") from None
    return _Builder(graph).build()


class _Missing(Exception):
    """A node has no form in a schedulable module of today."""


class _Frame:
    """A node that is being made, and the number of nodes below it so far."""

    def __init__(self, request: _Request) -> None:
        self.request = request
        make, number = request
        self.steps = make(number)
        self.size = 1


class _Builder:
    """Makes the objects of a graph, each once, without recursion.

    A method for a kind of node is a generator: it requests the nodes that it refers to and returns
    the object.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[_Request, tuple[Any, int]] = {}
        # Variable of a buffer's memory → the buffer.
        self._owners: dict[int, int] = {}

    def build(self) -> Any:
        """Return the object of the root.

        Raises
        ------
        FormatError
            See :func:`module_of`.
        """
        number = self._graph.root
        try:
            for number in reversed(self._graph.numbers("Buffer")):
                self._owners[self._graph.child(number, "data")] = number
        except Unreadable as error:
            raise FormatError(self._place(number, str(error))) from None
        stack = [_Frame((self._module, self._graph.root))]
        pending = {stack[0].request}
        answer = None
        while True:
            frame = stack[-1]
            _, number = frame.request
            try:
                request = frame.steps.send(answer)
            except StopIteration as end:
                answer = end.value
                self._made[frame.request] = answer, frame.size
                pending.discard(frame.request)
                stack.pop()
                if not stack:
                    return answer
                self._count(stack[-1], frame.size)
                continue
            except _Missing as error:
                raise FormatError(f"node {number} of a workload's graph: {error}") from None
            except Exception as error:  # TVM's constructors raise any class
                raise FormatError(self._place(number, first_line(error))) from error
            answer = None
            if request in self._made:
                answer, size = self._made[request]
                self._count(frame, size)
            elif request in pending:
                raise FormatError(self._place(number, "it contains itself"))
            elif len(stack) == MAX_NESTING:
                raise FormatError(self._place(number, f"nesting deeper than {MAX_NESTING}"))
            else:
                stack.append(_Frame(request))
                pending.add(request)

    def _count(self, frame: _Frame, size: int) -> None:
        frame.size += size
        if frame.size > MAX_NODES:
            raise FormatError(self._place(frame.request[1], f"more than {MAX_NODES} nodes"))

    def _place(self, number: int, reason: str) -> str:
        """Return an error message for a node."""
        try:
            key = self._graph.type_key(number)
        except Unreadable:
            key = ""
        return f"node {number} of a workload's graph ({key[:64] or 'no object'}): {reason}"

    # ------------------------------------------------------------------ requests

    def _node(self, number: int) -> _Steps:
        """Make an expression, statement, type or part of one."""
        kind = self._graph.visit(number)
        if kind in _MAKERS:
            return (yield from _MAKERS[kind](self, number))
        if kind in _BINARY:
            return (yield from self._arithmetic(number, kind, "a", "b"))
        if kind in _UNARY:
            return (yield from self._arithmetic(number, kind, "a"))
        raise _Missing(
            f"{self._graph.type_key(number)[:64] or 'no object'} has no form in a schedulable "
            f"module of TVM {tvm.__version__}"
        )

    def _child(self, number: int, field: str) -> _Steps:
        return (yield self._node, self._graph.child(number, field))

    def _optional(self, number: int, field: str) -> _Steps:
        child = self._graph.optional(number, field)
        return None if child is None else (yield self._node, child)

    def _children(self, number: int, field: str) -> _Steps:
        items = []
        for item in self._graph.elements(self._graph.child(number, field)):
            items.append((yield self._node, item))
        return items

    def _string(self, number: int, field: str) -> str:
        return self._graph.text(self._graph.child(number, field))

    def _without(self, number: int, *fields: str) -> None:
        """Refuse a node with a value in a field that today's has no place for."""
        for field in fields:
            child = self._graph.optional(number, field)
            if child is None:
                continue
            if self._graph.kind(child) in ("Array", "Map") and not self._graph.items(child):
                continue
            raise _Missing(
                f"TVM {tvm.__version__} has no {field} of {self._graph.type_key(number)[:64]}"
            )

    # ------------------------------------------------------------------ modules and attributes

    def _module(self, number: int) -> _Steps:
        graph = self._graph
        if graph.kind(number) != "IRModule":
            raise _Missing(f"{graph.type_key(number)[:64] or 'no object'} is not an IRModule")
        self._without(number, "global_infos")
        functions = {}
        for key, function in graph.pairs(graph.child(number, "functions")):
            if graph.kind(function) != "PrimFunc" or type(key) is not int:
                raise _Missing(f"{graph.type_key(function)[:64]} is not a PrimFunc")
            functions[self._string(key, "name_hint")] = yield self._node, function
        return tvm.IRModule(functions, attrs=(yield from self._attributes(number)))

    def _function(self, number: int) -> _Steps:
        graph = self._graph
        self._without(number, "preflattened_buffer_map")
        table = graph.optional(number, "buffer_map")
        buffers = {} if table is None else dict(graph.pairs(table))
        params = []
        for param in graph.elements(graph.child(number, "params")):
            params.append((yield self._node, buffers.pop(param, param)))
        if buffers:
            raise Unreadable("a buffer of no parameter")
        result = yield from self._optional(number, "ret_type")
        body = yield from self._child(number, "body")
        attributes = {"s_tir": True} | (yield from self._attributes(number))
        return tirx.PrimFunc(params, body, result, ir.make_node("ir.DictAttrs", **attributes))

    def _attributes(self, number: int) -> _Steps:
        """Return the attributes of a function or module."""
        attributes = self._graph.optional(number, "attrs")
        table = None if attributes is None else self._graph.optional(attributes, "__dict__")
        return {} if table is None else (yield self._value, table)

    def _annotations(self, number: int) -> _Steps:
        table = self._graph.optional(number, "annotations")
        return {} if table is None else (yield self._value, table)

    def _value(self, number: int) -> _Steps:
        """Make the value of an attribute: numbers and texts are Python's."""
        graph = self._graph
        kind = graph.visit(number)
        value: Any = None
        if kind == "IntImm":
            value = graph.integer(number)
            value = bool(value) if self._dtype(number) == "bool" else value
        elif kind == "FloatImm":
            value = graph.real(number)
        elif kind == "String":
            value = graph.text(number)
        elif kind in ("bool", "int", "float"):
            value = graph.plain(number)
        elif kind == "Array":
            value = []
            for item in graph.elements(number):
                value.append((yield self._value, item))
        elif kind == "Map":
            value = {}
            for key, item in graph.pairs(number):
                word = key if isinstance(key, str) else graph.text(key)
                value[_renamed(word)] = yield self._value, item
        else:
            value = yield self._node, number
        return value

    # ------------------------------------------------------------------ types, variables, buffers

    def _dtype(self, number: int) -> str:
        """Return the data type of an expression, or of a type's node."""
        type_ = self._graph.optional(number, "ty")  # since 0.26
        return self._graph.dtype(number if type_ is None else type_)

    def _prim_type(self, number: int) -> _Steps:
        return _type(self._graph.dtype(number))
        yield

    def _pointer_type(self, number: int) -> _Steps:
        element = yield from self._child(number, "element_type")
        return ir.PointerType(element, self._string(number, "storage_scope"))

    def _tuple_type(self, number: int) -> _Steps:
        return ir.TupleType((yield from self._children(number, "fields")))

    def _missing_type(self, number: int) -> _Steps:
        return ir.Type.missing()
        yield

    def _variable(self, number: int) -> _Steps:
        graph = self._graph
        owner = self._owners.get(number)
        if owner is not None:
            return tirx.buffer.buffer_data((yield self._node, owner))
        name = self._string(number, "name")
        type_ = graph.optional(number, "type_annotation")  # until 0.25
        if type_ is None:
            type_ = graph.optional(number, "ty")
        if type_ is None:
            return tirx.Var(name, _type(self._dtype(number)))
        if graph.kind(type_) == "BufferType":
            scope = self._string(type_, "storage_scope")
            return (yield from self._declared(type_, name, scope))
        return tirx.Var(name, (yield self._node, type_))

    def _buffer(self, number: int) -> _Steps:
        """Make a buffer of TVM until 0.25, whose memory is a variable of its own."""
        graph = self._graph
        if graph.literal(number, "buffer_type") != 1:
            raise _Missing(f"TVM {tvm.__version__} has no auto-broadcast buffers")
        pointer = graph.child(graph.child(number, "data"), "type_annotation")
        name, scope = self._string(number, "name"), self._string(pointer, "storage_scope")
        return (yield from self._declared(number, name, scope))

    def _declared(self, number: int, name: str, scope: str) -> _Steps:
        """Make a buffer from the node with its shape."""
        graph = self._graph
        self._without(number, "axis_separators", "layout", "allocated_addr")
        alignment = graph.literal(number, "data_alignment")
        if alignment == _OLD_ALIGNMENT and isinstance(graph, NodeList):
            alignment = _ALIGNMENT
        return tirx.decl_buffer(
            (yield from self._children(number, "shape")),
            graph.dtype(number),
            name,
            strides=(yield from self._children(number, "strides")),
            elem_offset=(yield from self._optional(number, "elem_offset")),
            scope=scope,
            data_alignment=alignment,
            offset_factor=graph.literal(number, "offset_factor"),
            layout=None,
        )

    def _iter_var(self, number: int) -> _Steps:
        return tirx.IterVar(
            (yield from self._optional(number, "dom")),
            (yield from self._child(number, "var")),
            self._graph.literal(number, "iter_type"),
            self._string(number, "thread_tag"),
        )

    def _range(self, number: int) -> _Steps:
        least = yield from self._child(number, "min")
        return ir.Range.from_min_extent(least, (yield from self._child(number, "extent")))

    def _region(self, number: int) -> _Steps:
        buffer = yield from self._child(number, self._source(number))
        return tirx.BufferRegion(buffer, (yield from self._children(number, "region")))

    def _source(self, number: int) -> str:
        """Return the field with the buffer of an access: ``source`` since 0.27."""
        return "buffer" if self._graph.field(number, "source") is None else "source"

    # ------------------------------------------------------------------ expressions

    def _integer(self, number: int) -> _Steps:
        return prim.IntImm(self._dtype(number), self._graph.integer(number))
        yield

    def _real(self, number: int) -> _Steps:
        return prim.FloatImm(self._dtype(number), self._graph.real(number))
        yield

    def _text(self, number: int) -> _Steps:
        return ir.StringImm(self._string(number, "value"))
        yield

    def _arithmetic(self, number: int, kind: str, *fields: str) -> _Steps:
        operands = []
        for field in fields:
            operands.append((yield from self._child(number, field)))
        return getattr(prim, kind)(*operands)

    def _cast(self, number: int) -> _Steps:
        return prim.Cast(self._dtype(number), (yield from self._child(number, "value")))

    def _select(self, number: int) -> _Steps:
        return prim.Select(
            (yield from self._child(number, "condition")),
            (yield from self._child(number, "true_value")),
            (yield from self._child(number, "false_value")),
        )

    def _let(self, number: int) -> _Steps:
        return prim.Let(
            (yield from self._child(number, "var")),
            (yield from self._child(number, "value")),
            (yield from self._child(number, "body")),
        )

    def _load(self, number: int) -> _Steps:
        self._without(number, "predicate")
        buffer = yield from self._child(number, self._source(number))
        return tirx.BufferLoad(buffer, (yield from self._children(number, "indices")))

    def _call(self, number: int) -> _Steps:
        graph = self._graph
        op = graph.child(number, "op")
        if graph.kind(op) != "Op":
            raise _Missing(f"a call of {graph.type_key(op)[:64]}")
        name = graph.operator(op)
        args = yield from self._children(number, "args")
        if name in _NODE_OF:
            return getattr(prim, _NODE_OF[name])(*args)
        if name not in _OPERATORS:
            raise _Missing(f"a call of {name[:64]}, whose form today is not known")
        return ir.Call(_operator(name), args, ret_ty=_type(self._dtype(number)))

    # ------------------------------------------------------------------ statements

    def _for(self, number: int) -> _Steps:
        return tirx.For(
            (yield from self._child(number, "loop_var")),
            (yield from self._child(number, "min")),
            (yield from self._child(number, "extent")),
            self._graph.literal(number, "kind"),
            (yield from self._child(number, "body")),
            (yield from self._optional(number, "thread_binding")),
            (yield from self._annotations(number)),
            (yield from self._optional(number, "step")),
        )

    def _while(self, number: int) -> _Steps:
        condition = yield from self._child(number, "condition")
        return tirx.While(condition, (yield from self._child(number, "body")))

    def _if(self, number: int) -> _Steps:
        return tirx.IfThenElse(
            (yield from self._child(number, "condition")),
            (yield from self._child(number, "then_case")),
            (yield from self._optional(number, "else_case")),
        )

    def _evaluate(self, number: int) -> _Steps:
        return tirx.Evaluate((yield from self._child(number, "value")))

    def _store(self, number: int) -> _Steps:
        self._without(number, "predicate")
        return tirx.BufferStore(
            (yield from self._child(number, "buffer")),
            (yield from self._child(number, "value")),
            (yield from self._children(number, "indices")),
        )

    def _sequence(self, number: int) -> _Steps:
        return _sequence((yield from self._children(number, "seq")))

    def _bind(self, number: int) -> _Steps:
        variable = yield from self._child(number, "var")
        return tirx.Bind(variable, (yield from self._child(number, "value")))

    def _let_statement(self, number: int) -> _Steps:
        bind = yield from self._bind(number)
        return _sequence([bind, (yield from self._child(number, "body"))])

    def _realize(self, number: int) -> _Steps:
        return SBlockRealize(
            (yield from self._children(number, "iter_values")),
            (yield from self._child(number, "predicate")),
            (yield from self._child(number, "block")),
        )

    def _block(self, number: int) -> _Steps:
        return SBlock(
            (yield from self._children(number, "iter_vars")),
            (yield from self._children(number, "reads")),
            (yield from self._children(number, "writes")),
            self._string(number, "name_hint"),
            (yield from self._child(number, "body")),
            (yield from self._optional(number, "init")),
            (yield from self._children(number, "alloc_buffers")),
            (yield from self._children(number, "match_buffers")),
            (yield from self._annotations(number)),
        )

    def _match(self, number: int) -> _Steps:
        buffer = yield from self._child(number, "buffer")
        return MatchBufferRegion(buffer, (yield from self._child(number, "source")))


#: Kind of a node → the method that makes it.
_MAKERS: dict[str, Callable[[_Builder, int], _Steps]] = {
    "PrimFunc": _Builder._function,
    "PrimType": _Builder._prim_type,
    "PointerType": _Builder._pointer_type,
    "TupleType": _Builder._tuple_type,
    "Type": _Builder._missing_type,
    "Var": _Builder._variable,
    "SizeVar": _Builder._variable,
    "Buffer": _Builder._buffer,
    "IterVar": _Builder._iter_var,
    "Range": _Builder._range,
    "BufferRegion": _Builder._region,
    "TensorRegion": _Builder._region,
    "IntImm": _Builder._integer,
    "FloatImm": _Builder._real,
    "StringImm": _Builder._text,
    "Cast": _Builder._cast,
    "Select": _Builder._select,
    "Let": _Builder._let,
    "BufferLoad": _Builder._load,
    "TensorLoad": _Builder._load,
    "Call": _Builder._call,
    "For": _Builder._for,
    "While": _Builder._while,
    "IfThenElse": _Builder._if,
    "Evaluate": _Builder._evaluate,
    "BufferStore": _Builder._store,
    "SeqStmt": _Builder._sequence,
    "Bind": _Builder._bind,
    "LetStmt": _Builder._let_statement,
    "Block": _Builder._block,
    "SBlock": _Builder._block,
    "BlockRealize": _Builder._realize,
    "SBlockRealize": _Builder._realize,
    "MatchBufferRegion": _Builder._match,
}


@cache
def _operator(name: str) -> Any:
    """Return an operator of today by the last part of its name."""
    known = set(map(str, Op.list_op_names()))
    return Op.get(next(f"{s}.{name}" for s in ("tirx", "prim") if f"{s}.{name}" in known))


def _type(dtype: str) -> Any:
    """Return the type of a data type; ``handle`` was one until 0.25."""
    return ir.PointerType(ir.PrimType("void")) if dtype == "handle" else ir.PrimType(dtype)


def _renamed(word: str) -> str:
    """Return today's name of an attribute."""
    return f"tirx.{word[4:]}" if word.startswith("tir.") else word


def _sequence(statements: list[Any]) -> Any:
    """Return statements as one, those of inner sequences in their places."""
    flat: list[Any] = []
    for statement in statements:
        flat += statement.seq if isinstance(statement, tirx.SeqStmt) else [statement]
    return tirx.SeqStmt(flat)
