"""Code of the worker processes of :class:`~.warm_builder.WarmBuilder`.

A worker is ``python -m tvm.exec.popen_worker``, which imports TVM (about 1.3 s). This module
imports nothing more, in particular not ``tvm.s_tir.tensor_intrin`` (seconds of CPU time), which
TVM's own ``default_build`` imports: the tuner has replaced tensorized blocks by the intrinsic's
implementation, so no pass of a build looks up an intrinsic by name.

Arguments arrive as bytes and are unpickled here, inside ``try``: an error in the loop of
``tvm.exec.popen_worker`` would kill the process without a message.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Functions of `prepare`, resolved once per process.
_functions: dict[str, Callable[..., Any]] = {}


def prepare(pickled: bytes) -> str | None:
    """Run the initializer and resolve the build and export functions.

    Parameters
    ----------
    pickled : bytes
        ``(initializer, f_build, f_export)``, each pickled on its own.

    Returns
    -------
    str or None
        Problem in one line, or None.
    """
    initializer, f_build, f_export = pickle.loads(pickled)  # noqa: S301 - from our own parent
    try:
        function = pickle.loads(initializer)  # noqa: S301
        if function is not None:
            function()
    except Exception as error:
        return f"initializer failed: {_one_line(error)}"
    for role, value, default in (
        ("f_build", f_build, default_build),
        ("f_export", f_export, default_export),
    ):
        try:
            _functions[role] = _resolve(pickle.loads(value), default)  # noqa: S301
        except Exception as error:
            return f"{role}: {_one_line(error)}"
    return None


def build(candidate: bytes, directory: str) -> tuple[bool, str]:
    """Build and export one candidate.

    Parameters
    ----------
    candidate : bytes
        ``(mod, target, params)`` in pickled form, params as ``save_param_dict`` gives them.
    directory : str
        Directory to create for the artifact and all temporary files. The parent of a killed process
        removes it; no directory means that the build did not begin.

    Returns
    -------
    tuple of bool and str
        True and the artifact's path, or False and the traceback.
    """
    try:
        Path(directory).mkdir()
        tempfile.tempdir = directory
        os.environ["TMPDIR"] = directory  # for compilers
        mod, target, params = pickle.loads(candidate)  # noqa: S301 - from our own parent
        if params is not None:
            from tvm.runtime import load_param_dict

            params = load_param_dict(params)
        artifact = _functions["f_export"](_functions["f_build"](mod, target, params))
        return True, _checked(artifact)
    except Exception:
        from ..failures import tidy

        return False, tidy(traceback.format_exc())


def default_build(mod: Any, target: Any, _params: Any) -> Any:
    """Build as TVM's ``default_build``, without its import of the tensor intrinsics.

    Large arguments are prefetched (:mod:`..prefetch`), as in a compiled network.
    """
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
    from tvm.tirx import build as tvm_build

    from ..prefetch import with_prefetch

    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    return tvm_build(with_prefetch(mod, target), target=target)


def default_export(mod: Any) -> str:
    """Export as TVM's ``default_export``, into the directory of the candidate."""
    from tvm.support.tar import tar

    path = Path(tempfile.gettempdir(), f"tvm_tmp_mod.{tar.output_format}")
    mod.export_library(str(path), fcompile=tar)
    return str(path)


def _resolve(value: Any, default: Callable[..., Any]) -> Callable[..., Any]:
    if value is None:
        return default
    if not isinstance(value, str):
        function: Callable[..., Any] = value
        return function
    import tvm_ffi

    registered: Callable[..., Any] | None = tvm_ffi.get_global_func(value, allow_missing=True)
    if registered is None:
        raise LookupError(
            f"function '{value}' is not registered in the worker process; "
            "register it there with initializer="
        )
    return registered


def _checked(artifact: Any) -> str:
    # RemoveBuildArtifact removes the artifact's directory: the path must have one of its own.
    if not isinstance(artifact, str) or not Path(artifact).is_absolute():
        raise TypeError(f"f_export must return an absolute path, not {artifact!r}")
    return str(artifact)


def _one_line(error: Exception) -> str:
    return " ".join(traceback.format_exception_only(error)[-1].split())[:1000]
