"""``tunedb advise configure``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import text
from ..options import Settings, common_options, pass_settings
from ..output import Column, output_options, print_rows

if TYPE_CHECKING:
    from ...advisor.collect.configuration import Command, Configuration, Program

STEPS = ("environment", "devices", "programs", "check")

COLUMNS = (
    Column("step", "step"),
    Column("name", "name", flexible=True),
    Column("ok", "ok"),
    Column("told", "what", flexible=True),
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
@click.option("--path", "folders", multiple=True, metavar="DIR", help="Put DIR before PATH.")
@click.option("--variable", "variables", multiple=True, metavar="NAME=VALUE", help="Set it.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME[:CAPABILITY]",
    help="Use this device instead of those that nvidia-smi lists.",
)
@click.option(
    "--profiler",
    type=click.Choice(["auto", "ncu", "nvprof", "none"]),
    help="Profiler that reads the counters.",
)
@click.option("--counter", "counters", multiple=True, metavar="NAME", help="Read this counter.")
@click.option("--program", metavar="NAME", help="Add or change this program.")
@click.option("--remove", metavar="NAME", help="Remove this program.")
@click.option("--directory", metavar="DIR", help="Its folder.")
@click.option("--build", metavar="COMMAND", help="Build command, as words.")
@click.option("--run", metavar="COMMAND", help="Run command, as words.")
@click.option("--shell", is_flag=True, help="Give --build and --run to a shell.")
@click.option("--kernel", metavar="NAME", help="Kernel whose block varies.")
@click.option("--block", metavar="XxY", help="Original block: 256, 16x16.")
@click.option("--blocks", metavar="LIST", help="Blocks to try: 8x8,16x16,32x8.")
@click.option("--sizes", multiple=True, metavar="AXIS=LIST", help="Extents to try: x=32,64.")
@click.option("--registers", metavar="LIST", help="Register limits: 32,64.")
@click.option(
    "--input", "inputs", multiple=True, metavar="TEXT", help="Value for {input}; may be repeated."
)
@click.option("--output", metavar="WHAT", help="Output to compare: stdout, none or a file.")
@click.option("--output-type", metavar="TYPE", help="text, bytes, float32, float64 or int32.")
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

    chosen = steps or STEPS
    if interactive is None:
        interactive = sys.stdin.isatty() and choices["program"] is None
    configuration = read(file) if file.exists() else Configuration()
    if "environment" in chosen:
        configuration = _environment(configuration, choices, ask=interactive)
    if "devices" in chosen:
        configuration = _devices(configuration, choices, ask=interactive)
    if "programs" in chosen:
        configuration = _programs(configuration, choices, ask=interactive)
    if set(chosen) - {"check"} or not file.exists():
        if write(file, configuration):
            settings.note(f"Wrote {file}")
        else:
            settings.note(f"{file} stays as it is")
    if "devices" in steps and not configuration.devices:
        settings.warn("found no device; name one with --device")
    if "check" in chosen:
        _check(settings, read(file), file)


# ------------------------------------------------------------------ environment, devices


def _environment(
    configuration: Configuration, choices: dict[str, Any], *, ask: bool
) -> Configuration:
    from ...advisor.collect.cuda_detection import missing_folders
    from ...errors import UsageError

    environment = configuration.environment
    found = [*environment.path, *choices["folders"]]
    path = os.pathsep.join([*found, os.environ.get("PATH", "")])
    for folder in missing_folders(path):
        if not ask or click.confirm(
            f"Put {text.clean(folder)} before PATH?", default=True, err=True
        ):
            found.append(folder)
    variables = dict(environment.variables)
    for pair in choices["variables"]:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--variable {pair}: write NAME=VALUE")
        variables[name] = value
    profiler = configuration.profiler
    tool = choices["profiler"] or profiler.tool
    if ask and choices["profiler"] is None:
        from ...advisor.collect.configuration import TOOLS

        tool = click.prompt("Profiler", type=click.Choice(TOOLS), default=tool, err=True)
    return replace(
        configuration,
        environment=replace(environment, path=tuple(dict.fromkeys(found)), variables=variables),
        profiler=replace(profiler, tool=tool, counters=choices["counters"] or profiler.counters),
    )


def _devices(configuration: Configuration, choices: dict[str, Any], *, ask: bool) -> Configuration:
    from ...advisor.collect.cuda_detection import detect_devices, device_of

    if choices["devices"]:
        named = tuple(device_of(name, i) for i, name in enumerate(choices["devices"]))
        return replace(configuration, devices=named)
    path = os.pathsep.join([*configuration.environment.path, os.environ.get("PATH", "")])
    found = detect_devices(path)
    if found and ask:
        found = tuple(
            gpu
            for gpu in found
            if click.confirm(f"Use {text.clean(gpu.name)}?", default=True, err=True)
        )
    if not found and ask and not configuration.devices:
        name = click.prompt("Found no device. Enter its name, or nothing", default="", err=True)
        found = (device_of(name),) if name.strip() else ()
    return replace(configuration, devices=found or configuration.devices)


# ------------------------------------------------------------------ programs


def _programs(configuration: Configuration, choices: dict[str, Any], *, ask: bool) -> Configuration:
    from ...errors import NotFoundError

    programs = {program.name: program for program in configuration.programs}
    if (gone := choices["remove"]) is not None:
        if gone not in programs:
            raise NotFoundError(f"program {gone!r} is not configured")
        del programs[gone]
    if (name := choices["program"]) is not None:
        programs[name] = _program(name, programs.get(name), choices)
    while ask and name is None:
        question = "Add another program?" if programs else "Add a program?"
        if not click.confirm(question, default=not programs, err=True):
            break
        asked = click.prompt("Name", err=True)
        programs[asked] = _ask_program(asked, programs.get(asked), choices)
    return replace(configuration, programs=tuple(programs.values()))


def _ask_program(name: str, known: Program | None, choices: dict[str, Any]) -> Program:
    """Ask for what a program needs; the other options keep their values or defaults."""
    from ...advisor.collect.configuration import Program

    asked = dict(choices)

    def ask(key: str, question: str, default: str) -> None:
        if not asked[key]:
            asked[key] = click.prompt(question, default=default, err=True) or None

    now = known or Program(name, name, (), block=(256,))
    build, run = _shown(now.build), _shown(now.run)
    ask("directory", "Folder", now.directory)
    ask("block", "Original block, e.g. 256 or 16x16", "x".join(map(str, now.block)))
    ask("build", "Build command (nothing: none)", build)
    while not asked["run"]:
        asked["run"] = click.prompt("Run command", default=run or None, err=True)
    ask("kernel", "Kernel whose block varies (nothing: all)", now.kernel or "")
    limits = ",".join(str(limit) for limit in now.registers if limit is not None)
    ask("registers", "Register limits, e.g. 32,64 (nothing: none)", limits)
    if not asked["inputs"]:
        question = "Values of {input}, by commas (nothing: none, or as they are)"
        words = click.prompt(question, default="", err=True).split(",")
        asked["inputs"] = tuple(word.strip() for word in words if word.strip())
    ask("output", "Output to compare: stdout, none or a file", now.output.source)
    if asked["tolerance"] is None:
        tolerance = now.output.tolerance
        asked["tolerance"] = click.prompt(
            "Relative tolerance", type=float, default=tolerance, err=True
        )
    pattern = now.timing.pattern or ""
    ask("timing", "Expression that finds the printed time (nothing: whole process)", pattern)
    for key, before in (("build", build), ("run", run)):
        if known is not None and asked[key] == before:
            asked[key] = None  # a line for the shell stays one
    return _program(name, known, asked)


def _shown(command: Command | None) -> str:
    import shlex

    if command is None:
        return ""
    return command if isinstance(command, str) else shlex.join(command)


def _program(name: str, known: Program | None, choices: dict[str, Any]) -> Program:
    """Return a program as options say; what they do not say stays as it was."""
    from ...advisor.collect.configuration import Program
    from ...errors import UsageError

    for key in ("run", "block"):
        if known is None and not choices[key]:
            raise UsageError(f"--program {name} is new: give its --{key}")
    program = known or Program(name, choices["directory"] or ".", ())
    changed: dict[str, Any] = {
        key: choices[key] for key in ("directory", "kernel", "timeout") if choices[key] is not None
    }
    for key in ("build", "run"):
        if choices[key] is not None:
            changed[key] = _command(key, choices[key], shell=choices["shell"])
    if choices["block"] is not None:
        changed["block"] = _block(choices["block"], "--block")
    if choices["blocks"] is not None:
        words = choices["blocks"].split(",")
        changed |= {"blocks": tuple(_block(w, "--blocks") for w in words), "sizes": {}}
    if choices["sizes"]:
        changed |= {"sizes": dict(map(_sizes, choices["sizes"])), "blocks": ()}
    if choices["registers"] is not None:
        limits = _numbers(choices["registers"], "--registers")
        changed["registers"] = (None, *sorted(set(limits)))
    if choices["inputs"]:
        changed["inputs"] = choices["inputs"]
    output = _given(choices, output="source", output_type="type", tolerance="tolerance")
    output |= _given(choices, ignore="ignore")
    timing = _given(choices, timing="pattern", unit="unit", repeats="repeats")
    if "pattern" in timing:
        timing["source"] = "output"
    return replace(
        program,
        **changed,
        output=replace(program.output, **output),
        timing=replace(program.timing, **timing),
    )


def _given(choices: dict[str, Any], **names: str) -> dict[str, Any]:
    return {name: choices[key] for key, name in names.items() if choices[key] is not None}


def _command(key: str, said: str, *, shell: bool) -> Command:
    import shlex

    from ...errors import UsageError

    if shell:
        return said
    try:
        return tuple(shlex.split(said))
    except ValueError as error:
        raise UsageError(f"--{key} {said}: {error}") from None


def _numbers(said: str, option: str, separator: str = ",") -> tuple[int, ...]:
    from ...errors import UsageError

    try:
        return tuple(int(word) for word in said.split(separator))
    except ValueError:
        raise UsageError(
            f"{option} {said}: expected numbers with {separator!r} between them"
        ) from None


def _block(said: str, option: str) -> tuple[int, ...]:
    return _numbers(said.lower(), option, "x")


def _sizes(said: str) -> tuple[str, tuple[int, ...]]:
    axis, _, listed = said.partition("=")
    return axis.strip(), tuple(sorted(set(_numbers(listed, f"--sizes {axis}"))))


# ------------------------------------------------------------------ check


def _check(settings: Settings, configuration: Configuration, file: Path) -> None:
    """Print what works and what does not; exit with 1 where something does not."""
    from ...advisor.collect.configuration_check import findings

    rows = [
        {"step": f.step, "name": f.name, "ok": f.is_ok, "told": f.told}
        for f in findings(configuration, file.absolute().parent)
    ]
    print_rows(settings, COLUMNS, rows)
    if not all(row["ok"] for row in rows):
        raise click.exceptions.Exit(1)
    settings.note(f"Next: tunedb advise collect {file} --dry-run")
