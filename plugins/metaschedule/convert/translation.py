"""Records of a sketch that differ in numbers alone, without a replay for each.

Where every number that a search of auto_scheduler chose is the decision of a sampling instruction,
the trace of a record is that of another one of its sketch with other decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

import orjson

from ....errors import FormatError
from ....identity import canonical_json
from ....programs.ansor import numbers_of, places_of
from ....records import Trace
from .schedules import INNERMOST, UNROLL_STEPS, Choice

__all__ = ["Translation"]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the decision of a sampling instruction stands in a record, and what bounds it."""

    instruction: int
    numbers: slice
    extent: int | None
    limit: int


@dataclass(frozen=True, slots=True, eq=False)
class Translation:
    """The translation of the records of a sketch.

    Parameters
    ----------
    trace : Trace
        Trace of one of them.
    rest : list
        Its literals, as stored.
    places : tuple
        Its sampling instructions.
    count : int
        Number of its numbers.
    extents : list of (int, int)
        Places of the extents that the log repeats, and those of that record.
    """

    trace: Trace
    rest: list[Any]
    places: tuple[_Place, ...]
    count: int
    extents: list[tuple[int, int]]

    @classmethod
    def learnt(cls, record: Trace, trace: Trace, choices: Sequence[Choice]) -> Self | None:
        """Return the translation that a replayed record shows.

        Parameters
        ----------
        record : Trace
            Steps of auto_scheduler.
        trace : Trace
            The trace to which they were replayed.
        choices : sequence of Choice
            What each decision of the trace stands for.

        Returns
        -------
        Translation or None
            None where some number of the record is no decision.
        """
        numbered, *rest = orjson.loads(trace.decisions)
        numbers, where = numbers_of(record), places_of(record)
        if len(numbered) != len(choices) or {choice.step for choice in choices} != where.keys():
            return None
        places, extents = [], []
        for (instruction, _), (step, extent) in zip(numbered, choices, strict=True):
            numbers_of_step = where[step]
            if extent is None:
                if numbers[numbers_of_step.start] not in UNROLL_STEPS:
                    return None
                places.append(_Place(instruction, numbers_of_step, None, 0))
                continue
            first = numbers_of_step.start
            extents.append((first, numbers[first]))
            lengths = slice(first + 1, numbers_of_step.stop)
            limit = max(INNERMOST, numbers[lengths][-1])
            places.append(_Place(instruction, lengths, extent, limit))
        return cls(trace, rest, tuple(places), len(numbers), extents)

    def of(self, record: Trace) -> Trace | None:
        """Return the trace of another record of the sketch; None if its instructions differ.

        They do where a length divides no extent, is over the limit of a tile, or the number of
        unrolled steps is none of auto_scheduler's. Of a damaged record, a replay gives the reason.
        """
        try:
            numbers = numbers_of(record)
        except FormatError:
            return None
        if len(numbers) != self.count:
            return None
        if any(numbers[place] != extent for place, extent in self.extents):
            return None
        numbered: list[list[Any]] = []
        for place in self.places:
            chosen = numbers[place.numbers]
            if place.extent is None:
                if chosen[0] not in UNROLL_STEPS:
                    return None
                numbered.append([place.instruction, UNROLL_STEPS.index(chosen[0])])
                continue
            inner = prod(chosen)
            if inner < 1 or place.extent % inner or max(INNERMOST, chosen[-1]) != place.limit:
                return None
            numbered.append([place.instruction, [place.extent // inner, *chosen]])
        return replace(self.trace, decisions=canonical_json([numbered, *self.rest]))
