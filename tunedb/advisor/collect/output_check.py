"""Whether a variant computes what the original computes."""

from __future__ import annotations

import math
import re
from itertools import zip_longest

import numpy as np

from ... import limits
from .configuration import Clock, Output

_SEPARATORS = re.compile(rb"[\s,;:=()\[\]]+")


def difference(
    expected: bytes, found: bytes, output: Output, clock: Clock | None = None
) -> str | None:
    """Return where two outputs differ, or None where they are equal.

    Parameters
    ----------
    expected, found : bytes
        The original's output and the variant's.
    output : Output
        How they are compared. Two numbers are equal where they differ by at most the tolerance
        times the larger of the two; NaN equals NaN. What is no number has to be the same.
    clock : Clock or None
        Lines in which a program prints its time are left out.

    Returns
    -------
    str or None
        One line without line break.
    """
    if expected == found:
        return None
    if output.type == "text":
        expected, found = (_compared(text, output, clock) for text in (expected, found))
        if expected == found:
            return None
    if len(expected) != len(found) and output.type != "text":
        return f"{len(found)} bytes instead of {len(expected)}"
    too_long = max(len(expected), len(found)) > limits.MAX_COMPARED_BYTES
    if output.type == "bytes" or output.tolerance == 0 or too_long:
        pairs = zip_longest(expected, found)
        place = next(i for i, (a, b) in enumerate(pairs) if a != b)
        return f"other bytes from byte {place} on"
    if output.type == "text":
        return _text_difference(expected, found, output.tolerance)
    return _array_difference(expected, found, output)


def _compared(text: bytes, output: Output, clock: Clock | None) -> bytes:
    """Return the lines of a text that are compared."""
    patterns = [output.ignore, clock.pattern if clock is not None else None]
    searched = [re.compile(p.encode()) for p in patterns if p is not None]
    if not searched:
        return text
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if not any(p.search(line) for p in searched))


def _text_difference(expected: bytes, found: bytes, tolerance: float) -> str | None:
    pairs = zip_longest(_SEPARATORS.split(expected.strip()), _SEPARATORS.split(found.strip()))
    for place, (a, b) in enumerate(pairs, 1):
        if a is None or b is None:
            return f"{'more' if a is None else 'fewer'} words: {place - 1} are equal"
        if a != b and not _close(_number(a), _number(b), tolerance):
            return f"word {place} is {_shown(b)} instead of {_shown(a)}"
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


def _shown(word: bytes) -> str:
    return word[:40].decode(errors="backslashreplace")


def _array_difference(expected: bytes, found: bytes, output: Output) -> str | None:
    kind = np.dtype(output.type).newbyteorder("<")
    if len(expected) % kind.itemsize:
        return f"{len(found)} bytes are not an array of {output.type}"
    a, b = (np.frombuffer(data, kind).astype(np.float64) for data in (expected, found))
    bound = output.tolerance * np.maximum(np.abs(a), np.abs(b))
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(a - b) <= bound) | (a == b) | (np.isnan(a) & np.isnan(b)))
    # The bound of an infinity is infinite, and nothing but itself is near it.
    wrong |= (np.isinf(a) | np.isinf(b)) & (a != b)
    places = np.flatnonzero(wrong)
    if not places.size:
        return None
    first = int(places[0])
    return (
        f"{places.size} of {a.size} numbers differ; "
        f"number {first + 1} is {b[first]:g} instead of {a[first]:g}"
    )
