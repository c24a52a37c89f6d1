"""Results of CLTune: the table that it prints to a file, and its JSON.

``Tuner::PrintToFile`` writes ``name;time;threads;P1;P2;…;`` and a row for each configuration that
ran; each further kernel begins with a header of its own. ``Tuner::PrintJSON``, and CLBlast's tuners
after it, write ``{user strings, "device", "platform_version", "device_vendor", "device_type",
"device_core_clock", "device_compute_units", "results": [{"kernel", "time", "parameters"}]}``. Times
are milliseconds of one run (the best of CLTune's runs); both lack the configurations that failed. A
printed time of 0 is below the two or three digits that CLTune writes, and is rejected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from reprlib import repr as short
from typing import Any

from ... import limits
from ...errors import FormatError
from ...identity import clean_text
from ...json_checks import check_value
from ...launches import Launch
from ...programs.kernel import split_parameters
from ...programs.thread_blocks import block_of
from ...records import Measurement, Program, Quarantined, Target
from ..base import Item, LogFile
from .file_metadata import metadata_of, require_metadata
from .json_documents import SECONDS, parse_document, quarantined, read_document, seconds
from .kernels import gpu_target, kernel_workload

_HEADER = b"name;time;threads;"
_FIXED = 3

_RESULTS = re.compile(rb'"results"\s*:\s*\[')

#: Prefixes of a document's fields about the device; the other fields describe the problem.
_DEVICE_FIELDS = ("device", "platform_", "clblast_", "best_", "results")

_INTEGER = re.compile(r"-?\d{1,18}")

_MS = SECONDS["ms"]


class CLTuneFormat:
    """Results of CLTune (:class:`tunedb.formats.base.FileFormat`)."""

    name = "cltune"

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True for the head of a table or a document of CLTune."""
        if head.removeprefix(b"\xef\xbb\xbf").startswith(_HEADER):
            return True
        return b'"device_compute_units"' in head and b'"device_core_clock"' in head

    def read_file(self, file: LogFile) -> Iterator[Item]:
        """Yield the measurements of a file, and its bad rows as quarantined.

        Raises
        ------
        FormatError
            The file is damaged, or a table whose device is unknown.
        """
        data = read_document(file)
        if data.startswith(_HEADER):
            yield from _table(data, file)
        else:
            yield from _document(data, file)


def _table(data: bytes, file: LogFile) -> Iterator[Item]:
    (device,) = require_metadata(device=metadata_of(file).device)
    target = gpu_target("unknown", device)
    names: list[str] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line or line.isspace():
            continue
        try:
            cells = line.decode().rstrip().removesuffix(";").split(";")
            if line.startswith(_HEADER):
                names = cells[_FIXED:]
                continue
            yield _row(cells, names, target, file)
        except (FormatError, UnicodeDecodeError) as error:
            data = line[: limits.MAX_QUARANTINE_BYTES]
            yield Quarantined(file.name, number, str(error), data)


def _row(cells: list[str], names: list[str], target: Target, file: LogFile) -> Measurement:
    """Return the measurement of a row, or raise FormatError."""
    if len(cells) != len(names) + _FIXED:
        raise FormatError(
            f"a row with {len(cells) - _FIXED} parameters under a header with {len(names)}"
        )
    kernel, time, threads, *values = cells
    for text in (threads, *values):
        if _INTEGER.fullmatch(text) is None:
            raise FormatError(f"{short(text)} is not an integer, as CLTune's parameters are")
    try:
        milliseconds = float(time)
    except ValueError:
        raise FormatError(f"the time is {short(time)}, which is not a number") from None
    parameters = dict(zip(names, map(int, values), strict=True))
    return _measurement(kernel or file.kernel, None, target, parameters, milliseconds, int(threads))


def _document(data: bytes, file: LogFile) -> Iterator[Item]:
    document = parse_document(data)
    rows = document.get("results") if type(document) is dict else None
    if type(rows) is not list:
        raise FormatError("a document of CLTune without results")
    check_value({**document, "results": None}, "what CLTune says of the device")
    device, platform = document.get("device"), document.get("platform_version", "")
    (device,) = require_metadata(device=(device if type(device) is str else None) or file.device)
    is_opencl = type(platform) is str and platform.startswith("OpenCL")
    target = gpu_target("opencl" if is_opencl else "unknown", device)
    problem = {
        name: value for name, value in document.items() if not name.startswith(_DEVICE_FIELDS)
    }
    for number, row in enumerate(rows, 1):
        try:
            if type(row) is not dict or type(row.get("parameters")) is not dict:
                raise FormatError("a result must be an object with parameters")
            kernel = row.get("kernel") or file.kernel
            parameters, time = row["parameters"], row.get("time")
            yield _measurement(kernel, problem or None, target, parameters, time, None)
        except FormatError as error:
            yield Quarantined(file.name, number, str(error), quarantined(row))


def _measurement(
    kernel: Any,
    problem: Any,
    target: Target,
    parameters: Mapping[str, Any],
    time: Any,
    threads: int | None,
) -> Measurement:
    """Return a measurement; its block comes from parameters whose product equals the threads."""
    if type(kernel) is not str or not kernel:
        raise FormatError(f"the kernel of a result is {short(kernel)}, which is not a name")
    if type(time) in (int, float) and time == 0:
        raise FormatError("a time of 0 is below the digits that CLTune writes")
    run_secs = (seconds(time, _MS, "the time"),)
    name = clean_text(kernel)[: limits.MAX_NAME_CHARS]
    block = block_of(parameters)
    if threads is None and block is not None:
        threads = math.prod(block)
    launches: tuple[Launch, ...] = ()
    if threads is not None and threads > 0:
        agrees = block is not None and math.prod(block) == threads
        launches = (Launch(name, threads, block if agrees else None),)
    return Measurement(
        Program(kernel_workload(name, problem), target, split_parameters(parameters)),
        run_secs,
        context=b'{"log":"cltune"}',
        launches=launches,
    )
