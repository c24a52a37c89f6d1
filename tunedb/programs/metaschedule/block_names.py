"""Names of blocks in traces, which differ between modules that compute the same.

TVM's hash ignores them, and TVM names the blocks of a reduction after a variable of the network:
``lv419_red``. So a trace of one network names blocks that the equal function of another lacks.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from ...identity import canonical_json
from ...records import Trace


def with_block_names(trace: Trace, names: Mapping[str, str]) -> Trace:
    """Return a trace that names its blocks as another module does.

    Parameters
    ----------
    trace : Trace
        A trace in today's instruction set.
    names : Mapping
        Name of each block, and its name in the other module. Blocks that the trace makes of one,
        such as ``lv419_red_rf``, begin with its name.
    """
    tail = None if trace.tail is None else _renamed(trace.tail, names)
    return Trace(_renamed(trace.sketch, names), tail, trace.decisions)


def _renamed(body: bytes, names: Mapping[str, str]) -> bytes:
    instructions = orjson.loads(body)
    for kind, _, attrs, _ in instructions:
        if kind == "GetSBlock":
            attrs[0] = _name(attrs[0], names)
    return canonical_json(instructions)


def _name(name: str, names: Mapping[str, str]) -> str:
    """Return the name of a block, or of one that is made of it, in the other module."""
    if name in names:
        return names[name]
    origins = [each for each in names if name.startswith(f"{each}_")]
    if not origins:
        return name
    origin = max(origins, key=len)
    return names[origin] + name.removeprefix(origin)
