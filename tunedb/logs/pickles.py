"""Pickles, which are never loaded: whoever wrote one decides what unpickling runs."""

from __future__ import annotations

import base64
import binascii
import re

# How pickles of lists, dictionaries and objects begin. Protocols 2 to 5 say their number, after a
# byte that begins no UTF-8 text; 0 is text with a memo number (p0), 1 has a binary one (q).
_BEGIN = re.compile(
    rb"""
    \x80 [\x02-\x05]                # protocol 2 and later
  | \( [ld] p\d+ \n                 # 0: a list or dictionary
  | [\]}] q .                       # 1: likewise
  | \(? [ci] [A-Za-z_][\w.]* \n [A-Za-z_][\w.]* \n (p\d | q | \()   # module, class
    """,
    re.VERBOSE | re.DOTALL,
)

#: The last byte of every pickle, and the first one of a tuple of protocol 0.
_STOP, _MARK = b".", b"("

#: TABs in a line of AutoTVM's pickle protocol (TVM: python/tvm/autotvm/record.py, encode): target,
#: task, configuration and result; later two versions besides.
_TABS = (3, 5)

_PICKLED = slice(1, 4)

_HINTS = (
    (
        b"tvm.auto_scheduler.dataset",
        "it is TenSet's set of features; import the folder measure_records it was made from",
    ),
    (
        b"SearchTask",
        "it holds tasks and no measurements; import the logs of these tasks",
    ),
)

_ELSE = "load it in the program that wrote it and write the records there as JSON lines"


def refusal(head: bytes) -> str | None:
    """Return why a file is refused and how to go on, if it is a pickle.

    Parameters
    ----------
    head : bytes
        Its first bytes, 4,096 if it has them.

    Returns
    -------
    str or None
    """
    if not _BEGIN.match(head):
        return None
    hint = next((hint for word, hint in _HINTS if word in head), _ELSE)
    return f"a pickle, which is refused because unpickling runs code; {hint}"


def line_refusal(data: bytes) -> str | None:
    """Return why a line is refused and how to go on, if it has AutoTVM's pickle protocol.

    Parameters
    ----------
    data : bytes
        The line, with or without its end.

    Returns
    -------
    str or None
    """
    if data.count(b"\t") not in _TABS:
        return None
    if not all(_is_pickle(field) for field in data.split(b"\t")[_PICKLED]):
        return None
    return (
        "AutoTVM's pickle protocol, which is refused because unpickling runs code; in the TVM that "
        "wrote it, inp, res = autotvm.record.decode(line, 'pickle') and "
        "autotvm.record.encode(inp, res, 'json') give a line to import"
    )


def _is_pickle(field: bytes) -> bool:
    """Tell whether a field is a pickle in base64."""
    try:
        pickled = base64.b64decode(field.strip(), validate=True)
    except binascii.Error:
        return False
    return pickled.endswith(_STOP) and bool(_BEGIN.match(pickled) or pickled.startswith(_MARK))
