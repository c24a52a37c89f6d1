"""Tilings: ways to write an extent as a product of factors, outermost first."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache

#: Most tilings that are listed; of more, so many are drawn.
MOST_LISTED = 4096

#: Weight of a level relative to the next outer one, when a tiling is repaired.
_INNER_WEIGHT = 4.0


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a positive number, ascending."""
    products = [1]
    for prime, count in _primes(number):
        products = [product * prime**power for product in products for power in range(count + 1)]
    return tuple(sorted(products))


def tilings(
    extent: int, levels: int, max_innermost: int | None, rng: random.Random
) -> Sequence[tuple[int, ...]]:
    """Return the tilings of an extent: all of them, or a sample of very many.

    Parameters
    ----------
    extent : int
        Product of the factors, at least 1.
    levels : int
        Number of factors, at least 1.
    max_innermost : int or None
        Bound of the last factor; None or less than 1 for no bound, as in TVM.
    rng : random.Random
        Draws the sample of :data:`MOST_LISTED`, each prime factor going to any level.

    Returns
    -------
    sequence of tuple of int
        Never empty, unless `levels` is 1 and the extent is over the bound.
    """
    limit = max_innermost if max_innermost is not None and max_innermost >= 1 else extent
    if _count(extent, levels) <= MOST_LISTED:
        return _listed(extent, levels, limit)
    drawn = (_drawn(extent, levels, limit, rng) for _ in range(MOST_LISTED))
    return list(dict.fromkeys(drawn))


def draw_tiling(
    extent: int, levels: int, max_innermost: int | None, rng: random.Random
) -> tuple[int, ...]:
    """Return a random one of :func:`tilings`; (`extent`,) where there is none."""
    limit = max_innermost if max_innermost is not None and max_innermost >= 1 else extent
    if _count(extent, levels) > MOST_LISTED:
        return _drawn(extent, levels, limit, rng)
    return rng.choice(_listed(extent, levels, limit) or ((extent,),))


@lru_cache(maxsize=4096)
def nearest_tiling(
    factors: tuple[int, ...], extent: int, max_innermost: int | None
) -> tuple[int, ...] | None:
    """Return the tiling of an extent that is most like another tiling.

    It has the least weighted sum of squared differences of the logarithms of factors. Inner levels
    weigh more, each four times the next outer one: they are chosen for registers, vectors and
    caches, which do not grow with the workload; the outermost one takes the rest.

    Parameters
    ----------
    factors : tuple of int
        Factors of any product, all at least 1.
    extent : int
        Product of the result, at least 1.
    max_innermost : int or None
        Bound of the last factor of the result; None or less than 1 for no bound.

    Returns
    -------
    tuple of int or None
        `factors` itself where it fits. None where there is no tiling: a single level over the
        bound.
    """
    limit = max_innermost if max_innermost is not None and max_innermost >= 1 else extent
    # Remaining extent after the levels so far → the least cost, and the factors, inner first.
    best: dict[int, tuple[float, tuple[int, ...]]] = {extent: (0.0, ())}
    for level in range(len(factors) - 1, -1, -1):
        weight, old = _INNER_WEIGHT**level, math.log2(factors[level])
        reached: dict[int, tuple[float, tuple[int, ...]]] = {}
        for left, (cost, chosen) in best.items():
            for factor in divisors(left) if level else (left,):
                if not chosen and factor > limit:
                    break
                total = cost + weight * (math.log2(factor) - old) ** 2
                rest = left // factor
                if rest not in reached or (total, (*chosen, factor)) < reached[rest]:
                    reached[rest] = (total, (*chosen, factor))
        best = reached
    return best[1][1][::-1] if 1 in best else None


@lru_cache(maxsize=4096)
def _count(extent: int, levels: int) -> int:
    """Return the number of tilings without a bound of the last factor."""
    return math.prod(math.comb(power + levels - 1, power) for _, power in _primes(extent))


@lru_cache(maxsize=4096)
def _primes(number: int) -> tuple[tuple[int, int], ...]:
    """Return the prime factors of a number with their powers, ascending."""
    primes = []
    candidate = 2
    while candidate * candidate <= number:
        power = 0
        while number % candidate == 0:
            number //= candidate
            power += 1
        if power:
            primes.append((candidate, power))
        candidate += 1
    if number > 1:
        primes.append((number, 1))
    return tuple(primes)


@lru_cache(maxsize=128)
def _listed(extent: int, levels: int, limit: int) -> tuple[tuple[int, ...], ...]:
    return tuple(_all(extent, levels, limit))


def _all(extent: int, levels: int, limit: int) -> Iterator[tuple[int, ...]]:
    if levels == 1:
        if extent <= limit:
            yield (extent,)
        return
    for factor in divisors(extent):
        if factor <= limit:
            for outer in _all(extent // factor, levels - 1, extent):
                yield (*outer, factor)


def _drawn(extent: int, levels: int, limit: int, rng: random.Random) -> tuple[int, ...]:
    factors = [1] * levels
    for prime, power in _primes(extent):
        for _ in range(power):
            level = rng.randrange(levels)
            if level == levels - 1 and factors[level] * prime > limit:
                level = rng.randrange(level)
            factors[level] *= prime
    return tuple(factors)
