"""What a program of a foreign source may hold: lists of what is allowed, and bounds.

A stored program is code: an annotation of a loop alone can hand a text to LLVM's parser when the
schedule is compiled. So a foreign program is taken only where each instruction, each annotation
and each value is one that TVM's own rules write (:mod:`tunedb.programs.metaschedule.allowlist` for
MetaSchedule, :mod:`tunedb.programs.steps_allowlist` for auto_scheduler and AutoTVM,
:mod:`tunedb.programs.kernel_allowlist` for tuners of GPU kernels). What is not on the lists is
refused, whatever it may mean.

Sketches and tails are shared by many programs and are looked at once; what they have places for is
remembered, so that a program costs no more than its decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NoReturn

from .. import limits
from ..errors import FormatError
from ..records import Trace, WorkloadFormat
from . import kernel_allowlist, steps_allowlist
from .metaschedule import allowlist

#: Which of the two stored parts that programs share.
Part = Literal["sketch", "tail"]

_Facts = allowlist.Facts | steps_allowlist.Facts


@dataclass(frozen=True, slots=True)
class _Tool:
    """How programs of one tool are looked at."""

    part: Callable[[bytes], _Facts]
    decisions: Callable[[bytes], None]


_METASCHEDULE = _Tool(allowlist.part, allowlist.check_decisions)
_TOOLS: dict[str, _Tool] = {
    WorkloadFormat.GRAPH: _METASCHEDULE,
    WorkloadFormat.NODES: _METASCHEDULE,
    WorkloadFormat.ARGUMENTS: _METASCHEDULE,
    WorkloadFormat.ANSOR: _Tool(steps_allowlist.ansor_part, steps_allowlist.check_ansor_decisions),
    WorkloadFormat.AUTOTVM: _Tool(
        steps_allowlist.autotvm_part, steps_allowlist.check_autotvm_decisions
    ),
    WorkloadFormat.KERNEL: _Tool(kernel_allowlist.part, kernel_allowlist.check_decisions),
}


def check_trace(trace: Trace, format: str) -> None:
    """Raise FormatError unless a foreign program may be stored and applied.

    Parameters
    ----------
    trace : Trace
        Its stored form.
    format : str
        The :class:`~tunedb.records.WorkloadFormat` of its workload, which says what it consists of.

    Raises
    ------
    FormatError
        Some part is not allowed, or they do not belong together; the message names the first.
    """
    sketch = _facts("sketch", trace.sketch, format)
    tail = None if trace.tail is None else _facts("tail", trace.tail, format)
    if isinstance(sketch, steps_allowlist.Facts):
        if tail is not None:
            raise FormatError(f"a program of {format} has no tail")
        check = steps_allowlist if sketch.parameters is None else kernel_allowlist
        check.check_program(sketch, trace.decisions)
    elif not isinstance(tail, steps_allowlist.Facts):
        allowlist.check_program(sketch, tail, trace.decisions)


def check_part(part: Part, body: bytes, format: str) -> None:
    """Raise FormatError unless a sketch or tail holds allowed instructions alone.

    Parameters
    ----------
    part : {"sketch", "tail"}
        Which of the two.
    body : bytes
        As it is stored, not compressed.
    format : str
        As :func:`check_trace`.

    Raises
    ------
    FormatError
        Something in it is not allowed; the message says what.
    """
    facts = _facts(part, body, format)
    if isinstance(facts, allowlist.Facts):
        if part == "sketch":
            allowlist.check_begins(facts)
    elif part == "tail":
        raise FormatError(f"a program of {format} has no tail")


def check_decisions(decisions: bytes, format: str) -> None:
    """Raise FormatError unless decisions are numbers and words of the allowed forms.

    :func:`check_trace` looks besides whether they belong to the sketch and the tail.

    Parameters
    ----------
    decisions : bytes
        As they are stored.
    format : str
        As :func:`check_trace`.

    Raises
    ------
    FormatError
        They hold something else.
    """
    _tool(format).decisions(decisions)


def _tool(format: str) -> _Tool:
    tool = _TOOLS.get(format)
    if tool is None:
        raise FormatError(f"programs of the unknown format {format[:40]!r}")
    return tool


def _facts(part: Part, body: bytes, format: str) -> _Facts:
    """Return what a part has, or raise FormatError."""
    tool = _tool(format)
    if len(body) > limits.MAX_FOREIGN_PART_BYTES:
        _refuse(f"{part} of {len(body)} bytes, over the limit of {limits.MAX_FOREIGN_PART_BYTES}")
    if len(body) > limits.MAX_REMEMBERED_BYTES:
        found = _look(tool.part, body)
    else:
        found = _remembered(tool.part, body)
    if isinstance(found, str):
        _refuse(f"{part}: {found}")
    return found


def _look(part: Callable[[bytes], _Facts], body: bytes) -> _Facts | str:
    try:
        return part(body)
    except FormatError as error:
        # Remembered too: a hostile database may refer to one sketch a million times.
        return str(error)


_remembered = lru_cache(maxsize=2048)(_look)


def _refuse(reason: str) -> NoReturn:
    raise FormatError(reason)
