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

#: Tools that write programs: the module with the ``TOOL``, which is imported when one of its
#: programs comes, and the formats of its workloads.
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
        This version does not know the format, or it is one without programs.
    """
    name = TOOL_NAMES.get(format)
    if name is None:
        raise FormatError(
            f"programs of the unknown format {format[:40]!r}; pip install --upgrade tunedb"
        )
    tool: Tool[Any] = import_module(_TOOLS[name][0], __name__).TOOL
    return tool


def steps_of(program: Program) -> list[Step]:
    """Return the steps of a program, whichever tool wrote it.

    Raises
    ------
    FormatError
        The stored steps are damaged, or of a format that this version does not know.
    """
    return tool_of(program.workload.format).steps(program.trace)
