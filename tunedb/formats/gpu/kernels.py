"""Workloads and targets of GPU kernels, shared by the formats of GPU tuners."""

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
        Name of the kernel without template arguments.
    problem : object
        Size of the problem as the tool gives it; None if unknown.
    """
    body = canonical_json({"kernel": kernel, "problem": problem})
    return Workload(WorkloadFormat.KERNEL, body, kernel[: limits.MAX_NAME_CHARS])


def gpu_target(kind: str, device: str) -> Target:
    """Return the target of a GPU, from the file's data alone.

    The target excludes the facts about known devices (:mod:`tunedb.advisor.devices`), because these
    grow with releases and would change the records of a file.

    Parameters
    ----------
    kind : str
        TVM's target kind: ``cuda``, ``opencl``, ``rocm``; ``unknown`` if the file has none.
    device : str
        Name of the device, as the file gives it; may be empty.
    """
    config = {"kind": kind, "model": device} if device else {"kind": kind}
    return Target.from_config(config)
