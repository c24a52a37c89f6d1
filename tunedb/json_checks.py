"""Checks of JSON values that come from outside, before anything walks or stores them."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import orjson

from . import limits
from .errors import FormatError

#: Integers are below this and not below its negative: what a database column can hold.
INT64 = 2**63

#: A number of 19 digits or more, before which JSON has one of these bytes.
_LONG_NUMBER = re.compile(rb"[\[,:\s]-?\d{19}")

#: Text of this length has too few values to count them.
_FEW_BYTES = 2**20


def parse_json(data: bytes, most: int = limits.MAX_VALUES) -> Any:
    """Return a JSON value.

    Parameters
    ----------
    data : bytes
        The text.
    most : int
        How many values it may have.

    Raises
    ------
    FormatError
        It is no JSON, has more values than its objects may take memory, or an integer beyond
        64 bits, which orjson would make a float.
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
    # int() itself refuses texts of thousands of digits with a ValueError.
    value = int(text)
    if not -INT64 <= value < INT64:
        raise ValueError(f"{text[:24]}{'…' if len(text) > 24 else ''}")
    return value


def check_depth(value: Any, what: str, depth: int = limits.MAX_DEPTH) -> None:
    """Raise FormatError for lists and objects that are nested too deep to be walked and written.

    Parameters are those of :func:`check_value`, which looks at numbers besides.
    """
    if depth == 0:
        raise FormatError(f"{what}, nested deeper than {limits.MAX_DEPTH}")
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, list | dict):
            check_depth(item, what, depth - 1)


def check_value(value: Any, what: str, depth: int = limits.MAX_DEPTH) -> None:
    """Raise FormatError for what is nested too deep or has numbers that cannot be kept.

    Parameters
    ----------
    value : object
        A JSON value.
    what : str
        For the message: "a target", "the arguments of a task".
    depth : int
        How many levels of lists and objects may follow.
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
