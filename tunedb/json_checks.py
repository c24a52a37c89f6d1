"""Checks of foreign JSON values, before other code traverses or stores them."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import orjson

from . import limits
from .errors import FormatError

#: Bound of integers, from -2**63 to 2**63 - 1: the range of a database column.
INT64 = 2**63

#: A number of 19 digits or more, after a byte that can precede a value.
_LONG_NUMBER = re.compile(rb"[\[,:\s]-?\d{19}")

#: Length up to which a text cannot exceed the limit of values.
_FEW_BYTES = 2**20


def parse_json(data: bytes, most: int = limits.MAX_VALUES) -> Any:
    """Return a JSON value.

    Parameters
    ----------
    data : bytes
        The text.
    most : int
        Maximum number of values, which bounds the memory of the objects.

    Raises
    ------
    FormatError
        The text is not JSON, has more values, or an integer beyond 64 bits, which orjson would
        parse as a float.
    """
    if len(data) > _FEW_BYTES and sum(map(data.count, (b",", b"[", b"{"))) > most:
        raise FormatError(f"more than {most} values")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error}") from None
    if _LONG_NUMBER.search(data) is not None:
        _check_integers(data)
    return value


def _check_integers(data: bytes) -> None:
    try:
        json.loads(data, parse_int=_int64)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"a number that 64 bits cannot hold ({error})") from None


def _int64(text: str) -> int:
    # int() raises ValueError for texts of thousands of digits.
    value = int(text)
    if not -INT64 <= value < INT64:
        raise ValueError(f"{text[:24]}{'…' if len(text) > 24 else ''}")
    return value


def check_depth(value: Any, what: str, depth: int = limits.MAX_DEPTH) -> None:
    """Raise FormatError for lists and objects that are nested too deep.

    Parameters are those of :func:`check_value`, which also checks numbers.
    """
    if depth == 0:
        raise FormatError(f"{what}, nested deeper than {limits.MAX_DEPTH}")
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, list | dict):
            check_depth(item, what, depth - 1)


def check_value(value: Any, what: str, depth: int = limits.MAX_DEPTH) -> None:
    """Raise FormatError for a value that is nested too deep or has numbers that cannot be stored.

    Parameters
    ----------
    value : object
        A JSON value.
    what : str
        Name of the value in messages: "a target", "the arguments of a task".
    depth : int
        Maximum depth of lists and objects.
    """
    if isinstance(value, int):
        if not -INT64 <= value < INT64:
            raise FormatError(f"{what} with an integer beyond 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise FormatError(f"{what} with a number that is not finite")
    elif isinstance(value, list | dict):
        if depth == 0:
            raise FormatError(f"{what}, nested deeper than {limits.MAX_DEPTH}")
        for item in value.values() if isinstance(value, dict) else value:
            check_value(item, what, depth - 1)
