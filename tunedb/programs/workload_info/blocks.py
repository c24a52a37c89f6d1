"""The operator family of a function from the names and the computations of its blocks.

A block that sums products of two tensors is a contraction. Its indexes distinguish the families:
a spatial and a reduction iterator added in one index are the window of a convolution, a spatial
iterator of both tensors is a batch or a group. Softmax, normalization and pooling have the loops
of other reductions; their names distinguish them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .families import anchor_of, family_of_name, is_convolution, is_matmul, transposed_of
from .graphs import MAX_NAME, Graph, Unreadable, dimension

#: The iterators of a block: kind (TVM's ``IterVarType``) and extent; None if it is not constant.
Iterators = tuple[tuple[int, int | None], ...]

# ---- Arithmetic operations of a function's body --------------------------------------------------
#
# As in TVM's ``EstimateTIRFlops`` (``src/s_tir/analysis/estimate_flops.cc``), each
# ``+ - * / // % min max`` in a stored value is one operation, of integers and floats, times the
# extents of the loops around it. Indexes, comparisons, casts, loads, calls (``exp``, ``sqrt``) and
# operations on bits (calls until 0.26) do not count, but their operands do; of two branches the
# dearer one counts.

_A_AND_B = ("a", "b")
_BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LShift", "RShift")

#: Operations of a node itself, and the fields whose operations it adds.
_COSTS: dict[str, tuple[int, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max"), (1, _A_AND_B)
    ),
    **dict.fromkeys(("And", "Or", *_BITWISE), (0, _A_AND_B)),
    **dict.fromkeys(("EQ", "NE", "LT", "LE", "GT", "GE"), (0, ())),
    **dict.fromkeys(("Var", "SizeVar", "IntImm", "FloatImm", "StringImm"), (0, ())),
    **dict.fromkeys(("BufferLoad", "TensorLoad", "ProducerLoad", "Evaluate"), (0, ())),
    **dict.fromkeys(("Cast", "BufferStore", "Bind"), (0, ("value",))),
    **dict.fromkeys(("Let", "LetStmt", "AttrStmt"), (0, ("value", "body"))),
    **dict.fromkeys(("Allocate", "AllocateConst", "AllocBuffer", "DeclBuffer"), (0, ("body",))),
    **dict.fromkeys(("BlockRealize", "SBlockRealize"), (0, ("block",))),
    **dict.fromkeys(("Block", "SBlock"), (0, ("init", "body"))),
    **dict.fromkeys(("Not", "BitwiseNot"), (0, ("a",))),
    "AssertStmt": (0, ("condition", "body")),
    "For": (0, ("body",)),
    "PrimFunc": (0, ("body",)),
    "IfThenElse": (0, ("condition", "then_case", "else_case")),
    "Select": (0, ("condition", "true_value", "false_value")),
}

#: Nodes that add the operations of the nodes in an array.
_LISTS = {"SeqStmt": "seq", "Call": "args"}

_BRANCHES = frozenset({"IfThenElse", "Select"})


def operations_of(graph: Graph, root: int) -> float:
    """Return the arithmetic operations of one run of a function, block or expression.

    Infinite if a float cannot hold the number.

    Parameters
    ----------
    graph : Graph
        The graph with the node.
    root : int
        A PrimFunc, a statement or an expression.

    Raises
    ------
    Unreadable
        A loop has no constant extent or is a ``While``, a node has an unknown kind, or the graph
        is damaged or contains itself.
    """
    counts: dict[int, float] = {}
    open_nodes: set[int] = set()
    # An explicit stack, because graphs may be deeper than Python's; it counts each node once.
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
    """Return the nodes whose operations a node adds."""
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


# ---- The operator family of a function -----------------------------------------------------------

#: Parts of a statement.
_STATEMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("BlockRealize", "SBlockRealize"), ("block",)),
    **dict.fromkeys(
        (
            "PrimFunc",
            "Block",
            "SBlock",
            "For",
            "While",
            "LetStmt",
            "AttrStmt",
            "AssertStmt",
            "Allocate",
            "AllocateConst",
            "AllocBuffer",
            "DeclBuffer",
        ),
        ("body",),
    ),
    "IfThenElse": ("then_case", "else_case"),
    "BufferStore": (),
    "Bind": (),
    "Evaluate": (),
}

_BLOCKS = frozenset({"Block", "SBlock"})
_LOADS = frozenset({"BufferLoad", "TensorLoad"})
_VARIABLES = frozenset({"Var", "SizeVar"})
_LOOPS = frozenset({"For", "While"})
_BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max"})
_COMPARISONS = frozenset({"EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or"})
_COMPUTED = _BINARY | _COMPARISONS | {"Cast", "Not", "BitwiseNot", *_BITWISE}

#: Nodes of an affine index.
_AFFINE = _VARIABLES | {"Add", "Sub", "Mul", "IntImm", "Cast"}

#: TVM's numbers of ``IterVarType``: kDataPar and kCommReduce.
_SPATIAL, _REDUCTION = 0, 2

#: Calls that choose among values and compute none.
_CHOICES = frozenset({"if_then_else", "likely"})

#: Families that come from the name of a block with, and without, a reduction.
_NAMED_REDUCTIONS = ("softmax", "normalization", "pooling", "sparse_dense")
_NAMED_OTHERS = ("softmax", "normalization")


@dataclass(frozen=True, slots=True)
class _Read:
    """The indexes of an operand's load.

    ``dimensions`` are the iterators of each index, ``windows`` those of the affine indexes: an
    index with a division belongs to a reshaped tensor, not to a window.
    """

    buffer: int
    dimensions: tuple[frozenset[int], ...]
    windows: tuple[frozenset[int], ...]


@dataclass(slots=True)
class _Block:
    """A block without a block inside it."""

    name: str
    extents: dict[int, int] = field(default_factory=dict)
    spatial: set[int] = field(default_factory=set)
    reduction: set[int] = field(default_factory=set)
    has_init: bool = False
    has_loops: bool = False
    stores: list[int] = field(default_factory=list)


def family_of_blocks(graph: Graph, function: int) -> str | None:
    """Return the operator family of a PrimFunc; None if its blocks do not tell.

    Raises
    ------
    Unreadable
        The graph is damaged.
    """
    blocks = _blocks_of(graph, function)
    families = [_family_of_block(graph, block) for block in blocks]
    known = [family for family in families if family is not None]
    if "softmax" in known and sum(is_matmul(family) for family in known) > 1:
        return "attention"
    anchor = anchor_of(known)
    if anchor is None or not is_convolution(anchor):
        return anchor
    named = (family_of_name(block.name) for block in blocks)
    known += [family for family in named if family is not None and is_convolution(family)]
    # TVM writes a transposed convolution as a convolution over its dilated input.
    if any("dilate" in block.name and "data" in block.name for block in blocks):
        known.append(transposed_of(anchor))
    return anchor_of(known)


def _blocks_of(graph: Graph, function: int) -> list[_Block]:
    """Return the innermost blocks of a function in the order of its statements."""
    blocks: list[_Block] = []
    seen: set[int] = set()
    stack: list[tuple[int, _Block | None]] = [(function, None)]
    while stack:
        node, block = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        kind = graph.visit(node)
        if kind in _BLOCKS:
            block = _read_block(graph, node)
            blocks.append(block)
        elif block is not None:
            block.has_loops |= kind in _LOOPS
            if kind == "BufferStore":
                block.stores.append(node)
        stack += [(child, block) for child in reversed(_statements_in(graph, node, kind))]
    return [block for block in blocks if block.stores]


def iterated_blocks(graph: Graph, function: int) -> list[tuple[str | None, Iterators]]:
    """Return the name and the iterators of each block of a function, in the order of statements.

    Returns
    -------
    list of (str or None, tuple of (int, int or None))
        Name, None if it is unreadable, and for each iterator its kind (TVM's ``IterVarType``) and
        extent, None if it is not constant. Blocks without iterators, such as the root, are left
        out.

    Raises
    ------
    Unreadable
        The graph is damaged.
    """
    found: list[tuple[str | None, Iterators]] = []
    seen: set[int] = set()
    stack = [function]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        kind = graph.visit(node)
        if kind in _BLOCKS and (iterators := _iterators_in(graph, node)):
            try:
                name = _name_of(graph, node)
            except Unreadable:  # the iterators alone decide what the block is
                name = None
            found.append((name, iterators))
        stack += reversed(_statements_in(graph, node, kind))
    return found


def _name_of(graph: Graph, block: int) -> str:
    return graph.text(graph.child(block, "name_hint"))[:MAX_NAME]


def _iterators_in(graph: Graph, block: int) -> Iterators:
    found = []
    for iterator in graph.elements(graph.child(block, "iter_vars")):
        # The older encoding writes numbers as text.
        kind = str(graph.field(iterator, "iter_type"))
        if not kind.isdecimal() or len(kind) > 2:
            raise Unreadable("no kind of iterator")
        extent = graph.child(graph.child(iterator, "dom"), "extent")
        constant = graph.integer(extent) if graph.kind(extent) == "IntImm" else None
        found.append((int(kind), constant))
    return tuple(found)


def _statements_in(graph: Graph, node: int, kind: str) -> list[int]:
    if kind == "SeqStmt":
        return graph.elements(graph.child(node, "seq"))
    found = (graph.optional(node, name) for name in _STATEMENTS.get(kind, ()))
    return [child for child in found if child is not None]


def _read_block(graph: Graph, node: int) -> _Block:
    block = _Block(_name_of(graph, node))
    block.has_init = graph.optional(node, "init") is not None
    for iterator in graph.elements(graph.child(node, "iter_vars")):
        kind = graph.field(iterator, "iter_type")
        variable = graph.child(iterator, "var")
        extent = graph.child(graph.child(iterator, "dom"), "extent")
        if graph.kind(extent) == "IntImm":
            block.extents[variable] = graph.integer(extent)
        if kind in (_SPATIAL, str(_SPATIAL)):
            block.spatial.add(variable)
        elif kind in (_REDUCTION, str(_REDUCTION)):
            block.reduction.add(variable)
    return block


def _family_of_block(graph: Graph, block: _Block) -> str | None:
    named = family_of_name(block.name)
    if named is not None and named.endswith("_winograd"):
        return named  # only the name of its last block, which reduces nothing, has the word
    if block.has_init or block.reduction:
        return _family_of_reduction(graph, block, named)
    if named in _NAMED_OTHERS:
        return named
    if block.has_loops:
        return None
    computes = any(_computes(graph, graph.child(store, "value")) for store in block.stores)
    return "elementwise" if computes else "data_movement"


def _family_of_reduction(graph: Graph, block: _Block, named: str | None) -> str:
    if named in _NAMED_REDUCTIONS:
        return named
    contraction = _contraction(graph, block) if len(block.stores) == 1 else None
    if contraction == "matmul" and named is not None and is_convolution(named):
        return named  # of 1x1 windows, whose indexes were simplified
    return contraction or "reduction"


def _contraction(graph: Graph, block: _Block) -> str | None:
    """Return the family of a block that sums products, None for one that does not."""
    product = _summed_product(graph, block.stores[0])
    if product is None:
        return None
    reads = [_reads_of(graph, operand, block.extents) for operand in product]
    if not (reads[0] and reads[1]) or set(reads[0]) == set(reads[1]):
        return None  # e.g. the sum of squares
    data, kernel = reads
    n_windows = _windows(block, data, kernel)
    if not n_windows:
        data, kernel = kernel, data
        n_windows = _windows(block, data, kernel)
    data_variables, kernel_variables = _variables(data), _variables(kernel)
    shared = data_variables & kernel_variables & block.spatial
    if n_windows:
        return _convolution(block, data, shared, kernel_variables, n_windows)
    is_product = bool(data_variables & kernel_variables & block.reduction) and bool(
        (data_variables ^ kernel_variables) & block.spatial
    )
    if not is_product:
        return None
    return "batch_matmul" if shared else "matmul"


def _convolution(
    block: _Block, data: list[_Read], shared: set[int], kernel: set[int], n_windows: int
) -> str | None:
    if n_windows > 3:
        return None
    if not shared:
        return f"conv{n_windows}d"
    in_windows = {
        variable
        for read in data
        for window in read.windows
        if window & (block.spatial - kernel)
        for variable in window
    }
    sums_channels = (_variables(data) & block.reduction) - in_windows
    return f"group_conv{n_windows}d" if sums_channels else f"depthwise_conv{n_windows}d"


def _windows(block: _Block, data: list[_Read], kernel: list[_Read]) -> int:
    """Return in how many dimensions `data` is read at an output's place plus the kernel's."""
    own = block.spatial - _variables(kernel)
    taps = block.reduction & _variables(kernel)
    return max(sum(bool(w & own) and bool(w & taps) for w in read.windows) for read in data)


def _variables(reads: list[_Read]) -> set[int]:
    return {variable for read in reads for index in read.dimensions for variable in index}


def _summed_product(graph: Graph, store: int) -> tuple[int, int] | None:
    """Return the factors of ``C[..] = C[..] + a * b``."""
    total = _without_casts(graph, graph.child(store, "value"))
    if graph.visit(total) != "Add":
        return None
    target = _buffer(graph, store)
    sides = [_without_casts(graph, graph.child(total, side)) for side in ("a", "b")]
    for own, other in (sides, sides[::-1]):
        if graph.visit(own) in _LOADS and _buffer(graph, own) == target:
            if graph.visit(other) != "Mul":
                return None
            return graph.child(other, "a"), graph.child(other, "b")
    return None


def _without_casts(graph: Graph, node: int) -> int:
    while graph.visit(node) == "Cast":
        node = graph.child(node, "value")
    return node


def _buffer(graph: Graph, access: int) -> int:
    """Return the buffer of a load or store; TVM 0.27 renamed the field."""
    found = graph.optional(access, "buffer")
    return graph.child(access, "source") if found is None else found


def _reads_of(graph: Graph, operand: int, extents: dict[int, int]) -> list[_Read]:
    """Return the loads in an operand of a product."""
    reads = []
    for node in _walk(graph, operand, {}):
        if graph.kind(node) in _LOADS:
            dimensions, windows = [], []
            for index in graph.elements(graph.child(node, "indices")):
                nodes = _walk(graph, index, extents)
                kinds = {graph.kind(item) for item in nodes}
                variables = frozenset(n for n in nodes if graph.kind(n) in _VARIABLES)
                dimensions.append(variables)
                windows.append(variables if kinds <= _AFFINE else frozenset())
            reads.append(_Read(_buffer(graph, node), tuple(dimensions), tuple(windows)))
    return reads


def _walk(graph: Graph, root: int, extents: dict[int, int]) -> list[int]:
    """Return the nodes of an expression, each once, without the indexes of loads.

    The terms of a division that is zero, given the extents of iterators, are left out too: a
    convolution without groups may have ``co // 64`` with 64 channels.
    """
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        kind = graph.visit(node)
        if not (kind == "FloorDiv" and is_zero(graph, node, extents)):
            stack += _operands(graph, node, kind)
    return list(seen)


def is_zero(graph: Graph, division: int, extents: Mapping[int, int]) -> bool:
    """Tell whether a division (``FloorDiv``) of an iterator is always zero.

    Parameters
    ----------
    graph : Graph
        The graph with the division.
    division : int
        Its node.
    extents : mapping of int to int
        Variable of an iterator → its extent; it starts from 0.

    Raises
    ------
    Unreadable
        The node lacks a side.
    """
    extent = extents.get(graph.child(division, "a"))
    divisor = graph.child(division, "b")
    if extent is None or graph.kind(divisor) != "IntImm":
        return False
    return graph.integer(divisor) >= extent


def _operands(graph: Graph, node: int, kind: str) -> list[int]:
    """Return the operands of an expression, without the conditions of choices."""
    if kind in _BINARY or kind in _COMPARISONS:
        return [graph.child(node, "a"), graph.child(node, "b")]
    if kind == "Cast":
        return [graph.child(node, "value")]
    if kind == "Select":
        return [graph.child(node, side) for side in ("true_value", "false_value")]
    if kind == "Call":
        arguments = graph.elements(graph.child(node, "args"))
        return arguments[1:] if _callee(graph, node) == "if_then_else" else arguments
    return []


def _computes(graph: Graph, value: int) -> bool:
    """Tell whether a stored value is computed, and not only moved or chosen."""
    for node in _walk(graph, value, {}):
        kind = graph.kind(node)
        if kind in _COMPUTED or (kind == "Call" and _callee(graph, node) not in _CHOICES):
            return True
    return False


def _callee(graph: Graph, call: int) -> str:
    """Return the last part of the name of the called operator, e.g. ``if_then_else``."""
    try:
        return graph.operator(graph.child(call, "op"))
    except Unreadable:
        return ""
