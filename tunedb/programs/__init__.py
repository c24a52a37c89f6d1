"""Programs in their stored form: one module or package per tool.

Imports neither TVM nor a database.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from ..errors import FormatError
from ..records import Program, WorkloadFormat
from .base import Step, Tool

#: Name of a tool → the module with its ``TOOL``, imported on first use, and its workload formats.
_TOOLS: dict[str, tuple[str, tuple[WorkloadFormat, ...]]] = {
    "metaschedule": (
        ".metaschedule.tool",
        (WorkloadFormat.GRAPH, WorkloadFormat.NODES, WorkloadFormat.ARGUMENTS),
    ),
    "ansor": (".ansor", (WorkloadFormat.ANSOR,)),
    "autotvm": (".autotvm", (WorkloadFormat.AUTOTVM,)),
    "kernel": (".kernel", (WorkloadFormat.KERNEL,)),
}

#: Format of a workload → name of the tool that wrote its programs.
TOOL_NAMES: dict[str, str] = {
    format: name for name, (_, formats) in _TOOLS.items() for format in formats
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
        The format is unknown to this version, or has no programs.
    """
    name = TOOL_NAMES.get(format)
    if name is None:
        raise FormatError(
            f"programs of the unknown format {format[:40]!r}; pip install --upgrade tunedb"
        )
    tool: Tool[Any] = import_module(_TOOLS[name][0], __name__).TOOL
    return tool


def steps_of(program: Program) -> list[Step]:
    """Return the steps of a program of any tool.

    Raises
    ------
    FormatError
        The stored steps are damaged, or their format is unknown to this version.
    """
    return tool_of(program.workload.format).steps(program.trace)
