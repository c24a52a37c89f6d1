"""Random programs of a design space, drawn without TVM."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

from . import chance
from .draft import Draft
from .prior import TilePrior
from .tilings import draw_tiling

_PERFECT, _CATEGORY, _LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"


def draw_tiles(template: Draft, rng: random.Random, prior: TilePrior) -> Draft:
    """Return a program of a design space whose tiles are drawn from a prior.

    Parameters
    ----------
    template : Draft
        Design space with TVM's initial decisions, which have the extents of the loops.
    rng : random.Random
        Source of chance.
    prior : TilePrior
        Distribution of good tiles.

    Returns
    -------
    Draft
        The other decisions are missing.
    """
    decisions: dict[int, Any] = {
        number: prior.draw(each.extent, each.levels, each.innermost, rng, each.place)
        for number, each in _samples(template).items()
        if isinstance(each, _Tile)
    }
    return template.with_decisions(decisions)


def decide(
    draft: Draft, template: Draft, rng: random.Random, locations: Mapping[int, Sequence[int]]
) -> Draft:
    """Return a draft with random decisions where it has none.

    Tilings are drawn uniformly, categories with the probabilities of the sketch, places uniformly
    from the legal ones. A decision of another kind stays missing; TVM draws it.

    Parameters
    ----------
    draft : Draft
        Program of the design space.
    template : Draft
        Design space with TVM's initial decisions, which have the extents of the loops.
    rng : random.Random
        Source of chance.
    locations : mapping of int to sequence of int
        Legal decisions of each ``SampleComputeLocation``, by its number.
    """
    decisions = dict(draft.decisions)
    for number, each in _samples(template).items():
        if number in decisions:
            continue
        if isinstance(each, _Tile):
            tile = draw_tiling(each.extent, each.levels, each.innermost, rng)
            decisions[number] = list(tile)
        elif isinstance(each, _Category):
            decisions[number] = chance.draw(rng, each.choices, each.sums)
        else:
            decisions[number] = rng.choice(locations.get(number) or [each.initial])
    return draft.with_decisions(decisions)


class _Tile(NamedTuple):
    """A sampled tile: the loop's extent, bounds, and how many of as many levels come before."""

    extent: int
    levels: int
    innermost: int
    place: int


class _Category(NamedTuple):
    """A sampled category: its choices, and running sums of their probabilities."""

    choices: range
    sums: list[float]


class _Location(NamedTuple):
    """A sampled location."""

    initial: int


@lru_cache(maxsize=64)
def _samples(template: Draft) -> dict[int, _Tile | _Category | _Location]:
    """Return what a design space samples without TVM, by number, in order."""
    places: Counter[int] = Counter()
    samples: dict[int, _Tile | _Category | _Location] = {}
    for number in sorted(template.decisions):
        instruction, initial = template.instructions[number], template.decisions[number]
        if instruction.kind == _PERFECT:
            levels, innermost = instruction.attrs
            samples[number] = _Tile(prod(initial), levels, innermost, places[levels])
            places[levels] += 1
        elif instruction.kind == _CATEGORY:
            weights = instruction.attrs[1]
            samples[number] = _Category(range(len(weights)), list(accumulate(weights)))
        elif instruction.kind == _LOCATION:
            samples[number] = _Location(initial)
    return samples
