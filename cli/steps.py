"""Traces as steps that people read, without TVM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import orjson

from ..traces import POSTPROC, join_trace
from .text import clean

if TYPE_CHECKING:
    from ..records import Measurement

#: Names of attributes as TVM's Python has them (``python/tvm/s_tir/schedule/schedule.py``); those
#: of other kinds are shown without names.
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Annotate": ("ann_key",),
    "Bind": ("thread_axis",),
    "Blockize": ("preserve_unit_iters",),
    "CacheIndex": ("storage_scope", "cse_thresh"),
    "CacheInplace": ("read_buffer_index", "storage_scope"),
    "CacheRead": ("read_buffer_index", "storage_scope"),
    "CacheWrite": ("write_buffer_index", "storage_scope"),
    "ComputeAt": ("preserve_unit_loops", "index"),
    "Fuse": ("preserve_unit_iters",),
    "GetSBlock": ("name", "func_name"),
    "LoopPartition": ("preserve_unit_iters",),
    "PadEinsum": ("padding",),
    "RFactor": ("factor_axis",),
    "ReadAt": ("read_buffer_index", "storage_scope"),
    "ReindexCacheRead": ("read_buffer_index", "storage_scope"),
    "ReindexCacheWrite": ("write_buffer_index", "storage_scope"),
    "ReverseComputeAt": ("preserve_unit_loops", "index"),
    "RollingBuffer": ("write_buffer_index",),
    "SampleCategorical": ("candidates", "probs"),
    "SamplePartitionedTile": ("n", "partition_pos", "innerpart_factor"),
    "SamplePerfectTile": ("n", "max_innermost_factor"),
    "SetScope": ("buffer_index", "storage_scope"),
    "Split": ("preserve_unit_iters", "disable_predication"),
    "StorageAlign": ("buffer_index", "axis", "factor", "offset"),
    "Tensorize": ("tensor_intrin", "preserve_unit_iters"),
    "Unannotate": ("ann_key",),
    "UnsafeSetDType": ("buffer_index", "dtype"),
    "WriteAt": ("write_buffer_index", "storage_scope"),
}

#: Names that are not the kind in snake case.
_NAMES = {
    "GetSBlock": "get_sblock",
    "RFactor": "rfactor",
    "ReIndex": "reindex",
    "UnsafeSetDType": "unsafe_set_dtype",
}

_WORD = re.compile(r"(?<!^)(?=[A-Z])")
_VARIABLE = re.compile(r"[blv][0-9]+")

#: Kinds that take a loop and a list.
_LISTS = frozenset({"Split", "LoopPartition"})


def steps(instructions: Iterable[list[Any]], decisions: Iterable[list[Any]]) -> list[str]:
    """Return one line for each instruction, as TVM's Python writes it but for its names.

    >>> steps([["SamplePerfectTile", ["l2"], [2, 64], ["v5", "v6"]]], [[0, [16, 8]]])
    ['v5, v6 = sample_perfect_tile(l2, n=2, max_innermost_factor=64, decision=[16, 8])']
    """
    chosen = dict(tuple(pair) for pair in decisions)
    return [
        _step(instruction, chosen.get(index, ...)) for index, instruction in enumerate(instructions)
    ]


def _step(instruction: list[Any], decision: Any) -> str:
    kind, inputs, attrs, outputs = instruction
    parts = [_input(value) for value in inputs]
    if kind in _LISTS and parts:
        parts = [parts[0], f"[{', '.join(parts[1:])}]"]
    names = _ATTRIBUTES.get(kind, ())
    if len(names) == len(attrs):
        parts += [f"{name}={_value(value)}" for name, value in zip(names, attrs, strict=True)]
    else:
        parts += [_value(value) for value in attrs]
    if decision is not ...:
        parts.append(f"decision={_value(decision)}")
    name = _NAMES.get(kind) or _WORD.sub("_", str(kind)).lower()
    result = f"{', '.join(map(str, outputs))} = " if outputs else ""
    return clean(f"{result}{name}({', '.join(parts)})")


def _input(value: Any) -> str:
    """Return an input: text that names a variable or is quoted already stands as it is."""
    if isinstance(value, list):
        return f"[{', '.join(map(_input, value))}]"
    if isinstance(value, str) and (_VARIABLE.fullmatch(value) or value[:1] in ('"', "{")):
        return value
    return "None" if value == "None" else _value(value)


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def steps_of(measurement: Measurement) -> tuple[list[str], int]:
    """Return a measurement's steps, and how many stand before ``EnterPostproc``."""
    instructions, decisions = join_trace(measurement.program.trace)
    cut = next((i for i, inst in enumerate(instructions) if inst[0] == POSTPROC), len(instructions))
    return steps(instructions, decisions), cut


def decisions_of(measurement: Measurement) -> list[Any]:
    """Return what was decided, in order of the instructions."""
    return [value for _, value in join_trace(measurement.program.trace)[1]]


def arguments_of(measurement: Measurement) -> Any:
    """Return the description of the arguments (TVM's ``args_info``), or None."""
    body = measurement.args_info
    return None if body is None else orjson.loads(body)
