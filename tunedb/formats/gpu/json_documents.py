"""Files of GPU tuners that are one JSON document, and what all of them say in its values."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from reprlib import repr as short
from typing import Any

import orjson

from ... import limits
from ...errors import FormatError
from ...identity import canonical_json
from ...json_checks import INT64, check_value, parse_json
from ..base import LogFile
from ..streams import open_log

#: Texts that Python writes for numbers which JSON does not have, where a value may stand.
_NOT_JSON = re.compile(rb"[\[,:\s](?:NaN|-?Infinity)\b")

#: Halves of characters: in pairs they are one, alone no database can hold them.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")

#: Seconds in one of a unit, by the spellings that tools have (``miliseconds`` is Kernel Tuner's).
SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds", "miliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
}


def read_document(file: LogFile) -> bytes:
    """Return the bytes of a file, unpacked.

    Raises
    ------
    FormatError
        It is larger than a document may be, or cannot be unpacked.
    StorageError
        It cannot be read.
    """
    with open_log(file.path) as (stream, _):
        data = stream.read(limits.MAX_DOCUMENT_BYTES + 1)
    if len(data) > limits.MAX_DOCUMENT_BYTES:
        raise FormatError(f"a document of more than {limits.MAX_DOCUMENT_BYTES} bytes; split it")
    return data.removeprefix(b"\xef\xbb\xbf")


def parse_document(data: bytes) -> Any:
    """Return the JSON value of a document; Python's NaN and Infinity are values too.

    Raises
    ------
    FormatError
        It is no JSON, has too many values, or an integer beyond 64 bits.
    """
    try:
        return parse_json(data, most=limits.MAX_DOCUMENT_VALUES)
    except FormatError:
        if len(data) > limits.MAX_DOCUMENT_BYTES or _NOT_JSON.search(data) is None:
            raise
    if sum(map(data.count, (b",", b"[", b"{"))) > limits.MAX_DOCUMENT_VALUES:
        raise FormatError(f"more than {limits.MAX_DOCUMENT_VALUES} values")
    try:
        value = json.loads(data, parse_int=_int64)
        if _HALF.search(data) is not None:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}") from None
    return value


def _int64(text: str) -> int:
    value = int(text)
    if not -INT64 <= value < INT64:
        raise ValueError("a number that 64 bits cannot hold")
    return value


def seconds(value: Any, unit: float, what: str) -> float:
    """Return a time in seconds.

    Parameters
    ----------
    value : object
        What the file has for it.
    unit : float
        Seconds in one of it.
    what : str
        For the message: "a time".

    Raises
    ------
    FormatError
        It is no number, negative, not finite, or 0, which would be the best of all times.
    """
    _check_time(value, what)
    # In double precision a quotient is what people write: 3.0 / 1000 is 0.003, 3.0 * 1e-3 is not.
    found: float = value / round(1 / unit)
    if not found:
        raise FormatError(f"{what} is {value!r}; it was not measured")
    return found


def _check_time(value: Any, what: str) -> None:
    """Raise FormatError for what is no number, negative, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"{what} is {short(value)}, which is not a number")
    if not 0.0 <= value < math.inf:
        raise FormatError(f"{what} is {value!r}; a time must be finite and not negative")


def all_seconds(values: Any, unit: float, what: str) -> tuple[float, ...]:
    """Return a list of times in seconds (:func:`seconds`); there is one at least."""
    if type(values) is not list or not 0 < len(values) <= limits.MAX_RUN_SECS:
        raise FormatError(f"{what} must be a list of 1 to {limits.MAX_RUN_SECS} numbers")
    if not {float, int}.issuperset(map(type, values)) or min(values) < 0:
        for value in values:
            _check_time(value, "one of " + what)
    # A sum that is finite has finite parts, and the mean ranks a record.
    if not math.isfinite(sum(values)):
        raise FormatError(f"{what} have a sum that is not finite")
    parts = round(1 / unit)
    found = tuple([value / parts for value in values])
    if not any(found):
        raise FormatError(f"{what} are all 0; it was not measured")
    return found


def microseconds(text: Any) -> int:
    """Return a timestamp as microseconds since 1970, UTC; 0 where it is none that is known.

    A time without a zone is taken as UTC: Kernel Tuner's are.
    """
    if not isinstance(text, str):
        return 0
    try:
        found = datetime.fromisoformat(text.removesuffix(" UTC"))
        found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return max(0, round((found - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6))
    except (ValueError, OverflowError):
        return 0


def texts_instead(value: Any) -> Any:
    """Return a value with the numbers that JSON does not have as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, list):
        return [texts_instead(item) for item in value]
    if isinstance(value, dict):
        return {key: texts_instead(item) for key, item in value.items()}
    return value


def quarantined(value: Any) -> bytes:
    """Return a value of a document that was not understood, as it is kept aside."""
    try:
        data = orjson.dumps(texts_instead(value))
    except (RecursionError, TypeError):
        data = ascii(short(value)).encode()
    return data[: limits.MAX_QUARANTINE_BYTES]


def packed(value: dict[str, Any], what: str) -> bytes | None:
    """Return canonical JSON of what a file says besides, or None for nothing.

    Raises
    ------
    FormatError
        It is nested too deep.
    """
    if not value:
        return None
    try:
        kept = texts_instead(value)
        check_value(kept, what)
        return canonical_json(kept)
    except (RecursionError, TypeError) as error:
        raise FormatError(f"{what} cannot be kept: {error}") from None
