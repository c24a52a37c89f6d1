"""The structure of a workload, which confirms a foreign name for it without TVM.

Two workloads of equal structure take the same arguments and run the same iterators in the same
blocks. So a trace of one either does not replay on the other, or computes the other's result there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import orjson

from ...records import Workload, WorkloadFormat
from . import signature_of
from .blocks import Iterators, iterated_blocks
from .graphs import Tensor, Unreadable, entry_of, functions_of, graph_of

_GRAPHS = frozenset({WorkloadFormat.GRAPH, WorkloadFormat.NODES})


@dataclass(frozen=True, slots=True)
class Structure:
    """Arguments, blocks, family and operations of a workload, read from its body.

    Parameters
    ----------
    arguments : tuple of (str or None, tuple of int) or None
        Data types and shapes; None if unknown.
    blocks : tuple of Iterators or None
        The iterators of each function's blocks, in the order of statements; None if the body is not
        a readable graph.
    names : tuple of str or None
        The names of these blocks; None if one is unknown. They do not count in a comparison.
    family : str or None
        The operator family.
    flops : float or None
        Number of operations.
    """

    arguments: tuple[Tensor, ...] | None
    blocks: tuple[Iterators, ...] | None
    names: tuple[str, ...] | None
    family: str | None
    flops: float | None

    def agrees(self, other: Structure, *, anchor: bool = False) -> bool:
        """Tell whether two workloads can be the same computation.

        If the blocks of one are unknown, arguments, family and operations decide. Unknown arguments
        never agree.

        Parameters
        ----------
        other : Structure
            Structure of the other workload.
        anchor : bool
            Compare only the blocks that run most often (TVM's equality ``anchor-block``).
        """
        if anchor:
            mine, others = self._anchor(), other._anchor()
            return mine is not None and mine == others
        if self.arguments is None or self.arguments != other.arguments:
            return False
        if self.blocks is not None and other.blocks is not None:
            return self.blocks == other.blocks
        return (self.family, self.flops) == (other.family, other.flops)

    def _anchor(self) -> Iterators | None:
        """Return the block that runs most often."""
        if not self.blocks:
            return None
        return max(self.blocks, key=lambda block: math.prod(extent or 0 for _, extent in block))


def structure_of(workload: Workload) -> Structure:
    """Return the structure of a workload of any format and source."""
    signature = signature_of(workload)
    blocks: tuple[Iterators, ...] | None = None
    names: tuple[str, ...] | None = None
    if workload.format in _GRAPHS:
        try:
            graph = graph_of(orjson.loads(workload.body))
            functions = functions_of(graph)
            entry_of(functions)
            found = [
                block for function in functions for block in iterated_blocks(graph, function.node)
            ]
            blocks = tuple(iterators for _, iterators in found)
            known = tuple(name for name, _ in found if name is not None)
            names = known if len(known) == len(blocks) else None
        except (orjson.JSONDecodeError, Unreadable):
            pass
    return Structure(signature.arguments, blocks, names, signature.family, signature.flops)
