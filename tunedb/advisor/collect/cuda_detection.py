"""Detection of CUDA's tools and devices."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from ...errors import UsageError
from .. import devices
from .configuration import GPU

#: Programs of CUDA, and their folders when they are not on the path.
_PROGRAMS = ("nvcc", "ncu", "nvprof", "nvidia-smi")
_FOLDERS = (
    *("/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/local/cuda-*/bin"),
    *("/opt/nvidia/nsight-compute/*", "/usr/local/NVIDIA-Nsight-Compute*"),
)
_TIMEOUT_S = 30


def find_programs(path: str) -> dict[str, Path | None]:
    """Return the tools of CUDA by name, with their paths on a PATH or in the usual folders."""
    return {name: _find(name, path) for name in _PROGRAMS}


def _find(name: str, path: str) -> Path | None:
    paths = [path]
    for pattern in _FOLDERS:
        # The last one in order of names is the newest version.
        paths += map(str, sorted(Path("/").glob(pattern.lstrip("/")), reverse=True))
    programs = (shutil.which(name, path=folder) for folder in paths)
    return next((Path(program) for program in programs if program is not None), None)


def missing_folders(path: str) -> tuple[str, ...]:
    """Return folders with CUDA's tools that are not on a PATH."""
    folders = [
        str(program.parent)
        for name, program in find_programs(path).items()
        if program is not None and shutil.which(name, path=path) is None
    ]
    return tuple(dict.fromkeys(folders))


def detect_devices(path: str) -> tuple[GPU, ...]:
    """Return the GPUs that nvidia-smi lists; none if it is missing or fails."""
    program = _find("nvidia-smi", path)
    if program is None:
        return ()
    # Drivers before 510 do not know compute_cap.
    for fields in ("index,name,compute_cap", "index,name"):
        command = [str(program), f"--query-gpu={fields}", "--format=csv,noheader"]
        try:
            process = subprocess.run(  # noqa: S603
                command,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ()
        if process.returncode == 0:
            return parse_devices(process.stdout.decode(errors="replace"))
    return ()


def parse_devices(output: str) -> tuple[GPU, ...]:
    """Return the GPUs in the output of nvidia-smi, ``0, Tesla K40c, 3.5`` each."""
    gpus = []
    for line in output.splitlines():
        index, *rest = (cell.strip() for cell in line.split(","))
        if not index.isdigit() or not rest or not rest[0]:
            continue
        capability = rest[1] if len(rest) > 1 and re.fullmatch(r"\d+\.\d", rest[1]) else None
        gpus.append(GPU(rest[0], int(index), capability or _known_capability(rest[0])))
    return tuple(gpus)


def parse_device(text: str, index: int = 0) -> GPU:
    """Return the device that a user names: ``Tesla K40c`` or ``My GPU:7.5``.

    Raises
    ------
    UsageError
        Its compute capability is neither known nor given.
    """
    name, colon, capability = text.rpartition(":")
    if colon and re.fullmatch(r"\d{1,2}\.\d", capability) and name.strip():
        return GPU(name.strip(), index, capability)
    name = text.strip()
    known = _known_capability(name)
    if known is None:
        raise UsageError(
            f"{name!r} is not a device that tunedb knows; give its compute capability: "
            f"--device '{name}:7.5'"
        )
    return GPU(name, index, known)


def _known_capability(name: str) -> str | None:
    device = devices.lookup(name)
    return None if device is None else device.compute_capability
