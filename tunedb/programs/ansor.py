"""Transform steps of auto_scheduler (Ansor) in their stored form.

A program of auto_scheduler is a list of steps such as ``["SP", 3, 0, 128, [1, 8, 1, 1], 1]``: a
code, then its fields (``src/auto_scheduler/transform_step.cc``, apache/tvm v0.7 to v0.19). It is
stored in two parts:

* the *sketch*: canonical JSON of ``{"layout_rewrite": …, "steps": […]}``, where ``null`` stands for
  the numbers that differ from program to program: extent and lengths of a split, and the number
  after ``auto_unroll_max_step$``, which leaves ``["PR", 5, 0, "auto_unroll_max_step$", null]``;
* the *decisions*: these numbers in order, each as unsigned LEB128.

A split with an unknown length (``null``) stays unchanged in the sketch, recognisable by its extent,
which is not ``null``. A pragma stays unchanged if its text could not be restored (``…$007``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from reprlib import repr as shown  # bounded: JSON may be long and deep
from typing import Any

import orjson

from .. import limits
from ..errors import FormatError
from ..json_checks import INT64
from ..records import Trace, WorkloadFormat
from ._ansor import Splitter
from .allowlist import check_length, read_sketch
from .base import Step, Tool
from .workload_info.keys import of_ansor

#: Names of loop annotations, by number (``IteratorAnnotation``, ``loop_state.h``).
ANNOTATIONS = (
    "none",
    "unroll",
    "vectorize",
    "parallel",
    "vthread",
    "blockIdx.x",
    "threadIdx.x",
    "blockIdx.y",
    "threadIdx.y",
    "blockIdx.z",
    "threadIdx.z",
    "tensorize",
)

#: Names of ``layout_rewrite_option``, by number (``LayoutRewriteOption``, ``compute_dag.h``).
LAYOUT_REWRITES = ("no_rewrite", "insert_transform_stage", "rewrite_for_pre_transformed")

#: Prefix of the pragma with a number.
UNROLL = "auto_unroll_max_step$"


@dataclass(frozen=True, slots=True)
class Code:
    """A kind of step.

    Parameters
    ----------
    name : str
        Readable name.
    fields : tuple of str
        Names of its fields, in order; the first is always ``stage``.
    kinds : str
        A letter per field: ``i`` index (not negative), ``z`` integer, ``b`` 0 or 1, ``a`` number of
        an annotation, ``s`` text, ``l`` list of indexes, ``e`` extent of a split, ``n`` its lengths
        (always after the extent), ``p`` pragma.
    """

    name: str
    fields: tuple[str, ...]
    kinds: str


#: All kinds of step (``src/auto_scheduler/transform_step.h``), the frequent ones first.
CODES = {
    "SP": Code("split", ("stage", "loop", "extent", "lengths", "inner_to_outer"), "iienb"),
    "AN": Code("annotate", ("stage", "loop", "annotation"), "iia"),
    "FU": Code("fuse", ("stage", "fused_iters"), "il"),
    "FSP": Code("follow_split", ("stage", "loop", "src_step", "n_split"), "iiii"),
    "CA": Code("compute_at", ("stage", "target_stage", "target_iter"), "iii"),
    "RE": Code("reorder", ("stage", "after_iters"), "il"),
    "CHR": Code("cache_read", ("stage", "scope", "readers"), "isl"),
    "FFSP": Code(
        "follow_fused_split", ("stage", "loop", "src_steps", "level", "factor_or_nparts"), "iilib"
    ),
    "CI": Code("compute_inline", ("stage",), "i"),
    "PR": Code("pragma", ("stage", "loop", "pragma"), "iip"),
    "CHW": Code("cache_write", ("stage", "scope"), "is"),
    "CR": Code("compute_root", ("stage",), "i"),
    "RF": Code("rfactor", ("stage", "loop", "factor_iter"), "iii"),
    "SA": Code("storage_align", ("stage", "loop", "factor", "offset"), "iiiz"),
}

_splitter = Splitter({code: value.kinds for code, value in CODES.items()})

#: Descriptions of the kinds of fields, for messages.
_DESCRIPTIONS = {
    "i": "an index of 64 bits",
    "z": "an integer of 64 bits",
    "b": "0 or 1",
    "a": f"an annotation from 0 to {len(ANNOTATIONS) - 1}",
    "s": "text",
    "l": "a list of indexes",
    "e": "an extent of 64 bits",
    "n": "a list of lengths",
    "p": "text",
}
_VARINT_BYTES = 9  # 63 bits


def split_steps(steps: Any, layout_rewrite: Any) -> Trace:
    """Return the stored form of the steps of a line.

    Parameters
    ----------
    steps : list
        Steps as a JSON parser returns them.
    layout_rewrite : int or None
        The task's ``layout_rewrite_option``, which changes the meaning of the steps; None if the
        log has none.

    Raises
    ------
    FormatError
        A step is invalid; the message names the first one.
    """
    parts = _splitter.split(steps, layout_rewrite)
    if parts is None:
        raise FormatError(explain(steps, layout_rewrite))
    return Trace(parts[0], None, parts[1])


def explain(steps: Any, layout_rewrite: Any) -> str:
    """Return the reason why the steps are invalid."""
    if layout_rewrite is not None and not (
        _is_index(layout_rewrite) and layout_rewrite < len(LAYOUT_REWRITES)
    ):
        return f"layout_rewrite_option is 0, 1 or 2, not {shown(layout_rewrite)}"
    if not isinstance(steps, list):
        return "the steps are not a list"
    if len(steps) > limits.MAX_INSTRUCTIONS:
        return f"{len(steps)} steps are over the limit of {limits.MAX_INSTRUCTIONS}"
    complaints = (_explain_step(number, step) for number, step in enumerate(steps))
    return next(filter(None, complaints), "steps that cannot be stored")


def _explain_step(number: int, step: Any) -> str | None:
    """Return the reason why a step is invalid, or None."""
    if not (isinstance(step, list) and step and isinstance(step[0], str)):
        return f"step {number} is not [code, field, …]"
    code = CODES.get(step[0])
    if code is None:
        return f"step {number} has the unknown code {shown(step[0])}"
    if len(step) != len(code.kinds) + 1:
        return f"step {number} ({step[0]}) has {len(step) - 1} fields, not {len(code.kinds)}"
    for name, kind, value in zip(code.fields, code.kinds, step[1:], strict=True):
        if not _is_kind(kind, value):
            expected = _DESCRIPTIONS[kind]
            return f"step {number} ({step[0]}): its {name} is {expected}, not {shown(value)}"
    return None


def _is_index(value: Any) -> bool:
    return type(value) is int and 0 <= value < INT64


def _is_kind(kind: str, value: Any) -> bool:
    """Return True if a field's value has its kind (:class:`Code`)."""
    if kind in "sp":
        return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)
    if kind == "l":
        return isinstance(value, list) and all(_is_index(item) for item in value)
    if kind == "n":
        return isinstance(value, list) and all(item is None or _is_index(item) for item in value)
    if kind == "z":
        return type(value) is int and -INT64 <= value < INT64
    bound = {"a": len(ANNOTATIONS), "b": 2}.get(kind, INT64)
    return _is_index(value) and value < bound


def join_steps(trace: Trace) -> tuple[list[Any], int | None]:
    """Return ``(steps, layout_rewrite)``; the inverse of :func:`split_steps`.

    Raises
    ------
    FormatError
        The parts are damaged, do not belong together or belong to another tool.
    """
    try:
        sketch = orjson.loads(trace.sketch)
        layout_rewrite = sketch["layout_rewrite"]
        numbers = _read_varints(trace.decisions)
        steps = [_fill(step, numbers) for step in sketch["steps"]]
    except (TypeError, ValueError, LookupError, StopIteration, RecursionError) as error:
        raise FormatError(f"cannot read stored steps: {error!r:.200}") from None
    # An equal second split proves the types and the number of decisions.
    if _splitter.split(steps, layout_rewrite) != (trace.sketch, trace.decisions):
        raise FormatError("stored steps are damaged")
    return steps, layout_rewrite


def numbers_of(trace: Trace) -> list[int]:
    """Return the numbers of a program in which those of its sketch differ.

    Raises
    ------
    FormatError
        The decisions are damaged.
    """
    if trace.decisions[-1:] >= b"\x80":
        raise FormatError("cannot read stored steps: the last number is cut off")
    try:
        return list(_read_varints(trace.decisions))
    except ValueError as error:
        raise FormatError(f"cannot read stored steps: {error}") from None


def places_of(trace: Trace) -> dict[int, slice]:
    """Return the place of a step's numbers among those of the program, by number of the step.

    Raises
    ------
    FormatError
        The sketch is damaged.
    """
    try:
        counts = [_filled(step)[0] for step in orjson.loads(trace.sketch)["steps"]]
    except (TypeError, ValueError, LookupError) as error:
        raise FormatError(f"cannot read stored steps: {error!r:.200}") from None
    ends = list(accumulate(counts))
    return {
        step: slice(end - count, end)
        for step, (count, end) in enumerate(zip(counts, ends, strict=True))
        if count
    }


def _read_varints(data: bytes) -> Iterator[int]:
    """Yield unsigned LEB128 numbers."""
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0
        elif shift == 7 * _VARINT_BYTES:
            raise ValueError("a number of more than 63 bits")


def _fill(step: list[Any], numbers: Iterator[int]) -> list[Any]:
    """Return a step of a sketch, completed with its numbers."""
    if step[0] == "SP" and step[3] is None:
        extent = next(numbers)
        return [*step[:3], extent, [next(numbers) for _ in step[4]], *step[5:]]
    if step[0] == "PR" and len(step) == 5 and step[4] is None:
        return [*step[:3], f"{step[3]}{next(numbers)}"]
    return step


def steps_of(trace: Trace) -> list[Step]:
    """Return the steps of a stored program with named, readable arguments.

    ``annotation`` is a name of :data:`ANNOTATIONS`; the number of a pragma is ``value``; an unknown
    extent (stored as 0) and an unknown length are None.

    Raises
    ------
    FormatError
        The stored steps are damaged.
    """
    steps, _ = join_steps(trace)
    return [_readable(number, step) for number, step in enumerate(steps)]


def _readable(number: int, step: list[Any]) -> Step:
    code = CODES[step[0]]
    arguments = dict(zip(code.fields, step[1:], strict=True))
    for name, kind in zip(code.fields, code.kinds, strict=True):
        if kind == "a":
            arguments[name] = ANNOTATIONS[arguments[name]]
        elif kind == "b":
            arguments[name] = bool(arguments[name])
        elif kind == "e":
            arguments[name] = arguments[name] or None
        elif kind == "p" and arguments[name].startswith(UNROLL):
            value = arguments[name].removeprefix(UNROLL)
            if value.isascii() and value.isdecimal() and len(value) < 20:
                arguments.update({name: UNROLL[:-1], "value": int(value)})
    stage = arguments.pop("stage")
    return Step(number, step[0], code.name, stage, arguments.pop("loop", None), arguments)


def _options_of(trace: Trace) -> dict[str, Any]:
    option = join_steps(trace)[1]
    return {} if option is None else {"layout_rewrite": LAYOUT_REWRITES[option]}


# ---- Allow-list for foreign programs -------------------------------------------------------------

#: The one pragma that auto_scheduler's rules write (``sketch_policy_rules.cc``).
_PRAGMA = re.compile(r"auto_unroll_max_step\$[0-9]{1,18}")

#: Allowed storage scopes of cache steps.
_SCOPES = frozenset({"local", "shared", "global", "warp"})

_CONTINUED = bytes(range(128, 256))
_TOO_LONG = re.compile(rb"[\x80-\xff]{9}")  # a number of more than 63 bits


def _check_sketch(body: bytes) -> int:
    """Check a sketch and return the number of its decisions."""
    sketch = read_sketch(body, {"layout_rewrite", "steps"})
    steps, layout_rewrite = sketch["steps"], sketch["layout_rewrite"]
    if not isinstance(steps, list) or len(steps) > limits.MAX_FOREIGN_STEPS:
        raise FormatError(f"not a list of at most {limits.MAX_FOREIGN_STEPS} steps")
    places, filled = 0, []
    for step in steps:
        number, filled_step = _filled(step)
        places += number
        filled.append(filled_step)
    if split_steps(filled, layout_rewrite).sketch != body:
        raise FormatError("not in the canonical form")
    for number, step in enumerate(filled):
        if step[0] == "PR" and _PRAGMA.fullmatch(step[3]) is None:
            raise FormatError(f"step {number}: the pragma {shown(step[3])} is not allowed")
        if step[0] in ("CHR", "CHW") and step[2] not in _SCOPES:
            raise FormatError(f"step {number}: the scope {shown(step[2])} is not allowed")
    return places


def _filled(step: Any) -> tuple[int, Any]:
    """Return the number of a step's decisions, and the step with dummies in their places."""
    if isinstance(step, list) and step:
        if step[0] == "SP" and len(step) == 6 and step[3] is None and isinstance(step[4], list):
            return 1 + len(step[4]), [*step[:3], 1, [1] * len(step[4]), step[5]]
        if step[0] == "PR" and len(step) == 5 and step[3] == UNROLL and step[4] is None:
            return 1, [*step[:3], f"{UNROLL}1"]
    return 0, step


def _check_decisions(decisions: bytes) -> None:
    """Raise FormatError unless the decisions are numbers of at most 63 bits."""
    check_length(decisions)
    if decisions and (decisions[-1] >= 128 or _TOO_LONG.search(decisions)):
        raise FormatError("decisions: not numbers of at most 63 bits")


def _check_program(places: int, _: int | None, decisions: bytes) -> None:
    """Raise FormatError unless the decisions are as many as the places of the sketch."""
    _check_decisions(decisions)
    numbers = len(decisions.translate(None, _CONTINUED))
    if numbers != places:
        raise FormatError(f"decisions: {numbers} numbers for {places} places")


TOOL = Tool(
    signatures={WorkloadFormat.ANSOR: of_ansor},
    steps=steps_of,
    chosen={"SP": "lengths", "PR": "value"},
    check_sketch=_check_sketch,
    check_decisions=_check_decisions,
    check_program=_check_program,
    options=_options_of,
)
