"""Programs in their stored form, a module or package for each tool that writes them.

Needs no TVM and no database.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from ..errors import FormatError
from ..records import Program, WorkloadFormat
from .base import Step, Tool

#: Format of a workload → name of the tool that wrote its programs.
TOOL_NAMES: dict[str, str] = {
    WorkloadFormat.GRAPH: "metaschedule",
    WorkloadFormat.NODES: "metaschedule",
    WorkloadFormat.ARGUMENTS: "metaschedule",
    WorkloadFormat.ANSOR: "ansor",
    WorkloadFormat.AUTOTVM: "autotvm",
    WorkloadFormat.KERNEL: "kernel",
}

#: Where the ``TOOL`` of each is; a module is imported when a program of its tool comes.
_MODULES = {
    "metaschedule": ".metaschedule.tool",
    "ansor": ".ansor",
    "autotvm": ".autotvm",
    "kernel": ".kernel",
}


@cache
def tool_of(format: str) -> Tool[Any]:
    """Return the tool that wrote the programs of a workload.

    Parameters
    ----------
    format : str
        The workload's :class:`~tunedb.records.WorkloadFormat`.

    Raises
    ------
    FormatError
        This version does not know the format, or it is one without programs.
    """
    name = TOOL_NAMES.get(format)
    if name is None:
        raise FormatError(
            f"programs of the unknown format {format[:40]!r}; pip install --upgrade tunedb"
        )
    tool: Tool[Any] = import_module(_MODULES[name], __name__).TOOL
    return tool


def steps_of(program: Program) -> list[Step]:
    """Return the steps of a program, whichever tool wrote it.

    Raises
    ------
    FormatError
        The stored steps are damaged, or of a format that this version does not know.
    """
    return tool_of(program.workload.format).steps(program.trace)
