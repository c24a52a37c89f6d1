"""Autotuning caches of Triton: all configurations tried for one key of one kernel.

With caching of tuning results enabled, Triton writes ``<function>.autotune.json``:
``{"key": […], "configs_timings": [[{"kwargs": {…}, "num_warps", "num_ctas", "num_stages",
"maxnreg", …}, timing]]}``. A timing is a time in milliseconds or ``[median, 20th percentile, 80th
percentile]`` of several; Infinity stands for a configuration that did not run. Forks write a
configuration as ``str(config)`` does: ``"BLOCK_M: 64, num_warps: 4"``.

The block has ``num_warps`` warps of 32 threads, of 64 on AMD's CDNA. The file's name contains the
kernel; the user has to name the device.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as short
from typing import Any

from ... import limits
from ...errors import FormatError
from ...json_checks import check_depth, check_value
from ...launches import Launch
from ...programs.kernel import split_parameters
from ...records import (
    Failure,
    FailureKind,
    Measurement,
    Phase,
    Program,
    Quarantined,
    Status,
    Target,
    Workload,
)
from ..base import Item, LogFile
from .file_metadata import require_metadata
from .json_documents import (
    SECONDS,
    packed,
    parse_document,
    quarantined,
    read_document,
    seconds,
    without_nonfinite,
)
from .kernels import gpu_target, kernel_workload

_SHAPE = re.compile(rb'"configs_timings"\s*:\s*\[')

_NAME = re.compile(r"\.autotune\.json(?:\.\w+)?$")

#: Devices whose warps have 64 threads: AMD's Instinct, gfx9 in its compiler.
_WIDE = re.compile(r"\b(?:mi-?\d{2,3}\w*|gfx9\w*|instinct|vega)\b", re.IGNORECASE)

#: Fields of a configuration that hold code; JSON has null for them.
_CODE = ("pre_hook", "ir_override")

#: Python constants in a configuration's text.
_WORDS = {"None": None, "True": True, "False": False}

_PERCENTILES = ("p20", "p80")
_MS = SECONDS["ms"]


class TritonFormat:
    """Autotuning caches of Triton (:class:`tunedb.formats.base.FileFormat`)."""

    name = "triton"

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True for the head of an autotuning cache."""
        return _SHAPE.search(head) is not None

    def read_file(self, file: LogFile) -> Iterator[Item]:
        """Yield the measurements of a file, and its bad rows as quarantined.

        Raises
        ------
        FormatError
            The file is damaged, or its kernel or device is unknown.
        """
        document = parse_document(read_document(file))
        rows = document.get("configs_timings") if type(document) is dict else None
        if type(rows) is not list:
            raise FormatError("a cache of Triton without configs_timings")
        kernel, device = require_metadata(kernel=_kernel(file), device=file.device)
        key = document.get("key")
        if isinstance(key, list | dict):
            check_depth(key, "the key of a cache")
        key = without_nonfinite(key)
        check_value(key, "the key of a cache")
        workload, target = kernel_workload(kernel, key), gpu_target("unknown", device)
        warp = 64 if _WIDE.search(device) else 32
        for number, row in enumerate(rows, 1):
            try:
                yield _measurement(row, workload, target, warp)
            except FormatError as error:
                yield Quarantined(file.name, number, str(error), quarantined(row))


def _kernel(file: LogFile) -> str | None:
    if file.kernel or file.path is None:
        return file.kernel
    return _NAME.sub("", file.path.name) if _NAME.search(file.path.name) else None


def _measurement(row: Any, workload: Workload, target: Target, warp: int) -> Measurement:
    """Return the measurement of a configuration and its timing, or raise FormatError."""
    if type(row) is not list or len(row) != 2:
        raise FormatError("a result must be [configuration, timing]")
    parameters = _parameters(row[0])
    run_secs, extra = _timing(row[1])
    failure = None
    if run_secs is None:
        failure = Failure(FailureKind.UNKNOWN, Phase.UNKNOWN, "its time is Infinity")
    warps = parameters.get("num_warps")
    launches: tuple[Launch, ...] = ()
    if failure is None and type(warps) is int and 0 < warps <= limits.MAX_WARPS:
        launches = (Launch(workload.name, warps * warp, (warps * warp, 1, 1)),)
    return Measurement(
        Program(workload, target, split_parameters(parameters)),
        run_secs,
        Status.OK if failure is None else Status.FAILED,
        context=b'{"log":"triton"}',
        extra=packed(extra, "a timing"),
        failure=failure,
        launches=launches,
    )


def _parameters(config: Any) -> dict[str, Any]:
    """Return the parameters of a configuration, those of the kernel first."""
    if type(config) is str:
        return _parse_config(config)
    if type(config) is not dict or type(config.get("kwargs", {})) is not dict:
        raise FormatError(f"a configuration is {short(config)}; expected an object with kwargs")
    own = config.get("kwargs", {})
    others = {
        name: value
        for name, value in config.items()
        if name != "kwargs" and not (name in _CODE and value is None)
    }
    if twice := own.keys() & others.keys():
        raise FormatError(f"the parameter {min(twice)!r} occurs in kwargs and beside them")
    return {**own, **others}


def _parse_config(text: str) -> dict[str, Any]:
    """Return the parameters of ``str(triton.Config)``."""
    parameters: dict[str, Any] = {}
    for field in text.split(","):
        name, colon, value = (word.strip() for word in field.partition(":"))
        if not colon or not name or name in parameters:
            raise FormatError(f"a configuration is {short(text)}; expected 'name: value, …'")
        if name not in _CODE:
            parameters[name] = _value(value)
    return parameters


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text.strip("'\"")


def _timing(timing: Any) -> tuple[tuple[float, ...] | None, dict[str, Any]]:
    """Return the time in seconds, None for Infinity, and the percentiles in milliseconds."""
    extra: dict[str, Any] = {}
    if type(timing) is list:
        if not 0 < len(timing) <= 1 + len(_PERCENTILES):
            raise FormatError(f"a timing is {short(timing)}; expected [median, p20, p80]")
        timing, *percentiles = timing
        extra = dict(zip(_PERCENTILES, percentiles, strict=False))
    if isinstance(timing, float) and math.isinf(timing) and timing > 0:
        return None, {}
    return (seconds(timing, _MS, "a timing"),), extra
