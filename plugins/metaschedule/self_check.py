"""What ``tunedb doctor`` asks TVM, in a process of its own: a TVM that does not fit may crash.

Prints one line of JSON for each finding: status, subject, message, and the command to run or null.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import te

from .threads import note_on_threads, runtime_threads, usable_cpus, whole_cores

Finding = tuple[str, str, str, str | None]

_INSTALL_COMPILER = (
    "xcode-select --install" if sys.platform == "darwin" else "sudo apt-get install g++"
)


def findings() -> Iterator[Finding]:
    """Yield what there is to say about TVM, its threads and its compiler."""
    try:
        ffi = metadata.version("apache-tvm-ffi")
    except metadata.PackageNotFoundError:
        ffi = "built from source"
    yield "ok", "TVM", f"{tvm.__version__} with tvm-ffi {ffi}", None
    yield _threads()
    yield _compiler()


def _threads() -> Finding:
    count, cores = runtime_threads().count, whole_cores()
    message = f"{count} for {cores} whole cores ({usable_cpus()} CPUs)"
    note = note_on_threads()
    if note is not None:
        return "warning", "threads", note, f"export TVM_NUM_THREADS={cores}"
    if count > cores:
        message = f"TVM_NUM_THREADS={count}, but this process may use {cores} whole cores"
        return "warning", "threads", message, f"export TVM_NUM_THREADS={cores}"
    return "ok", "threads", message, None


def _compiler() -> Finding:
    """Compile, link, load and run a program, as each measurement does."""
    if not tvm.runtime.enabled("llvm"):
        return "warning", "compiler", "this TVM has no LLVM, so it cannot tune for CPUs", None
    name = _compiler_path()
    if name is None:
        message = "no C++ compiler, which TVM needs to link each program"
        return "problem", "compiler", message, _INSTALL_COMPILER
    try:
        with tempfile.TemporaryDirectory(prefix="tunedb-doctor-") as folder:
            result = _doubled(Path(folder) / "doubled.so")
    except Exception as error:  # of TVM, of the compiler or of the loader
        lines = [line for line in str(error).splitlines() if line.strip()]
        lines = [line for line in lines if not line.startswith("Command line:")]
        reason = lines[-1] if lines else type(error).__name__
        chosen = [variable for variable in ("CXX", "CC") if os.environ.get(variable)]
        command = f"unset {' '.join(chosen)}" if chosen else _INSTALL_COMPILER
        return "problem", "compiler", f"{name} does not link a program of TVM: {reason}", command
    if result != [0, 2, 4, 6]:
        return "problem", "compiler", f"a program linked by {name} gives wrong results", None
    return "ok", "compiler", f"{name} links programs, and they run", None


def _compiler_path() -> str | None:
    try:
        from tvm.support import cc
    except ImportError:  # TVM before 0.27
        from tvm.contrib import cc
    path: str | None = cc.get_cc()
    return path


def _doubled(path: Path) -> Any:
    """Return what a compiled program makes of 0, 1, 2, 3."""
    a = te.placeholder((4,), name="a")
    func = te.create_prim_func([a, te.compute((4,), lambda i: a[i] * 2, name="doubled")])
    tvm.compile(tvm.IRModule({"main": func}), target="llvm").export_library(str(path))
    out = tvm.runtime.tensor(np.zeros(4, "float32"))
    tvm.runtime.load_module(str(path))["main"](
        tvm.runtime.tensor(np.arange(4, dtype="float32")), out
    )
    return out.numpy().tolist()


def main() -> None:
    """Print the findings as they come, so that those before a crash count."""
    for finding in findings():
        sys.stdout.write(json.dumps(finding) + os.linesep)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
