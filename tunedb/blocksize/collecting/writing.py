"""A configuration as TOML. The standard library reads TOML and does not write it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import limits
from ...errors import FormatError, StorageError
from ...files import read_regular, write_whole
from .configuration import Configuration, Program
from .reading import parse

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
        sections += _program(program)
    return "\n".join(sections)


def _program(program: Program) -> list[str]:
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
        raise FormatError(f"{path}: {error.object!r:.80} is no text of Unicode") from None
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
