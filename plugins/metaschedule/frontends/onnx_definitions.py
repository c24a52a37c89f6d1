"""Definitions of ONNX operators by other operators, where TVM has none or converts them wrongly."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import numpy as np
from onnx import helper

from ....errors import FormatError
from .onnx_corrections import CORRECTIONS
from .onnx_nodes import DOMAINS, Body, Known, NoDefinitionError
from .onnx_quantised import QUANTISED
from .onnx_recurrent import RECURRENT

__all__ = ["define"]


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
    FormatError
        The definition does not hold for a node; the message names it and the reason.
    """
    known, nodes = Known(model), list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        body, results = _defined(node, known, kinds)
        if results is None:
            model.graph.node.append(node)
            continue
        for output, result in zip(node.output, results, strict=False):
            if output:
                body.nodes.append(helper.make_node("Identity", [result], [output]))
        model.graph.node.extend(body.nodes)
    return model


def _defined(node: Any, known: Known, kinds: Set[str]) -> tuple[Any, list[str] | None]:
    """Return the body of a node's definition and its results; None where the node stays."""
    kind = node.op_type
    if node.domain not in DOMAINS:
        return None, None
    if kind in kinds and kind in _DEFINITIONS:
        definition: Callable[[Body], list[str] | None] = _DEFINITIONS[kind]
        fault = f"TVM has no {kind}"
    elif kind in CORRECTIONS:
        definition, fault = CORRECTIONS[kind], f"TVM would not compute {kind}"
    else:
        return None, None
    body = Body(node, known)
    try:
        return body, definition(body)
    except NoDefinitionError as error:
        name = node.name or node.output[0]
        raise FormatError(f"{fault} (node {name}), and {error}") from None


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
