"""Allow-list for foreign programs: permitted values, and bounds.

A stored program is code: a loop annotation alone can pass text to LLVM's parser when the schedule
is compiled. A foreign program is accepted only if its tool's own rules write each of its
instructions, annotations and values (the checks of :class:`tunedb.programs.base.Tool`). Anything
else is rejected.

Many programs share a sketch or a tail. Each is checked once and its facts are cached, so that a
check of a program costs no more than that of its decisions.
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

#: The two stored parts that programs share.
SharedPart = Literal["sketch", "tail"]


def check_trace(trace: Trace, format: str) -> None:
    """Raise FormatError unless a foreign program may be stored and applied.

    Parameters
    ----------
    trace : Trace
        Stored form of the program.
    format : str
        The :class:`~tunedb.records.WorkloadFormat` of its workload.

    Raises
    ------
    FormatError
        A part is not allowed, or the parts do not belong together; the message names the first.
    """
    sketch = _facts("sketch", trace.sketch, format)
    tail = None if trace.tail is None else _facts("tail", trace.tail, format)
    tool_of(format).check_program(sketch, tail, trace.decisions)


def check_part(part: SharedPart, body: bytes, format: str) -> None:
    """Raise FormatError unless a sketch or tail holds only allowed instructions.

    Parameters
    ----------
    part : {"sketch", "tail"}
        Kind of the part.
    body : bytes
        The part as stored, uncompressed.
    format : str
        As for :func:`check_trace`.

    Raises
    ------
    FormatError
        An instruction is not allowed; the message names it.
    """
    _facts(part, body, format)


def check_decisions(decisions: bytes, format: str) -> None:
    """Raise FormatError unless decisions are numbers and words of the allowed forms.

    :func:`check_trace` also checks that they belong to the sketch and the tail.

    Parameters
    ----------
    decisions : bytes
        The decisions as stored.
    format : str
        As for :func:`check_trace`.

    Raises
    ------
    FormatError
        A value is not allowed.
    """
    tool_of(format).check_decisions(decisions)


def _facts(part: SharedPart, body: bytes, format: str) -> Any:
    """Return the facts of a part that its decisions are checked against."""
    tool = tool_of(format)
    check = tool.check_sketch if part == "sketch" else tool.check_tail
    if check is None:
        raise FormatError(f"a program of {format} has no tail")
    if len(body) > limits.MAX_FOREIGN_PART_BYTES:
        limit = limits.MAX_FOREIGN_PART_BYTES
        raise FormatError(f"{part} of {len(body)} bytes, over the limit of {limit}")
    read = _read_facts if len(body) > limits.MAX_REMEMBERED_BYTES else _cached_facts
    facts = read(check, body)
    if isinstance(facts, str):
        raise FormatError(f"{part}: {facts}")
    return facts


def _read_facts(check: Callable[[bytes], Any], body: bytes) -> Any:
    """Return the facts of a part, or the reason of its rejection as text."""
    try:
        return check(body)
    except FormatError as error:
        # Rejections are cached too: a hostile database may refer to one sketch a million times.
        return str(error)


_cached_facts = lru_cache(maxsize=2048)(_read_facts)


# ---- Checks that several tools share -------------------------------------------------------------

#: Allowed words of a knob or a template: names of kernels, algorithms and layouts.
_WORD = re.compile(r"[A-Za-z0-9_.\-+]{0,64}")


def is_int(value: Any) -> bool:
    """Return True for an integer of 64 bits."""
    return type(value) is int and -INT64 <= value < INT64


def is_text(value: Any) -> bool:
    """Return True for a possible name of a block or knob: short, without control codes."""
    return (
        isinstance(value, str)
        and len(value) <= limits.MAX_FOREIGN_NAME_CHARS
        and value.isprintable()
    )


def is_word(value: Any) -> bool:
    """Return True for a short word, such as the name of a layout."""
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


def check_length(decisions: bytes) -> None:
    """Raise FormatError for decisions that are too long."""
    if len(decisions) > limits.MAX_FOREIGN_DECISION_BYTES:
        raise FormatError(
            f"decisions of {len(decisions)} bytes, over {limits.MAX_FOREIGN_DECISION_BYTES}"
        )


def read_values(decisions: bytes) -> list[Any]:
    """Return the values of decisions stored as a JSON list, or raise FormatError."""
    check_length(decisions)
    try:
        values = orjson.loads(decisions)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"decisions: not JSON: {error}") from None
    if not isinstance(values, list):
        raise FormatError("decisions: not a list of values")
    return values


def read_sketch(body: bytes, keys: set[str]) -> dict[str, Any]:
    """Return a sketch stored as a JSON object with these keys, or raise FormatError."""
    try:
        sketch = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error}") from None
    if not isinstance(sketch, dict) or sketch.keys() != keys:
        raise FormatError(f"it is {shown(sketch)}")
    return sketch
