"""Lines of MetaSchedule's workload file: ``["<structural hash>", "<base64>"]``.

The base64 holds 8 bytes of little-endian length and the JSON text of an IRModule, in one of two
encodings: tvm-ffi's object graph (TVM >= 0.22, ``root_index`` and ``nodes``) or the node list of
earlier releases (``root`` and ``nodes``, every attribute as text). The hash depends on the
release that computed it and no reader since TVM 0.12 believes it, so it is not kept.
"""

from __future__ import annotations

import base64
import struct
from typing import Any

import orjson

from ..errors import FormatError
from ..identity import canonical_json
from ..records import Workload, WorkloadFormat
from ..values import check_value, parse_json

_LENGTH = struct.Struct("<q")

#: Where each encoding says which TVM wrote it.
_VERSION_KEYS = {WorkloadFormat.GRAPH: "metadata", WorkloadFormat.NODES: "attrs"}
_VERSION = "tvm_version"


def is_workload_line(value: Any) -> bool:
    """Tell whether a JSON value has the shape of a workload line."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], str)
        and value[0].isascii()
        and value[0].isdecimal()
    )


def parse_workload(value: Any) -> Workload:
    """Return the workload of a line's value.

    Raises
    ------
    FormatError
        It is no workload.
    """
    if not is_workload_line(value):
        raise FormatError("a workload is [hash, base64]")
    try:
        raw = base64.b64decode(value[1], validate=True)
    except ValueError as error:  # binascii.Error, or text that is not ASCII
        raise FormatError(f"a workload's base64 is damaged: {error}") from None
    if len(raw) < _LENGTH.size or _LENGTH.unpack_from(raw)[0] != len(raw) - _LENGTH.size:
        raise FormatError("a workload's length does not fit its text")
    text = raw[_LENGTH.size :]
    graph = parse_json(text)
    if not isinstance(graph, dict):
        raise FormatError("a workload's text is no graph")
    check_value(graph, "a workload's graph")
    form = _form(graph)
    version = _take_version(graph, _VERSION_KEYS[form])
    name = _graph_name(graph["nodes"]) if form is WorkloadFormat.GRAPH else _list_name(graph)
    return Workload(form, canonical_json(graph), name=name, tvm_version=version)


def workload_line(workload: Workload) -> bytes:
    """Return the line of a workload, with its line break; 0 stands for the hash.

    Raises
    ------
    FormatError
        It is no IRModule, or damaged.
    """
    try:
        key = _VERSION_KEYS[WorkloadFormat(workload.format)]
        graph = orjson.loads(workload.body)
        if workload.tvm_version is not None:
            graph[key] = {**graph.get(key, {}), _VERSION: workload.tvm_version}
    except (KeyError, ValueError, TypeError, AttributeError):
        raise FormatError(f"workload {workload.name!r} is no IRModule, or damaged") from None
    text = orjson.dumps(graph)
    body = base64.b64encode(_LENGTH.pack(len(text)) + text).decode()
    return orjson.dumps(["0", body]) + b"\n"


def _form(graph: dict[str, Any]) -> WorkloadFormat:
    """Return the encoding of a module."""
    if isinstance(graph.get("nodes"), list):
        if type(graph.get("root_index")) is int:
            return WorkloadFormat.GRAPH
        if type(graph.get("root")) is int:
            return WorkloadFormat.NODES
    raise FormatError("a workload's graph has no root_index (or root) and nodes")


def _take_version(graph: dict[str, Any], key: str) -> str | None:
    """Take the version metadata out of a graph; what else stands there stays."""
    metadata = graph.get(key)
    if not isinstance(metadata, dict):
        return None
    version = metadata.get(_VERSION)
    if isinstance(version, str):
        del metadata[_VERSION]
    if not metadata:
        del graph[key]
    return version if isinstance(version, str) else None


def _graph_name(nodes: list[Any]) -> str:
    """Return a name for people: the block that reduces, or the last one.

    As the plugin names live workloads, as far as that can be told without TVM.
    """
    blocks = []
    for node in nodes:
        if not isinstance(node, dict) or not str(node.get("type", "")).endswith(".SBlock"):
            continue
        data = node.get("data")
        if isinstance(data, dict):
            name = _field(nodes, data.get("name_hint"), "data")
            blocks.append((name, _field(nodes, data.get("init"), "data") is not None))
    return _name_of(blocks)


def _list_name(graph: dict[str, Any]) -> str:
    """Return the name of a module in the old encoding, as :func:`_graph_name` does."""
    nodes, blocks = graph["nodes"], []
    for node in nodes:
        if not isinstance(node, dict) or node.get("type_key") != "tir.Block":
            continue
        attrs = node.get("attrs")
        if isinstance(attrs, dict):
            name = _field(nodes, _index(attrs.get("name_hint")), "repr_str")
            # Node 0 is null.
            blocks.append((name, attrs.get("init", "0") != "0"))
    return _name_of(blocks)


def _name_of(blocks: list[tuple[Any, bool]]) -> str:
    """Return the name of the first block that reduces, or of the last one."""
    named = [(name, reduces) for name, reduces in blocks if isinstance(name, str)]
    named = [(name, reduces) for name, reduces in named if name != "root"]
    if not named:
        return "main"
    return next((name for name, reduces in named if reduces), named[-1][0])


def _index(text: Any) -> int | None:
    """Return the node number that an attribute of the old encoding has as text."""
    if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    return None


def _field(nodes: list[Any], index: Any, field: str) -> Any:
    """Return a field of the node that an index refers to, or None."""
    if type(index) is not int or not 0 <= index < len(nodes) or not isinstance(nodes[index], dict):
        return None
    return nodes[index].get(field)
