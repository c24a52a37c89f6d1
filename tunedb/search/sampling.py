"""Random programs of a design space, drawn without TVM."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

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
    places: Counter[int] = Counter()
    decisions: dict[int, Any] = {}
    for number, instruction in enumerate(template.instructions):
        if instruction.kind == _PERFECT and number in template.decisions:
            levels, innermost = instruction.attrs
            extent = prod(template.decisions[number])
            decisions[number] = prior.draw(extent, levels, innermost, rng, places[levels])
            places[levels] += 1
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
    for number, initial in template.decisions.items():
        if number in decisions:
            continue
        instruction = template.instructions[number]
        if instruction.kind == _PERFECT:
            levels, innermost = instruction.attrs
            decisions[number] = list(draw_tiling(prod(initial), levels, innermost, rng))
        elif instruction.kind == _CATEGORY:
            weights = instruction.attrs[1]
            decisions[number] = rng.choices(range(len(weights)), weights)[0]
        elif instruction.kind == _LOCATION:
            decisions[number] = rng.choice(locations.get(number) or [initial])
    return draft.with_decisions(decisions)
