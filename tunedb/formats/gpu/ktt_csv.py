"""Results of KTT as CSV: of KTT 1.x, and of the script that converts the XML of KTT 2.x.

The columns are ``Kernel name``, ``Computation duration (us)`` (also ``Kernel duration``), ``Global
size``, ``Local size``, the parameters, the counters and, from the script, the compiler's data.
Nothing marks the end of the parameters: a file ``….metadata.json`` beside the results may list them
(``tp``), else they end before the first name of a counter. Sizes are products of three extents. KTT
1.x lists failed results after a blank line, with ``Error message`` for the duration, and ``Global
size 0``, ``Local size 0``, … for a kernel that launches several (``printCSV`` of its
``result_printer.cpp``).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

from ... import limits
from ...errors import FormatError
from ...identity import canonical_json
from ...json_checks import parse_json
from ...launches import CounterSet, Extents, Launch
from ...programs.kernel import split_parameters
from ...programs.thread_blocks import block_of
from ...records import Failure, FailureKind, Measurement, Phase, Program, Quarantined, Status
from ..base import Item, LogFile, Remark, read_lines
from ..streams import HEAD_BYTES, open_log
from .kernels import gpu_target, kernel_workload
from .ktt import PER_SECOND, counter_value, text_of, tool_of, unit_of

#: The first column; the second column of failed results, and of others with their unit.
_KERNEL, _ERROR = "Kernel name", "Error message"
_DURATION = re.compile(r"(?:Computation|Kernel) duration \((ns|us|ms|s)\)")
_PER_SECOND = dict(zip(("ns", "us", "ms", "s"), PER_SECOND.values(), strict=True))

_SIZE = re.compile(r"(Global|Local) size(?: (\d+))?")

#: Columns behind the counters.
_SHARED, _REGISTERS = "Local memory size", "Registers count"
_AFTER = frozenset(
    ("Maximum work-group size", _SHARED, "Private memory size", "Constant memory size", _REGISTERS)
) | {"Power", "Energy"}

#: Counters that KTT reads through CUPTI (nvprof's names) and GPUPerfAPI; those of Nsight Compute
#: have two underscores. Parameters do not have such names.
_NVPROF = (
    "achieved_occupancy cf_fu_utilization double_precision_fu_utilization dram_read_transactions "
    "dram_utilization dram_write_transactions flop_dp_efficiency flop_sp_efficiency "
    "half_precision_fu_utilization inst_bit_convert inst_compute_ld_st inst_control inst_executed "
    "inst_fp_16 inst_fp_32 inst_fp_64 inst_integer inst_misc issue_slot_utilization "
    "l2_read_transactions l2_utilization l2_write_transactions ldst_fu_utilization "
    "local_load_transactions local_memory_overhead local_store_transactions shared_efficiency "
    "shared_load_transactions shared_store_transactions shared_utilization sm_efficiency "
    "single_precision_fu_utilization special_fu_utilization tex_cache_transactions "
    "tex_fu_utilization tex_utilization warp_execution_efficiency warp_nonpred_execution_efficiency"
)
_GPA = (
    "Wavefronts VALUInsts SALUInsts VFetchInsts SFetchInsts VWriteInsts LDSInsts GDSInsts "
    "VALUUtilization VALUBusy SALUBusy FetchSize WriteSize L2CacheHit MemUnitBusy MemUnitStalled "
    "WriteUnitStalled LDSBankConflict"
)
_COUNTERS = frozenset(f"{_NVPROF} {_GPA}".split())

#: First bytes of the files beside results: a list of counters, and the roles of columns.
_LIST, _ROLES = b"Profiling counter", (b'"tp"', b'"pc"')

_INTEGER = re.compile(r"[+-]?\d{1,18}")


@dataclass(frozen=True, slots=True)
class _Columns:
    """The roles of a header's columns; `after` are those of the compiler's data.

    `per_second` is the number of duration units per second, None for failed results; `sizes` the
    number of pairs of a global and a local size.
    """

    per_second: float | None
    sizes: int
    parameters: tuple[str, ...]
    counters: tuple[str, ...]
    after: tuple[str, ...]


class KTTCSVFormat:
    """Results of KTT as CSV (:class:`tunedb.formats.base.FileFormat`)."""

    name = "ktt-csv"

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True for the head of a KTT table, or of a file that belongs to one."""
        if _is_aside(head):
            return True
        first = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode(errors="replace")
        names = first.rstrip("\r").split(_separator(first))
        return names[0] == _KERNEL and len(names) > 1 and _is_outcome(names[1])

    def companions(self, path: Path) -> list[Path]:
        """Return the existing file that lists the columns of `path`."""
        if path.suffix.lower() != ".csv":
            return []
        names = (f"{path.stem}.metadata.json", f"{path.stem}_DT.sav.metadata.json")
        return [roles for name in names if (roles := path.with_name(name)).is_file()][:1]

    def read_file(self, file: LogFile) -> Iterator[Item | Remark]:
        """Yield a measurement per row; bad rows are quarantined.

        A file that belongs to a table has no measurements.

        Raises
        ------
        FormatError
            The header is not KTT's, or the file beside the table is damaged.
        """
        with open_log(file.path) as (stream, position):
            if _is_aside(stream.peek(HEAD_BYTES)[:HEAD_BYTES]):  # type: ignore[attr-defined]
                yield Remark("names of KTT's columns, which are read with a CSV file; no results")
                return
            reader: _CSVReader | None = None
            for line in read_lines(stream, position):
                data = line.data.removeprefix(b"\xef\xbb\xbf") if line.number == 1 else line.data
                if not data.strip():
                    continue
                try:
                    if line.too_long:
                        raise FormatError(f"longer than {limits.MAX_LINE_BYTES} bytes")
                    text = data.decode()
                    if reader is None:
                        reader = _CSVReader(file, _separator(text), self._roles(file))
                    cells = next(csv.reader([text], delimiter=reader.separator))
                    if cells[0] == _KERNEL:
                        reader.begin(cells)
                        continue
                    yield reader.read(cells)
                except (FormatError, UnicodeDecodeError, csv.Error) as error:
                    if reader is None or not reader.has_header:
                        raise FormatError(f"{file.name}: {error}") from None
                    bad = line.data[: limits.MAX_QUARANTINE_BYTES]
                    yield Quarantined(file.name, line.number, str(error), bad)

    def _roles(self, file: LogFile) -> dict[str, Any]:
        """Return the columns' roles, if known: ``tp`` (parameters), ``pc`` (counters), ``cc``."""
        for path in self.companions(file.path) if file.path is not None else ():
            with open_log(path) as (stream, _):
                data = stream.read(limits.MAX_LINE_BYTES + 1)
            if len(data) > limits.MAX_LINE_BYTES:
                raise FormatError(f"{path.name} has more than {limits.MAX_LINE_BYTES} bytes")
            try:
                roles = parse_json(data)
            except FormatError as error:
                raise FormatError(f"{path.name} beside it: {error}") from None
            if not isinstance(roles, dict) or not isinstance(roles.get("tp"), list):
                raise FormatError(f"{path.name} beside it has no list 'tp' of parameters")
            return roles
        return {}


class _CSVReader:
    """Parser of the rows of one table."""

    def __init__(self, file: LogFile, separator: str, roles: Mapping[str, Any]) -> None:
        self.separator = separator
        self._file = file
        self._parameters = roles.get("tp")
        capability = roles.get("cc")
        self._capability = str(capability) if type(capability) in (int, float) else None
        self._columns: _Columns | None = None
        self._set: CounterSet | None = None
        self._context = canonical_json({"log": KTTCSVFormat.name})

    @property
    def has_header(self) -> bool:
        """True after a valid header."""
        return self._columns is not None

    def begin(self, names: list[str]) -> None:
        """Read a header: of results, or of failed results."""
        self._columns = None
        if len(set(names)) < len(names):
            raise FormatError("a column occurs twice in the header of KTT")
        if len(names) < 2 or not _is_outcome(names[1]):
            raise FormatError(
                f"the second column of KTT must be its duration, not {short(names[1:2])}"
            )
        rest = names[2:]
        sizes = 0
        while rest[:1] and _SIZE.fullmatch(rest[0]):
            rest, sizes = rest[2:], sizes + 1
        end = next((at for at, name in enumerate(rest) if name in _AFTER), len(rest))
        listed = self._parameters
        if listed is not None:
            first = next((at for at, name in enumerate(rest[:end]) if name not in listed), end)
        else:
            first = next((at for at, name in enumerate(rest[:end]) if _is_counter(name)), end)
        unit = _DURATION.fullmatch(names[1])
        columns = _Columns(
            _PER_SECOND[unit[1]] if unit else None,
            sizes,
            tuple(rest[:first]),
            tuple(rest[first:end]),
            tuple(rest[end:]),
        )
        self._set = self._counter_set(columns.counters)
        self._columns = columns

    def _counter_set(self, names: tuple[str, ...]) -> CounterSet | None:
        if len(names) > limits.MAX_COUNTERS:
            raise FormatError(f"more than {limits.MAX_COUNTERS} counters")
        if not names:
            return None
        counters = tuple(
            (text_of(name, "the name of a counter", limits.MAX_COUNTER_CHARS), unit_of(name, None))
            for name in names
        )
        on_cuda = not any(name[0].isupper() for name in names)
        return CounterSet(tool_of(counters, on_cuda), None, self._capability, counters)

    def read(self, cells: list[str]) -> Measurement:
        """Return the measurement of a row.

        Raises
        ------
        FormatError
            The row cannot be parsed.
        """
        columns = self._columns
        if columns is None:
            raise FormatError("a row before the header of KTT")
        plain = 2 + 2 * columns.sizes + len(columns.parameters) + len(columns.after)
        # A result without a profiler leaves out the cells of the counters.
        profiled = len(cells) == plain + len(columns.counters)
        if not profiled and len(cells) != plain:
            raise FormatError(f"a row of {len(cells)} cells does not match the header")
        kernel, outcome, *rest = cells
        sizes, rest = rest[: 2 * columns.sizes], rest[2 * columns.sizes :]
        values, rest = rest[: len(columns.parameters)], rest[len(columns.parameters) :]
        counters = rest[: len(columns.counters)] if profiled else []
        compiled = dict(zip(columns.after, rest[len(counters) :], strict=True))
        parameters = dict(zip(columns.parameters, map(_value, values), strict=True))
        run_secs, failure = self._outcome(outcome, columns)
        launches = self._launches(kernel, sizes, parameters, counters, compiled)
        extra: dict[str, Any] = {
            name: _value(text)
            for name, text in compiled.items()
            if name not in (_SHARED, _REGISTERS)
        }
        extra["Global size"] = [_whole(text, "Global size") for text in sizes[::2]]
        if counters:
            extra["profiled"] = True
        kind = "unknown" if self._set is None or self._set.tool == "gpa" else "cuda"
        return Measurement(
            Program(
                kernel_workload(text_of(kernel or self._file.kernel, "the name of a kernel")),
                gpu_target(kind, self._file.device or ""),
                split_parameters(parameters),
            ),
            run_secs,
            Status.OK if failure is None else Status.FAILED,
            context=self._context,
            extra=canonical_json(extra),
            failure=failure,
            launches=launches,
        )

    def _outcome(self, text: str, columns: _Columns) -> tuple[tuple[float] | None, Failure | None]:
        if columns.per_second is None:
            return None, _failure(text)
        duration = _number(text, "the duration") / columns.per_second
        if not 0.0 < duration < math.inf:
            raise FormatError(f"a duration of {short(text)}; it was not measured")
        return (duration,), None

    def _launches(
        self,
        kernel: str,
        sizes: list[str],
        parameters: Mapping[str, Any],
        counters: list[str],
        compiled: Mapping[str, str],
    ) -> tuple[Launch, ...]:
        """Return a launch for each pair of sizes."""
        threads = [_whole(text, "Local size") for text in sizes[1::2]]
        if any(not 0 < number <= limits.MAX_BLOCK_THREADS for number in threads):
            raise FormatError(f"a block of {short(threads)} threads")
        if len(threads) > 1:
            # The columns do not say to which kernel the counters and registers belong.
            numbered = enumerate(threads)
            return tuple(Launch(f"{kernel} {at}", size, number=at) for at, size in numbered)
        registers = _whole(compiled[_REGISTERS], _REGISTERS) if _REGISTERS in compiled else 0
        shared = _whole(compiled[_SHARED], _SHARED) if _SHARED in compiled else None
        names = self._set.counters if self._set is not None and counters else ()
        values = zip(names, counters, strict=True)
        return tuple(
            Launch(
                kernel,
                size,
                _agreeing(block_of(parameters), size),
                registers=registers or None,
                static_shared=shared,
                counter_set=self._set if counters else None,
                values=tuple(
                    counter_value(_number(text, name), name) for (name, _), text in values
                ),
            )
            for size in threads
        )


def _is_aside(head: bytes) -> bool:
    return head.startswith(_LIST) or (
        head.lstrip().startswith(b"{") and b'"cc"' in head and all(role in head for role in _ROLES)
    )


def _separator(header: str) -> str:
    return ";" if header.startswith(f"{_KERNEL};") else ","


def _is_outcome(name: str) -> bool:
    return name == _ERROR or _DURATION.fullmatch(name) is not None


def _is_counter(name: str) -> bool:
    return ("__" in name.strip("_") and "." in name) or name in _COUNTERS


def _agreeing(block: Extents | None, threads: int) -> Extents | None:
    """Return the block of the parameters if its threads match the file's, else None."""
    return block if block is not None and math.prod(block) == threads else None


def _failure(message: str) -> Failure:
    """Return the failure of a KTT 1.x result, classified by its message."""
    lower = message.lower()
    if "validat" in lower:
        kind, phase = FailureKind.WRONG_RESULT, Phase.RUN
    elif "build" in lower or "compil" in lower:
        kind, phase = FailureKind.COMPILE_ERROR, Phase.BUILD
    else:
        kind, phase = FailureKind.RUNTIME_ERROR, Phase.RUN
    return Failure(kind, phase, message[: limits.MAX_MESSAGE_CHARS])


def _value(text: str) -> Any:
    """Return a parameter's value."""
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FormatError(f"{what} is {short(text)}; expected a number") from None


def _whole(text: str, what: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise FormatError(f"{what} is {short(text)}; expected a whole number")
    return int(text)
