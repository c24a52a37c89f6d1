"""Error numbers of AutoTVM and auto_scheduler, which share one enumeration.

``MeasureErrorNo`` of ``python/tvm/autotvm/measure/measure.py`` and of
``python/tvm/auto_scheduler/measure.py`` (apache/tvm v0.4 to v0.19). The logs hold the number only;
what the builder or runner said was never written.
"""

from __future__ import annotations

from reprlib import repr as short
from typing import Any

from ..errors import FormatError
from ..records import Failure, FailureKind, Phase

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

#: Of a line with error number 0 whose costs are all the sentinel of a failed run.
UNNAMED = Failure(FailureKind.UNKNOWN, Phase.UNKNOWN, "")

_NUMBERS = {failure.message: number for number, failure in _FAILURES.items()} | {UNNAMED.message: 0}


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


def error_no_of(failure: Failure) -> int:
    """Return the number of a failure; the inverse of :func:`failure_of`, and 0 for `UNNAMED`.

    Raises
    ------
    FormatError
        The failure is none of a legacy log.
    """
    number = _NUMBERS.get(failure.message)
    if number is None:
        raise FormatError(f"failure {short(failure.message)} has no error number in a legacy log")
    return number
