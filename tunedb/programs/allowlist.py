"""Checks of foreign programs: lists of allowed values, and bounds.

A stored program is code: an annotation of a loop alone can hand a text to LLVM's parser when the
schedule is compiled. So a foreign program is taken only where each instruction, each annotation
and each value is one that its tool's own rules write (the checks of
:class:`tunedb.programs.base.Tool`). What is not on the lists is refused, whatever it may mean.

Sketches and tails are shared by many programs and are looked at once; what they have places for is
remembered, so that a program costs no more than its decisions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from reprlib import repr as shown  # bounded: a value may be long and deep
from typing import Any, Literal

import orjson

from .. import limits
from ..errors import FormatError
from ..json_checks import INT64
from ..records import Trace
from . import tool_of

#: Which of the two stored parts that programs share.
Part = Literal["sketch", "tail"]


def check_trace(trace: Trace, format: str) -> None:
    """Raise FormatError unless a foreign program may be stored and applied.

    Parameters
    ----------
    trace : Trace
        Its stored form.
    format : str
        The :class:`~tunedb.records.WorkloadFormat` of its workload, which says what it consists of.

    Raises
    ------
    FormatError
        Some part is not allowed, or they do not belong together; the message names the first.
    """
    sketch = _facts("sketch", trace.sketch, format)
    tail = None if trace.tail is None else _facts("tail", trace.tail, format)
    tool_of(format).check_program(sketch, tail, trace.decisions)


def check_part(part: Part, body: bytes, format: str) -> None:
    """Raise FormatError unless a sketch or tail holds allowed instructions alone.

    Parameters
    ----------
    part : {"sketch", "tail"}
        Which of the two.
    body : bytes
        As it is stored, not compressed.
    format : str
        As :func:`check_trace`.

    Raises
    ------
    FormatError
        Something in it is not allowed; the message says what.
    """
    _facts(part, body, format)


def check_decisions(decisions: bytes, format: str) -> None:
    """Raise FormatError unless decisions are numbers and words of the allowed forms.

    :func:`check_trace` looks besides whether they belong to the sketch and the tail.

    Parameters
    ----------
    decisions : bytes
        As they are stored.
    format : str
        As :func:`check_trace`.

    Raises
    ------
    FormatError
        They hold something else.
    """
    tool_of(format).check_decisions(decisions)


def _facts(part: Part, body: bytes, format: str) -> Any:
    """Return what a part has places for, or raise FormatError."""
    tool = tool_of(format)
    check = tool.check_sketch if part == "sketch" else tool.check_tail
    if check is None:
        raise FormatError(f"a program of {format} has no tail")
    if len(body) > limits.MAX_FOREIGN_PART_BYTES:
        limit = limits.MAX_FOREIGN_PART_BYTES
        raise FormatError(f"{part} of {len(body)} bytes, over the limit of {limit}")
    look = _look if len(body) > limits.MAX_REMEMBERED_BYTES else _remembered
    facts = look(check, body)
    if isinstance(facts, str):
        raise FormatError(f"{part}: {facts}")
    return facts


def _look(check: Callable[[bytes], Any], body: bytes) -> Any:
    """Return what a part has places for, or as text why it is not allowed."""
    try:
        return check(body)
    except FormatError as error:
        # Remembered too: a hostile database may refer to one sketch a million times.
        return str(error)


_remembered = lru_cache(maxsize=2048)(_look)


# ---- Values that several tools allow -------------------------------------------------------------

#: Words that a knob or a template may have: names of kernels, algorithms and layouts.
_WORD = re.compile(r"[A-Za-z0-9_.\-+]{0,64}")


def is_int(value: Any) -> bool:
    """Tell whether a value is an integer of 64 bits."""
    return type(value) is int and -INT64 <= value < INT64


def is_text(value: Any) -> bool:
    """Tell whether a value can be a name of a block or knob: short, without control codes."""
    return (
        isinstance(value, str)
        and len(value) <= limits.MAX_FOREIGN_NAME_CHARS
        and value.isprintable()
    )


def is_word(value: Any) -> bool:
    """Tell whether a value is a short word, such as the name of a layout."""
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


def check_length(decisions: bytes) -> None:
    """Raise FormatError for decisions that are too long."""
    if len(decisions) > limits.MAX_FOREIGN_DECISION_BYTES:
        raise FormatError(
            f"decisions of {len(decisions)} bytes, over {limits.MAX_FOREIGN_DECISION_BYTES}"
        )


def read_values(decisions: bytes) -> list[Any]:
    """Return the list of values that decisions are, or raise FormatError."""
    check_length(decisions)
    try:
        values = orjson.loads(decisions)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"decisions: not JSON: {error}") from None
    if not isinstance(values, list):
        raise FormatError("decisions: not a list of values")
    return values


def read_sketch(body: bytes, keys: set[str]) -> dict[str, Any]:
    """Return the object that a sketch is, or raise FormatError."""
    try:
        sketch = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error}") from None
    if not isinstance(sketch, dict) or sketch.keys() != keys:
        raise FormatError(f"it is {shown(sketch)}")
    return sketch
