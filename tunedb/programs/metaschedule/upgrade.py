"""Upgrade of traces of TVM 0.8 to 0.26 to the instruction set of 0.27, without TVM.

The numbers of inputs and attributes identify an instruction's form (:mod:`.instructions`), never a
version: development builds and merged files mix releases. Each instruction becomes exactly one
instruction without new numbers among its inputs, so decisions and literals keep their places, and a
stored part is upgraded once for all programs that share it.

New attributes get the defaults of ``python/tvm/tir/schedule/schedule.py`` of the release that added
them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from ...errors import FormatError
from ...identity import canonical_json
from ...records import Trace
from . import index_maps
from .instructions import INSTRUCTIONS, find_form

#: Kinds with earlier forms, and removed kinds.
_CHANGED = {kind: value for kind, value in INSTRUCTIONS.items() if value.older or value.until}


def upgrade_trace(instructions: list[Any], decisions: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return a trace of any release since TVM 0.8 in the instruction set of TVM 0.27.

    Parameters
    ----------
    instructions : list
        ``[kind, inputs, attrs, outputs]`` per instruction, as in the file
        (:func:`tunedb.programs.metaschedule.trace.check_trace`).
    decisions : list
        ``[index, value]`` per sampling instruction.

    Raises
    ------
    FormatError
        An instruction has no equivalent in today's TVM.
    """
    return _upgrade_instructions(instructions), decisions


def upgrade(trace: Trace) -> Trace:
    """Return a stored trace in today's instruction set; the same object if it needs no upgrade.

    Raises
    ------
    FormatError
        As for :func:`upgrade_trace`, or the parts are damaged.
    """
    sketch = _upgrade_part(trace.sketch)
    tail = None if trace.tail is None else _upgrade_part(trace.tail)
    if sketch == trace.sketch and tail == trace.tail:  # equal ones may come from the cache
        return trace
    return Trace(sketch, tail, trace.decisions)


@lru_cache(maxsize=1024)
def _upgrade_part(body: bytes) -> bytes:
    """Return a sketch or tail in today's instruction set."""
    try:
        old = orjson.loads(body)
        new = _upgrade_instructions(old)
    except (TypeError, ValueError) as error:
        raise FormatError(f"cannot read a stored trace: {error}") from error
    return body if new == old else canonical_json(new)


def _upgrade_instructions(instructions: list[Any]) -> list[Any]:
    new = [_upgrade(*instruction) for instruction in instructions]
    old_split = any(kind == "Split" and len(attrs) < 2 for kind, _, attrs, _ in instructions)
    if old_split and any(kind == "PadEinsum" for kind, *_ in new):
        # Its meaning changed with the same arity (apache/tvm#15168, mid-2023).
        raise FormatError("PadEinsum of TVM before 0.17 may give amounts, today's gives multiples")
    return new


def _upgrade(kind: str, inputs: list[Any], attrs: list[Any], outputs: list[Any]) -> list[Any]:
    """Return one instruction in today's form."""
    instruction = _CHANGED.get(kind)
    if instruction is not None:
        form = find_form(kind, len(inputs), len(attrs))
        if instruction.becomes is not None:
            kind = instruction.becomes
        elif instruction.until is not None:
            raise FormatError(f"TVM {instruction.until} removed {kind}")
        elif form is not None and form.lost:
            raise FormatError(form.lost)
        elif form is not None and form.upgrade is not None:
            inputs, attrs = form.upgrade(inputs, attrs)
    return _with_index_maps([kind, inputs, attrs, outputs], index_maps.NEWEST)


def as_of(release: tuple[int, ...], instructions: list[Any]) -> list[Any]:
    """Return instructions of today whose index maps another release of TVM can read.

    Raises
    ------
    FormatError
        An index map has an object of an unknown type.
    """
    if release == index_maps.NEWEST:
        return instructions
    return [_with_index_maps(instruction, release) for instruction in instructions]


def _with_index_maps(instruction: list[Any], release: tuple[int, ...]) -> list[Any]:
    """Return an instruction whose index maps have the form of a release."""
    kind, inputs, attrs, outputs = instruction
    inputs, attrs = ([_index_map(kind, value, release) for value in p] for p in (inputs, attrs))
    return [kind, inputs, attrs, outputs]


def _index_map(kind: str, value: Any, release: tuple[int, ...]) -> Any:
    """Return an index map in the form of a release, and any other value unchanged."""
    if not (isinstance(value, str) and value[:1] == "{" and value[-1:] == "}"):
        return value
    try:
        graph = orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    if release == index_maps.NEWEST and index_maps.is_newest(graph) and is_current_graph(graph):
        return value
    try:
        return index_maps.written(graph, release)
    except FormatError as error:
        raise FormatError(f"{kind}: {error}") from error


def is_current_graph(graph: dict[str, Any]) -> bool:
    """Return True if TVM 0.27 may load an object graph, judged by its integers.

    Until 0.26 an ``ir.IntImm`` held its value, which 0.27 reads as the number of a node: it rejects
    such a graph, or follows a reference cycle until the process crashes.

    Parameters
    ----------
    graph : dict
        ``{"root_index": …, "nodes": […]}`` (``tvm_ffi`` JSON graph).
    """
    nodes = graph.get("nodes")
    if not isinstance(nodes, list):
        return False
    for node in nodes:
        if not isinstance(node, dict):
            return False
        if node.get("type") != "ir.IntImm":
            continue
        data = node.get("data")
        value = data.get("value") if isinstance(data, dict) else None
        if type(value) is not int or not 0 <= value < len(nodes):
            return False
        if not isinstance(nodes[value], dict) or nodes[value].get("type") != "int":
            return False
    return True
