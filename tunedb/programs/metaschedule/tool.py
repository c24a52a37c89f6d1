"""MetaSchedule as a tool (:class:`tunedb.programs.base.Tool`)."""

from __future__ import annotations

import math
from typing import Any

from ...records import Signature, WorkloadFormat
from ..base import Tool
from ..workload_info.blocks import family_of_blocks, operations_of
from ..workload_info.families import anchor_of, family_of_name
from ..workload_info.graphs import (
    Function,
    Graph,
    Unreadable,
    entry_of,
    functions_of,
    graph_of,
    parameters_of,
)
from ..workload_info.keys import of_arguments
from . import allowlist
from .instructions import SAMPLING
from .steps import steps_of
from .trace import join_trace


def _signature_of_module(value: Any) -> Signature:
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
    by_name = None if entry.name is None else family_of_name(entry.name)
    try:
        return anchor_of((by_name, family_of_blocks(graph, entry.node)))
    except Unreadable:
        return by_name


def _flops(graph: Graph, functions: list[Function]) -> float | None:
    """Return the operations of a whole module, as TVM counts them."""
    try:
        count = sum(operations_of(graph, function.node) for function in functions)
    except Unreadable:
        return None
    return count if math.isfinite(count) else None


TOOL = Tool(
    signatures={
        WorkloadFormat.GRAPH: _signature_of_module,
        WorkloadFormat.NODES: _signature_of_module,
        WorkloadFormat.ARGUMENTS: of_arguments,
    },
    steps=steps_of,
    chosen=dict.fromkeys(SAMPLING, "decision"),
    check_sketch=allowlist.check_sketch,
    check_tail=allowlist.check_tail,
    check_decisions=allowlist.check_decisions,
    check_program=allowlist.check_program,
    as_json=join_trace,
)
