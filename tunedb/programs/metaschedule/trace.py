"""Traces of MetaSchedule in their stored form, without TVM.

A trace is a list of instructions ``[kind, inputs, attrs, outputs]`` and a list of decisions
``[index, value]``. It is stored in three parts:

* the *sketch*: the instructions before ``EnterPostproc``;
* the *tail*: the instructions from ``EnterPostproc`` on (absent if the trace has none);
* the *decisions* ``[decisions, literals of the sketch, literals of the tail]``.

Numbers among an instruction's inputs follow from decisions (``Split(l, None, 4)``). The stored
instructions have ``{}`` in their places, so that many programs share few sketches and tails.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

from ... import limits
from ...errors import FormatError
from ...identity import canonical_json, canonical_numbers
from ...json_checks import check_depth
from ...records import Trace
from .instructions import SAMPLING, TILINGS, form_of

POSTPROC = "EnterPostproc"

#: Placeholder of an output that TVM left empty (``sample_perfect_tile`` of a dynamic loop).
NO_OUTPUT = "_"

_LITERAL: dict[str, Any] = {}
_INSTRUCTION_FIELDS = 4


def split_trace(instructions: list[Any], decisions: list[Any]) -> Trace:
    """Return the stored form of a trace given as JSON.

    This is the reference of the compiled encoder ``tunedb.plugins.metaschedule._encode``.

    Parameters
    ----------
    instructions : list
        ``[kind, inputs, attrs, outputs]`` per instruction.
    decisions : list
        ``[index, value]`` per sampling instruction.

    Raises
    ------
    FormatError
        A value has no JSON form, or the lists are not instructions and decisions.
    """
    try:
        return _split(canonical_numbers(instructions), canonical_numbers(decisions))
    except (TypeError, ValueError, IndexError, KeyError, RecursionError) as error:
        raise FormatError(f"cannot store a trace: {error}") from error


def _split(instructions: list[Any], decisions: list[Any]) -> Trace:
    cut = next((i for i, inst in enumerate(instructions) if inst[0] == POSTPROC), None)
    head = instructions if cut is None else instructions[:cut]
    sketch, sketch_literals = _take_literals(head)
    tail: bytes | None = None
    tail_literals: list[Any] = []
    if cut is not None:
        body, tail_literals = _take_literals(instructions[cut:])
        tail = _dump(body)
    ordered = sorted(([int(index), value] for index, value in decisions), key=lambda pair: pair[0])
    return Trace(
        sketch=_dump(sketch),
        tail=tail,
        decisions=_dump([ordered, sketch_literals, tail_literals]),
    )


def join_trace(trace: Trace) -> tuple[list[Any], list[Any]]:
    """Return ``(instructions, decisions)`` as JSON; the inverse of :func:`split_trace`.

    Raises
    ------
    FormatError
        The parts are damaged or do not belong together.
    """
    try:
        decisions, sketch_literals, tail_literals = orjson.loads(trace.decisions)
        instructions = _put_literals(orjson.loads(trace.sketch), sketch_literals)
        if trace.tail is not None:
            instructions += _put_literals(orjson.loads(trace.tail), tail_literals)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"cannot read a stored trace: {error}") from error
    return instructions, decisions


def dump_value(value: Any) -> bytes:
    """Return a value's canonical JSON in a stored trace, e.g. 1 for 1.0.

    Raises
    ------
    FormatError
        The value has no JSON form: NaN, infinities, integers over 64 bits, lone surrogates.
    """
    try:
        return _dump(canonical_numbers(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"a value has no JSON form: {error}") from error


def check_trace(value: Any) -> tuple[list[Any], list[Any]]:
    """Return ``(instructions, decisions)`` of a trace of TVM 0.8 to 0.27, checked and unchanged.

    Raises
    ------
    FormatError
        The value is not a trace, has an unknown instruction or a number of inputs or attributes
        that no release wrote, uses a variable before it is defined, or exceeds a limit.
    """
    if not (
        isinstance(value, list) and len(value) == 2 and all(isinstance(x, list) for x in value)
    ):
        raise FormatError("a trace must be [instructions, decisions]")
    instructions, decisions = value
    if len(instructions) > limits.MAX_INSTRUCTIONS:
        raise FormatError(f"a trace of {len(instructions)} instructions is over the limit")
    defined: set[str] = set()
    for index, instruction in enumerate(instructions):
        _check_instruction(index, instruction, defined)
    _check_decisions(instructions, decisions)
    return instructions, decisions


def _check_decisions(instructions: list[Any], decisions: list[Any]) -> None:
    """Raise FormatError unless the decisions belong to sampling instructions, one for each."""
    for pair in decisions:
        if not (isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int):
            raise FormatError("a decision must be [instruction index, value]")
        index, value = pair
        if not 0 <= index < len(instructions) or instructions[index][0] not in SAMPLING:
            raise FormatError(f"instruction {index} takes no decision")
        kind = instructions[index][0]
        if kind not in TILINGS:
            value = [value]
        if not (isinstance(value, list) and all(type(item) is int for item in value)):
            raise FormatError(f"the decision of {kind} at {index} has another type")
    if len({pair[0] for pair in decisions}) != len(decisions):
        raise FormatError("two decisions for one instruction")


def _check_instruction(index: int, instruction: Any, defined: set[str]) -> None:
    """Raise FormatError unless `instruction` is valid; adds its outputs to `defined`."""
    if not (
        isinstance(instruction, list)
        and len(instruction) == _INSTRUCTION_FIELDS
        and isinstance(instruction[0], str)
        and all(isinstance(field, list) for field in instruction[1:])
    ):
        raise FormatError(f"instruction {index} is not [kind, inputs, attrs, outputs]")
    kind, inputs, attrs, outputs = instruction
    form_of(kind, index, len(inputs), len(attrs))
    _check_inputs(kind, index, inputs, defined, limits.MAX_DEPTH)
    for attr in attrs:
        if isinstance(attr, list | dict):
            check_depth(attr, f"{kind} at {index}")
    for name in outputs:
        if name == NO_OUTPUT:
            continue
        if not is_variable(name) or name in defined:
            raise FormatError(f"{kind} at {index} has an output that is not a new variable")
        defined.add(name)


def _check_inputs(kind: str, index: int, inputs: list[Any], defined: set[str], depth: int) -> None:
    """Raise FormatError for an input that is neither a literal nor a defined variable."""
    if depth == 0:
        raise FormatError(f"{kind} at {index} is nested too deep")
    for value in inputs:
        if isinstance(value, str):
            if not (value in defined or value == "None" or _is_quoted(value)):
                raise FormatError(f"{kind} at {index} uses {value[:80]!r} before it is defined")
        elif isinstance(value, list):
            _check_inputs(kind, index, value, defined, depth - 1)
        elif isinstance(value, dict):
            # Only annotations may be dictionaries, which hold no variables.
            if kind != "Annotate":
                raise FormatError(f"{kind} at {index} has an object among its inputs")
            check_depth(value, f"{kind} at {index}", depth - 1)


def _is_quoted(value: str) -> bool:
    """Return True for a quoted text, as TVM writes it among inputs, or a serialised index map."""
    return len(value) >= 2 and value[0] + value[-1] in ('""', "{}")


def is_variable(value: Any) -> bool:
    """Return True for the name of a variable: ``b0``, ``l1`` or ``v2`` (block, loop, value)."""
    return isinstance(value, str) and value[:1] in ("b", "l", "v") and _is_number(value[1:])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _dump(value: Any) -> bytes:
    # orjson would write NaN and infinities as null.
    _refuse_nonfinite(value)
    return canonical_json(value)


def _refuse_nonfinite(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("NaN and infinities have no JSON form")
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _refuse_nonfinite(item)


def _take_literals(instructions: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the instructions with ``{}`` for literals among their inputs, and the literals.

    An empty dictionary, possible in an annotation, is a literal too: it looks like a placeholder.
    """
    literals: list[Any] = []

    def take(value: Any) -> Any:
        if isinstance(value, list):
            return [take(item) for item in value]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number or value == _LITERAL:
            literals.append(value)
            return _LITERAL
        return value

    return [
        [kind, take(inputs), attrs, outs] for kind, inputs, attrs, outs in instructions
    ], literals


def _put_literals(instructions: list[Any], literals: list[Any]) -> list[Any]:
    """Undo :func:`_take_literals`."""
    values = iter(literals)
    missing = object()

    def put(value: Any) -> Any:
        if isinstance(value, list):
            return [put(item) for item in value]
        if value != _LITERAL:
            return value
        literal = next(values, missing)
        if literal is missing:
            raise ValueError("fewer literals than places for them")
        return literal

    joined = [[kind, put(inputs), attrs, outs] for kind, inputs, attrs, outs in instructions]
    if next(values, missing) is not missing:
        raise ValueError("more literals than places for them")
    return joined
