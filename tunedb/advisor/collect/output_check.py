"""Comparison of a variant's output with the original's."""

from __future__ import annotations

import math
import re
from itertools import zip_longest

import numpy as np

from ... import limits
from .configuration import OutputConfig, TimingConfig

_SEPARATORS = re.compile(rb"[\s,;:=()\[\]]+")


def difference(
    expected: bytes, actual: bytes, output: OutputConfig, timing: TimingConfig | None = None
) -> str | None:
    """Return the first difference of two outputs, or None for equal ones.

    Parameters
    ----------
    expected, actual : bytes
        The original's output and the variant's.
    output : OutputConfig
        Type and tolerance. Two numbers are equal if they differ by at most the tolerance times the
        larger of the two; NaN equals NaN. Everything else must be the same.
    timing : TimingConfig or None
        Lines with the printed time are left out.

    Returns
    -------
    str or None
        One line without line break.
    """
    if expected == actual:
        return None
    if output.type == "text":
        expected, actual = (_compared_lines(text, output, timing) for text in (expected, actual))
        if expected == actual:
            return None
    if len(expected) != len(actual) and output.type != "text":
        return f"{len(actual)} bytes instead of {len(expected)}"
    too_long = max(len(expected), len(actual)) > limits.MAX_COMPARED_BYTES
    if output.type == "bytes" or output.tolerance == 0 or too_long:
        pairs = zip_longest(expected, actual)
        place = next(i for i, (a, b) in enumerate(pairs) if a != b)
        return f"other bytes from byte {place} on"
    if output.type == "text":
        return _text_difference(expected, actual, output.tolerance)
    return _array_difference(expected, actual, output)


def _compared_lines(text: bytes, output: OutputConfig, timing: TimingConfig | None) -> bytes:
    """Return a text without the ignored lines."""
    patterns = [output.ignore, timing.pattern if timing is not None else None]
    ignored = [re.compile(pattern.encode()) for pattern in patterns if pattern is not None]
    if not ignored:
        return text
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if not any(p.search(line) for p in ignored))


def _text_difference(expected: bytes, actual: bytes, tolerance: float) -> str | None:
    pairs = zip_longest(_SEPARATORS.split(expected.strip()), _SEPARATORS.split(actual.strip()))
    for place, (a, b) in enumerate(pairs, 1):
        if a is None or b is None:
            return f"{'more' if a is None else 'fewer'} words: {place - 1} are equal"
        if a != b and not _close(_number(a), _number(b), tolerance):
            return f"word {place} is {_quoted(b)} instead of {_quoted(a)}"
    return None


def _number(word: bytes) -> float | None:
    # Python takes 1_000 for a number, a program's output does not.
    if b"_" in word:
        return None
    try:
        return float(word)
    except ValueError:
        return None


def _close(a: float | None, b: float | None, tolerance: float) -> bool:
    if a is None or b is None:
        return False
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=tolerance)


def _quoted(word: bytes) -> str:
    return word[:40].decode(errors="backslashreplace")


def _array_difference(expected: bytes, actual: bytes, output: OutputConfig) -> str | None:
    kind = np.dtype(output.type).newbyteorder("<")
    if len(expected) % kind.itemsize:
        return f"{len(actual)} bytes are not an array of {output.type}"
    a, b = (np.frombuffer(data, kind).astype(np.float64) for data in (expected, actual))
    bound = output.tolerance * np.maximum(np.abs(a), np.abs(b))
    with np.errstate(invalid="ignore"):
        differs = ~((np.abs(a - b) <= bound) | (a == b) | (np.isnan(a) & np.isnan(b)))
    # The bound of an infinity is infinite, and nothing but itself is near it.
    differs |= (np.isinf(a) | np.isinf(b)) & (a != b)
    places = np.flatnonzero(differs)
    if not places.size:
        return None
    first = int(places[0])
    return (
        f"{places.size} of {a.size} numbers differ; "
        f"number {first + 1} is {b[first]:g} instead of {a[first]:g}"
    )
