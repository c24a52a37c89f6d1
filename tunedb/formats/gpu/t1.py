"""FAIR T1 inputs: a kernel's tuning parameters, their conditions, and its thread block.

One JSON document (https://github.com/odgaard/TuningSchema, version 1.0.0), and its ancestor, the
CAFF of BAT (https://github.com/NTNU-HPC-Lab/BAT):

``ConfigurationSpace.TuningParameters``
    ``[{"Name", "Type", "Values": expression, "Default"}]``.
``ConfigurationSpace.Conditions``
    ``[{"Parameters": [name], "Expression": expression}]``: a legal configuration fulfils all.
``KernelSpecification``
    ``KernelName``, ``ProblemSize`` and ``LocalSize``: an expression for each of X, Y and Z.

A T1 input has no measurements. It is stored as a workload of format ``t1-input``, which the advisor
parses again when it needs it. Expressions are Python's; they are parsed and evaluated without
running Python code (:mod:`tunedb.formats.gpu.expressions`). An input with an expression that cannot
be evaluated is rejected as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

import orjson

from ... import limits
from ...errors import FormatError
from ...identity import canonical_json, clean_text
from ...json_checks import check_value
from ...records import Workload, WorkloadFormat
from ..base import Item, LogFile
from . import expressions
from .json_documents import parse_document, read_document

_SHAPE = re.compile(
    rb'"(?:TuningParameters"\s*:\s*\[|ConfigurationSpace"\s*:\s*\{\s*"(?:TuningParameters|Conditions)'
    rb'"\s*:\s*\[|KernelSpecification"\s*:\s*\{\s*"[A-Z]\w*"\s*:\s*["\[])'
)

_AXES = ("X", "Y", "Z")


@dataclass(frozen=True, slots=True)
class T1Input:
    """A T1 input, checked.

    Parameters
    ----------
    kernel : str
        Name of the kernel, or of the benchmark if the input names no kernel.
    problem : object
        Size of the problem as given, or None.
    parameters : mapping
        Parameter → its allowed values, in the order of the input.
    defaults : mapping
        Parameter → default, for defaults that are numbers, texts or truth values.
    conditions : tuple of str
        Expressions that a legal configuration fulfils.
    local_size : tuple of str
        Expressions of the thread block along x, y and z; ``"1"`` for a missing axis. Empty if the
        input has no ``LocalSize``.
    """

    kernel: str
    problem: Any
    parameters: Mapping[str, list[Any]]
    defaults: Mapping[str, Any]
    conditions: tuple[str, ...]
    local_size: tuple[str, ...]

    @property
    def block_parameters(self) -> tuple[str, ...]:
        """The tuning parameters that form the thread block, in the order of the axes."""
        named = (name for axis in self.local_size for name in sorted(expressions.names(axis)))
        return tuple(dict.fromkeys(name for name in named if name in self.parameters))

    def is_legal(self, configuration: Mapping[str, Any]) -> bool:
        """Return True if a configuration has allowed values and fulfils the conditions.

        Ignores parameters that the input lacks, and conditions on parameters that the configuration
        lacks: tools leave out parameters with one value.

        Raises
        ------
        FormatError
            A condition cannot be evaluated.
        """
        for name, value in configuration.items():
            if name in self.parameters and value not in self.parameters[name]:
                return False
        single = {name: values[0] for name, values in self.parameters.items() if len(values) == 1}
        complete = {**single, **configuration}
        return all(
            expressions.holds(condition, complete)
            for condition in self.conditions
            if expressions.names(condition) <= set(complete)
        )

    def block(self, configuration: Mapping[str, Any]) -> tuple[int, int, int] | None:
        """Return the thread block of a configuration by ``LocalSize``.

        None if the input has no ``LocalSize``, or the configuration lacks one of its parameters.
        """
        if not self.local_size:
            return None
        try:
            x, y, z = (expressions.number(text, configuration) for text in self.local_size)
        except FormatError:
            return None
        return (int(x), int(y), int(z)) if min(x, y, z) >= 1 else None


class T1Format:
    """FAIR T1 inputs (:class:`tunedb.formats.base.FileFormat`)."""

    name = "t1"

    def matches_file(self, head: bytes, path: Path) -> bool:
        """Return True for the head of a T1 input, False for that of its JSON schema."""
        return b'"$schema"' not in head and _SHAPE.search(head) is not None

    def read_file(self, file: LogFile) -> Iterator[Item]:
        """Yield the input as a workload.

        Raises
        ------
        FormatError
            The file is not a T1 input, or one of its expressions cannot be evaluated.
        """
        document = parse_document(read_document(file))
        kernel = file.kernel or t1_input(document).kernel
        yield Workload(
            WorkloadFormat.T1,
            canonical_json(document),
            clean_text(kernel)[: limits.MAX_NAME_CHARS],
        )


def read_t1(body: bytes) -> T1Input:
    """Return the T1 input of a stored body.

    Raises
    ------
    FormatError
        The body is not a T1 input, or one of its expressions cannot be evaluated.
    """
    try:
        return t1_input(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise FormatError(f"a T1 input is not JSON: {error}") from None


def t1_input(document: Any) -> T1Input:
    """Return the T1 input of a JSON value.

    Raises
    ------
    FormatError
        The value is not a T1 input, or one of its expressions cannot be evaluated.
    """
    check_value(document, "a T1 input")
    space = _object(document, "ConfigurationSpace")
    kernel = _object(document, "KernelSpecification")
    parameters: dict[str, list[Any]] = {}
    defaults: dict[str, Any] = {}
    for entry in _entries(space, "TuningParameters"):
        name, values = _text(entry, "Name"), entry.get("Values")
        if type(values) is not str and type(values) is not list:
            raise FormatError(f"the values of {name[:40]!r} are {short(values)}, no expression")
        parameters[name] = expressions.values(values) if isinstance(values, str) else values
        if isinstance(entry.get("Default"), int | float | str | bool):
            defaults[name] = entry["Default"]
    if not parameters:
        raise FormatError("a T1 input without TuningParameters")
    conditions = [_text(entry, "Expression") for entry in _entries(space, "Conditions")]
    local = _local_size(kernel.get("LocalSize"))
    for text in (*conditions, *local):
        _check(text, parameters, defaults)
    kernel_name = kernel.get("KernelName") or _object(document, "General").get("BenchmarkName")
    if type(kernel_name) is not str or not kernel_name:
        raise FormatError("a T1 input without KernelSpecification.KernelName")
    return T1Input(
        kernel_name, kernel.get("ProblemSize"), parameters, defaults, tuple(conditions), local
    )


def _check(text: str, parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise FormatError for an expression that cannot be evaluated with the defaults.

    Unknown names are allowed: CLBlast's inputs name the block by parameters of another tool.
    """
    values = {name: allowed[0] for name, allowed in parameters.items() if allowed} | dict(defaults)
    unknown = dict.fromkeys(expressions.names(text) - set(values), 1)
    try:
        expressions.holds(text, values | unknown)
    except FormatError as error:
        if not isinstance(error.__cause__ or error.__context__, ZeroDivisionError):
            raise


def _local_size(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if type(value) is not dict:
        raise FormatError(f"LocalSize is {short(value)}; expected an object with X, Y and Z")
    axes = [value.get(axis, "1") for axis in _AXES]
    for axis in axes:
        if isinstance(axis, bool) or not isinstance(axis, int | str):
            raise FormatError(f"an extent of LocalSize is {short(axis)}, no expression")
    return tuple(str(axis) for axis in axes)


def _object(document: Any, name: str) -> dict[str, Any]:
    """Return an object in a document; an empty one if it is missing."""
    value = document.get(name, {}) if type(document) is dict else None
    if type(value) is not dict:
        raise FormatError(f"a T1 input whose {name} is not an object")
    return value


def _entries(space: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    entries = space.get(name) or []
    if type(entries) is not list or not all(type(entry) is dict for entry in entries):
        raise FormatError(f"{name} is not a list of objects")
    return entries


def _text(entry: Mapping[str, Any], name: str) -> str:
    text = entry.get(name)
    if type(text) is not str or not text or "\0" in text:
        raise FormatError(f"the {name} of an entry is {short(text)}, which is not text")
    return text
