"""Knobs of AutoTVM in their stored form, without TVM.

A configuration is a list of knobs ``[name, type, value]``, the *entity*, and what says from which
space of a template it comes (``ConfigEntity.to_json_dict``, ``python/tvm/autotvm/task/space.py``,
apache/tvm v0.4 to v0.19). It is stored in two parts:

* the *sketch*: names and types of the knobs with the lengths of their lists, and the template;
* the *decisions*: the configuration's index and then the knobs' values, one after the other.

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
from ..records import Trace
from .base import Step

#: Type of a knob -> the step's name and the name of its value, as ``space.py`` calls them.
_TYPES = {
    "sp": ("split", "size"),
    "re": ("reorder", "perm"),
    "an": ("annotate", "anns"),
    "ot": ("other", "val"),
}

#: Fields of a template; both versions of the log share these names here.
TEMPLATE = frozenset({"index", "template_key", "code_hash"})

#: Sketches by what they are made of. Each is small; the whole is bounded by their number.
_sketches: dict[tuple[Any, ...], bytes] = {}
_MAX_SKETCHES = 4_096
_MAX_SKETCH_BYTES = 4_096


def split_knobs(entity: list[Any], template: dict[str, Any]) -> Trace:
    """Return the stored form of a configuration.

    Parameters
    ----------
    entity : list
        ``[name, type, value]`` per knob. The value is a list of integers for ``sp`` (tile sizes
        from the outermost loop inwards, -1 for what follows from the others) and ``re`` (a
        permutation), a list of annotations or of integers for ``an``, anything for ``ot``.
    template : dict
        Any of ``index`` (number of the configuration in its space), ``template_key`` and
        ``code_hash``. A field that is absent differs from one that is None.

    Raises
    ------
    FormatError
        When these are no knobs, or numbers are beyond 64 bits.
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
        When the parts are damaged or do not belong together.
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
        When the trace holds no knobs.
    """
    steps = []
    for number, (name, kind, value) in enumerate(join_knobs(trace)[0]):
        if kind not in _TYPES:
            raise FormatError(f"stored knob {name!r} has the unknown type {kind!r}")
        word, argument = _TYPES[kind]
        steps.append(Step(number, kind, word, None, None, {"knob": name, argument: value}))
    return steps


def _check_template(template: dict[str, Any]) -> None:
    """Raise FormatError unless a template has fields of the types that TVM writes."""
    for field, value in template.items():
        if field not in TEMPLATE:
            raise FormatError(f"a configuration with the unknown field {short(field)}")
        if value is not None and type(value) is not (int if field == "index" else str):
            raise FormatError(f"{field} of a configuration is {short(value)}")
    check_value(template.get("index"), "the index of a configuration")


def _check_list(name: str, kind: Any, value: Any) -> None:
    """Raise FormatError unless a knob's value is the list that its type takes."""
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
    """Return the sketch, given name, type and length of each knob in one flat list."""
    key = (tuple(template), template.get("template_key"), template.get("code_hash"), *shape)
    sketch = _sketches.get(key)
    if sketch is not None:
        return sketch
    knobs = [shape[start : start + 3] for start in range(0, len(shape), 3)]
    # The number itself is a decision; what stays says that there is one.
    fixed = template | {"index": None} if "index" in template else template
    sketch = canonical_json({"knobs": knobs, "template": fixed})
    if len(sketch) <= _MAX_SKETCH_BYTES:
        if len(_sketches) >= _MAX_SKETCHES:
            _sketches.clear()
        _sketches[key] = sketch
    return sketch
