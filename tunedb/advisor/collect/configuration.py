"""The file ``advise.toml``: the programs to profile, and how to build, run and vary them.

It takes the place of the paper's ``proglist`` and ``varlist`` (Connors and Qasem, HPCC 2017). Its
commands are the user's own code and are run as they stand.
"""

from __future__ import annotations

import atexit
import gc
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ... import limits
from ...errors import FormatError, NotFoundError, StorageError
from ...formats.gpu.profilers import profilers
from ...launches import Extents
from ...system.files import read_regular, write_whole

# The garbage collection at the end of the interpreter frees twice what msgspec 0.22 keeps of
# nested Structs, in about one run of five (github.com/msgspec/msgspec/issues/717). It skips frozen
# objects.
atexit.register(gc.freeze)

#: Letters of the axes, in the order of a block's extents.
AXES = "xyz"

#: Words in braces that a command may hold.
PLACEHOLDERS = (
    *("block_x", "block_y", "block_z", "threads"),
    *("maxrregcount", "register_flag", "input"),
)

#: ``${name}`` belongs to the shell; ``{{name}}`` and ``{ name }`` are no placeholders either.
PLACEHOLDER = re.compile(r"(?<![${])\{([a-z][a-z_]*)\}(?!\})")

TIMINGS = ("wall", "output", "trace")
OUTPUT_TYPES = ("text", "bytes", "float32", "float64", "int32")

#: Seconds of one unit of the printed time.
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

#: Register limit that selects the compiler's default.
DEFAULT = "default"

# ---- Values --------------------------------------------------------------------------------------

#: Patterns of texts in words, for messages.
_WORDS = {
    r"^[^\x00]*\Z": "a text without NUL",
    r"^[^=\x00]+\Z": "the name of a variable",
    r"^[A-Za-z0-9][A-Za-z0-9._+-]*\Z": "a word of letters, digits and ._+-",
    r"^\d{1,2}\.\d\Z": 'a text such as "7.5"',
}
_TEXT, _VARIABLE, _NAME, _CAPABILITY = _WORDS


def _one_of(words: Sequence[str]) -> Meta:
    pattern = rf"^(?:{'|'.join(words)})\Z"
    _WORDS[pattern] = f"one of {', '.join(words)}"
    return Meta(pattern=pattern)


Text = Annotated[str, Meta(min_length=1, pattern=_TEXT)]
Name = Annotated[str, Meta(max_length=limits.MAX_NAME_CHARS, pattern=_NAME)]
Extent = Annotated[int, Meta(ge=1, le=limits.MAX_BLOCK_EXTENT)]
Block = Annotated[tuple[Extent, ...], Meta(min_length=1, max_length=3)]
Seconds = Annotated[float, Meta(ge=0.001, le=30 * 86400)]
RegisterLimit = Annotated[int, Meta(ge=1, le=255)] | Annotated[str, _one_of([DEFAULT])]

#: Words, each an argument; or a line for the shell.
Command = Annotated[tuple[Text, ...], Meta(min_length=1)] | Text


class EnvironmentConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Environment in which a program is built, run and profiled.

    Parameters
    ----------
    path : tuple of str
        Folders put before ``PATH``.
    variables : dict
        Variable → value.
    """

    path: tuple[Text, ...] = ()
    variables: dict[
        Annotated[str, Meta(pattern=_VARIABLE)], Annotated[str, Meta(pattern=_TEXT)]
    ] = {}


class GPU(Struct, frozen=True, forbid_unknown_fields=True):
    """A device that programs run on.

    Parameters
    ----------
    name : str
        As its vendor writes it.
    index : int
        Its number, as ``CUDA_VISIBLE_DEVICES`` takes it.
    compute_capability : str or None
        Such as ``"7.5"``; None if unknown.
    """

    name: Text
    index: Annotated[int, Meta(ge=0, le=1023)] = 0
    compute_capability: Annotated[str, Meta(pattern=_CAPABILITY)] | None = None


class ProfilerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Profiler and its counters.

    Parameters
    ----------
    tool : str
        Name of a profiler, ``none``, or ``auto`` for the device's.
    counters : tuple of str
        Events and metrics in the tool's words; empty for those of Table I of the paper.
    per_run : int or None
        Counters of one run; None and 0 for as many as :meth:`.Profiler.fits` allows.
    options : tuple of str
        Further arguments of the tool.
    """

    tool: Text = "auto"
    counters: tuple[Text, ...] = ()
    per_run: Annotated[int, Meta(ge=0, le=1000)] | None = None
    options: tuple[Text, ...] = ()


class OutputConfig(Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """Output by which a variant is compared with the original.

    Parameters
    ----------
    source : str
        ``stdout``, ``none``, or a file in the program's folder.
    type : str
        ``text`` (numbers in it are compared as numbers), ``bytes``, or the type of the numbers in a
        binary file.
    tolerance : float
        Largest relative difference of two numbers; 0 for none.
    ignore : str or None
        Lines of a text that match this expression are not compared.
    """

    source: Text = "stdout"
    type: Annotated[str, _one_of(OUTPUT_TYPES)] = "text"
    tolerance: Annotated[float, Meta(ge=0, le=1)] = 0.0
    ignore: Text | None = None


class TimingConfig(Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """Source of the run times.

    Parameters
    ----------
    source : str
        ``wall``: the whole process; ``output``: the printed time; ``trace``: the kernels in the
        profiler's trace.
    pattern : str or None
        Of ``output``: an expression whose first group is the number; all matches are added up.
    unit : str
        Of that number: ``s``, ``ms``, ``us``, ``ns``.
    repeats : int
        Timed runs of one variant.
    """

    source: Annotated[str, _one_of(TIMINGS)] = "wall"
    pattern: Text | None = None
    unit: Annotated[str, _one_of(tuple(UNITS))] = "ms"
    repeats: Annotated[int, Meta(ge=1, le=limits.MAX_RUN_SECS)] = 5


class ProgramConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One program and its variants.

    Parameters
    ----------
    name : str
        Short and unique.
    directory : str
        Its folder, which is copied for each build; relative to the configuration.
    kernel : str or None
        Name of the kernel whose block varies; None for all that are launched with the block.
    build : tuple of str or str or None
        Its build command; None without one.
    run : tuple of str or str
        Its command.
    block : tuple of int
        The original block, one extent per dimension that it has.
    blocks : tuple of tuple of int
        Allowed blocks, instead of `sizes`.
    registers : tuple of (int or "default")
        Limits of registers per thread, the compiler's default first: it is the baseline.
    inputs : tuple of str
        Values of ``{input}``; empty with one input only.
    timeout, build_timeout : float
        Longest run and build in seconds.
    sizes : dict
        Axis → allowed extents; an axis without any takes the device's.
    output : OutputConfig
        Compared with the original's.
    timing : TimingConfig
        Source of the run times.
    """

    name: Name
    directory: Text = "."
    kernel: Text | None = None
    build: Command | None = None
    run: Command
    block: Block
    blocks: tuple[Block, ...] = ()
    registers: Annotated[tuple[RegisterLimit, ...], Meta(min_length=1)] = (DEFAULT,)
    inputs: tuple[Text, ...] = ()
    timeout: Seconds = 60.0
    build_timeout: Seconds = 600.0
    sizes: dict[
        Annotated[str, _one_of(AXES)], Annotated[tuple[Extent, ...], Meta(min_length=1)]
    ] = {}
    output: OutputConfig = OutputConfig()
    timing: TimingConfig = TimingConfig()

    @property
    def original(self) -> Extents:
        """The original block along x, y and z."""
        return extents(self.block)

    @property
    def register_limits(self) -> tuple[int | None, ...]:
        """The limits of registers, None for the compiler's default."""
        return tuple(limit if isinstance(limit, int) else None for limit in self.registers)


class Configuration(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    environment: EnvironmentConfig = EnvironmentConfig()
    profiler: ProfilerConfig = ProfilerConfig()
    devices: tuple[GPU, ...] = ()
    programs: tuple[ProgramConfig, ...] = ()


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


# ---- Reading; each message names the file and the key --------------------------------------------


def read(path: Path) -> Configuration:
    """Return the configuration in a file.

    Raises
    ------
    NotFoundError
        There is no such file.
    FormatError
        It is no TOML, or has a bad value; one line with file and key.
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
    """Return the configuration of a text; messages call it `name`."""
    if len(data) > limits.MAX_CONFIGURATION_BYTES:
        raise FormatError(f"{name}: longer than {limits.MAX_CONFIGURATION_BYTES} bytes")
    try:
        content = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{name}: not TOML: {error}") from None
    try:
        configuration = msgspec.convert(content, Configuration)
    except msgspec.ValidationError as error:
        raise FormatError(f"{name}: {_message(error, content)}") from None
    tools = ("auto", *profilers(), "none")
    if configuration.profiler.tool not in tools:
        raise FormatError(f"{name}: profiler.tool: expected one of {', '.join(tools)}")
    names: set[str] = set()
    for program in configuration.programs:
        if complaint := next(_complaints(program), None):
            raise FormatError(f"{name}: programs.{program.name}.{': '.join(complaint)}")
        # Folders of two programs must differ on file systems that ignore case, too.
        if program.name.lower() in names:
            raise FormatError(f"{name}: programs: two have the name {program.name!r}")
        names.add(program.name.lower())
    programs = tuple(map(_normalised, configuration.programs))
    return msgspec.structs.replace(configuration, programs=programs)


_ERROR = re.compile(r"(?s)(.*?)(?: - at (?:`key` in )?`\$\.?(.*)`)?")
_FIELD = re.compile(r"(?s)Object (?:contains (unknown)|missing required) field `(.*)`")
_ROW = re.compile(r"(devices|programs)\[(\d+)\]")


def _message(error: msgspec.ValidationError, content: Mapping[str, Any]) -> str:
    """Return an error with the key as the file has it: ``programs.mm.block``."""
    match = _ERROR.fullmatch(str(error))
    what, path = (match[1], match[2] or "") if match else (str(error), "")
    if field := _FIELD.fullmatch(what):
        path = f"{path}.{field[2]}".strip(".")
        what = "no such key" if field[1] else "missing"
    elif path in ("devices", "programs"):
        what = f"write it as [[{path}]]"
    for pattern, words in _WORDS.items():
        what = what.replace(f"`str` matching regex {pattern!r}", words)
    what = what.replace("`object`", "a table").replace("Expected", "expected")

    def name(row: re.Match[str]) -> str:
        table = content[row[1]][int(row[2])]
        given = table.get("name") if isinstance(table, dict) else None
        return f"{row[1]}.{given if isinstance(given, str) else int(row[2]) + 1}"

    return f"{_ROW.sub(name, path).replace('[...]', '')}: {what}"


def _complaints(program: ProgramConfig) -> Iterator[tuple[str, str]]:
    """Yield keys of a program with a bad value, and the reason."""
    axes = AXES[: len(program.block)]
    for axis in program.sizes:
        if axis not in axes:
            yield f"sizes.{axis}", "no such key"
    if any(len(block) != len(axes) for block in program.blocks):
        yield "blocks", f"expected blocks like the original, which has {len(axes)} of x, y, z"
    for key, command in (("build", program.build), ("run", program.run)):
        for unknown in sorted(placeholders(command) - set(PLACEHOLDERS)):
            known = ", ".join("{" + word + "}" for word in PLACEHOLDERS)
            yield key, f"{{{unknown}}} is none of {known}"
        if isinstance(command, str) and "maxrregcount" in placeholders(command):
            yield key, "in a line for the shell write {register_flag}"
    source = Path(program.output.source)
    if source.is_absolute() or ".." in source.parts or source == Path():
        yield "output.from", "expected a file inside the program's folder"
    if program.timing.source == "output" and program.timing.pattern is None:
        yield "timing.pattern", "missing; expected an expression that finds the printed time"
    for key, pattern, groups in (
        ("output.ignore", program.output.ignore, 0),
        ("timing.pattern", program.timing.pattern, 1),
    ):
        try:
            if pattern is not None and re.compile(pattern).groups < groups:
                yield key, "expected a regular expression with the number in parentheses"
        except re.error as error:
            yield key, f"expected a regular expression ({error})"
    yield from _unused(program, axes)


def _unused(program: ProgramConfig, axes: str) -> Iterator[tuple[str, str]]:
    """Yield keys whose variants do not reach the program, and the reason."""
    used = placeholders(program.build) | placeholders(program.run)
    for axis in axes:
        fixed = len(program.sizes.get(axis, ())) == 1 and not program.blocks
        alone = len(axes) == 1 and "threads" in used
        if f"block_{axis}" not in used and not fixed and not alone:
            yield "run", f"neither build nor run holds {{block_{axis}}}"
    if {*program.registers} != {DEFAULT} and not used & {"maxrregcount", "register_flag"}:
        yield "registers", "neither build nor run holds {register_flag}"
    if program.inputs and "input" not in used:
        yield "inputs", "neither build nor run holds {input}"
    if not program.inputs and "input" in used:
        yield "inputs", "missing; {input} has no values"
    if program.sizes and program.blocks:
        yield "blocks", "give blocks or sizes, not both"


def _normalised(program: ProgramConfig) -> ProgramConfig:
    """Return a program whose lists name each value once."""
    numbers = {limit for limit in program.registers if isinstance(limit, int)}
    return msgspec.structs.replace(
        program,
        blocks=tuple(dict.fromkeys(program.blocks)),
        inputs=tuple(dict.fromkeys(program.inputs)),
        # The compiler's default is the paper's baseline, so it is always among them.
        registers=(DEFAULT, *sorted(numbers)),
        sizes={axis: tuple(sorted(set(sizes))) for axis, sizes in program.sizes.items()},
    )


# ---- Writing; the standard library does not write TOML -------------------------------------------

_HEAD = """\
# Programs whose thread blocks are varied: tunedb advise collect runs this (docs/advisor.md).
# Commands are run as they stand; "tunedb advise configure" changes this file, and keeps the
# former one beside it (.bak).
"""


def render(configuration: Configuration) -> str:
    """Return the TOML text of a configuration; :func:`parse` is its inverse."""
    return "\n".join(_tables(_HEAD, "", msgspec.to_builtins(configuration)))


def _tables(head: str, path: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table as text, then the tables in it; empty values are left out."""
    tables: list[tuple[str, str, Mapping[str, Any]]] = []
    lines = []
    for key, value in values.items():
        name = f"{path}{key}"
        if value in (None, (), {}):
            continue
        if isinstance(value, dict):
            tables.append((f"[{name}]", name, value))
        elif isinstance(value, tuple) and isinstance(value[0], dict):
            tables += [(f"[[{name}]]", name, row) for row in value]
        else:
            lines.append(f"{_key(key)} = {_value(value)}")
    yield "\n".join([head, *lines, ""]) if lines or path else head
    for title, name, table in tables:
        yield from _tables(title, f"{name}.", table)


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
        The configuration has a bad value; nothing is written.
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
