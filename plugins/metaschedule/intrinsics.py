"""TVM's tensor intrinsics: which traces need them, and their import, which takes seconds."""

from __future__ import annotations

import inspect
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import _bootstrap, _bootstrap_external, import_module

from ...records import Trace

_PACKAGE = "tvm.s_tir.tensor_intrin"
_TENSORIZE = b'"Tensorize"'


def needs_intrinsics(trace: Trace) -> bool:
    """Tell whether a trace names one of TVM's tensor intrinsics."""
    return _TENSORIZE in trace.sketch or _TENSORIZE in (trace.tail or b"")


def load_intrinsics() -> None:
    """Import TVM's tensor intrinsics, as its own ``TuneContext`` and ``default_build`` do.

    TVM parses its functions for it and asks :func:`inspect.stack` twice for each, which takes
    as long as the stack is deep: a thread of its own has a short one. Most of the time would go
    into a search of all modules for the files ``<frozen importlib._bootstrap>`` and
    ``<frozen importlib._bootstrap_external>`` of the import's own frames, and ``<ast>`` of what the
    parser evaluates, which no module has as its ``__file__``. The table in which :mod:`inspect`
    keeps what it found is told first.
    """
    if _PACKAGE in sys.modules:
        # It costs nothing then, but another thread may still be at it.
        import_module(_PACKAGE)
        return
    found: dict[str, str] = getattr(inspect, "modulesbyfile", {})
    for module in (_bootstrap, _bootstrap_external):
        found.setdefault(f"<frozen {module.__name__}>", module.__name__)
    found.setdefault("<ast>", _bootstrap.__name__)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(import_module, _PACKAGE).result()
