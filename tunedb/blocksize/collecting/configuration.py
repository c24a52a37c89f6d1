"""What is to be profiled, and how: the file ``advise.toml``.

It takes the place of the document's ``proglist`` and ``varlist`` (Connors and Qasem, HPCC 2017):
environment, devices, profiler, and per program how it is built, run and varied. Its commands are
the user's own code and are run as they stand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from ...launches import Extents

#: Letters of the axes, in the order of a block's extents.
AXES = "xyz"

#: Words in braces that a command may hold.
PLACEHOLDERS = (
    *("block_x", "block_y", "block_z", "threads"),
    *("maxrregcount", "register_flag", "input"),
)

#: ``${name}`` belongs to the shell, ``{{name}}`` and ``{ name }`` to whoever wants them.
PLACEHOLDER = re.compile(r"(?<![${])\{([a-z][a-z_]*)\}(?!\})")

#: Words, each an argument; or a line for the shell.
Command = tuple[str, ...] | str

Tool = Literal["auto", "ncu", "nvprof", "none"]
Timing = Literal["wall", "output", "trace"]
OutputType = Literal["text", "bytes", "float32", "float64", "int32"]

TOOLS: tuple[Tool, ...] = ("auto", "ncu", "nvprof", "none")
TIMINGS: tuple[Timing, ...] = ("wall", "output", "trace")
OUTPUT_TYPES: tuple[OutputType, ...] = ("text", "bytes", "float32", "float64", "int32")

#: Seconds of one unit in which a program may print its time.
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class Environment:
    """What is set when a program is built, run and profiled.

    Parameters
    ----------
    path : tuple of str
        Folders put before ``PATH``.
    variables : dict
        Variable → value.
    """

    path: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GPU:
    """A device that programs run on.

    Parameters
    ----------
    name : str
        As its vendor writes it.
    index : int
        Its number, as ``CUDA_VISIBLE_DEVICES`` takes it.
    compute_capability : str or None
        ``"7.5"``; None where nobody knows it.
    """

    name: str
    index: int = 0
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True)
class Profiler:
    """How counters are read.

    Parameters
    ----------
    tool : str
        ``ncu``, ``nvprof``, ``none``, or ``auto``: what the device takes and what is installed.
    counters : tuple of str
        Events and metrics in the tool's words; empty for those of Table I of the document.
    per_run : int
        Counters of one run; 0 for what :mod:`.groups` allows.
    options : tuple of str
        Further arguments of the tool.
    """

    tool: Tool = "auto"
    counters: tuple[str, ...] = ()
    per_run: int = 0
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """What tells whether a variant computes the same.

    Parameters
    ----------
    source : str
        ``stdout``, ``none``, or a file in the program's folder.
    type : str
        ``text`` (numbers in it are compared as numbers), ``bytes``, or what a binary file is an
        array of.
    tolerance : float
        Largest relative difference of two numbers; 0 for none.
    ignore : str or None
        Lines of a text in which this expression is found are not compared.
    """

    source: str = "stdout"
    type: OutputType = "text"
    tolerance: float = 0.0
    ignore: str | None = None


@dataclass(frozen=True, slots=True)
class Clock:
    """Where run times come from.

    Parameters
    ----------
    source : str
        ``wall``: the whole process; ``output``: what it prints; ``trace``: the kernels in
        nvprof's trace.
    pattern : str or None
        Of ``output``: an expression whose first group is the number; all matches are added up.
    unit : str
        Of that number: ``s``, ``ms``, ``us``, ``ns``.
    repeats : int
        Timed runs of one variant.
    """

    source: Timing = "wall"
    pattern: str | None = None
    unit: str = "ms"
    repeats: int = 5


@dataclass(frozen=True, slots=True)
class Program:
    """One program and its variants.

    Parameters
    ----------
    name : str
        Short and unique.
    directory : str
        Its folder, which is copied for each build; relative to the configuration.
    run : tuple of str or str
        Its command.
    build : tuple of str or str or None
        How it is built; None where nothing is.
    block : tuple of int
        The original block, one extent per dimension that it has.
    kernel : str or None
        Name of the kernel whose block varies; None for all that are launched with the block.
    sizes : dict
        Axis → extents that are allowed; an axis that is missing takes the device's.
    blocks : tuple of tuple of int
        Blocks that are allowed, instead of `sizes`.
    registers : tuple of (int or None)
        Limits of registers per thread; None is the compiler's default and the baseline.
    inputs : tuple of str
        What stands for ``{input}``, one after the other; empty where there is one input only.
    output : Output
        What is compared.
    timing : Clock
        Where run times come from.
    timeout, build_timeout : float
        Seconds that a run and a build may take.
    """

    name: str
    directory: str
    run: Command
    build: Command | None = None
    block: tuple[int, ...] = (256,)
    kernel: str | None = None
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    blocks: tuple[tuple[int, ...], ...] = ()
    registers: tuple[int | None, ...] = (None,)
    inputs: tuple[str, ...] = ()
    output: Output = Output()
    timing: Clock = Clock()
    timeout: float = 60.0
    build_timeout: float = 600.0

    @property
    def original(self) -> Extents:
        """The original block along x, y and z."""
        return extents(self.block)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The whole file."""

    environment: Environment = Environment()
    devices: tuple[GPU, ...] = ()
    profiler: Profiler = Profiler()
    programs: tuple[Program, ...] = ()


def extents(block: tuple[int, ...]) -> Extents:
    """Return a block of one to three dimensions along x, y and z."""
    x, y, z = (*block, 1, 1)[:3]
    return (x, y, z)


def placeholders(command: Command | None) -> set[str]:
    """Return the words in braces of a command."""
    if command is None:
        return set()
    words = (command,) if isinstance(command, str) else command
    return {match[1] for word in words for match in PLACEHOLDER.finditer(word)}
