"""What a workload computes, told without TVM: name, arguments, operator family, operations.

Operations (``flops``) are counted by one of two definitions, and None where neither applies:

* of a graph, as TVM's ``EstimateTIRFlops`` counts (:mod:`.counting`): every arithmetic operation
  of the function's body, epilogues and padding included;
* of a key, two per multiply-add of the anchor operator (:mod:`.operations`), one per element of
  an elementwise function, a reduction's input and a pooling's windows (:mod:`.functions`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import orjson

from ... import limits
from ...records import Signature, Workload, WorkloadFormat
from .blocks import family_of_blocks, operations_of
from .families import anchor_of, family_of_name
from .graphs import Function, Graph, Unreadable, entry_of, functions_of, graph_of, parameters_of
from .keys import of_ansor, of_arguments, of_autotvm

#: Versions whose graphs TVM 0.27 loads: its own. It refuses those of 0.25 and 0.26, and some of
#: 0.26 crash the process.
_LOADABLE = re.compile(r"0\.27\.\d+(?:rc\d+|\.post\d+)?(?:\+.*)?")


def signature_of(workload: Workload) -> Signature:
    """Return what can be told about a workload without TVM.

    Parameters
    ----------
    workload : Workload
        Of any format and any source. Its body is foreign: what is damaged or unknown in it is
        None in the signature, and nothing is raised for it.

    Returns
    -------
    Signature
        ``flops`` as defined at the head of this package. ``arguments`` are the buffers among a
        function's parameters, for AutoTVM the tensors that the task names (its inputs); a tensor
        of unknown extent makes them None as a whole.
    """
    try:
        value = orjson.loads(workload.body)
    except orjson.JSONDecodeError:
        return Signature()
    tell = _TELLERS.get(workload.format)
    return Signature() if tell is None else tell(value)


def is_rebuildable(format: str, tvm_version: str | None, *, has_script: bool) -> bool:
    """Tell whether the plugin can make a module of today's TVM (0.27) from a workload.

    Parameters
    ----------
    format : str
        The workload's :class:`~tunedb.records.WorkloadFormat`.
    tvm_version : str or None
        Version of TVM that wrote its graph; a graph of unknown version is not loaded.
    has_script : bool
        Whether its TVMScript text is stored, which outlives versions.
    """
    if has_script:
        return True
    is_loadable = tvm_version is not None and _LOADABLE.fullmatch(tvm_version) is not None
    return format == WorkloadFormat.GRAPH and is_loadable


def _of_kernel(value: Any) -> Signature:
    """Return the name of a GPU kernel: of a program's workload, or of a FAIR T1 input."""
    if isinstance(value, dict):
        inside = value.get("KernelSpecification")
        named = value.get("kernel")
        if named is None and isinstance(inside, dict):
            named = inside.get("KernelName")
        if isinstance(named, str) and named:
            return Signature(named[: limits.MAX_NAME_CHARS])
    return Signature()


def _of_graph(value: Any) -> Signature:
    try:
        graph = graph_of(value)
        functions = functions_of(graph)
        entry = entry_of(functions)
    except Unreadable:
        return Signature()
    try:
        arguments = parameters_of(graph, entry.node) or None
    except Unreadable:
        arguments = None
    return Signature(entry.name, arguments, _family(graph, entry), _flops(graph, functions))


def _family(graph: Graph, entry: Function) -> str | None:
    named = None if entry.name is None else family_of_name(entry.name)
    try:
        return anchor_of((named, family_of_blocks(graph, entry.node)))
    except Unreadable:
        return named


def _flops(graph: Graph, functions: list[Function]) -> float | None:
    """Return the operations of a whole module, as TVM counts them."""
    try:
        count = sum(operations_of(graph, function.node) for function in functions)
    except Unreadable:
        return None
    return count if math.isfinite(count) else None


#: Format → what tells its signature.
_TELLERS: dict[str, Callable[[Any], Signature]] = {
    WorkloadFormat.GRAPH: _of_graph,
    WorkloadFormat.NODES: _of_graph,
    WorkloadFormat.ANSOR: of_ansor,
    WorkloadFormat.AUTOTVM: of_autotvm,
    WorkloadFormat.ARGUMENTS: of_arguments,
    WorkloadFormat.KERNEL: _of_kernel,
    WorkloadFormat.T1: _of_kernel,
}
