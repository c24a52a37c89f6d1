"""Kinds, attributes and annotations of MetaSchedule that a foreign program may have.

The lists are what TVM's schedule rules, postprocessors and mutators write, of TVM 0.8 to 0.27
(``src/s_tir/meta_schedule``, ``include/tvm/s_tir/stmt.h``). A test feeds them with the public logs
and with programs that TVM tunes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from reprlib import repr as shown  # bounded: a value may be long and deep
from typing import Any

import orjson

from .. import limits
from ..errors import FormatError
from ..traces import INSTRUCTIONS, OLDER, is_variable
from ..values import INT64

#: Instructions that no rule of TVM uses and that make a program compute or access something else:
#: they set a type or a region without a check.
UNSAFE = frozenset({"AnnotateBufferAccess", "UnsafeHideBufferAccess", "UnsafeSetDType"})

#: Kinds of instruction that are allowed, today's and those of earlier releases.
KINDS = frozenset({*INSTRUCTIONS, *OLDER}) - UNSAFE

_INTRINSIC = re.compile(rf"[A-Za-z0-9_.]{{1,{limits.MAX_FOREIGN_NAME_CHARS}}}")

#: Annotations with a number or a variable.
NUMBERS = frozenset(
    {
        *(
            f"meta_schedule.{name}"
            for name in (
                *("cooperative_fetch", "thread_extent_low_inclusive"),
                *("thread_extent_high_inclusive", "random_compute_producer", "parallel"),
                *("vectorize", "unroll_explicit", "unroll_implicit", "layout_rewrite_preproc"),
                *("cache_type", "tensor_core_enabled"),
            )
        ),
        *("pragma_auto_unroll_max_step", "pragma_unroll_explicit"),
        *("double_buffer_scope", "warp_execution", "auto_copy", "local_stage", "vector_bytes"),
        *(f"{ir}.manifest_shared_memory_local_stage" for ir in ("tir", "tirx", "s_tir")),
        "permuted_layout",
    }
)

#: Annotations with a text, and which.
TEXTS: dict[str, re.Pattern[str]] = {
    "meta_schedule.tiling_structure": re.compile(r"[A-Z]{1,32}"),
    "meta_schedule.auto_tensorize": re.compile(rf"|{_INTRINSIC.pattern}"),
    "meta_schedule.auto_tensorize_init": re.compile(rf"|{_INTRINSIC.pattern}"),
    "meta_schedule.tensor_core_enabled": re.compile(r"[01]"),
    "meta_schedule.inline_rule": re.compile(r"[a-z_]{1,32}"),
    "permuted_layout": re.compile(r"[A-Za-z0-9_]{1,32}"),
}

#: Annotations with a list of numbers.
LISTS = frozenset(
    {"software_pipeline_stage", "software_pipeline_order", "software_pipeline_async_stages"}
)

#: What may be taken off: all of these, and the rule that a workload asks for.
REMOVABLE = NUMBERS | LISTS | TEXTS.keys() | {"schedule_rule"}

_THREADS = frozenset(
    f"{name}.{axis}" for name in ("blockIdx", "threadIdx", "vthread") for axis in "xyz"
) | {"vthread"}

#: Storage scopes are words of a few ranks, with tags behind them (``StorageScope::Create``).
_SCOPE = re.compile(
    r"(global|shared|local|warp|texture)([.:-][a-z0-9_]{1,24}){0,2}"
    r"|wmma\.(matrix_a|matrix_b|accumulator)|m16n8k8\.matrix[ABC]|metal\.simdgroup"
)

#: Types of nodes of an index map: arithmetic on its variables. No calls, no loads, no operators by
#: name; the part before the dot changes from release to release.
_NODE = re.compile(
    r"|(?:(?:tir|tirx|s_tir|ir|prim|ffi|runtime|node)\.)?"
    r"(?:IndexMap|Array|Var|String|PrimType|IntImm|FloatImm|Add|Sub|Mul|Div|Mod|FloorDiv|FloorMod"
    r"|Min|Max|EQ|NE|LT|LE|GT|GE|And|Or|Not|Select|Cast|None|int|float|bool|str|dtype|DataType)"
)
_GRAPH_KEYS = frozenset({"root_index", "root", "nodes", "metadata", "attrs", "b64ndarrays"})
_NODE_KEYS = frozenset({"type", "data", "type_key", "attrs", "repr_str", "keys"})

#: Kinds with an index map among their inputs.
MAPPED = frozenset({"TransformLayout", "ReindexCacheRead", "ReindexCacheWrite"})

_MAX_VARIABLE_CHARS = 12


def is_name(value: Any) -> bool:
    """Tell whether a value is a variable."""
    return is_variable(value) and len(value) <= _MAX_VARIABLE_CHARS


def is_int(value: Any) -> bool:
    """Tell whether a value is an integer of 64 bits."""
    return type(value) is int and -INT64 <= value < INT64


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or (type(value) is int and value in (0, 1))


def is_text(value: Any) -> bool:
    """Tell whether a value can be a name of a block or knob: short, without control codes."""
    return (
        isinstance(value, str)
        and len(value) <= limits.MAX_FOREIGN_NAME_CHARS
        and value.isprintable()
    )


def _is_scope(value: Any) -> bool:
    return isinstance(value, str) and _SCOPE.fullmatch(value) is not None


def _is_intrinsic(value: Any) -> bool:
    return isinstance(value, str) and _INTRINSIC.fullmatch(value) is not None


def _is_thread(value: Any) -> bool:
    return isinstance(value, str) and value in _THREADS


def _is_removable(value: Any) -> bool:
    return isinstance(value, str) and value in REMOVABLE


def _are_ints(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_int, value))


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is float or is_int(item) for item in value)


def _is_map(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    check_index_map("an attribute", value)
    return True


def _is_map_or_none(value: Any) -> bool:
    return value is None or _is_map(value)


_Check = Callable[[Any], bool]
_COPIES: tuple[_Check, ...] = (is_int, _is_scope)

#: What the attributes of each kind are, today's; an earlier release wrote the first of them.
_ATTRS: dict[str, tuple[_Check, ...]] = {
    "Bind": (_is_thread,),
    "Blockize": (_is_flag,),
    "CacheIndex": (_is_scope, is_int),
    **dict.fromkeys(
        (
            *("CacheInplace", "CacheRead", "CacheWrite", "ReadAt", "WriteAt", "SetScope"),
            *("ReindexCacheRead", "ReindexCacheWrite"),
        ),
        _COPIES,
    ),
    "ComputeAt": (_is_flag, is_int),
    "Fuse": (_is_flag,),
    "GetBlock": (is_text, is_text),
    "GetSBlock": (is_text, is_text),
    "LoopPartition": (_is_flag,),
    "PadEinsum": (_are_ints,),
    "RFactor": (is_int,),
    "ReIndex": (is_int, is_int),
    "ReverseComputeAt": (_is_flag, is_int),
    "RollingBuffer": (is_int,),
    "SampleCategorical": (_are_ints, _are_numbers),
    "SamplePartitionedTile": (is_int, is_int, is_int),
    "SamplePerfectTile": (is_int, is_int),
    "SetAxisSeparator": (is_int, is_int, _are_ints),
    "Split": (_is_flag, _is_flag),
    "StorageAlign": (is_int, is_int, is_int, is_int),
    "Tensorize": (_is_intrinsic, _is_flag),
    "TransformBlockLayout": (_is_map,),
    "TransformLayout": (is_int, is_int, _is_map_or_none, _is_flag),
    "Unannotate": (_is_removable,),
}

#: Attributes of earlier releases that are not the first of today's, by kind and number of inputs
#: and attributes.
_OLDER_ATTRS: dict[tuple[str, int, int], tuple[_Check, ...]] = {
    ("CacheIndex", 1, 1): (is_int,),
    ("TransformLayout", 1, 3): (is_int, is_int, _is_map),
    ("TransformLayout", 1, 4): (is_int, is_int, _is_map, _is_map_or_none),
}


def check_attrs(where: str, kind: str, inputs: list[Any], attrs: list[Any]) -> None:
    """Raise FormatError for an attribute that is not of its kind.

    Parameters
    ----------
    where : str
        For the message.
    kind : str
        Of the instruction, not ``Annotate``.
    inputs, attrs : list
        As many as some release wrote (:func:`tunedb.traces.check_arity`).
    """
    older = _OLDER_ATTRS.get((kind, len(inputs), len(attrs)))
    for check, value in zip(older or _ATTRS.get(kind, ()), attrs, strict=False):
        try:
            is_allowed = check(value)
        except FormatError as error:  # of an index map
            raise FormatError(f"{where}: {error}") from None
        if not is_allowed:
            raise FormatError(f"{where} has the attribute {shown(value)}, which is not allowed")


def check_index_map(where: str, text: str) -> None:
    """Raise FormatError unless a text is an index map of arithmetic alone.

    Parameters
    ----------
    where : str
        For the message.
    text : str
        The JSON of ``tvm.ir.save_json``. Its objects refer to one another by number; where TVM
        0.27 may read it, they must refer to earlier ones, so that nothing goes in circles.

    Raises
    ------
    FormatError
        It is none, is too long, or holds another type of object: a call, for instance.
    """
    if len(text) > limits.MAX_INDEX_MAP_CHARS:
        raise FormatError(f"{where} has an index map of {len(text)} characters")
    graph = _graph_of(text)
    nodes = graph.get("nodes")
    if not isinstance(nodes, list) or not graph.keys() <= _GRAPH_KEYS or graph.get("b64ndarrays"):
        raise FormatError(f"{where} has {shown(text)} for an index map")
    for index, node in enumerate(nodes):
        if not isinstance(node, dict) or not node.keys() <= _NODE_KEYS:
            raise FormatError(f"{where} has an index map with the object {shown(node)}")
        type_ = node.get("type", node.get("type_key"))
        if not isinstance(type_, str) or _NODE.fullmatch(type_) is None:
            raise FormatError(f"{where} has an index map with the type {shown(type_)}")
        if "root_index" in graph and "." in type_:
            _check_references(where, index, type_, node.get("data"))
    if "root_index" in graph and not _is_index_of_map(graph["root_index"], nodes):
        raise FormatError(f"{where} has a text for an index map that is none")


def _graph_of(text: str) -> dict[str, Any]:
    """Return the object of a JSON text, an empty one where it holds something else."""
    try:
        graph = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return graph if isinstance(graph, dict) else {}


def _check_references(where: str, index: int, type_: str, data: Any) -> None:
    """Raise FormatError for an object that refers to itself or to a later one."""
    if isinstance(data, dict):
        # Until TVM 0.26 an integer held its value itself (upgrades.is_current_graph).
        fields = data.items()
        numbers = [v for key, v in fields if key != "value" or not type_.endswith(".IntImm")]
    else:
        numbers = data if isinstance(data, list) else []
    for number in numbers:
        if type(number) is int and not 0 <= number < index:
            raise FormatError(f"{where} has an index map whose objects go in circles")


def _is_index_of_map(root: Any, nodes: list[Any]) -> bool:
    return (
        type(root) is int
        and 0 <= root < len(nodes)
        and str(nodes[root].get("type")).endswith(".IndexMap")
    )
