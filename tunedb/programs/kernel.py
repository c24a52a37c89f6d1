"""Tuning parameters of GPU kernels in their stored form.

A configuration of Kernel Tuner, KTT, CLTune or Triton is a list of named values. The *sketch* holds
the names, which all configurations of a space share; the *decisions* are the values, in order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from reprlib import repr as short
from typing import Any

import orjson

from .. import limits
from ..errors import FormatError
from ..identity import canonical_json
from ..json_checks import check_value
from ..records import Signature, Trace, WorkloadFormat
from .allowlist import is_int, is_word, read_sketch, read_values
from .base import Step, Tool


def split_parameters(configuration: Mapping[str, Any]) -> Trace:
    """Return the stored form of a configuration.

    Parameters
    ----------
    configuration : mapping
        Parameter → value, in the order of the tuning space: numbers, texts, truth values.

    Raises
    ------
    FormatError
        The parameters exceed their limit, or a value is neither number nor text.
    """
    if len(configuration) > limits.MAX_INSTRUCTIONS:
        raise FormatError(f"a configuration with {len(configuration)} parameters")
    for name, value in configuration.items():
        if type(name) is not str or not isinstance(value, str | int | float | bool | None):
            raise FormatError(
                f"parameter {short(name)} is {short(value)}; expected a number or text"
            )
        check_value(value, "a tuning parameter")
    try:
        names = canonical_json({"parameters": list(configuration)})
        return Trace(names, None, canonical_json(list(configuration.values())))
    except TypeError as error:
        raise FormatError(f"a configuration has no JSON form: {error}") from error


def join_parameters(trace: Trace) -> dict[str, Any]:
    """Return parameter → value; the inverse of :func:`split_parameters`.

    Raises
    ------
    FormatError
        The parts are damaged or do not belong together.
    """
    try:
        names = orjson.loads(trace.sketch)["parameters"]
        return dict(zip(names, orjson.loads(trace.decisions), strict=True))
    except (TypeError, ValueError, KeyError) as error:
        raise FormatError(f"cannot read stored parameters: {error}") from error


def steps_of(trace: Trace) -> list[Step]:
    """Return the parameters as steps, one for each.

    Raises
    ------
    FormatError
        The trace does not hold parameters.
    """
    return [
        Step(number, "parameter", "parameter", None, None, {"name": name, "value": value})
        for number, (name, value) in enumerate(join_parameters(trace).items())
    ]


def _signature_of(value: Any) -> Signature:
    """Return the signature of a GPU kernel, from a program's workload or a FAIR T1 input."""
    if isinstance(value, dict):
        specification = value.get("KernelSpecification")
        name = value.get("kernel")
        if name is None and isinstance(specification, dict):
            name = specification.get("KernelName")
        if isinstance(name, str) and name:
            return Signature(name[: limits.MAX_NAME_CHARS])
    return Signature()


# ---- Allow-list for foreign programs -------------------------------------------------------------
#
# tunedb compiles nothing with these parameters. But it shows them and exports them to tools that
# compile with them, so only names and plain values are allowed.

#: Names of parameters, which are macros or arguments in Python.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}")


def _check_sketch(body: bytes) -> int:
    """Check a sketch and return the number of its parameters."""
    sketch = read_sketch(body, {"parameters"})
    names = sketch["parameters"]
    if not isinstance(names, list) or len(names) > limits.MAX_FOREIGN_STEPS:
        raise FormatError(f"not a list of at most {limits.MAX_FOREIGN_STEPS} parameters")
    for name in names:
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise FormatError(f"a parameter is called {short(name)}")
    if len(set(names)) < len(names):
        raise FormatError("two parameters have one name")
    if canonical_json(sketch) != body:
        raise FormatError("not in the canonical form")
    return len(names)


def _foreign_values(decisions: bytes) -> list[Any]:
    """Return the values; FormatError unless they are numbers, truth values, null or short words."""
    values = read_values(decisions)
    for value in values:
        if not _is_plain(value):
            raise FormatError(f"decisions: a parameter has {short(value)}")
    return values


def _is_plain(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) is bool or is_int(value) or is_word(value)


def _check_decisions(decisions: bytes) -> None:
    _foreign_values(decisions)


def _check_program(count: int, _: int | None, decisions: bytes) -> None:
    """Raise FormatError unless the values are as many as the parameters."""
    values = len(_foreign_values(decisions))
    if values != count:
        raise FormatError(f"{values} values of {count} parameters")


TOOL = Tool(
    signatures={WorkloadFormat.KERNEL: _signature_of, WorkloadFormat.T1: _signature_of},
    steps=steps_of,
    chosen={"parameter": "value"},
    check_sketch=_check_sketch,
    check_decisions=_check_decisions,
    check_program=_check_program,
)
