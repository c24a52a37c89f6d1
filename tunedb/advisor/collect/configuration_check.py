"""Check of a configuration before anything is run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import TuneDBError
from .configuration import Configuration, ProgramConfig
from .plan import choose_tool, make_plan
from .profiler import find_tool
from .runs import command_for, environment_of, source_folder
from .variants import Variant, capability


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check.

    Parameters
    ----------
    step : str
        ``environment``, ``devices`` or ``programs``.
    name : str
        Folder, tool, device or program.
    is_ok : bool
        It works.
    message : str
        Details, or what is missing.
    """

    step: str
    name: str
    is_ok: bool
    message: str


def check(configuration: Configuration, base: Path) -> Iterator[CheckResult]:
    """Yield the results for environment, devices and programs; nothing is run.

    Parameters
    ----------
    configuration : Configuration
        The configuration.
    base : Path
        Its folder.
    """
    path = environment_of(configuration.environment, base, {})["PATH"]
    for folder in configuration.environment.path:
        exists = (base / Path(folder).expanduser()).is_dir()
        yield CheckResult("environment", folder, exists, "a folder" if exists else "no such folder")
    for device in configuration.devices:
        known = capability(device)
        message = f"compute capability {'unknown' if known is None else known}"
        yield CheckResult("devices", device.name, known is not None, message)
    if not configuration.devices:
        yield CheckResult("devices", "", False, "none; name one with --device")
        return
    if not configuration.programs:
        yield CheckResult("programs", "", False, "none; add one with --program")
        return
    tool = choose_tool(configuration.profiler.tool, configuration.devices[0])
    if tool != "none":
        try:
            yield CheckResult("environment", tool, True, find_tool(tool, path))
        except TuneDBError as error:
            yield CheckResult("environment", tool, False, str(error))
    for program in configuration.programs:
        yield _check_program(configuration, program, base, path)


def _check_program(
    configuration: Configuration, program: ProgramConfig, base: Path, path: str
) -> CheckResult:
    try:
        folder = source_folder(program, base)
        plan = make_plan(configuration, programs=[program.name])
    except TuneDBError as error:
        return CheckResult("programs", program.name, False, str(error))
    original = Variant(
        program.name, program.original, None, (*program.inputs, None)[0], original=True
    )
    for key, command in (("build", program.build), ("run", program.run)):
        if command is None or (key == "run" and program.build is not None):
            continue  # the build may write the program
        word = command_for(command, original)[0]
        exists = (folder / word).exists() if "/" in word else shutil.which(word, path=path)
        if not exists:
            return CheckResult("programs", program.name, False, f"{key}: {word} is not found")
    message = f"{len(plan.variants)} variants, {sum(map(plan.runs, plan.variants))} runs"
    if plan.illegal:
        message += f"; {len(plan.illegal)} blocks are illegal"
    return CheckResult("programs", program.name, True, message)
