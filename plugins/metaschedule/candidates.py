"""Measured candidates, as measure callbacks know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi

from ...records import Failure
from . import trace_codec

_arg_info_as_json = tvm_ffi.get_global_func("s_tir.meta_schedule.ArgInfoAsJSON")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One measured candidate, as a measure callback knows it.

    One that is served stands for a program that was measured before: nothing of it is stored.
    """

    workload: Any
    trace: Any
    target: Any
    args_info: Any
    run_secs: tuple[float, ...]
    failure: Failure | None = None
    is_served: bool = False


def args_json(args: Any) -> bytes:
    """Return canonical JSON of argument descriptions."""
    # ArgInfo.as_json() converts the same tree in Python, 10 times slower.
    parts = [trace_codec.dumps(_arg_info_as_json(arg)) for arg in trace_codec.items_of(args)]
    return b"[" + b",".join(parts) + b"]"
