"""Kernel and device of files that do not name them, from file names and neighbouring files.

Results of FAIR T4 name neither; tables of CLTune and caches of Triton do not name the device.
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

#: Ends of file names that are part of neither kernel nor device.
_ENDS = re.compile(
    r"(?:\.(?:json|csv|txt|gz|xz|bz2|zst|lzma)|[_-](?:T4|results|converted))+$", re.I
)

#: Separator of kernel and device in a name such as ``kernel__DEVICE_T4.json``.
_BETWEEN = "__"

_KTT = {
    "device": re.compile(rb'"Device"\s*:\s*"([^"\\]{1,200})"'),
    "kernel": re.compile(rb'"KernelName"\s*:\s*"([^"\\]{1,200})"'),
    "kind": re.compile(rb'"ComputeApi"\s*:\s*"([^"\\]{1,20})"'),
}


class FileMetadata(NamedTuple):
    """Kernel, device and problem of a file that does not name them.

    Parameters
    ----------
    kernel, device : str or None
        None if unknown.
    kind : str
        TVM's target kind; ``unknown`` if unknown.
    problem : object
        Size of the problem, from a T1 input beside the file; None if unknown.
    """

    kernel: str | None = None
    device: str | None = None
    kind: str = "unknown"
    problem: Any = None


def metadata_of(file: LogFile) -> FileMetadata:
    """Return kernel and device of a file, from the first of these sources that names them.

    The user's options; the KTT file from which a ``…_converted`` file was converted; a T1 input
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
    return FileMetadata(kernel, device, kind, problem)


def device_of_name(path: Path | None) -> str | None:
    """Return the device in a file's name, which follows two underscores, or None."""
    if path is None or _BETWEEN not in path.name:
        return None
    return _named(path).device


def require_metadata(**metadata: str | None) -> list[str]:
    """Return metadata that a format needs, cleaned, in the order of the arguments.

    Parameters
    ----------
    **metadata : str or None
        ``kernel`` and ``device``, as needed.

    Raises
    ------
    FormatError
        One of them is unknown. Otherwise times of all unknown devices would be those of one device.
    """
    missing = [name for name, value in metadata.items() if not value]
    if missing:
        options = " and ".join(f"--{name}" for name in missing)
        raise FormatError(f"the file does not say its {' and '.join(missing)}; give {options}")
    return [clean_text(value or "")[: limits.MAX_NAME_CHARS] for value in metadata.values()]


def stem_of(path: Path) -> str:
    """Return a file's name without suffixes that are part of neither kernel nor device."""
    return _ENDS.sub("", path.name)


def _named(path: Path) -> FileMetadata:
    stem = stem_of(path)
    kernel, between, device = stem.partition(_BETWEEN)
    if between and kernel and device:
        return FileMetadata(kernel, device)
    # A folder per kernel with a file per device is a layout of T4 results only.
    if re.search(r"[_-]T4\b", path.name, re.I) and stem:
        folder = path.absolute().parent.name
        return FileMetadata(folder or None, stem)
    return FileMetadata()


def _original(path: Path) -> FileMetadata:
    """Return the metadata in the head of the KTT file from which this file was converted."""
    if "_converted" not in path.name:
        return FileMetadata()
    for name in dict.fromkeys((path.name, path.name.removesuffix(".gz"), path.name + ".gz")):
        head = _head(path.with_name(name.replace("_converted", "", 1)))
        matches = {key: shape.search(head) for key, shape in _KTT.items()}
        if matches["device"] is not None and b'"Metadata"' in head:
            text = {key: hit[1].decode(errors="replace") for key, hit in matches.items() if hit}
            kind = text.get("kind", "unknown").lower()
            return FileMetadata(
                text.get("kernel"),
                text["device"],
                kind if kind in ("cuda", "opencl", "vulkan") else "unknown",
            )
    return FileMetadata()


def _head(path: Path) -> bytes:
    if not path.is_file():
        return b""
    try:
        with open_log(path) as (stream, _):
            return stream.read(limits.MAX_NEIGHBOUR_BYTES)
    except TuneDBError:
        return b""


def _input_beside(path: Path, kernel: str | None) -> Any:
    """Return the T1 input of a file's kernel, or None."""
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
