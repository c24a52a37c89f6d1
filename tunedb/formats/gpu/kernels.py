"""What the formats of GPU tuners share: workloads and targets as they store them."""

from __future__ import annotations

from typing import Any

from ... import limits
from ...identity import canonical_json
from ...records import Target, Workload, WorkloadFormat


def kernel_workload(kernel: str, problem: Any = None) -> Workload:
    """Return the workload of a GPU kernel.

    Parameters
    ----------
    kernel : str
        Its name without template arguments.
    problem : object
        The size of its problem as the tool gives it; None where the file does not say it.
    """
    body = canonical_json({"kernel": kernel, "problem": problem})
    return Workload(WorkloadFormat.KERNEL, body, kernel[: limits.MAX_NAME_CHARS])


def gpu_target(kind: str, device: str) -> Target:
    """Return a GPU as a target, which is only what the file says of it.

    What is known of a device by its name (:mod:`tunedb.advisor.devices`) is no part of it: that
    grows with releases, and the same file would become other records.

    Parameters
    ----------
    kind : str
        TVM's target kind: ``cuda``, ``opencl``, ``rocm``; ``unknown`` where the file does not say.
    device : str
        Name of the device, as the file gives it; may be empty.
    """
    config = {"kind": kind, "model": device} if device else {"kind": kind}
    return Target.from_config(config)
