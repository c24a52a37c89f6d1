"""Error numbers of AutoTVM and auto_scheduler, which share one enumeration.

``MeasureErrorNo`` of ``python/tvm/autotvm/measure/measure.py`` and of
``python/tvm/auto_scheduler/measure.py`` (apache/tvm v0.4 to v0.19). The logs hold only the number,
not the message of the builder or runner.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from reprlib import repr as short
from typing import Any

import orjson

from ..errors import FormatError
from ..identity import canonical_json
from ..records import Failure, FailureKind, Phase, Status

#: Number -> failure; the message is the name in TVM's enumeration.
_FAILURES: dict[int, Failure] = {
    1: Failure(FailureKind.COMPILE_ERROR, Phase.BUILD, "INSTANTIATION_ERROR"),
    2: Failure(FailureKind.COMPILE_ERROR, Phase.BUILD, "COMPILE_HOST"),
    3: Failure(FailureKind.COMPILE_ERROR, Phase.BUILD, "COMPILE_DEVICE"),
    4: Failure(FailureKind.RUNTIME_ERROR, Phase.RUN, "RUNTIME_DEVICE"),
    5: Failure(FailureKind.WRONG_RESULT, Phase.RUN, "WRONG_ANSWER"),
    6: Failure(FailureKind.TIMEOUT, Phase.BUILD, "BUILD_TIMEOUT"),
    7: Failure(FailureKind.TIMEOUT, Phase.RUN, "RUN_TIMEOUT"),
    8: Failure(FailureKind.UNKNOWN, Phase.UNKNOWN, "UNKNOWN_ERROR"),
}

#: Costs of failed runs, in seconds: 1e9 in AutoTVM, 1e10 in auto_scheduler. No run takes 31 years.
SENTINELS = frozenset({1e9, 1e10})

#: Failure of a line whose error number is 0 and whose costs are all sentinels.
UNNAMED = Failure(FailureKind.UNKNOWN, Phase.UNKNOWN, "")


def failure_of(error_no: Any) -> Failure:
    """Return the failure of an error number other than 0.

    Raises
    ------
    FormatError
        The number is not in ``MeasureErrorNo``.
    """
    if type(error_no) is not int or error_no not in _FAILURES:
        raise FormatError(f"error number {short(error_no)}; TVM's are 0 (none) to 8")
    return _FAILURES[error_no]


def outcome_of(times: Sequence[float], error_no: Any) -> tuple[Status, Failure | None]:
    """Return status and failure of a run from the costs and the error number of a line.

    Parameters
    ----------
    times : sequence of float
        The costs of all repeats in seconds.
    error_no : object
        The error number of the line, unchecked.

    Raises
    ------
    FormatError
        The number is not in ``MeasureErrorNo``, or it is 0 and only some costs are sentinels.
    """
    if type(error_no) is not int:
        raise FormatError(f"error number {short(error_no)} is not an integer")
    if error_no:
        return Status.FAILED, failure_of(error_no)
    if SENTINELS.isdisjoint(times):
        return (Status.OK if any(times) else Status.UNMEASURED), None
    if not SENTINELS.issuperset(times):
        raise FormatError("costs of runs that failed and of others, without an error number")
    return Status.FAILED, UNNAMED


@lru_cache(maxsize=64)
def failed_context(context: bytes, error_no: int) -> bytes:
    """Return the context of a line whose error number is not 0.

    The context includes the number, because a record's digest covers the context and not the
    failure: two lines that differ only in the number are two records.
    """
    return canonical_json({**orjson.loads(context), "error_no": error_no})
