"""Knobs of AutoTVM in their stored form, without TVM.

A configuration is a list of knobs ``[name, type, value]``, the *entity*, and the fields that
identify its template (``ConfigEntity.to_json_dict``, ``python/tvm/autotvm/task/space.py``,
apache/tvm v0.4 to v0.19). It is stored in two parts:

* the *sketch*: names and types of the knobs, the lengths of their lists, and the template;
* the *decisions*: the configuration's index, then the values of all knobs.

All configurations of a task share one sketch.
"""

from __future__ import annotations

from reprlib import repr as short
from typing import Any

import orjson

from .. import limits
from ..errors import FormatError
from ..identity import canonical_json
from ..json_checks import INT64, check_value
from ..records import Trace, WorkloadFormat
from .allowlist import is_int, is_text, is_word, read_sketch, read_values
from .base import Step, Tool
from .workload_info.keys import of_autotvm

#: Type of a knob -> name of the step, and of its value, as in ``space.py``.
_TYPES = {
    "sp": ("split", "size"),
    "re": ("reorder", "perm"),
    "an": ("annotate", "anns"),
    "ot": ("other", "val"),
}

#: Fields of a template, under the same names for both versions of the log.
TEMPLATE = frozenset({"index", "template_key", "code_hash"})

#: Cache of sketches by template and shape, bounded in number and size of the sketches.
_sketches: dict[tuple[Any, ...], bytes] = {}
_MAX_SKETCHES = 4_096
_MAX_SKETCH_BYTES = 4_096


def split_knobs(entity: list[Any], template: dict[str, Any]) -> Trace:
    """Return the stored form of a configuration.

    Parameters
    ----------
    entity : list
        ``[name, type, value]`` per knob. The value is a list of integers for ``sp`` (tile sizes
        from the outermost loop inwards, -1 for an inferred size) and ``re`` (a permutation), a list
        of annotations or of integers for ``an``, any JSON value for ``ot``.
    template : dict
        Any of ``index`` (number of the configuration in its space), ``template_key`` and
        ``code_hash``. An absent field differs from None.

    Raises
    ------
    FormatError
        A knob is invalid, or an integer exceeds 64 bits.
    """
    if type(entity) is not list or len(entity) > limits.MAX_INSTRUCTIONS:
        raise FormatError("a configuration must be a list of knobs")
    _check_template(template)
    shape: list[Any] = []
    values: list[Any] = [template.get("index")]
    for knob in entity:
        if type(knob) is not list or len(knob) != 3 or type(knob[0]) is not str:
            raise FormatError(f"a knob must be [name, type, value], not {short(knob)}")
        name, kind, value = knob
        if kind == "ot":
            check_value(value, "a knob")
            values.append(value)
            shape += (name, kind, None)
        else:
            _check_list(name, kind, value)
            values += value
            shape += (name, kind, len(value))
    try:
        return Trace(_sketch_of(template, shape), None, canonical_json(values))
    except TypeError as error:
        raise FormatError(f"a configuration has no JSON form: {error}") from error


def join_knobs(trace: Trace) -> tuple[list[Any], dict[str, Any]]:
    """Return ``(entity, template)``; the inverse of :func:`split_knobs`.

    Raises
    ------
    FormatError
        The parts are damaged or do not belong together.
    """
    try:
        sketch = orjson.loads(trace.sketch)
        index, *values = orjson.loads(trace.decisions)
        template = dict(sketch["template"])
        entity: list[Any] = []
        position = 0
        for name, kind, length in sketch["knobs"]:
            end = position + (1 if length is None else length)
            value = values[position] if length is None else values[position:end]
            entity.append([name, kind, value])
            position = end
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise FormatError(f"cannot read stored knobs: {error}") from error
    if position != len(values):
        raise FormatError(f"stored knobs with {len(values)} values for {position} places")
    if "index" in template:
        template["index"] = index
    return entity, template


def steps_of(trace: Trace) -> list[Step]:
    """Return the knobs as steps, whose argument ``knob`` is the knob's name.

    Raises
    ------
    FormatError
        The trace does not hold knobs.
    """
    steps = []
    for number, (name, kind, value) in enumerate(join_knobs(trace)[0]):
        if kind not in _TYPES:
            raise FormatError(f"stored knob {name!r} has the unknown type {kind!r}")
        word, argument = _TYPES[kind]
        steps.append(Step(number, kind, word, None, None, {"knob": name, argument: value}))
    return steps


def _check_template(template: dict[str, Any]) -> None:
    """Raise FormatError unless a template has TVM's fields and types."""
    for field, value in template.items():
        if field not in TEMPLATE:
            raise FormatError(f"a configuration with the unknown field {short(field)}")
        if value is not None and type(value) is not (int if field == "index" else str):
            raise FormatError(f"{field} of a configuration is {short(value)}")
    check_value(template.get("index"), "the index of a configuration")


def _check_list(name: str, kind: Any, value: Any) -> None:
    """Raise FormatError unless a knob's value is a list of its type."""
    if type(kind) is not str or kind not in _TYPES:
        raise FormatError(f"knob {short(name)} has the unknown type {short(kind)}")
    if type(value) is not list:
        raise FormatError(f"knob {short(name)} of type {kind} takes a list, not {short(value)}")
    types = set(map(type, value))
    if types == {int}:
        if min(value) < -INT64 or max(value) >= INT64:
            raise FormatError(f"knob {short(name)} with an integer beyond 64 bits")
    elif types and not (kind == "an" and types == {str}):
        raise FormatError(f"knob {short(name)} of type {kind} holds {short(value)}")


def _sketch_of(template: dict[str, Any], shape: list[Any]) -> bytes:
    """Return the sketch; `shape` is a flat list of name, type and length of each knob."""
    key = (tuple(template), template.get("template_key"), template.get("code_hash"), *shape)
    sketch = _sketches.get(key)
    if sketch is not None:
        return sketch
    knobs = [shape[start : start + 3] for start in range(0, len(shape), 3)]
    # The index is a decision; the sketch only records that there is one.
    fixed = template | {"index": None} if "index" in template else template
    sketch = canonical_json({"knobs": knobs, "template": fixed})
    if len(sketch) <= _MAX_SKETCH_BYTES:
        if len(_sketches) >= _MAX_SKETCHES:
            _sketches.clear()
        _sketches[key] = sketch
    return sketch


def _options_of(trace: Trace) -> dict[str, Any]:
    return join_knobs(trace)[1]


# ---- Allow-list for foreign programs -------------------------------------------------------------

#: Type and length of each knob of a sketch; the length is None for a single value.
_Knobs = tuple[tuple[str, int | None], ...]

#: Annotations of AutoTVM's loops (``space.py``, ``AnnotateEntity``).
_ANNOTATIONS = frozenset(
    {"none", "unroll", "try_unroll", "vec", "try_vec", "parallel", "reorder", "vectorize"}
    | {f"{name}.{axis}" for name in ("blockIdx", "threadIdx") for axis in "xyz"}
    | {"vthread"}
)


def _check_sketch(body: bytes) -> _Knobs:
    """Check a sketch and return its knobs."""
    sketch = read_sketch(body, {"knobs", "template"})
    _check_foreign_template(sketch["template"])
    knobs = sketch["knobs"]
    if not isinstance(knobs, list) or len(knobs) > limits.MAX_FOREIGN_STEPS:
        raise FormatError(f"not a list of at most {limits.MAX_FOREIGN_STEPS} knobs")
    shape = []
    for number, knob in enumerate(knobs):
        if not (isinstance(knob, list) and len(knob) == 3 and is_text(knob[0])):
            raise FormatError(f"knob {number} is {short(knob)}")
        name, kind, length = knob
        if not isinstance(kind, str) or kind not in _TYPES:
            raise FormatError(f"knob {short(name)} has the type {short(kind)}")
        is_single = kind == "ot" and length is None
        if not is_single and not (
            kind != "ot" and type(length) is int and 0 <= length <= limits.MAX_FOREIGN_STEPS
        ):
            raise FormatError(f"knob {short(name)} has the length {short(length)}")
        shape.append((kind, length))
    if canonical_json(sketch) != body:
        raise FormatError("not in the canonical form")
    return tuple(shape)


def _check_foreign_template(template: Any) -> None:
    """Raise FormatError unless a template has AutoTVM's fields, with words."""
    if not isinstance(template, dict) or not template.keys() <= TEMPLATE:
        raise FormatError(f"the template is {short(template)}")
    for field, value in template.items():
        if field == "index" or value is None:
            if value is not None:
                raise FormatError("the template has its index in the sketch")
        elif not is_word(value):
            raise FormatError(f"the template's {field} is {short(value)}")


def _check_decisions(decisions: bytes) -> None:
    """Raise FormatError unless the decisions are possible values of knobs."""
    for value in _foreign_values(decisions)[1:]:
        if not _fits("ot", value):
            raise FormatError(f"decisions: a knob has {short(value)}")


def _check_program(knobs: _Knobs, _: _Knobs | None, decisions: bytes) -> None:
    """Raise FormatError unless the values match the knobs."""
    values = _foreign_values(decisions)
    position = 1
    for kind, length in knobs:
        end = position + (1 if length is None else length)
        for value in values[position:end]:
            if not _fits(kind, value):
                raise FormatError(f"decisions: a knob of type {kind} has {short(value)}")
        position = end
    if position != len(values):
        raise FormatError(f"decisions: {len(values)} values for {position} places")


def _foreign_values(decisions: bytes) -> list[Any]:
    """Return the index of a configuration and its values."""
    values = read_values(decisions)
    if not values:
        raise FormatError("decisions: not a list of values")
    if not (values[0] is None or is_int(values[0])):
        raise FormatError(f"decisions: {short(values[0])} is not a number of a configuration")
    return values


def _fits(kind: str, value: Any) -> bool:
    """Return True if a knob of this type may have the value."""
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
        return is_word(value)
    return value is None or type_ is bool or type_ is float


TOOL = Tool(
    signatures={WorkloadFormat.AUTOTVM: of_autotvm},
    steps=steps_of,
    chosen={kind: argument for kind, (_, argument) in _TYPES.items()},
    check_sketch=_check_sketch,
    check_decisions=_check_decisions,
    check_program=_check_program,
    options=_options_of,
)
