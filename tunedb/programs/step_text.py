"""Text and JSON forms of the transform steps of programs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ..system.text import clean

if TYPE_CHECKING:
    from ..records import Measurement, Signature
    from .base import Step, Tool

_VARIABLE = re.compile(r"[blv][0-9]+")

#: Instructions of MetaSchedule that take a loop and a list.
_LISTS = frozenset({"Split", "LoopPartition"})


def line_of(step: Step) -> str:
    """Format a step as a Python call.

    >>> from tunedb.programs.base import Step
    >>> line_of(Step(0, "SP", "split", 3, 0, {"extent": 64, "lengths": [8, 1]}))
    'split(stage=3, loop=0, extent=64, lengths=[8, 1])'
    >>> line_of(Step(0, "sp", "split", None, None, {"knob": "tile_y", "size": [-1, 8]}))
    'tile_y = split(size=[-1, 8])'
    >>> values = {"outputs": ["v5", "v6"], "inputs": ["l2"], "n": 2, "decision": [16, 8]}
    >>> line_of(Step(0, "SamplePerfectTile", "sample_perfect_tile", None, None, values))
    'v5, v6 = sample_perfect_tile(l2, n=2, decision=[16, 8])'
    >>> values = {"name": "block_size_x", "value": 32}
    >>> line_of(Step(0, "parameter", "parameter", None, None, values))
    'block_size_x = 32'
    """
    arguments = dict(step.arguments)
    if step.code == "parameter":
        return clean(f"{arguments['name']} = {_value(arguments['value'])}")
    results = [*arguments.pop("outputs", ())]
    if "knob" in arguments:
        results.append(arguments.pop("knob"))
    words = [_input(value) for value in arguments.pop("inputs", ())]
    if step.code in _LISTS and words:
        words = [words[0], f"[{', '.join(words[1:])}]"]
    words += [_value(value) for value in arguments.pop("attrs", ())]
    if step.stage is not None:
        words.append(f"stage={step.stage}")
    if step.loop is not None:
        words.append(f"loop={step.loop}")
    words += [f"{name}={_value(value)}" for name, value in arguments.items()]
    result = f"{', '.join(map(str, results))} = " if results else ""
    return clean(f"{result}{step.name}({', '.join(words)})")


def _input(value: Any) -> str:
    """Format an input; variables and quoted text stay as they are."""
    if isinstance(value, list):
        return f"[{', '.join(map(_input, value))}]"
    if isinstance(value, str) and (_VARIABLE.fullmatch(value) or value[:1] in ('"', "{")):
        return value
    return "None" if value == "None" else _value(value)


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def before_postproc(steps: list[Step]) -> int:
    """Return the number of steps before MetaSchedule's post-processing."""
    from .metaschedule.trace import POSTPROC

    return next((i for i, step in enumerate(steps) if step.code == POSTPROC), len(steps))


def decisions_of(tool: Tool[Any], steps: list[Step]) -> list[Any]:
    """Return the decisions of the search, in the order of the steps."""
    return [
        step.arguments[name]
        for step in steps
        if (name := tool.chosen.get(step.code)) in step.arguments
    ]


def row_of(step: Step) -> dict[str, Any]:
    """Return a step as JSON."""
    return {
        "number": step.number,
        "code": step.code,
        "name": step.name,
        "stage": step.stage,
        "loop": step.loop,
        "arguments": step.arguments,
    }


def arguments_of(measurement: Measurement) -> Any:
    """Return the arguments in the form of TVM's ``args_info``, or None if unknown."""
    import orjson

    from .workload_info import signature_of

    if measurement.args_info is not None:
        return orjson.loads(measurement.args_info)
    return args_info_of(signature_of(measurement.program.workload))


def args_info_of(signature: Signature) -> list[list[Any]] | None:
    """Return a signature's arguments in the form of TVM's ``args_info``, or None if unknown."""
    if signature.arguments is None:
        return None
    return [["TENSOR", dtype, list(shape)] for dtype, shape in signature.arguments]
