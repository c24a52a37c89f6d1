"""One-line representations of objects and of untrusted text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Sized
from dataclasses import fields
from enum import Enum
from typing import Any, Literal

#: Maximum length of a line.
_WIDTH = 100

#: Maximum characters of a text, and entries of a tuple.
_TEXT, _ENTRIES = 32, 3

#: Bytes of a digest, which is shown by its first digits; other bytes are shown by their number.
_DIGEST = 16

#: Maximum characters of an untrusted text in a message.
_PRINTABLE = 200

#: ``float32`` becomes ``f32``.
_DTYPE, _SHORT_DTYPE = re.compile(r"^([fiu])(?:loat|nt|int)(?=[0-9])"), r"\1"


def one_line(thing: Any) -> str:
    """Return a dataclass as ``Name(field=value, …)`` in one line; a ``__repr__`` for classes.

    Bytes, collections and nested objects are shown by their size or digest; None is omitted.
    """
    named = [f.name for f in fields(thing) if f.repr or f.name == "digest"]
    shown = [(name, value) for name in named if (value := getattr(thing, name)) is not None]
    inner = ", ".join(f"{name}={short(value)}" for name, value in shown)
    return shorten(f"{type(thing).__name__}({inner})", keep="bracket")


def shorten(
    text: str,
    width: int = _WIDTH,
    keep: Literal["start", "end", "both", "bracket"] = "start",
) -> str:
    """Return text of at most `width` characters, with an ellipsis for what is left out.

    A longer text keeps its start, its end, both, or its start and a last bracket.
    """
    if len(text) <= width:
        return text
    ends = {"start": 0, "end": width - 1, "both": width - 1 - (width - 1) * 2 // 3}
    end = max(ends.get(keep, int(text.endswith(")"))), 0)
    start = max(width - 1 - end, 0)
    return f"{text[:start]}…{text[len(text) - end :]}"


def short(value: Any) -> str:
    """Return a value in a few characters."""
    text = repr(value) if isinstance(value, (bool, int)) else f"<{type(value).__name__}>"
    if isinstance(value, Enum):
        text = value.name
    elif isinstance(value, bytes):
        text = value.hex()[:8] if len(value) == _DIGEST else f"<{len(value):,} bytes>"
    elif isinstance(value, str):
        text = repr(shorten(value, _TEXT, "bracket"))
    elif isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, tuple) and len(value) <= _ENTRIES:
        text = f"({', '.join(map(short, value))})"
    elif isinstance(value, Sized):
        text = f"<{len(value):,} entries>"
    elif (word := getattr(value, "name", None) or getattr(value, "digest", None)) is not None:
        text = f"<{type(value).__name__} {short(word)}>"
    return text


def tensors(arguments: Iterable[tuple[str | None, Sequence[object]]]) -> str:
    """Return data types and shapes as ``f32 12x64x64, 12x64x64``.

    The data type is shown where it changes; an unknown one (None) is omitted.
    """
    parts, last = [], None
    for dtype, shape in arguments:
        extents = "x".join(map(str, shape)) or "scalar"
        if dtype not in (None, last):
            extents = f"{_DTYPE.sub(_SHORT_DTYPE, str(dtype))} {extents}"
        parts.append(extents)
        last = dtype
    return ", ".join(parts)


def printable(text: str) -> str:
    """Return untrusted text for a message: cut, and with control characters escaped."""
    shown = text[:_PRINTABLE] + ("…" if len(text) > _PRINTABLE else "")
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in shown
    )
