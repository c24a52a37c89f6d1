"""Definitions of workloads: functions that compute what a log names.

auto_scheduler's log has the name of a function, or the hash of its computation, and arguments. A
definition has that name. Names with a suffix behind a slash (``conv2d_layer/add``) are variants,
for logs in which one key stands for several computations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, TypeAlias

from ....errors import UsageError
from ....extensions import load

#: Group of entry points.
GROUP = "tunedb.definitions"

#: Gets the arguments of a workload key; returns te tensors, inputs before outputs.
Definition: TypeAlias = Callable[..., Any]


def load_definitions() -> tuple[dict[str, Definition], dict[str, str]]:
    """Return the installed definitions, and error messages for those that do not load, by name."""
    return load(GROUP, "definition", _callable)


def _callable(_: str, value: Any) -> Definition:
    if not callable(value):
        raise TypeError("not a function")
    function: Definition = value
    return function


def split_statement(statement: str) -> tuple[str, str, str]:
    """Return name, module and function of a statement ``name=package.module:function``.

    Raises
    ------
    UsageError
        The statement has another form.
    """
    name, _, place = statement.partition("=")
    module, _, function = place.partition(":")
    if not (name and module and function):
        raise UsageError(f"expected NAME=package.module:function, not {statement!r}")
    return name, module, function


class Definitions:
    """Definitions by the name in a log.

    Parameters
    ----------
    statements : iterable of str
        ``name=package.module:function``; they come before installed ones of that name.

    Raises
    ------
    UsageError
        A statement has another form.
    Exception
        Its module does not load.
    """

    def __init__(self, statements: Iterable[str] = ()) -> None:
        self._variants: dict[str, list[tuple[str, Definition]]] = {}
        for statement in statements:
            name, module, function = split_statement(statement)
            self._add(name, _callable(name, getattr(import_module(module), function)))
        for name, definition in sorted(load_definitions()[0].items()):
            self._add(name, definition)

    def _add(self, name: str, definition: Definition) -> None:
        self._variants.setdefault(name.partition("/")[0], []).append((name, definition))

    def variants(self, function: str) -> list[tuple[str, Definition]]:
        """Return names and definitions for the name in a log, in the order of trial."""
        return self._variants.get(function, [])
