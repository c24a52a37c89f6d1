"""Supported versions of TVM, and errors that cross TVM.

apache-tvm and apache-tvm-ffi are bound by ABI, but apache-tvm's metadata says only ``>=``: a plain
``pip install apache-tvm`` takes apache-tvm-ffi 0.1.15, with which ``tvm.ir.save_json`` segfaults.
"""

from __future__ import annotations

import re
from importlib import metadata, util

from ... import errors
from ...errors import PluginError, TuneDBError

#: Releases of apache-tvm → those of apache-tvm-ffi that work with them (measured: import,
#: save_json, Workload.as_json and an 8-trial tune_tir for each pair).
PAIRS: dict[tuple[int, ...], tuple[int, ...]] = {(0, 27): (0, 1, 14)}

INSTALL = "pip install 'apache-tvm>=0.27,<0.28' 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'"


def _release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_versions() -> None:
    """Raise PluginError, naming the command to run, unless TVM and its ffi fit.

    A TVM built from source without package metadata is not checked.
    """
    tvm, ffi = _installed("apache-tvm"), _installed("apache-tvm-ffi")
    if tvm is None:
        if util.find_spec("tvm") is None:
            raise PluginError("TVM is not installed; run: pip install 'tunedb[tvm]'")
        return
    check_pair(tvm, ffi)


def check_pair(tvm: str, ffi: str | None) -> None:
    """Raise PluginError unless these versions of apache-tvm and apache-tvm-ffi fit.

    Parameters
    ----------
    tvm, ffi : str
        Versions, e.g. ``0.27.0.post1`` and ``0.1.14.post1``; None if not installed.
    """
    wanted = PAIRS.get(_release(tvm)[:2])
    if wanted is None:
        known = ", ".join(".".join(map(str, pair)) for pair in PAIRS)
        raise PluginError(f"apache-tvm {tvm} is not supported (known: {known}); run: {INSTALL}")
    if ffi is None or _release(ffi)[:3] != wanted:
        raise PluginError(
            f"apache-tvm {tvm} does not work with apache-tvm-ffi {ffi} (it crashes or does not "
            f"load); run: {INSTALL}"
        )


def register_errors() -> None:
    """Let tunedb's errors and Ctrl-C keep their type when they cross TVM's C++.

    Without this, every exception that is not one of tvm-ffi's own kinds arrives as RuntimeError.
    """
    from tvm_ffi import register_error

    for name in errors.__dict__:
        value = getattr(errors, name)
        if isinstance(value, type) and issubclass(value, TuneDBError):
            register_error(f"tunedb.{name}", value)
    register_error("KeyboardInterrupt", KeyboardInterrupt)
