"""Foreign programs that are not even tried."""

from __future__ import annotations

import math
from typing import Any

import orjson
from tvm.s_tir import meta_schedule as ms

from ....allowed import check_trace
from ....errors import FormatError
from ....results import Record

#: How many times as many values as the module's arguments those of a record may have: weights in a
#: layout of their own are padded to whole tiles.
_PADDING = 4


def why_refused(record: Record, mod: Any) -> str | None:
    """Return why a foreign program must not be replayed, or None.

    Parameters
    ----------
    record : Record
        A record of it.
    mod : tvm.IRModule
        The user's own module, which it would be applied to.
    """
    measurement = record.measurement
    program = measurement.program
    try:
        check_trace(program.trace, program.workload.format)
        if measurement.args_info is not None:
            _check_arguments(orjson.loads(measurement.args_info), mod)
    except FormatError as error:
        return f"not allowed: {error}"
    return None


def _check_arguments(described: Any, mod: Any) -> None:
    """Raise FormatError unless arguments have the types of the module's, and about their size.

    They are what memory is allocated for; a vector of a type would be as good as a long shape.
    """
    own = [one.as_json() for one in ms.arg_info.ArgInfo.from_entry_func(mod)]
    types = {str(dtype) for _, dtype, _ in own}
    most = _PADDING * sum(math.prod(map(int, shape)) for _, _, shape in own)
    total = 0
    try:
        for kind, dtype, shape in described:
            is_shape = type(shape) is list and all(type(n) is int and n >= 0 for n in shape)
            if kind != "TENSOR" or dtype not in types or not is_shape:
                raise FormatError("its arguments are not of the types of the module's")
            total += math.prod(shape)
    except (TypeError, ValueError):
        raise FormatError("its arguments are no list of tensors") from None
    if total > most:
        raise FormatError(f"its arguments have {total:.3g} values, over {most:,} for this module")
