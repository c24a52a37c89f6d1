"""Files of GPU tuners that are one JSON document: parsing, times and timestamps."""

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

#: Python's NaN and infinities at the place of a value; JSON has no such numbers.
_NOT_JSON = re.compile(rb"[\[,:\s](?:NaN|-?Infinity)\b")

#: Escaped surrogates: a pair is one character, a lone one cannot be stored.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

#: Unit of time, as tools spell it → its seconds (``miliseconds`` is Kernel Tuner's spelling).
SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds", "miliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
}


def read_document(file: LogFile) -> bytes:
    """Return the decompressed bytes of a file, without a byte order mark.

    Raises
    ------
    FormatError
        The file exceeds :data:`tunedb.limits.MAX_DOCUMENT_BYTES`, or cannot be decompressed.
    StorageError
        The file cannot be read.
    """
    with open_log(file.path) as (stream, _):
        data = stream.read(limits.MAX_DOCUMENT_BYTES + 1)
    if len(data) > limits.MAX_DOCUMENT_BYTES:
        raise FormatError(f"a document of more than {limits.MAX_DOCUMENT_BYTES} bytes; split it")
    return data.removeprefix(b"\xef\xbb\xbf")


def parse_document(data: bytes) -> Any:
    """Return the JSON value of a document; accepts Python's NaN and Infinity.

    Raises
    ------
    FormatError
        The text is not JSON, has too many values, or an integer beyond 64 bits.
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
        if _SURROGATE.search(data) is not None:
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
        Value in the file.
    unit : float
        Seconds per unit of the value.
    what : str
        Name of the value in messages: "a time".

    Raises
    ------
    FormatError
        The value is not a number, negative, not finite, or 0, which would rank before all times.
    """
    _check_time(value, what)
    # Only the quotient is the nearest double: 3.0 / 1000 is 0.003, 3.0 * 1e-3 is not.
    time: float = value / round(1 / unit)
    if not time:
        raise FormatError(f"{what} is {value!r}; it was not measured")
    return time


def _check_time(value: Any, what: str) -> None:
    """Raise FormatError for a value that is not a number, negative, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"{what} is {short(value)}, which is not a number")
    if not 0.0 <= value < math.inf:
        raise FormatError(f"{what} is {value!r}; a time must be finite and not negative")


def all_seconds(values: Any, unit: float, what: str) -> tuple[float, ...]:
    """Return a list of at least one time in seconds (:func:`seconds`)."""
    if type(values) is not list or not 0 < len(values) <= limits.MAX_RUN_SECS:
        raise FormatError(f"{what} must be a list of 1 to {limits.MAX_RUN_SECS} numbers")
    if not {float, int}.issuperset(map(type, values)) or min(values) < 0:
        for value in values:
            _check_time(value, "one of " + what)
    # A finite sum has finite terms and gives a finite mean, which ranks the record.
    if not math.isfinite(sum(values)):
        raise FormatError(f"{what} have a sum that is not finite")
    per_second = round(1 / unit)
    times = tuple([value / per_second for value in values])
    if not any(times):
        raise FormatError(f"{what} are all 0; it was not measured")
    return times


def microseconds(text: Any) -> int:
    """Return a timestamp as microseconds since 1970, UTC; 0 if it cannot be parsed.

    A time without a zone is UTC, as Kernel Tuner's are.
    """
    if not isinstance(text, str):
        return 0
    try:
        moment = datetime.fromisoformat(text.removesuffix(" UTC"))
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(0, round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6))
    except (ValueError, OverflowError):
        return 0


def without_nonfinite(value: Any) -> Any:
    """Return a value whose NaNs and infinities are replaced by texts, for JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, list):
        return [without_nonfinite(item) for item in value]
    if isinstance(value, dict):
        return {key: without_nonfinite(item) for key, item in value.items()}
    return value


def quarantined(value: Any) -> bytes:
    """Return the bytes to quarantine for a value of a document."""
    try:
        data = orjson.dumps(without_nonfinite(value))
    except (RecursionError, TypeError):
        data = ascii(short(value)).encode()
    return data[: limits.MAX_QUARANTINE_BYTES]


def packed(value: dict[str, Any], what: str) -> bytes | None:
    """Return canonical JSON of extra fields, or None for none.

    Raises
    ------
    FormatError
        The fields are nested too deep.
    """
    if not value:
        return None
    try:
        fields = without_nonfinite(value)
        check_value(fields, what)
        return canonical_json(fields)
    except (RecursionError, TypeError) as error:
        raise FormatError(f"{what} cannot be kept: {error}") from None
