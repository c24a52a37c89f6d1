"""Conversion of MetaSchedule's traces to steps (:mod:`.trace` defines the stored form)."""

from __future__ import annotations

import re
from typing import Any

from ...errors import FormatError
from ...records import Trace
from ..base import Step
from .instructions import INSTRUCTIONS
from .trace import join_trace

_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def _in_words(kind: str) -> str:
    """Return a kind in snake case."""
    return _WORD.sub("_", kind).lower()


#: Readable name of each kind.
_NAMES = {kind: value.name or _in_words(kind) for kind, value in INSTRUCTIONS.items()}

#: Names of the attributes of each kind's newest form, for kinds whose attributes all have names.
_ATTRIBUTES = {
    kind: names
    for kind, value in INSTRUCTIONS.items()
    if all(names := tuple(name for name, _ in value.form.attributes))
}


def steps_of(trace: Trace) -> list[Step]:
    """Return a trace's instructions as steps, including those of post-processing.

    The code is the instruction's kind. Its arguments are ``outputs`` and ``inputs`` (lists as in
    the trace: ``b0``, ``l1`` and ``v2`` are variables), its attributes by name (or a list
    ``attrs`` if their number differs from today's) and, for a sampling instruction, the
    ``decision``. Stage and loop are None: blocks and loops are variables in MetaSchedule.

    Raises
    ------
    FormatError
        The stored trace is damaged.
    """
    instructions, decisions = join_trace(trace)
    try:
        by_index = {index: {"decision": value} for index, value in decisions}
        return [
            _step(number, instruction, by_index.get(number, {}))
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
    name = _NAMES.get(kind) or _in_words(kind)
    return Step(number, kind, name, None, None, arguments | decision)
