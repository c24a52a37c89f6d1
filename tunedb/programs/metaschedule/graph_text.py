"""Infinities and NaN in the JSON graphs of modules.

TVM writes ``"value":-Infinity`` for a constant, which is no JSON. A stored graph has a string.
"""

from __future__ import annotations

import re

__all__ = ["NON_FINITE", "stored_text", "text_of_tvm"]

#: The numbers that JSON lacks.
NON_FINITE = ("Infinity", "-Infinity", "NaN")

# The quotes of a name inside a string are escaped.
_NUMBER = re.compile(rb'(?<="value":)(-?Infinity|NaN)(?=[,}])')
_STRING = re.compile(rb'(?<="value":)"(-?Infinity|NaN)"(?=[,}])')


def stored_text(text: bytes) -> bytes:
    """Return a graph of TVM as JSON."""
    return _NUMBER.sub(rb'"\1"', text)


def text_of_tvm(text: bytes) -> bytes:
    """Return a stored graph as TVM writes it."""
    return _STRING.sub(rb"\1", text)
