"""Transform steps of programs in their stored form: one module per kind of step."""

from __future__ import annotations

from ..errors import FormatError
from ..records import Program, WorkloadFormat
from .base import Step


def steps_of(program: Program) -> list[Step]:
    """Return the steps of a program, whichever tool wrote it.

    Raises
    ------
    FormatError
        The stored steps are damaged, or of a format that this version does not know.
    """
    match program.workload.format:
        case WorkloadFormat.ANSOR:
            from . import ansor

            return ansor.steps_of(program.trace)
        case WorkloadFormat.AUTOTVM:
            from . import autotvm

            return autotvm.steps_of(program.trace)
        case WorkloadFormat.KERNEL:
            from . import kernel

            return kernel.steps_of(program.trace)
        case WorkloadFormat.GRAPH | WorkloadFormat.NODES | WorkloadFormat.ARGUMENTS:
            from .metaschedule import steps

            return steps.steps_of(program.trace)
    raise FormatError(
        f"the steps of {program.workload.format!r} are unknown; pip install --upgrade tunedb"
    )
