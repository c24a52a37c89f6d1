"""Definitions of ONNX operators by other operators, where TVM has none or converts them wrongly."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import numpy as np
from onnx import helper

from ....errors import FormatError
from .onnx_corrections import CORRECTIONS
from .onnx_nodes import DOMAINS, Body, Known, NoDefinitionError, graphs_of
from .onnx_quantised import QUANTISED
from .onnx_recurrent import RECURRENT

__all__ = ["DEFINED", "NotDefinedError", "define"]


class NotDefinedError(FormatError):
    """A node that TVM lacks or would convert wrongly has no definition."""


def define(model: Any, kinds: Set[str]) -> Any:
    """Replace nodes by their definitions, where there are any here.

    Parameters
    ----------
    model : onnx.ModelProto
        The model; its graph changes.
    kinds : set of str
        Kinds of nodes that TVM lacks. Nodes that it converts wrongly are replaced as well.

    Returns
    -------
    onnx.ModelProto
        The model.

    Raises
    ------
    NotDefinedError
        The definition does not hold for a node; the message names it and the reason. The model is
        as before.
    """
    known, nodes = Known(model), list(model.graph.node)
    defined = [each for node in nodes for each in _nodes(node, known, kinds)]
    if defined != nodes:
        del model.graph.node[:]
        model.graph.node.extend(defined)
    return model


def _nodes(node: Any, known: Known, kinds: Set[str]) -> list[Any]:
    """Return the nodes of a node's definition; the node itself where it stays."""
    for graph in graphs_of(node):
        for inner in graph.node:
            if _nodes(inner, known, kinds) != [inner]:
                raise NotDefinedError(f"{_named(inner)}, and it stands in a branch or loop")
    definition = _definition(node, kinds)
    if definition is None:
        return [node]
    body = Body(node, known)
    try:
        results = definition(body)
    except NoDefinitionError as error:
        raise NotDefinedError(f"{_named(node)}, and {error}") from None
    return [node] if results is None else _with_outputs(body, results)


def _with_outputs(body: Body, results: list[str]) -> list[Any]:
    """Return the nodes of a definition, whose results have the names of the outputs."""
    made = {output for each in body.nodes for output in each.output}
    names, same = dict[str, str](), []
    for output, result in zip(body.outputs, results, strict=False):
        if output and result in made and result not in names:
            names[result] = output
        elif output:
            same.append(helper.make_node("Identity", [result], [output]))
    for each in (*body.nodes, *same):
        each.input[:] = [names.get(name, name) for name in each.input]
    for each in body.nodes:
        each.output[:] = [names.get(name, name) for name in each.output]
    return [*body.nodes, *same]


def _definition(node: Any, kinds: Set[str]) -> Callable[[Body], list[str] | None] | None:
    """Return the definition of a node that TVM lacks or converts wrongly; None for others."""
    if node.domain not in DOMAINS:
        return None
    if node.op_type in kinds and node.op_type in _DEFINITIONS:
        return _DEFINITIONS[node.op_type]
    return CORRECTIONS.get(node.op_type)


def _named(node: Any) -> str:
    """Return a node's kind and name, and that TVM does not compute it."""
    fault = "would not compute" if node.op_type in CORRECTIONS else "has no"
    return f"TVM {fault} {node.op_type} (node {node.name or node.output[0]})"


def _lp_normalization(body: Body) -> list[str]:
    x, axis = body.inputs[0], body.attributes["axis"]
    kind = {1: "ReduceL1", 2: "ReduceL2"}[body.attributes["p"]]
    norm = body.reduce(kind, x, axis)
    # A norm of zero, of zeros alone, gives zeros.
    least = body.constant(float(np.finfo("float32").tiny), "float32")
    return [body.add("Div", x, body.add("Max", norm, least))]


_DEFINITIONS: dict[str, Callable[[Body], list[str]]] = {
    **RECURRENT,
    **QUANTISED,
    "LpNormalization": _lp_normalization,
}

#: Kinds of operators that TVM lacks and that have a definition here.
DEFINED = frozenset(_DEFINITIONS)
