"""Instructions of MetaSchedule's traces as steps (:mod:`.trace` has their stored form)."""

from __future__ import annotations

import re
from typing import Any

from ...errors import FormatError
from ...records import Trace
from ..base import Step
from .trace import join_trace

#: Names of attributes as TVM's Python has them (``python/tvm/s_tir/schedule/schedule.py``).
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
    "GetBlock": ("name", "func_name"),
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


def steps_of(trace: Trace) -> list[Step]:
    """Return a trace's instructions, those of post-processing included.

    The code is the instruction's kind. Its arguments are ``outputs`` and ``inputs`` (lists as the
    trace has them: ``b0``, ``l1`` and ``v2`` are variables), its attributes by their names
    (a list ``attrs`` where they are not as many as the names of today) and, of a sampling
    instruction, the ``decision``. Stage and loop are None: blocks and loops are
    variables here.

    Raises
    ------
    FormatError
        The stored trace is damaged.
    """
    instructions, decisions = join_trace(trace)
    try:
        chosen = {index: {"decision": value} for index, value in decisions}
        return [
            _step(number, instruction, chosen.get(number, {}))
            for number, instruction in enumerate(instructions)
        ]
    except (TypeError, ValueError) as error:
        raise FormatError(f"cannot read a stored trace: {error}") from None


def _step(number: int, instruction: list[Any], decision: dict[str, Any]) -> Step:
    kind, inputs, attrs, outputs = instruction
    arguments: dict[str, Any] = {}
    if outputs:
        arguments["outputs"] = outputs
    if inputs:
        arguments["inputs"] = inputs
    names = _ATTRIBUTES.get(kind, ())
    if len(names) == len(attrs):
        arguments.update(zip(names, attrs, strict=True))
    elif attrs:
        arguments["attrs"] = attrs
    name = _NAMES.get(kind) or _WORD.sub("_", kind).lower()
    return Step(number, kind, name, None, None, arguments | decision)
