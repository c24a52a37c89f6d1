"""FAIR T1 inputs: what a kernel's tuning parameters are, and which of them form its block.

One JSON document (https://github.com/odgaard/TuningSchema, version 1.0.0), and its ancestor, the
CAFF of BAT (https://github.com/NTNU-HPC-Lab/BAT):

``ConfigurationSpace.TuningParameters``
    ``[{"Name", "Type", "Values": expression, "Default"}]``.
``ConfigurationSpace.Conditions``
    ``[{"Parameters": [name], "Expression": expression}]``: all hold for a legal configuration.
``KernelSpecification``
    ``KernelName``, ``ProblemSize`` and ``LocalSize``: an expression for each of X, Y and Z.

A T1 input has no measurement: it is stored as a workload of format ``t1-input``, and is looked at
again when the advisor needs it. Expressions are Python's; they are parsed, never run
(:mod:`tunedb.formats.gpu.expressions`). An input one of whose expressions cannot be is refused as a
whole.
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
        Name of the kernel; that of the benchmark where the input has none.
    problem : object
        Size of the problem as it is given, or None.
    parameters : mapping
        Parameter → the values that it may take, in the order of the input.
    defaults : mapping
        Parameter → its default, for those that have one that is a number, text or truth value.
    conditions : tuple of str
        Expressions that all hold for a legal configuration.
    local_size : tuple of str
        Expressions of the thread block along x, y and z; ``"1"`` where there is none. Empty where
        the input does not say it.
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
        """Tell whether a configuration has allowed values and fulfils the conditions.

        A parameter that the input does not have, and a condition on one that the configuration
        lacks, say nothing: tools leave out parameters with one value.

        Raises
        ------
        FormatError
            A condition cannot be computed for it.
        """
        for name, value in configuration.items():
            if name in self.parameters and value not in self.parameters[name]:
                return False
        single = {name: found[0] for name, found in self.parameters.items() if len(found) == 1}
        known = {**single, **configuration}
        return all(
            expressions.holds(condition, known)
            for condition in self.conditions
            if expressions.names(condition) <= set(known)
        )

    def block(self, configuration: Mapping[str, Any]) -> tuple[int, int, int] | None:
        """Return the thread block of a configuration by ``LocalSize``, or None.

        None where the input does not say it, or not by what the configuration has.
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
        """Tell whether a file begins as a T1 input does; its schema does not."""
        return b'"$schema"' not in head and _SHAPE.search(head) is not None

    def read_file(self, file: LogFile) -> Iterator[Item]:
        """Yield the input as a workload.

        Raises
        ------
        FormatError
            It is no T1 input, or an expression in it cannot be computed.
        """
        document = parse_document(read_document(file))
        found = t1_input(document)
        kernel = file.kernel or found.kernel
        yield Workload(
            WorkloadFormat.T1,
            canonical_json(document),
            clean_text(kernel)[: limits.MAX_NAME_CHARS],
        )


def read_t1(body: bytes) -> T1Input:
    """Return a T1 input of its stored body.

    Raises
    ------
    FormatError
        It is no T1 input, or an expression in it cannot be computed.
    """
    try:
        return t1_input(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise FormatError(f"a T1 input is not JSON: {error}") from None


def t1_input(document: Any) -> T1Input:
    """Return a T1 input of its JSON value.

    Raises
    ------
    FormatError
        It is no T1 input, or an expression in it cannot be computed.
    """
    check_value(document, "a T1 input")
    space, kernel = _part(document, "ConfigurationSpace"), _part(document, "KernelSpecification")
    parameters: dict[str, list[Any]] = {}
    defaults: dict[str, Any] = {}
    for entry in _entries(space, "TuningParameters"):
        name, stated = _text(entry, "Name"), entry.get("Values")
        if type(stated) is not str and type(stated) is not list:
            raise FormatError(f"the values of {name[:40]!r} are {short(stated)}, no expression")
        parameters[name] = expressions.values(stated) if isinstance(stated, str) else stated
        if isinstance(entry.get("Default"), int | float | str | bool):
            defaults[name] = entry["Default"]
    if not parameters:
        raise FormatError("a T1 input without TuningParameters")
    conditions = [_text(entry, "Expression") for entry in _entries(space, "Conditions")]
    local = _local_size(kernel.get("LocalSize"))
    for text in (*conditions, *local):
        _check(text, parameters, defaults)
    known_as = kernel.get("KernelName") or _part(document, "General").get("BenchmarkName")
    if type(known_as) is not str or not known_as:
        raise FormatError("a T1 input without KernelSpecification.KernelName")
    return T1Input(
        known_as, kernel.get("ProblemSize"), parameters, defaults, tuple(conditions), local
    )


def _check(text: str, parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise FormatError for an expression that may not be computed.

    It is computed once, with the defaults. A name that is no parameter is no reason to refuse the
    input: CLBlast's name the block by parameters of another tool.
    """
    known = {name: values[0] for name, values in parameters.items() if values} | dict(defaults)
    unknown = dict.fromkeys(expressions.names(text) - set(known), 1)
    try:
        expressions.holds(text, known | unknown)
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


def _part(document: Any, name: str) -> dict[str, Any]:
    """Return an object in a document; an empty one where it is missing."""
    found = document.get(name, {}) if type(document) is dict else None
    if type(found) is not dict:
        raise FormatError(f"a T1 input whose {name} is not an object")
    return found


def _entries(space: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = space.get(name) or []
    if type(found) is not list or not all(type(entry) is dict for entry in found):
        raise FormatError(f"{name} is not a list of objects")
    return found


def _text(entry: Mapping[str, Any], name: str) -> str:
    found = entry.get(name)
    if type(found) is not str or not found or "\0" in found:
        raise FormatError(f"the {name} of an entry is {short(found)}, which is not text")
    return found
