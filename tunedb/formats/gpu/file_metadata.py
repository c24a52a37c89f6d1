"""Kernel and device of files that do not say them: from their names and from files beside them.

Results of FAIR T4 hold neither, nor do tables of CLTune and caches of Triton hold the device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ... import limits
from ...errors import FormatError, TuneDBError
from ...identity import clean_text
from ..base import LogFile
from ..streams import open_log
from .json_documents import parse_document
from .t1 import t1_input

#: Ends of names that say nothing of kernel or device.
_ENDS = re.compile(
    r"(?:\.(?:json|csv|txt|gz|xz|bz2|zst|lzma)|[_-](?:T4|results|converted))+$", re.I
)

#: Beside ``kernel__DEVICE_T4.json``, the words of the kernel and of the device.
_BETWEEN = "__"

_KTT = {
    "device": re.compile(rb'"Device"\s*:\s*"([^"\\]{1,200})"'),
    "kernel": re.compile(rb'"KernelName"\s*:\s*"([^"\\]{1,200})"'),
    "kind": re.compile(rb'"ComputeApi"\s*:\s*"([^"\\]{1,20})"'),
}


class Place(NamedTuple):
    """What is known of a file that does not say it.

    Parameters
    ----------
    kernel, device : str or None
        None where nothing says it.
    kind : str
        TVM's target kind, ``unknown`` where nothing says it.
    problem : object
        Size of the problem, where a T1 input beside the file says it.
    """

    kernel: str | None = None
    device: str | None = None
    kind: str = "unknown"
    problem: Any = None


def place_of(file: LogFile) -> Place:
    """Return kernel and device of a file, from what is nearest to it.

    In this order: what the user says; KTT's file that a ``…_converted`` one was made of; a T1 input
    beside the file (``kernel__T1.json`` beside ``kernel__DEVICE_T4.json``, or the only ``…T1.json``
    or ``T1.json`` of its folder); the name (``kernel__DEVICE_T4.json``, or the folder for the
    kernel and ``DEVICE_T4.json`` for the device).
    """
    kernel, device, kind, problem = file.kernel, file.device, "unknown", None
    if file.path is not None:
        original = _original(file.path)
        named = _named(file.path)
        input_ = None if original.kernel else _input_beside(file.path, named.kernel)
        if input_ is not None and kernel in (None, input_.kernel):
            kernel, problem = input_.kernel, input_.problem
        kernel = kernel or original.kernel or named.kernel
        if device in (None, original.device):
            kind = original.kind
        device = device or original.device or named.device
    return Place(kernel, device, kind, problem)


def device_of_name(path: Path | None) -> str | None:
    """Return the device that a file's name says behind two underscores, or None."""
    if path is None or _BETWEEN not in path.name:
        return None
    return _named(path).device


def require(**found: str | None) -> list[str]:
    """Return what must be known of a file, in the order in which it is asked for.

    Parameters
    ----------
    **found : str or None
        ``kernel`` and ``device``, as far as they are needed.

    Raises
    ------
    FormatError
        Nothing says one of them. Times of unknown devices would become one device's.
    """
    missing = [name for name, value in found.items() if not value]
    if missing:
        options = " and ".join(f"--{name}" for name in missing)
        raise FormatError(f"the file does not say its {' and '.join(missing)}; give {options}")
    return [clean_text(value or "")[: limits.MAX_NAME_CHARS] for value in found.values()]


def stem_of(path: Path) -> str:
    """Return a file's name without what says nothing of kernel or device."""
    return _ENDS.sub("", path.name)


def _named(path: Path) -> Place:
    stem = stem_of(path)
    kernel, between, device = stem.partition(_BETWEEN)
    if between and kernel and device:
        return Place(kernel, device)
    # A folder for each kernel, with a file for each device: only results of T4 are called so.
    if re.search(r"[_-]T4\b", path.name, re.I) and stem:
        folder = path.absolute().parent.name
        return Place(folder or None, stem)
    return Place()


def _original(path: Path) -> Place:
    """Return what the file of KTT says that this one was made of, by its first bytes."""
    if "_converted" not in path.name:
        return Place()
    for name in dict.fromkeys((path.name, path.name.removesuffix(".gz"), path.name + ".gz")):
        head = _head(path.with_name(name.replace("_converted", "", 1)))
        found = {key: shape.search(head) for key, shape in _KTT.items()}
        if found["device"] is not None and b'"Metadata"' in head:
            text = {key: match[1].decode(errors="replace") for key, match in found.items() if match}
            kind = text.get("kind", "unknown").lower()
            return Place(
                text.get("kernel"),
                text["device"],
                kind if kind in ("cuda", "opencl", "vulkan") else "unknown",
            )
    return Place()


def _head(path: Path) -> bytes:
    if not path.is_file():
        return b""
    try:
        with open_log(path) as (stream, _):
            return stream.read(limits.MAX_NEIGHBOUR_BYTES)
    except TuneDBError:
        return b""


def _input_beside(path: Path, kernel: str | None) -> Any:
    """Return the T1 input that describes a file's kernel, or None."""
    for candidate in _candidates(path, kernel):
        if candidate == path:
            continue
        try:
            return t1_input(parse_document(_head(candidate)))
        except FormatError:
            continue
    return None


def _candidates(path: Path, kernel: str | None) -> Iterator[Path]:
    folder = path.parent
    if kernel is not None:
        yield from (folder / f"{kernel}{between}T1.json" for between in ("__", "_", "-"))
    if device_of_name(path) is None:
        yield folder / "T1.json"
        inputs = sorted(folder.glob("*T1.json"))
        if len(inputs) == 1:
            yield inputs[0]
