"""Launches of GPU kernels, with a profiler's counters."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import orjson

from . import identity, limits
from .errors import FormatError
from .json_checks import parse_json
from .system.one_line import one_line

#: Extents along x, y and z.
Extents = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class CounterSet:
    """Names and units of a profiler's counters.

    Parameters
    ----------
    tool : str
        The tool of the names: ``ncu``, ``nvprof``, ``kernel_tuner``.
    tool_version : str or None
        Version of the tool, if the file has it.
    compute_capability : str or None
        Compute capability of the device, such as ``"7.5"``, if the file has it.
    counters : tuple of (str, str)
        Name as the tool writes it, and unit: ``%``, ``byte``, ``inst``; ``""`` for a count.

    Raises
    ------
    FormatError
        There are too many counters, or a text is too long.
    """

    tool: str
    tool_version: str | None
    compute_capability: str | None
    counters: tuple[tuple[str, str], ...]
    digest: bytes = field(init=False, repr=False)

    __repr__ = one_line

    def __post_init__(self) -> None:
        if len(self.counters) > limits.MAX_COUNTERS:
            raise FormatError(
                f"{len(self.counters)} counters of one launch; {limits.MAX_COUNTERS} are the limit"
            )
        object.__setattr__(self, "tool", _label(self.tool, "tool"))
        for name in ("tool_version", "compute_capability"):
            text = getattr(self, name)
            # An empty text and None have one digest.
            object.__setattr__(self, name, _label(text, name) if text else None)
        counters = tuple((_label(n, "counter"), _label(u, "unit")) for n, u in self.counters)
        object.__setattr__(self, "counters", counters)
        if len(self.body) > limits.MAX_COUNTER_SET_BYTES:
            raise FormatError(f"names of counters of {len(self.body)} bytes")
        value = identity.digest(
            "counter_set",
            self.tool.encode(),
            (self.tool_version or "").encode(),
            (self.compute_capability or "").encode(),
            self.body,
        )
        object.__setattr__(self, "digest", value)

    @property
    def body(self) -> bytes:
        """Canonical JSON of the counters."""
        return orjson.dumps(self.counters)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel that a measured program launched.

    Parameters
    ----------
    kernel : str
        Name of the kernel in the tool's form, with template arguments if known.
    threads : int
        Threads of a block.
    block : tuple of int or None
        The block along x, y and z; None if only the number of threads is known.
    grid : tuple of int or None
        Blocks along x, y and z (never threads, as OpenCL counts).
    number : int
        Ordinal among the launches of the measurement.
    registers : int or None
        Registers of a thread.
    static_shared, dynamic_shared : int or None
        Shared memory of a block in bytes: declared by the kernel, and added by the launch.
    seconds : float or None
        Time of this kernel, if a program has several; under a profiler it is not a run time. None
        replaces values that are not finite.
    counter_set : CounterSet or None
        Names of the counters.
    values : tuple of float
        Values of the counters; NaN for counters that were not measured.

    Raises
    ------
    FormatError
        A number is impossible for a launch, or values and counters differ in number.
    """

    kernel: str
    threads: int
    block: Extents | None = None
    grid: Extents | None = None
    number: int = 0
    registers: int | None = None
    static_shared: int | None = None
    dynamic_shared: int | None = None
    seconds: float | None = None
    counter_set: CounterSet | None = None
    values: tuple[float, ...] = ()

    __repr__ = one_line

    def __post_init__(self) -> None:
        if len(self.kernel) > limits.MAX_KERNEL_CHARS:
            raise FormatError(f"a kernel's name of {len(self.kernel)} characters")
        object.__setattr__(self, "kernel", identity.clean_text(self.kernel))
        self._check_numbers()
        n_counters = 0 if self.counter_set is None else len(self.counter_set.counters)
        if len(self.values) != n_counters:
            raise FormatError(f"a launch with {len(self.values)} values of {n_counters} counters")
        # The digest is of bytes: NaN has many encodings, and SQLite keeps no -0.0.
        values = tuple(math.nan if math.isnan(v) else float(v) + 0.0 for v in self.values)
        object.__setattr__(self, "values", values)
        seconds = self.seconds
        if seconds is not None:
            seconds = float(seconds) + 0.0 if math.isfinite(seconds) else None
            object.__setattr__(self, "seconds", seconds)

    def _check_numbers(self) -> None:
        """Raise FormatError for an impossible number."""
        _within("threads of a block", self.threads, 1, limits.MAX_BLOCK_THREADS)
        _within("number of a launch", self.number, 0, limits.MAX_LAUNCHES - 1)
        for extents in (self.block, self.grid):
            if extents is not None:
                if len(extents) != 3:
                    raise FormatError(f"{len(extents)} extents of a block or grid, not 3")
                for value in extents:
                    _within("extent of a block or grid", value, 1, _INT32)
        if self.block is not None and math.prod(self.block) != self.threads:
            raise FormatError(f"a block of {self.block} has not {self.threads} threads")
        for name in ("registers", "static_shared", "dynamic_shared"):
            value = getattr(self, name)
            if value is not None:
                _within(name, value, 0, _INT32)

    def digest(self, measurement: bytes) -> bytes:
        """Return the identity of this launch of the measurement with that digest."""
        numbers = orjson.dumps(
            [
                self.number,
                self.threads,
                self.block,
                self.grid,
                self.registers,
                self.static_shared,
                self.dynamic_shared,
            ]
        )
        return identity.digest(
            "launch",
            measurement,
            self.kernel.encode(),
            numbers,
            b"" if self.seconds is None else identity.pack_floats([self.seconds]),
            b"" if self.counter_set is None else self.counter_set.digest,
            identity.pack_floats(self.values),
        )


_INT32 = 2**31 - 1


def _within(what: str, value: object, least: int, most: int) -> None:
    """Raise FormatError unless a value is an integer between two bounds."""
    if type(value) is not int or not least <= value <= most:
        raise FormatError(f"{what}: {value!r:.40} is not from {least} to {most}")


def _label(text: object, what: str) -> str:
    """Return a short text in the form that both databases can hold."""
    if not isinstance(text, str) or len(text) > limits.MAX_COUNTER_CHARS:
        raise FormatError(
            f"{what}: expected a text of at most {limits.MAX_COUNTER_CHARS} characters"
        )
    return identity.clean_text(text)


def counters_of(body: bytes) -> tuple[tuple[str, str], ...]:
    """Return names and units of :attr:`CounterSet.body`.

    Raises
    ------
    FormatError
        The JSON is not ``[[name, unit], …]``.
    """
    found = parse_json(body)
    if not isinstance(found, list):
        raise FormatError("counters that are not a list")
    for one in found:
        if not (isinstance(one, list) and len(one) == 2 and all(isinstance(t, str) for t in one)):
            raise FormatError("a counter that is not [name, unit]")
    return tuple((name, unit) for name, unit in found)


def values_of(data: bytes | None) -> tuple[float, ...]:
    """Return the values of counters; the inverse of :func:`tunedb.identity.pack_floats`.

    Raises
    ------
    FormatError
        The bytes are not float64 values.
    """
    if data is None:
        return ()
    if len(data) % 8:
        raise FormatError(f"{len(data)} bytes are not float64 values")
    return identity.unpack_floats(bytes(data))
