"""TVM's tensor intrinsics: which traces need them, and their import, which takes seconds."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import _bootstrap, _bootstrap_external, import_module
from pathlib import Path
from types import ModuleType

import tvm.s_tir

from ...records import Trace

_PACKAGE = "tvm.s_tir.tensor_intrin"
#: Modules with the intrinsics of TVM's default rules for CPUs.
_CPU_MODULES = ("x86", "arm_cpu")
_TENSORIZE = b'"Tensorize"'


class _Empty(ModuleType):
    """Stands for the package while its modules are imported one by one."""


def needs_intrinsics(trace: Trace) -> bool:
    """Tell whether a trace names one of TVM's tensor intrinsics."""
    return _TENSORIZE in trace.sketch or _TENSORIZE in (trace.tail or b"")


def load_intrinsics() -> None:
    """Import TVM's tensor intrinsics, as its own ``TuneContext`` and ``default_build`` do."""
    found = sys.modules.get(_PACKAGE)
    if isinstance(found, _Empty):
        sys.modules.pop(_PACKAGE, None)
        found = None
    if found is None:
        _import(_PACKAGE)
    else:
        # It costs nothing then, but another thread may still be at it.
        import_module(_PACKAGE)


def load_cpu_intrinsics() -> None:
    """Import the intrinsics of the default rules for CPUs, inside :func:`without_intrinsics`."""
    if not isinstance(sys.modules.get(_PACKAGE), _Empty):
        return  # all of them are there
    for name in _CPU_MODULES:
        _import(f"{_PACKAGE}.{name}")


@contextmanager
def without_intrinsics() -> Iterator[None]:
    """Let ``TuneContext`` skip its import of all tensor intrinsics, which takes seconds.

    :func:`load_intrinsics` imports them inside, too.
    """
    if _PACKAGE in sys.modules:
        yield
        return
    package = sys.modules[_PACKAGE] = _Empty(_PACKAGE)
    package.__path__ = [str(Path(tvm.s_tir.__path__[0], "tensor_intrin"))]
    try:
        yield
    finally:
        if sys.modules.get(_PACKAGE) is package:
            del sys.modules[_PACKAGE]


def _import(name: str) -> None:
    """Import a module of tensor intrinsics.

    TVM parses its functions for it and asks :func:`inspect.stack` twice for each, which takes
    as long as the stack is deep: a thread of its own has a short one. Most of the time would go
    into a search of all modules for the files ``<frozen importlib._bootstrap>`` and
    ``<frozen importlib._bootstrap_external>`` of the import's own frames, and ``<ast>`` of what the
    parser evaluates, which no module has as its ``__file__``. The table in which :mod:`inspect`
    keeps what it found is told first.
    """
    found: dict[str, str] = getattr(inspect, "modulesbyfile", {})
    for module in (_bootstrap, _bootstrap_external):
        found.setdefault(f"<frozen {module.__name__}>", module.__name__)
    found.setdefault("<ast>", _bootstrap.__name__)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(import_module, name).result()
