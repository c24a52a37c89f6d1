"""Facts of a workload: its sizes, and its blocks with their axes and accesses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from ...programs.workload_info.blocks import is_zero
from ...programs.workload_info.graphs import Graph, Unreadable, entry_of, functions_of, graph_of
from ...records import MODULES, Signature, Workload
from .columns import TASK
from .operators import AnchorOperator, operator_of
from .schedule import REDUCTION, SPATIAL, UNKNOWN, Schedule

_BLOCKS = ("Block", "SBlock")
_LOADS = ("BufferLoad", "TensorLoad")
_VARIABLES = ("Var", "SizeVar")
_ITERATOR_KINDS = {0: SPATIAL, "0": SPATIAL, 2: REDUCTION, "2": REDUCTION}

#: Most visited nodes of a block, which bounds the cost of a graph with shared nodes.
_MAX_NODES = 20_000
_MAX_ACCESSES = 32
_MAX_BLOCKS = 256

_BITS = re.compile(r"[a-z_]+?(\d+)")
_DEFAULT_BITS = 32


#: The axes in an index, each with its stride.
Dimension = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Access:
    """An access of a block to a tensor.

    Parameters
    ----------
    bits : int
        Size of an element in bits.
    is_write : bool
        The block writes the tensor.
    dimensions : tuple of Dimension
        One item per index. An axis that an index divides, to get the start of its group of
        channels, is left out: within a group it changes nothing.
    groups : tuple of (int, int)
        Those axes, each with the extent of a group.
    """

    bits: int
    is_write: bool
    dimensions: tuple[Dimension, ...]
    groups: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A block of the unscheduled computation.

    Parameters
    ----------
    axes : tuple of (int or None, str)
        Index of each iterator's extent among the workload's extents, None for one that is not
        constant; and the iterator's kind.
    accesses : tuple of Access
        At most one read and one write of each tensor.
    """

    axes: tuple[tuple[int | None, str], ...]
    accesses: tuple[Access, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskStructure:
    """The structure that workloads of different extents share; hashable.

    Parameters
    ----------
    tool : str
        One of :data:`.columns.TOOLS`.
    blocks : tuple of (str, Block)
        Blocks of a module by name.
    operator : AnchorOperator or None
        Operator of a workload key, for workloads without blocks.
    bits : int
        Bits of an element of the first argument.
    is_product : bool
        The workload is a product of matrices.
    is_dense_gpu : bool
        The workload is one of AutoTVM's templates ``dense_*.gpu``.
    n_extents : int
        Number of extents.
    """

    tool: str
    blocks: tuple[tuple[str, Block], ...] = ()
    operator: AnchorOperator | None = None
    bits: int = _DEFAULT_BITS
    is_product: bool = False
    is_dense_gpu: bool = False
    n_extents: int = 0

    def block(self, name: str) -> Block | None:
        """Return the block of that name."""
        return next((block for known, block in self.blocks if known == name), None)

    def tiled_block(self, schedule: Schedule) -> Block | None:
        """Return the block whose axes match those of a schedule's tiled stage, or None."""
        block = self.block(schedule.name)
        if block is None and self.operator is not None:
            block = _block_of_operator(self.operator, self.bits)
        return block if block is not None and len(block.axes) == len(schedule.axes) else None


def _block_of_operator(operator: AnchorOperator, bits: int) -> Block:
    numbers = {letter: number for number, letter in enumerate(operator.letters)}
    accesses = tuple(
        Access(
            bits, is_write, tuple(tuple((numbers[axis], by) for axis, by in dim) for dim in dims)
        )
        for is_write, dims in operator.accesses
    )
    axes = tuple((number, operator.kind(letter)) for letter, number in numbers.items())
    return Block(axes, accesses)


def read_task(
    workload: Workload, signature: Signature, tool: str
) -> tuple[TaskStructure, list[float]]:
    """Return the structure and the numbers of a workload, from the readable parts of its body.

    The numbers are those of :data:`.columns.TASK`, NaN for unknown ones, and then the extents.
    """
    family = None if signature.family is None else re.sub(r"conv\dd", "conv", signature.family)
    function = signature.function or ""
    extents: list[int] = []
    blocks: tuple[tuple[str, Block], ...] = ()
    operator: AnchorOperator | None = None
    if tool == "metaschedule":
        blocks = blocks_of(workload, extents)
    else:
        sized = operator_of(signature, family)
        if sized is not None:
            operator, extents = sized[0], list(sized[1].values())
    numbers = _numbers_of(signature, tool, family)
    structure = TaskStructure(
        tool,
        blocks,
        operator,
        int(numbers["task.element_bits"]),
        family in ("matmul", "batch_matmul"),
        function.startswith("dense") and function.endswith(".gpu"),
        len(extents),
    )
    return structure, [*(numbers.get(name, 0.0) for name in TASK), *map(float, extents)]


def _numbers_of(signature: Signature, tool: str, family: str | None) -> dict[str, float]:
    arguments = signature.arguments or ()
    sizes = [float(math.prod(shape) * bits_of(dtype) // 8) for dtype, shape in arguments]
    flops = math.nan if signature.flops is None else signature.flops
    return {
        f"tool.{tool}": 1.0,
        f"family.{family}": 1.0,
        "task.flops": flops,
        "task.bytes": sum(sizes),
        "task.largest_bytes": max(sizes, default=0.0),
        "task.last_bytes": sizes[-1] if sizes else 0.0,
        "task.arguments": float(len(sizes)),
        "task.intensity": flops / sum(sizes) if sum(sizes) else math.nan,
        "task.element_bits": float(bits_of(arguments[0][0]) if arguments else _DEFAULT_BITS),
    }


def bits_of(dtype: str | None) -> int:
    """Return the bits of an element: 16 for ``float16``, 32 for unknown types."""
    if dtype == "bool":
        return 8
    found = None if dtype is None else _BITS.match(dtype)
    return min(int(found[1]), 1024) if found and len(found[1]) < 5 else _DEFAULT_BITS


# ---------------------------------------------------------------- blocks of a module


def blocks_of(workload: Workload, extents: list[int]) -> tuple[tuple[str, Block], ...]:
    """Return the innermost blocks of a module's entry by name; none if it cannot be read.

    The constant extents of their iterators are appended to `extents`.
    """
    if workload.format not in MODULES:
        return ()
    try:
        graph = graph_of(orjson.loads(workload.body))
        entry = entry_of(functions_of(graph))
        nodes = _blocks_in(graph, entry.node)[:_MAX_BLOCKS]
        return tuple(_read_block(graph, node, extents) for node in nodes)
    except (Unreadable, orjson.JSONDecodeError, RecursionError):
        extents.clear()
        return ()


def _blocks_in(graph: Graph, function: int) -> list[int]:
    """Return the innermost blocks of a function."""
    found: list[int] = []
    seen: set[int] = set()
    stack: list[tuple[int, int | None]] = [(function, None)]
    outer: set[int] = set()
    while stack:
        node, block = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        kind = graph.visit(node)
        if kind in _BLOCKS:
            if block is not None:
                outer.add(block)
            block = node
            found.append(node)
        if kind == "SeqStmt":
            children = graph.elements(graph.child(node, "seq"))
        else:
            names = ("block", "body", "then_case", "else_case")
            children = [c for c in (graph.optional(node, n) for n in names) if c is not None]
        stack += [(child, block) for child in reversed(children)]
    return [node for node in found if node not in outer]


def _read_block(graph: Graph, node: int, extents: list[int]) -> tuple[str, Block]:
    axes: list[tuple[int | None, str]] = []
    numbers: dict[int, int] = {}
    known: dict[int, int] = {}
    for iterator in graph.elements(graph.child(node, "iter_vars")):
        extent = graph.child(graph.child(iterator, "dom"), "extent")
        place: int | None = None
        variable = graph.child(iterator, "var")
        if graph.kind(extent) == "IntImm":
            place = len(extents)
            known[variable] = graph.integer(extent)
            extents.append(known[variable])
        kind = graph.field(iterator, "iter_type")
        numbers[variable] = len(axes)
        axes.append((place, _ITERATOR_KINDS.get(kind, UNKNOWN) if kind is not None else UNKNOWN))
    try:
        accesses = _accesses(_Indices(graph, numbers, known), graph.child(node, "body"))
    except Unreadable:
        accesses = ()
    return graph.text(graph.child(node, "name_hint")), Block(tuple(axes), accesses)


@dataclass(frozen=True, slots=True)
class _Indices:
    """Reads the indices of a block's accesses.

    Parameters
    ----------
    graph : Graph
        The graph with the block.
    numbers : dict
        Variable of an iterator → number of the axis.
    extents : dict
        Variable of an iterator → its extent, if constant.
    """

    graph: Graph
    numbers: dict[int, int]
    extents: dict[int, int]

    def groups(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield axes of which an index has the start of a group: ``axis // extent * stride``."""
        for node in _walk(self.graph, index):
            found = self._group(node)
            if found is not None:
                yield found

    def _group(self, node: int) -> tuple[int, int] | None:
        """Return the axis and the extent of a group whose start a product is; None for others."""
        graph = self.graph
        if graph.kind(node) != "Mul":
            return None
        quotient, stride = graph.child(node, "a"), graph.child(node, "b")
        if graph.kind(quotient) == "IntImm":
            quotient, stride = stride, quotient
        if graph.kind(quotient) != "FloorDiv" or graph.kind(stride) != "IntImm":
            return None
        axis, by = graph.child(quotient, "a"), graph.child(quotient, "b")
        if axis not in self.numbers or graph.kind(by) != "IntImm":
            return None
        return self.numbers[axis], graph.integer(by)

    def dimension(self, index: int) -> Dimension:
        """Return the axes in an index with their coefficients; 1 if it is not affine."""
        try:
            found = self._linear(index, 16)
        except Unreadable:
            nodes = _walk(self.graph, index)
            return tuple((self.numbers[node], 1) for node in nodes if node in self.numbers)
        return tuple((axis, by) for axis, by in found.items() if by)

    def _linear(self, node: int, depth: int) -> dict[int, int]:
        graph = self.graph
        kind = graph.visit(node)
        if node in self.numbers:
            return {self.numbers[node]: 1}
        if kind == "IntImm":
            return {}
        if kind == "Cast" and depth:
            return self._linear(graph.child(node, "value"), depth - 1)
        is_zero_division = kind == "FloorDiv" and is_zero(graph, node, self.extents)
        if is_zero_division or self._group(node) is not None:
            return {}
        if kind in ("Add", "Sub", "Mul") and depth:
            a, b = graph.child(node, "a"), graph.child(node, "b")
            if kind == "Mul":
                if graph.kind(a) == "IntImm":
                    a, b = b, a
                factor = graph.integer(b)
                return {axis: by * factor for axis, by in self._linear(a, depth - 1).items()}
            sign = -1 if kind == "Sub" else 1
            total = self._linear(a, depth - 1)
            for axis, by in self._linear(b, depth - 1).items():
                total[axis] = total.get(axis, 0) + sign * by
            return total
        raise Unreadable("no affine index")


def _accesses(read: _Indices, body: int) -> tuple[Access, ...]:
    """Return the accesses of a block's body, each tensor once for reading and once for writing.

    Tensors that it reads have the order of TVM's ``SBlock.reads``, to which cache stages refer.
    """
    graph = read.graph
    found: dict[tuple[int, bool], Access] = {}
    for node in _walk(graph, body):
        kind = graph.kind(node)
        if kind not in _LOADS and kind != "BufferStore":
            continue
        buffer = graph.optional(node, "buffer")
        if buffer is None:
            buffer = graph.child(node, "source")
        is_write = kind == "BufferStore"
        if (buffer, is_write) in found or len(found) >= _MAX_ACCESSES:
            continue
        indices = graph.elements(graph.child(node, "indices"))
        found[buffer, is_write] = Access(
            _buffer_bits(graph, buffer),
            is_write,
            tuple(map(read.dimension, indices)),
            tuple(group for index in indices for group in read.groups(index)),
        )
    # A reduction reads its output.
    written = {buffer for buffer, is_write in found if is_write}
    return tuple(
        access for (buffer, is_write), access in found.items() if is_write or buffer not in written
    )


def _buffer_bits(graph: Graph, buffer: int) -> int:
    try:
        return bits_of(graph.dtype(buffer))
    except Unreadable:
        return _DEFAULT_BITS


def _walk(graph: Graph, root: int) -> Iterator[int]:
    """Yield the nodes of a statement or expression from left to right, each once."""
    seen: set[int] = set()
    stack = [root]
    while stack and len(seen) < _MAX_NODES:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        stack += reversed(_children(graph, node))


def _children(graph: Graph, node: int) -> list[int]:
    kind = graph.visit(node)
    if kind in _VARIABLES or kind in ("IntImm", "FloatImm", "StringImm"):
        return []
    if kind in _LOADS:
        return graph.elements(graph.child(node, "indices"))
    if kind == "SeqStmt":
        return graph.elements(graph.child(node, "seq"))
    if kind == "Call":
        return graph.elements(graph.child(node, "args"))
    names = ("value", "body", "a", "b", "condition", "true_value", "false_value")
    children = [graph.optional(node, name) for name in (*names, "then_case", "else_case")]
    if kind == "BufferStore":
        children += graph.elements(graph.child(node, "indices"))
    return [child for child in children if child is not None]
