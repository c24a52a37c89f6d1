"""Tuning parameters of GPU kernels in their stored form.

A configuration of Kernel Tuner, KTT, CLTune or Triton is a list of named values. The *sketch* are
the names, which all configurations of a space share; the *decisions* are the values in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as short
from typing import Any

import orjson

from .. import limits
from ..errors import FormatError
from ..identity import canonical_json
from ..json_checks import check_value
from ..records import Trace
from .base import Step


def split_parameters(configuration: Mapping[str, Any]) -> Trace:
    """Return the stored form of a configuration.

    Parameters
    ----------
    configuration : mapping
        Parameter → value, in the order of the tuning space: numbers, texts, truth values.

    Raises
    ------
    FormatError
        There are too many parameters, or a value is neither number nor text.
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
        When the parts are damaged or do not belong together.
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
        When the trace holds no parameters.
    """
    return [
        Step(number, "parameter", "parameter", None, None, {"name": name, "value": value})
        for number, (name, value) in enumerate(join_parameters(trace).items())
    ]
