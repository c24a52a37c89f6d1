"""Mean and status of run times, computed as TVM does."""

from __future__ import annotations

import math
from collections.abc import Sequence

from . import limits
from .errors import FormatError
from .records import Measurement, Status

#: TVM's sentinel for "no time" (``src/s_tir/meta_schedule/database``: SortTuningRecord).
NO_TIME = 1e10


def mean_of(run_secs: Sequence[float]) -> float:
    """Return the mean as TVM computes it: summed from left to right in double precision.

    Python's ``sum`` compensates rounding since 3.12, so it could order two records differently
    (``src/s_tir/meta_schedule/database/database_utils.cc``).
    """
    total = 0.0
    for value in run_secs:
        total += value
    return total / len(run_secs)


def status_of(run_secs: Sequence[float] | None) -> Status:
    """Return OK if some time is not TVM's sentinel 1e10, else FAILED."""
    if run_secs and any(value != NO_TIME for value in run_secs):
        return Status.OK
    return Status.FAILED


def is_cut_short(run_secs: Sequence[float]) -> bool:
    """Return true if a runner stopped after some repeats: the others have TVM's sentinel."""
    return NO_TIME in run_secs and status_of(run_secs) is Status.OK


def checked_mean(measurement: Measurement) -> float:
    """Return the mean of at least one run time, in seconds.

    Raises
    ------
    FormatError
        The run times exceed their limit, or a time or the mean is not finite.
    """
    times = measurement.run_secs or ()
    if len(times) > limits.MAX_RUN_SECS:
        raise FormatError(f"{len(times)} run times in one record are over the limit")
    mean = mean_of(times) if len(times) > 1 else 0.0 + times[0]
    # A finite mean implies finite times.
    if math.isfinite(mean):
        return mean
    for value in times:
        if not math.isfinite(value):
            raise FormatError(
                f"run time {value} of workload {measurement.program.workload.name!r} "
                "is not finite; measure the program again"
            )
    raise FormatError("the mean of the run times is not finite; measure the program again")
