"""Objects in one line, for people who look at them in a shell."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import fields
from enum import Enum
from typing import Any

#: Characters of a line.
_WIDTH = 100

#: Characters of a text, and entries of a tuple, that are shown.
_TEXT, _ENTRIES = 32, 3

#: Bytes of a digest, which is shown by its beginning; other bytes are shown by their number.
_DIGEST = 16


def one_line(thing: Any) -> str:
    """Return a dataclass as ``Name(field=value, …)`` in one line.

    Bytes, collections and nested objects are shown by their size or digest; what is None is left
    out. It serves classes as their ``__repr__``.
    """
    named = [f.name for f in fields(thing) if f.repr or f.name == "digest"]
    shown = [(name, value) for name in named if (value := getattr(thing, name)) is not None]
    inner = ", ".join(f"{name}={short(value)}" for name, value in shown)
    line = f"{type(thing).__name__}({inner})"
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 2]}…)"


def short(value: Any) -> str:
    """Return a value in a few characters."""
    text = repr(value) if isinstance(value, (bool, int)) else f"<{type(value).__name__}>"
    if isinstance(value, Enum):
        text = value.name
    elif isinstance(value, bytes):
        text = value.hex()[:8] if len(value) == _DIGEST else f"<{len(value):,} bytes>"
    elif isinstance(value, str):
        text = repr(value if len(value) <= _TEXT else f"{value[: _TEXT - 1]}…")
    elif isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, tuple) and len(value) <= _ENTRIES:
        text = f"({', '.join(map(short, value))})"
    elif isinstance(value, Sized):
        text = f"<{len(value):,} entries>"
    elif (word := getattr(value, "name", None) or getattr(value, "digest", None)) is not None:
        text = f"<{type(value).__name__} {short(word)}>"
    return text
