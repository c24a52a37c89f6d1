"""Tuning parameters of GPU kernels that a foreign program may hold.

They reach no compiler here. But they are shown and written into other tools' files, which do
compile with them: so they are names and plain values.
"""

from __future__ import annotations

import math
import re
from reprlib import repr as shown  # bounded: a value may be long and deep
from typing import Any

import orjson

from .. import limits
from ..errors import FormatError
from ..identity import canonical_json
from .metaschedule.allowlist import is_int
from .steps_allowlist import Facts, check_length, is_word, read_sketch

#: Names of parameters: those of macros and of Python's arguments.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}")


def part(body: bytes) -> Facts:
    """Return what a sketch of parameters has (:mod:`tunedb.programs.kernel`).

    Raises
    ------
    FormatError
        It is none, or a name is not allowed.
    """
    sketch = read_sketch(body, {"parameters"})
    names = sketch["parameters"]
    if not isinstance(names, list) or len(names) > limits.MAX_FOREIGN_STEPS:
        raise FormatError(f"no list of {limits.MAX_FOREIGN_STEPS} parameters at most")
    for name in names:
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise FormatError(f"a parameter is called {shown(name)}")
    if len(set(names)) < len(names):
        raise FormatError("two parameters have one name")
    if canonical_json(sketch) != body:
        raise FormatError("not in the canonical form")
    return Facts(-1, parameters=len(names))


def check_decisions(decisions: bytes) -> None:
    """Raise FormatError unless these are plain values: numbers and short words."""
    values_of(decisions)


def values_of(decisions: bytes) -> list[Any]:
    """Return the values of parameters, or raise FormatError where one is not allowed."""
    check_length(decisions)
    try:
        values = orjson.loads(decisions)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"decisions: not JSON: {error}") from None
    if not isinstance(values, list):
        raise FormatError("decisions: no list of values")
    for value in values:
        if not _is_plain(value):
            raise FormatError(f"decisions: a parameter has {shown(value)}")
    return values


def _is_plain(value: Any) -> bool:
    if type(value) is str:
        return is_word(value)
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) is bool or is_int(value)


def check_program(sketch: Facts, decisions: bytes) -> None:
    """Raise FormatError unless there are as many values as parameters."""
    count = len(values_of(decisions))
    if count != sketch.parameters:
        raise FormatError(f"{count} values of {sketch.parameters} parameters")
