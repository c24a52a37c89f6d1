"""Text forms of values for people."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import isfinite
from pathlib import PurePath
from typing import Any

from .one_line import tensors

NOTHING = "–"  # noqa: RUF001 - an en dash, as in printed tables

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SECOND_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
#: Characters of a number: four digits and a point.
_WIDTH = 5
#: TVM's sentinel for "no time" (1e10 s, 300 years); longer times are none either.
_NO_TIME = 1e10


def clean(text: str) -> str:
    """Return text with control characters escaped.

    Names come from foreign files: an escape sequence in one could repaint the terminal, and a
    right-to-left override could show another name.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(char) if _is_unsafe(char) else char for char in text)


def _is_unsafe(char: str) -> bool:
    return unicodedata.category(char) in _UNSAFE


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def clean_lines(text: str) -> list[str]:
    """Return the lines of a text, each with control characters escaped."""
    return [clean(line) for line in text.expandtabs(4).split("\n")]


def plain(value: Any) -> str:
    """Format a value for a table."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | dict | tuple):
        return clean(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
    return clean(str(value))


def seconds(value: float | None) -> str:
    """Format a duration with four digits and a suitable unit: ``12.34 µs``."""
    if value is None or not 0 <= value < _NO_TIME:
        return NOTHING
    if value == 0:
        return "0 s"
    for size, unit in _SECOND_UNITS:
        # 999.96 ms would print as 1000 ms.
        if value >= size * 0.99995 or unit == "ns":
            forms = (f"{value / size:.{digits}f}" for digits in (3, 2, 1))
            number = next((s for s in forms if len(s) <= _WIDTH), f"{value / size:.0f}")
            return f"{number} {unit}"
    raise AssertionError("nanoseconds fit every value")


def operations(value: float | None) -> str:
    """Format a number of operations, or their rate, as ``1.2 G``."""
    if value is None:
        return NOTHING
    rest, units = value, ["", " k", " M", " G", " T"]
    while rest >= 999.5 and len(units) > 1:
        rest /= 1000
        units.pop(0)
    digits = 0 if rest >= 99.95 or units[0] == "" else 1
    return f"{rest:,.{digits}f}{units[0]}"


def percent(value: float | None) -> str:
    """Format a share as ``3.2 %``."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def size(value: int | None) -> str:
    """Format a number of bytes as ``1.6 MB``."""
    if value is None:
        return NOTHING
    number = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def count(number: int, noun: str) -> str:
    """Return ``1 record``, ``2,304 records`` or ``2 launches``."""
    plural = "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def threads(number: int | None) -> str:
    """Return ``2 threads``, or ``an unknown number of threads``."""
    return "an unknown number of threads" if number is None else count(number, "thread")


def number(value: int | None) -> str:
    """Return ``2,304``."""
    return NOTHING if value is None else f"{value:,}"


def signed(mean: float, low: float | None, high: float | None, digits: int) -> str:
    """Format a difference with its interval, if known: ``+0.012 (-0.003 to 0.028)``."""
    if low is None or high is None or not isfinite(low):
        return f"{mean:+.{digits}f}"
    return f"{mean:+.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def span(seconds_: float) -> str:
    """Format a time span: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds_ < 10:
        return f"{seconds_:.1f} s"
    minutes, rest = divmod(round(seconds_), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min"


def moment(microseconds: int | None) -> str | None:
    """Format a time of day as ISO 8601 in UTC; None if it is unknown."""
    from datetime import UTC, datetime, timedelta

    if not microseconds:
        return None
    try:
        value = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    except OverflowError:
        return None
    return value.isoformat(timespec="seconds").replace("+00:00", "Z")


def short_path(text: str) -> str:
    """Return the last two components of a path; other text stays as it is."""
    parts = PurePath(text).parts
    return clean(text if len(parts) <= 2 else str(PurePath(*parts[-2:])))


def arguments(info: Sequence[Any] | None) -> str:
    """Format a workload's arguments as ``f32 12x64x64, 12x64x64``.

    A data type is printed where it changes; an unknown one (None) is omitted.
    """
    if not info:
        return NOTHING
    if not all(isinstance(i, list) and len(i) == 3 and isinstance(i[2], list) for i in info):
        return plain(info)
    return clean(tensors((dtype, shape) for _, dtype, shape in info))


def decisions(values: Iterable[Any] | None) -> str:
    """Format decisions as ``[2,2,3,1] [1,1,2,32] 2``."""
    if values is None:
        return NOTHING
    return " ".join(plain(value) for value in values) or NOTHING


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Draw values as a line of bars; longer series show the minimum of each stretch."""
    if not values:
        return ""
    if len(values) > width:
        edges = [i * len(values) // width for i in range(width + 1)]
        values = [min(values[a:b]) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    if high == low:
        return _BARS[0] * len(values)
    scale = (len(_BARS) - 1) / (high - low)
    return "".join(_BARS[round((value - low) * scale)] for value in values)
