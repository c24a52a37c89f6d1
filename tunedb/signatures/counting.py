"""Arithmetic operations of a function's body.

The definition is that of TVM's ``EstimateTIRFlops`` (``src/s_tir/analysis/estimate_flops.cc``):
each ``+ - * / // % min max`` in a stored value is one operation, of integers as of floats, times
the extents of the loops around it. Indexes, comparisons, casts, loads and calls (``exp``,
``sqrt``) are none, though a call's arguments are counted; of two branches the dearer one counts.
"""

from __future__ import annotations

from .graphs import Graph, Unreadable, dimension

_A_AND_B = ("a", "b")

#: Operations of a node itself, and the fields whose operations are added.
_COSTS: dict[str, tuple[int, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max"), (1, _A_AND_B)
    ),
    **dict.fromkeys(("And", "Or"), (0, _A_AND_B)),
    **dict.fromkeys(("EQ", "NE", "LT", "LE", "GT", "GE"), (0, ())),
    **dict.fromkeys(("Var", "SizeVar", "IntImm", "FloatImm", "StringImm"), (0, ())),
    **dict.fromkeys(("BufferLoad", "TensorLoad", "ProducerLoad", "Evaluate"), (0, ())),
    **dict.fromkeys(("Cast", "BufferStore", "Bind"), (0, ("value",))),
    **dict.fromkeys(("Let", "LetStmt", "AttrStmt"), (0, ("value", "body"))),
    **dict.fromkeys(("Allocate", "AllocateConst", "AllocBuffer", "DeclBuffer"), (0, ("body",))),
    **dict.fromkeys(("BlockRealize", "SBlockRealize"), (0, ("block",))),
    **dict.fromkeys(("Block", "SBlock"), (0, ("init", "body"))),
    "Not": (0, ("a",)),
    "AssertStmt": (0, ("condition", "body")),
    "For": (0, ("body",)),
    "PrimFunc": (0, ("body",)),
    "IfThenElse": (0, ("condition", "then_case", "else_case")),
    "Select": (0, ("condition", "true_value", "false_value")),
}

#: Nodes whose operations are those of the nodes in an array.
_LISTS = {"SeqStmt": "seq", "Call": "args"}

_BRANCHES = frozenset({"IfThenElse", "Select"})


def operations_of(graph: Graph, root: int) -> float:
    """Return the arithmetic operations of one run of a function, block or expression.

    Infinite where there are more than a float can hold.

    Parameters
    ----------
    graph : Graph
        Where the node is.
    root : int
        A PrimFunc, a statement or an expression.

    Raises
    ------
    Unreadable
        A loop has no constant extent or is a ``While``, a node is of no known kind, or the graph
        is damaged or contains itself.
    """
    counts: dict[int, float] = {}
    open_nodes: set[int] = set()
    # Explicit, because graphs may be deeper than Python's stack; each node is counted once.
    stack = [(root, False)]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            open_nodes.remove(node)
            counts[node] = _count(graph, node, counts)
        elif node in open_nodes:
            raise Unreadable("a node inside itself")
        elif node not in counts:
            open_nodes.add(node)
            stack.append((node, True))
            stack += [(child, False) for child in set(_children(graph, node)) - counts.keys()]
    return counts[root]


def _children(graph: Graph, node: int) -> list[int]:
    """Return the nodes whose operations a node's are made of."""
    kind = graph.visit(node)
    if kind in _LISTS:
        return graph.elements(graph.child(node, _LISTS[kind]))
    if kind not in _COSTS:
        raise Unreadable(f"operations of a {kind}")
    found = (graph.optional(node, field) for field in _COSTS[kind][1])
    return [child for child in found if child is not None]


def _count(graph: Graph, node: int, counts: dict[int, float]) -> float:
    """Return the operations of a node, given those of its children."""
    kind = graph.kind(node)
    costs = [counts[child] for child in _children(graph, node)]
    if kind in _BRANCHES:
        return costs[0] + max(costs[1:], default=0.0) if costs else 0.0
    total = sum(costs, 0.0)  # as floats, which do not grow in memory
    if kind == "For":
        return total * dimension(graph.integer(graph.child(node, "extent")))
    return total + _COSTS[kind][0] if kind in _COSTS else total
