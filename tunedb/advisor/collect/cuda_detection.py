"""What of CUDA a machine has."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from ...errors import UsageError
from .. import devices
from .configuration import GPU

#: Programs that are looked for, and where they are when not on the path.
_PROGRAMS = ("nvcc", "ncu", "nvprof", "nvidia-smi")
_FOLDERS = (
    *("/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/local/cuda-*/bin"),
    *("/opt/nvidia/nsight-compute/*", "/usr/local/NVIDIA-Nsight-Compute*"),
)
_TIMEOUT_S = 30


def find_programs(path: str) -> dict[str, Path | None]:
    """Return the tools of CUDA and where each is, if anywhere on a PATH or in the usual places."""
    return {name: _find(name, path) for name in _PROGRAMS}


def _find(name: str, path: str) -> Path | None:
    found = shutil.which(name, path=path)
    if found is not None:
        return Path(found)
    for pattern in _FOLDERS:
        # The last one in order of names: the newest version.
        for folder in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True):
            if (found := shutil.which(name, path=str(folder))) is not None:
                return Path(found)
    return None


def missing_folders(path: str) -> tuple[str, ...]:
    """Return folders with CUDA's tools that are not on a PATH."""
    found = find_programs(path)
    apart = [
        str(where.parent)
        for name, where in found.items()
        if where is not None and shutil.which(name, path=path) is None
    ]
    return tuple(dict.fromkeys(apart))


def detect_devices(path: str) -> tuple[GPU, ...]:
    """Return the GPUs that nvidia-smi lists; none where it is missing or fails."""
    program = _find("nvidia-smi", path)
    if program is None:
        return ()
    # Drivers before 510 do not know compute_cap.
    for fields in ("index,name,compute_cap", "index,name"):
        command = [str(program), f"--query-gpu={fields}", "--format=csv,noheader"]
        try:
            done = subprocess.run(  # noqa: S603
                command,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ()
        if done.returncode == 0:
            return parse_devices(done.stdout.decode(errors="replace"))
    return ()


def parse_devices(listed: str) -> tuple[GPU, ...]:
    """Return the GPUs in the output of nvidia-smi, ``0, Tesla K40c, 3.5`` each."""
    found = []
    for line in listed.splitlines():
        index, *rest = (part.strip() for part in line.split(","))
        if not index.isdigit() or not rest or not rest[0]:
            continue
        said = rest[1] if len(rest) > 1 and re.fullmatch(r"\d+\.\d", rest[1]) else None
        found.append(GPU(rest[0], int(index), said or _known(rest[0])))
    return tuple(found)


def device_of(text: str, index: int = 0) -> GPU:
    """Return the device that a user names: ``Tesla K40c`` or ``My GPU:7.5``.

    Raises
    ------
    UsageError
        Its compute capability is not known and not given.
    """
    name, colon, said = text.rpartition(":")
    if colon and re.fullmatch(r"\d{1,2}\.\d", said) and name.strip():
        return GPU(name.strip(), index, said)
    name = text.strip()
    known = _known(name)
    if known is None:
        raise UsageError(
            f"{name!r} is not a device that tunedb knows; give its compute capability: "
            f"--device '{name}:7.5'"
        )
    return GPU(name, index, known)


def _known(name: str) -> str | None:
    device = devices.lookup(name)
    return None if device is None else device.compute_capability
