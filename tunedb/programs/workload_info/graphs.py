"""Object graphs of IRModules in plain Python, in both of TVM's encodings.

The *node list* (TVM 0.8 to 0.21, ``src/node/serialization.cc``)::

    {"root": 1, "nodes": [{"type_key": "tir.For", "attrs": {"extent": "26"}, "data": [..]}]}

writes every attribute as text: the number of a node for an object, a literal otherwise. The
*tvm-ffi graph* (TVM >= 0.22, ``ffi/src/ffi/extra/serialization.cc``)::

    {"root_index": 1, "nodes": [{"type": "tirx.For", "data": {"extent": 26}}]}

writes numbers as integers. Type keys moved from ``tir.*`` to ``tirx.*``, ``s_tir.*``, ``prim.*``
and ``ir.*``, so the last part of the key identifies the kind of a node. Graphs are foreign: every
use checks indexes and types, and all walks share one budget, so that a graph with shared nodes or
cycles costs no more than a multiple of its nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...json_checks import INT64
from ..metaschedule.graph_text import NON_FINITE

#: A tensor: data type and shape.
Tensor = tuple[str | None, tuple[int, ...]]

#: Most dimensions of one tensor. TVM's own have at most 8.
MAX_DIMENSIONS = 64

#: Longest accepted name; those of relax's fused functions reach some hundreds.
MAX_NAME = 4096

#: Longest text of a floating-point number; the largest double takes 310 characters.
_MAX_REAL = 400

#: Allowed visits for each node of a graph. Real graphs need less than one.
_VISITS_PER_NODE = 8
_FIRST_VISITS = 1000


class Unreadable(Exception):
    """The graph or key lacks a requested value. Readers of a graph convert it or go on without."""


def dimension(value: Any) -> int:
    """Return a dimension or extent; raise Unreadable if the value is not one."""
    if type(value) is not int or not 0 <= value < INT64:
        raise Unreadable("no dimension")
    return value


def is_name(value: Any) -> bool:
    """Tell whether a value is a name that both databases can hold."""
    return type(value) is str and 0 < len(value) <= MAX_NAME and "\0" not in value


def name(value: Any) -> str:
    """Return a name; raise Unreadable if the value is not one."""
    if not is_name(value):
        raise Unreadable("no name")
    text: str = value
    return text


class Graph:
    """The nodes of a graph in either encoding. Callers refer to nodes by their numbers.

    All methods raise Unreadable if the graph lacks the requested value.
    """

    #: Names under which a node has its type key, its fields and its text.
    _KEY: str
    _FIELDS: str
    _TEXT: str

    def __init__(self, nodes: list[Any], root: Any) -> None:
        self._nodes = nodes
        self._visits = _VISITS_PER_NODE * len(nodes) + _FIRST_VISITS
        self.root: int = self._checked(root)

    def _reference(self, value: Any) -> int:
        """Return the number of the node that a field refers to."""
        raise NotImplementedError

    def _constant(self, value: Any) -> int:
        """Return the integer of an ``IntImm``, given its field ``value``."""
        raise NotImplementedError

    def _checked(self, number: Any) -> int:
        if type(number) is not int or not 0 <= number < len(self._nodes):
            raise Unreadable("no node")
        return number

    def _node(self, number: int) -> dict[str, Any]:
        node = self._nodes[number]
        if type(node) is not dict:
            raise Unreadable("a node is an object")
        return node

    def _pay(self, visits: int) -> None:
        self._visits -= visits
        if self._visits < 0:
            raise Unreadable("a graph that shares its nodes without measure")

    def visit(self, number: int) -> str:
        """Return the kind of a node, and pay for the visit.

        Raises
        ------
        Unreadable
            The walks over this graph cost more than those over any real graph.
        """
        self._pay(1)
        return self.kind(number)

    def type_key(self, number: int) -> str:
        """Return a node's type key, e.g. ``tir.For``; ``""`` for no object."""
        key = self._node(number).get(self._KEY)
        return key if type(key) is str and key != "None" else ""

    def kind(self, number: int) -> str:
        """Return the last part of a node's type key, e.g. ``For``; ``""`` for no object."""
        return self.type_key(number).rpartition(".")[2]

    def numbers(self, kind: str) -> list[int]:
        """Return the nodes of a kind, damaged nodes left out."""
        return [
            number
            for number, node in enumerate(self._nodes)
            if type(node) is dict and self.kind(number) == kind
        ]

    def field(self, number: int, field: str) -> Any:
        """Return a field as stored; None if the node lacks it."""
        fields = self._node(number).get(self._FIELDS)
        return fields.get(field) if type(fields) is dict else None

    def child(self, number: int, field: str) -> int:
        """Return the node that a field refers to."""
        found = self.optional(number, field)
        if found is None:
            raise Unreadable(f"no {field}")
        return found

    def optional(self, number: int, field: str) -> int | None:
        """Return the node that a field refers to; None if it refers to no object."""
        value = self.field(number, field)
        if value is None:
            return None
        found = self._checked(self._reference(value))
        return found if self.kind(found) else None

    def elements(self, number: int) -> list[int]:
        """Return the nodes in an array, and pay for them."""
        return self._items(number, "Array")

    def pairs(self, number: int) -> list[tuple[int | str, int]]:
        """Return the keys (nodes, or text) and value nodes of a map, and pay for them."""
        keys, items = self._node(number).get("keys"), self._items(number, "Map")
        if type(keys) is list:  # of text, in the older encoding
            return [(name(key), value) for key, value in zip(keys, items, strict=False)]
        return list(zip(items[::2], items[1::2], strict=False))

    def items(self, number: int) -> list[Any]:
        """Return the items of an array or map as stored."""
        items = self._node(number).get("data", [])
        if type(items) is not list:
            raise Unreadable("no items")
        return items

    def _items(self, number: int, kind: str) -> list[int]:
        items = self.items(number)
        if self.kind(number) != kind:
            raise Unreadable(f"no {kind}")
        self._pay(len(items))
        return [self._checked(item) for item in items]

    def text(self, number: int) -> str:
        """Return a string node's text."""
        text = self._node(number).get(self._TEXT, "")  # the older encoding leaves out ""
        if type(text) is not str or self.kind(number) != "String":
            raise Unreadable("no string")
        return text

    def operator(self, number: int) -> str:
        """Return the last part of the name of an ``Op`` node."""
        return name(self._node(number).get(self._TEXT)).rpartition(".")[2]

    def integer(self, number: int) -> int:
        """Return the value of an ``IntImm``; no other expression has one."""
        if self.kind(number) != "IntImm":
            raise Unreadable("no constant")
        return self._constant(self.field(number, "value"))

    def literal(self, number: int, field: str) -> int:
        """Return an integer that a field holds itself, e.g. the ``kind`` of a ``For``."""
        raise NotImplementedError

    def real(self, number: int) -> float:
        """Return the value of a ``FloatImm``."""
        raise NotImplementedError

    def plain(self, number: int) -> bool | int | float:
        """Return the value of a node that is a number itself, as TVM >= 0.22 writes attributes."""
        value = self._node(number).get(self._FIELDS)
        if not isinstance(value, bool | int | float):
            raise Unreadable("no number")
        return value

    def dtype(self, number: int) -> str:
        """Return the data type in a buffer's ``dtype`` field."""
        value = self.field(number, "dtype")
        if type(value) is int:  # since 0.26 the node of a PrimType
            value = self.field(self._checked(value), "dtype")
        return name(value)


class NodeList(Graph):
    """The encoding of TVM 0.8 to 0.21."""

    _KEY, _FIELDS, _TEXT = "type_key", "attrs", "repr_str"

    def _reference(self, value: Any) -> int:
        return _number(value)

    def _constant(self, value: Any) -> int:
        return _number(value)

    def literal(self, number: int, field: str) -> int:
        """Return an integer that a field holds itself."""
        return _number(self.field(number, field))

    def real(self, number: int) -> float:
        """Return the value of a ``FloatImm``."""
        text = self.field(number, "value")
        if type(text) is not str or len(text) > _MAX_REAL:
            raise Unreadable("no number")
        try:
            return float(text)
        except ValueError:
            raise Unreadable("no number") from None


class FfiGraph(Graph):
    """The encoding of TVM since 0.22."""

    _KEY, _FIELDS, _TEXT = "type", "data", "data"

    def _reference(self, value: Any) -> int:
        return self._checked(value)

    def _constant(self, value: Any) -> int:
        if self._values_are_nodes:
            value = self._node(self._checked(value)).get("data")
        if type(value) is not int:
            raise Unreadable("no integer")
        return value

    def literal(self, number: int, field: str) -> int:
        """Return an integer that a field holds itself."""
        value = self.field(number, field)
        if type(value) is not int:
            raise Unreadable(f"no {field}")
        return value

    def real(self, number: int) -> float:
        """Return the value of a ``FloatImm``."""
        value = self.field(number, "value")
        if type(value) not in (int, float) and value not in NON_FINITE:
            raise Unreadable("no number")
        return float(value)

    @cached_property
    def _values_are_nodes(self) -> bool:
        """Whether constants are numbers of nodes that hold the value, as TVM 0.27 writes them.

        A workload does not hold its version, so the nodes decide: in an older graph it is unlikely
        that all constants happen to be numbers of nodes that hold an integer.
        """
        constants = (
            node.get("data")
            for node in self._nodes
            if type(node) is dict and node.get("type") == "ir.IntImm"
        )
        return all(type(data) is dict and self._is_integer(data.get("value")) for data in constants)

    def _is_integer(self, number: Any) -> bool:
        if type(number) is not int or not 0 <= number < len(self._nodes):
            return False
        node = self._nodes[number]
        return type(node) is dict and node.get("type") == "int"


def _number(text: Any) -> int:
    """Return an integer that a node list wrote as text, or raise Unreadable."""
    # Bounded, because int() is quadratic in the number of digits.
    if type(text) is not str or len(text) > 20:
        raise Unreadable("no number")
    try:
        return int(text)
    except ValueError:
        raise Unreadable("no number") from None


def graph_of(value: Any) -> Graph:
    """Return the graph of parsed JSON in either encoding.

    Raises
    ------
    Unreadable
        The value has neither encoding.
    """
    if type(value) is not dict or type(value.get("nodes")) is not list:
        raise Unreadable("no graph")
    if "root_index" in value:
        return FfiGraph(value["nodes"], value["root_index"])
    return NodeList(value["nodes"], value.get("root"))


@dataclass(frozen=True, slots=True)
class Function:
    """A PrimFunc of a graph.

    Parameters
    ----------
    name : str or None
        Its ``global_symbol``, or else its name in the module.
    node : int
        Number of the PrimFunc's node.
    is_entry : bool
        Whether its attributes mark it as the module's entry (``tir.is_entry_func``).
    """

    name: str | None
    node: int
    is_entry: bool


def functions_of(graph: Graph) -> list[Function]:
    """Return the PrimFuncs of a module, in its order.

    Raises
    ------
    Unreadable
        The root is neither a module nor a PrimFunc.
    """
    kind = graph.kind(graph.root)
    if kind == "PrimFunc":
        return [_function(graph, None, graph.root)]
    if kind != "IRModule":
        raise Unreadable("no module")
    functions = graph.pairs(graph.child(graph.root, "functions"))
    return [
        _function(graph, key, node) for key, node in functions if graph.kind(node) == "PrimFunc"
    ]


def entry_of(functions: list[Function]) -> Function:
    """Return the function to tune, as MetaSchedule's ``FindEntryFunc`` chooses it.

    Raises
    ------
    Unreadable
        The choice is ambiguous.
    """
    if len(functions) == 1:
        return functions[0]
    chosen = [function for function in functions if function.is_entry]
    chosen = chosen or [function for function in functions if function.name == "main"]
    if len(chosen) != 1:
        raise Unreadable("no single function")
    return chosen[0]


def _function(graph: Graph, key: int | str | None, node: int) -> Function:
    symbol: str | None = None
    is_entry = False
    attrs = graph.optional(node, "attrs")
    entries = None if attrs is None else graph.optional(attrs, "__dict__")
    for attribute, value in [] if entries is None else graph.pairs(entries):
        word = attribute if isinstance(attribute, str) else graph.text(attribute)
        if word == "global_symbol":
            symbol = graph.text(value)
        elif word.endswith(".is_entry_func"):
            is_entry = True
    if symbol is None and isinstance(key, int):
        hint = graph.optional(key, "name_hint")
        symbol = None if hint is None else graph.text(hint)
    return Function(symbol if is_name(symbol) else None, node, is_entry)


def parameters_of(graph: Graph, function: int) -> tuple[Tensor, ...]:
    """Return the buffers among a function's parameters, in order.

    Raises
    ------
    Unreadable
        A shape is not constant, or the graph is damaged.
    """
    table = graph.optional(function, "buffer_map")  # up to 0.25; later a parameter's own type
    buffers = {} if table is None else dict(graph.pairs(table))
    parameters: list[Tensor] = []
    for variable in graph.elements(graph.child(function, "params")):
        graph.visit(variable)
        buffer = buffers.get(variable)
        if buffer is None:
            buffer = graph.optional(variable, "ty")
        if buffer is not None and graph.kind(buffer) in ("Buffer", "BufferType"):
            parameters.append((graph.dtype(buffer), _shape(graph, buffer)))
    return tuple(parameters)


def _shape(graph: Graph, buffer: int) -> tuple[int, ...]:
    dimensions = graph.elements(graph.child(buffer, "shape"))
    if len(dimensions) > MAX_DIMENSIONS:
        raise Unreadable("too many dimensions")
    return tuple(dimension(graph.integer(item)) for item in dimensions)
