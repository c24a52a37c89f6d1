"""How many threads TVM's runtime uses, decided once.

On x86 the runtime starts half as many threads as there are logical CPUs ("ignore hyper-threading",
``MaxConcurrency`` in TVM's ``src/runtime/threading_backend.cc``), whether those CPUs are
hyper-threads, whole cores of a virtual machine, or more than a container may use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Self

import tvm

from ...system.cpus import release_thread

__all__ = [
    "RuntimeThreads",
    "inherited_threads",
    "note_on_threads",
    "runtime_threads",
    "usable_cpus",
    "use_threads",
    "whole_cores",
]

#: Variables that TVM's runtime reads, in its order.
_VARIABLES = ("TVM_NUM_THREADS", "OMP_NUM_THREADS")

#: TVM pins its threads unless this variable is there and not 1.
_BIND = "TVM_BIND_THREADS"


@dataclass(frozen=True, slots=True)
class RuntimeThreads:
    """Threads of TVM's runtime, as a session's fingerprint has them.

    Parameters
    ----------
    count : int
        How many threads run a parallel loop.
    pinned : bool
        Whether each of them is bound to one CPU.
    """

    count: int
    pinned: bool

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, cores: int) -> Self:
        """Return TVM's threads under an environment; `cores` threads if it sets no number."""
        named = [environment[name] for name in _VARIABLES if name in environment]
        count = max(1, _atoi(named[0])) if named else cores
        return cls(count, _BIND not in environment or _atoi(environment[_BIND]) == 1)

    def as_json(self) -> dict[str, Any]:
        """Return the value that a session's fingerprint has under ``threads``."""
        return asdict(self)


def whole_cores() -> int:
    """Return how many physical cores this process may use, by affinity and container quota.

    Hyper-threads of one core count once. ``LOKY_MAX_CPU_COUNT`` bounds the number.
    """
    return _counted(only_physical_cores=True)


def usable_cpus() -> int:
    """Return how many logical CPUs this process may use, by affinity and container quota."""
    return _counted(only_physical_cores=False)


@cache
def runtime_threads() -> RuntimeThreads:
    """Return the threads that the runtime is to use in processes of ours.

    One for each whole core that the process may use, not pinned: a pinned pool ignores the
    process's affinity, and other processes on its CPUs. ``TVM_NUM_THREADS``, then
    ``OMP_NUM_THREADS``, and ``TVM_BIND_THREADS`` win, as in TVM. The answer stays the same for the
    life of the process.
    """
    return RuntimeThreads.from_environment({_BIND: "0", **os.environ}, cores=whole_cores())


def inherited_threads() -> RuntimeThreads:
    """Return the threads that the runtime uses in processes that this one starts now."""
    return RuntimeThreads.from_environment(os.environ, cores=_default_count())


def use_threads() -> RuntimeThreads:
    """Let TVM's runtime use :func:`runtime_threads` in this process and those that it starts.

    Sets ``TVM_NUM_THREADS`` and ``TVM_BIND_THREADS`` where the environment lacks them, and takes
    the calling thread off the CPU that TVM has pinned it to. A pool that the calling thread has
    started before keeps its number of threads: nothing in TVM 0.27 enlarges one.

    Returns
    -------
    RuntimeThreads
        The number and pinning in force.
    """
    threads = runtime_threads()
    if not any(name in os.environ for name in _VARIABLES):
        os.environ["TVM_NUM_THREADS"] = str(threads.count)
    os.environ.setdefault(_BIND, "0")
    release_thread()
    return threads


def note_on_threads() -> str | None:
    """Return a line for users where a variable of OpenMP leaves cores idle, or None."""
    if "TVM_NUM_THREADS" in os.environ or "OMP_NUM_THREADS" not in os.environ:
        return None
    cores, used = whole_cores(), runtime_threads().count
    if used >= cores:
        return None
    return (
        f"OMP_NUM_THREADS lets TVM use {used} of {cores} cores; set TVM_NUM_THREADS={cores} "
        "to use all of them"
    )


def _default_count() -> int:
    """Return how many threads TVM starts on its own."""
    return int(tvm.runtime.num_threads())


def _counted(*, only_physical_cores: bool) -> int:
    """Return loky's count, which looks at the affinity of the calling thread."""
    from loky import cpu_count

    pinned = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    release_thread()
    try:
        return int(cpu_count(only_physical_cores=only_physical_cores))
    finally:
        if pinned is not None:
            release_thread(frozenset(pinned))


def _atoi(text: str) -> int:
    """Return the number that C's ``atoi`` reads."""
    number = re.match(r"\s*[+-]?\d+", text)
    return int(number.group()) if number else 0
