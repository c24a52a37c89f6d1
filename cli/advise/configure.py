"""``tunedb advise configure``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..options import Settings, common_options, pass_settings
from ..output import Column, output_options, print_rows

if TYPE_CHECKING:
    from ...advisor.collect.configuration import Command, Configuration, ProgramConfig

STEPS = ("environment", "devices", "programs", "check")

COLUMNS = (
    Column("step", "step"),
    Column("name", "name", flexible=True),
    Column("ok", "ok"),
    Column("message", "result", flexible=True),
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("advise.toml"))
@click.option(
    "--step",
    "steps",
    multiple=True,
    type=click.Choice(STEPS),
    help="Run only this step; may be repeated. Default: all.",
)
@click.option(
    "--interactive/--no-interactive",
    default=None,
    help="Ask for each value. Default: on a terminal, unless --program is given.",
)
@click.option(
    "--path", "folders", multiple=True, metavar="DIR", help="Put DIR before PATH; may be repeated."
)
@click.option(
    "--variable", "variables", multiple=True, metavar="NAME=VALUE", help="Set this variable."
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME[:CAPABILITY]",
    help="Use this device instead of those that nvidia-smi lists.",
)
@click.option(
    "--profiler",
    metavar="TOOL",
    help="Profiler that reads the counters: ncu, nvprof, none or auto.",
)
@click.option(
    "--counter",
    "counters",
    multiple=True,
    metavar="NAME",
    help="Read this counter; may be repeated.",
)
@click.option("--program", metavar="NAME", help="Add or change this program.")
@click.option("--remove", metavar="NAME", help="Remove this program.")
@click.option("--directory", metavar="DIR", help="Folder of the program.")
@click.option("--build", metavar="COMMAND", help="Build command, split into words without a shell.")
@click.option("--run", metavar="COMMAND", help="Run command, split into words without a shell.")
@click.option("--shell", is_flag=True, help="Run --build and --run in a shell.")
@click.option("--kernel", metavar="NAME", help="Kernel whose block varies.")
@click.option("--block", metavar="XxY", help="Original block: 256, 16x16.")
@click.option("--blocks", metavar="LIST", help="Blocks to try: 8x8,16x16,32x8.")
@click.option("--sizes", multiple=True, metavar="AXIS=LIST", help="Extents to try: x=32,64.")
@click.option("--registers", metavar="LIST", help="Register limits: 32,64.")
@click.option(
    "--input", "inputs", multiple=True, metavar="TEXT", help="Value for {input}; may be repeated."
)
@click.option("--output", metavar="WHAT", help="Output to compare: stdout, none or a file.")
@click.option(
    "--output-type",
    metavar="TYPE",
    help="Type of the output: text, bytes, float32, float64 or int32.",
)
@click.option("--tolerance", type=float, help="Largest allowed relative difference of two numbers.")
@click.option("--ignore", metavar="REGEX", help="Output lines to ignore.")
@click.option("--time", "timing", metavar="REGEX", help="Expression that finds the printed time.")
@click.option("--unit", metavar="UNIT", help="Unit of the printed time: s, ms, us or ns.")
@click.option("--repeats", type=int, help="Timed runs of each variant.")
@click.option("--timeout", type=float, metavar="S", help="Time limit of a run, in seconds.")
@output_options
@common_options
@pass_settings
def configure(
    settings: Settings,
    file: Path,
    steps: tuple[str, ...],
    interactive: bool | None,
    **choices: Any,
) -> None:
    """Describe the programs to profile.

    The command writes or changes FILE (TOML; default: advise.toml) in four steps: the environment,
    the devices, the programs, and a check. Build and run commands contain {block_x}, {block_y},
    {block_z}, {threads}, {register_flag} (-maxrregcount=N or nothing) and {input} in place of a
    variant's values; tunedb advise collect runs them as your own code. The exit code is 1 if the
    check finds a problem.

    Example:
      tunedb advise configure
      tunedb advise configure advise.toml --step devices --device "Tesla K40c"
      tunedb advise configure --program mm --block 256 --run "./mm {block_x}" --profiler ncu
      tunedb advise configure --program mm --build "nvcc {register_flag} mm.cu" --registers 32,64
    """
    from ...advisor.collect.configuration import Configuration, read, write

    selected = steps or STEPS
    if interactive is None:
        interactive = sys.stdin.isatty() and choices["program"] is None
    configuration = read(file) if file.exists() else Configuration()
    if "environment" in selected:
        configuration = _environment(configuration, choices, ask=interactive)
    if "devices" in selected:
        configuration = _devices(configuration, choices, ask=interactive)
    if "programs" in selected:
        configuration = _programs(configuration, choices, ask=interactive)
    if set(selected) - {"check"} or not file.exists():
        if write(file, configuration):
            settings.note(f"Wrote {file}")
        else:
            settings.note(f"{file} is unchanged")
    if "devices" in steps and not configuration.devices:
        settings.warn("no device found; name one with --device")
    if "check" in selected:
        _check(settings, read(file), file)


# ---- Environment and devices ---------------------------------------------------------------------


def _environment(
    configuration: Configuration, choices: dict[str, Any], *, ask: bool
) -> Configuration:
    from msgspec.structs import replace

    from ...advisor.collect.cuda_detection import missing_folders
    from ...errors import UsageError
    from ...formats.gpu.profilers import profilers

    environment = configuration.environment
    folders = [*environment.path, *choices["folders"]]
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    for folder in missing_folders(path):
        if not ask or click.confirm(
            f"Put {text.clean(folder)} before PATH?", default=True, err=True
        ):
            folders.append(folder)
    variables = dict(environment.variables)
    for pair in choices["variables"]:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--variable {pair}: write NAME=VALUE")
        variables[name] = value
    profiler = configuration.profiler
    tools = ("auto", *profilers(), "none")
    tool = choices["profiler"] or profiler.tool
    if tool not in tools:
        raise UsageError(f"--profiler {tool}: expected one of {', '.join(tools)}")
    if ask and choices["profiler"] is None:
        tool = click.prompt("Profiler", type=click.Choice(tools), default=tool, err=True)
    return replace(
        configuration,
        environment=replace(environment, path=tuple(dict.fromkeys(folders)), variables=variables),
        profiler=replace(profiler, tool=tool, counters=choices["counters"] or profiler.counters),
    )


def _devices(configuration: Configuration, choices: dict[str, Any], *, ask: bool) -> Configuration:
    from msgspec.structs import replace

    from ...advisor.collect.cuda_detection import detect_devices, parse_device

    if choices["devices"]:
        devices = tuple(parse_device(name, i) for i, name in enumerate(choices["devices"]))
        return replace(configuration, devices=devices)
    path = os.pathsep.join([*configuration.environment.path, os.environ.get("PATH", "")])
    gpus = detect_devices(path)
    if gpus and ask:
        gpus = tuple(
            gpu
            for gpu in gpus
            if click.confirm(f"Use {text.clean(gpu.name)}?", default=True, err=True)
        )
    if not gpus and ask and not configuration.devices:
        name = click.prompt("No device found. Its name, or nothing", default="", err=True)
        gpus = (parse_device(name),) if name.strip() else ()
    return replace(configuration, devices=gpus or configuration.devices)


# ---- Programs ------------------------------------------------------------------------------------


def _programs(configuration: Configuration, choices: dict[str, Any], *, ask: bool) -> Configuration:
    from msgspec.structs import replace

    from ...errors import NotFoundError

    programs = {program.name: program for program in configuration.programs}
    if (removed := choices["remove"]) is not None:
        if removed not in programs:
            raise NotFoundError(f"program {removed!r} is not configured")
        del programs[removed]
    if (option := choices["program"]) is not None:
        programs[option] = _program(option, programs.get(option), choices)
    while ask and option is None:
        question = "Add another program?" if programs else "Add a program?"
        if not click.confirm(question, default=not programs, err=True):
            break
        name = click.prompt("Name", err=True)
        programs[name] = _ask_program(name, programs.get(name), choices)
    return replace(configuration, programs=tuple(programs.values()))


def _ask_program(name: str, known: ProgramConfig | None, choices: dict[str, Any]) -> ProgramConfig:
    """Ask for the main values of a program; the others keep their values or defaults."""
    from ...advisor.collect.configuration import ProgramConfig

    answers = dict(choices)

    def ask(key: str, question: str, default: str) -> None:
        if not answers[key]:
            answers[key] = click.prompt(question, default=default, err=True) or None

    current = known or ProgramConfig(name=name, directory=name, run=(), block=(256,))
    build, run = _command_line(current.build), _command_line(current.run)
    ask("directory", "Folder", current.directory)
    ask("block", "Original block, e.g. 256 or 16x16", "x".join(map(str, current.block)))
    ask("build", "Build command (nothing: none)", build)
    while not answers["run"]:
        answers["run"] = click.prompt("Run command", default=run or None, err=True)
    ask("kernel", "Kernel whose block varies (nothing: all)", current.kernel or "")
    limits = ",".join(str(limit) for limit in current.register_limits if limit is not None)
    ask("registers", "Register limits, e.g. 32,64 (nothing: none)", limits)
    if not answers["inputs"]:
        question = "Values of {input}, by commas (nothing: none, or the current ones)"
        words = click.prompt(question, default="", err=True).split(",")
        answers["inputs"] = tuple(word.strip() for word in words if word.strip())
    ask("output", "Output to compare: stdout, none or a file", current.output.source)
    if answers["tolerance"] is None:
        tolerance = current.output.tolerance
        answers["tolerance"] = click.prompt(
            "Relative tolerance", type=float, default=tolerance, err=True
        )
    pattern = current.timing.pattern or ""
    ask("timing", "Expression that finds the printed time (nothing: whole process)", pattern)
    for key, line in (("build", build), ("run", run)):
        if known is not None and answers[key] == line:
            answers[key] = None  # keep a command for the shell unsplit
    return _program(name, known, answers)


def _command_line(command: Command | None) -> str:
    import shlex

    if command is None:
        return ""
    return command if isinstance(command, str) else shlex.join(command)


def _program(name: str, known: ProgramConfig | None, choices: dict[str, Any]) -> ProgramConfig:
    """Return a program with the values of the options; its other values stay."""
    from msgspec.structs import replace

    from ...advisor.collect.configuration import DEFAULT, ProgramConfig
    from ...errors import UsageError

    for key in ("run", "block"):
        if known is None and not choices[key]:
            raise UsageError(f"--program {name} is new: give its --{key}")
    program = known or ProgramConfig(name=name, run=(), block=())
    values = _options(choices, directory="directory", kernel="kernel", timeout="timeout")
    for key in ("build", "run"):
        if choices[key] is not None:
            values[key] = _command(key, choices[key], shell=choices["shell"])
    if choices["block"] is not None:
        values["block"] = _block(choices["block"], "--block")
    if choices["blocks"] is not None:
        words = choices["blocks"].split(",")
        values |= {"blocks": tuple(_block(w, "--blocks") for w in words), "sizes": {}}
    if choices["sizes"]:
        values |= {"sizes": dict(map(_sizes, choices["sizes"])), "blocks": ()}
    if choices["registers"] is not None:
        limits = _numbers(choices["registers"], "--registers")
        values["registers"] = (DEFAULT, *sorted(set(limits)))
    if choices["inputs"]:
        values["inputs"] = choices["inputs"]
    output = _options(
        choices, output="source", output_type="type", tolerance="tolerance", ignore="ignore"
    )
    timing = _options(choices, timing="pattern", unit="unit", repeats="repeats")
    if "pattern" in timing:
        timing["source"] = "output"
    return replace(
        program,
        **values,
        output=replace(program.output, **output),
        timing=replace(program.timing, **timing),
    )


def _options(choices: dict[str, Any], **fields: str) -> dict[str, Any]:
    """Return field → value of the options on the command line."""
    return {field: choices[key] for key, field in fields.items() if choices[key] is not None}


def _command(key: str, line: str, *, shell: bool) -> Command:
    import shlex

    from ...errors import UsageError

    if shell:
        return line
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"--{key} {line}: {error}") from None


def _numbers(text: str, option: str, separator: str = ",") -> tuple[int, ...]:
    from ...errors import UsageError

    try:
        return tuple(map(int, text.split(separator)))
    except ValueError:
        raise UsageError(
            f"{option} {text}: expected numbers with {separator!r} between them"
        ) from None


def _block(text: str, option: str) -> tuple[int, ...]:
    return _numbers(text.lower(), option, "x")


def _sizes(text: str) -> tuple[str, tuple[int, ...]]:
    axis, _, numbers = text.partition("=")
    return axis.strip(), tuple(sorted(set(_numbers(numbers, f"--sizes {axis}"))))


# ---- Check ---------------------------------------------------------------------------------------


def _check(settings: Settings, configuration: Configuration, file: Path) -> None:
    """Print the result of each check; exit with 1 if one fails."""
    from ...advisor.collect.configuration_check import check

    rows = [
        {"step": result.step, "name": result.name, "ok": result.is_ok, "message": result.message}
        for result in check(configuration, file.absolute().parent)
    ]
    print_rows(settings, COLUMNS, rows)
    if not all(row["ok"] for row in rows):
        raise click.exceptions.Exit(1)
    settings.note(f"Next: tunedb advise collect {file} --dry-run")
