"""Error numbers of AutoTVM and auto_scheduler, which share one enumeration.

``MeasureErrorNo`` of ``python/tvm/autotvm/measure/measure.py`` and of
``python/tvm/auto_scheduler/measure.py`` (apache/tvm v0.4 to v0.19). The logs hold the number only;
what the builder or runner said was never written.
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

#: Costs that stand for a failed run: 1e9 in AutoTVM, 1e10 in auto_scheduler. No run takes 31 years.
SENTINELS = frozenset({1e9, 1e10})

#: Of a line with error number 0 whose costs are all the sentinel of a failed run.
UNNAMED = Failure(FailureKind.UNKNOWN, Phase.UNKNOWN, "")


def failure_of(error_no: Any) -> Failure:
    """Return the failure that a number other than 0 stands for.

    Raises
    ------
    FormatError
        It is no number of ``MeasureErrorNo``.
    """
    if type(error_no) is not int or error_no not in _FAILURES:
        raise FormatError(f"error number {short(error_no)}; TVM's are 0 (none) to 8")
    return _FAILURES[error_no]


def outcome_of(times: Sequence[float], error_no: Any) -> tuple[Status, Failure | None]:
    """Return what the costs and the error number of a line say of the run.

    Parameters
    ----------
    times : sequence of float
        The costs of all repeats in seconds.
    error_no : object
        The error number as it stands in the line.

    Raises
    ------
    FormatError
        The number is none of ``MeasureErrorNo``, or it is 0 and some costs are sentinels.
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
    """Return the context of a line with an error number other than 0.

    The number is part of it because a failure is no part of a record's identity: two lines that
    differ in the number alone are two records.
    """
    return canonical_json({**orjson.loads(context), "error_no": error_no})
