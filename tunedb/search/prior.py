"""Which tilings are likely to be good, learnt from good programs of similar workloads."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .draft import Draft
from .tilings import tilings

Floats = NDArray[np.float64]

#: Tilings that are kept for each number of levels, the heaviest ones.
_MOST_KEPT = 512

#: Share of the weight that all candidates get alike.
_UNIFORM = 0.1

#: Standard deviation of the kernel, in octaves; what a difference of outermost factors, which take
#: what the extents differ by, counts of one of inner factors; and what a tiling of another loop
#: counts, where it is known which loop is asked for. Chosen on random programs of 22 workloads of
#: a CPU, ranked by a prior that was learnt from others: see docs/search.md.
_BANDWIDTH = 1.0
_OUTERMOST = 0.5
_OTHER_PLACE = 0.05


class _Learnt(NamedTuple):
    """Tilings of so many levels.

    Base-2 logarithms of their factors, shape (n, levels); weights, shape (n,), the greatest is 1;
    and places, shape (n,).
    """

    logs: Floats
    weights: Floats
    places: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TilePrior:
    """How the tiles of good programs are distributed, for each number of levels.

    A mixture: all tilings alike with a share of 0.1, and otherwise a Gaussian kernel around each
    tiling that was learnt, with a standard deviation of one octave in each inner level, and of two
    in the outermost one. So no weight is ever zero.

    A *place* tells the loops of a workload apart: 0 for the first tiling of so many levels in a
    trace, and so on (:func:`tiles_of`). For a matmul on a CPU, of four levels, that is rows, then
    columns. Where it is given, tilings that were learnt from another place count a twentieth.
    """

    _learnt: Mapping[int, _Learnt]

    @classmethod
    def of(cls, drafts: Iterable[Draft], weights: Iterable[float]) -> TilePrior:
        """Return the prior of some programs.

        Parameters
        ----------
        drafts : iterable of Draft
            Good programs.
        weights : iterable of float
            What each counts; one that is not positive and finite counts nothing.
        """
        found: dict[int, dict[tuple[int, tuple[int, ...]], float]] = {}
        for draft, weight in zip(drafts, weights, strict=True):
            if not (weight > 0 and np.isfinite(weight)):
                continue
            for place, factors in tiles_of(draft):
                known = found.setdefault(len(factors), {})
                known[place, factors] = known.get((place, factors), 0.0) + weight
        return cls({levels: _learnt(known) for levels, known in found.items()})

    def weigh(
        self,
        extent: int,
        levels: int,
        candidates: Sequence[Sequence[int]],
        place: int | None = None,
    ) -> list[float]:
        """Return a weight for each of some tilings of a loop.

        Parameters
        ----------
        extent : int
            Of the loop.
        levels : int
            Number of factors of a tiling.
        candidates : sequence of sequence of int
            Tilings, outermost factor first.
        place : int or None
            Which loop it is; None where that is unknown.

        Returns
        -------
        list of float
            Positive; their mean is 1. All 1 where nothing is known of so many levels.
        """
        return [float(weight) for weight in self._weights(extent, levels, candidates, place)]

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
        extent, levels, place
            As for :meth:`weigh`.
        max_innermost : int or None
            The last factor is not greater; None or less than 1 for any.
        rng : random.Random
            Where the choice comes from.
        """
        candidates = tilings(extent, levels, max_innermost, rng)
        if not candidates:  # a single level over the limit
            return [extent]
        weights = self._weights(extent, levels, candidates, place)
        return list(rng.choices(candidates, weights.tolist())[0])

    def _weights(
        self, extent: int, levels: int, candidates: Sequence[Sequence[int]], place: int | None
    ) -> Floats:
        learnt = self._learnt.get(levels)
        if learnt is None or not candidates:
            return np.ones(len(candidates))
        asked = np.log2(np.array(candidates, np.float64))
        squares = _squares(asked, learnt.logs)
        weights = learnt.weights
        if place is not None:
            weights = weights * np.where(learnt.places == place, 1.0, _OTHER_PLACE)
        # Where all are far, the nearest ones still count.
        exponents = np.log(weights) - squares / (2 * _BANDWIDTH**2)
        density = np.exp(exponents - exponents.max()).sum(axis=1)
        return np.asarray(_UNIFORM + (1 - _UNIFORM) * density / density.mean())


def tiles_of(draft: Draft) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the place and the factors of each decided perfect tile of a program."""
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


def _squares(asked: Floats, known: Floats) -> Floats:
    """Return the squared distances of tilings, shape (asked, known)."""
    squares = np.square(asked[:, None] - known)
    squares[..., 0] *= _OUTERMOST**2
    return np.asarray(squares.sum(axis=2))


def _learnt(known: Mapping[tuple[int, tuple[int, ...]], float]) -> _Learnt:
    heaviest = sorted(known.items(), key=lambda item: (-item[1], item[0]))[:_MOST_KEPT]
    weights = np.array([weight for _, weight in heaviest])
    return _Learnt(
        logs=np.log2(np.array([factors for (_, factors), _ in heaviest], np.float64)),
        weights=weights / weights.max(),
        places=np.array([place for (place, _), _ in heaviest], np.int64),
    )
