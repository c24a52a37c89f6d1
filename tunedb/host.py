"""What machine this is: the fingerprint of a session."""

from __future__ import annotations

import os
import platform
import time
import uuid
from pathlib import Path

from . import identity
from .records import Session


def new_session(**versions: str | None) -> Session:
    """Return a session that starts now on this machine.

    Parameters
    ----------
    **versions : str or None
        Versions of what compiles and measures, e.g. ``tvm`` and ``llvm``, and ``gpu`` where the
        caller knows the device better than this module; None is left out.
    """
    from . import __version__

    fingerprint = {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "gpu": gpu_model(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "tunedb": __version__,
        **versions,
    }
    known = {key: value for key, value in fingerprint.items() if value is not None}
    return Session(
        key=uuid.uuid4().hex,
        started_at=time.time_ns() // 1000,
        fingerprint=identity.canonical_json(known),
    )


def cpu_model() -> str | None:
    """Return the processor's name as the system gives it, or None."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.processor() or platform.machine() or None


def gpu_model() -> str | None:
    """Return the name of the first NVIDIA GPU, or None.

    Read from the driver's files: starting ``nvidia-smi`` takes longer than a commit.
    """
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == "Model":
                return value.strip()
    return None
