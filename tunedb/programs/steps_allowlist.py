"""Steps of auto_scheduler and knobs of AutoTVM that a foreign program may hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from reprlib import repr as shown  # bounded: a value may be long and deep
from typing import Any

import orjson

from .. import limits
from ..errors import FormatError
from ..identity import canonical_json
from . import ansor, autotvm
from .metaschedule.allowlist import is_int, is_text

#: The one pragma that auto_scheduler's rules write (``sketch_policy_rules.cc``).
_PRAGMA = re.compile(r"auto_unroll_max_step\$[0-9]{1,18}")

#: Storage scopes of its caches.
_SCOPES = frozenset({"local", "shared", "global", "warp"})

#: Annotations of AutoTVM's loops (``space.py``, ``AnnotateEntity``).
_ANNOTATIONS = frozenset(
    {"none", "unroll", "try_unroll", "vec", "try_vec", "parallel", "reorder", "vectorize"}
    | {f"{name}.{axis}" for name in ("blockIdx", "threadIdx") for axis in "xyz"}
    | {"vthread"}
)

#: Words that a knob or a template may have: names of kernels, algorithms and layouts.
_WORD = re.compile(r"[A-Za-z0-9_.\-+]{0,64}")
_CONTINUED = bytes(range(128, 256))
_TOO_LONG = re.compile(rb"[\x80-\xff]{9}")  # a number of more than 63 bits
_SHAPE_FIELDS = 3


@dataclass(frozen=True, slots=True)
class Facts:
    """What a sketch has places for.

    Parameters
    ----------
    places : int
        Numbers of auto_scheduler; -1 for knobs.
    knobs : tuple
        Type and length of each of AutoTVM's knobs; the length is None for a single value.
    parameters : int or None
        How many parameters of a GPU kernel; None for steps and knobs.
    """

    places: int
    knobs: tuple[tuple[str, int | None], ...] = ()
    parameters: int | None = None


def check_program(sketch: Facts, decisions: bytes) -> None:
    """Raise FormatError unless decisions belong to an allowed sketch.

    Parameters
    ----------
    sketch : Facts
        What :func:`ansor_part` or :func:`autotvm_part` said of it.
    decisions : bytes
        As they are stored.
    """
    if sketch.places >= 0:
        check_ansor_decisions(decisions)
        numbers = len(decisions.translate(None, _CONTINUED))
        if numbers != sketch.places:
            raise FormatError(f"decisions: {numbers} numbers for {sketch.places} places")
        return
    values = _read_values(decisions)
    position = 1
    for kind, length in sketch.knobs:
        end = position + (1 if length is None else length)
        for value in values[position:end]:
            if not _fits(kind, value):
                raise FormatError(f"decisions: a knob of type {kind} has {shown(value)}")
        position = end
    if position != len(values):
        raise FormatError(f"decisions: {len(values)} values for {position} places")


# ---- auto_scheduler -----------------------------------------------------------------------------


def ansor_part(body: bytes) -> Facts:
    """Return what a sketch of auto_scheduler has (:mod:`tunedb.programs.ansor`).

    Raises
    ------
    FormatError
        It is none, or has a step that is not allowed.
    """
    sketch = read_sketch(body, {"layout_rewrite", "steps"})
    steps, layout_rewrite = sketch["steps"], sketch["layout_rewrite"]
    if not isinstance(steps, list) or len(steps) > limits.MAX_FOREIGN_STEPS:
        raise FormatError(f"no list of {limits.MAX_FOREIGN_STEPS} steps at most")
    places, filled = 0, []
    for step in steps:
        number, whole = _filled(step)
        places += number
        filled.append(whole)
    if ansor.split_steps(filled, layout_rewrite).sketch != body:
        raise FormatError("not in the canonical form")
    for number, step in enumerate(filled):
        if step[0] == "PR" and _PRAGMA.fullmatch(step[3]) is None:
            raise FormatError(f"step {number}: the pragma {shown(step[3])} is not allowed")
        if step[0] in ("CHR", "CHW") and step[2] not in _SCOPES:
            raise FormatError(f"step {number}: the scope {shown(step[2])} is not allowed")
    return Facts(places)


def _filled(step: Any) -> tuple[int, Any]:
    """Return how many numbers of a step stand elsewhere, and the step with some in their place."""
    if isinstance(step, list) and step:
        if step[0] == "SP" and len(step) == 6 and step[3] is None and isinstance(step[4], list):
            return 1 + len(step[4]), [*step[:3], 1, [1] * len(step[4]), step[5]]
        if step[0] == "PR" and len(step) == 5 and step[3] == ansor.UNROLL and step[4] is None:
            return 1, [*step[:3], f"{ansor.UNROLL}1"]
    return 0, step


def check_ansor_decisions(decisions: bytes) -> None:
    """Raise FormatError unless these are whole numbers of 63 bits at most.

    Parameters
    ----------
    decisions : bytes
        Unsigned LEB128, one number after the other.
    """
    check_length(decisions)
    if decisions and (decisions[-1] >= 128 or _TOO_LONG.search(decisions)):
        raise FormatError("decisions: no numbers of 63 bits")


# ---- AutoTVM ------------------------------------------------------------------------------------


def autotvm_part(body: bytes) -> Facts:
    """Return what a sketch of AutoTVM has (:mod:`tunedb.programs.autotvm`).

    Raises
    ------
    FormatError
        It is none, or has a knob or a template that is not allowed.
    """
    sketch = read_sketch(body, {"knobs", "template"})
    _check_template(sketch["template"])
    knobs = sketch["knobs"]
    if not isinstance(knobs, list) or len(knobs) > limits.MAX_FOREIGN_STEPS:
        raise FormatError(f"no list of {limits.MAX_FOREIGN_STEPS} knobs at most")
    shape = []
    for number, knob in enumerate(knobs):
        if not (isinstance(knob, list) and len(knob) == _SHAPE_FIELDS and is_text(knob[0])):
            raise FormatError(f"knob {number} is {shown(knob)}")
        name, kind, length = knob
        if kind not in ("sp", "re", "an", "ot"):
            raise FormatError(f"knob {shown(name)} has the type {shown(kind)}")
        is_single = kind == "ot" and length is None
        if not is_single and not (
            kind != "ot" and type(length) is int and 0 <= length <= limits.MAX_FOREIGN_STEPS
        ):
            raise FormatError(f"knob {shown(name)} has the length {shown(length)}")
        shape.append((kind, length))
    if canonical_json(sketch) != body:
        raise FormatError("not in the canonical form")
    return Facts(-1, tuple(shape))


def _check_template(template: Any) -> None:
    """Raise FormatError unless it has the fields that AutoTVM writes, with words."""
    if not isinstance(template, dict) or not template.keys() <= autotvm.TEMPLATE:
        raise FormatError(f"the template is {shown(template)}")
    for field, value in template.items():
        if field == "index" or value is None:
            if value is not None:
                raise FormatError("the template has its index in the sketch")
        elif not (isinstance(value, str) and _WORD.fullmatch(value)):
            raise FormatError(f"the template's {field} is {shown(value)}")


def check_autotvm_decisions(decisions: bytes) -> None:
    """Raise FormatError unless these are the values of knobs.

    Parameters
    ----------
    decisions : bytes
        JSON: the configuration's number and the values, one after the other.
    """
    for value in _read_values(decisions)[1:]:
        if not _fits("ot", value):
            raise FormatError(f"decisions: a knob has {shown(value)}")


def _read_values(decisions: bytes) -> list[Any]:
    """Return the number of a configuration and its values."""
    check_length(decisions)
    try:
        values = orjson.loads(decisions)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"decisions: not JSON: {error}") from None
    if not (isinstance(values, list) and values):
        raise FormatError("decisions: no list of values")
    if not (values[0] is None or is_int(values[0])):
        raise FormatError(f"decisions: {shown(values[0])} is not a number of a configuration")
    return values


def _fits(kind: str, value: Any) -> bool:
    """Tell whether a knob of some type may have a value."""
    type_ = type(value)
    if type_ is int:
        return is_int(value)
    if kind == "an":
        return type_ is str and value in _ANNOTATIONS
    if kind != "ot":
        return False
    if type_ is list:
        return all(type(item) is not list and _fits(kind, item) for item in value)
    if type_ is str:
        return _WORD.fullmatch(value) is not None
    return value is None or type_ is bool or type_ is float


# ---- both ---------------------------------------------------------------------------------------


def is_word(text: str) -> bool:
    """Tell whether a text is a short word, such as the name of a layout."""
    return _WORD.fullmatch(text) is not None


def check_length(decisions: bytes) -> None:
    """Raise FormatError for decisions that are too long."""
    if len(decisions) > limits.MAX_FOREIGN_DECISION_BYTES:
        raise FormatError(
            f"decisions of {len(decisions)} bytes, over {limits.MAX_FOREIGN_DECISION_BYTES}"
        )


def read_sketch(body: bytes, keys: set[str]) -> dict[str, Any]:
    """Return the object that a sketch is, or raise FormatError."""
    try:
        sketch = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error}") from None
    if not isinstance(sketch, dict) or sketch.keys() != keys:
        raise FormatError(f"it is {shown(sketch)}")
    return sketch
