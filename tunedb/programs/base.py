"""What a step is, whatever wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
        The kind in words: ``split``, ``compute_at``, ….
    stage : int or None
        Stage that it transforms (auto_scheduler: position in the current list of stages).
    loop : int or None
        Loop of that stage (auto_scheduler: position in its current list of loops).
    arguments : dict
        The other arguments by name, as JSON values.
    """

    number: int
    code: str
    name: str
    stage: int | None
    loop: int | None
    arguments: dict[str, Any]
