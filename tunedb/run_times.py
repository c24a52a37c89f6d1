"""What run times mean, as TVM sees them."""

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
    """Return whether run times count in TVM's eyes: some time is not the sentinel 1e10."""
    if run_secs and any(value != NO_TIME for value in run_secs):
        return Status.OK
    return Status.FAILED


def checked_mean(measurement: Measurement) -> float:
    """Return the mean of the run times, of which there is one at least.

    Raises
    ------
    FormatError
        A time is one that no clock can give.
    """
    times = measurement.run_secs or ()
    if len(times) > limits.MAX_RUN_SECS:
        raise FormatError(f"{len(times)} run times in one record are over the limit")
    mean = mean_of(times) if len(times) > 1 else 0.0 + times[0]
    # A mean that is finite has finite parts.
    if math.isfinite(mean):
        return mean
    for value in times:
        if not math.isfinite(value):
            raise FormatError(
                f"run time {value} of workload {measurement.program.workload.name!r} "
                "is not finite; measure the program again"
            )
    raise FormatError("the mean of the run times is not finite; measure the program again")
