"""Instructions of MetaSchedule's traces as steps (:mod:`.trace` has their stored form)."""

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


#: Name of each kind in words.
_NAMES = {kind: value.name or _in_words(kind) for kind, value in INSTRUCTIONS.items()}

#: Names of the attributes of its newest form; none where some have no name.
_ATTRIBUTES = {
    kind: names
    for kind, value in INSTRUCTIONS.items()
    if all(names := tuple(name for name, _ in value.form.attributes))
}


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
    name = _NAMES.get(kind) or _in_words(kind)
    return Step(number, kind, name, None, None, arguments | decision)
