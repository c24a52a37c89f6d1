"""Whether what a configuration names is there, before anything is run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import TuneDBError
from .configuration import Configuration, Program
from .plan import make_plan, suitable
from .profiler import find_tool
from .runs import command_for, environment_of, source_folder
from .variants import Variant, capability


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Parameters
    ----------
    step : str
        ``environment``, ``devices`` or ``programs``.
    name : str
        What.
    is_ok : bool
        Whether it works.
    told : str
        What was found, or what is missing.
    """

    step: str
    name: str
    is_ok: bool
    told: str


def findings(configuration: Configuration, base: Path) -> Iterator[Finding]:
    """Yield what there is and what is missing; nothing is run.

    Parameters
    ----------
    configuration : Configuration
        What is checked.
    base : Path
        Its folder.
    """
    path = environment_of(configuration.environment, base, {})["PATH"]
    for folder in configuration.environment.path:
        there = (base / Path(folder).expanduser()).is_dir()
        yield Finding("environment", folder, there, "a folder" if there else "no such folder")
    for device in configuration.devices:
        known = capability(device)
        told = "compute capability unknown" if known is None else f"compute capability {known}"
        yield Finding("devices", device.name, known is not None, told)
    if not configuration.devices:
        yield Finding("devices", "", False, "none; name one with --device")
        return
    if not configuration.programs:
        yield Finding("programs", "", False, "none; add one with --program")
        return
    tool = suitable(configuration.profiler.tool, configuration.devices[0])
    if tool != "none":
        try:
            yield Finding("environment", tool, True, find_tool(tool, path))
        except TuneDBError as error:
            yield Finding("environment", tool, False, str(error))
    for program in configuration.programs:
        yield _program(configuration, program, base, path)


def _program(configuration: Configuration, program: Program, base: Path, path: str) -> Finding:
    try:
        folder = source_folder(program, base)
        plan = make_plan(configuration, programs=[program.name])
    except TuneDBError as error:
        return Finding("programs", program.name, False, str(error))
    original = Variant(
        program.name, program.original, None, (*program.inputs, None)[0], original=True
    )
    for key, command in (("build", program.build), ("run", program.run)):
        if command is None or (key == "run" and program.build is not None):
            continue  # what runs may have to be built first
        word = command_for(command, original)[0]
        there = (folder / word).exists() if "/" in word else shutil.which(word, path=path)
        if not there:
            return Finding("programs", program.name, False, f"{key}: {word} is not found")
    told = f"{len(plan.variants)} variants, {sum(map(plan.runs, plan.variants))} runs"
    if plan.refused:
        told += f"; {len(plan.refused)} blocks are illegal"
    return Finding("programs", program.name, True, told)
