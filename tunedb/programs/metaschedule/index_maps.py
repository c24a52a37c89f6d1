"""Index maps of traces, as the JSON graphs that ``tvm.ir.save_json`` writes.

Stored traces have the form of TVM 0.27. Before it, an integer held its value itself, operators had
other prefixes, until 0.25 each expression had its data type as text, and until 0.21 all numbers of
a graph were texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from ...errors import FormatError

__all__ = [
    "NEWEST",
    "Expression",
    "IndexMap",
    "is_newest",
    "read_index_map",
    "release_of",
    "written",
]

#: The release whose form stored traces have.
NEWEST = (0, 27)
#: Earlier releases that tune with tunedb.
_OLDER = ((0, 25), (0, 26))

_NEWEST_TYPE = re.compile(
    r"None|int|ffi\.(?:String|Array)|ir\.(?:PrimType|Var|IntImm|FloatImm)|prim\.\w+|tirx\.IndexMap"
)
#: Fields with the operands of an expression, by its type without prefix.
_OPERANDS = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod"), ("a", "b")),
    **dict.fromkeys(("Min", "Max", "EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or"), ("a", "b")),
    "Not": ("a",),
    "Cast": ("value",),
    "Select": ("condition", "true_value", "false_value"),
}
#: Deepest expression that is read.
_MAX_NESTING = 64


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """An expression over the variables of an index map; equal variables are one object.

    Parameters
    ----------
    kind : str
        ``Var``, ``IntImm``, ``FloatImm``, or the name of an operator.
    dtype : str
        Data type, such as ``int32``.
    value : str or int or float or None
        Name of a variable, or number of a constant.
    operands : tuple of Expression
        Operands of an operator.
    """

    kind: str
    dtype: str
    value: str | float | None = None
    operands: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexMap:
    """An index map.

    Parameters
    ----------
    initial, final : tuple of Expression
        Its variables, and the indices that they become.
    inverse : IndexMap or None
        The inverse map, if it is given.
    """

    initial: tuple[Expression, ...]
    final: tuple[Expression, ...]
    inverse: IndexMap | None = None


def release_of(version: str | None) -> tuple[int, ...]:
    """Return the release of a version of TVM if it has a form of its own, else the newest."""
    found = next((r for r in _OLDER if (version or "").startswith(f"{r[0]}.{r[1]}.")), None)
    return NEWEST if found is None else found


def read_index_map(graph: dict[str, Any]) -> IndexMap:
    """Return the index map of its graph by any TVM.

    Raises
    ------
    FormatError
        The graph is no index map, or has an object of another type.
    """
    try:
        reader = _Reader(graph["nodes"])
        root = graph["root_index"] if "root_index" in graph else graph["root"]
        return reader.index_map(root)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(f"cannot read an index map: {error}") from error


def is_newest(graph: dict[str, Any]) -> bool:
    """Return whether a graph has the newest release's names; those of its integers count, too."""
    nodes = graph.get("nodes")
    return isinstance(nodes, list) and all(
        isinstance(node, dict) and _NEWEST_TYPE.fullmatch(str(node.get("type", "")))
        for node in nodes
    )


def written(graph: dict[str, Any], release: tuple[int, ...] = NEWEST) -> str:
    """Return the JSON of an index map by any TVM as another release writes it, to the bit.

    Parameters
    ----------
    graph : dict
        The graph that is in the JSON.
    release : tuple of int
        First two numbers of the version, from 0.25 to 0.27.

    Raises
    ------
    FormatError
        As :func:`read_index_map`.
    """
    index_map = read_index_map(graph)
    attributes = graph.get("metadata") or graph.get("attrs") or {}
    try:
        return _Writer(release).text(index_map, attributes)
    except (TypeError, ValueError) as error:  # such as a number of more than 64 bits
        raise FormatError(f"cannot write an index map: {error}") from error


class _Reader:
    """Objects of a graph by number."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self._nodes = nodes
        self._has_integers = any(node.get("type") == "int" for node in nodes)
        self._expressions: dict[int, Expression] = {}

    def index_map(self, number: Any, *, is_inverse: bool = False) -> IndexMap:
        """Return the index map with a number; an inverse has none itself."""
        kind, fields = self._node(number)
        if kind != "IndexMap":
            raise FormatError(f"expected an index map, not an object of type {kind}")
        initial, final = (
            tuple(self._expression(item) for item in self._items(fields[name]))
            for name in ("initial_indices", "final_indices")
        )
        inverse = fields.get("inverse_index_map", 0)
        if is_inverse or self._node(inverse)[0] in ("None", ""):
            return IndexMap(initial, final)
        return IndexMap(initial, final, self.index_map(inverse, is_inverse=True))

    def _node(self, number: Any) -> tuple[str, Any]:
        """Return the type of an object, without its prefix, and its contents."""
        index = int(number)
        if index < 0:
            raise FormatError(f"an index map refers to the object {index}")
        node = self._nodes[index]
        if "type_key" in node:
            contents = node.get("attrs", node.get("data", node.get("repr_str")))
            return str(node["type_key"]).rpartition(".")[2], contents
        return str(node["type"]).rpartition(".")[2], node.get("data")

    def _items(self, number: Any) -> Any:
        kind, items = self._node(number)
        if kind != "Array":
            raise FormatError(f"an index map has an object of type {kind} for its indices")
        return items

    def _expression(self, number: Any, depth: int = 0) -> Expression:
        index = int(number)
        found = self._expressions.get(index)
        if found is not None:
            return found
        if depth > _MAX_NESTING:
            raise FormatError("an index map is nested too deep")
        kind, fields = self._node(index)
        operands: tuple[Expression, ...] = ()
        value: str | float | None = None
        if kind == "Var":
            value = self._name(fields["name"])
        elif kind == "IntImm":
            value = self._integer(fields["value"])
        elif kind == "FloatImm":
            value = float(fields["value"])
        elif kind in _OPERANDS:
            operands = tuple(self._expression(fields[n], depth + 1) for n in _OPERANDS[kind])
        else:
            raise FormatError(f"an index map has an object of type {kind}")
        made = self._expressions[index] = Expression(kind, self._dtype(fields), value, operands)
        return made

    def _name(self, name: Any) -> str:
        return name if isinstance(name, str) else str(self._node(name)[1])

    def _integer(self, value: Any) -> int:
        return int(self._node(value)[1]) if self._has_integers else int(value)

    def _dtype(self, fields: dict[str, Any]) -> str:
        return str(fields["dtype"] if "dtype" in fields else self._node(fields["ty"])[1]["dtype"])


class _Writer:
    """Nodes in the order of TVM's writer: each after those that it refers to."""

    def __init__(self, release: tuple[int, ...]) -> None:
        self._integers_are_nodes = release >= (0, 27)
        self._types_are_nodes = release >= (0, 26)
        self._nodes: list[dict[str, Any]] = []
        self._numbers: dict[Any, int] = {}

    def text(self, index_map: IndexMap, attributes: dict[str, Any]) -> str:
        """Return the JSON of an index map."""
        root = self._index_map(index_map)
        graph = {"root_index": root, "nodes": self._nodes, "metadata": attributes}
        return orjson.dumps(graph, option=orjson.OPT_INDENT_2).decode()

    def _add(self, key: Any, type_: str, data: Any = None) -> int:
        """Return the number of an object, which is new unless it has the key of another one."""
        if key is not None and key in self._numbers:
            return self._numbers[key]
        self._nodes.append({"type": type_} if data is None else {"type": type_, "data": data})
        number = len(self._nodes) - 1
        if key is not None:
            self._numbers[key] = number
        return number

    def _index_map(self, index_map: IndexMap) -> int:
        fields = {"initial_indices": self._array(index_map.initial)}
        fields["final_indices"] = self._array(index_map.final)
        inverse = index_map.inverse
        fields["inverse_index_map"] = self._none() if inverse is None else self._index_map(inverse)
        return self._add(None, "tirx.IndexMap", fields)

    def _array(self, expressions: tuple[Expression, ...]) -> int:
        return self._add(None, "ffi.Array", [self._expression(each) for each in expressions])

    def _none(self) -> int:
        return self._add("None", "None")

    def _expression(self, expression: Expression) -> int:
        if expression in self._numbers:
            return self._numbers[expression]
        kind, dtype, value = expression.kind, expression.dtype, expression.value
        fields: dict[str, Any] = {"span": self._none()}
        if self._types_are_nodes:
            fields["ty"] = self._type(dtype, ("type", dtype))
        else:
            fields["dtype"] = dtype
        if kind == "Var":
            fields["name"] = self._add(("name", value), "ffi.String", value)
            if not self._types_are_nodes:
                fields["type_annotation"] = self._type(dtype, None)
        elif kind == "IntImm":
            is_node = self._integers_are_nodes
            fields["value"] = self._add(("int", value), "int", value) if is_node else value
        elif kind == "FloatImm":
            fields["value"] = value
        else:
            for name, operand in zip(_OPERANDS[kind], expression.operands, strict=True):
                fields[name] = self._expression(operand)
        return self._add(expression, f"{self._prefix(kind)}.{kind}", fields)

    def _prefix(self, kind: str) -> str:
        if kind in ("IntImm", "FloatImm") or (kind == "Var" and self._types_are_nodes):
            return "ir"
        return "prim" if self._integers_are_nodes else "tirx"

    def _type(self, dtype: str, key: Any) -> int:
        if key in self._numbers:
            return self._numbers[key]
        return self._add(key, "ir.PrimType", {"span": self._none(), "dtype": dtype})
