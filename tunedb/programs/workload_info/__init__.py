"""Signatures of workloads without TVM: name, arguments, operator family, operations.

Operations (``flops``) are counted by one of two definitions, and None where neither applies:

* of a graph, as TVM's ``EstimateTIRFlops`` counts (:mod:`.blocks`): every arithmetic operation
  of the function's body, epilogues and padding included;
* of a key (:mod:`.keys`), two per multiply-add of the anchor operator, one per element of an
  elementwise function, a reduction's input and a pooling's windows.
"""

from __future__ import annotations

import re

import orjson

from ...errors import FormatError
from ...records import Signature, Workload, WorkloadFormat
from .. import tool_of

#: Versions whose graphs TVM 0.27 loads: its own. It refuses those of 0.25 and 0.26, and some of
#: 0.26 crash the process.
_LOADABLE = re.compile(r"0\.27\.\d+(?:rc\d+|\.post\d+)?(?:\+.*)?")


def signature_of(workload: Workload) -> Signature:
    """Return the signature of a workload, read from its body without TVM.

    Parameters
    ----------
    workload : Workload
        A workload of any format and source. Damaged and unknown parts of its body are None in the
        signature and raise no error.

    Returns
    -------
    Signature
        The docstring of this package defines ``flops``. ``arguments`` are the buffers among a
        function's parameters, for AutoTVM the tensors that the task names (its inputs); they are
        None if a tensor has an unknown extent.
    """
    # A tuning space of kernels is a workload without programs.
    is_space = workload.format == WorkloadFormat.T1
    try:
        tool = tool_of(WorkloadFormat.KERNEL if is_space else workload.format)
        value = orjson.loads(workload.body)
    except (FormatError, orjson.JSONDecodeError):
        return Signature()
    return tool.signatures[workload.format](value)


def is_rebuildable(format: str, tvm_version: str | None, *, has_script: bool) -> bool:
    """Tell whether the plugin can build a module of today's TVM (0.27) from a workload.

    Parameters
    ----------
    format : str
        The workload's :class:`~tunedb.records.WorkloadFormat`.
    tvm_version : str or None
        Version of TVM that wrote its graph; None if unknown, which TVM cannot load.
    has_script : bool
        Whether its TVMScript text is stored, which any version reads.
    """
    if has_script:
        return True
    is_loadable = tvm_version is not None and _LOADABLE.fullmatch(tvm_version) is not None
    return format == WorkloadFormat.GRAPH and is_loadable
