"""Steps of programs, and the interface of the tools that write programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..records import Signature, Trace

Facts = TypeVar("Facts")


@dataclass(frozen=True, slots=True)
class Step:
    """A transform step of a program.

    Parameters
    ----------
    number : int
        Position among the program's steps, from 0.
    code : str
        The step's kind in its log: ``SP`` (auto_scheduler), ``sp`` (AutoTVM), ``Split``
        (MetaSchedule).
    name : str
        Readable name of the kind: ``split``, ``compute_at``, ….
    stage : int or None
        Transformed stage (auto_scheduler: position in the current list of stages).
    loop : int or None
        Transformed loop of that stage (auto_scheduler: position in its current list of loops).
    arguments : dict
        The other arguments by name, as JSON values.
    """

    number: int
    code: str
    name: str
    stage: int | None
    loop: int | None
    arguments: dict[str, Any]


def _no_options(_: Trace) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Tool(Generic[Facts]):
    """The functions that depend on the tool of a program (:func:`tunedb.programs.tool_of`).

    Each check raises FormatError for foreign programs outside the allow-list
    (:mod:`tunedb.programs.allowlist`).

    Parameters
    ----------
    signatures : mapping
        Format of a workload → the function that reads its signature from its parsed body.
    steps : callable
        Returns the steps of a stored program.
    chosen : mapping
        Code of a step → name of the argument that the search chose.
    check_sketch : callable
        Checks a sketch and returns its facts for ``check_program``.
    check_decisions : callable
        Checks decisions without sketch and tail.
    check_program : callable
        Checks that decisions belong to a sketch and a tail, given the facts of both.
    check_tail : callable or None
        As ``check_sketch``; None if programs have no tail.
    options : callable
        Returns options that affect the meaning of the steps, by name.
    as_json : callable or None
        Returns instructions and decisions in TVM's own JSON; None if programs are not traces.
    """

    signatures: Mapping[str, Callable[[Any], Signature]]
    steps: Callable[[Trace], list[Step]]
    chosen: Mapping[str, str]
    check_sketch: Callable[[bytes], Facts]
    check_decisions: Callable[[bytes], None]
    check_program: Callable[[Facts, Facts | None, bytes], None]
    check_tail: Callable[[bytes], Facts] | None = None
    options: Callable[[Trace], dict[str, Any]] = _no_options
    as_json: Callable[[Trace], tuple[list[Any], list[Any]]] | None = None
