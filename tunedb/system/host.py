"""What machine this is: the fingerprint of a session, and which sessions are of one class."""

from __future__ import annotations

import os
import platform
import time
import uuid
from functools import lru_cache
from pathlib import Path
from typing import Any

from .. import identity
from ..json_checks import parse_json
from ..records import Session

#: What a fingerprint says besides what decides run times: versions of what compiles and measures
#: nothing, and the tuning run. A kernel is updated more often than it changes the times of
#: programs that make no system calls.
_NO_MATTER = frozenset({"os", "python", "tunedb", "tvm_ffi", "run"})


def new_session(**details: Any) -> Session:
    """Return a session that starts now on this machine.

    Parameters
    ----------
    **details : str, mapping or None
        Versions of what compiles and measures, e.g. ``tvm`` and ``llvm``; ``threads``, those of
        TVM's runtime (``count`` and ``pinned``); ``gpu`` where the caller knows the device better
        than this module. None is left out.
    """
    from .. import __version__

    fingerprint = {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "gpu": gpu_model(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "tunedb": __version__,
        **details,
    }
    known = {key: value for key, value in fingerprint.items() if value is not None}
    return Session(
        key=uuid.uuid4().hex,
        started_at=time.time_ns() // 1000,
        fingerprint=identity.canonical_json(known),
    )


def fingerprint_of(session: Session) -> dict[str, Any]:
    """Return what a session's fingerprint says, empty where it is no JSON object."""
    said = parse_json(session.fingerprint)
    return said if isinstance(said, dict) else {}


def threads_of(session: Session | None) -> int | None:
    """Return how many threads of TVM's runtime a session measured with, or None if unknown."""
    said = {} if session is None else fingerprint_of(session)
    threads = said.get("threads")
    count = threads.get("count") if isinstance(threads, dict) else None
    if count is None and "remote" in said:
        count = said.get("cores")  # a remote runtime is asked for its threads (NumThreads)
    return count if isinstance(count, int) and count > 0 else None


@lru_cache(maxsize=4096)
def session_class(session: Session) -> bytes:
    """Return what sessions have in common whose times stand beside one another.

    The processor, the GPU, the number of cores, the threads of TVM's runtime, the versions of TVM
    and LLVM, and whatever else the fingerprint tells of the device and of how it was measured.
    Sessions without a number of threads are a class of their own: it is unknown. A fingerprint that
    names no device is a class of its own session.

    Returns
    -------
    bytes
        Canonical JSON.
    """
    said = fingerprint_of(session)
    if not said.keys() & {"cpu", "gpu", "remote"}:
        return session.digest
    return identity.canonical_json({k: v for k, v in said.items() if k not in _NO_MATTER})


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
