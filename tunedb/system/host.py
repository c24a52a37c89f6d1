"""Fingerprint of this machine for a session, and classes of comparable sessions."""

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

#: Keys of a fingerprint that do not affect run times: versions of software that neither compiles
#: nor measures, and the tuning run. The OS kernel rarely changes the times of programs without
#: system calls.
NOT_TIMED = frozenset({"os", "python", "tunedb", "tvm_ffi", "run"})

#: Keys of a fingerprint that say nothing about the machine, its compiler and its threads.
NOT_OF_MACHINE = NOT_TIMED | {"evaluator"}

#: Keys of a fingerprint that name a device.
DEVICES = frozenset({"cpu", "gpu", "remote"})


def new_session(**details: Any) -> Session:
    """Return a session that starts now on this machine.

    Parameters
    ----------
    **details : str, mapping or None
        Versions of compilers and runtimes, e.g. ``tvm`` and ``llvm``; ``threads``, those of TVM's
        runtime (``count`` and ``pinned``); ``gpu`` if the caller knows the device better than this
        module. Values of None are left out.
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
    """Return a session's fingerprint as a dictionary; empty if it is not a JSON object."""
    fingerprint = parse_json(session.fingerprint)
    return fingerprint if isinstance(fingerprint, dict) else {}


def threads_of(session: Session | None) -> int | None:
    """Return the number of threads of TVM's runtime in a session, or None if unknown."""
    fingerprint = {} if session is None else fingerprint_of(session)
    threads = fingerprint.get("threads")
    count = threads.get("count") if isinstance(threads, dict) else None
    if count is None and "remote" in fingerprint:
        count = fingerprint.get("cores")  # a remote runtime reports its threads (NumThreads)
    return count if isinstance(count, int) and count > 0 else None


@lru_cache(maxsize=4096)
def session_class(session: Session) -> bytes:
    """Return the key of the class of sessions whose times are comparable.

    The key covers the processor, the GPU, the number of cores, the threads of TVM's runtime, the
    versions of TVM and LLVM, and all other fields of the fingerprint about the device and the
    measurement. Sessions without a number of threads form classes of their own. A session whose
    fingerprint names no device is a class by itself.

    Returns
    -------
    bytes
        Canonical JSON.
    """
    return _class(session, NOT_TIMED)


@lru_cache(maxsize=4096)
def machine_class(session: Session) -> bytes:
    """Return the class of a session without the settings of its evaluator.

    Sessions of equal classes are of one machine with the same threads; their times of single
    functions may not be comparable.
    """
    return _class(session, NOT_OF_MACHINE)


def _class(session: Session, left_out: frozenset[str]) -> bytes:
    fingerprint = fingerprint_of(session)
    if not fingerprint.keys() & DEVICES:
        return session.digest
    return identity.canonical_json({k: v for k, v in fingerprint.items() if k not in left_out})


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


def last_cache() -> int | None:
    """Return the bytes of the processor's last cache, or None where the system does not tell."""
    caches = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level, size = ((folder / name).read_text().strip() for name in ("level", "size"))
            caches[int(level)] = int(size.removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return caches[max(caches)] if caches else None


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
