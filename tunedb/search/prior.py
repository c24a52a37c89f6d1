"""Prior of tilings: their distribution in good programs of similar workloads."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import chance
from .draft import Draft
from .tilings import tilings

Floats = NDArray[np.float64]

#: Tilings that are kept for each number of levels, the heaviest ones.
_MOST_KEPT = 512

#: Sets of tilings whose weights are remembered.
_MOST_SUMS = 8192

#: Share of the weight that all candidates get alike.
_UNIFORM = 0.1

#: Standard deviation of the kernel, in octaves; weight of a difference of outermost factors, which
#: take what the extents differ by, relative to one of inner factors; and weight of a tiling of
#: another loop, where the loop is given. Chosen on random programs of 22 workloads of a CPU, ranked
#: by a prior that was made from others: see docs/search.md.
_BANDWIDTH = 1.0
_OUTERMOST = 0.5
_OTHER_PLACE = 0.05


class _Tilings(NamedTuple):
    """Weighted tilings of one number of levels."""

    #: Base-2 logarithms of the factors, shape (n, levels).
    logs: Floats
    #: Shape (n,); the greatest is 1.
    weights: Floats
    #: Shape (n,).
    places: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TilePrior:
    """Distribution of the tiles of good programs, for each number of levels.

    A mixture: all tilings alike with a share of 0.1, and otherwise a Gaussian kernel around each
    known tiling, with a standard deviation of one octave in each inner level, and of two in the
    outermost one. So no weight is ever zero.

    A *place* identifies a loop of a workload: 0 for the first tiling of so many levels in a trace,
    and so on (:func:`tiles_of`). For a matmul on a CPU, with four levels, the places are rows, then
    columns. Where a place is given, tilings of other places count a twentieth.
    """

    _by_levels: Mapping[int, _Tilings]
    # A search asks for few tilings many times: (place, tiling) → logarithm of its density.
    _densities: dict[tuple[int | None, tuple[int, ...]], float] = field(
        default_factory=dict, repr=False
    )
    _listed: dict[tuple[int, ...], _Drawable] = field(default_factory=dict, repr=False)
    _sums: dict[tuple[int | None, tuple[tuple[int, ...], ...]], list[float]] = field(
        default_factory=dict, repr=False
    )

    @classmethod
    def from_drafts(cls, drafts: Iterable[Draft], weights: Iterable[float]) -> TilePrior:
        """Return the prior of some programs.

        Parameters
        ----------
        drafts : iterable of Draft
            Good programs.
        weights : iterable of float
            Weight of each program; a weight that is not positive and finite counts as 0.
        """
        totals: dict[int, dict[tuple[int, tuple[int, ...]], float]] = {}
        for draft, weight in zip(drafts, weights, strict=True):
            if not (weight > 0 and np.isfinite(weight)):
                continue
            for place, factors in tiles_of(draft):
                same_levels = totals.setdefault(len(factors), {})
                same_levels[place, factors] = same_levels.get((place, factors), 0.0) + weight
        return cls({levels: _heaviest(same_levels) for levels, same_levels in totals.items()})

    def weigh(
        self, levels: int, candidates: Sequence[Sequence[int]], place: int | None = None
    ) -> list[float]:
        """Return a weight for each of some tilings of a loop.

        Parameters
        ----------
        levels : int
            Number of factors of a tiling.
        candidates : sequence of sequence of int
            Tilings of one loop, outermost factor first.
        place : int or None
            Place of the loop; None if unknown.

        Returns
        -------
        list of float
            Positive weights with a mean of 1; all 1 if no tiling of so many levels is known.
        """
        known = self._by_levels.get(levels)
        if known is None or not candidates:
            return [1.0] * len(candidates)
        keys = [(place, tuple(candidate)) for candidate in candidates]
        new = [key for key in dict.fromkeys(keys) if key not in self._densities]
        if new:
            found = _log_densities([tiling for _, tiling in new], known, place)
            self._densities.update(zip(new, found, strict=True))
        logs = [self._densities[key] for key in keys]
        # Where all are far, the nearest ones still count.
        greatest = max(logs)
        densities = [math.exp(log - greatest) for log in logs]
        mean = sum(densities) / len(densities)
        return [_UNIFORM + (1 - _UNIFORM) * density / mean for density in densities]

    def cumulated(
        self, candidates: tuple[tuple[int, ...], ...], place: int | None = None
    ) -> list[float]:
        """Return running sums of the weights of tilings (:meth:`weigh`), which are remembered.

        Parameters
        ----------
        candidates : tuple of tuple of int
            Tilings of one loop with equally many levels; not empty.
        place : int or None
            Place of the loop; None if unknown.
        """
        key = (place, candidates)
        sums = self._sums.get(key)
        if sums is None:
            if len(self._sums) >= _MOST_SUMS:
                self._sums.clear()
            sums = list(accumulate(self.weigh(len(candidates[0]), candidates, place)))
            self._sums[key] = sums
        return sums

    def draw(
        self,
        extent: int,
        levels: int,
        max_innermost: int | None,
        rng: random.Random,
        place: int | None = None,
    ) -> list[int]:
        """Draw a tiling of a loop.

        Parameters
        ----------
        extent : int
            Extent of the loop.
        levels, place
            As for :meth:`weigh`.
        max_innermost : int or None
            Bound of the last factor; None or less than 1 for no bound.
        rng : random.Random
            Source of chance.

        Returns
        -------
        list of int
            Factors, outermost first.
        """
        key = (extent, levels, max_innermost or 0, -1 if place is None else place)
        drawable = self._listed.get(key)
        if drawable is None:
            candidates = tilings(extent, levels, max_innermost, rng)
            weights = self.weigh(levels, candidates, place)
            drawable = self._listed[key] = _Drawable(candidates, list(accumulate(weights)))
        if not drawable.tilings:  # a single level over the limit
            return [extent]
        return list(chance.draw(rng, drawable.tilings, drawable.weights))


class _Drawable(NamedTuple):
    """Tilings of a loop with running sums of their weights."""

    tilings: Sequence[tuple[int, ...]]
    weights: list[float]


def _log_densities(
    candidates: Sequence[Sequence[int]], known: _Tilings, place: int | None
) -> list[float]:
    """Return the logarithm of the kernels' sum at each tiling."""
    weights = known.weights
    if place is not None:
        weights = weights * np.where(known.places == place, 1.0, _OTHER_PLACE)
    squares = _squares(np.log2(np.array(candidates, np.float64)), known.logs)
    exponents = np.log(weights) - squares / (2 * _BANDWIDTH**2)
    greatest = exponents.max(axis=1)
    sums = np.exp(exponents - greatest[:, None]).sum(axis=1)
    logs: list[float] = (greatest + np.log(sums)).tolist()
    return logs


def tiles_of(draft: Draft) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the place and the factors of each decided perfect tile of a program.

    Parameters
    ----------
    draft : Draft
        Program.

    Yields
    ------
    tuple of int and tuple of int
        Place and factors, outermost first.
    """
    places: dict[int, int] = {}
    for number, instruction in enumerate(draft.instructions):
        if instruction.kind != "SamplePerfectTile":
            continue
        levels = instruction.attrs[0]
        place = places.get(levels, 0)
        places[levels] = place + 1
        factors = draft.decisions.get(number)
        if isinstance(factors, list) and len(factors) == levels and min(factors, default=0) > 0:
            yield place, tuple(factors)


def _squares(candidates: Floats, known: Floats) -> Floats:
    """Return the squared distances of tilings, shape (candidates, known)."""
    squares = np.square(candidates[:, None] - known)
    squares[..., 0] *= _OUTERMOST**2
    return np.asarray(squares.sum(axis=2))


def _heaviest(weighted: Mapping[tuple[int, tuple[int, ...]], float]) -> _Tilings:
    heaviest = sorted(weighted.items(), key=lambda item: (-item[1], item[0]))[:_MOST_KEPT]
    weights = np.array([weight for _, weight in heaviest])
    return _Tilings(
        logs=np.log2(np.array([factors for (_, factors), _ in heaviest], np.float64)),
        weights=weights / weights.max(),
        places=np.array([place for (place, _), _ in heaviest], np.int64),
    )
