"""What MetaSchedule's postprocessors did, told by a trace's tail."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson

from ...errors import FormatError
from .columns import TAIL, TAIL_DEPTHS

_COUNTED = {
    "Bind": "bind",
    "DecomposeReduction": "decompose",
    "Parallel": "parallel",
    "Split": "split",
    "Tensorize": "tensorize",
    "Vectorize": "vectorize",
}


def read_tail(body: bytes | None) -> list[float]:
    """Return what a tail says: :data:`.columns.TAIL`, then vector loops by the depth of blocks.

    All of it is zero without a tail.

    Raises
    ------
    FormatError
        The tail is damaged.
    """
    if body is None:
        return [0.0] * (len(TAIL) + TAIL_DEPTHS)
    try:
        told, vectors = _read(orjson.loads(body))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise FormatError(f"a tail that cannot be read: {error!r:.200}") from None
    return [*(float(told[name]) for name in TAIL), *vectors]


def _read(instructions: list[Any]) -> tuple[Counter[str], list[float]]:
    told: Counter[str] = Counter(instructions=len(instructions))
    loops: list[Any] = []  # of the last block that was asked for them
    fused: dict[str, int] = {}
    vectors = [0.0] * TAIL_DEPTHS
    deepest = most = 0
    for kind, inputs, attrs, outputs in instructions:
        name = _COUNTED.get(kind)
        if name is not None:
            told[name] += 1
        if kind == "GetLoops":
            loops = outputs
            told["loops"] = max(told["loops"], len(loops))
            told["all_loops"] += len(loops)
        elif kind == "GetChildBlocks":
            told["blocks"] += len(outputs)
        elif kind == "Fuse":
            fused[outputs[0]] = len(inputs)
        elif kind == "Parallel":
            if len(loops) > deepest:
                deepest = len(loops)
                told["parallel_loops"] = fused.get(inputs[0], 1)
        elif kind == "Vectorize":
            n_fused = fused.get(inputs[0], 1)
            told["vector_loops"] = max(told["vector_loops"], n_fused)
            if len(loops) > most:
                most = len(loops)
                told["inner_vector_loops"] = n_fused
            if len(loops) < TAIL_DEPTHS:  # of blocks of one depth, the last one is the consumer
                vectors[len(loops)] = float(n_fused)
        elif kind == "Annotate" and attrs[0] == "pragma_auto_unroll_max_step":
            told["unroll"] += 1
        elif kind == "DecomposeReduction" and inputs[1] in loops:
            depth = loops.index(inputs[1])
            told["decompose_depth"] = max(told["decompose_depth"], depth)
            told["decompose_depths"] += depth
    return told, vectors
