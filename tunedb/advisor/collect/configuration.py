"""What is to be profiled, and how: the file ``advise.toml``.

It takes the place of the document's ``proglist`` and ``varlist`` (Connors and Qasem, HPCC 2017):
environment, devices, profiler, and per program how it is built, run and varied. Its commands are
the user's own code and are run as they stand.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from ... import limits
from ...errors import FormatError, NotFoundError, StorageError
from ...launches import Extents
from ...system.files import read_regular, write_whole

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


# ---- A configuration from its TOML; each complaint names the file and the key --------------------

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_CAPABILITY = re.compile(r"\d{1,2}\.\d")
_REQUIRED = object()


def read(path: Path) -> Configuration:
    """Return the configuration in a file.

    Raises
    ------
    NotFoundError
        There is no such file.
    FormatError
        It is no TOML, or says what cannot be meant; one line with file and key.
    StorageError
        It cannot be read.
    """
    try:
        data = read_regular(path, limits.MAX_CONFIGURATION_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(
            f"{path}: no such file; write it with: tunedb advise configure {path}"
        ) from None
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    return parse(data, str(path))


def parse(data: bytes, name: str) -> Configuration:
    """Return the configuration of a text; `name` is what complaints call it."""
    if len(data) > limits.MAX_CONFIGURATION_BYTES:
        raise FormatError(f"{name}: longer than {limits.MAX_CONFIGURATION_BYTES} bytes")
    try:
        content = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{name}: not TOML: {error}") from None
    top = _Table(name, "", content)
    found = Configuration(
        _environment(top.table("environment")),
        tuple(_device(table) for table in top.tables("devices")),
        _profiler(top.table("profiler")),
        tuple(_program(table) for table in top.tables("programs")),
    )
    top.close()
    seen: set[str] = set()
    for program in found.programs:
        # Folders of two programs must differ on file systems that ignore case, too.
        if program.name.lower() in seen:
            raise FormatError(f"{name}: programs: two have the name {program.name!r}")
        seen.add(program.name.lower())
    return found


class _Table:
    """A table whose keys are taken one by one; what is left over is a complaint."""

    def __init__(self, file: str, path: str, content: Any) -> None:
        self._file = file
        self._path = path
        if not isinstance(content, dict):
            raise self.wrong("", "expected a table")
        self._left = dict(content)

    def wrong(self, key: str, what: str) -> FormatError:
        """Return the complaint about a key."""
        where = ".".join(part for part in (self._path, key) if part)
        return FormatError(f"{self._file}: {where}: {what}")

    def take(self, key: str, check: Callable[[Any], T], due: str, default: Any = _REQUIRED) -> T:
        """Return a checked value; `check` raises ValueError for what is not `due`."""
        if key not in self._left:
            if default is _REQUIRED:
                raise self.wrong(key, f"missing; expected {due}")
            result: T = default
            return result
        value = self._left.pop(key)
        try:
            return check(value)
        except (ValueError, TypeError, re.error) as error:
            told = f" ({error})" if str(error) else ""
            raise self.wrong(key, f"expected {due}, not {_short(value)}{told}") from None

    def table(self, key: str) -> _Table:
        """Return a table inside it, empty where there is none."""
        return _Table(self._file, f"{self._path}.{key}".strip("."), self._left.pop(key, {}))

    def tables(self, key: str) -> list[_Table]:
        """Return an array of tables."""
        found = self._left.pop(key, [])
        if not isinstance(found, list):
            raise self.wrong(key, f"write it as [[{key}]]")
        names = [row.get("name") if isinstance(row, dict) else None for row in found]
        labels = [name if isinstance(name, str) else str(i) for i, name in enumerate(names, 1)]
        return [
            _Table(self._file, f"{key}.{label}", row)
            for label, row in zip(labels, found, strict=True)
        ]

    def close(self) -> None:
        """Raise FormatError for a key that nobody took: it may be a misspelt one."""
        for key in self._left:
            raise self.wrong(key, "no such key")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------ values


def _text(value: Any) -> str:
    if type(value) is not str or not value or "\0" in value:
        raise ValueError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, _list(value)))


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ValueError
    return value


def _choice(words: Sequence[T]) -> Callable[[Any], T]:
    def check(value: Any) -> T:
        if value not in words:
            raise ValueError
        return words[words.index(value)]

    return check


def _between(least: float, most: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError
        if not least <= value <= most:
            raise ValueError
        return float(value)

    return check


def _count(least: int, most: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError
        return value

    return check


def _block(value: Any) -> tuple[int, ...]:
    block = tuple(map(_count(1, limits.MAX_BLOCK_EXTENT), _list(value)))
    if not 1 <= len(block) <= 3:
        raise ValueError
    return block


def _pattern(value: Any) -> str:
    re.compile(_text(value))
    return str(value)


def _pattern_with_group(value: Any) -> str:
    if re.compile(_text(value)).groups < 1:
        raise ValueError("put the number in parentheses")
    return str(value)


def _registers(value: Any) -> tuple[int | None, ...]:
    limit = _count(1, 255)
    found = tuple(None if v == "default" else limit(v) for v in _list(value))
    if not found:
        raise ValueError
    # The compiler's default is the document's baseline, so it is always among them.
    return (None, *sorted({v for v in found if v is not None}))


def _command(value: Any) -> Command:
    command: Command = _text(value) if isinstance(value, str) else _texts(value)
    if not command:
        raise ValueError
    unknown = sorted(placeholders(command) - set(PLACEHOLDERS))
    if unknown:
        known = ", ".join("{" + name + "}" for name in PLACEHOLDERS)
        raise ValueError(f"{{{unknown[0]}}} is none of {known}")
    if isinstance(command, str) and "maxrregcount" in placeholders(command):
        raise ValueError("in a line for the shell write {register_flag}")
    return command


# ------------------------------------------------------------------------ tables


def _environment(table: _Table) -> Environment:
    path = table.take("path", _texts, "a list of folders", ())
    variables = table.take("variables", _variables, "a table of texts", {})
    table.close()
    return Environment(path, variables)


def _variables(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError
    for key, text in value.items():
        if not key or "=" in key or "\0" in key or type(text) is not str or "\0" in text:
            raise ValueError
    return dict(value)


def _capability(value: Any) -> str:
    if not _CAPABILITY.fullmatch(_text(value)):
        raise ValueError
    return str(value)


def _device(table: _Table) -> GPU:
    device = GPU(
        table.take("name", _text, "a name"),
        table.take("index", _count(0, 1023), "a number from 0", 0),
        table.take("compute_capability", _capability, 'a text such as "7.5"', None),
    )
    table.close()
    return device


def _profiler(table: _Table) -> Profiler:
    profiler = Profiler(
        table.take("tool", _choice(TOOLS), "one of " + ", ".join(TOOLS), "auto"),
        tuple(dict.fromkeys(table.take("counters", _texts, "a list of names", ()))),
        table.take("per_run", _count(0, 1000), "a number from 0", 0),
        table.take("options", _texts, "a list of arguments", ()),
    )
    table.close()
    return profiler


def _folder_name(value: Any) -> str:
    if not _NAME.fullmatch(_text(value)) or len(value) > limits.MAX_NAME_CHARS:
        raise ValueError
    return str(value)


def _inside(value: Any) -> str:
    path = Path(_text(value))
    if path.is_absolute() or ".." in path.parts or path == Path():
        raise ValueError
    return str(value)


def _program(table: _Table) -> Program:
    seconds = _between(0.001, 30 * 86400)
    block = table.take("block", _block, "a list of one to three extents")
    program = Program(
        name=table.take("name", _folder_name, "a word of letters, digits and ._+-"),
        directory=table.take("directory", _text, "a folder", "."),
        run=table.take("run", _command, "a list of words, or a line for the shell,"),
        build=table.take("build", _command, "a list of words, or a line for the shell,", None),
        block=block,
        kernel=table.take("kernel", _text, "a name", None),
        sizes=_sizes(table.table("sizes"), len(block)),
        blocks=table.take("blocks", _blocks(len(block)), "a list of blocks like the original", ()),
        registers=table.take("registers", _registers, 'a list of limits, or "default",', (None,)),
        inputs=tuple(dict.fromkeys(table.take("inputs", _texts, "a list of texts", ()))),
        output=_output(table.table("output")),
        timing=_timing(table.table("timing")),
        timeout=table.take("timeout", seconds, "a number of seconds", 60.0),
        build_timeout=table.take("build_timeout", seconds, "a number of seconds", 600.0),
    )
    table.close()
    _check_use(table, program)
    return program


def _blocks(dimensions: int) -> Callable[[Any], tuple[tuple[int, ...], ...]]:
    def check(value: Any) -> tuple[tuple[int, ...], ...]:
        blocks = tuple(dict.fromkeys(map(_block, _list(value))))
        if any(len(block) != dimensions for block in blocks):
            raise ValueError(f"the original has {dimensions} of x, y, z")
        return blocks

    return check


def _sizes(table: _Table, dimensions: int) -> dict[str, tuple[int, ...]]:
    size = _count(1, limits.MAX_BLOCK_EXTENT)

    def check(value: Any) -> tuple[int, ...]:
        if not value:
            raise ValueError
        return tuple(sorted(set(map(size, _list(value)))))

    taken = {axis: table.take(axis, check, "a list of extents", ()) for axis in AXES[:dimensions]}
    table.close()
    return {axis: sizes for axis, sizes in taken.items() if sizes}


def _output(table: _Table) -> Output:
    source = table.take("from", _text, "stdout, none or a file", "stdout")
    output = Output(
        source if source in ("stdout", "none") else _checked_file(table, source),
        table.take("type", _choice(OUTPUT_TYPES), ", ".join(OUTPUT_TYPES), "text"),
        table.take("tolerance", _between(0, 1), "a number from 0 to 1", 0.0),
        table.take("ignore", _pattern, "a regular expression", None),
    )
    table.close()
    return output


def _checked_file(table: _Table, source: str) -> str:
    try:
        return _inside(source)
    except ValueError:
        raise table.wrong("from", "expected a file inside the program's folder") from None


def _timing(table: _Table) -> Clock:
    clock = Clock(
        table.take("from", _choice(TIMINGS), "one of " + ", ".join(TIMINGS), "wall"),
        table.take("pattern", _pattern_with_group, "a regular expression with a group", None),
        table.take("unit", _choice(tuple(UNITS)), "one of " + ", ".join(UNITS), "ms"),
        table.take("repeats", _count(1, limits.MAX_RUN_SECS), "a number from 1", 5),
    )
    table.close()
    if clock.source == "output" and clock.pattern is None:
        raise table.wrong("pattern", "missing; expected an expression that finds the printed time")
    return clock


def _check_use(table: _Table, program: Program) -> None:
    """Raise FormatError where what varies cannot reach the program."""
    used = placeholders(program.build) | placeholders(program.run)
    for axis in AXES[: len(program.block)]:
        fixed = len(program.sizes.get(axis, ())) == 1 and not program.blocks
        if f"block_{axis}" not in used and not fixed:
            if len(program.block) == 1 and "threads" in used:
                continue
            raise table.wrong("run", f"neither build nor run holds {{block_{axis}}}")
    if len(program.registers) > 1 and not used & {"maxrregcount", "register_flag"}:
        raise table.wrong("registers", "neither build nor run holds {register_flag}")
    if program.inputs and "input" not in used:
        raise table.wrong("inputs", "neither build nor run holds {input}")
    if not program.inputs and "input" in used:
        raise table.wrong("inputs", "missing; {input} has no values")
    if program.sizes and program.blocks:
        raise table.wrong("blocks", "give blocks or sizes, not both")


# ---- A configuration as TOML. The standard library reads TOML and does not write it --------------

_HEAD = """\
# Programs whose thread blocks are varied: tunedb advise collect runs this (docs/advisor.md).
# Commands are run as they stand; "tunedb advise configure" changes this file, and keeps the
# former one beside it (.bak).
"""


def render(configuration: Configuration) -> str:
    """Return the TOML text of a configuration; :func:`.reading.parse` is its inverse."""
    sections = [_HEAD]
    environment = configuration.environment
    sections.append(_section("[environment]", {"path": environment.path}))
    if environment.variables:
        sections.append(_section("[environment.variables]", environment.variables))
    profiler = configuration.profiler
    told: dict[str, Any] = {
        "tool": profiler.tool,
        "counters": profiler.counters or None,
        "per_run": profiler.per_run or None,
        "options": profiler.options or None,
    }
    sections.append(_section("[profiler]", told))
    for device in configuration.devices:
        told = {
            "index": device.index,
            "name": device.name,
            "compute_capability": device.compute_capability,
        }
        sections.append(_section("[[devices]]", told))
    for program in configuration.programs:
        sections += _program_table(program)
    return "\n".join(sections)


def _program_table(program: Program) -> list[str]:
    told = {
        "name": program.name,
        "directory": program.directory,
        "kernel": program.kernel,
        "build": program.build,
        "run": program.run,
        "block": program.block,
        "blocks": program.blocks or None,
        "registers": ["default" if limit is None else limit for limit in program.registers],
        "inputs": program.inputs or None,
        "timeout": program.timeout,
        "build_timeout": program.build_timeout,
    }
    sections = [_section("[[programs]]", told)]
    if program.sizes:
        sections.append(_section("[programs.sizes]", program.sizes))
    output = {
        "from": program.output.source,
        "type": program.output.type,
        "tolerance": program.output.tolerance,
        "ignore": program.output.ignore,
    }
    timing = {
        "from": program.timing.source,
        "pattern": program.timing.pattern,
        "unit": program.timing.unit,
        "repeats": program.timing.repeats,
    }
    return [
        *sections,
        _section("[programs.output]", output),
        _section("[programs.timing]", timing),
    ]


def _section(head: str, values: Mapping[str, Any]) -> str:
    lines = [f"{_key(key)} = {_value(v)}" for key, v in values.items() if v is not None]
    return "\n".join([head, *lines, ""])


def _key(key: str) -> str:
    plain = key.replace("_", "").replace("-", "")
    return key if plain.isascii() and plain.isalnum() else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        # A basic string of TOML is one of JSON, but for DEL, which JSON does not escape.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)


def write(path: Path, configuration: Configuration) -> bool:
    """Write a configuration, keep the former file as ``.bak``; return whether anything changed.

    Raises
    ------
    FormatError
        The configuration holds what reading would refuse; nothing is written.
    StorageError
        It cannot be written.
    """
    try:
        data = render(configuration).encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"{path}: {error.object!r:.80} is not text of Unicode") from None
    parse(data, str(path))
    try:
        before = None
        if path.exists():
            before = read_regular(path, limits.MAX_CONFIGURATION_BYTES + 1)
        if before == data:
            return False
        if before is not None:
            write_whole(path.with_name(path.name + ".bak"), before)
        write_whole(path, data)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    return True
